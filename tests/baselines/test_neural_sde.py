"""The neural SDE: Girsanov's bound against closed forms, and fits against exact posteriors."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_compiles_once
from tolerances import TOLERANCES

import girsanov as gv
from girsanov.baselines import neural_sde
from girsanov.baselines.neural_sde import PosteriorNetwork, _bounds, _task
from girsanov.data.grid import regular_grid

DECAY, NOISE, SPAN, DT = 0.8, 0.1, (0.0, 1.0), 0.05
MODEL = gv.Model(gv.OrnsteinUhlenbeck(DECAY), 1.0, gv.GaussianState(0.3, 0.2), gv.likelihoods.Gaussian(NOISE))
BOUNDS = eqx.filter_jit(_bounds)
SERIES = gv.TimeSeries([0.22, 0.6, 0.9], [0.5, 0.9, -0.1])


def constant_network(value: float) -> tuple[PosteriorNetwork, object]:
    """A posterior whose network adds a constant, whatever the state and the time."""
    with jax.enable_x64(True):
        task = _task(MODEL, SERIES, regular_grid(SERIES, DT, SPAN))
        net = PosteriorNetwork(task.path, 4, 1, key=jax.random.key(0))
        still = jax.tree.map(lambda a: 0.0 * a if eqx.is_inexact_array(a) else a, net.drift)
        still = eqx.tree_at(lambda n: n.layers[-1].bias, still, jnp.array([value]))
        return eqx.tree_at(lambda n: n.drift, net, still), task


@pytest.mark.parametrize("added", [0.0, 0.7, -1.3])
def test_the_bound_of_a_shifted_process_is_known(added):
    """u = f + c: the path is an Ornstein–Uhlenbeck process about c/decay, and the KL divergence ½c²T."""
    net, task = constant_network(added)
    with jax.enable_x64(True):
        values = np.asarray(BOUNDS(net, task, jax.random.key(1), 4000)[0])
    t = task.path.data.times
    mean, var, wanted = 0.3, 0.2, -0.5 * added**2 * (SPAN[1] - SPAN[0])
    for m, here in enumerate(t):
        hit = np.flatnonzero(SERIES.times == here)
        if len(hit):
            y = SERIES.values[hit[0], 0]
            wanted += -0.5 * (np.log(2 * np.pi * NOISE) + ((y - mean) ** 2 + var) / NOISE)
        if m < len(t) - 1:  # Euler–Maruyama, as the simulation
            gap = t[m + 1] - here
            mean, var = mean + gap * (added - DECAY * mean), (1.0 - gap * DECAY) ** 2 * var + gap
    error = values.std() / np.sqrt(len(values))
    assert abs(values.mean() - wanted) < TOLERANCES["standard_errors"] * error


@pytest.mark.slow
def test_a_fit_comes_near_the_best_of_all_drifts():
    """With a linear drift the best posterior drift is linear too, and VDP finds it; both keep the noise of a step."""
    fit = neural_sde(MODEL, SERIES, DT, SPAN, key=jax.random.key(2), iterations=400, width=16, progress=False)
    best = gv.infer(MODEL, SERIES, DT, SPAN, method=gv.VDP())
    assert fit.history.elbo[:20].mean() < fit.history.elbo[-100:].mean()
    assert fit.elbo < best.elbo + TOLERANCES["standard_errors"] * fit.standard_error
    assert fit.elbo > best.elbo - TOLERANCES["fitted_bound"]
    assert fit.samples.shape == (1000, len(fit.times), 1)
    assert np.abs(fit.mean - best.mean).max() < TOLERANCES["fitted_moments"]
    assert np.abs(fit.std - best.std).max() < TOLERANCES["fitted_moments"]
    assert fit.nlpd(SERIES) == pytest.approx(best.nlpd(SERIES), abs=TOLERANCES["fitted_moments"])


@pytest.mark.slow
def test_two_states_and_missing_entries_run_and_same_key_same_answer():
    model = gv.Model(
        gv.VanDerPol(1.0, 1.0), [0.5, 0.8], gv.GaussianState([0.0, 1.0], 0.1), gv.likelihoods.Gaussian(0.1)
    )
    series = gv.TimeSeries([0.1, 0.3], [[0.2, np.nan], [np.nan, 1.1]])
    options = {"dt": 0.1, "span": (0.0, 0.4), "iterations": 20, "width": 4, "samples": 30, "progress": False}
    runs = []
    run = lambda: runs.append(neural_sde(model, series, key=jax.random.key(3), **options))  # noqa: E731
    assert_compiles_once(run, run)
    first, again = runs
    assert first.samples.shape == (30, 5, 2)
    assert np.isfinite(first.cov).all()
    assert np.array_equal(first.samples, again.samples)
    other = neural_sde(model, series, key=jax.random.key(3), start=first.network, **options)
    assert other.history.elbo[0] != first.history.elbo[0]


BAD = {
    "no iterations": ({"iterations": -1}, "iterations must be a whole number ≥ 0, got -1"),
    "half a path": ({"paths": 0.5}, r"paths must be a whole number ≥ 1, got 0\.5"),
    "no rate": ({"learning_rate": 0.0}, r"learning_rate must be positive and finite, got 0\.0"),
    "growing rate": ({"decay": 1.1}, r"decay must be in \(0, 1\], got 1\.1"),
    "no key": ({"key": None}, "key"),
    "no step": ({"dt": None}, "give dt="),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_calls_are_refused(name, as_a_user):
    options, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        neural_sde(MODEL, SERIES, **{"dt": DT, "span": SPAN, "key": jax.random.key(0), **options})


def test_a_rate_that_is_too_high_is_said_to_be():
    cubic = gv.Model(gv.DoubleWell(4.0, 1.0), 1.0, gv.GaussianState(1.0, 1e-4), gv.likelihoods.Gaussian(1e-4))
    with pytest.raises(ValueError, match=r"in iteration .* smaller learning_rate or a smaller dt"):
        neural_sde(
            cubic, SERIES, 0.1, SPAN, key=jax.random.key(0), iterations=50, learning_rate=1e3, decay=1.0, width=4,
            progress=False,
        )  # fmt: skip
