"""Learning: against dense evidence, scans and finite differences; what each status and option promises."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest
import scipy.optimize
from scipy import stats
from support import assert_close, assert_compiles_nothing, assert_gaussian, condition, linear_joint, pose
from tolerances import TOLERANCES

import girsanov as gv
from girsanov.data.grid import regular_grid
from girsanov.inference.cvi_dp import CVIDP, discrete_algorithm
from girsanov.inference.loop import run
from girsanov.learning.learn import learn
from girsanov.learning.objectives import Expansion, modified_value_and_grad, standard_value_and_grad, with_parameters
from girsanov.learning.parameters import leaves_by_path, make_spec, to_vector
from girsanov.paper.data import inference_model, load_fold
from girsanov.result.fit import FitHistory

OBJECTIVES = ("modified", "standard", "profile")
EVERYTHING = ["drift", "diffusion", "initial", "likelihood"]
FOUR_DECIMALS = 0.5e-4  # a figure that is quoted to four decimals
PARAMETER = 1e-4  # learnt values against those of an independent maximisation
ONE_PERCENT = 0.01  # standard errors against a numerical Hessian


def paper_problem(data_dir, process: str, drift):
    fold = load_fold(data_dir, process, 0)
    model = eqx.tree_at(lambda m: m.drift, inference_model(process, fold), drift)
    return model, fold.train, {"dt": 0.01, "span": fold.span, "progress": False}


def learnt(fit: gv.Fit, path: str):
    return fit.history.parameters[path][-1]


def steps_until(values: np.ndarray, target: float, within: float) -> int:
    """The first iteration from which on the values stay within this distance of the target."""
    outside = np.flatnonzero(np.abs(values - target) > within)
    return int(outside[-1]) + 1 if len(outside) else 0


# The paper's series


@pytest.mark.paper
def test_ou_needs_one_modified_m_step(data_dir):
    """Decay from 2.5, the initial state stationary: 0.5776 after one modified M-step, after about six standard ones."""
    model, series, options = paper_problem(data_dir, "ou", gv.OrnsteinUhlenbeck(decay=2.5))
    traces = {}
    for objective in ("modified", "standard"):
        fit = learn(model, series, trainable="drift.decay", objective=objective, standard_errors=False, **options)
        assert fit.converged
        traces[objective] = fit.history.parameters["drift.decay"]
    assert abs(traces["modified"][1] - 0.5776) < FOUR_DECIMALS
    assert steps_until(traces["modified"], 0.5776, 1e-3) == 1
    assert 4 <= steps_until(traces["standard"], 0.5776, FOUR_DECIMALS) <= 8


@pytest.mark.slow
@pytest.mark.paper
def test_double_well_reaches_the_top_of_the_profile_in_half_the_e_steps(data_dir):
    """Well from 0, scale 4: all objectives end at the argmax of the profile bound, which a scan puts at 0.98709.

    The figure 0.9863 that is quoted for this fold lies 3e-5 nats below the top: a stop inside its run's tolerance, not
    another optimum (the bound's curvature is 87 nats per squared unit, so that 1e-5 nats are 5e-4 in the parameter).
    """
    model, series, options = paper_problem(data_dir, "double_well", gv.DoubleWell(scale=4.0, well=0.0))
    top, bound_at = scan_well(model, series, options)
    assert abs(top - 0.98709) < FOUR_DECIMALS
    assert 1e-5 < bound_at(top) - bound_at(0.9863) < 1e-4
    e_steps = {}
    for objective in OBJECTIVES:
        fit = learn(model, series, trainable="drift.well", objective=objective, standard_errors=False, **options)
        assert fit.converged
        assert abs(fit.elbo - bound_at(top)) < 1e-5
        trace = fit.history.parameters["drift.well"]
        assert abs(trace[-1] - top) < 5e-4
        e_steps[objective] = fit.history.e_steps[steps_until(trace, top, 1e-3)]
    assert 2 * e_steps["modified"] <= e_steps["standard"]


def scan_well(model, series, options):
    """Argmax of max_q L(q, well) near its top, and the bound there as a function of well, by a cubic through a scan."""
    wells = np.linspace(0.981, 0.993, 7)
    tight = gv.CVIDP(tolerance=1e-10)
    models = [eqx.tree_at(lambda m: m.drift.well, model, np.float64(w)) for w in wells]
    bounds = np.array([gv.infer(m, series, method=tight, **options).elbo for m in models])
    fitted = np.polynomial.Polynomial.fit(wells, bounds, 3)
    assert np.abs(fitted(wells) - bounds).max() < 1e-7
    roots = fitted.deriv().roots()
    top = min((r.real for r in roots), key=lambda r: abs(r - wells.mean()))
    return top, fitted


@pytest.mark.paper
@pytest.mark.parametrize(
    ("process", "drift", "value"),
    [("ou", gv.OrnsteinUhlenbeck(decay=20.0), 0.5776), ("sqrt", gv.SquareRoot(scale=5.0), 0.7484)],
)
def test_far_starts_learn_without_nan(data_dir, process, drift, value):
    model, series, options = paper_problem(data_dir, process, drift)
    fit = learn(model, series, trainable="drift", standard_errors=False, **options)
    assert fit.converged
    (trace,) = fit.history.parameters.values()
    assert np.isfinite(trace).all() and np.isfinite(fit.history.elbo).all()
    assert np.isfinite(fit.posterior.mean).all()
    # the square root's kink is not resolved by quadrature: its bound is known to some 1e-6 nats, flat over 3e-4
    assert abs(trace[-1] - value) < 5e-4


# Gradients


def double_well_problem():
    model = gv.Model(
        gv.DoubleWell(scale=3.0, well=0.8),
        diffusion=0.7,
        initial=gv.GaussianState(0.9, 0.2),
        likelihood=gv.likelihoods.Gaussian(0.05),
    )
    return model, gv.TimeSeries([0.1, 0.35, 0.6, 1.1, 1.5, 1.85], [1.0, 0.7, 0.9, -0.2, -0.6, -1.1]), (0.0, 2.0), 0.05


def van_der_pol_problem():
    model = gv.Model(
        gv.VanDerPol(rate=2.0, damping=1.5),
        diffusion=[[0.8, 0.2], [0.2, 0.5]],
        initial=gv.GaussianState([0.8, 0.3], [[0.3, -0.1], [-0.1, 0.2]]),
        likelihood=gv.likelihoods.Gaussian([[0.05, 0.01], [0.01, 0.08]]),
    )
    values = [[0.9, 0.4], [0.6, 1.0], [-0.3, 1.1], [-1.2, 0.3], [-1.0, -0.8]]
    return model, gv.TimeSeries([0.1, 0.35, 0.6, 0.85, 1.1], values), (0.0, 1.2), 0.05


def central_difference(f, theta: np.ndarray, step: float = 1e-4) -> np.ndarray:
    out = np.empty_like(theta)
    for i in range(len(theta)):
        e = step * np.eye(len(theta))[i]
        out[i] = (f(theta + e) - f(theta - e)) / (2.0 * step)
    return out


@pytest.mark.parametrize("make", [double_well_problem, pytest.param(van_der_pol_problem, marks=pytest.mark.slow)])
def test_gradients_against_central_differences(make):
    """Drift, diffusion, noise and initial state, as full matrices for d = 2; away from the E-step's own parameters."""
    model, series, span, dt = make()
    method = CVIDP(tolerance=1e-13)
    with jax.enable_x64(True):
        spec = make_spec(model, EVERYTHING)
        problem = pose(model, series, regular_grid(series, dt, span), method.rule(model.dim))
        result, _ = method.solve(problem)
        theta_k = to_vector(spec, model)
        theta = theta_k + 0.05 * np.random.default_rng(0).normal(size=len(theta_k))
        q_k = Expansion(result.eta, result.moments, result.sites.base, result.sites.data)

        def modified(t):
            (value, (*_, ok)), grad = modified_value_and_grad(t, theta_k, spec, problem, q_k, {}, "auto")
            assert bool(ok)
            return float(value), np.asarray(grad)

        def standard(t, q=result.moments):
            value, grad = standard_value_and_grad(t, spec, problem, q, {})
            return float(value), np.asarray(grad)

        def profile(t):
            here = jax.tree.map(np.asarray, with_parameters(spec, t, problem))
            best = run(discrete_algorithm(method), here, result.sites, tolerance=1e-13, max_iterations=1000)
            return best.elbo, standard(t, best.moments)[1]

        for objective in (modified, standard, profile):
            grad = objective(theta)[1]
            differences = central_difference(lambda t, f=objective: f(t)[0], theta)
            assert_relative(grad, differences, objective.__name__)
        assert abs(modified(theta_k)[0] - result.elbo) < TOLERANCES["evidence"]


def assert_relative(got: np.ndarray, wanted: np.ndarray, what: str) -> None:
    size = np.maximum(np.abs(wanted), 1e-2 * np.abs(wanted).max())
    assert (np.abs(got - wanted) <= TOLERANCES["gradient"] * size).all(), f"{what}: {got} against {wanted}"


# Against the dense evidence of the Ornstein–Uhlenbeck process, which the bound equals


SPAN, DT = (0.0, 6.0), 0.1


def ou_model(decay=3.0, **parts) -> gv.Model:
    parts = {"diffusion": 1.0, "initial": gv.GaussianState(1.0, 0.1), **parts}
    return gv.Model(gv.OrnsteinUhlenbeck(decay), likelihood=gv.likelihoods.Gaussian(0.05), **parts)


def ou_series(seed: int = 0) -> gv.TimeSeries:
    times = np.arange(0.2, 6.0, 0.3)
    return gv.simulate(ou_model(0.8), times, key=jax.random.key(seed), dt=0.01, start=0.0).series


def fit_ou(model=None, series=None, trainable=("drift",), **options):
    options = {"standard_errors": False, "progress": False, **options}
    return learn(model or ou_model(), series or ou_series(), DT, SPAN, trainable=trainable, **options)


def dense_evidence(series, decay, Q=1.0, variance=0.05, mean=1.0) -> float:
    grid = regular_grid(series, DT, SPAN)
    M = len(grid.times) - 1
    A, b = np.full((M, 1, 1), -decay), np.zeros((M, 1))
    joint = linear_joint(A, b, np.array([[Q]]), np.array([mean]), np.array([[0.1]]), grid.times)
    return condition(*joint, np.eye(1), np.array([[variance]]), grid.node, series.values)[2]


def maximum(f, start) -> np.ndarray:
    out = scipy.optimize.minimize(lambda x: -f(x), start, method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-12})
    return out.x


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_ou_maximum_likelihood_is_that_of_the_dense_evidence(objective):
    series = ou_series()
    fit = fit_ou(objective=objective, tolerance=1e-9, parameter_tolerance=1e-6)
    (decay,) = maximum(lambda x: dense_evidence(series, *np.exp(x)), [0.0])
    assert abs(learnt(fit, "drift.decay") - np.exp(decay)) < PARAMETER
    assert abs(fit.elbo - dense_evidence(series, np.exp(decay))) < TOLERANCES["evidence"]


@pytest.mark.slow
def test_map_and_standard_errors_against_the_dense_evidence():
    """Decay, diffusion, noise and initial mean together, with priors on two of them: mode and its curvature."""
    series = ou_series()
    priors = {"drift.decay": dist.Gamma(2.0, 2.0), "likelihood.variance": dist.LogNormal(-3.0, 0.3)}
    trainable = ["drift", "diffusion", "likelihood", "initial.mean"]
    strict = {"tolerance": 1e-9, "parameter_tolerance": 1e-6}
    fit = fit_ou(trainable=trainable, priors=priors, standard_errors=True, **strict)

    def log_joint(values):
        decay, Q, mean, variance = values
        if min(decay, Q, variance) <= 0:
            return -np.inf
        log_prior = stats.gamma(2.0, scale=0.5).logpdf(decay) + stats.lognorm(0.3, scale=np.exp(-3.0)).logpdf(variance)
        return dense_evidence(series, decay, Q, variance, mean) + log_prior

    mode = maximum(log_joint, [1.0, 1.0, 1.0, 0.05])
    H = jacobian(lambda v: central_difference(log_joint, v, 1e-3), mode, 1e-3)
    assert fit.trainable == ("drift.decay", "diffusion", "initial.mean", "likelihood.variance")
    assert fit.converged and len(fit.history) <= 4  # base and data sites follow θ: an M-step sees the evidence itself
    got = np.array([learnt(fit, k).item() for k in fit.trainable])
    assert np.abs(got - mode).max() < PARAMETER
    assert abs(fit.history.objective[-1] - log_joint(mode)) < TOLERANCES["optimum"]
    errors = np.sqrt(np.diagonal(np.linalg.inv(-H)))
    names = ["drift.decay", "diffusion", "initial.mean[0]", "likelihood.variance"]
    ratio = np.array([fit.standard_errors[k] for k in names]) / errors
    assert np.abs(ratio - 1.0).max() < ONE_PERCENT, ratio
    assert np.abs(np.sqrt(np.diagonal(fit.covariance)) / errors - 1.0).max() < ONE_PERCENT


def jacobian(f, x: np.ndarray, step: float) -> np.ndarray:
    return np.array([(f(x + step * e) - f(x - step * e)) / (2.0 * step) for e in np.eye(len(x))])


def test_a_tight_prior_holds_the_parameter():
    free = learnt(fit_ou(), "drift.decay")
    held = learnt(fit_ou(priors={"drift.decay": dist.Normal(5.0, 1e-3)}), "drift.decay")
    assert abs(free - 5.0) > 1.0
    assert abs(held - 5.0) < 1e-3


# Statuses


def test_a_parameter_that_the_data_cannot_tell():
    model = gv.Model(gv.Sine(scale=0.0, phase=0.3), likelihood=gv.likelihoods.Gaussian(0.05))
    fit = learn(model, ou_series(), DT, SPAN, trainable="drift.phase", progress=False)
    assert fit.status == "flat" and not fit.converged
    assert "drift.phase" in fit.message and "cannot tell" in fit.message
    assert fit.standard_errors is None
    assert learnt(fit, "drift.phase") == 0.3


@pytest.mark.slow
def test_the_drift_of_a_coordinate_that_is_not_observed():
    model = gv.Model(gv.OrnsteinUhlenbeck([1.0, 2.0]), likelihood=gv.likelihoods.Gaussian(0.05), emission=[[1.0, 0.0]])
    fit = learn(model, ou_series(), DT, SPAN, trainable="drift", progress=False)
    assert fit.status == "flat"
    assert "drift.decay[1]" in fit.message and "drift.decay[0]" not in fit.message
    assert_close(learnt(fit, "drift.decay")[1], 2.0, "roundtrip")
    assert abs(learnt(fit, "drift.decay")[0] - 1.0) > 0.1


@pytest.mark.parametrize("unit", [1e6, 1e-6])
def test_units_do_not_make_a_parameter_flat(unit):
    """The same data in another unit: the same decay, and the initial mean and its standard error in the new unit."""
    series, trainable = ou_series(), ["drift", "initial.mean"]
    big = gv.Model(
        gv.OrnsteinUhlenbeck(3.0),
        unit**2,
        gv.GaussianState(unit, 0.1 * unit**2),
        gv.likelihoods.Gaussian(0.05 * unit**2),
    )
    fit = fit_ou(trainable=trainable, standard_errors=True)
    other = fit_ou(big, gv.TimeSeries(series.times, unit * series.values), trainable, standard_errors=True)
    assert fit.converged and other.converged
    assert abs(learnt(other, "drift.decay") - learnt(fit, "drift.decay")) < PARAMETER
    for part in ("parameters", "standard_errors"):
        name = "initial.mean" + ("[0]" if part == "standard_errors" else "")
        ratio = float(np.squeeze(getattr(other, part)[name]) / np.squeeze(getattr(fit, part)[name])) / unit
        assert abs(ratio - 1.0) < ONE_PERCENT


def test_max_iterations_and_resume_go_on_from_there():
    first = fit_ou(objective="standard", max_iterations=2)
    assert first.status == "max_iterations" and "resume" in first.message
    second = fit_ou(objective="standard", resume=first)
    assert second.converged
    n = len(first.history)
    assert len(second.history) > n
    for column in ("elbo", "objective", "e_steps", "passes", "seconds"):
        before, after = getattr(first.history, column), getattr(second.history, column)
        assert np.array_equal(after[:n], before)
        assert (np.diff(after) >= -TOLERANCES["optimum"]).all()
    assert np.array_equal(second.history.parameters["drift.decay"][:n], first.history.parameters["drift.decay"])
    straight = fit_ou(objective="standard")
    assert abs(second.elbo - straight.elbo) < TOLERANCES["converged"]


def test_an_optimiser_that_goes_the_wrong_way_is_stalled_not_converged():
    fit = fit_ou(optimiser=optax.scale(0.1), m_steps=3)
    assert fit.status == "stalled" and not fit.converged
    assert_close(learnt(fit, "drift.decay"), 3.0, "roundtrip")
    assert len(fit.history) == 1


# E-steps that stop early, optimisers, priors


def test_e_steps_may_stop_early():
    """Three damped steps of mirror descent between M-steps: the bound still rises, to the same place."""
    model, series, span, dt = double_well_problem()
    options = {"trainable": "drift.well", "standard_errors": False, "progress": False}
    full = learn(model, series, dt, span, **options)
    early = learn(model, series, dt, span, method=gv.CVIDP(rho=0.5, max_iterations=3), **options)
    assert full.converged and early.converged
    assert (np.diff(early.history.elbo) >= 0).all()
    assert abs(early.elbo - full.elbo) < TOLERANCES["converged"]
    assert abs(learnt(early, "drift.well") - learnt(full, "drift.well")) < 0.01


@pytest.mark.parametrize("objective", ["modified", "standard"])
@pytest.mark.parametrize("optimiser", ["adam", optax.chain(optax.clip(1.0), optax.sgd(0.05))], ids=["adam", "optax"])
def test_first_order_optimisers_never_end_below_their_start(objective, optimiser):
    fit = fit_ou(objective=objective, optimiser=optimiser, m_steps=5, max_iterations=8)
    assert fit.history.elbo[-1] > fit.history.elbo[0]
    assert (np.diff(fit.history.elbo) >= 0).all()
    best = fit_ou(objective=objective)
    assert fit.elbo <= best.elbo + TOLERANCES["optimum"]


def test_adam_reaches_the_optimum():
    fit, best = fit_ou(optimiser="adam", m_steps=40, max_iterations=20), fit_ou()
    assert abs(fit.elbo - best.elbo) < TOLERANCES["converged"]


# What is promised around the fit


def test_frozen_parameters_stay_bit_for_bit():
    model = ou_model()
    fit = fit_ou(model)
    before, after = leaves_by_path(model), leaves_by_path(fit.model)
    assert after["drift.decay"] != before["drift.decay"]
    for path in before:
        if path != "drift.decay":
            assert np.asarray(before[path]).tobytes() == np.asarray(after[path]).tobytes(), path


def test_other_data_of_the_same_shape_compile_nothing():
    fit_ou(standard_errors=True)
    other = ou_series(seed=1)
    assert_compiles_nothing(lambda: fit_ou(ou_model(2.0), other, standard_errors=True))


def test_a_saved_fit_comes_back_exactly(tmp_path):
    fit = fit_ou(standard_errors=True)
    back = gv.load(fit.save(tmp_path / "fit.gv"))
    assert (back.status, back.message, back.trainable) == (fit.status, fit.message, fit.trainable)
    assert back.standard_errors == fit.standard_errors
    assert np.array_equal(back.covariance, fit.covariance)
    for field in dataclasses.fields(fit.history):
        a, b = getattr(back.history, field.name), getattr(fit.history, field.name)
        assert np.array_equal(a, b) if isinstance(b, np.ndarray) else all(np.array_equal(a[k], b[k]) for k in b)
    for path, leaf in leaves_by_path(fit.model).items():
        assert np.array_equal(leaves_by_path(back.model)[path], leaf), path
    assert np.array_equal(back.posterior.mean, fit.posterior.mean) and back.elbo == fit.elbo
    again = fit_ou(series=back.posterior.series, resume=back)
    assert again.converged and again.elbo >= fit.elbo - TOLERANCES["optimum"]


def test_the_fitted_posterior_is_that_of_the_fitted_model():
    fit = fit_ou()
    post = gv.infer(fit.model, ou_series(), DT, SPAN, progress=False)
    again = fit.posterior
    assert_gaussian((post.mean, post.cov), (again.mean, again.cov), "optimum")
    assert abs(post.elbo - fit.elbo) < TOLERANCES["optimum"]
    assert fit.history.elbo[-1] == fit.elbo
    assert fit.history.parameters["drift.decay"][-1] == fit.model.drift.decay


@pytest.mark.slow
def test_a_network_drift_raises_the_bound_and_restarts_are_reported_best_first():
    model = gv.Model(gv.MLP(1, key=jax.random.key(0)), diffusion=0.3, likelihood=gv.likelihoods.Gaussian(0.01))
    t = np.linspace(0.0, 4.0, 15)
    series = gv.TimeSeries(t, np.tanh(t - 2.0))
    options = {"trainable": "drift", "standard_errors": False, "progress": False, "max_iterations": 4}
    fit = learn(model, series, DT, restarts=3, key=jax.random.key(1), **options)
    assert len(fit.restarts) == 3
    bounds = [f.elbo for f in fit.restarts]
    assert bounds == sorted(bounds, reverse=True) and fit.elbo == bounds[0]
    starts = [f.history.parameters["drift.layers[0][0]"][0] for f in fit.restarts]
    assert len({s.tobytes() for s in starts}) == 3
    assert any(np.array_equal(s, model.drift.layers[0][0]) for s in starts)
    for f in fit.restarts:
        assert f.history.elbo[-1] > f.history.elbo[0]
        assert (np.diff(f.history.elbo) >= 0).all()


def test_restarts_of_a_drift_of_your_own_and_those_alone_give_the_same():
    def redraw(drift, key):
        return gv.OrnsteinUhlenbeck(decay=float(jax.random.uniform(key, minval=0.2, maxval=5.0)))

    options = {"standard_errors": False, "max_iterations": 3}
    fit = fit_ou(restarts=3, key=jax.random.key(2), reinitialise=redraw, **options)
    for one in fit.restarts:  # run side by side, yet each as if it were alone
        begun = float(one.history.parameters["drift.decay"][0])
        alone = learn(ou_model(decay=begun), ou_series(), DT, SPAN, trainable="drift", progress=False, **options)
        assert np.array_equal(alone.history.elbo, one.history.elbo)


@pytest.mark.parametrize(
    ("drift", "message"),
    [(gv.DoubleWell(), "same structure"), (gv.OrnsteinUhlenbeck(decay=np.ones(2)), "shape of a parameter from")],
)
def test_restarts_must_keep_the_kind_of_drift(drift, message):
    with pytest.raises(ValueError, match=message):
        fit_ou(restarts=2, key=jax.random.key(2), reinitialise=lambda *_: drift)


# Errors at the boundary


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trainable": "drift.rate"}, "no parameter 'drift.rate'; it has drift, diffusion, initial, likelihood"),
        ({"trainable": "drift", "objective": "best"}, "unknown objective 'best'"),
        ({"trainable": "drift", "optimiser": "newton"}, "unknown optimiser 'newton'"),
        ({"trainable": "drift", "optimiser": 3}, "optax transformation, got 3"),
        ({"trainable": "drift", "objective": "profile", "optimiser": "adam"}, "leave optimiser='lbfgs'"),
        ({"trainable": "drift", "steps": 3}, "learn has no option 'steps'"),
        (
            {"trainable": "drift", "method": gv.CVIDP(time="continuous"), "objective": "modified"},
            "in continuous time, and with singular noise, learning maximises the profile",
        ),
        ({"trainable": "drift", "tolerance": 0.0}, "tolerance must be positive and finite, got 0.0"),
        ({"trainable": "drift", "learning_rate": -1.0}, "learning_rate must be positive and finite, got -1.0"),
        (
            {"trainable": "drift", "parameter_tolerance": np.nan},
            "parameter_tolerance must be positive and finite",
        ),
        ({"trainable": "drift", "max_iterations": 0}, "max_iterations must be a whole number ≥ 1, got 0"),
        ({"trainable": "drift", "restarts": 2}, "restarts need a key="),
        ({"trainable": "drift", "restarts": 2, "key": 0}, "reinitialise="),
        ({"trainable": "drift", "priors": {"diffusion": dist.LogNormal()}}, "no trainable parameter 'diffusion'"),
        ({"trainable": "drift", "priors": {"drift.decay": 3.0}}, "must be a numpyro distribution"),
        ({"trainable": "drift", "priors": {"drift.decay": dist.Uniform(0.0, 9.0)}}, "set its range"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError) as error:
        learn(ou_model(), ou_series(), DT, SPAN, progress=False, **options)
    assert message in str(error.value)


def test_resume_refuses_another_model():
    first = fit_ou(max_iterations=1)
    other = gv.Model(gv.OrnsteinUhlenbeck(2.0), 1.0, gv.GaussianState(1.0, 0.1), gv.likelihoods.Gaussian(0.5))
    with pytest.raises(ValueError, match=r"likelihood.variance is 0.5 in the model given and 0.05 in the fit"):
        fit_ou(other, resume=first)


class Pulled(eqx.Module):
    """A drift of the user's own around one of the library's, with a whole number and a 32-bit array among its own."""

    inner: gv.OrnsteinUhlenbeck
    shift: int
    gain: jax.Array

    def __call__(self, x, t):
        return self.inner(x, t) + self.gain * self.shift


def test_numbers_of_every_kind_are_parameters_with_their_constraints():
    model = gv.Model(Pulled(gv.OrnsteinUhlenbeck(1.0), 2, jnp.float32(0.5)), 1.0, gv.GaussianState(1.0, 0.1))
    fit = fit_ou(model, trainable=["drift"], max_iterations=1)
    assert fit.trainable == ("drift.inner.decay", "drift.shift", "drift.gain")
    assert {np.asarray(v).dtype for v in fit.parameters.values()} == {np.dtype(np.float64)}
    spec = {p.path: p.kind for p in make_spec(model, "drift")}
    assert spec == {"drift.inner.decay": "positive", "drift.shift": "real", "drift.gain": "real"}


def test_an_error_of_a_multiple_of_the_identity_stands_on_its_diagonal():
    history = FitHistory({"diffusion": np.stack([np.eye(2)] * 2)}, *(np.zeros(2),) * 5)
    fit = dataclasses.replace(fit_ou(max_iterations=1), history=history, standard_errors={"diffusion": 0.125})
    lines = {line.split("]")[0] + "]": line for line in fit.summary().splitlines() if "[" in line}
    assert all(("0.125" in line) == (name in ("diffusion[0, 0]", "diffusion[1, 1]")) for name, line in lines.items())
    assert len(lines) == 4


def test_resume_with_other_parameters():
    first = fit_ou(max_iterations=1)
    with pytest.raises(ValueError, match=r"resume= learnt drift.decay, but trainable stands for diffusion"):
        fit_ou(trainable="diffusion", resume=first)
