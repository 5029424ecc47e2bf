"""A model with the inputs of a series: its drift as a function of state and time alone, in coordinates without jumps.

Impulses are an input u(t) = Σ a_k δ(t − t_k) to a drift g(x, t) + G u, so the state jumps by G a_k at t_k. With
s(t) = G Σ_{t_k ≤ t} a_k, the path z = x − s is continuous, and
    dz = f(z + s(t), t, u(t)) dt + L dβ,
which is exact for every drift and in discrete and continuous time alike. All algorithms work on z, of which x(t₀)
before any impulse is the start; observations are those of z + s(t).
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from girsanov._core.precision import float64, own
from girsanov._core.types import Array
from girsanov.data.instants import InputsOnGrid, Instant
from girsanov.data.series import TimeSeries
from girsanov.model.diffusions import StateDiffusion
from girsanov.model.drifts.base import takes_inputs
from girsanov.model.observation import Observation
from girsanov.model.shapes import output_of

_POINTS = 4  # states, times and inputs at which the effect of impulses is compared
_SAME = 1e-8  # largest difference of that effect, relative to its size


class Driven(eqx.Module):
    """The drift f(z + s(t), t, u(t)) of z. In the place of a time it may get an `Instant`, which has u and s with it.

    Attributes:
        drift: the drift f(x, t, u).
        inputs: the inputs u(t).
        gain: G, shape (d, m), or None where there are no impulses.
    """

    drift: Callable
    inputs: InputsOnGrid
    gain: Float[Array, "d m"] | None

    def __call__(self, z, t):
        at = t if isinstance(t, Instant) else self.inputs.at(t)
        x = z if self.gain is None else z + self.gain @ jnp.asarray(at.dosed)
        return self.drift(x, at.t, jnp.asarray(at.u))


def _gain(model: Any) -> Float[Array, "d m"] | None:
    """Return G = ∂f/∂u, by which impulses move the state, or None where there are none."""
    drift, inputs = own(model.drift), model.inputs
    if inputs.dosed is None:
        return None
    x, t, u = jnp.asarray(model.initial.mean), jnp.asarray(inputs.times)[0], jnp.asarray(inputs.after)[:, 0]
    return jax.jacfwd(lambda u: drift(x, t, u))(u)


@float64
def shift(model: Any, t: Any) -> Float[Array, "n d"]:
    """Return s(t), the sum of all jumps up to times t, (n,), for a model whose inputs have impulses."""
    return _shifted(model, _gain(model)).shift(jnp.asarray(t))


@float64
def without_inputs(model: Any) -> Any:
    """Return the model of z, whose drift is one of state and time alone."""
    gain = _gain(model)
    observation = model.observation if gain is None else _shifted(model, gain)
    parts = (Driven(model.drift, model.inputs, gain), observation)
    return eqx.tree_at(lambda m: (m.drift, m.observation), model.driven_by(None), parts)


def driven_on(model: Any, series: TimeSeries, times: np.ndarray) -> Any:
    """Return the model with the inputs of a series on the nodes of a grid."""
    return model.driven_by(None if series.inputs is None else series.inputs.on(times))


class ShiftedObservation(Observation):
    """The observation of x = z + s(t) as an observation of z."""

    inner: Observation
    inputs: InputsOnGrid
    gain: Float[Array, "d m"]

    @property
    def likelihood(self):
        return self.inner.likelihood

    @property
    def emission(self):
        return self.inner.emission

    @property
    def offset(self):
        return self.inner.offset

    @property
    def dim(self):
        return self.inner.dim

    @property
    def data_dim(self):
        return self.inner.data_dim

    @property
    def stated(self):
        return self.inner.stated

    @property
    def is_direct(self):
        return False

    @property
    def is_linear(self):
        return self.inner.is_linear

    def shift(self, t: Float[Array, "*n"]) -> Float[Array, "*n d"]:
        """Return s at every time."""
        dosed = self.inputs.at(t).dosed
        return jnp.moveaxis(jnp.asarray(dosed), 0, -1) @ self.gain.T

    def emit(self, t, x):
        return self.inner.emit(t, x + self.shift(t))

    def project(self, x):
        return self.inner.project(x)

    def turned(self, v):
        return self.inner.turned(v)

    def lift(self, g):
        return self.inner.lift(g)

    def gradients(self, rows, u, V, rule):
        return self.inner.gradients(rows, u + self.inner.turned(self.shift(rows.t)), V, rule)

    def linearised(self, rows, at):
        s = self.shift(rows.t)
        G, reading, precision = self.inner.linearised(rows, at + s)
        return G, jnp.where(rows.observed, reading - jnp.einsum("njd,nd->nj", G, s), 0.0), precision

    def relative_sites(self, rows, at):
        return self.inner.relative_sites(rows, at + self.shift(rows.t))

    def predictive(self, t, m, S):
        return self.inner.predictive(t, m + self.shift(t), S)

    def log_predictives(self, rows, m, S):
        return self.inner.log_predictives(rows, m + self.shift(rows.t), S)

    def sample(self, keys, t, x):
        return self.inner.sample(keys, t, x + self.shift(t))


def _shifted(model: Any, gain: Any) -> ShiftedObservation:
    return ShiftedObservation(model.observation, model.inputs, gain)  # pyright: ignore[reportCallIssue]


def check_driven(model: Any, series: Any) -> None:
    """Raise a ValueError unless the drift takes inputs where the series has some, in their number, and only there."""
    drift, d = model.drift, model.dim
    if series.inputs is None:
        if takes_inputs(drift):
            raise ValueError(
                "the drift takes inputs, f(x, t, u), but the series has none: give them with the series, "
                "gv.TimeSeries(times, values, inputs=gv.Inputs(input_times, u))"
            )
        return
    m = series.inputs.dim
    if not takes_inputs(drift):
        raise ValueError(
            "the series has inputs, but the drift is one of state and time alone, f(x, t), so that they would not be "
            "used: write a drift f(x, t, u), such as gv.Linear(A, b, B), or make the series without inputs="
        )
    known = getattr(drift, "inputs_dim", None)
    if known is not None and known != m:
        raise ValueError(f"the drift takes {known} inputs, but those of the series have {m} components")
    names = getattr(drift, "input_names", None)
    if names is not None and series.inputs.names not in (None, names):
        raise ValueError(
            f"the inputs of the series are {', '.join(series.inputs.names)}, but the equations have "
            f"{', '.join(names)}: give the same names in the same order"
        )
    # A NumPy array refuses an index that is too large, which a JAX array would clamp.
    shape = getattr(output_of(lambda x, t: drift(x, t, np.zeros(m)), "drift", d), "shape", None)
    if shape != (d,):
        raise ValueError(
            f"the drift must return an array of shape ({d},) for a state of shape ({d},) and inputs of shape ({m},), "
            f"got {shape}"
        )
    if series.inputs.has_impulses:
        _check_gain(model, series)


@float64
def _check_gain(model: Any, series: Any) -> None:
    """Raise a ValueError unless ∂f/∂u is the same everywhere for all components that are impulses."""
    rng, noise, d, m = np.random.default_rng(0), model.noise, model.dim, series.inputs.dim
    mean, cov = np.asarray(model.initial.mean), np.asarray(model.initial.cov)
    x = mean + rng.standard_normal((_POINTS, d)) * np.sqrt(np.diag(cov)) * np.arange(_POINTS)[:, None]
    if isinstance(noise, StateDiffusion):
        w = noise.to_constant(jnp.asarray(mean)) * (1.0 + 0.1 * np.arange(_POINTS)[:, None])
        x = np.asarray(noise.to_state(jnp.asarray(w)))
    t, u = rng.choice(series.times, _POINTS), rng.standard_normal((_POINTS, m))
    drift = own(model.drift)
    G = np.asarray(jax.vmap(jax.jacfwd(lambda x, t, u: drift(x, t, u), argnums=2))(*map(jnp.asarray, (x, t, u))))
    G = G[:, :, series.inputs.is_impulse]
    size = 1.0 + np.abs(G).max()
    if not (np.abs(G - G[0]) <= _SAME * size).all():
        raise ValueError(
            "the drift must be of the form g(x, t) + G u in the inputs that are impulses, so that the state jumps by "
            "G times the amount; here ∂f/∂u depends on the state, the time or the inputs. Let the impulse enter a "
            "coordinate of its own from which it acts on the others, or give it as a short gv.Inputs(..., 'previous')"
        )
    if not isinstance(noise, StateDiffusion):
        return
    moved = np.abs(G[0]).max(1) > 0.0
    w = noise.to_constant(jnp.asarray(mean))
    fixed = np.asarray(noise.rates(w)[1] == 1.0) & np.asarray(noise.rates(1.1 * w + 0.1)[1] == 1.0)
    if (moved & ~fixed).any():
        i = int(np.argmax(moved & ~fixed))
        raise ValueError(
            f"impulses move coordinate {i}, whose noise depends on the state: q is Gaussian where that noise is "
            "constant, and would not be after a jump. Give that coordinate constant noise, let the impulse enter "
            "through another coordinate, or put an impulse at the start into the initial state"
        )
