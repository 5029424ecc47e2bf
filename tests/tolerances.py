"""Every tolerance of the tests, for float64. A test names the one it needs and sets none of its own.

The values are absolute for numbers of order one, unless the name says otherwise.
"""

TOLERANCES: dict[str, float] = {
    # the same quantity by two algebraic routes (chain against dense, sequential against partitioned)
    "exact": 1e-9,
    # natural → moments → natural, save → load of derived quantities, and the like
    "roundtrip": 1e-9,
    # log evidence or ELBO in nats, against a dense calculation
    "evidence": 1e-8,
    # an ELBO at convergence against an independent optimisation of the same bound, in nats
    "optimum": 1e-6,
    # an ELBO at the default stopping rule against the converged value, in nats
    "converged": 1e-4,
    # automatic differentiation against central differences, relative
    "gradient": 1e-5,
    # a quadrature rule against a closed form inside its degree of exactness
    "quadrature": 1e-10,
    # Monte Carlo averages, in standard errors of the estimate
    "standard_errors": 5.0,
}
