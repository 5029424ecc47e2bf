"""Draws from a model: paths by Euler–Maruyama and noisy observations of them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from girsanov._core.checks import as_floats, check_positive, check_whole, is_finite, shown
from girsanov._core.compile import compiled
from girsanov._core.precision import float64
from girsanov.data.series import TimeSeries
from girsanov.model.model import Model

# By default: steps of a gap, steps in the time that the drift takes, and the most steps for the sake of the latter.
_STEPS, _STEPS_A_TIME, _MOST_BY_DEFAULT = 10, 50.0, 1e6
_MOST = 1e10  # steps of a path


class Simulation(NamedTuple):
    """The state at the observation times, (n, d), and the observations themselves."""

    path: np.ndarray
    series: TimeSeries


def simulate(model: Model, times: Any, *, key: Any, dt: float | None = None, start: float | None = None) -> Simulation:
    """A path of the model and one noisy observation of it at each of `times`.

    - dt: longest step of Euler–Maruyama. By default a tenth of the mean gap, or a fiftieth of the time that the drift
      takes near the initial state where that is shorter; every gap then gets at least ten steps of its own.
    - start: time of the initial state, by default the first of `times`.
    """
    t = as_floats("times", times)
    if t.ndim != 1 or len(t) == 0:
        raise ValueError(f"times must have shape (n,) with n ≥ 1, got {t.shape}")
    TimeSeries(t, np.zeros(len(t)))  # the same checks as for a series
    if start is not None and not is_finite(start):
        raise ValueError(f"start must be one finite number, got {start!r}")
    t0 = float(t[0]) if start is None else float(start)
    if t0 > t[0]:
        raise ValueError(f"start = {shown(t0)} comes after the first time {shown(t[0])}")
    initial = _initial(model)
    least = 1 if dt is not None else _STEPS
    dt = _default_step(model, np.diff(t, prepend=t0), t0, *initial) if dt is None else dt
    check_draws(key, 1, dt)
    path_key, noise_key = jax.random.split(key)
    path = euler_paths(model, t, key=path_key, n=1, dt=dt, start=(t0, *initial), least=least)[0]
    if not np.isfinite(path).all():
        i = int(np.argmin(np.isfinite(path).all(1)))
        raise ValueError(f"the simulated path is not finite from time {shown(t[i])} on: take a smaller dt than {dt:g}")
    return Simulation(path, TimeSeries(t, _observe(model, noise_key, path)))


def check_draws(key: Any, n: int = 1, dt: float = 1.0) -> None:
    """Raise a ValueError unless these can draw n paths in steps of dt."""
    if not (isinstance(key, jax.Array) and (jnp.issubdtype(key.dtype, jax.dtypes.prng_key) or key.shape == (2,))):
        raise ValueError(f"key must be a JAX random key, e.g. jax.random.key(0), got {key!r}")
    check_whole(n=n)
    check_positive(dt=dt)


def _default_step(model: Model, gaps: np.ndarray, t0: float, mean: np.ndarray, cov: np.ndarray) -> float:
    """The shorter of a share of the mean gap and of the drift's time scale, but no more than some steps in all."""
    gaps = gaps[gaps > 0]
    if not len(gaps):
        return 1.0
    rate = _rate(model, t0, mean, cov)
    return max(min(gaps.mean() / _STEPS, 1.0 / (_STEPS_A_TIME * rate + 1e-300)), gaps.sum() / _MOST_BY_DEFAULT)


@float64
def _rate(model: Model, t0: float, mean: np.ndarray, cov: np.ndarray) -> float:
    """By how much the drift changes with the state, per unit of time: differences over the sds of the initial state."""
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
def _observe(model: Model, key: Any, path: np.ndarray) -> np.ndarray:
    return np.asarray(_observations(model, jax.random.split(key, len(path)), path))


@compiled
def _observations(model: Model, keys, path):
    return jax.vmap(model.likelihood.sample)(keys, path @ jnp.asarray(model.emission).T)


@float64
def euler_paths(
    model: Model,
    times: np.ndarray,
    *,
    key: Any,
    n: int,
    dt: float,
    start: tuple[float, np.ndarray, np.ndarray],
    least: int = 1,
) -> np.ndarray:
    """n paths at `times`, (n, len(times), d), from x(t₀) ~ N(m, P) by Euler–Maruyama.

    The steps of a gap are equal and at most `dt`, and there are `least` of them or more.
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
    d = mean.shape[0]
    L = jnp.linalg.cholesky(jnp.asarray(model.diffusion))
    key, first = jax.random.split(key)
    x = mean + jax.random.normal(first, (n, d)) @ jnp.linalg.cholesky(cov).T
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
