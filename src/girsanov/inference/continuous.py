"""CVI-DP in continuous time: exact transitions of the linear base, instantaneous sites, the bound by Girsanov.

q is a linear base SDE p_B, dx = (A x + b) dt + L dβ with (A, b) given at the nodes and linear in time between them,
reweighted by sites per unit of time with half an interval's weight on either end node, and by data sites. Two linear
SDEs with the same diffusion mix in closed form: (dP₁)^{1−ρ}(dP₂)^ρ is proportional to the SDE with drift
f̄ = (1−ρ)f₁ + ρf₂ reweighted by exp(−½ρ(1−ρ)∫‖f₁ − f₂‖²_{Q⁻¹}dt), so a damped step needs instantaneous sites only. The
bound is
    L = Σ E log p(y|x) − KL(q‖p_B) + ∫ E[(f_q − f_B)ᵀQ⁻¹e − ½‖e‖²_{Q⁻¹}] dt,   e = f − f_B,
its second term exact from the chain, the integral by Simpson's rule. Next to a sharp observation q's own drift f_q is
large in a layer narrower than an interval, but the state is confined as much: with f_q taken at the very ends of the
interval, E[(f_q − f_B)ᵀQ⁻¹e] stays bounded and smooth there. At the optimum f_B is the linearised drift at the nodes,
where the cross term vanishes; between them it does not, which the ends alone would not see.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from girsanov._core.types import Array
from girsanov.chain import blocks
from girsanov.chain.blocks import inverse, matmul, matvec, transpose
from girsanov.chain.conversion import linear_chain
from girsanov.chain.linear_sde import LEFT, RIGHT, Linearisation, Transition, after, half_transitions
from girsanov.chain.messages import Message, back, moved, reweight, reweighted, tilt, whitened
from girsanov.chain.moments import Moments, expectations
from girsanov.chain.natural import NaturalChain, inner
from girsanov.chain.smoother import Engine
from girsanov.chain.transitions import Transitions
from girsanov.inference.expectations import NodeSums, at_nodes, evaluate_drift, node_sums, site_gradient, to_site
from girsanov.inference.loop import Algorithm, Carry, Limits, Record, blank_carry, blank_sites, select, settle
from girsanov.inference.objective import Problem, data_expectations, starting_sites
from girsanov.inference.sites import DataSites, DenseSites
from girsanov.inference.status import Status

# A safeguarded step that moves q outwards, as measured by the decrement, is made smaller; one that moves it far
# outwards, or out of the densities, is taken back.
_GROWTH, _DAMPING, _SHRINKAGE = 1.1, 0.7, 0.5
_FAR = 4.0
_SLACK = 1.0  # nats that a step may lower the bound, which is not quite what the sites, trapezoidal, climb
_SMALLEST = 1e-5
_LOST = 3e-5  # share of a variance, by this estimate, from which results were seen to be off by thirty times as much
_UNSTABLE = 2.0  # Δ times the drift's rate from where on Euler's scheme grows without bound


class ContinuousSites(eqx.Module):
    """Base drift at every node, sites per unit of time at the two ends of every interval, and data sites."""

    base: Linearisation
    left: DenseSites
    right: DenseSites
    data: DataSites


def compose_continuous(problem: Problem, sites: ContinuousSites, transition: Transition) -> NaturalChain:
    """Natural parameters of the nodes: exact transitions of the base, sites with half an interval's weight."""
    inside = problem.in_chain
    initial = problem.model.initial_state()
    T, c, W = transition.Phi, transition.c, jnp.where(inside[1:], inverse(transition.Sigma)[0], 0.0)
    chain = linear_chain(T, c, W, jnp.asarray(initial.mean), inverse(jnp.asarray(initial.cov))[0])
    at_nodes = _on_nodes(problem, sites)
    J = chain.J + at_nodes.J + ~inside * blocks.eye_like(chain.J)
    return NaturalChain(chain.h + at_nodes.h, J, chain.K)


def _on_nodes(problem: Problem, sites: ContinuousSites) -> Message:
    """All sites of every node."""
    d, N = problem.model.dim, problem.times.shape[0]
    half = 0.5 * jnp.where(problem.in_chain[1:], problem.gaps, 0.0)
    h, J = jnp.zeros((d, N)), jnp.zeros((d, d, N))
    h = h.at[:, :-1].add(half * sites.left.potential).at[:, 1:].add(half * sites.right.potential)
    J = J.at[..., :-1].add(half * sites.left.precision).at[..., 1:].add(half * sites.right.precision)
    h = h.at[:, problem.node].add(sites.data.potential)
    return Message(h, J.at[..., problem.node].add(sites.data.precision))


def mix(Q_inv: Float[Array, "d d"], old: ContinuousSites, new: ContinuousSites, rho) -> ContinuousSites:
    """The exact geometric mixture of two such processes."""
    dA, db = new.base.A - old.base.A, new.base.b - old.base.b
    Q_dA = matmul(Q_inv[:, :, None], dA)
    apart = DenseSites(
        -rho * (1.0 - rho) * matvec(transpose(Q_dA), db), rho * (1.0 - rho) * matmul(transpose(dA), Q_dA)
    )

    def blend(a, b):
        return (1.0 - rho) * a + rho * b

    def dense(a: DenseSites, b: DenseSites, end: slice) -> DenseSites:
        return DenseSites(
            blend(a.potential, b.potential) + apart.potential[..., end],
            blend(a.precision, b.precision) + apart.precision[..., end],
        )

    return ContinuousSites(
        Linearisation(blend(old.base.A, new.base.A), blend(old.base.b, new.base.b)),
        dense(old.left, new.left, LEFT),
        dense(old.right, new.right, RIGHT),
        DataSites(blend(old.data.potential, new.data.potential), blend(old.data.precision, new.data.precision)),
    )


class _End(eqx.Module):
    """One end of every interval, or several: x = m + Lξ, q's drift f_q = c + aξ there, and the sums over the nodes."""

    m: Float[Array, "d M"]
    L: Float[Array, "d d M"]
    c: Float[Array, "d M"]
    a: Float[Array, "d d M"]
    sums: NodeSums

    def __getitem__(self, lanes: slice) -> "_End":
        return jax.tree.map(lambda x: x[..., lanes], self)


def _site(end: _End, Q_inv, base: Linearisation) -> DenseSites:
    """μ-gradient of E[(f_q − f_B)ᵀQ⁻¹e − ½‖e‖²] with f_q and the base held fixed."""
    v0, v1 = matvec(base.A, end.m) + base.b, matmul(base.A, end.L)
    w1, w2 = site_gradient(end.sums, Q_inv, end.c, end.a, v0, v1)
    return to_site(w1, w2, end.m, blocks.inverse_lower(end.L))


def _value(end: _End, Q_inv, base: Linearisation) -> Float[Array, " M"]:
    """E[(f_q − f_B)ᵀQ⁻¹e − ½‖e‖²_{Q⁻¹}]."""
    Qi = Q_inv[:, :, None]
    v0, v1 = matvec(base.A, end.m) + base.b, matmul(base.A, end.L)
    constant, linear = ((end.c - 0.5 * v0) * matvec(Qi, v0)).sum(0), ((end.a - 0.5 * v1) * matmul(Qi, v1)).sum((0, 1))
    return end.sums.w0 - constant - linear


def _linearised(end: _End) -> Linearisation:
    A = matmul(end.sums.F1, blocks.inverse_lower(end.L))
    return Linearisation(A, end.sums.F0 - matvec(A, end.m))


def _joined(left: Linearisation, right: Linearisation, inside: Bool[Array, " N"]) -> Linearisation:
    """The linearisations at all nodes, from those at either end of every interval."""
    A, b = jnp.concatenate([left.A, right.A[..., -1:]], -1), jnp.concatenate([left.b, right.b[..., -1:]], -1)
    return Linearisation(jnp.where(inside, A, 0.0), jnp.where(inside, b, 0.0))


def at_all_nodes(base: Linearisation) -> Linearisation:
    """A base given for every step as one given at every node, the last step's also at its end."""
    A, b = base.A, base.b
    if A.shape[-1] == 0:
        return Linearisation(jnp.zeros((*A.shape[:-1], 1)), jnp.zeros((*b.shape[:-1], 1)))
    return Linearisation(jnp.concatenate([A, A[..., -1:]], -1), jnp.concatenate([b, b[..., -1:]], -1))


def _drift(message: Message, base: Linearisation, Q: Float[Array, "d d"], valid: Bool[Array, " M"]) -> Linearisation:
    """q's own drift, f_q = f_B + Q(h − Jx), where the message has all that comes later."""
    A, b = base.A - matmul(Q[:, :, None], message.J), base.b + matvec(Q[:, :, None], message.h)
    return Linearisation(jnp.where(valid, A, 0.0), jnp.where(valid, b, 0.0))


def _halfway(base: Linearisation) -> Linearisation:
    return jax.tree.map(lambda a: 0.5 * (a[..., LEFT] + a[..., RIGHT]), base)


def _initial(problem: Problem) -> Transition:
    state = problem.model.initial_state()
    cov = jnp.asarray(state.cov)
    return Transition(jnp.zeros_like(cov), jnp.asarray(state.mean), cov)


def _middle(problem: Problem, q: Moments, halves: tuple, right: Message) -> tuple[Array, Array, Message]:
    """The middle of every interval: its moments, through the first half, and its message, through the second."""
    valid = problem.in_chain[1:]
    first, second = whitened(halves[0]), whitened(halves[1])
    message = back(second, tilt(second, right))
    m, S = moved(reweighted(first, tilt(first, message)), q.m[:, :-1], q.S[..., :-1])
    return jnp.where(valid, m, q.m[:, :-1]), jnp.where(valid, S, q.S[..., :-1]), message


def _along(*parts):
    """The same of several stretches of lanes, one after the other."""
    return jax.tree.map(lambda *a: jnp.concatenate(a, -1), *parts)


def _ends(problem: Problem, base: Linearisation, q: Moments, middle: tuple, left: Message, right: Message) -> _End:
    """The left ends of all intervals, the right ends, and the middles: one after the other in one array."""
    Q, valid = jnp.asarray(problem.model.diffusion), problem.in_chain[1:]
    m, S = _along((q.m, q.S), middle[:2])
    L = blocks.cholesky(S)
    times = jnp.concatenate([problem.times, problem.times[:-1] + 0.5 * problem.gaps])
    f = evaluate_drift(problem.model.drift, at_nodes(problem.rule, m, L), times)
    N = problem.times.shape[0]
    m, L, f = (jnp.concatenate([a[..., : N - 1], a[..., 1:N], a[..., N:]], -1) for a in (m, L, f))
    f_q = _drift(_along(left, right, middle[2]), base, Q, jnp.concatenate([valid] * 3))
    c, a = matvec(f_q.A, m) + f_q.b, matmul(f_q.A, L)
    return _End(m, L, c, a, node_sums(problem.rule, inverse(Q)[0], f, at_nodes(problem.rule, c, a)))


class ContinuousTrial(eqx.Module):
    sites: ContinuousSites
    eta: NaturalChain
    ok: Bool[Array, ""]
    elbo: Float[Array, ""]
    target: ContinuousSites
    moments: Moments
    steps: Transitions
    lost: Float[Array, ""]  # share of a variance that rounding may have taken, at the worst


def evaluate_continuous(problem: Problem, sites: ContinuousSites) -> ContinuousTrial:
    """The bound at these sites, and the sites that its gradient asks for."""
    Q, valid = jnp.asarray(problem.model.diffusion), problem.in_chain[1:]
    left, right = (jax.tree.map(lambda a: jnp.where(valid, a, 0.0), sites.base[end]) for end in (LEFT, RIGHT))
    halves = half_transitions((left.A, right.A), (left.b, right.b), Q, problem.gaps)
    transition = after(*halves)
    result = reweight(_initial(problem), transition, _on_nodes(problem, sites), valid)
    q, Q_inv, M = result.moments, inverse(Q)[0], problem.gaps.shape[0]
    middle = _middle(problem, q, halves, result.right)
    bases = _along(left, right, _halfway(sites.base))
    ends = _ends(problem, bases, q, middle, result.left, result.right)
    data, log_likelihood = data_expectations(problem, q)
    values = _value(ends, Q_inv, bases).reshape(3, M)
    integral = problem.gaps / 6.0 * (values[0] + values[1] + 4.0 * values[2])
    elbo = log_likelihood - result.divergence + jnp.where(valid, integral, 0.0).sum()

    both = ends[: 2 * M]
    found = _linearised(both)
    base = _joined(found[:M], found[M:], problem.in_chain)
    site = _site(both, Q_inv, _along(base[LEFT], base[RIGHT]))
    site = jax.tree.map(lambda a: jnp.where(jnp.concatenate([valid, valid]), a, 0.0), site)
    at_left, at_right = (jax.tree.map(lambda a, n=n: a[..., n], site) for n in (slice(M), slice(M, None)))
    target = ContinuousSites(base, at_left, at_right, data)
    eta = compose_continuous(problem, sites, transition)
    return ContinuousTrial(sites, eta, result.ok & jnp.isfinite(elbo), elbo, target, q, result.steps, result.lost)


def _from_the_data(problem: Problem) -> ContinuousSites:
    first = starting_sites(problem)
    return ContinuousSites(at_all_nodes(first.base), first.dense, first.dense, first.data)


def _resolved(problem: Problem, start: ContinuousSites) -> Bool[Array, ""]:
    """Whether a solution of the discretised model says anything of the SDE: all its steps are stable."""
    rate = jnp.sqrt((start.base.A[..., LEFT] ** 2).sum((0, 1)))
    return jnp.all(jnp.where(problem.in_chain[1:], problem.gaps * rate, 0.0) < _UNSTABLE)


class ContinuousCarry(eqx.Module):
    common: Carry
    target: ContinuousSites  # before the first pass: the start from the data alone
    rho: Float[Array, ""]
    decrement: Float[Array, ""]  # of the last step: its symmetrised KL divergence over ρ², in nats


class Continuous(Algorithm):
    """Damped steps by exact mixing, to where the sites are those that the gradient asks for.

    The sites are trapezoidal, the bound is more accurate: a step may lower it a little, but not much. Messages and
    moments go along the chain one node after the other, whatever the engine.
    """

    rho: Float[Array, ""]
    safeguard: bool = eqx.field(static=True)
    engine: Engine = eqx.field(static=True, default="auto")

    def blank_start(self, problem: Problem) -> ContinuousSites:
        blank = blank_sites(problem)
        return ContinuousSites(at_all_nodes(blank.base), blank.dense, blank.dense, blank.data)

    def begin(self, problem: Problem, start, given) -> ContinuousCarry:
        given &= _resolved(problem, start)
        own = _from_the_data(problem)
        sites = select(given, start, own)
        d, N = problem.model.dim, problem.times.shape[0]
        eta = NaturalChain(jnp.zeros((d, N)), jnp.zeros((d, d, N)), jnp.zeros((d, d, N - 1)))
        common = blank_carry(problem, eta, sites)
        steps = Transitions(jnp.zeros((d, d, N - 1)), jnp.zeros((d, d, N)))
        common = dataclasses.replace(common, iteration=jnp.where(given, -1, -2), steps=steps)
        return ContinuousCarry(common, own, jnp.asarray(self.rho), jnp.asarray(jnp.inf))

    def common(self, carry: ContinuousCarry) -> Carry:
        return carry.common

    def step(self, problem: Problem, carry: ContinuousCarry, limits: Limits) -> tuple[ContinuousCarry, Record]:
        # From the data alone there are two passes before the first iteration: the start itself, then the drift
        # linearised there as base with no dense sites. The trapezoidal rule is only as good as the base is near the
        # drift, so the bound counts from then.
        at = carry.common
        look, first = at.iteration == -2, at.iteration < 0
        Q_inv, _ = inverse(jnp.asarray(problem.model.diffusion))
        unmoved = look | (first & ~jnp.isfinite(at.elbo))
        proposal = mix(Q_inv, at.sites, carry.target, jnp.where(unmoved, 0.0, carry.rho))
        trial = evaluate_continuous(problem, proposal)
        change = inner(trial.eta - at.eta, expectations(trial.moments) - expectations(at.moments))
        decrement = jnp.where(first, jnp.inf, change / carry.rho**2)
        accept = trial.ok
        if self.safeguard:
            accept &= first | ~((decrement > _FAR * carry.decrement) | (trial.elbo < at.elbo - _SLACK))
        # A symmetrised divergence is not negative, and a bound at rest does not move: where they say otherwise, what is
        # left is rounding.
        at_rest = jnp.abs(trial.elbo - at.elbo) < jnp.sqrt(limits.tolerance)
        converged = ~first & (jnp.abs(decrement) < limits.tolerance) & at_rest
        lost = ~first & trial.ok & ~(decrement > -limits.tolerance)
        lost |= converged & ~(trial.lost < _LOST)
        iteration = at.iteration + accept
        rho, failed = carry.rho, int(Status.NOT_A_DENSITY)
        if self.safeguard:
            outwards = decrement > carry.decrement
            rho = jnp.where(first, rho, jnp.minimum(self.rho, jnp.where(outwards, _DAMPING, _GROWTH) * rho))
            rho = jnp.where(accept, rho, _SHRINKAGE * carry.rho)
            failed = int(Status.RUNNING)
        status = jnp.where(accept, at.status, jnp.where(unmoved, int(Status.BAD_START), failed))
        status = jnp.where((rho < _SMALLEST) & ~converged, int(Status.STALLED), status)
        status = jnp.where(lost, int(Status.ILL_CONDITIONED), status)
        status = settle(status, iteration, accept, converged, limits)
        eta, elbo, moments, sites, steps, target = select(
            accept,
            (trial.eta, trial.elbo, trial.moments, trial.sites, trial.steps, trial.target),
            (at.eta, at.elbo, at.moments, at.sites, at.steps, carry.target),
        )
        zero = jax.tree.map(jnp.zeros_like, target.left)
        target = select(look, ContinuousSites(target.base, zero, zero, target.data), target)
        # A start that was given and is none is left for the data alone.
        fall_back = unmoved & ~look & ~accept
        sites = select(fall_back, carry.target, sites)
        iteration, status = jnp.where(fall_back, -2, iteration), jnp.where(fall_back, at.status, status)
        common = Carry(eta, elbo, moments, sites, iteration, status, steps)
        # What is left to go may have grown since the last step: each smaller one is allowed to show more of it.
        kept = jnp.where(accept, decrement, carry.decrement / _SHRINKAGE)
        return ContinuousCarry(common, target, rho, kept), Record(accept & ~look, elbo, carry.rho, decrement)
