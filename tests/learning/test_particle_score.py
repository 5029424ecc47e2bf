"""`objective="particles"`: Fisher's and Louis' identities on exact draws, the exact smoother, and what is refused."""

import functools
from typing import Any

import jax
import numpy as np
import pytest
from tolerances import TOLERANCES

import girsanov as gv
from girsanov._core.precision import float64, to_numpy
from girsanov.data.on_grid import on_grid
from girsanov.learning import particles
from girsanov.learning.parameters import insert, make_spec, to_vector
from girsanov.learning.score import lines, scores
from girsanov.paper.data import learning_model, load_fold

QUIET: dict[str, Any] = {"progress": False}
DT, SPAN = 0.05, (0.0, 6.0)
TIMES = 0.2 * np.arange(1, 31)


def ou(mean=0.3, cov=0.5) -> gv.Model:
    return gv.Model(
        gv.OrnsteinUhlenbeck(1.2, 0.4), 0.8, gv.GaussianState(mean, cov), gv.likelihoods.Gaussian(0.1), emission=[[1.3]]
    )


def plane() -> gv.Model:
    drift = gv.Linear([[-1.0, 0.5], [-0.4, -0.7]], [0.1, 0.2])
    return gv.Model(
        drift, [[0.6, 0.2], [0.2, 0.9]], gv.GaussianState([0.5, 0.0], [0.01, 1.0]), gv.likelihoods.Gaussian(0.1)
    )


def wells(scale=2.0) -> gv.Model:
    return gv.Model(gv.DoubleWell(scale, 1.0), 1.0, gv.GaussianState(-1.0, 0.1), gv.likelihoods.Gaussian(0.04))


def simulated(model: gv.Model, key: int = 0, first: int = 1) -> gv.TimeSeries:
    return gv.simulate(model, 0.2 * np.arange(first, 31), key=jax.random.key(key), dt=DT, start=0.0).series


CASES = {
    "every parameter": (ou(), simulated(ou()), ["drift", "diffusion", "initial", "likelihood", "emission"]),
    "a sharp first state": (ou(0.3, 1e-6), simulated(ou(0.3, 1e-6)), ["drift.mean", "diffusion", "initial"]),
    "an observation at the first node": (ou(), simulated(ou(), 0, 0), ["diffusion", "initial", "likelihood"]),
    "two dimensions": (plane(), simulated(plane()), ["drift", "diffusion", "initial.mean"]),
}


@pytest.mark.parametrize("name", CASES)
def test_means_over_paths_are_the_derivatives_of_the_evidence(name):
    """The posterior of a linear model is exact, and so are its paths and its bound."""
    model, series, trainable = CASES[name]
    grads, hessian, evidence, theta = of_exact_paths(model, series, trainable)
    error = grads.std(0, ddof=1) / np.sqrt(len(grads))
    wanted = central(evidence, theta)
    assert (np.abs(grads.mean(0) - wanted) < TOLERANCES["standard_errors"] * error + 1e-5).all()
    block = particles.Block(theta, grads[None], -hessian)
    found, true = particles.curvature([block]), -central(lambda t: central(evidence, t), theta)
    # The error of a covariance of scores with standard deviations s is about s sᵀ √(2/n).
    noise = np.outer(grads.std(0), grads.std(0)) * np.sqrt(2.0 / len(grads))
    assert (np.abs(found - true) < TOLERANCES["standard_errors"] * noise + 1e-2).all()


@float64
def of_exact_paths(model, series, trainable, n=4000):
    post = gv.infer(model, series, dt=DT, span=SPAN, **QUIET)
    spec, data = make_spec(model, trainable), on_grid(series, post.grid)
    theta, paths = to_vector(spec, model), post.sample(jax.random.key(1), n)
    own = np.bool_(post.cov[0, 0, 0] > 0.5 * float(model.initial_state().cov[0, 0]))
    grads, hessian = (np.asarray(a) for a in scores(theta, spec, model, data, lines(data), own, paths))

    @functools.cache
    def at(*values):
        other = float64(lambda: to_numpy(insert(spec, np.array(values), model)))()
        return gv.infer(other, series, dt=DT, span=SPAN, **QUIET).elbo

    return grads, hessian, lambda t: np.array(at(*t.tolist())), theta


def central(f, theta, h=1e-3):
    """Central differences of a function, along the last axis."""
    return np.stack([(f(theta + s) - f(theta - s)) / (2.0 * h) for s in h * np.eye(len(theta))], -1)


@pytest.mark.slow
def test_a_double_well_ends_where_the_exact_evidence_does():
    series = simulated(wells(), 3)
    options = {"trainable": "drift.scale", **QUIET}
    first = gv.learn(wells(), series, DT, SPAN, **options)
    exact = gv.learn(wells(), series, DT, SPAN, objective="exact", resume=first, **options)
    fit = gv.learn(wells(), series, DT, SPAN, objective="particles", key=jax.random.key(0), resume=first, **options)
    assert fit.status == "converged", fit.message
    noise, apart = agreement(fit, exact)
    assert noise <= particles.ERROR and apart < TOLERANCES["effective_errors"] * noise
    assert abs(fit.standard_errors["drift.scale"] / exact.standard_errors["drift.scale"] - 1.0) < 0.25
    # At parameters a share of a standard error away, the log evidence is lower by half its square.
    below = 0.5 * (TOLERANCES["effective_errors"] * noise) ** 2
    assert abs(fit.evidence.value - exact.evidence.value) < TOLERANCES["standard_errors"] * fit.evidence.error + below


def agreement(fit: gv.Fit, exact: gv.Fit) -> tuple[float, float]:
    """The Monte Carlo error of the one parameter, and how far it is from the exact one, in standard errors."""
    ((name, noise),) = fit.evidence.monte_carlo.items()
    apart = float(np.ravel(fit.parameters[name])[0] - np.ravel(exact.parameters[name])[0])
    return noise, abs(apart) / exact.standard_errors[name]


@pytest.mark.slow
@pytest.mark.paper
def test_on_the_paper_s_double_well_both_agree(data_dir):
    fold = load_fold(data_dir, "double_well", 0)
    model, trainable = learning_model("double_well", fold)
    options = {"trainable": trainable, **QUIET}
    first = gv.learn(model, fold.train, 0.02, fold.span, **options)
    exact = gv.learn(model, fold.train, 0.02, fold.span, objective="exact", resume=first, **options)
    key = jax.random.key(0)
    fit = gv.learn(model, fold.train, 0.02, fold.span, objective="particles", key=key, resume=first, **options)
    assert fit.status == exact.status == "converged", (fit.message, exact.message)
    noise, apart = agreement(fit, exact)
    assert apart < TOLERANCES["effective_errors"] * noise


def short(key: int, **options: Any) -> gv.Fit:
    options = {"trainable": "drift.scale", "max_iterations": 1, "check": False, **QUIET, **options}
    return gv.learn(wells(), simulated(wells(), 3), DT, SPAN, objective="particles", key=jax.random.key(key), **options)


@pytest.mark.slow
def test_the_key_decides():
    one, again, other = short(0), short(0), short(1)
    assert one.status == "max_iterations" and "raise max_iterations" in one.message
    assert one.parameters == again.parameters and one.evidence == again.evidence
    assert one.parameters != other.parameters
    assert len(one.history) == 2 and np.isfinite(one.history.objective).all()


def test_ctrl_c_keeps_the_parameters_of_the_last_block(monkeypatch):
    calls, real = [], particles.sweeps

    def interrupted(*args):
        calls.append(1)
        if len(calls) == 15:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(particles, "sweeps", interrupted)
    with pytest.raises(KeyboardInterrupt) as stopped:
        short(0, max_iterations=5)
    kept = stopped.value.kept
    assert kept.status == "interrupted" and np.isfinite(kept.evidence.value) and kept.posterior.converged


def test_what_it_is_not_for():
    series = simulated(wells(), 3)
    with pytest.raises(ValueError, match=r"draws paths and needs a key=, e\.g\. key=jax\.random\.key\(0\)"):
        gv.learn(wells(), series, DT, SPAN, trainable="drift", objective="particles", **QUIET)
    oscillator = gv.Model(gv.HarmonicOscillator(1.0), [0.0, 1.0], emission=[[1.0, 0.0]])
    with pytest.raises(ValueError, match=r"CVIDP\(time='continuous'\) \(singular noise is always in continuous time\)"):
        gv.learn(oscillator, series, DT, SPAN, trainable="drift", objective="particles", key=jax.random.key(0), **QUIET)
