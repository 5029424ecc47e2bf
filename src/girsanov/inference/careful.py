"""The careful algorithm: natural-gradient steps on a square-root chain, for models with scales that lie far apart.

The natural parameters of a chain lose digits where its scales differ by many orders of magnitude, for example with a
tiny diffusion and a wide state, or with precise observations far from zero. The careful algorithm therefore stores q as
a base process and sites relative to a path x̄, the mean of the current q:
    x = x̄ + u,   u₊ = (I + ΔA)u + (x̄ + Δv − x̄₊) + √Δ L_Q ξ,   sites exp(hᵀu − ½uᵀJu).
Offsets then cancel, and `chain.square_root` solves the chain. As in continuous time, the geometric mixture of two such
processes has a closed form: with weights 1 − ρ and ρ the base drifts are averaged, and
exp(−½ρ(1−ρ)Δ‖dA u + dv‖²_{Q⁻¹}) is one more site on every state but the last. A step goes from the sites of q towards
the sites given by the gradient of the bound. It is taken in full, or halved until the bound does not fall. The bound is
    L = Σ E log p(y|x) − KL(q₀‖p₀) − Σ_m { KL(N(0, Σ_q) ‖ N(0, ΔQ)) + ½Δ E‖f_q − f‖²_{Q⁻¹} }
with Σ_q and f_q = c + aξ the noise and the drift of q's own steps, and x = m + Lξ. No large numbers are subtracted
from each other in this form.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from girsanov._core.precision import to_numpy
from girsanov._core.special import EPSILON
from girsanov._core.types import Array
from girsanov.chain.conversion import from_roots
from girsanov.chain.linear_sde import Linearisation
from girsanov.chain.smoother import Engine
from girsanov.chain.square_root import NodeSites, RootChain, Step, divergence, solve
from girsanov.chain.transitions import Transitions
from girsanov.inference.loop import Algorithm, Carry, Limits, Record, Run, rounding, select, settle
from girsanov.inference.objective import Posed
from girsanov.inference.sites import DataSites, DenseSites, Sites, mixing_sites
from girsanov.inference.status import Status

_GROWTH, _SHRINKAGE = 2.0, 0.5
_SMALLEST = 1e-6  # the run has stalled when its step size falls below this
_MAX_IDLE = 5  # after this many steps in a row that do not change the bound, only rounding still moves q


class RelativeSites(eqx.Module):
    """The base process and the sites of q, relative to a path x̄ with x = x̄ + u.

    Attributes:
        A, v: the base drift v + A u of every step.
        h, J: potential and precision of the dense sites, per unit of time, on each state but the last.
        g, P: potential and precision of the data sites exp(gᵀHu − ½(Hu)ᵀP(Hu)), in coordinates of the observation.
    """

    A: Float[Array, "M d d"]
    v: Float[Array, "M d"]
    h: Float[Array, "M d"]
    J: Float[Array, "M d d"]
    g: Float[Array, "n D"]
    P: Float[Array, "n D D"]


def mix(Q_inv: Float[Array, "d d"], old: RelativeSites, new: RelativeSites, rho) -> RelativeSites:
    """Return the exact geometric mixture of two processes, with weights 1 − ρ for `old` and ρ for `new`."""
    dA, dv = (jnp.moveaxis(b - a, 0, -1) for a, b in ((old.A, new.A), (old.v, new.v)))
    apart = mixing_sites(Q_inv, dA, dv, rho)
    blend = jax.tree.map(lambda a, b: (1.0 - rho) * a + rho * b, old, new)
    h, J = blend.h + jnp.moveaxis(apart.potential, -1, 0), blend.J + jnp.moveaxis(apart.precision, -1, 0)
    return eqx.tree_at(lambda s: (s.h, s.J), blend, (h, J))


def moved(problem: Posed, sites: RelativeSites, u: Float[Array, "N d"]) -> RelativeSites:
    """Rewrite sites that are given relative to x̄ as sites relative to the path x̄ + u; the process does not change."""
    z = problem.model.observation.turned(u[problem.data.node])

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


def chain_of(problem: Posed, path: Float[Array, "N d"], sites: RelativeSites) -> tuple[Step, NodeSites]:
    """Return the linear chain of the base process and the sites on its nodes, both relative to the path."""
    initial, valid = problem.model.initial_state(), problem.data.in_chain[1:]
    gaps, observation = problem.data.gaps[:, None], problem.model.observation
    eye = jnp.eye(path.shape[1])
    T = jnp.where(valid[:, None, None], eye + gaps[..., None] * sites.A, eye)
    e = jnp.where(valid[:, None], path[:-1] - path[1:] + gaps * sites.v, 0.0)
    first = jnp.linalg.cholesky(jnp.asarray(initial.cov))
    steps = Step(
        jnp.concatenate([jnp.zeros_like(T[:1]), T]),
        jnp.concatenate([(jnp.asarray(initial.mean) - path[0])[None], e]),
        jnp.concatenate([first[None], problem.model.noise.step_roots(problem.data.gaps)]),
    )
    # The positive part of the data sites is kept as rows X, ½‖Xu‖², so that a precise observation does not swallow the
    # digits of the other sites. The negative part, which comes from a likelihood that is not log-concave, is small and
    # is added to the dense sites.
    size, axes = jnp.linalg.eigh(sites.P)
    axes = observation.lift(jnp.swapaxes(axes, 1, 2))
    rows = jnp.sqrt(jnp.maximum(size, 0.0))[:, :, None] * axes
    negative = jnp.einsum("nk,nki,nkj->nij", jnp.minimum(size, 0.0), axes, axes)
    weight = jnp.where(valid, problem.data.gaps, 0.0)
    h = jnp.zeros_like(path).at[:-1].set(weight[:, None] * sites.h).at[problem.data.node].add(observation.lift(sites.g))
    J = jnp.zeros((*path.shape, path.shape[1])).at[:-1].set(weight[:, None, None] * sites.J)
    X = jnp.zeros((path.shape[0], *rows.shape[1:])).at[problem.data.node].set(rows)
    return steps, NodeSites(h, J.at[problem.data.node].add(negative), X)


class Path(eqx.Module):
    """q in square-root form, with its base drift v + A u relative to the mean of q."""

    chain: RootChain
    A: Float[Array, "M d d"]
    v: Float[Array, "M d"]


class Expected(eqx.Module):
    """Expectations of the drift under q that the bound needs, for every step, and the sites given by its gradient.

    Attributes:
        squares: E‖f_q − f‖²_{Q⁻¹}.
        noise: an upper limit of the rounding error of Δ·squares.
        A, v: the new base drift v + A u.
        h, J: potential and precision of the new dense sites, per unit of time.
    """

    squares: Float[Array, " M"]
    noise: Float[Array, " M"]
    A: Float[Array, "M d d"]
    v: Float[Array, "M d"]
    h: Float[Array, "M d"]
    J: Float[Array, "M d d"]


def expected_drift(problem: Posed, q: Path) -> Expected:
    """Compute the expectations of the drift as in `expectations`, but take every difference before it is squared.

    q's own drift is the base drift plus the contribution of the sites, f_q − f_B = (pull + turn u)/Δ. Computed as
    (T − I)/Δ from q's transition matrix T, it would carry the rounding error of T divided by Δ.
    """
    model, rule, chain = problem.model, problem.rule, q.chain
    valid, gaps = problem.data.in_chain[1:], problem.data.gaps
    # A step on the padding is evaluated at the state of the first node; its value is not used.
    m, L = (jnp.where(valid.reshape(-1, *(1,) * (a.ndim - 1)), a[:-1], a[0]) for a in (chain.m, chain.L))
    xi, w = jnp.asarray(rule.nodes), jnp.asarray(rule.weights)

    def at_nodes(constant, linear):  # constant + linear ξ
        return constant[:, None] + jnp.einsum("mij,jn->mni", linear, xi)

    to_unit = model.noise.inverse_root

    def units(g):  # scales g so that ‖g‖²_{Q⁻¹} is the sum of squares of the result
        return g @ to_unit.T

    over_nodes = jax.vmap(model.drift, in_axes=(0, None))
    f = jax.vmap(over_nodes, in_axes=(0, -1))(at_nodes(m, L), problem.data.at_nodes[:-1])
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


def bound(problem: Posed, q: Path) -> tuple[Float[Array, ""], Float[Array, ""], RelativeSites]:
    """Return the bound at q, an estimate of its rounding error, and the sites given by its gradient.

    The estimate is dominated by the path: its states have sixteen digits, and they enter relative to their standard
    deviations.
    """
    model, valid, chain = problem.model, problem.data.in_chain, q.chain
    initial, observation = model.initial_state(), model.observation
    drift = expected_drift(problem, q)
    R = jnp.concatenate(
        [jnp.linalg.cholesky(jnp.asarray(initial.cov))[None], model.noise.step_roots(problem.data.gaps)]
    )
    Z = jax.vmap(lambda r, root: jax.scipy.linalg.solve_triangular(r, root, lower=True))(R, chain.root)
    divergences = 0.5 * ((Z**2).sum((1, 2)) - Z.shape[1]) - jnp.linalg.slogdet(Z)[1]
    off = jax.scipy.linalg.solve_triangular(R[0], chain.m[0] - jnp.asarray(initial.mean), lower=True)
    m = observation.project(chain.m[problem.data.node])
    HL = observation.turned(jnp.swapaxes(chain.L, 1, 2)[problem.data.node])
    V = jnp.swapaxes(HL, 1, 2) @ HL
    value, g_m, g_V = observation.gradients(problem.data.rows, m, V, problem.rule)
    elbo = (
        value.sum()
        - jnp.where(valid, divergences, 0.0).sum()
        - 0.5 * off @ off
        - 0.5 * jnp.where(valid[1:], problem.data.gaps * drift.squares, 0.0).sum()
    )
    at_start = jnp.abs(off) @ (jnp.abs(jnp.linalg.inv(R[0])) @ (jnp.abs(chain.m[0]) + jnp.abs(initial.mean)))
    reach = jnp.abs(m) + jnp.abs(problem.data.y) if observation.is_linear else jnp.abs(m)
    at_data = (jnp.abs(g_m) * reach).sum()
    noise = EPSILON * (at_start + at_data) + jnp.where(valid[1:], drift.noise, 0.0).sum()
    precision = -(g_V + jnp.swapaxes(g_V, 1, 2))
    target = RelativeSites(drift.A, drift.v, drift.h, drift.J, g_m, precision)
    return elbo, noise + rounding(problem, elbo), target


def solve_sites(problem: Posed, path: Float[Array, "N d"], sites: RelativeSites) -> tuple[RootChain, Bool[Array, ""]]:
    """Return the q that these sites define, in absolute coordinates, and whether it is a probability density."""
    q, _, ok = solve(*chain_of(problem, path, sites))
    return eqx.tree_at(lambda q: q.m, q, q.m + path), ok


class CarefulCarry(eqx.Module):
    """The state of the careful algorithm between two passes.

    Attributes:
        common: the common part; its `eta` is the `Path` of q, its `sites` are those given by the gradient at q.
        current: the sites of q, relative to its mean.
        rho: the step size of the next trial.
        idle: the number of steps in a row that did not change the bound.
    """

    common: Carry
    current: RelativeSites
    rho: Float[Array, ""]
    idle: Int[Array, ""]


class Careful(Algorithm):
    """Natural-gradient steps; a step that lowers the bound is halved until the bound does not fall."""

    engine: Engine = eqx.field(static=True, default="auto")

    def common(self, carry: CarefulCarry) -> Carry:
        return carry.common

    def blank_start(self, problem: Posed) -> Path:
        d, N = problem.model.dim, len(problem.data.times)
        zero, eye = np.zeros((N, d)), np.broadcast_to(np.eye(d), (N, d, d))
        return Path(RootChain(zero, eye, eye, eye, eye, zero), eye[1:], zero[1:])

    def begin(self, problem: Posed, start: Path, given: Bool[Array, ""]) -> CarefulCarry:
        """Start from a given q, at which the first pass linearises the drift without a step, or from the data alone."""
        N, d, observation = problem.data.times.shape[0], problem.model.dim, problem.model.observation
        path = jnp.broadcast_to(jnp.asarray(problem.model.initial_state().mean), (N, d))
        start = eqx.tree_at(lambda q: q.chain.m, start, jnp.where(given, start.chain.m, path))
        g, P = observation.relative_sites(problem.data.rows, path[problem.data.node])
        flat, square = jnp.zeros((N - 1, d)), jnp.zeros((N - 1, d, d))
        rough = RelativeSites(square, flat, flat, square, g, P)
        iteration, running = jnp.where(given, -2, -1), jnp.asarray(int(Status.RUNNING))
        common = Carry(start, jnp.asarray(-jnp.inf), None, rough, iteration, running)
        return CarefulCarry(common, rough, jnp.ones(()), jnp.asarray(0))

    def step(self, problem: Posed, carry: CarefulCarry, limits: Limits) -> tuple[CarefulCarry, Record]:
        at = carry.common
        look, first = at.iteration == -2, at.iteration < 0
        proposal = mix(problem.model.noise.precision, carry.current, at.sites, jnp.where(first, 0.0, carry.rho))
        path = at.eta.chain.m
        chain, ok = solve_sites(problem, path, proposal)
        proposal = moved(problem, proposal, chain.m - path)
        q, ok = select(look, at.eta, Path(chain, proposal.A, proposal.v)), ok | look
        elbo, noise, target = bound(problem, q)
        ok = ok & jnp.isfinite(elbo)
        rise = elbo - at.elbo
        accept = ok & (first | (rise >= -noise))
        change = jnp.where(problem.data.in_chain, divergence(q.chain, at.eta.chain), 0.0).sum() / carry.rho**2
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


def as_chain(problem: Posed, result: Run) -> Run:
    """Convert the result of a careful run to natural parameters, moments and sites in absolute coordinates.

    The square-root chain itself is kept in `root`, and its transitions in `steps`.
    """
    path, sites = to_numpy(result.eta), to_numpy(result.sites)
    q = path.chain
    moments, eta = from_roots(q)
    observation, m = problem.model.observation, q.m[:-1]
    z = observation.turned(q.m[problem.data.node])
    b = sites.v - np.einsum("mij,mj->mi", sites.A, m)
    potential = sites.h + np.einsum("mij,mj->mi", sites.J, m)
    reading = observation.lift(sites.g + np.einsum("nij,nj->ni", sites.P, z))
    P = observation.lift(np.swapaxes(observation.lift(sites.P), 1, 2))  # HᵀPH
    parts = (sites.A, b, potential, sites.J, reading, P)
    A, b, potential, J, reading, P = (np.moveaxis(a, 0, -1) for a in parts)
    absolute = Sites(Linearisation(A, b), DenseSites(potential, J), DataSites(reading, P))
    steps = Transitions(*(np.moveaxis(a, 0, -1) for a in (q.T[1:], q.root)))
    return result._replace(eta=eta, moments=moments, sites=absolute, steps=steps, root=path)
