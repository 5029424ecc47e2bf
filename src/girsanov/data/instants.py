"""Inputs on the nodes of a grid, and times with the inputs there, in the form in which compiled code takes them."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from girsanov._core.types import Array


class Instant(eqx.Module):
    """A time with the inputs there; or several, with their places as the last axis of every array.

    It stands where a drift without inputs gets the time alone.

    Attributes:
        t: the time.
        u: the inputs, shape (m,).
        dosed: the sum of all impulses up to then, shape (m,), or None if there are none.
    """

    t: Float[Array, "*n"]
    u: Float[Array, "m *n"]
    dosed: Float[Array, "m *n"] | None = None

    def __getitem__(self, places: Any) -> "Instant":
        return jax.tree.map(lambda a: jnp.asarray(a)[..., places], self)


class InputsOnGrid(eqx.Module):
    """Inputs that are linear in time between the nodes of a grid, and may jump at them.

    Attributes:
        times: times of the nodes, shape (N,).
        before: the limits from before each node, shape (m, N).
        after: the values from each node on, shape (m, N).
        dosed: the sum of all impulses up to and including each node, shape (m, N), or None if there are none.
    """

    times: Float[Array, " N"]
    before: Float[Array, "m N"]
    after: Float[Array, "m N"]
    dosed: Float[Array, "m N"] | None = None

    @property
    def events(self) -> np.ndarray:
        """The indices of the nodes with steps or impulses, on the host."""
        jumps = (np.asarray(self.before) != np.asarray(self.after)).any(0)
        if self.dosed is not None:
            jumps |= np.diff(np.asarray(self.dosed), axis=1, prepend=0.0).any(0)
        return np.flatnonzero(jumps)

    def at(self, t: Any) -> Instant:
        """Return one time with the inputs there; a node belongs to what comes after it, and the ends hold on."""
        times, before, after = (jnp.asarray(a) for a in (self.times, self.before, self.after))
        last = times.shape[0] - 1
        left = jnp.clip(jnp.searchsorted(times, t, side="right") - 1, 0, last)
        right = jnp.minimum(left + 1, last)
        gap = times[right] - times[left]
        w = jnp.where(gap > 0.0, (t - times[left]) / jnp.where(gap > 0.0, gap, 1.0), 0.0)
        u = after[:, left] + jnp.clip(w, 0.0, 1.0) * (before[:, right] - after[:, left])
        return Instant(jnp.asarray(t), u, None if self.dosed is None else jnp.asarray(self.dosed)[:, left])

    def at_nodes(self, times: Float[Array, " N"]) -> Instant:
        """Return the nodes, whose times are given, with the inputs from there on."""
        return Instant(times, self.after, self.dosed)

    def at_ends(self, times: Float[Array, " N"]) -> Instant:
        """Return the nodes with the inputs up to there: what holds at the right end of an interval."""
        if self.dosed is None:
            return Instant(times, self.before)
        dosed = jnp.asarray(self.dosed)
        return Instant(times, self.before, jnp.concatenate([dosed[:, :1], dosed[:, :-1]], 1))

    def at_middles(self, times: Float[Array, " M"]) -> Instant:
        """Return the middles of all intervals with the inputs there."""
        before, after = jnp.asarray(self.before), jnp.asarray(self.after)
        u = 0.5 * (after[:, :-1] + before[:, 1:])
        return Instant(times, u, None if self.dosed is None else jnp.asarray(self.dosed)[:, :-1])

    def on(self, times: np.ndarray) -> "InputsOnGrid":
        """Return the same inputs on a grid that has some of these nodes, among them all steps and impulses."""
        kept = np.searchsorted(np.asarray(self.times), times)
        return self._map(lambda a: np.asarray(a)[..., kept])

    def padded(self, size: int) -> "InputsOnGrid":
        """Return the same inputs with this many nodes: the last one is repeated."""
        return self._map(lambda a: np.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, size - a.shape[-1])], mode="edge"))

    def trimmed(self, size: int) -> "InputsOnGrid":
        """Return the first nodes, in NumPy arrays."""
        return self._map(lambda a: np.asarray(a)[..., :size])

    def with_impulses(self) -> "InputsOnGrid":
        """Return the same inputs with impulses of zero if they have none, so that their form is that of others."""
        if self.dosed is not None:
            return self
        return InputsOnGrid(self.times, self.before, self.after, np.zeros(np.shape(self.after)))

    def _map(self, fn: Any) -> "InputsOnGrid":
        return jax.tree.map(fn, self)


def times_first(times: Any) -> Any:
    """Return times, with or without inputs, with their places as the first axis of every array, for a scan."""
    return jax.tree.map(lambda a: jnp.moveaxis(a, -1, 0), times)
