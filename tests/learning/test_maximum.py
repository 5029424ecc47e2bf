"""Learning reaches the maximum, or says that it has not: against SciPy on a Kalman filter, and where there is none."""

import equinox as eqx
import jax
import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support import assert_close
from tolerances import TOLERANCES

import girsanov as gv
from benchmarks import maximum
from girsanov.learning.trust_region import best_step, scales, secant

QUIET = {"progress": False}


# --- one step


def symmetric(n: int):
    entries = hnp.arrays(float, (n, n), elements=st.floats(-10.0, 10.0))
    return entries.map(lambda a: 0.5 * (a + a.T))


@settings(derandomize=True, deadline=None)
@given(
    st.integers(1, 4).flatmap(lambda n: st.tuples(symmetric(n), hnp.arrays(float, n, elements=st.floats(-5.0, 5.0))))
)
def test_no_point_of_the_region_is_better_than_the_step(problem):
    """Also where the function curves upwards, and where the gradient has no part along the best direction."""
    B, g = problem
    radius, longest = 2.0, np.full(len(g), 3.0)
    D = scales(B, radius, longest)
    step = best_step(g, B, D, radius)
    assert np.linalg.norm(D * step.s) <= radius * (1.0 + TOLERANCES["roundtrip"])
    assert (np.abs(step.s) <= longest * (1.0 + TOLERANCES["roundtrip"])).all()
    assert_close(step.gain, g @ step.s - 0.5 * step.s @ B @ step.s, "roundtrip", size=1.0 + np.abs(B).max())
    others = np.random.default_rng(0).normal(size=(2000, len(g)))
    others *= radius * np.random.default_rng(1).random((2000, 1)) ** 0.1 / np.linalg.norm(others, axis=1, keepdims=True)
    others /= D
    gains = others @ g - 0.5 * np.einsum("ni,ij,nj->n", others, B, others)
    assert gains.max() <= step.gain + TOLERANCES["roundtrip"] * (1.0 + np.abs(B).max() + np.abs(g).max())


def test_secants_of_a_quadratic_give_its_curvature():
    """After as many independent steps as there are coordinates, the estimate is exact, whatever their scales."""
    rng = np.random.default_rng(0)
    size = np.array([1e-3, 1.0, 1e3])
    B = np.array([[2.0, 0.5, 0.1], [0.5, -1.0, 0.2], [0.1, 0.2, 3.0]]) / np.outer(size, size)
    found = np.diag(1.0 / size**2)
    for _ in range(3):
        s = size * rng.normal(size=3)
        found = secant(found, s, B @ s)
        assert_close(found @ s, B @ s, "roundtrip")
    assert_close(found * np.outer(size, size), B * np.outer(size, size), "roundtrip")


# --- maxima


def far_season(i: int) -> maximum.Case:
    return maximum.far_seasons()[f"season {i}"]


def test_a_start_far_from_the_data_does_not_end_on_the_ridge_without_decay():
    """From the start alone, learning ends 3 nats lower, with a decay of zero and a mean far outside the data."""
    result = maximum.judge("season", far_season(3))
    assert result.status == "converged", result
    assert result.below < TOLERANCES["likelihood_maximum"], result


@pytest.mark.slow
@pytest.mark.parametrize("objective", maximum.OBJECTIVES)
def test_every_objective_reaches_the_maximum_from_far_away(objective):
    for name, case in maximum.far_seasons().items():
        result = maximum.judge(name, case, objective=objective)
        assert result.status == "converged", result
        assert result.below < TOLERANCES["likelihood_maximum"], result


@pytest.mark.slow
@pytest.mark.parametrize("objective", maximum.OBJECTIVES)
def test_the_carbon_dioxide_record(objective):
    pytest.importorskip("statsmodels", reason="the record is in statsmodels")
    result = maximum.judge("CO2", maximum.co2_case(), objective=objective)
    assert result.status == "converged", result
    assert result.below < maximum.CLOSE, result


@pytest.mark.slow
def test_in_continuous_time_learning_ends_where_the_gradient_vanishes():
    """The bound rises by some 1e-4 nats beyond that place, but no step that the gradient promises finds the rise."""
    model = gv.Model(gv.VanDerPol(), [1.0, 1.0], gv.GaussianState([1.0, 1.0], 0.01), gv.likelihoods.Gaussian(0.05))
    times = np.sort(np.random.default_rng(0).uniform(0.1, 2.9, 24))
    series = gv.simulate(model, times, key=jax.random.key(0), dt=0.01, start=0.0).series
    method = gv.CVIDP(time="continuous")
    fit = gv.learn(model, series, 0.05, (0.0, 3.0), trainable=["drift", "diffusion"], method=method, **QUIET)
    assert fit.status == "converged" and fit.history.e_steps[-1] < 60  # the other E-steps are those of the climbs
    problem = gv.prepare(fit.model, series, 0.05, (0.0, 3.0), method=method)
    with jax.enable_x64(True):
        slope = jax.jit(jax.grad(lambda rate: gv.bound(eqx.tree_at(lambda m: m.drift.rate, fit.model, rate), problem)))
        promised = abs(float(slope(fit.model.drift.rate))) * fit.standard_errors["drift.rate"]
    assert promised < TOLERANCES["last_slope"]


# --- other ends


def walk(n: int, q: float, r: float, seed: int = 0) -> gv.TimeSeries:
    rng = np.random.default_rng(seed)
    t = np.cumsum(rng.uniform(0.02, 0.2, n))
    return gv.TimeSeries(
        t, 7.0 + np.cumsum(np.sqrt(q * np.diff(t, prepend=0.0)) * rng.normal(size=n)) + r**0.5 * rng.normal(size=n)
    )


def test_a_variance_that_runs_to_zero_is_an_edge():
    """Increments of a smooth curve are alike, those of noisy readings are not: Brownian motion alone fits it best."""
    times = np.linspace(0.1, 6.0, 60)
    series = gv.TimeSeries(times, 7.0 + np.sin(times))
    model = gv.Model(gv.Linear([[0.0]]), 1.0, gv.GaussianState(7.0, 1.0), gv.likelihoods.Gaussian(0.1))
    with pytest.warns(UserWarning, match=r"learn has not converged \(edge\)"):
        fit = gv.learn(model, series, dt=0.5, trainable=["diffusion", "likelihood"], **QUIET)
    assert fit.status == "edge" and not fit.converged
    assert "likelihood.variance runs towards 0" in fit.message
    assert fit.standard_errors is None
    free = gv.learn(
        model, series, dt=0.5, trainable=["diffusion", "likelihood"], start="data", standard_errors=False, **QUIET
    )
    assert abs(free.elbo - fit.elbo) < 1e-2 and free.status == "edge"


def test_an_interval_s_end_is_named():
    series = gv.TimeSeries(np.arange(1.0, 41.0) * 0.1, 3.0 + 0.01 * np.sin(np.arange(40)))
    model = gv.Model(
        gv.OrnsteinUhlenbeck(1.0, mean=0.5), 0.1, gv.GaussianState(3.0, 1.0), gv.likelihoods.Gaussian(0.01)
    )
    with pytest.warns(UserWarning, match="edge"):
        fit = gv.learn(model, series, dt=0.1, trainable="drift.mean", constraints={"drift.mean": (0.0, 1.0)}, **QUIET)
    assert fit.status == "edge" and "drift.mean runs towards 1:" in fit.message


# --- starts from the data


def test_noise_and_diffusion_are_read_off_the_data():
    q, r = 0.5, 0.02
    series = walk(4000, q, r)
    model = gv.Model(gv.Linear([[0.0]]), 30.0, gv.GaussianState(0.0, 1.0), gv.likelihoods.Gaussian(10.0))
    names = ["diffusion", "likelihood", "initial.mean"]
    fit = gv.learn(model, series, dt=0.5, trainable=names, start="data", max_iterations=1, **QUIET)
    first = fit.history.parameters
    # The relative error of a variance from some 4000 differences is √(2/4000), and twice that where two are told apart.
    assert abs(first["likelihood.variance"][0] / r - 1.0) < 0.15
    assert abs(first["diffusion"][0, 0, 0] / q - 1.0) < 0.15
    assert abs(first["initial.mean"][0, 0] - series.values[0, 0]) < TOLERANCES["roundtrip"]


def test_what_the_data_do_not_show_keeps_its_value():
    times = np.arange(1.0, 31.0)
    series = gv.TimeSeries(times, np.random.default_rng(0).poisson(5.0, 30))
    model = gv.Model(gv.OrnsteinUhlenbeck(0.5), 0.3, gv.GaussianState(1.0, 0.2), gv.likelihoods.Poisson())
    fit = gv.learn(
        model, series, dt=0.5, trainable=["diffusion", "initial.mean"], start="data", max_iterations=1, **QUIET
    )
    assert fit.history.parameters["diffusion"][0, 0, 0] == pytest.approx(0.3, rel=TOLERANCES["roundtrip"])
    assert fit.history.parameters["initial.mean"][0, 0] == 1.0


def test_an_unknown_start():
    with pytest.raises(ValueError, match="start must be 'model' or 'data', got 'middle'"):
        gv.learn(gv.Model(gv.Linear([[0.0]])), walk(5, 1.0, 0.1), dt=0.05, trainable="diffusion", start="middle")


def double_well_fit(scale: float, well: float) -> gv.Fit:
    truth = gv.Model(gv.DoubleWell(2.0, 1.0), 0.7, gv.GaussianState(1.0, 0.1), gv.likelihoods.Gaussian(0.05))
    series = gv.simulate(truth, np.linspace(0.2, 20.0, 100), key=jax.random.key(3), start=0.0, dt=0.02).series
    model = gv.Model(gv.DoubleWell(scale, well), 0.7, truth.initial, truth.likelihood)
    return gv.learn(model, series, dt=0.1, span=(0.0, 20.0), trainable="drift", **QUIET)


@pytest.mark.slow
def test_a_ridge_to_infinity_is_no_maximum():
    """scale · x (well − x²) with scale → 0 and well → ∞ is all but linear, and 7 nats lower than the double well."""
    fit = double_well_fit(0.1, 4.0)
    assert fit.status in ("edge", "flat", "saddle", "max_iterations")
    assert "drift.well" in fit.message
    assert fit.elbo < double_well_fit(2.0, 1.0).elbo - 5.0


@pytest.mark.slow
def test_the_last_parameters_are_a_zero_of_the_likelihood_s_gradient():
    """Of an Ornstein–Uhlenbeck process: SciPy finds nothing better nearby by more than the tolerance."""
    case = maximum.make("ou, d = 2", np.random.default_rng(11))
    fit = gv.learn(
        case.model(case.begin),
        case.series,
        case.dt,
        (0.0, case.kind.end),
        trainable=list(case.kind.paths.values()),
        **QUIET,
    )
    with jax.enable_x64(True):
        value = jax.jit(maximum.kalman(case, fit.posterior.times))
        theta = maximum.pack(case, maximum.fitted(case, fit))
        found = scipy.optimize.minimize(
            lambda t: float(value(t)), theta, method="Nelder-Mead", options={"maxiter": 400}
        )
    assert fit.elbo > -found.fun - TOLERANCES["likelihood_maximum"]
