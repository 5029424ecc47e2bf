"""The exact posterior of the discretised model for scalar states, by a forward–backward recursion on points.

The model x_{m+1} | x_m ~ N(x_m + Δf(x_m, t_m), ΔQ) is a hidden Markov chain with a continuous scalar state. Every node
has its own equally spaced points, over a wide range between observations and a narrow one where an observation or the
initial state confines the path. Sums over the points are trapezoidal rules for smooth functions that vanish at both
ends, so the error falls faster than any power of the spacing. Time and memory are linear in the number of nodes.
"""

import dataclasses
from typing import Any

import jax
import numpy as np

from girsanov._core.compile import compiled
from girsanov._core.precision import float64
from girsanov.baselines.line import confine, factors, find_points, initial, kernel, solve
from girsanov.data.grid import grid_with, locate
from girsanov.data.series import TimeSeries
from girsanov.model.diffusions import StateDiffusion
from girsanov.model.driven import driven_on
from girsanov.model.estimate import Marginals, PathEstimate
from girsanov.model.model import Model, check_inputs
from girsanov.model.simulate import states, to_constant

_FEWEST = 8  # smallest number of points per node that a user may ask for


@dataclasses.dataclass(frozen=True, repr=False)
class ExactPosterior(PathEstimate):
    """The exact posterior of the discretised model with a scalar state, as `exact_smoother` returns it.

    Attributes:
        model: the model.
        series: the observations.
        times: times of the nodes, shape (N,).
        node: for each observation the index of its node, shape (n,).
        log_evidence: log p(y).
        error: the change of `log_evidence` when each node has 1.5 times as many points.
        moment_error: the largest change of a mean or a standard deviation in that refinement.
        mean: posterior mean at every node, shape (N, 1).
        cov: posterior variance at every node, shape (N, 1, 1).
        lag_cov: lag-one covariances Cov(x_{m+1}, x_m), shape (N − 1, 1, 1).
        points: the points of every node, shape (N, k). These and the densities are in the coordinate in which the noise
            is constant, which is the state itself if its noise is constant.
        density: the smoothing density at the points, shape (N, k).
        forward: the filtering density at the points, shape (N, k).
        backward: p(later data | x) times the likelihood of the node's own observation at the points, up to a factor,
            shape (N, k).
    """

    model: Model
    series: TimeSeries
    times: np.ndarray
    node: np.ndarray
    log_evidence: float
    error: float
    moment_error: float
    mean: np.ndarray
    cov: np.ndarray
    lag_cov: np.ndarray
    points: np.ndarray
    density: np.ndarray
    forward: np.ndarray
    backward: np.ndarray

    def _nodes(self, times: Any) -> np.ndarray:
        t = self._inside(times)
        index, on = locate(self.times, t)
        if not on.all():
            i = int(np.argmin(on))
            raise ValueError(f"times[{i}] = {float(t[i])!r} is not a node: pass it to exact_smoother(..., at=[...])")
        return index

    def marginals(self, times: Any) -> Marginals:
        """Return mean and covariance of the state at nodes.

        Args:
            times: times of nodes, shape (n,) or a scalar. To make other times nodes, pass them to `exact_smoother` as
                `at`.

        Returns:
            Means of shape (n, 1) and covariances of shape (n, 1, 1).

        Raises:
            ValueError: if a time is not a node.
        """
        index = self._nodes(times)
        return Marginals(self.mean[index], self.cov[index])

    @float64
    def density_at(self, node: int, x: Any) -> np.ndarray:
        """Evaluate the smoothing density of one node, by one step of the recursion from each of its neighbours.

        Args:
            node: index of the node.
            x: states, shape (k,).

        Returns:
            The density p(x | data) at these states, shape (k,).
        """
        x = np.asarray(x, dtype=np.float64)
        here = np.full(len(x), self.times[node])
        if not isinstance(self.model.noise, StateDiffusion):
            return self._latent_density(node, to_constant(self.model, x[:, None], here)[:, 0])
        low, high = (float(a[0]) for a in self.model.noise.support(1))
        inside, out = (x > low) & (x < high), np.zeros_like(x)
        w = to_constant(self.model, x[inside, None], here[inside])
        out[inside] = self._latent_density(node, w[:, 0]) / np.asarray(_slopes(self.model.noise, w))[:, 0]
        return out

    def _latent_density(self, node: int, x: np.ndarray) -> np.ndarray:
        """Return the smoothing density of one node in the coordinate in which the noise is constant."""
        own = self.points[node]
        if node == 0:
            m0, P0 = initial(self.model.latent)
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

    def band(self) -> tuple[np.ndarray, np.ndarray]:
        """Return quantiles of the state at every node if its noise depends on it; else mean ± 2 sd."""
        if not isinstance(self.model.noise, StateDiffusion):
            return super().band()
        share = np.cumsum(self.density, axis=1) / self.density.sum(1, keepdims=True)
        ends = [[np.interp(q, share[n], self.points[n]) for n in range(len(self.times))] for q in (0.02275, 0.97725)]
        low, high = states(self.model, np.array(ends)[..., None], self.times)
        return low, high

    @float64
    def nlpd_values(self, test: TimeSeries) -> np.ndarray:
        """Return −log ∫ p(y | x) p(x | data) dx with the exact density, for every held-out observation.

        Args:
            test: the held-out observations, at times that are nodes.

        Returns:
            The negative log predictive densities in nats, shape (n,).

        Raises:
            ValueError: if a time is not a node, or if an observation lies so far out that the density is unknown there.
        """
        self._check_test(test)
        n = max(2001, self.points.shape[1])
        out = np.zeros(len(test))
        for i, (node, log_lik) in enumerate(
            zip(self._nodes(test.times).tolist(), factors(self.model.latent, test), strict=True)
        ):
            if log_lik is None:
                continue

            def log_product(x, node=node, log_lik=log_lik):
                with np.errstate(divide="ignore"):
                    return log_lik(x) + np.log(self._latent_density(node, x))

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


@compiled
def _slopes(noise, w):
    return jax.vmap(lambda w: noise.rates(w)[1])(w)


def _weights(post: ExactPosterior, node: int) -> np.ndarray:
    return post.forward[node] * (post.points[node, 1] - post.points[node, 0])


def _transition(post: ExactPosterior, node: int, x: np.ndarray, after: np.ndarray) -> np.ndarray:
    gap, t = post.times[node + 1] - post.times[node], post.times[node]
    return np.asarray(kernel(post.model.latent, x, after, np.float64(t), np.float64(gap)))


def _log_factor(post: ExactPosterior, node: int, x: np.ndarray) -> np.ndarray:
    hit = np.flatnonzero(post.node == node)
    log_f = factors(post.model.latent, post.series)[hit[0]] if len(hit) else None
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
    """Compute posterior and evidence of a model with a scalar state exactly, on the grid that `infer` would use.

    The range of the points is widened until the density vanishes at its ends. The error is estimated by a second run
    with 1.5 times as many points.

    Args:
        model: a model with d = 1.
        series: the observations.
        dt: step of the time grid.
        span: first and last time of the grid; by default those of the observations.
        key: ignored; it is accepted so that the function can be called like `particle_smoother`.
        at: additional times to make nodes, such as those of held-out observations.
        n_points: number of points per node, at least 8. By default they are at most half a standard deviation apart,
            that of the narrowest among initial law, transitions and likelihood.

    Returns:
        The posterior, with `log_evidence` and an estimate `error` of its numerical error.

    Raises:
        ValueError: if the state is not scalar, or if the points needed are too many.
    """
    model = check_inputs(model, series)
    if model.dim != 1:
        raise ValueError(
            f"exact_smoother works for scalar states, and this model's state has dimension {model.dim}. With "
            "post = gv.infer(...), use girsanov.baselines.particle_smoother(..., guided=post), or "
            "post.diagnose(key=...) for the evidence"
        )
    if n_points is not None and (int(n_points) != n_points or n_points < _FEWEST):
        raise ValueError(f"n_points must be a whole number ≥ {_FEWEST}, or None to choose it, got {n_points!r}")
    grid = grid_with(series, dt, span, at)
    model = driven_on(model, series, grid.times)
    coarse = find_points(model, series, grid, n_points)
    ends, n = coarse.points[:, [0, -1]], coarse.points.shape[1]
    fine = solve(model, series, grid, ends, int(np.ceil(1.5 * n)))
    (mean, var), (mean_before, var_before) = fine.moments(), coarse.moments()
    moved = np.abs([mean - mean_before, np.sqrt(var) - np.sqrt(var_before)])
    lag = fine.products - mean[1:] * mean[:-1]
    return ExactPosterior(
        model, series, grid.times, grid.node, fine.log_evidence, abs(fine.log_evidence - coarse.log_evidence),
        float(moved.max()), mean[:, None], var[:, None, None], lag[:, None, None], fine.points, fine.density,
        fine.forward, fine.backward,
    )  # fmt: skip
