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

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from girsanov._types import Array
from girsanov.chain import blocks
from girsanov.chain.blocks import inverse, matmul, matvec, transpose
from girsanov.chain.matrix_functions import linear_transition
from girsanov.chain.moments import Moments, expectations
from girsanov.chain.natural import NaturalChain, inner
from girsanov.chain.smoother import Engine, Smoothed, smooth
from girsanov.inference.expectations import NodeSums, at_nodes, evaluate_drift, node_sums, site_gradient, to_site
from girsanov.inference.loop import Algorithm, Carry, Limits, Record, blank_carry, blank_sites, select, settle
from girsanov.inference.objective import LOG_2PI, Problem, data_expectations, initial_term, starting_sites
from girsanov.inference.status import Status
from girsanov.sites import LEFT, RIGHT, DataSites, DenseSites, Linearisation, base_chain

# A safeguarded step that moves q outwards, as measured by the decrement, is made smaller; one that moves it far
# outwards, or out of the densities, is taken back.
_GROWTH, _DAMPING, _SHRINKAGE = 1.1, 0.7, 0.5
_FAR = 4.0
_SLACK = 1.0  # nats that a step may lower the bound, which is not quite what the sites, trapezoidal, climb
_SMALLEST = 1e-5


class ContinuousSites(eqx.Module):
    """Base drift at every node, sites per unit of time at the two ends of every interval, and data sites."""

    base: Linearisation
    left: DenseSites
    right: DenseSites
    data: DataSites


def compose_continuous(problem: Problem, sites: ContinuousSites) -> NaturalChain:
    """Natural parameters of the nodes: exact transitions of the base, sites with half an interval's weight."""
    inside = problem.in_chain
    chain = base_chain(problem.model, sites.base, problem.gaps, inside[1:], time="continuous")
    half = 0.5 * jnp.where(inside[1:], problem.gaps, 0.0)
    h = chain.h.at[:, :-1].add(half * sites.left.potential).at[:, 1:].add(half * sites.right.potential)
    J = chain.J.at[..., :-1].add(half * sites.left.precision).at[..., 1:].add(half * sites.right.precision)
    h = h.at[:, problem.node].add(sites.data.potential)
    J = J.at[..., problem.node].add(sites.data.precision) + ~inside * blocks.eye_like(J)
    return NaturalChain(h, J, chain.K)


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
    """One end of every interval: x = m + Lξ, q's drift f_q = c + aξ there, and the sums over the nodes."""

    m: Float[Array, "d M"]
    L: Float[Array, "d d M"]
    c: Float[Array, "d M"]
    a: Float[Array, "d d M"]
    sums: NodeSums


def _end(problem: Problem, Q_inv, m, L, f, q_drift: Linearisation) -> _End:
    c, a = matvec(q_drift.A, m) + q_drift.b, matmul(q_drift.A, L)
    return _End(m, L, c, a, node_sums(problem.rule, Q_inv, f, at_nodes(problem.rule, c, a)))


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


class _Message(eqx.Module):
    """exp(hᵀx − ½xᵀJx): what is known from later on, in units of the base process."""

    h: Float[Array, "d M"]
    J: Float[Array, "d d M"]

    def drift(self, base: Linearisation, Q: Float[Array, "d d"], valid: Bool[Array, " M"]) -> Linearisation:
        """q's own drift, f_q = f_B + Q(h − Jx)."""
        A, b = base.A - matmul(Q[:, :, None], self.J), base.b + matvec(Q[:, :, None], self.h)
        return Linearisation(jnp.where(valid, A, 0.0), jnp.where(valid, b, 0.0))

    def back(self, Phi, c, Sigma) -> "_Message":
        """The same before a transition N(x₊; Φx + c, Σ)."""
        W, _ = inverse(Sigma)
        Sigma_q, _ = inverse(W + self.J)
        r = matvec(Sigma_q, matvec(W, c) + self.h)
        WPhi = matmul(W, Phi)
        J = matmul(transpose(Phi), WPhi) - matmul(transpose(WPhi), matmul(Sigma_q, WPhi))
        return _Message(matvec(transpose(WPhi), r - c), J)


def _last_messages(q: Moments, transition) -> _Message:
    """At the right end of every interval: q(x₊ | x) ∝ N(x₊; Φx + c, Σ) exp(hᵀx₊ − ½x₊ᵀJx₊) has covariance
    Σ_q = S₊ − C S⁻¹Cᵀ and mean m₊ + C S⁻¹(x − m), hence J = Σ_q⁻¹ − Σ⁻¹, h = Σ_q⁻¹r − Σ⁻¹c with r = m₊ − C S⁻¹m."""
    _, c, Sigma = transition
    W, _ = inverse(Sigma)
    T = matmul(q.C, inverse(q.S[..., :-1])[0])
    W_q, _ = inverse(blocks.symmetrise(q.S[..., 1:] - matmul(T, transpose(q.C))))
    return _Message(matvec(W_q, q.m[:, 1:] - matvec(T, q.m[:, :-1])) - matvec(W, c), W_q - W)


def _halfway(base: Linearisation) -> Linearisation:
    return jax.tree.map(lambda a: 0.5 * (a[..., LEFT] + a[..., RIGHT]), base)


def _transitions(base: Linearisation, Q: Float[Array, "d d"], gaps: Float[Array, " M"]) -> list[tuple]:
    """Φ, c, Σ over every interval, its first half and its second half."""
    left, middle, right = base[LEFT], _halfway(base), base[RIGHT]

    def stacked(*parts: Linearisation) -> Linearisation:
        return jax.tree.map(lambda *a: jnp.stack(a, -2), *parts)

    begin, end = stacked(left, left, middle), stacked(right, middle, right)
    gap = jnp.stack([gaps, 0.5 * gaps, 0.5 * gaps])
    out = linear_transition((begin.A, end.A), (begin.b, end.b), Q, gap)
    return [tuple(a[..., i, :] for a in out) for i in range(3)]


def _middle(problem: Problem, base: Linearisation, q: Moments, transition: tuple, message: _Message) -> _End:
    """The middle of every interval: q(x) = ∫ q(x₋) N(x; Φx₋ + c, Σ) exp(hᵀx − ½xᵀJx) dx₋ / Z(x₋)."""
    Q, valid = jnp.asarray(problem.model.diffusion), problem.in_chain[1:]
    Phi, c, Sigma = transition
    W, _ = inverse(Sigma)
    S_f, _ = inverse(W + message.J)
    G = matmul(S_f, matmul(W, Phi))
    m = matvec(G, q.m[:, :-1]) + matvec(S_f, matvec(W, c) + message.h)
    L = blocks.cholesky(blocks.symmetrise(S_f + matmul(G, matmul(q.S[..., :-1], transpose(G)))))
    m, L = jnp.where(valid, m, 0.0), jnp.where(valid, L, blocks.eye_like(L))
    f = evaluate_drift(problem.model.drift, at_nodes(problem.rule, m, L), problem.times[:-1] + 0.5 * problem.gaps)
    return _end(problem, inverse(Q)[0], m, L, f, message.drift(base, Q, valid))


def _kl_to_base(problem: Problem, transition, smoothed: Smoothed) -> Float[Array, ""]:
    """KL(q‖p_B) = −H[q] − E_q log p_B over the nodes; between them the two are the same bridge."""
    q, valid = smoothed.moments, problem.in_chain[1:]
    d = q.m.shape[0]
    Phi, c, Sigma = transition
    W, pivots = inverse(Sigma)
    r = q.m[:, 1:] - matvec(Phi, q.m[:, :-1]) - c
    PhiCt = matmul(Phi, transpose(q.C))
    R = q.S[..., 1:] - PhiCt - transpose(PhiCt) + matmul(Phi, matmul(q.S[..., :-1], transpose(Phi)))
    log_p = -0.5 * ((r * matvec(W, r)).sum(0) + blocks.trace(matmul(W, R)) + d * LOG_2PI + jnp.log(pivots).sum(0))
    entropy = 0.5 * (problem.size * d * (1.0 + LOG_2PI) - smoothed.log_det)
    return -entropy - jnp.where(valid, log_p, 0.0).sum() - initial_term(problem, q)


class ContinuousTrial(eqx.Module):
    sites: ContinuousSites
    eta: NaturalChain
    ok: Bool[Array, ""]
    elbo: Float[Array, ""]
    target: ContinuousSites
    moments: Moments


def evaluate_continuous(problem: Problem, sites: ContinuousSites, engine: Engine) -> ContinuousTrial:
    """The bound at these sites, and the sites that its gradient asks for."""
    eta = compose_continuous(problem, sites)
    smoothed = smooth(eta, engine)
    q, valid = smoothed.moments, problem.in_chain[1:]
    Q = jnp.asarray(problem.model.diffusion)
    Q_inv, _ = inverse(Q)
    L = blocks.cholesky(q.S)
    f = evaluate_drift(problem.model.drift, at_nodes(problem.rule, q.m, L), problem.times)
    transition, first_half, second_half = _transitions(sites.base, Q, problem.gaps)
    last = _last_messages(q, transition)
    f_left, f_right = last.back(*transition).drift(sites.base[LEFT], Q, valid), last.drift(sites.base[RIGHT], Q, valid)
    left = _end(problem, Q_inv, q.m[:, :-1], L[..., :-1], f[..., :-1], f_left)
    right = _end(problem, Q_inv, q.m[:, 1:], L[..., 1:], f[..., 1:], f_right)
    base_there = _halfway(sites.base)
    middle = _middle(problem, base_there, q, first_half, last.back(*second_half))
    base = _joined(_linearised(left), _linearised(right), problem.in_chain)
    data, log_likelihood = data_expectations(problem, q)
    ends = _value(left, Q_inv, sites.base[LEFT]) + _value(right, Q_inv, sites.base[RIGHT])
    integral = problem.gaps / 6.0 * (ends + 4.0 * _value(middle, Q_inv, base_there))
    elbo = log_likelihood - _kl_to_base(problem, transition, smoothed) + jnp.where(valid, integral, 0.0).sum()

    def masked(s: DenseSites) -> DenseSites:
        return DenseSites(jnp.where(valid, s.potential, 0.0), jnp.where(valid, s.precision, 0.0))

    at_left, at_right = _site(left, Q_inv, base[LEFT]), _site(right, Q_inv, base[RIGHT])
    target = ContinuousSites(base, masked(at_left), masked(at_right), data)
    return ContinuousTrial(sites, eta, smoothed.ok & jnp.isfinite(elbo), elbo, target, q)


class ContinuousCarry(eqx.Module):
    common: Carry
    target: ContinuousSites
    rho: Float[Array, ""]
    decrement: Float[Array, ""]  # of the last step: its symmetrised KL divergence over ρ², in nats


class Continuous(Algorithm):
    """Damped steps by exact mixing, to where the sites are those that the gradient asks for.

    The sites are trapezoidal, the bound is more accurate: a step may lower it a little, but not much.
    """

    rho: Float[Array, ""]
    safeguard: bool = eqx.field(static=True)
    engine: Engine = eqx.field(static=True, default="auto")

    def blank_start(self, problem: Problem) -> ContinuousSites:
        blank = blank_sites(problem)
        return ContinuousSites(at_all_nodes(blank.base), blank.dense, blank.dense, blank.data)

    def begin(self, problem: Problem, start, given) -> ContinuousCarry:
        first = starting_sites(problem)
        sites = ContinuousSites(at_all_nodes(first.base), first.dense, first.dense, first.data)
        sites = select(given, start, sites)
        eta = compose_continuous(problem, sites)
        common = blank_carry(problem, eta, sites)
        common = eqx.tree_at(lambda c: c.iteration, common, jnp.where(given, -1, -2))
        return ContinuousCarry(common, sites, jnp.asarray(self.rho), jnp.asarray(jnp.inf))

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
        trial = evaluate_continuous(problem, proposal, self.engine)
        change = inner(trial.eta - at.eta, expectations(trial.moments) - expectations(at.moments))
        decrement = jnp.where(first, jnp.inf, change / carry.rho**2)
        accept = trial.ok
        if self.safeguard:
            accept &= first | ~((decrement > _FAR * carry.decrement) | (trial.elbo < at.elbo - _SLACK))
        converged = ~first & (decrement < limits.tolerance)
        iteration = at.iteration + accept
        rho, failed = carry.rho, int(Status.NOT_A_DENSITY)
        if self.safeguard:
            outwards = decrement > carry.decrement
            rho = jnp.where(first, rho, jnp.minimum(self.rho, jnp.where(outwards, _DAMPING, _GROWTH) * rho))
            rho = jnp.where(accept, rho, _SHRINKAGE * carry.rho)
            failed = int(Status.RUNNING)
        status = jnp.where(accept, at.status, jnp.where(unmoved, int(Status.BAD_START), failed))
        status = jnp.where((rho < _SMALLEST) & ~converged, int(Status.STALLED), status)
        status = settle(status, iteration, accept, converged, limits)
        eta, elbo, moments, sites, target = select(
            accept,
            (trial.eta, trial.elbo, trial.moments, trial.sites, trial.target),
            (at.eta, at.elbo, at.moments, at.sites, carry.target),
        )
        zero = jax.tree.map(jnp.zeros_like, target.left)
        target = select(look, ContinuousSites(target.base, zero, zero, target.data), target)
        common = Carry(eta, elbo, moments, sites, iteration, status)
        # What is left to go may have grown since the last step: each smaller one is allowed to show more of it.
        kept = jnp.where(accept, decrement, carry.decrement / _SHRINKAGE)
        return ContinuousCarry(common, target, rho, kept), Record(accept & ~look, elbo, carry.rho, decrement)
