"""`objective="exact"`: against a Kalman filter and SciPy, against the exact smoother, and what is refused."""

import dataclasses
from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.optimize
from support import assert_close
from tolerances import TOLERANCES

import girsanov as gv
from girsanov._core.precision import float64, to_numpy
from girsanov.baselines import exact_smoother
from girsanov.inference.functional import lay_out
from girsanov.learning import exact as module
from girsanov.learning.learner import Learner
from girsanov.learning.parameters import insert, make_spec, to_vector
from girsanov.paper.data import learning_model, load_fold

QUIET: dict[str, Any] = {"progress": False}
DT, SPAN = 0.05, (0.0, 6.0)
TIMES = 0.2 * np.arange(1, 31)


def ou(decay=1.0, diffusion=1.0, variance=0.1) -> gv.Model:
    return gv.Model(
        gv.OrnsteinUhlenbeck(decay), diffusion, gv.GaussianState(0.0, 0.5), gv.likelihoods.Gaussian(variance)
    )


def wells(scale=2.0, diffusion=1.0) -> gv.Model:
    return gv.Model(gv.DoubleWell(scale, 1.0), diffusion, gv.GaussianState(-1.0, 0.1), gv.likelihoods.Gaussian(0.04))


def simulated(model: gv.Model, seed: int = 1) -> gv.TimeSeries:
    return gv.simulate(model, TIMES, key=jax.random.key(seed), dt=0.01, start=0.0).series


WELLS = gv.simulate(wells(), TIMES, key=jax.random.key(3), dt=DT, start=0.0).series


def kalman(times: np.ndarray, series: gv.TimeSeries, decay: float, diffusion: float, variance: float) -> float:
    """The log likelihood of Euler's steps of the Ornstein–Uhlenbeck process."""
    y = dict(zip(series.times.tolist(), series.values[:, 0].tolist(), strict=True))
    m, P, total = 0.0, 0.5, 0.0
    for n, t in enumerate(times.tolist()):
        if n:
            gap = t - times[n - 1]
            m, P = (1.0 - gap * decay) * m, (1.0 - gap * decay) ** 2 * P + gap * diffusion
        if t in y:
            S = P + variance
            total -= 0.5 * ((y[t] - m) ** 2 / S + np.log(2.0 * np.pi * S))
            m, P = m + P / S * (y[t] - m), P * variance / S
    return float(total)


@pytest.mark.slow
def test_a_linear_model_reaches_the_maximum_of_its_likelihood():
    series = simulated(ou(), 8)
    trainable = ["drift", "diffusion", "likelihood"]
    fit = gv.learn(ou(0.5, 2.0, 0.3), series, DT, SPAN, trainable=trainable, objective="exact", **QUIET)
    assert fit.status == "converged", fit.message
    times = fit.posterior.times
    best = scipy.optimize.minimize(
        lambda u: -kalman(times, series, *np.exp(u)), np.zeros(3), method="BFGS", options={"gtol": 1e-8}
    )
    assert abs(fit.evidence.value + best.fun) < TOLERANCES["likelihood_maximum"]
    found = [float(np.ravel(v)[0]) for v in fit.parameters.values()]
    assert_close(np.array(found), np.exp(best.x), "learnt")
    # The bound of a linear model is its likelihood, so that it is not biased.
    assert all(abs(b) < TOLERANCES["learnt"] for b in fit.evidence.bias.values())
    assert fit.evidence.error < TOLERANCES["evidence"] and abs(fit.elbo - fit.evidence.value) < TOLERANCES["converged"]


@pytest.mark.slow
def test_a_double_well_reaches_the_maximum_of_the_exact_smoother():
    fit = gv.learn(wells(), WELLS, DT, SPAN, trainable="drift.scale", objective="exact", **QUIET)
    assert fit.status == "converged", fit.message

    def value(scale: float) -> float:
        return exact_smoother(wells(scale), WELLS, DT, SPAN).log_evidence

    scale, h = float(fit.parameters["drift.scale"]), 0.02
    low, here, high = (value(scale * np.exp(s)) for s in (-h, 0.0, h))
    assert_close(fit.evidence.value, here, "evidence", size=1.0)
    slope, curvature = (high - low) / (2.0 * h), (2.0 * here - high - low) / h**2
    assert abs(slope) / np.sqrt(curvature) < TOLERANCES["last_slope"]
    assert_close(fit.standard_errors["drift.scale"], scale / np.sqrt(curvature), "learnt")
    variational = fit.evidence.variational["drift.scale"]
    assert_close(fit.evidence.bias["drift.scale"], (variational - scale) / fit.standard_errors["drift.scale"], "exact")
    assert abs(fit.evidence.bias["drift.scale"]) > 0.1  # the bound of this model is biased
    assert fit.elbo < fit.evidence.value
    assert fit.history.objective[-1] == pytest.approx(fit.evidence.value, abs=TOLERANCES["evidence"])
    assert "the bound's drift.scale is" in fit.message and "log evidence" in fit.summary()


MODELS = {
    "counts": (
        gv.Model(gv.OrnsteinUhlenbeck(0.7, 0.4), 0.5, gv.GaussianState(0.2, 0.3), gv.likelihoods.Poisson()),
        ["drift", "diffusion", "initial"],
        np.array([1.0, 3.0, 0.0, 4.0, 2.0]),
    ),
    "heavy tails": (
        gv.Model(gv.DoubleWell(2.0, 1.2), 0.8, likelihood=gv.likelihoods.StudentT(0.3, 4.0)),
        ["drift", "diffusion", "likelihood.scale", "emission"],
        np.array([0.9, 1.1, -0.4, -1.3, 8.0]),
    ),
    "noise that depends on the state": (
        gv.Model(
            gv.Logistic(1.0, 2.0),
            gv.diffusions.Proportional(0.4),
            gv.GaussianState(1.0, 0.04),
            gv.likelihoods.Gaussian(0.01),
        ),
        ["drift", "diffusion", "likelihood"],
        np.array([1.1, 1.6, 2.2, 1.9, 1.7]),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_is_that_of_the_exact_smoother(name):
    model, trainable, values = MODELS[name]
    series = gv.TimeSeries(np.array([0.0, 0.31, 0.6, 0.95, 1.2]), values)
    value, grad, at = differentiated(model, trainable, series)
    assert_close(value, exact_smoother(model, series, DT).log_evidence, "evidence", size=1.0)
    for i in range(len(grad)):
        high, low = (exact_smoother(at(sign * 1e-4, i), series, DT).log_evidence for sign in (1.0, -1.0))
        assert abs(grad[i] - (high - low) / 2e-4) < TOLERANCES["gradient"] * (1.0 + abs(grad[i])), (name, i)


@float64
def differentiated(model, trainable, series):
    """The log evidence at the parameters of a model, its gradient, and the model with one coordinate moved."""
    spec, method = make_spec(model, trainable), gv.CVIDP()
    problem = lay_out(model, series, DT, None, None, method).of(model)
    theta = to_vector(spec, model)
    learner = Learner(spec, problem, method, {}, 0.0, None)
    found = module.exact_learner(learner, series, method.solve(problem)[0]).e_step(theta)

    @float64
    def at(step, i):
        return to_numpy(insert(spec, theta + step * np.eye(len(theta))[i], model))

    return found.elbo, found.trace["gradient"], at


def test_a_prior_moves_the_maximum_to_its_mode():
    prior = {"drift.scale": dist.LogNormal(np.log(3.0), 1e-3)}
    fit = gv.learn(
        wells(), WELLS, DT, SPAN, trainable="drift.scale", objective="exact", priors=prior,
        constraints={"drift.scale": "positive"}, check=False, **QUIET,
    )  # fmt: skip
    assert abs(float(fit.parameters["drift.scale"]) - 3.0) < 0.01
    assert fit.history.objective[-1] > fit.evidence.value  # the density of the prior is large


def test_a_fit_is_gone_on_from_saved_and_loaded(tmp_path):
    first = gv.learn(wells(), WELLS, DT, SPAN, trainable="drift.scale", check=False, **QUIET)
    options = {"trainable": "drift.scale", "objective": "exact", "check": False, **QUIET}
    fit = gv.learn(wells(), WELLS, DT, SPAN, resume=first, **options)
    assert fit.evidence.variational["drift.scale"] == pytest.approx(float(first.parameters["drift.scale"]))
    loaded = gv.load(fit.save(tmp_path / "fit.gv"))
    assert loaded.evidence == fit.evidence and loaded.message == fit.message
    again = gv.learn(wells(), WELLS, DT, SPAN, resume=loaded, **options)
    assert again.evidence.variational == fit.evidence.variational
    assert_close(again.parameters["drift.scale"], fit.parameters["drift.scale"], "learnt")
    assert len(again.history) >= len(fit.history)


def test_ctrl_c_keeps_the_best_parameters(monkeypatch, tmp_path):
    calls, real = [], module._value_and_grad

    def interrupted(*args):
        calls.append(1)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return real(*args)

    first = gv.learn(wells(0.5), WELLS, DT, SPAN, trainable="drift.scale", max_iterations=1, check=False, **QUIET)
    monkeypatch.setattr(module, "_value_and_grad", interrupted)
    with pytest.raises(KeyboardInterrupt) as stopped:
        options = {"trainable": "drift.scale", "objective": "exact", "resume": first, **QUIET}
        gv.learn(wells(0.5), WELLS, DT, SPAN, checkpoint=tmp_path / "fit.gv", **options)
    kept = stopped.value.kept
    read = gv.load(tmp_path / "fit.gv")
    assert (read.status, read.evidence.value) == (kept.status, kept.evidence.value)
    assert kept.status == "interrupted" and "resume=" in kept.message
    value = exact_smoother(kept.model, WELLS, DT, SPAN).log_evidence
    assert_close(kept.evidence.value, value, "evidence", size=1.0)
    assert value >= exact_smoother(first.model, WELLS, DT, SPAN).log_evidence


def test_what_it_is_not_for():
    plane = gv.Model(gv.VanDerPol(), [1.0, 1.0])
    series = gv.TimeSeries(TIMES, np.zeros((30, 2)))
    with pytest.raises(ValueError, match="needs a scalar state, and that of this model has dimension 2: use obj"):
        gv.learn(plane, series, DT, SPAN, trainable="drift", objective="exact", **QUIET)
    for method in (gv.CVIDP(time="continuous"), gv.VDP()):
        with pytest.raises(ValueError, match=r"is for the Euler–Maruyama model on the grid.*leave method= out"):
            gv.learn(wells(), WELLS, DT, SPAN, trainable="drift", objective="exact", method=method, **QUIET)
    with pytest.raises(ValueError, match=r"unknown objective 'exakt'; choose one of .*'exact'"):
        gv.learn(wells(), WELLS, DT, SPAN, trainable="drift", objective="exakt", **QUIET)


@pytest.mark.slow
@pytest.mark.paper
def test_the_paper_s_double_well(data_dir):
    fold = load_fold(data_dir, "double_well", 0)
    model, trainable = learning_model("double_well", fold)
    fit = gv.learn(model, fold.train, 0.02, fold.span, trainable=trainable, objective="exact", **QUIET)
    assert fit.status == "converged", fit.message
    wanted = exact_smoother(fit.model, fold.train, 0.02, fold.span).log_evidence
    assert_close(fit.evidence.value, wanted, "evidence", size=1.0)


def test_parameters_at_an_edge_are_no_place_to_begin():
    """No number of points resolves steps with next to no noise."""
    first = gv.learn(ou(), WELLS, DT, SPAN, trainable="drift", max_iterations=1, check=False, **QUIET)
    still = dataclasses.replace(first, model=ou(1.0, 1e-14))
    with pytest.raises(ValueError, match=r"objective='exact' cannot begin where the bound is largest.*fix it or give"):
        gv.learn(still.model, WELLS, DT, SPAN, trainable="drift", objective="exact", resume=still, **QUIET)
