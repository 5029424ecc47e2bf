"""Simulation of a model: paths by Euler–Maruyama, and noisy observations of them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from girsanov._core.checks import as_floats, check_positive, check_whole, is_finite, shown
from girsanov._core.compile import compiled
from girsanov._core.precision import float64
from girsanov.data.series import TimeSeries, as_covariates
from girsanov.model.diffusions import StateDiffusion
from girsanov.model.driven import check_driven, shift
from girsanov.model.model import Model

# For the default dt: steps per gap, steps per time scale of the drift, and the largest number of steps in all that the
# time scale of the drift may lead to.
_STEPS, _STEPS_A_TIME, _MOST_BY_DEFAULT = 10, 50.0, 1e6
_MOST = 1e10  # largest number of steps of a path


class Simulation(NamedTuple):
    """A simulated path and observations of it.

    Attributes:
        path: the state at the observation times, shape (n, d).
        series: the noisy observations.
    """

    path: np.ndarray
    series: TimeSeries


def simulate(
    model: Model,
    times: Any,
    *,
    key: Any,
    dt: float | None = None,
    start: float | None = None,
    covariates: Any = None,
    inputs: Any = None,
) -> Simulation:
    """Simulate a path of the model by Euler–Maruyama, and one noisy observation of it at each of the given times.

    If the noise depends on the state, the steps are made in the coordinates in which it is constant, so that the state
    stays where the noise allows it.

    Args:
        model: the model.
        times: strictly increasing observation times, shape (n,).
        key: JAX random key.
        dt: the longest step of Euler–Maruyama. By default it is the shorter of a tenth of the mean gap between the
            times and a fiftieth of the time scale on which the drift changes the state near its initial value; every
            gap then has at least ten steps.
        start: time of the initial state; by default the first of `times`.
        covariates: the covariates of the series, by name, for a model that takes them.
        inputs: what acts on the state, for a drift f(x, t, u): an `Inputs`, or a list of those. The series that comes
            out has them.

    Returns:
        The state at the given times and the observations, as `path` and `series`.

    Raises:
        ValueError: if the path does not stay finite, or if dt leads to more than 10¹⁰ steps.
    """
    t = as_floats("times", times)
    if t.ndim != 1 or len(t) == 0:
        raise ValueError(f"times must have shape (n,) with n ≥ 1, got {t.shape}")
    blank = TimeSeries(t, np.zeros(len(t)), inputs=inputs)  # makes the checks of a series
    if start is not None and not is_finite(start):
        raise ValueError(f"start must be one finite number, got {start!r}")
    t0 = float(t[0]) if start is None else float(start)
    if t0 > t[0]:
        raise ValueError(f"start = {shown(t0)} comes after the first of times, which is {shown(t[0])}")
    model, nodes = _driven(model.given(as_covariates(covariates)), blank, t0)
    latent = model.latent
    initial = _initial(latent)
    least = 1 if dt is not None else _STEPS
    dt = _default_step(latent, np.diff(t, prepend=t0), t0, *initial) if dt is None else dt
    check_draws(key, 1, dt)
    path_key, noise_key = jax.random.split(key)
    path = euler_paths(latent, nodes, key=path_key, n=1, dt=dt, start=(t0, *initial), least=least)[0]
    path = path[np.searchsorted(nodes, t)]
    if not np.isfinite(path).all():
        i = int(np.argmin(np.isfinite(path).all(1)))
        raise ValueError(f"the simulated path is not finite from time {shown(t[i])} on: take a smaller dt than {dt:g}")
    path = states(model, path, t)
    series = TimeSeries(t, _observe(model, noise_key, t, path), covariates=covariates, inputs=inputs)
    return Simulation(path, series)


def _driven(model: Model, series: TimeSeries, t0: float) -> tuple[Model, np.ndarray]:
    """Return the model with the inputs of the series, and its times with those at which the inputs change their law."""
    check_driven(model, series)
    t, inputs = series.times, series.inputs
    if inputs is None:
        return model.driven_by(None), t
    inputs.check_reach(t0, float(t[-1]))
    knots = inputs.knots
    nodes = np.union1d(t, knots[(knots > t0) & (knots < t[-1])])
    return model.driven_by(inputs.on(np.union1d(t0, nodes))), nodes


def check_draws(key: Any, n: int = 1, dt: float = 1.0, name: str = "n") -> None:
    """Raise a ValueError unless `key` is a JAX random key, n a positive whole number and dt positive."""
    if not (isinstance(key, jax.Array) and (jnp.issubdtype(key.dtype, jax.dtypes.prng_key) or key.shape == (2,))):
        raise ValueError(f"key must be a JAX random key, e.g. jax.random.key(0), got {key!r}")
    check_whole(**{name: n})
    check_positive(dt=dt)


def _default_step(model: Model, gaps: np.ndarray, t0: float, mean: np.ndarray, cov: np.ndarray) -> float:
    """Return the default dt of `simulate`: the shorter of two shares, of the mean gap and of the drift's time scale.

    It is longer if that would be more than _MOST_BY_DEFAULT steps in all.
    """
    gaps = gaps[gaps > 0]
    if not len(gaps):
        return 1.0
    rate = _rate(model, t0, mean, cov)
    return max(min(gaps.mean() / _STEPS, 1.0 / (_STEPS_A_TIME * rate + 1e-300)), gaps.sum() / _MOST_BY_DEFAULT)


@float64
def _rate(model: Model, t0: float, mean: np.ndarray, cov: np.ndarray) -> float:
    """Return the largest |Δf|/|Δx| of the drift, by differences over ± one standard deviation of the initial state."""
    h = np.sqrt(np.diagonal(cov))
    f = np.asarray(_drifts(model, np.concatenate([mean + np.diag(h), mean - np.diag(h)]), t0))
    slopes = np.abs(f[: len(h)] - f[len(h) :]).max(1) / (2.0 * h)
    return float(np.max(slopes, initial=0.0, where=np.isfinite(slopes)))


@compiled
def _drifts(model: Model, x, t):
    return jax.vmap(model.drift, in_axes=(0, None))(x, t)


@float64
def _initial(model: Model) -> tuple[np.ndarray, np.ndarray]:
    state = model.initial_state()
    return np.asarray(state.mean), np.asarray(state.cov)


@float64
def _observe(model: Model, key: Any, t: np.ndarray, path: np.ndarray) -> np.ndarray:
    return np.asarray(_observations(model, jax.random.split(key, len(path)), t, path))


@float64
def states(model: Model, w: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Return the states x, (..., n, d), from the coordinates w of the latent model at times t, (n,)."""
    return np.asarray(_states(model, w, t)) if model.is_transformed else w


@float64
def to_constant(model: Model, x: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Return the coordinates w of the latent model from the states x, (..., n, d), at times t, (n,)."""
    return np.asarray(_constant(model, x, t)) if model.is_transformed else x


@compiled
def _states(model: Model, w, t):
    return model.to_state(w, t)


@compiled
def _constant(model: Model, x, t):
    x = x - shift(model, t) if model.has_impulses else x
    return model.noise.to_constant(x) if isinstance(model.noise, StateDiffusion) else x


@compiled
def _observations(model: Model, keys, t, path):
    return model.observation.sample(keys, t, path)


@float64
def euler_paths(
    model: Model,
    times: np.ndarray,
    *,
    key: Any,
    n: int,
    dt: float,
    start: tuple[float, np.ndarray, np.ndarray | None],
    least: int = 1,
) -> np.ndarray:
    """Draw n paths at `times` by Euler–Maruyama, from x(t₀) ~ N(m, P) with `start` = (t₀, m, P).

    If P is None, the paths start at the states m, (n, d).

    The noise of the model must be constant: give `model.latent` if it is not.
    The steps between two times are equal, at most `dt` long, and at least `least` in number. The result has shape
    (n, len(times), d).
    """
    t0, mean, cov = start
    gaps = np.diff(times, prepend=t0)
    substeps = np.maximum(least, np.ceil(gaps / dt - 1e-9))
    if substeps.sum() > _MOST:
        raise ValueError(
            f"dt = {dt:g} from {shown(t0)} to {shown(times[-1])} asks for {substeps.sum():.3g} steps, which would take "
            "hours or more; take a larger dt"
        )
    left = np.concatenate([[t0], times[:-1]])
    return np.asarray(_euler(model, key, n, left, gaps / substeps, substeps.astype(np.int64), mean, cov))


@compiled
def _euler(model: Model, key, n: int, left, steps, substeps, mean, cov):
    L = model.noise.root
    key, first = jax.random.split(key)
    x = mean
    if cov is not None:
        x = mean + jax.random.normal(first, (n, mean.shape[0])) @ jnp.linalg.cholesky(cov).T
    drift = jax.vmap(model.drift, in_axes=(0, None))

    def gap(carry, this):
        begin, step, count = this

        def substep(i, inner):
            x, key = inner
            key, now = jax.random.split(key)
            noise = jax.random.normal(now, x.shape) @ L.T
            return x + step * drift(x, begin + i * step) + jnp.sqrt(step) * noise, key

        carry = jax.lax.fori_loop(0, jnp.where(step > 0, count, 0), substep, carry)
        return carry, carry[0]

    _, path = jax.lax.scan(gap, (x, key), (left, steps, substeps))
    return jnp.swapaxes(path, 0, 1)
