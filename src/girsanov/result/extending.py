"""`post.update`: a posterior extended by later observations, of which only the end of the old path is inferred anew.

The old sites on nodes before some node s are kept. Together they are a message f(x_s), which is Gaussian, and the
nodes from s on are a problem of their own whose initial state has the law f. With q(x_{<s} | x_s) kept, the bound of
the whole path changes by as much as that of this problem does, up to second order in the change of q(x_s). So s is
chosen where that change vanishes: the influence of the old end on an earlier state is the product of the gains
C_mᵀ S_{m+1}⁻¹ between them. What is left of the change is checked, and s moves back where it is too large.
"""

import dataclasses
import time
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from girsanov._core.compile import compiled
from girsanov._core.precision import frozen, to_numpy
from girsanov.chain.linear_sde import Linearisation
from girsanov.chain.moments import Moments
from girsanov.chain.natural import NaturalChain
from girsanov.data.grid import coarsen
from girsanov.data.on_grid import SeriesOnGrid
from girsanov.inference.conditioning import rounding_loss
from girsanov.inference.cvi_dp import COARSE_ITERATIONS, COARSE_TOLERANCE, CVIDP, discrete_algorithm
from girsanov.inference.levels import prolong
from girsanov.inference.loop import Run
from girsanov.inference.many import capacity
from girsanov.inference.objective import Posed, compose
from girsanov.inference.sites import DataSites, DenseSites, Sites
from girsanov.inference.status import Status
from girsanov.model.diffusions import StateDiffusion
from girsanov.model.model import GaussianState, Model
from girsanov.result.making import trimmed
from girsanov.result.posterior import History, Posterior

_FORGOTTEN = 1e-9  # influence of the old end, in standard deviations, below which a state is not inferred anew
_FEWEST = 8  # nodes of the old path in a window
_COMPOSED = 1e-3  # largest difference of natural parameters from those of the sites, as a share of their size
_RATIOS = (8, 2)  # steps of the coarser grids, in steps of the window's
_SOLVED = 1e-2  # share of the tolerance below which a start is the solution
_BLOCK = 256  # nodes at a time in the search for the first node

_compose = compiled(compose)


class Window(NamedTuple):
    """The end of a path as a problem of its own.

    Attributes:
        first: the node s of the path with which it begins.
        problem: the problem, padded; its model has the message as initial state.
        marginal: the old posterior on the old nodes from s on, as a chain; None at s = 0, where it is the whole chain.
        start: the chain from which inference starts.
        sites: the sites that it is composed of.
        data: the nodes and observations of the problem without padding.
        old: the number of its steps that are old ones.
    """

    first: int
    problem: Posed
    marginal: NaturalChain | None
    start: NaturalChain
    sites: Sites
    data: SeriesOnGrid
    old: int


def extended(post: Posterior, data: SeriesOnGrid, series: Any, method: CVIDP) -> Posterior | None:
    """Return the posterior of all data, with the old path and new nodes; None where only a new run can tell it.

    Args:
        post: the old posterior, in discrete time and with its natural parameters.
        data: all observations on the old nodes and the new ones, without padding.
        series: the same as a series.
        method: the settings.
    """
    begun, old = time.perf_counter(), len(post.times)
    back = _memory(post.moments)
    passes = nodes = 0
    while True:
        window = _window(post, data, max(old - 1 - max(back, 1), 0))
        if window is None:
            back *= 2
            continue
        if not _composes(post, window):
            return None
        size = len(data.times) - window.first
        result, work = _solved(window, method)
        passes, nodes = passes + result.passes, nodes + work
        if result.root is not None or result.status is Status.BAD_START:
            return None
        result = trimmed(result, size, int((data.node >= window.first).sum()))
        if window.first == 0 or _change(post.moments, result.moments, window.first) ** 2 < method.tolerance:
            break
        back *= 2
    before = _old_bound(post, data, window, method)
    nodes += old - window.first
    trace = result.trace
    history = History(trace["elbo"], trace["step"], trace["decrement"], passes=passes, node_passes=nodes)
    joined = _joined(post, data, window, result)
    settled = post.converged or window.first == 0
    return dataclasses.replace(
        post,
        series=series,
        times=frozen(np.array(data.times)),
        node=frozen(np.array(data.node)),
        **joined,
        elbo=result.elbo if window.first == 0 else post.elbo + result.elbo - before,
        history=history,
        status=result.status.name.lower() if settled else post.status,
        message=result.message if settled else post.message,
        seconds=time.perf_counter() - begun,
        quadrature_error=None,
    )


def _solved(window: Window, method: CVIDP) -> tuple[Run, int]:
    """Solve the problem of a window; return the run and the number of nodes that all passes together went over.

    One pass is enough where the start is the solution, as for linear drifts. Otherwise coarser grids come first.
    """
    algorithm, size = discrete_algorithm(method), len(window.data.times)
    look = method.run(algorithm, window.problem, window.start, max_iterations=0)
    if look.status is Status.MAX_ITERATIONS and abs(look.trace["decrement"][-1]) < _SOLVED * method.tolerance:
        look = look._replace(status=Status.CONVERGED)
        if not rounding_loss(window.problem, look).asks_for_care(look.status):
            return look, look.passes * size
    work, start = look.passes * size, window.start
    sites, times = _calmed(window), window.data.times
    limits = {"tolerance": max(COARSE_TOLERANCE, method.tolerance), "max_iterations": COARSE_ITERATIONS}
    for ratio in _RATIOS:
        grid = coarsen(window.data.grid, ratio)
        nodes, rows = len(window.problem.data.times), len(window.problem.data.node)
        wide = window.data.on(grid, len(grid.times)).padded(nodes, rows)
        here = eqx.tree_at(lambda p: p.data, window.problem, wide)
        found = method.run(algorithm, here, to_numpy(_compose(here, prolong(sites, times, here))), **limits)
        work += found.passes * len(grid.times)
        if found.status is Status.BAD_START:
            break
        sites, times = found.sites, grid.times
        start = to_numpy(_compose(window.problem, prolong(sites, times, window.problem)))
    found = method.continue_from(window.problem, start)
    return found, work + found.passes * size


def _calmed(window: Window) -> Sites:
    """Return the sites with no drift on new steps, where that of the last old step may lead far away."""
    new = np.arange(len(window.problem.data.gaps)) < window.old
    base = jax.tree.map(lambda a: np.where(new, a, 0.0), window.sites.base)
    return Sites(base, window.sites.dense, window.sites.data)


def _memory(q: Moments) -> int:
    """Return over how many nodes the influence of the last state on earlier ones vanishes."""
    steps = q.C.shape[-1]
    share = np.eye(q.m.shape[0])
    for end in range(steps, 0, -_BLOCK):
        first = max(end - _BLOCK, 0)
        L = np.linalg.cholesky(np.moveaxis(q.S[..., first : end + 1], -1, 0))
        # The gains between states in units of their own spread, L_{m+1}⁻¹ C_m L_m⁻ᵀ, from the last to the first.
        half = np.linalg.solve(L[1:], np.moveaxis(q.C[..., first:end], -1, 0))
        for k, gain in enumerate(np.linalg.solve(L[:-1], np.swapaxes(half, 1, 2))[::-1]):
            share = gain @ share
            if np.abs(share).max() < _FORGOTTEN:
                return max(steps - end + k + 1, _FEWEST)
    return steps


def _composes(post: Posterior, window: Window) -> bool:
    """Return whether the old sites compose the old chain in the window, as those of CVI-DP do at its optimum."""
    s, ours = window.first, window.start
    inner = slice(1, len(post.times) - 1 - s)
    pairs = (
        (ours.J[..., inner], post.natural.J[..., s:][..., inner]),
        (ours.h[:, inner], post.natural.h[:, s:][:, inner]),
    )
    return all(np.abs(a - b).max(initial=0.0) <= _COMPOSED * np.abs(b).max(initial=0.0) for a, b in pairs)


def _window(post: Posterior, data: SeriesOnGrid, s: int) -> Window | None:
    """Return the problem of the nodes from s on, or None where the message there is no density."""
    inside = data.node >= s
    size, count = len(data.times) - s, int(inside.sum())
    errors = None if data.errors is None else data.errors[inside]
    short = SeriesOnGrid(
        data.times[s:],
        data.gaps[s:],
        np.asarray(size),
        data.node[inside] - s,
        data.y[inside],
        data.observed[inside],
        errors,
    )
    cut = short.padded(capacity(size + 1), capacity(count, 4))
    sites = _sites(post, data, s, cut)
    if s == 0:
        problem = _posed(post.model, cut, post)
        return Window(0, problem, None, to_numpy(_compose(problem, sites)), sites, short, len(post.times) - 1 - s)
    d = post.model.dim
    unit = _posed(_starting_from(post.model, np.zeros(d), np.eye(d)), cut, post)
    chain = to_numpy(_compose(unit, sites))
    marginal = _marginal(post, s)
    # The marginal at s is the message times what the factors of the window say of x_s.
    f_h, f_J = marginal.h[:, 0] - chain.h[:, 0], marginal.J[..., 0] - chain.J[..., 0] + np.eye(d)
    f_J = 0.5 * (f_J + f_J.T)
    if not (np.isfinite(f_J).all() and np.linalg.eigvalsh(f_J)[0] > 0.0):
        return None
    cov = np.linalg.inv(f_J)
    mean = cov @ f_h
    h, J = np.array(chain.h), np.array(chain.J)
    h[:, 0], J[..., 0] = marginal.h[:, 0], marginal.J[..., 0]
    model = _starting_from(post.model, mean, 0.5 * (cov + cov.T))
    return Window(
        s,
        _posed(model, cut, post),
        marginal,
        NaturalChain(h, J, np.array(chain.K)),
        sites,
        short,
        len(post.times) - 1 - s,
    )


def _posed(model: Model, data: SeriesOnGrid, post: Posterior) -> Posed:
    rule = CVIDP().rule(model.dim) if post.rule is None else post.rule
    return Posed(model, data, rule)


def _starting_from(model: Model, mean: np.ndarray, cov: np.ndarray) -> Model:
    """Return the model with w ~ N(mean, cov) at its first node, where w has constant noise."""
    if isinstance(model.noise, StateDiffusion):
        slope = np.asarray(model.noise.rates(mean)[1])
        mean, cov = np.asarray(model.noise.to_state(mean)), cov * slope[:, None] * slope[None, :]
    return eqx.tree_at(lambda m: m.initial, model, GaussianState(mean, cov))


def _sites(post: Posterior, data: SeriesOnGrid, s: int, cut: SeriesOnGrid) -> Sites:
    """Return the old sites from node s on, with the last step's drift and rough data sites where all is new."""
    M, n = len(cut.gaps), len(cut.node)
    new, d = len(post.times) - 1 - s, post.model.dim
    base, dense, target = post.target.base, post.target.dense, post.target.data
    A, b = np.zeros((d, d, M)), np.zeros((d, M))
    ell, Gamma = np.zeros((d, M)), np.zeros((d, d, M))
    A[..., :new], b[:, :new] = base.A[..., s:], base.b[:, s:]
    ell[:, :new], Gamma[..., :new] = dense.potential[:, s:], dense.precision[..., s:]
    if new:
        steps = slice(new, int(cut.size) - 1)
        A[..., steps], b[:, steps] = A[..., new - 1, None], b[:, new - 1, None]
    seen = post.node >= s
    kept, fresh = int(seen.sum()), int((data.node >= len(post.times)).sum())
    lam, Lam = np.zeros((d, n)), np.zeros((d, d, n))
    lam[:, :kept], Lam[..., :kept] = target.potential[:, seen], target.precision[..., seen]
    last = np.broadcast_to(np.asarray(post.moments.m)[:, -1], (fresh, d))
    rough = _rough(post.model, cut.rows[kept : kept + fresh], last)
    lam[:, kept : kept + fresh], Lam[..., kept : kept + fresh] = (np.asarray(a) for a in rough)
    return Sites(Linearisation(A, b), DenseSites(ell, Gamma), DataSites(lam, Lam))


@compiled
def _rough(model: Model, rows: Any, at: Any):
    return model.latent.observation.starting_sites(jax.tree.map(jax.numpy.asarray, rows), at)


def _marginal(post: Posterior, s: int) -> NaturalChain:
    """Return the law of the old states from node s on as a chain, in which the states before s are integrated out."""
    m, S, C = post.moments.m, post.moments.S, post.moments.C
    h, J = np.array(post.natural.h[:, s:]), np.array(post.natural.J[..., s:])
    T = np.linalg.solve(S[..., s], C[..., s].T).T
    W = np.linalg.inv(S[..., s + 1] - T @ C[..., s].T)
    J[..., 0] = np.linalg.inv(S[..., s]) + T.T @ W @ T
    h[:, 0] = J[..., 0] @ m[:, s] - T.T @ W @ m[:, s + 1]
    return NaturalChain(h, J, np.array(post.natural.K[..., s:]))


def _change(old: Moments, new: Moments, s: int) -> float:
    """Return by how much the state at s has changed, in standard deviations and shares of variances.

    Half its square is what the bound of the path before s loses, in nats; runs that converge change it by as much.
    """
    root = np.linalg.cholesky(old.S[..., s])
    away = np.linalg.solve(root, new.m[:, 0] - old.m[:, s])
    wider = np.linalg.solve(root, np.linalg.solve(root, new.S[..., 0] - old.S[..., s]).T)
    return float(max(np.abs(away).max(), np.abs(wider).max()))


def _old_bound(post: Posterior, data: SeriesOnGrid, window: Window, method: CVIDP) -> float:
    """Return the bound of the old data in the window at the old posterior."""
    if window.marginal is None:
        return 0.0
    s, old = window.first, len(post.times)
    inside = (data.node >= s) & (data.node < old)
    errors = None if data.errors is None else data.errors[inside]
    nodes, rows = len(window.problem.data.times), len(window.problem.data.node)
    cut = SeriesOnGrid(
        data.times[s:old],
        data.gaps[s : old - 1],
        np.asarray(old - s),
        data.node[inside] - s,
        data.y[inside],
        data.observed[inside],
        errors,
    ).padded(nodes, rows)
    problem = eqx.tree_at(lambda p: p.data, window.problem, cut)
    start = _wide(window.marginal, nodes)
    return method.run(discrete_algorithm(method), problem, start, max_iterations=0).elbo


def _wide(chain: NaturalChain, N: int) -> NaturalChain:
    """Return a chain with independent standard normal states on the padding."""
    d, size = chain.h.shape
    eye = np.broadcast_to(np.eye(d)[..., None], (d, d, N - size))
    pad = ((0, 0), (0, 0), (0, N - 1 - chain.K.shape[-1]))
    return NaturalChain(
        np.pad(chain.h, ((0, 0), (0, N - size))), np.concatenate([chain.J, eye], -1), np.pad(chain.K, pad)
    )


def _joined(post: Posterior, data: SeriesOnGrid, window: Window, result: Run) -> dict[str, Any]:
    """Return moments, natural parameters and sites of the whole path."""
    s = window.first
    if s == 0:
        return {"moments": result.moments, "natural": result.eta, "target": result.sites}

    def join(old: Any, new: Any, count: int) -> Any:
        return jax.tree.map(lambda a, b: np.concatenate([np.asarray(a)[..., :count], b], -1), old, new)

    q, eta, old = result.moments, result.eta, post.natural
    assert window.marginal is not None
    h, J = np.array(eta.h), np.array(eta.J)
    # At s the old chain has the factors before s as well, for which the message stands in the window.
    h[:, 0] += old.h[:, s] - window.marginal.h[:, 0]
    J[..., 0] += old.J[..., s] - window.marginal.J[..., 0]
    natural = NaturalChain(join(old.h, h, s), join(old.J, J, s), join(old.K, eta.K, s))
    m = post.moments
    moments = Moments(join(m.m, q.m, s), join(m.S, q.S, s), join(m.C, q.C, s))
    sites, count = result.sites, int((post.node < s).sum())
    target = Sites(
        join(post.target.base, sites.base, s),
        join(post.target.dense, sites.dense, s),
        join(post.target.data, sites.data, count),
    )
    return {"moments": moments, "natural": natural, "target": target}
