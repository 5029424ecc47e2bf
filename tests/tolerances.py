"""Every tolerance of the tests, for float64. A test names the one it needs and sets none of its own.

The values are shares of the size of what is compared, and absolute for nats, unless the comment says otherwise.
"""

TOLERANCES: dict[str, float] = {
    # the same quantity by two algebraic routes (chain against dense, sequential against partitioned)
    "exact": 1e-9,
    # numbers of the gallery: one maximum by two optimisers, each with a stopping rule of its own
    "same_maximum": 2e-2,
    # a log evidence as it is printed, in five digits, of some hundred nats
    "printed": 0.02,
    # the bound of a posterior that is close to Gaussian, below the exact evidence, in nats
    "bound_near_evidence": 0.2,
    # estimates of the same rates by another model of the same data
    "other_model": 0.15,
    # two times that are one but for rounding, as a share of the step
    "same_time": 1e-6,
    # natural → moments → natural, save → load of derived quantities, and the like
    "roundtrip": 1e-9,
    # log evidence or ELBO in nats, against a dense calculation
    "evidence": 1e-8,
    # an identity between two quadratures of different order, both resolving a smooth integrand
    "identity": 1e-8,
    # an ELBO at convergence against an independent optimisation of the same bound, in nats
    "optimum": 1e-6,
    # the moments of that optimum: the root of the tolerance in nats, since the bound is flat there
    "optimum_moments": 1e-3,
    # largest entry of the gradient at which a reference optimisation counts as converged
    "stationary": 1e-6,
    # an ELBO at the default stopping rule against the converged value, in nats
    "converged": 1e-4,
    # the same where the drift has a kink, so that the value depends on the quadrature
    "converged_kink": 5e-3,
    # negative log predictive density at convergence, in nats an observation: the digits that the paper prints
    "nlpd": 1e-3,
    # negative log predictive density for four outputs or more, where a sample of the pieces of the integral goes on
    "nlpd_sampled": 1e-2,
    # observed order of convergence, log2 of the ratio of successive differences, against the order expected
    "order": 0.2,
    # by how much halving the step must divide an error of second order: four, less what higher orders leave
    "second_order_ratio": 3.0,
    # automatic differentiation against central differences, relative
    "gradient": 1e-5,
    # a quadrature rule against a closed form inside its degree of exactness
    "quadrature": 1e-10,
    # a quadrature rule against brute-force integration of a function that it does not integrate exactly
    "integral": 1e-6,
    # Monte Carlo averages, in standard errors of the estimate
    "standard_errors": 5.0,
    # the same for correlated draws, in standard errors at their effective number
    "effective_errors": 4.0,
    # a predictive density by the bridge between neighbouring nodes, dt = 0.1, in nats
    "bridge": 0.02,
    # VDP's bound extrapolated to dt = 0, as a share of the step that is left
    "extrapolated": 0.1,
    # a stochastic fit of a small problem against its exact answer: the bound in nats, and moments
    "fitted_bound": 0.3,
    "fitted_moments": 0.15,
    # posteriors of models of extreme scales against an exact smoother: means in standard deviations, shares of standard
    # deviations, and the bound as a share of its size. Beyond this the documentation promises the careful algorithm.
    "scales": 1e-5,
    # a maximum of the likelihood by two optimisers: its value in nats, and one well determined parameter
    "likelihood_maximum": 1e-4,
    # parameters at that maximum where they are less well determined: the bound is flat there
    "learnt": 1e-2,
    # moments on two grids of which the finer is four times as fine
    "coarse_moments": 0.05,
    # share of random linear-Gaussian models that may end with a status other than converged where float64 allows it
    "unsolved": 0.03,
    # a predictive density by two integrals, in nats: one on a grid about the mode, one that follows the likelihood
    "score": 1e-6,
    # a transition of a stiff linear SDE against sixty digits, as a share of its largest entry or of its own spread:
    # what rounding the drift does to the slowest of rates a thousand apart
    "stiff_transition": 1e-11,
    # evidence and moments of a stiff linear model against sixty digits, as a share of their size or spread
    "stiff": 1e-9,
    # the same where noise, diffusion and data are up to sixteen digits apart
    "far_scales": 1e-6,
    # a transition over a stiff gap in which the drift turns, against an ODE solver, as a share of its size
    "stiff_turn": 0.01,
    # a marginal between two nodes against exact rational arithmetic, as a share of its own spread
    "bridge_rounding": 1e-9,
    # the same where the drift turns between nodes 0.08 apart, against an ODE solver: what fifth order leaves
    "bridge_turn": 1e-4,
    # twice the bound that a rule of quadrature loses against the decrement that a richer rule finds, as a ratio
    "quadrature_ratio": 2.0,
    # a number that `diagnose` says to trust against the exact evidence, in nats: what it promises
    "trusted": 0.1,
    # evidence by single steps of an SDE, near a linear one, against the limit of short steps, dt = 0.0625, in nats
    "continuous_evidence": 0.04,
    # means of a Gaussian approximation of a tracking posterior that is bent, in standard deviations
    "gaussian_bias": 0.1,
    # the functional core against `infer`, each run to a tight tolerance: nats, and shares of a size
    "functional": 1e-6,
    # a derivative by the envelope theorem against central differences, relative
    "envelope": 1e-5,
    # the same in continuous time at dt = 0.02, where the sites are not quite those of the bound's maximum
    "envelope_continuous": 0.01,
    # predictive density of a held-out time with emission and offset learnt, above that with the true ones, in nats
    "learnt_emission": 0.02,
    # a share of draws below a quantile between nodes, against Gaussian draws about them
    "quantile_share": 0.01,
    # parameters of a profile, and the ends of its interval, against those of the exact likelihood
    "fitted": 2e-3,
    # the bound there: learning ends where no step promises more than 1e-5 nats
    "profiled": 2e-5,
    # the change of estimates with half the step, told from twice the step, as a share of the largest change
    "step_error": 0.3,
    # the slope of the bound where learning ended, in nats per standard deviation: a gain of tolerance 1e-5 is s²/2
    "last_slope": 0.01,
    # a mapped run against single ones
    "mapped": 1e-8,
}
