"""Series and chains that the scenarios run on."""

from pathlib import Path

import jax
import numpy as np

import girsanov as gv
from girsanov._core.compile import compiled
from girsanov._core.precision import float64
from girsanov.chain.conversion import linear_chain
from girsanov.chain.natural import NaturalChain
from girsanov.data.grid import given_grid
from girsanov.data.on_grid import on_grid
from girsanov.inference.objective import Posed, compose
from girsanov.inference.start import starting_sites
from girsanov.model.quadrature import default_quadrature
from girsanov.paper.data import FOLDS, Fold, inference_model, load_fold

# Noise, horizon and number of observations of the authors' data sets; every fifth observation is held out.
_SETTINGS = {"double_well": (0.01, 20.0, 40), "van_der_pol": (0.1, 5.0, 50)}


def load_or_simulate(directory: Path | None, process: str) -> list[Fold]:
    """The authors' five folds, or five simulated with the same settings where there is no directory."""
    if directory is not None:
        return [load_fold(directory, process, i) for i in range(FOLDS)]
    _, end, n = _SETTINGS[process]
    ticks = np.random.default_rng(0).choice(np.arange(1, round(end / 0.01)), n, replace=False)
    series = simulated_series(process, 0.01 * np.sort(ticks))
    group = np.random.default_rng(1).permutation(np.arange(n) % FOLDS)
    return [_fold(process, series.subset(group != i), series.subset(group == i)) for i in range(FOLDS)]


def _fold(process: str, train: gv.TimeSeries, test: gv.TimeSeries) -> Fold:
    sigma, end, _ = _SETTINGS[process]
    d = train.dim
    return Fold(train=train, test=test, sigma=sigma, Q=np.eye(d), x0=np.ones(d), span=(0.0, end))


def paper_model(process: str) -> gv.Model:
    d = 2 if process == "van_der_pol" else 1
    dummy = gv.TimeSeries(np.zeros(1), np.zeros((1, d)))
    return inference_model(process, _fold(process, dummy, dummy))


def simulated_series(process: str, times: np.ndarray) -> gv.TimeSeries:
    return gv.simulate(paper_model(process), times, key=jax.random.key(0), dt=0.01, start=0.0).series


def long_series(nodes: int) -> tuple[gv.TimeSeries, np.ndarray]:
    """A double-well series on a grid of `nodes` times, step 0.01, every fiftieth of which is observed."""
    grid = 0.01 * np.arange(nodes)
    return simulated_series("double_well", grid[::50]), grid


def update_problem(process: str, series: gv.TimeSeries, grid: np.ndarray) -> tuple[Posed, NaturalChain]:
    """What an update starts from, on the device: the problem and the chain that reads the data alone."""
    model = paper_model(process)
    rule, nodes = default_quadrature(model.dim).rule(model.dim), given_grid(series, grid)
    return _start(Posed(model, on_grid(series, nodes, nodes.capacity), rule))


@float64
def _start(problem: Posed) -> tuple[Posed, NaturalChain]:
    eta = compiled(lambda p: compose(p, starting_sites(p)))(problem)
    return jax.tree.map(lambda a: jax.device_put(a) if isinstance(a, np.ndarray) else a, problem), eta


@float64
def random_chain(d: int, nodes: int) -> NaturalChain:
    """A linear diffusion with random drift matrices and offsets, a tenth of its states observed."""
    rng = np.random.default_rng(d)
    dt, M = 0.01, nodes - 1
    A = -2.0 * np.eye(d)[:, :, None] + rng.normal(size=(d, d, M))
    T, c = np.eye(d)[:, :, None] + dt * A, dt * rng.normal(size=(d, M))
    W = np.broadcast_to(np.eye(d)[:, :, None] / dt, (d, d, M))
    chain = linear_chain(*jax.device_put((T, c, W)), mean=np.zeros(d), precision=np.eye(d))
    seen = 100.0 * (np.arange(nodes) % 10 == 0)
    return NaturalChain(chain.h + seen * rng.normal(size=(d, nodes)), chain.J + seen * np.eye(d)[:, :, None], chain.K)
