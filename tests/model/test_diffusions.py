"""Every noise that depends on the state keeps the contract. A new class needs an example here, and nothing else."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from support import assert_close
from tolerances import TOLERANCES

import girsanov as gv
from girsanov._core.precision import float64
from girsanov.model.diffusions import DIFFUSIONS, Constant
from girsanov.model.latent import cross_moments, state_moments


class Ramp(eqx.Module):
    slope: jax.Array

    def __call__(self, x):
        return 0.3 + self.slope * jnp.tanh(x)


R = [[1.0, 0.4], [0.4, 1.0]]
# class: [(example, states to try (n, d), σ of such a state in NumPy)]
EXAMPLES = {
    gv.diffusions.Proportional: [
        (gv.diffusions.Proportional(0.3), [[1e-6], [0.2], [3.0], [1e7]], lambda x: 0.3 * x),
        (gv.diffusions.Proportional([0.3, 2.0], R), [[0.2, 5.0]], lambda x: np.array([0.3, 2.0]) * x),
    ],
    gv.diffusions.SquareRoot: [(gv.diffusions.SquareRoot(0.7), [[1e-6], [0.2], [3e4]], lambda x: 0.7 * np.sqrt(x))],
    gv.diffusions.Power: [
        (gv.diffusions.Power(0.7, 0.75), [[1e-3], [1.0], [50.0]], lambda x: 0.7 * x**0.75),
        (gv.diffusions.Power(0.7, 1.5), [[1e-3], [1.0], [50.0]], lambda x: 0.7 * x**1.5),
        (gv.diffusions.Power(0.7, 1.0), [[1e-3], [1.0], [50.0]], lambda x: 0.7 * x),
        (gv.diffusions.Power(0.7, 1.0 + 1e-7), [[0.1], [1.0], [5.0]], lambda x: 0.7 * x ** (1.0 + 1e-7)),
        (gv.diffusions.Power(0.7, [0.5, 1.2]), [[0.3, 2.0]], lambda x: 0.7 * x ** np.array([0.5, 1.2])),
    ],
    gv.diffusions.Bounded: [
        (gv.diffusions.Bounded(0.5), [[0.05], [0.5], [0.95]], lambda x: 0.5 * np.sqrt(x * (1.0 - x))),
        (gv.diffusions.Bounded(0.5, -2.0, 3.0), [[-1.9], [2.5]], lambda x: 0.5 * np.sqrt((x + 2.0) * (3.0 - x))),
    ],
    gv.diffusions.Scale: [
        (gv.diffusions.Scale(Ramp(0.2), -8.0, 8.0), [[-7.9], [-0.3], [0.05], [6.0]], lambda x: 0.3 + 0.2 * np.tanh(x)),
        (gv.diffusions.Scale(lambda x: 0.2 * x, 1e-3, 50.0), [[2e-3], [1.0], [49.0]], lambda x: 0.2 * x),
    ],
    gv.diffusions.Each: [
        (
            gv.diffusions.Each([gv.diffusions.Proportional(0.3), 0.25, gv.diffusions.SquareRoot(2.0)]),
            [[0.4, -3.0, 2.0]],
            lambda x: np.array([0.3 * x[0], 0.5, 2.0 * np.sqrt(x[2])]),
        ),
    ],
    Constant: [(Constant(0.25), [[-3.0]], lambda x: np.array([0.5]))],
}
CASES = [
    pytest.param(*example, id=f"{kind.__name__}{i}") for kind in EXAMPLES for i, example in enumerate(EXAMPLES[kind])
]


def test_every_kind_has_an_example():
    assert set(EXAMPLES) == set(DIFFUSIONS)


@pytest.mark.parametrize(("noise", "states", "sigma"), CASES)
@float64
def test_the_noise_of_the_new_coordinate_is_constant(noise, states, sigma):
    """ψ(ψ⁻¹(x)) = x; s ψ'(w) = σ(x), and s² ψ''(w) = σ σ'(x), with σ and σ' from NumPy."""
    for x in np.asarray(states):
        w = noise.to_constant(jnp.asarray(x))
        back, slope, curvature = (np.asarray(a) for a in noise.rates(w))
        s = np.asarray(noise.scales(len(x)))
        assert_close(back, x, "roundtrip", "state")
        assert_close(s * slope, sigma(x), "roundtrip", "σ")
        h = 1e-5 * np.abs(x) + 1e-12
        along = np.array([(sigma(x + d)[i] - sigma(x - d)[i]) / (2 * d[i]) for i, d in enumerate(np.diag(h))])
        assert_close(s**2 * curvature, sigma(x) * along, "gradient", "σσ'", size=np.abs(sigma(x) * along) + sigma(x))


@pytest.mark.parametrize(("noise", "states", "sigma"), CASES)
@float64
def test_the_drift_of_the_new_coordinate_is_ito_s(noise, states, sigma):
    """Of w(x), by central differences of ψ⁻¹: w' f + ½ w'' σ² per coordinate."""
    d = len(states[0])
    model = gv.Model(lambda x, t: jnp.sin(x) + t, diffusion=noise, initial=gv.GaussianState(states[0], 1e-4), dim=d)
    for x in np.asarray(states):
        w = noise.to_constant(jnp.asarray(x))
        got = np.asarray(model.latent.drift(w, jnp.asarray(0.5)))
        h = 1e-4 * np.abs(x) + 1e-9

        def at(shift, x=x):
            return np.asarray(noise.to_constant(jnp.asarray(x + shift)))

        first, second = (at(h) - at(-h)) / (2 * h), (at(h) - 2 * np.asarray(w) + at(-h)) / h**2
        parts = first * (np.sin(x) + 0.5), 0.5 * second * sigma(x) ** 2
        assert_close(got, parts[0] + parts[1], "gradient", "drift", size=np.abs(parts) + 1e-3)


@pytest.mark.parametrize(("noise", "states", "sigma"), CASES)
@float64
def test_ends_of_states_and_of_coordinates_belong_together(noise, states, sigma):
    d = len(states[0])
    low, high = noise.support(d)
    ends = [np.asarray(a) for a in noise.edges(d)]
    for x in np.asarray(states):
        assert ((x > low) & (x < high)).all()
        w = np.asarray(noise.to_constant(jnp.asarray(x)))
        assert ((w > ends[0]) & (w < ends[1])).all()
    for edge, end in zip(ends, (low, high), strict=True):
        for i in np.flatnonzero(np.isfinite(edge) & np.isfinite(end)):
            w = np.where(np.arange(d) == i, edge, np.asarray(noise.to_constant(jnp.asarray(states[0]))))
            assert_close(np.asarray(noise.to_state(jnp.asarray(w)))[i], end[i], "roundtrip", "end", size=1.0)


@float64
def test_moments_of_the_state_are_those_of_the_log_normal():
    rng = np.random.default_rng(0)
    B = rng.normal(size=(5, 2, 2))
    m, S = rng.normal(size=(5, 2)), 0.3 * B @ np.swapaxes(B, 1, 2) + 0.01 * np.eye(2)
    mean, cov = (np.asarray(a) for a in state_moments(gv.diffusions.Proportional(1.0), m, S))
    exact = np.exp(m + 0.5 * np.diagonal(S, axis1=1, axis2=2))
    assert_close(mean, exact, "identity", "mean")
    assert_close(cov / (exact[:, :, None] * exact[:, None, :]), np.expm1(S), "identity", "cov")


@float64
def test_moments_of_pairs_are_those_of_double_integrals():
    noise = gv.diffusions.Each([gv.diffusions.SquareRoot(1.0), gv.diffusions.Bounded(1.0)])
    m, S = np.array([3.0, 1.2]), np.array([[0.3, 0.1], [0.1, 0.2]])
    law = scipy.stats.multivariate_normal(m, S)
    psi = (lambda w: 0.25 * w**2, lambda w: np.sin(0.5 * w) ** 2)

    def integral(fn):
        ends = [(m[i] - 9 * np.sqrt(S[i, i]), m[i] + 9 * np.sqrt(S[i, i])) for i in (1, 0)]
        return scipy.integrate.dblquad(lambda b, a: fn(a, b) * law.pdf([a, b]), *ends[1], *ends[0], epsabs=1e-10)[0]

    mean = np.array([integral(lambda a, b: psi[0](a)), integral(lambda a, b: psi[1](b))])
    product = integral(lambda a, b: (psi[0](a) - mean[0]) * (psi[1](b) - mean[1]))
    got_mean, got_cov = (np.asarray(a)[0] for a in state_moments(noise, m[None], S[None]))
    assert_close(got_mean, mean, "integral", "mean")
    assert_close(got_cov[0, 1], product, "integral", "covariance", size=mean.prod())
    sd = np.sqrt(np.diagonal(S))[None]
    cross = np.asarray(cross_moments(noise, (m[None], sd), (m[None], sd), S[None])[2])[0]
    assert_close(cross, got_cov, "exact", "of a state with itself")


def growth(x, t):
    return 0.2 * x


BAD = {
    "scale of zero": (lambda: gv.diffusions.Proportional(0.0), "scale must be positive"),
    "negative scale": (lambda: gv.diffusions.SquareRoot([1.0, -1.0]), "scale must be positive"),
    "JAX array": (lambda: gv.diffusions.Power(jnp.array(-1.0), 0.5), "scale must be positive"),
    "matrix": (lambda: gv.diffusions.Proportional(np.eye(2)), "scalar or of shape"),
    "exponent": (lambda: gv.diffusions.Power(1.0, 0.0), "exponent must be positive"),
    "interval": (lambda: gv.diffusions.Bounded(1.0, 2.0, 1.0), "low < high"),
    "zero inside": (lambda: gv.diffusions.Scale(lambda x: jnp.abs(x), -1.0, 1.0), "returned 0.0 at state 0"),
    "negative σ": (lambda: gv.diffusions.Scale(lambda x: x, -1.0, 1.0), "returned -1.0 at state -1"),
    "not callable": (lambda: gv.diffusions.Scale(1.0, 0.0, 1.0), "must be a callable"),
    "not a scalar": (lambda: gv.diffusions.Scale(lambda x: jnp.stack([x, x]), 1.0, 2.0), "must return a scalar"),
    "NumPy inside": (lambda: gv.diffusions.Scale(lambda x: float(x), 1.0, 2.0), "use jax.numpy"),
    "correlation": (lambda: gv.diffusions.Proportional(1.0, [[2.0, 0.0], [0.0, 1.0]]), "ones on its diagonal"),
    "not a correlation": (lambda: gv.diffusions.Proportional(1.0, [[1.0, 2.0], [2.0, 1.0]]), "correlation"),
    "correlation's size": (
        lambda: gv.Model(growth, gv.diffusions.Proportional(1.0, R), gv.GaussianState(1.0, 0.1), dim=3),
        r"shape \(3, 3\)",
    ),
    "vector in a list": (lambda: gv.diffusions.Each([gv.diffusions.Proportional([1.0, 2.0])]), "one number"),
    "negative in a list": (lambda: gv.diffusions.Each([gv.diffusions.Proportional(1.0), -1.0]), "one number ≥ 0"),
    "text in a list": (lambda: gv.diffusions.Each([gv.diffusions.Proportional(1.0), "a"]), "parameters"),
    "a class": (lambda: gv.Model(growth, gv.diffusions.Proportional), "got the class"),
    "dimensions": (
        lambda: gv.Model(gv.LotkaVolterra(), [gv.diffusions.Proportional(1.0)], gv.GaussianState([1.0, 1.0], 0.1)),
        "disagree about the state's dimension",
    ),
    "default start": (
        lambda: gv.Model(growth, gv.diffusions.Proportional(1.0)),
        r"initial.mean\[0\] = 0 is not between",
    ),
    "start outside": (
        lambda: gv.Model(growth, gv.diffusions.Bounded(1.0), gv.GaussianState(1.5, 0.1)),
        r"initial.mean\[0\] = 1.5 is not between 0 and 1",
    ),
    "stationary": (
        lambda: gv.Model(gv.OrnsteinUhlenbeck(1.0, 1.0), gv.diffusions.SquareRoot(1.0), "stationary"),
        "is for constant noise",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(case, as_a_user):
    make, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        make()


def test_simulated_states_stay_where_the_noise_allows_them():
    times = np.linspace(0.0, 50.0, 400)
    near_zero = gv.Model(lambda x, t: 0.05 - x, gv.diffusions.SquareRoot(0.5), gv.GaussianState(0.05, 1e-4))
    assert gv.simulate(near_zero, times, key=jax.random.key(0)).path.min() >= 0.0
    inside = gv.Model(lambda x, t: 0.5 - x, gv.diffusions.Bounded(1.0), gv.GaussianState(0.5, 1e-4))
    path = gv.simulate(inside, times, key=jax.random.key(0)).path
    assert path.min() >= 0.0 and path.max() <= 1.0


def test_simulated_growth_has_the_moments_of_geometric_brownian_motion():
    """One long path: its log returns are independent and normal, with mean (μ − s²/2)Δ and variance s²Δ."""
    model = gv.Model(growth, gv.diffusions.Proportional(0.5), gv.GaussianState(1.0, 1e-6))
    times = np.arange(0.0, 400.0, 0.1)
    returns = np.diff(np.log(gv.simulate(model, times, key=jax.random.key(1), dt=0.1).path[:, 0]))
    n = len(returns)
    assert abs(returns.mean() - (0.2 - 0.125) * 0.1) < TOLERANCES["standard_errors"] * np.sqrt(0.025 / n)
    assert abs(returns.var() - 0.025) < TOLERANCES["standard_errors"] * 0.025 * np.sqrt(2.0 / n)
