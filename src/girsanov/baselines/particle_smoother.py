"""Particle smoothing: draw paths from the posterior by conditional particle filters with ancestor sampling (CPF-AS)."""

import dataclasses
import warnings
from typing import Any

import jax
import numpy as np

from girsanov._core.checks import check_whole
from girsanov._core.compile import compiled
from girsanov._core.precision import float64
from girsanov._core.progress import reporter
from girsanov._core.weights import log_mean
from girsanov.baselines.draws import DrawnPaths
from girsanov.baselines.particle_filter import conditional_sweep, particle_filter
from girsanov.baselines.proposals import Bootstrap, GaussianPath, Proposal, guide
from girsanov.data.grid import Grid, grid_with
from girsanov.data.series import TimeSeries
from girsanov.model.driven import driven_on
from girsanov.model.model import Model, check_inputs
from girsanov.model.path_model import PathModel, exact_path_model, path_model
from girsanov.model.simulate import check_draws, states

_CHUNK = 20  # sweeps in one call of compiled code
_DISAGREE = 1.1  # above this R̂ the draws should not be used
_WATCHED = 60  # number of nodes at which the diagnostics are computed


@dataclasses.dataclass(frozen=True, repr=False)
class ParticlePosterior(DrawnPaths):
    """Paths drawn from the posterior of the discretised model.

    Attributes:
        model: the model.
        series: the observations.
        times: times of the nodes, shape (N,).
        samples: the paths, shape (K, N, d), chain after chain.
        chains: number of chains.
        log_evidence: estimate of log p(y), or None if it was not asked for.
        standard_error: Monte Carlo error of `log_evidence`, or None.
        ess: smallest effective sample size of the state, over all coordinates and up to 60 nodes.
        rhat: largest R̂ of the state over the same coordinates and nodes; NaN for a single chain.
        acceptance: for every node, the share of sweeps that changed the state there.
        seconds: seconds that the call took.
    """

    model: Model
    series: TimeSeries
    times: np.ndarray
    samples: np.ndarray
    chains: int
    log_evidence: float | None
    standard_error: float | None
    ess: float
    rhat: float
    acceptance: np.ndarray
    seconds: float

    @classmethod
    def of(cls, model, series, times, draws, every, evidence, seconds: float) -> "ParticlePosterior":
        """Make a posterior from draws and compute its diagnostics.

        `draws` are the draws to keep, shape (chains, draws, N, d), in coordinates in which the noise is constant.
        `every` are the paths of all sweeps, shape (sweeps, chains, N, d), or None. `evidence` is the pair of log
        evidence and standard error.
        """
        draws = states(model, draws, times)
        ess, rhat = diagnostics(draws)
        moved = np.full(len(times), np.nan)
        if every is not None and len(every) > 1:
            moved = (np.diff(every, axis=0) != 0.0).any(-1).mean((0, 1))
        flat = draws.reshape(-1, *draws.shape[2:])
        log_evidence, error = evidence
        return cls(model, series, times, flat, len(draws), log_evidence, error, ess, rhat, moved, seconds)

    def by_chain(self) -> list["ParticlePosterior"]:
        """Split the posterior by chain. Differences between the parts show the Monte Carlo error of any result.

        Returns:
            One posterior for each chain, with the draws of that chain only.
        """
        parts = np.split(self.samples, self.chains)
        return [dataclasses.replace(self, samples=part, chains=1, rhat=float("nan")) for part in parts]


@compiled
def _first_paths(path: PathModel, proposal: Proposal, keys, n: int, resample):
    return jax.vmap(lambda key: particle_filter(path, proposal, key, n, resample))(keys)


@compiled
def _sweeps(path: PathModel, proposal: Proposal, keys, paths, n: int, resample, power):
    """Do one sweep of every chain for each row of keys; return the last paths and the paths of all sweeps."""

    def sweep(paths, keys):
        one = lambda key, old: conditional_sweep(path, proposal, key, old, n, resample, power)  # noqa: E731
        paths = jax.vmap(one)(keys, paths)
        return paths, paths

    return jax.lax.scan(sweep, paths, keys)


def resampling_nodes(grid: Grid, n: int) -> np.ndarray:
    """Return a mask of the nodes at which n particles are resampled: all observations, and regular nodes between them.

    The common ancestor of the particles lies about n resamplings in the past. The regular nodes are spaced such that
    this is about two gaps between observations. If resampling were more frequent, the particles would explore less.
    """
    M = len(grid.times) - 1
    gap = (grid.times[-1] - grid.times[0]) / (len(grid.node) + 1)
    step = (grid.times[-1] - grid.times[0]) / max(M, 1)
    stride = max(1, int(np.ceil(2.0 * gap / (n * step))))
    out = np.arange(M) % stride == 0
    out[grid.node[grid.node < M]] = True
    return out


@float64
def particle_smoother(
    model: Model,
    series: TimeSeries,
    dt: float,
    span: tuple[float, float] | None = None,
    *,
    key: Any,
    particles: int = 100,
    samples: int = 1000,
    chains: int = 4,
    burn_in: int = 50,
    thin: int = 1,
    guided: Any = None,
    trust: float = 0.5,
    evidence_runs: int = 8,
    at: Any = None,
    progress: bool = True,
) -> ParticlePosterior:
    """Draw paths from the posterior by CPF-AS, on the grid that `infer` would use.

    CPF-AS is the conditional particle filter with ancestor sampling. A warning tells if the chains disagree.

    Args:
        model: the model.
        series: the observations.
        dt: step of the time grid.
        span: first and last time of the grid; by default those of the observations.
        key: JAX random key.
        particles: number of particles in each sweep; 100 by default.
        samples: number of draws to keep over all chains, rounded up to a multiple of `chains`; 1000 by default.
        chains: number of independent chains; 4 by default.
        burn_in: sweeps of each chain that are discarded at the beginning; 50 by default.
        thin: keep every thin-th sweep; 1 by default.
        guided: a `Posterior` of the same model, series, dt and span, whose messages from later observations guide the
            proposals. The weights stay exact, so only the efficiency depends on it. If it is a posterior in continuous
            time, the paths are those of the SDE itself, with an error of second order in dt; otherwise they are those
            of Euler–Maruyama. Needed if the noise is singular. By default particles move by the model alone.
        trust: the power in (0, 1] to which the messages of `guided` are raised; 0.5 by default. A Gaussian posterior is
            often narrower than the true one, and with trust=1 the weights of paths outside it are unbounded.
        evidence_runs: number of particle filters that estimate log p(y) and its error, or 0 for no estimate; 8 by
            default.
        at: additional times to make nodes, such as those of held-out observations. `guided` must have the same nodes:
            pass them to `infer` as `grid`.
        progress: whether to print progress on standard error.

    Returns:
        The drawn paths, with diagnostics and the estimate of the log evidence.
    """
    import time

    begun = time.perf_counter()
    check_draws(key, samples, name="samples")
    check_whole(2, particles=particles)
    check_whole(1, chains=chains, thin=thin)
    check_whole(0, burn_in=burn_in, evidence_runs=evidence_runs)
    model = check_inputs(model, series)
    if not 0.0 < trust <= 1.0:
        raise ValueError(f"trust must be in (0, 1], got {trust!r}")
    grid = grid_with(series, dt, span, at)
    model = driven_on(model, series, grid.times)
    path, proposal = _set_up(model, series, grid, guided, np.float64(trust))
    resample = resampling_nodes(grid, particles)
    start_key, sweep_key, evidence_key = jax.random.split(key, 3)
    paths = _first_paths(path, proposal, jax.random.split(start_key, chains), particles, resample).path
    sweeps = burn_in + thin * -(-samples // chains)
    with reporter(progress) as say:
        every = draw(path, proposal, sweep_key, paths, particles, resample, sweeps, say)
    draws = np.moveaxis(every[burn_in::thin], 0, 1)
    evidence = _evidence(path, proposal, evidence_key, particles, resample, evidence_runs)
    seconds = time.perf_counter() - begun
    post = ParticlePosterior.of(model, series, grid.times, draws, every, evidence, seconds)
    if post.rhat > _DISAGREE:
        warnings.warn(
            f"the chains disagree: R̂ = {post.rhat:.2f} with {post.ess:.0f} effective draws; raise samples= or "
            "particles=, or guide the particles by a posterior with guided=gv.infer(...)",
            stacklevel=3,
        )
    return post


def draw(path: PathModel, proposal: Proposal, key, paths, n: int, resample, sweeps: int, say) -> np.ndarray:
    """Run one chain from each of the given paths; return the paths of all sweeps, shape (sweeps, chains, N, d)."""
    keys = jax.random.split(key, (sweeps, paths.shape[0]))
    kept: list[np.ndarray] = []
    for i in range(0, sweeps, _CHUNK):
        paths, drawn = _sweeps(path, proposal, keys[i : i + _CHUNK], paths, n, resample, np.float64(1.0))
        kept.append(np.asarray(drawn))
        if say is not None:
            say(f"particle smoother, sweep {min(i + _CHUNK, sweeps)} of {sweeps}")
    return np.concatenate(kept)


def _set_up(model: Model, series: TimeSeries, grid: Grid, guided: Any, trust: np.float64) -> tuple[PathModel, Proposal]:
    if guided is None:
        return path_model(model, series, grid), Bootstrap()
    if not isinstance(guided, GaussianPath):
        raise ValueError(f"guided must be the gv.Posterior of the same model and series, got {type(guided).__name__}")
    if not (np.array_equal(guided.times, grid.times) and guided.model.dim == model.dim):
        raise ValueError(
            f"guided has {len(guided.times)} nodes from {guided.times[0]:g} to {guided.times[-1]:g}, but this grid has "
            f"{len(grid.times)} from {grid.times[0]:g} to {grid.times[-1]:g}: infer it with the same dt and "
            "span, or if at= is given, with the same grid as grid="
        )
    if guided.time == "continuous":
        path = exact_path_model(model, series, grid, guided.target.base)
    else:
        path = path_model(model, series, grid)
    proposal = guide(path, guided, trust)
    if not all(np.isfinite(a).all() for a in jax.tree.leaves(proposal)):
        raise ValueError(
            f"the messages of guided, whose status is {guided.status!r}, do not leave every step a density: infer it "
            "until it converges, or lower trust="
        )
    return path, proposal


def _evidence(path, proposal, key, n, resample, runs) -> tuple[float | None, float | None]:
    """Return the log of the mean of the filters' estimates, and its standard error by the delta method."""
    if runs == 0:
        return None, None
    logs = np.asarray(_first_paths(path, proposal, jax.random.split(key, runs), n, resample).log_evidence)
    found = log_mean(logs)
    return found.value, found.error if runs > 1 else None


def diagnostics(draws: np.ndarray) -> tuple[float, float]:
    """Return the smallest effective sample size and the largest R̂, over equally spaced nodes and all coordinates.

    The draws have shape (chains, draws, N, d). A coordinate that is the same in all draws of all chains does not
    count; where it is constant in every chain but differs between them, they are 0 and infinity.
    """
    from arviz_stats.base.array import array_stats

    chains, count, N, _ = draws.shape
    if count < 4:
        return float("nan"), float("nan")
    nodes = np.unique(np.linspace(0, N - 1, _WATCHED).astype(int))
    watched = draws[:, :, nodes].reshape(chains, count, -1)
    moving = np.ptp(watched, axis=1).max(0) > 0.0
    if (~moving & (np.ptp(watched, axis=(0, 1)) > 0.0)).any():
        return 0.0, float("inf")
    if not moving.any():
        return float("nan"), float("nan")
    watched = watched[:, :, moving]
    ess = array_stats.ess(watched, chain_axis=0, draw_axis=1)
    rhat = np.nanmax(array_stats.rhat(watched, chain_axis=0, draw_axis=1)) if chains > 1 else np.nan
    return float(np.nanmin(ess)), float(rhat)
