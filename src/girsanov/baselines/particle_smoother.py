"""Particle smoothing: draws from the posterior over paths by conditional particle filters with ancestor sampling."""

import dataclasses
import warnings
from typing import Any

import jax
import numpy as np

from girsanov._core.checks import check_whole
from girsanov._core.compile import compiled
from girsanov._core.precision import float64
from girsanov._core.progress import reporter
from girsanov.baselines.draws import DrawnPaths
from girsanov.baselines.particle_filter import conditional_sweep, particle_filter
from girsanov.baselines.proposals import Bootstrap, GaussianPath, Guided, Proposal, guide
from girsanov.data.grid import Grid, grid_with
from girsanov.data.series import TimeSeries
from girsanov.model.model import Model, check_inputs
from girsanov.model.path_model import PathModel, path_model
from girsanov.model.simulate import check_draws

_CHUNK = 20  # sweeps between two looks of the host
_DISAGREE = 1.1  # R̂ from which on the draws are not to be used
_WATCHED = 60  # nodes whose states the diagnostics look at


@dataclasses.dataclass(frozen=True, repr=False)
class ParticlePosterior(DrawnPaths):
    """Paths drawn from the posterior of the discretised model.

    - samples: (K, N, d), the draws of one chain after those of another.
    - log_evidence, standard_error: of log p(y), from particle filters with the same proposals; None if not asked for.
    - ess, rhat: smallest effective sample size and largest R̂ of the state over a spread of nodes.
    - acceptance: share of sweeps that changed the state, for every node.
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
        """From kept draws (chains, draws, N, d), all sweeps (sweeps, chains, N, d) or None, and evidence with error."""
        ess, rhat = _diagnostics(draws)
        moved = np.full(len(times), np.nan)
        if every is not None and len(every) > 1:
            moved = (np.diff(every, axis=0) != 0.0).any(-1).mean((0, 1))
        flat = draws.reshape(-1, *draws.shape[2:])
        log_evidence, error = evidence
        return cls(model, series, times, flat, len(draws), log_evidence, error, ess, rhat, moved, seconds)

    def by_chain(self) -> list["ParticlePosterior"]:
        """The draws of every chain alone: how far they differ is the Monte Carlo error of anything made of them."""
        parts = np.split(self.samples, self.chains)
        return [dataclasses.replace(self, samples=part, chains=1, rhat=float("nan")) for part in parts]


@compiled
def _first_paths(path: PathModel, proposal: Proposal, keys, n: int, resample):
    return jax.vmap(lambda key: particle_filter(path, proposal, key, n, resample))(keys)


@compiled
def _sweeps(path: PathModel, proposal: Proposal, keys, paths, n: int, resample, power):
    """As many sweeps of every chain as there are rows of keys: all the paths, and the last ones."""

    def sweep(paths, keys):
        one = lambda key, old: conditional_sweep(path, proposal, key, old, n, resample, power)  # noqa: E731
        paths = jax.vmap(one)(keys, paths)
        return paths, paths

    return jax.lax.scan(sweep, paths, keys)


def resampling_nodes(grid: Grid, n: int) -> np.ndarray:
    """Where to resample: at every observation, and in between so often that the particles' common ancestor, about n
    resamplings back, lies two gaps between observations in the past; oftener, and they explore less."""
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
    """Draws from the posterior over paths by CPF-AS, on the grid that `infer` would use.

    - particles: of each sweep; samples: kept draws over all chains, one every `thin` sweeps after `burn_in`.
    - guided: a posterior of the same model, series, dt and span; its transitions propose, the weights stay exact.
    - trust: the power to which that posterior's messages from later observations are raised, in (0, 1]. A Gaussian
      posterior is narrower than the truth, and at full trust the weights of paths where it has vanished are unbounded.
    - evidence_runs: particle filters for log p(y) and its error; 0 for none.
    - at: further times to make nodes, such as those of held-out observations (`guided` needs them as well:
      infer it with such a `grid`).
    """
    import time

    begun = time.perf_counter()
    check_draws(key, samples)
    check_whole(2, particles=particles)
    check_whole(1, chains=chains, thin=thin)
    check_whole(0, burn_in=burn_in, evidence_runs=evidence_runs)
    check_inputs(model, series)
    if not 0.0 < trust <= 1.0:
        raise ValueError(f"trust must be in (0, 1], got {trust!r}")
    grid, proposal = _set_up(model, series, dt, span, guided, trust, at)
    path = path_model(model, series, grid)
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
            f"the chains disagree: R̂ = {post.rhat:.2f}, {post.ess:.0f} effective draws; raise samples= or particles=, "
            "or guide them by a posterior, guided=gv.infer(...)",
            stacklevel=3,
        )
    return post


def draw(path: PathModel, proposal: Proposal, key, paths, n: int, resample, sweeps: int, say) -> np.ndarray:
    """Paths (sweeps, chains, N, d) of as many chains as there are to start from."""
    keys = jax.random.split(key, (sweeps, paths.shape[0]))
    kept: list[np.ndarray] = []
    for i in range(0, sweeps, _CHUNK):
        paths, drawn = _sweeps(path, proposal, keys[i : i + _CHUNK], paths, n, resample, np.float64(1.0))
        kept.append(np.asarray(drawn))
        if say is not None:
            say(f"particle smoother, sweep {min(i + _CHUNK, sweeps)} of {sweeps}")
    return np.concatenate(kept)


def _set_up(model, series, dt, span, guided, trust, at) -> tuple[Grid, Proposal]:
    grid = grid_with(series, dt, span, at)
    if guided is None:
        return grid, Bootstrap()
    if not isinstance(guided, GaussianPath):
        raise ValueError(f"guided must be the gv.Posterior of the same model and series, got {type(guided).__name__}")
    if not (np.array_equal(guided.times, grid.times) and guided.model.dim == model.dim):
        raise ValueError(
            f"guided has {len(guided.times)} nodes from {guided.times[0]:g} to {guided.times[-1]:g}, this grid has "
            f"{len(grid.times)} from {grid.times[0]:g} to {grid.times[-1]:g}: infer it with the same dt and "
            "span, or with this grid where at= is given"
        )
    return grid, _guide(guided, float(trust))


@float64
def _guide(post: GaussianPath, trust: float) -> Guided:
    return guide(post, trust)


def _evidence(path, proposal, key, n, resample, runs) -> tuple[float | None, float | None]:
    """log of the mean of the filters' estimates, and its standard error by the delta method."""
    if runs == 0:
        return None, None
    logs = np.asarray(_first_paths(path, proposal, jax.random.split(key, runs), n, resample).log_evidence)
    top = logs.max()
    weights = np.exp(logs - top)
    error = weights.std(ddof=1) / weights.mean() / np.sqrt(runs) if runs > 1 else None
    return float(top + np.log(weights.mean())), None if error is None else float(error)


def _diagnostics(draws: np.ndarray) -> tuple[float, float]:
    """Smallest effective sample size and largest R̂ over a spread of nodes and all coordinates."""
    from arviz_stats.base.array import array_stats

    chains, count, N, _ = draws.shape
    if count < 4:
        return float("nan"), float("nan")
    nodes = np.unique(np.linspace(0, N - 1, _WATCHED).astype(int))
    watched = draws[:, :, nodes].reshape(chains, count, -1)
    ess = array_stats.ess(watched, chain_axis=0, draw_axis=1)
    rhat = array_stats.rhat(watched, chain_axis=0, draw_axis=1) if chains > 1 else np.array([np.nan])
    return float(np.nanmin(ess)), float(np.nanmax(rhat))
