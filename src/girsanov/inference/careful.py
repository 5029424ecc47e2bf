"""The careful algorithm: natural steps on a square-root chain, for models whose scales the fast one cannot hold.

The natural parameters of a chain lose digits where its scales differ by many orders: a tiny diffusion under a wide
state, sharp observations far from the level zero. Here q is kept as base process and sites, relative to a path x̄,
    x = x̄ + u,   u₊ = (I + ΔA)u + (x̄ + Δv − x̄₊) + √Δ L_Q ξ,   sites exp(hᵀu − ½uᵀJu),
with x̄ the mean of the current q: offsets drop out, and the chain is solved by `chain.square_root`. Two such processes
mix in closed form, as in continuous time: with weights 1 − ρ and ρ the base drifts are averaged, and
exp(−½ρ(1−ρ)Δ‖dA u + dv‖²_{Q⁻¹}) is one more site on every state but the last. A step goes from the sites of q to those
that the gradient of the bound asks for, in full or halved until the bound does not fall:
    L = Σ E log p(y|x) − KL(q₀‖p₀) − Σ_m { KL(N(0, Σ_q) ‖ N(0, ΔQ)) + ½Δ E‖f_q − f‖²_{Q⁻¹} }
with Σ_q and f_q = c + aξ the noise and the drift of q's own steps, x = m + Lξ: nothing large is subtracted there.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from girsanov._core.precision import to_numpy
from girsanov._core.types import Array
from girsanov.chain.conversion import from_roots
from girsanov.chain.linear_sde import Linearisation
from girsanov.chain.smoother import Engine
from girsanov.chain.square_root import NodeSites, RootChain, Step, divergence, solve
from girsanov.chain.transitions import Transitions
from girsanov.inference.loop import Algorithm, Carry, Limits, Record, Run, rounding, select, settle
from girsanov.inference.objective import Problem
from girsanov.inference.sites import DataSites, DenseSites, Sites
from girsanov.inference.status import Status

_GROWTH, _SHRINKAGE = 2.0, 0.5
_SMALLEST = 1e-6  # a step below this has stalled
_MAX_IDLE = 5  # steps in a row that move q and leave the bound where it is: what moves q is rounding
EPSILON = float(np.finfo(np.float64).eps)


class RelativeSites(eqx.Module):
    """Base process and sites relative to a path: all of q but the path.

    - A, v: base drift v + A u of every step.
    - h, J: dense sites per unit of time, on each state but the last.
    - g, P: data sites in the coordinates of the observation, exp(gᵀHu − ½(Hu)ᵀP(Hu)).
    """

    A: Float[Array, "M d d"]
    v: Float[Array, "M d"]
    h: Float[Array, "M d"]
    J: Float[Array, "M d d"]
    g: Float[Array, "n D"]
    P: Float[Array, "n D D"]


def mix(Q_inv: Float[Array, "d d"], old: RelativeSites, new: RelativeSites, rho) -> RelativeSites:
    """The exact geometric mixture of the two processes."""
    dA, dv = new.A - old.A, new.v - old.v
    Q_dA = Q_inv @ dA
    apart = rho * (1.0 - rho)
    blend = jax.tree.map(lambda a, b: (1.0 - rho) * a + rho * b, old, new)
    h = blend.h - apart * jnp.einsum("mji,mj->mi", Q_dA, dv)
    J = blend.J + apart * jnp.einsum("mji,mjk->mik", dA, Q_dA)
    return eqx.tree_at(lambda s: (s.h, s.J), blend, (h, J))


def moved(problem: Problem, sites: RelativeSites, u: Float[Array, "N d"]) -> RelativeSites:
    """The same process relative to the path x̄ + u."""
    z = u[problem.node] @ jnp.asarray(problem.model.emission).T

    def shift(slope, at):
        return jnp.einsum("mij,mj->mi", slope, at)

    return RelativeSites(
        sites.A,
        sites.v + shift(sites.A, u[:-1]),
        sites.h - shift(sites.J, u[:-1]),
        sites.J,
        sites.g - shift(sites.P, z),
        sites.P,
    )


def noise_roots(problem: Problem) -> Float[Array, "M d d"]:
    """√Δ L_Q of every step."""
    return jnp.sqrt(problem.gaps)[:, None, None] * jnp.linalg.cholesky(jnp.asarray(problem.model.diffusion))


def chain_of(problem: Problem, path: Float[Array, "N d"], sites: RelativeSites) -> tuple[Step, NodeSites]:
    """The linear chain and the sites on its nodes, relative to the path."""
    initial, valid = problem.model.initial_state(), problem.in_chain[1:]
    gaps, H = problem.gaps[:, None], jnp.asarray(problem.model.emission)
    eye = jnp.eye(path.shape[1])
    T = jnp.where(valid[:, None, None], eye + gaps[..., None] * sites.A, eye)
    e = jnp.where(valid[:, None], path[:-1] - path[1:] + gaps * sites.v, 0.0)
    first = jnp.linalg.cholesky(jnp.asarray(initial.cov))
    steps = Step(
        jnp.concatenate([jnp.zeros_like(T[:1]), T]),
        jnp.concatenate([(jnp.asarray(initial.mean) - path[0])[None], e]),
        jnp.concatenate([first[None], noise_roots(problem)]),
    )
    # Data sites as rows, ½‖Xu‖², where their precision is positive: a sharp observation must not swamp what else is
    # known. A negative part, of a likelihood that is not log-concave, is small and goes with the dense sites.
    size, axes = jnp.linalg.eigh(sites.P)
    axes = jnp.swapaxes(axes, 1, 2) @ H
    rows = jnp.sqrt(jnp.maximum(size, 0.0))[:, :, None] * axes
    negative = jnp.einsum("nk,nki,nkj->nij", jnp.minimum(size, 0.0), axes, axes)
    weight = jnp.where(valid, problem.gaps, 0.0)
    h = jnp.zeros_like(path).at[:-1].set(weight[:, None] * sites.h).at[problem.node].add(sites.g @ H)
    J = jnp.zeros((*path.shape, path.shape[1])).at[:-1].set(weight[:, None, None] * sites.J)
    X = jnp.zeros((path.shape[0], *rows.shape[1:])).at[problem.node].set(rows)
    return steps, NodeSites(h, J.at[problem.node].add(negative), X)


class Path(eqx.Module):
    """q, and the base drift v + A u that it was made of, relative to its mean."""

    chain: RootChain
    A: Float[Array, "M d d"]
    v: Float[Array, "M d"]


class Expected(eqx.Module):
    """What the bound needs of the drift under q, step by step, and the sites that its gradient asks for."""

    squares: Float[Array, " M"]  # E‖f_q − f‖²_{Q⁻¹}
    noise: Float[Array, " M"]  # what rounding does to Δ times that, at the worst
    A: Float[Array, "M d d"]
    v: Float[Array, "M d"]
    h: Float[Array, "M d"]
    J: Float[Array, "M d d"]


def expected_drift(problem: Problem, q: Path) -> Expected:
    """Expectations of the drift as in `expectations`, with every difference taken before it is squared.

    q's own drift is that of its base and what the sites add to it, f_q − f_B = (pull + turn u)/Δ: from q's transition
    matrix, as (T − I)/Δ, it would have the rounding error of T over Δ.
    """
    model, rule, chain = problem.model, problem.rule, q.chain
    valid, gaps = problem.in_chain[1:], problem.gaps
    # A step beyond the end of the chain is evaluated where the first one is, and does not count.
    m, L = (jnp.where(valid.reshape(-1, *(1,) * (a.ndim - 1)), a[:-1], a[0]) for a in (chain.m, chain.L))
    xi, w = jnp.asarray(rule.nodes), jnp.asarray(rule.weights)

    def at_nodes(constant, linear):  # constant + linear ξ
        return constant[:, None] + jnp.einsum("mij,jn->mni", linear, xi)

    to_unit = jnp.linalg.inv(jnp.linalg.cholesky(jnp.asarray(model.diffusion)))

    def units(g):  # in which ‖·‖²_{Q⁻¹} is a sum of squares
        return g @ to_unit.T

    f = jax.vmap(jax.vmap(model.drift, in_axes=(0, None)))(at_nodes(m, L), problem.times[:-1])
    F0 = jnp.einsum("n,mni->mi", w, f)
    F1 = jnp.einsum("n,jn,mni->mij", w, xi, f - F0[:, None])
    base, away = at_nodes(q.v, q.A @ L), at_nodes(chain.pull[1:], chain.turn[1:] @ L) / gaps[:, None, None]
    off, e = units(away + (base - f)), units(f - at_nodes(F0, F1))
    weight = (e * (off + 0.5 * e)).sum(-1)  # (f_q − f_L)ᵀQ⁻¹e − ½‖e‖²
    w1 = jnp.einsum("n,jn,mn->mj", w, xi, weight)
    second = jnp.einsum("jn,kn->jkn", xi, xi) - jnp.eye(xi.shape[0])[:, :, None]
    w2 = jnp.einsum("n,jkn,mn->mjk", w, second, weight)
    L_inv = jax.vmap(lambda l: jax.scipy.linalg.solve_triangular(l, jnp.eye(l.shape[0]), lower=True))(L)
    h, J = jnp.einsum("mji,mj->mi", L_inv, w1), -jnp.einsum("mji,mjk,mkl->mil", L_inv, w2, L_inv)
    squares = jnp.einsum("n,mn->m", w, (off**2).sum(-1))
    size = jnp.abs(chain.m[1:]) + jnp.abs(chain.m[:-1]) + gaps[:, None] * (jnp.abs(f) + jnp.abs(base)).max(1)
    noise = EPSILON * (jnp.abs(off).max(1) * (size @ jnp.abs(to_unit).T)).sum(-1)
    return Expected(squares, noise, F1 @ L_inv, F0, h, 0.5 * (J + jnp.swapaxes(J, 1, 2)))


def bound(problem: Problem, q: Path) -> tuple[Float[Array, ""], Float[Array, ""], RelativeSites]:
    """The bound at q, how large its rounding error may be, and the sites that its gradient asks for.

    The error is that of the path, whose states have sixteen digits and are compared with standard deviations.
    """
    model, valid, chain = problem.model, problem.in_chain, q.chain
    initial, H = model.initial_state(), jnp.asarray(model.emission)
    drift = expected_drift(problem, q)
    R = jnp.concatenate([jnp.linalg.cholesky(jnp.asarray(initial.cov))[None], noise_roots(problem)])
    Z = jax.vmap(lambda r, root: jax.scipy.linalg.solve_triangular(r, root, lower=True))(R, chain.root)
    divergences = 0.5 * ((Z**2).sum((1, 2)) - Z.shape[1]) - jnp.linalg.slogdet(Z)[1]
    off = jax.scipy.linalg.solve_triangular(R[0], chain.m[0] - jnp.asarray(initial.mean), lower=True)
    m, HL = chain.m[problem.node] @ H.T, H @ chain.L[problem.node]
    V = HL @ jnp.swapaxes(HL, 1, 2)
    value, g_m, g_V = jax.vmap(model.likelihood.expected)(problem.y, problem.observed, m, V)
    elbo = (
        value.sum()
        - jnp.where(valid, divergences, 0.0).sum()
        - 0.5 * off @ off
        - 0.5 * jnp.where(valid[1:], problem.gaps * drift.squares, 0.0).sum()
    )
    at_start = jnp.abs(off) @ (jnp.abs(jnp.linalg.inv(R[0])) @ (jnp.abs(chain.m[0]) + jnp.abs(initial.mean)))
    at_data = (jnp.abs(g_m) * (jnp.abs(m) + jnp.abs(problem.y))).sum()
    noise = EPSILON * (at_start + at_data) + jnp.where(valid[1:], drift.noise, 0.0).sum()
    precision = -(g_V + jnp.swapaxes(g_V, 1, 2))
    target = RelativeSites(drift.A, drift.v, drift.h, drift.J, g_m, precision)
    return elbo, noise + rounding(problem, elbo), target


def solve_sites(problem: Problem, path: Float[Array, "N d"], sites: RelativeSites) -> tuple[RootChain, Bool[Array, ""]]:
    """q of these sites, in absolute coordinates, and whether it is a density."""
    q, _, ok = solve(*chain_of(problem, path, sites))
    return eqx.tree_at(lambda q: q.m, q, q.m + path), ok


class CarefulCarry(eqx.Module):
    common: Carry  # its eta is the Path q, its sites are those that the gradient asks for
    current: RelativeSites  # of q, relative to its mean
    rho: Float[Array, ""]
    idle: Int[Array, ""]


class Careful(Algorithm):
    """Natural steps, each in full or halved until the bound does not fall."""

    engine: Engine = eqx.field(static=True, default="auto")

    def common(self, carry: CarefulCarry) -> Carry:
        return carry.common

    def blank_start(self, problem: Problem) -> Path:
        d, N = problem.model.dim, len(problem.times)
        zero, eye = np.zeros((N, d)), np.broadcast_to(np.eye(d), (N, d, d))
        return Path(RootChain(zero, eye, eye, eye, eye, zero), eye[1:], zero[1:])

    def begin(self, problem: Problem, start: Path, given: Bool[Array, ""]) -> CarefulCarry:
        """A chain to linearise the drift at, in a pass that only looks; or a rough reading of the data."""
        N, d, likelihood = problem.times.shape[0], problem.model.dim, problem.model.likelihood
        path = jnp.broadcast_to(jnp.asarray(problem.model.initial_state().mean), (N, d))
        start = eqx.tree_at(lambda q: q.chain.m, start, jnp.where(given, start.chain.m, path))
        z, precision = jax.vmap(likelihood.start)(problem.y)
        precision = jnp.where(problem.observed, precision, 0.0)
        e = jnp.where(problem.observed, z, 0.0) - path[problem.node] @ jnp.asarray(problem.model.emission).T
        flat, square = jnp.zeros((N - 1, d)), jnp.zeros((N - 1, d, d))
        rough = RelativeSites(square, flat, flat, square, precision * e, jax.vmap(jnp.diag)(precision))
        iteration, running = jnp.where(given, -2, -1), jnp.asarray(int(Status.RUNNING))
        common = Carry(start, jnp.asarray(-jnp.inf), None, rough, iteration, running)
        return CarefulCarry(common, rough, jnp.ones(()), jnp.asarray(0))

    def step(self, problem: Problem, carry: CarefulCarry, limits: Limits) -> tuple[CarefulCarry, Record]:
        at = carry.common
        look, first = at.iteration == -2, at.iteration < 0
        Q_inv = jnp.linalg.inv(jnp.asarray(problem.model.diffusion))
        proposal = mix(Q_inv, carry.current, at.sites, jnp.where(first, 0.0, carry.rho))
        path = at.eta.chain.m
        chain, ok = solve_sites(problem, path, proposal)
        proposal = moved(problem, proposal, chain.m - path)
        q, ok = select(look, at.eta, Path(chain, proposal.A, proposal.v)), ok | look
        elbo, noise, target = bound(problem, q)
        ok = ok & jnp.isfinite(elbo)
        rise = elbo - at.elbo
        accept = ok & (first | (rise >= -noise))
        change = jnp.where(problem.in_chain, divergence(q.chain, at.eta.chain), 0.0).sum() / carry.rho**2
        level = jnp.abs(rise) < jnp.maximum(limits.tolerance, noise)
        converged = ~first & level & (jnp.abs(change) < limits.tolerance)
        iteration = at.iteration + accept
        rho = jnp.where(accept, jnp.minimum(1.0, _GROWTH * carry.rho), _SHRINKAGE * carry.rho)
        rho = jnp.where(first, 1.0, rho)
        idle = jnp.where(accept & ~first & level, carry.idle + 1, jnp.where(accept, 0, carry.idle))
        stuck = (rho < _SMALLEST) | ((idle >= _MAX_IDLE) & ~converged)
        failed = jnp.where(stuck, int(Status.STALLED), int(Status.RUNNING))
        status = jnp.where(first, jnp.where(accept, at.status, int(Status.BAD_START)), failed)
        status = settle(status, iteration, accept, converged, limits)
        new = q, jnp.where(look, -jnp.inf, elbo), target, proposal
        q, elbo, target, current = select(accept, new, (at.eta, at.elbo, at.sites, carry.current))
        common = Carry(q, elbo, None, target, iteration, status)
        return CarefulCarry(common, select(look, target, current), rho, idle), Record(
            accept & ~look, elbo, carry.rho, jnp.abs(change)
        )


def as_chain(problem: Problem, result: Run) -> Run:
    """The end of a careful run in the terms of the other algorithms, with the square-root chain beside them."""
    path, sites = to_numpy(result.eta), to_numpy(result.sites)
    q = path.chain
    moments, eta = from_roots(q)
    H, m = np.asarray(problem.model.emission), q.m[:-1]
    z = q.m[problem.node] @ H.T
    b = sites.v - np.einsum("mij,mj->mi", sites.A, m)
    potential = sites.h + np.einsum("mij,mj->mi", sites.J, m)
    reading = (sites.g + np.einsum("nij,nj->ni", sites.P, z)) @ H
    parts = (sites.A, b, potential, sites.J, reading, np.swapaxes(H, 0, 1) @ sites.P @ H)
    A, b, potential, J, reading, P = (np.moveaxis(a, 0, -1) for a in parts)
    absolute = Sites(Linearisation(A, b), DenseSites(potential, J), DataSites(reading, P))
    steps = Transitions(*(np.moveaxis(a, 0, -1) for a in (q.T[1:], q.root)))
    return result._replace(eta=eta, moments=moments, sites=absolute, steps=steps, root=path)
