"""The exact answer for scalar states: forward–backward recursion of the discretised model on the line.

The model x_{m+1} | x_m ~ N(x_m + Δf(x_m, t_m), ΔQ) is a hidden Markov chain with a continuous scalar state. Every node
gets its own uniform points, wide ones between observations and narrow ones where an observation or the initial state
confines the path; sums over them are trapezoidal rules on smooth functions that vanish at both ends, so the error
falls faster than any power of the spacing. Cost and memory are linear in the number of nodes.
"""

import dataclasses
from typing import Any

import numpy as np

from girsanov._core.precision import float64
from girsanov.baselines.line import confine, factors, first_range, initial, kernel, ranges, resolution, solve
from girsanov.data.grid import grid_with, locate
from girsanov.data.series import TimeSeries
from girsanov.model.estimate import Marginals, PathEstimate
from girsanov.model.model import Model, check_inputs

_EDGE = 1e-12  # share of the largest density that the ends of a range may have
_MAX_WIDENINGS = 12
_FEWEST = 8  # points a node that a user may ask for


@dataclasses.dataclass(frozen=True, repr=False)
class ExactPosterior(PathEstimate):
    """The exact marginals of the discretised model with a scalar state.

    - log_evidence: log p(y); error: its change when the points are refined by half; moment_error: the largest change
      of a mean or standard deviation.
    - points, density: (N, n) points of every node and the smoothing density there.
    - lag_cov: Cov(x_{m+1}, x_m), (N − 1, 1, 1).
    """

    model: Model
    series: TimeSeries
    times: np.ndarray
    node: np.ndarray  # of every observation, (n,)
    log_evidence: float
    error: float
    moment_error: float
    mean: np.ndarray
    cov: np.ndarray
    lag_cov: np.ndarray
    points: np.ndarray
    density: np.ndarray
    forward: np.ndarray  # filtering densities, (N, n)
    backward: np.ndarray  # p(later data | x) up to a factor, times the node's own likelihood, (N, n)

    def _nodes(self, times: Any) -> np.ndarray:
        t = self._inside(times)
        index, on = locate(self.times, t)
        if not on.all():
            i = int(np.argmin(on))
            raise ValueError(f"times[{i}] = {float(t[i])!r} is not a node: pass it to exact_smoother(..., at=[...])")
        return index

    def marginals(self, times: Any) -> Marginals:
        """Mean and covariance at nodes; for other times name them in `at=`."""
        index = self._nodes(times)
        return Marginals(self.mean[index], self.cov[index])

    @float64
    def density_at(self, node: int, x: Any) -> np.ndarray:
        """The smoothing density of one node at any points, by one step of the recursion from either side."""
        x = np.asarray(x, dtype=np.float64)
        own = self.points[node]
        if node == 0:
            m0, P0 = initial(self.model)
            prior = lambda at: np.exp(-0.5 * (at - m0) ** 2 / P0)  # noqa: E731
        else:
            prior = lambda at: _weights(self, node - 1) @ _transition(self, node - 1, self.points[node - 1], at)  # noqa: E731
        last = node == len(self.times) - 1

        def after(at):
            if last:
                return np.ones_like(at)
            h = self.points[node + 1, 1] - self.points[node + 1, 0]
            return _transition(self, node, at, self.points[node + 1]) @ self.backward[node + 1] * h

        unnormalised = lambda at: prior(at) * after(at) * np.exp(_log_factor(self, node, at))  # noqa: E731
        total = unnormalised(own).sum() * (own[1] - own[0])
        return unnormalised(x) / total

    @float64
    def nlpd_values(self, test: TimeSeries) -> np.ndarray:
        """−log ∫ p(y | x) p(x | data) dx with the exact density, for test times that are nodes."""
        self._check_test(test)
        n = max(2001, self.points.shape[1])
        out = np.zeros(len(test))
        for i, (node, log_lik) in enumerate(
            zip(self._nodes(test.times).tolist(), factors(self.model, test), strict=True)
        ):
            if log_lik is None:
                continue

            def log_product(x, node=node, log_lik=log_lik):
                with np.errstate(divide="ignore"):
                    return log_lik(x) + np.log(self.density_at(node, x))

            x = np.linspace(*confine(log_product, self.points[node, 0], self.points[node, -1], n=n), n)
            values = log_product(x)
            if np.argmax(values) in (0, n - 1):
                raise ValueError(
                    f"values[{i}] = {test.values[i].tolist()} is explained best by states beyond the range "
                    f"({self.points[node, 0]:.4g}, {self.points[node, -1]:.4g}), where the posterior has vanished; its "
                    "score is not known. Leave this outlier out, or use a likelihood with heavier tails"
                )
            out[i] = -np.logaddexp.reduce(values) - np.log(x[1] - x[0])
        return out


def _weights(post: ExactPosterior, node: int) -> np.ndarray:
    return post.forward[node] * (post.points[node, 1] - post.points[node, 0])


def _transition(post: ExactPosterior, node: int, x: np.ndarray, after: np.ndarray) -> np.ndarray:
    gap, t = post.times[node + 1] - post.times[node], post.times[node]
    return np.asarray(kernel(post.model, x, after, np.float64(t), np.float64(gap)))


def _log_factor(post: ExactPosterior, node: int, x: np.ndarray) -> np.ndarray:
    hit = np.flatnonzero(post.node == node)
    log_f = factors(post.model, post.series)[hit[0]] if len(hit) else None
    return np.zeros_like(x) if log_f is None else log_f(x)


@float64
def exact_smoother(
    model: Model,
    series: TimeSeries,
    dt: float,
    span: tuple[float, float] | None = None,
    *,
    key: Any = None,
    at: Any = None,
    n_points: int | None = None,
) -> ExactPosterior:
    """Exact posterior and evidence of a model with a scalar state, on the grid that `infer` would use.

    - at: further times to make nodes, such as those of held-out observations.
    - n_points: points a node; by default half a transition's standard deviation apart. The range widens by itself until
      the density vanishes at its ends; the error is estimated by running again with half as many points again.
    """
    check_inputs(model, series)
    if model.dim != 1:
        raise ValueError(f"exact_smoother works for scalar states; this model's state has dimension {model.dim}")
    if n_points is not None and (int(n_points) != n_points or n_points < _FEWEST):
        raise ValueError(f"n_points must be a whole number ≥ {_FEWEST}, or None to choose it, got {n_points!r}")
    grid = grid_with(series, dt, span, at)
    lo, hi = first_range(model, series, grid)
    widen = 1.0
    for _ in range(_MAX_WIDENINGS):
        ends = ranges(model, series, grid, lo, hi, widen)
        n = resolution(model, series, grid, ends) if n_points is None else int(n_points)
        coarse = solve(model, series, grid, ends, n)
        leak = coarse.density[:, [0, -1]] / coarse.density.max(1, keepdims=True)
        if np.isfinite(coarse.log_evidence) and not (leak > _EDGE).any():
            break
        wide = leak[(ends[:, 0] <= lo) | (ends[:, 1] >= hi)]
        if not np.isfinite(coarse.log_evidence) or (len(wide) and (wide > _EDGE).any()):
            lo, hi = lo - 0.25 * (hi - lo), hi + 0.25 * (hi - lo)
        widen *= 1.25
    else:
        raise ValueError(
            "the posterior does not vanish at the ends of any range tried; is the drift explosive at this dt?"
        )
    fine = solve(model, series, grid, ends, int(np.ceil(1.5 * n)))
    (mean, var), (mean_before, var_before) = fine.moments(), coarse.moments()
    moved = np.abs([mean - mean_before, np.sqrt(var) - np.sqrt(var_before)])
    lag = fine.products - mean[1:] * mean[:-1]
    return ExactPosterior(
        model, series, grid.times, grid.node, fine.log_evidence, abs(fine.log_evidence - coarse.log_evidence),
        float(moved.max()), mean[:, None], var[:, None, None], lag[:, None, None], fine.points, fine.density,
        fine.forward, fine.backward,
    )  # fmt: skip
