"""A time series on the nodes of a grid: the arrays that all methods pass to compiled code."""

from collections.abc import Iterable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from girsanov._core.precision import frozen
from girsanov._core.types import Array
from girsanov.data.grid import Grid
from girsanov.data.instants import InputsOnGrid
from girsanov.data.rows import Rows, rows_of
from girsanov.data.series import TimeSeries


class SeriesOnGrid(eqx.Module):
    """The nodes of a grid and the observations on them.

    The arrays of the nodes are padded at the end, so that series with equally many observations share one compiled
    program wherever these lie. Nodes with an index of `size` or more are padding and not part of the chain.

    Attributes:
        times: times of the nodes, shape (N,); the padding repeats the last one.
        gaps: lengths of the steps between nodes, shape (M,) with M = N − 1; the padding is one.
        size: number of nodes that are part of the chain.
        node: for each observation the index of its node, shape (n,).
        y: observed values, shape (n, D), with zeros for missing values.
        observed: mask of the values that are not missing, shape (n, D).
        errors: known standard deviations of the values, shape (n, D), or None if the series has none.
        covariates: numbers that describe the series, by name, or None if the model takes none.
        inputs: the inputs on the nodes, or None if the series has none.
    """

    times: Float[Array, " N"]
    gaps: Float[Array, " M"]
    size: Int[Array, ""]
    node: Int[Array, " n"]
    y: Float[Array, "n D"]
    observed: Bool[Array, "n D"]
    errors: Float[Array, "n D"] | None = None
    covariates: dict[str, Float[Array, ""]] | None = None
    inputs: InputsOnGrid | None = None

    @property
    def at_nodes(self) -> Any:
        """The times of the nodes, as a drift takes them: with the inputs from there on, if there are any."""
        return self.times if self.inputs is None else self.inputs.at_nodes(self.times)

    @property
    def at_ends(self) -> Any:
        """The times of the nodes as the ends of the intervals before them: with the inputs up to there."""
        return self.times if self.inputs is None else self.inputs.at_ends(self.times)

    @property
    def at_middles(self) -> Any:
        """The times of the middles of all intervals, with the inputs there."""
        times = self.times[:-1] + 0.5 * self.gaps
        return times if self.inputs is None else self.inputs.at_middles(times)

    @property
    def rows(self) -> Rows:
        """The observations with their times."""
        return Rows(self.times[self.node], self.y, self.observed, self.errors)

    @property
    def in_chain(self) -> Bool[Array, " N"]:
        """Mask of the nodes that are part of the chain, not padding."""
        return jnp.arange(self.times.shape[0]) < self.size

    @property
    def grid(self) -> Grid:
        """The grid without padding, in NumPy arrays."""
        times, node = frozen(np.asarray(self.times)[: int(self.size)]), frozen(np.asarray(self.node)[:])
        if self.inputs is None:
            return Grid(times, node, len(self.times))
        return Grid(times, node, len(self.times), self.inputs.trimmed(len(times)).events)

    def on(self, grid: Grid, capacity: int) -> "SeriesOnGrid":
        """Return the same observations on another grid, padded to `capacity` nodes."""
        inputs = None if self.inputs is None else self.inputs.on(grid.times).padded(capacity)
        return SeriesOnGrid(*_padded(grid, capacity), self.y, self.observed, self.errors, self.covariates, inputs)

    def padded(self, capacity: int, rows: int) -> "SeriesOnGrid":
        """Return the same series with this many nodes, at least one of them padding, and this many observations.

        The observations that are added are missing ones on the last node, which is padding.
        """
        more = rows - len(self.node)

        def longer(a, fill):
            return np.concatenate([a, np.full((more, *a.shape[1:]), fill, a.dtype)])

        times, gaps, size, node = _padded(self.grid, capacity)
        y = np.concatenate([self.y, np.broadcast_to(self.y[:1], (more, self.y.shape[1]))])  # allowed by the likelihood
        errors = None if self.errors is None else longer(self.errors, 1.0)
        node, observed = longer(node, capacity - 1), longer(self.observed, False)
        inputs = None if self.inputs is None else self.inputs.trimmed(int(size)).padded(capacity)
        return SeriesOnGrid(times, gaps, size, node, y, observed, errors, self.covariates, inputs)

    def by_node(self) -> Rows:
        """Return one row for every node; at a node without observation every value is missing.

        The rows are NumPy arrays if the observations are.
        """
        shape, on_host = (self.times.shape[0], self.y.shape[1]), isinstance(self.y, np.ndarray)

        def spread(values, empty):
            if not on_host:
                return jnp.full(shape, empty).at[self.node].set(values)
            wide = np.full(shape, empty)
            wide[self.node] = values
            return wide

        errors = None if self.errors is None else spread(self.errors, 1.0)
        y = spread(self.y, self.y[:1])  # a missing value must be one that the likelihood allows
        times = np.asarray(self.times) if on_host else jnp.asarray(self.times)
        return Rows(times, y, spread(self.observed, False), errors)


def on_grid(
    series: TimeSeries, grid: Grid, capacity: int | None = None, covariates: Iterable[str] | None = None
) -> SeriesOnGrid:
    """Put a series on a grid that is padded to `capacity` nodes, or not padded if `capacity` is None.

    `covariates` names those that the model takes; None if it takes none.
    """
    rows, inputs = rows_of(series), None
    given = None if covariates is None else {name: np.asarray(series.covariates[name]) for name in covariates}
    if series.inputs is not None:
        inputs = series.inputs.on(grid.times)
        inputs = inputs if capacity is None else inputs.padded(capacity)
    return SeriesOnGrid(*_padded(grid, capacity), rows.y, rows.observed, rows.errors, given, inputs)


def _padded(grid: Grid, capacity: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return times, gaps, size and the nodes of the observations, padded to `capacity` nodes."""
    size = len(grid.times)
    pad = 0 if capacity is None else capacity - size
    times = np.concatenate([grid.times, np.full(pad, grid.times[-1])])
    gaps = np.concatenate([np.diff(grid.times), np.ones(pad)])
    return times, gaps, np.asarray(size), grid.node.astype(np.int64)
