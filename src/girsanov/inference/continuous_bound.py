"""The bound of CVI-DP in continuous time: exact transitions of a linear base SDE, sites per unit of time, Girsanov.

q is a linear base SDE p_B, dx = (A x + b) dt + L dβ, with (A, b) given at the nodes and linear in time between them. It
is reweighted by data sites and by sites per unit of time, of which each end of an interval has half the interval's
weight. The geometric mixture of two linear SDEs with the same diffusion has a closed form: (dP₁)^{1−ρ}(dP₂)^ρ is
proportional to the SDE with drift f̄ = (1−ρ)f₁ + ρf₂ reweighted by exp(−½ρ(1−ρ)∫‖f₁ − f₂‖²_{Q⁻¹}dt), so a damped step
needs sites on single states only. The bound is
    L = Σ E log p(y|x) − KL(q‖p_B) + ∫ E[(f_q − f_B)ᵀQ⁻¹e − ½‖e‖²_{Q⁻¹}] dt,   e = f − f_B.
The chain gives its second term exactly; the integral is computed by Simpson's rule. Close to a precise observation q's
own drift f_q is large in a layer narrower than an interval, but the state varies as little there: with f_q taken at the
ends of the interval, E[(f_q − f_B)ᵀQ⁻¹e] stays bounded and smooth. At the optimum f_B is the linearised drift at the
nodes, where the cross term vanishes. Between the nodes it does not vanish, so the midpoints are needed too.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from girsanov._core.types import Array
from girsanov.chain import blocks
from girsanov.chain.blocks import inverse, matmul, matvec
from girsanov.chain.conversion import linear_chain
from girsanov.chain.linear_sde import LEFT, RIGHT, Linearisation, Transition, after, half_transitions
from girsanov.chain.messages import Message, back, moved, reweight, reweighted, tilt, whitened
from girsanov.chain.moments import Moments, expectations
from girsanov.chain.natural import NaturalChain, inner
from girsanov.chain.transitions import Transitions
from girsanov.inference.expectations import NodeSums, at_nodes, evaluate_drift, node_sums, site_gradient, to_site
from girsanov.inference.objective import Posed, data_expectations
from girsanov.inference.sites import DataSites, DenseSites, Sites, mixing_sites


class ContinuousSites(eqx.Module):
    """The parts of q in continuous time.

    Attributes:
        base: the base drift A x + b at every node.
        left, right: dense sites per unit of time at the left and the right end of every interval.
        data: the data sites.
    """

    base: Linearisation
    left: DenseSites
    right: DenseSites
    data: DataSites


def compose_continuous(problem: Posed, sites: ContinuousSites, transition: Transition) -> NaturalChain:
    """Return the natural parameters of q at the nodes, from the exact transitions of the base and all sites."""
    inside = problem.data.in_chain
    initial = problem.model.initial_state()
    T, c, W = transition.Phi, transition.c, jnp.where(inside[1:], inverse(transition.Sigma)[0], 0.0)
    chain = linear_chain(T, c, W, jnp.asarray(initial.mean), inverse(jnp.asarray(initial.cov))[0])
    at_nodes = _on_nodes(problem, sites)
    J = chain.J + at_nodes.J + ~inside * blocks.eye_like(chain.J)
    return NaturalChain(chain.h + at_nodes.h, J, chain.K)


def _on_nodes(problem: Posed, sites: ContinuousSites) -> Message:
    """Return the sum of all sites on every node; dense sites have the weight of half an interval."""
    d, N = problem.model.dim, problem.data.times.shape[0]
    half = 0.5 * jnp.where(problem.data.in_chain[1:], problem.data.gaps, 0.0)
    h, J = jnp.zeros((d, N)), jnp.zeros((d, d, N))
    h = h.at[:, :-1].add(half * sites.left.potential).at[:, 1:].add(half * sites.right.potential)
    J = J.at[..., :-1].add(half * sites.left.precision).at[..., 1:].add(half * sites.right.precision)
    h = h.at[:, problem.data.node].add(sites.data.potential)
    return Message(h, J.at[..., problem.data.node].add(sites.data.precision))


def mix(Q_inv: Float[Array, "d d"], old: ContinuousSites, new: ContinuousSites, rho) -> ContinuousSites:
    """Return the exact geometric mixture of two processes, with weights 1 − ρ for `old` and ρ for `new`."""

    def blend(a, b):
        return (1.0 - rho) * a + rho * b

    def apart_at(a: Linearisation, b: Linearisation) -> DenseSites:
        return mixing_sites(Q_inv, b.A - a.A, b.b - a.b, rho)

    at_nodes = apart_at(old.base, new.base)
    before, after = old.base.before, new.base.before
    at_ends = at_nodes if before is None or after is None else apart_at(before, after)

    def dense(a: DenseSites, b: DenseSites, apart: DenseSites, end: slice) -> DenseSites:
        return DenseSites(
            blend(a.potential, b.potential) + apart.potential[..., end],
            blend(a.precision, b.precision) + apart.precision[..., end],
        )

    return ContinuousSites(
        jax.tree.map(blend, old.base, new.base),
        dense(old.left, new.left, at_nodes, LEFT),
        dense(old.right, new.right, at_ends, RIGHT),
        DataSites(blend(old.data.potential, new.data.potential), blend(old.data.precision, new.data.precision)),
    )


class _End(eqx.Module):
    """A point of every interval: the state x = m + Lξ, q's drift f_q = c + aξ, and sums over the quadrature nodes."""

    m: Float[Array, "d M"]
    L: Float[Array, "d d M"]
    c: Float[Array, "d M"]
    a: Float[Array, "d d M"]
    sums: NodeSums

    def __getitem__(self, lanes: slice) -> "_End":
        return jax.tree.map(lambda x: x[..., lanes], self)


def _site(end: _End, Q_inv, base: Linearisation) -> DenseSites:
    """Return the site given by the μ-gradient of E[(f_q − f_B)ᵀQ⁻¹e − ½‖e‖²], with f_q and the base held fixed."""
    v0, v1 = matvec(base.A, end.m) + base.b, matmul(base.A, end.L)
    w1, w2 = site_gradient(end.sums, Q_inv, end.c, end.a, v0, v1)
    return to_site(w1, w2, end.m, blocks.inverse_lower(end.L))


def _value(end: _End, Q_inv, base: Linearisation) -> Float[Array, " M"]:
    """Return E[(f_q − f_B)ᵀQ⁻¹e − ½‖e‖²_{Q⁻¹}]."""
    Qi = Q_inv[:, :, None]
    v0, v1 = matvec(base.A, end.m) + base.b, matmul(base.A, end.L)
    constant, linear = ((end.c - 0.5 * v0) * matvec(Qi, v0)).sum(0), ((end.a - 0.5 * v1) * matmul(Qi, v1)).sum((0, 1))
    return end.sums.w0 - constant - linear


def _linearised(end: _End) -> Linearisation:
    A = matmul(end.sums.F1, blocks.inverse_lower(end.L))
    return Linearisation(A, end.sums.F0 - matvec(A, end.m))


def _joined(left: Linearisation, right: Linearisation, problem: Posed) -> Linearisation:
    """Return the linearisation at all nodes, from those at the left and the right end of every interval."""
    inside = problem.data.in_chain
    base = jax.tree.map(lambda a: jnp.where(inside, a, 0.0), _along(left, right[-1:]))
    if problem.data.inputs is None:
        return base
    return _with_before(base, jax.tree.map(lambda a: jnp.where(inside, a, 0.0), _along(left[:1], right)))


def _with_before(base: Linearisation, before: Linearisation) -> Linearisation:
    return Linearisation(base.A, base.b, before)


def at_all_nodes(base: Linearisation, jumps: bool) -> Linearisation:
    """Convert a base drift given for every step to one given at every node; the last node repeats the last step's.

    If it `jumps` at nodes, it is constant over every step.
    """
    A, b = base.A, base.b
    if A.shape[-1] == 0:
        found = Linearisation(jnp.zeros((*A.shape[:-1], 1)), jnp.zeros((*b.shape[:-1], 1)))
        return _with_before(found, found) if jumps else found
    found = _along(base, base[-1:])
    return _with_before(found, _along(base[:1], base)) if jumps else found


def from_discrete(sites: Sites, jumps: bool) -> ContinuousSites:
    """Use the sites of a discretised model as sites of the SDE; per unit of time they are equal up to O(dt)."""
    return ContinuousSites(at_all_nodes(sites.base, jumps), sites.dense, sites.dense, sites.data)


def _drift(message: Message, base: Linearisation, Q: Float[Array, "d d"], valid: Bool[Array, " M"]) -> Linearisation:
    """Return q's own drift f_q = f_B + Q(h − Jx), where (h, J) is the message from everything later in time."""
    A, b = base.A - matmul(Q[:, :, None], message.J), base.b + matvec(Q[:, :, None], message.h)
    return Linearisation(jnp.where(valid, A, 0.0), jnp.where(valid, b, 0.0))


def _halfway(base: Linearisation) -> Linearisation:
    return jax.tree.map(lambda a, b: 0.5 * (a + b), base.at_left, base.at_right)


def _initial(problem: Posed) -> Transition:
    state = problem.model.initial_state()
    cov = jnp.asarray(state.cov)
    return Transition(jnp.zeros_like(cov), jnp.asarray(state.mean), cov)


def _middle(problem: Posed, q: Moments, halves: tuple, right: Message) -> tuple[Array, Array, Message]:
    """Return the moments at the middle of every interval, and the message from everything later in time."""
    valid = problem.data.in_chain[1:]
    first, second = whitened(halves[0]), whitened(halves[1])
    message = back(second, tilt(second, right))
    m, S = moved(reweighted(first, tilt(first, message)), q.m[:, :-1], q.S[..., :-1])
    return jnp.where(valid, m, q.m[:, :-1]), jnp.where(valid, S, q.S[..., :-1]), message


def _along(*parts):
    """Concatenate pytrees of arrays along the time axis, which is the last one."""
    return jax.tree.map(lambda *a: jnp.concatenate(a, -1), *parts)


def _ends(problem: Posed, base: Linearisation, q: Moments, middle: tuple, left: Message, right: Message):
    """Evaluate the left ends, the right ends and the middles of all intervals, one after the other in one array.

    Returns:
        The ends, and q's own drift at them.
    """
    noise, valid = problem.model.noise, problem.data.in_chain[1:]
    m, S = _along((q.m, q.S), middle[:2])
    L, N = blocks.cholesky(S), problem.data.times.shape[0]

    def at_ends(a):
        return jnp.concatenate([a[..., : N - 1], a[..., 1:N], a[..., N:]], -1)

    data = problem.data
    if data.inputs is None:  # the drift does not jump at the nodes, where one value serves both sides
        times = jnp.concatenate([data.at_nodes, data.at_middles])
        f = evaluate_drift(problem.model.drift, at_nodes(problem.rule, m, L), times)
        m, L, f = (at_ends(a) for a in (m, L, f))
    else:
        m, L, times = at_ends(m), at_ends(L), _along(data.at_nodes[:-1], data.at_ends[1:], data.at_middles)
        f = evaluate_drift(problem.model.drift, at_nodes(problem.rule, m, L), times)
    f_q = _drift(_along(left, right, middle[2]), base, jnp.asarray(noise.Q), jnp.concatenate([valid] * 3))
    c, a = matvec(f_q.A, m) + f_q.b, matmul(f_q.A, L)
    return _End(m, L, c, a, node_sums(problem.rule, noise.precision, f, at_nodes(problem.rule, c, a))), f_q


class ContinuousTrial(eqx.Module):
    """One evaluated q: its bound, moments and transitions, and the sites (`target`) given by the gradient of the bound.

    `ok` says whether q is a density with a finite bound. `lost` is the largest share of a variance that rounding may
    have changed.
    """

    sites: ContinuousSites
    eta: NaturalChain
    ok: Bool[Array, ""]
    elbo: Float[Array, ""]
    target: ContinuousSites
    moments: Moments
    steps: Transitions
    lost: Float[Array, ""]
    own: Linearisation  # q's own drift at the left and then at the right ends of all intervals


class Process(NamedTuple):
    """What `distance` compares: a process by its natural parameters, moments, and own drift at the ends."""

    eta: NaturalChain
    moments: Moments
    own: Linearisation


def distance(problem: Posed, one: Process, other: Process) -> Float[Array, ""]:
    """Return the symmetrised Kullback–Leibler divergence of two processes, in nats.

    It is ⟨η − η', μ − μ'⟩. If the noise is singular, η has entries of size Δ⁻³ and more, whose rounding errors would
    hide it; then it is ½∫(E + E')‖f_q − f_q'‖²_{Q⁺} dt by the trapezoidal rule, with that of the initial states.
    """
    if not problem.model.noise.is_singular:
        return inner(one.eta - other.eta, expectations(one.moments) - expectations(other.moments))
    dA, db = one.own.A - other.own.A, one.own.b - other.own.b
    Q_inv, valid = problem.model.noise.precision[:, :, None], problem.data.in_chain[1:]

    def square(q: Moments):
        m, S = (jnp.concatenate([a[..., LEFT], a[..., RIGHT]], -1) for a in (q.m, q.S))
        f = matvec(dA, m) + db
        return (f * matvec(Q_inv, f)).sum(0) + (matmul(Q_inv, dA) * matmul(dA, S)).sum((0, 1))

    along = 0.25 * problem.data.gaps * (square(one.moments) + square(other.moments)).reshape(2, -1)
    (m, S), (k, R) = ((q.m[:, 0], q.S[..., 0]) for q in (one.moments, other.moments))
    S_inv, R_inv = inverse(S)[0], inverse(R)[0]
    spread = ((S_inv * R).sum() + (R_inv * S).sum()) - 2.0 * len(m)
    return jnp.where(valid, along, 0.0).sum() + 0.5 * (spread + (m - k) @ (S_inv + R_inv) @ (m - k))


def followed(problem: Posed, base: Linearisation) -> Linearisation:
    """Return the base drift with the drift's own value in every direction without noise, where it is affine.

    Two processes have densities relative to each other only if they agree in these directions.
    """
    if not problem.model.noise.is_singular:
        return base
    drift, x = problem.model.drift, jnp.asarray(problem.model.initial_state().mean)
    silent = jnp.asarray(problem.model.noise.silent_projector)[:, :, None]
    inside = problem.data.in_chain

    def exact(base: Linearisation, times) -> Linearisation:
        A = jax.vmap(lambda t: jax.jacfwd(drift)(x, t), in_axes=-1, out_axes=-1)(times)
        b = jax.vmap(lambda t: drift(x, t), in_axes=-1, out_axes=-1)(times) - matvec(A, x[:, None])
        return Linearisation(
            jnp.where(inside, base.A + matmul(silent, A - base.A), base.A),
            jnp.where(inside, base.b + matvec(silent, b - base.b), base.b),
        )

    found = exact(base, problem.data.at_nodes)
    return found if base.before is None else _with_before(found, exact(base.before, problem.data.at_ends))


def envelope(problem: Posed, sites: ContinuousSites) -> Float[Array, ""]:
    """Return the bound at the sites of a converged run, for derivatives in the model's parameters.

    The sites follow the trapezoidal rule and the bound follows Simpson's, so its derivative in the sites is not quite
    zero. With the sites held fixed, the derivative in a parameter would lack the part that goes through them. The sites
    after k more steps have it up to the k-th power of a step's own derivative, which is between −½ and ½ in most
    directions; the weights below make the sum of the two remainders small there.
    """
    first = evaluate_continuous(problem, evaluate_continuous(problem, sites).target)
    return (first.elbo + 2.0 * evaluate_continuous(problem, first.target).elbo) / 3.0


def evaluate_continuous(problem: Posed, sites: ContinuousSites) -> ContinuousTrial:
    """Return the bound at these sites, and the sites given by its gradient."""
    noise, valid = problem.model.noise, problem.data.in_chain[1:]
    sites = eqx.tree_at(lambda s: s.base, sites, followed(problem, sites.base))
    ends_of_base = sites.base.at_left, sites.base.at_right
    left, right = (jax.tree.map(lambda a: jnp.where(valid, a, 0.0), end) for end in ends_of_base)
    halves = half_transitions((left.A, right.A), (left.b, right.b), jnp.asarray(noise.Q), problem.data.gaps)
    if noise.is_singular:  # without a drift, singular noise does not reach all states: padding has noise of its own
        halves = tuple(
            half._replace(Sigma=jnp.where(valid, half.Sigma, blocks.eye_like(half.Sigma))) for half in halves
        )
    transition = after(*halves)
    result = reweight(_initial(problem), transition, _on_nodes(problem, sites), valid)
    q, Q_inv, M = result.moments, noise.precision, problem.data.gaps.shape[0]
    middle = _middle(problem, q, halves, result.right)
    bases = _along(left, right, _halfway(sites.base))
    ends, own = _ends(problem, bases, q, middle, result.left, result.right)
    data, log_likelihood = data_expectations(problem, q)
    values = _value(ends, Q_inv, bases).reshape(3, M)
    integral = problem.data.gaps / 6.0 * (values[0] + values[1] + 4.0 * values[2])
    elbo = log_likelihood - result.divergence + jnp.where(valid, integral, 0.0).sum()

    both = ends[: 2 * M]
    found = _linearised(both)
    base = _joined(found[:M], found[M:], problem)
    site = _site(both, Q_inv, _along(base.at_left, base.at_right))
    site = jax.tree.map(lambda a: jnp.where(jnp.concatenate([valid, valid]), a, 0.0), site)
    at_left, at_right = (jax.tree.map(lambda a, n=n: a[..., n], site) for n in (slice(M), slice(M, None)))
    target = ContinuousSites(base, at_left, at_right, data)
    eta = compose_continuous(problem, sites, transition)
    ok = result.ok & jnp.isfinite(elbo)
    return ContinuousTrial(sites, eta, ok, elbo, target, q, result.steps, result.lost, own[: 2 * M])
