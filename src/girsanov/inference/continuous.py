"""CVI-DP in continuous time: exact transitions of the linear base, instantaneous sites, the bound by Girsanov.

q is a linear base SDE p_B, dx = (A x + b) dt + L dβ with (A, b) constant on each interval, reweighted by sites per
unit of time with half an interval's weight on either end node, and by data sites. Two linear SDEs with the same
diffusion mix in closed form: (dP₁)^{1−ρ}(dP₂)^ρ is proportional to the SDE with drift f̄ = (1−ρ)f₁ + ρf₂ reweighted by
exp(−½ρ(1−ρ)∫‖f₁ − f₂‖²_{Q⁻¹}dt), so a damped step needs instantaneous sites only. The bound is
    L = Σ E log p(y|x) − KL(q‖p_B) + ∫ E[(f_q − f_B)ᵀQ⁻¹e − ½‖e‖²_{Q⁻¹}] dt,   e = f − f_B,
its second term exact from the chain, the integral by the trapezoidal rule. Next to a sharp observation q's own drift
f_q is large in a layer narrower than an interval, but the state is confined as much: with f_q taken at the very ends of
the interval, E[(f_q − f_B)ᵀQ⁻¹e] stays bounded and smooth there.
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
from girsanov.sites import DataSites, DenseSites, Linearisation, base_chain

# A safeguarded step that moves q outwards, as measured by the decrement, is made smaller; one that moves it far
# outwards, or out of the densities, is taken back.
_GROWTH, _DAMPING, _SHRINKAGE = 1.1, 0.7, 0.5
_FAR = 4.0
_SLACK = 1.0  # nats that a step may lower the bound, which is known up to the error of the trapezoidal rule
_SMALLEST = 1e-5


class ContinuousSites(eqx.Module):
    """Base drift of every interval, sites per unit of time at its two ends, and data sites."""

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
    precision = rho * (1.0 - rho) * matmul(transpose(dA), Q_dA)
    potential = -rho * (1.0 - rho) * matvec(transpose(Q_dA), db)

    def blend(a, b):
        return (1.0 - rho) * a + rho * b

    def dense(a: DenseSites, b: DenseSites) -> DenseSites:
        return DenseSites(blend(a.potential, b.potential) + potential, blend(a.precision, b.precision) + precision)

    return ContinuousSites(
        Linearisation(blend(old.base.A, new.base.A), blend(old.base.b, new.base.b)),
        dense(old.left, new.left),
        dense(old.right, new.right),
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


def own_drifts(problem: Problem, base: Linearisation, q: Moments) -> tuple[Linearisation, Linearisation]:
    """q's drift at the two ends of every interval, f_q = f_B + Q(h_b − J_b x), (h_b, J_b) the message from later on.

    q(x₊ | x) ∝ N(x₊; Φx + c, Σ) exp(h₊ᵀx₊ − ½x₊ᵀJ₊x₊) has covariance Σ_q = S₊ − C S⁻¹Cᵀ and mean m₊ + C S⁻¹(x − m);
    hence at the right end J₊ = Σ_q⁻¹ − Σ⁻¹, h₊ = Σ_q⁻¹r − Σ⁻¹c with r = m₊ − C S⁻¹m, and carried back to the left end
    J = Φᵀ(Σ⁻¹ − Σ⁻¹Σ_qΣ⁻¹)Φ, h = ΦᵀΣ⁻¹(r − c).
    """
    valid = problem.in_chain[1:]
    Q = jnp.asarray(problem.model.diffusion)
    Phi, c, Sigma = linear_transition(base.A, base.b, Q, problem.gaps)
    W, _ = inverse(Sigma)
    T = matmul(q.C, inverse(q.S[..., :-1])[0])
    Sigma_q = blocks.symmetrise(q.S[..., 1:] - matmul(T, transpose(q.C)))
    W_q, _ = inverse(Sigma_q)
    r = q.m[:, 1:] - matvec(T, q.m[:, :-1])
    right_J, right_h = W_q - W, matvec(W_q, r) - matvec(W, c)
    WPhi = matmul(W, Phi)
    left_J = matmul(transpose(Phi), WPhi) - matmul(transpose(WPhi), matmul(Sigma_q, WPhi))
    left_h = matvec(transpose(WPhi), r - c)

    def drift(J, h):
        A, b = base.A - matmul(Q[:, :, None], J), base.b + matvec(Q[:, :, None], h)
        return Linearisation(jnp.where(valid, A, 0.0), jnp.where(valid, b, 0.0))

    return drift(left_J, left_h), drift(right_J, right_h)


def _kl_to_base(problem: Problem, sites: ContinuousSites, smoothed: Smoothed) -> Float[Array, ""]:
    """KL(q‖p_B) = −H[q] − E_q log p_B over the nodes; between them the two are the same bridge."""
    q, valid = smoothed.moments, problem.in_chain[1:]
    d = q.m.shape[0]
    Phi, c, Sigma = linear_transition(sites.base.A, sites.base.b, jnp.asarray(problem.model.diffusion), problem.gaps)
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
    Q_inv, _ = inverse(jnp.asarray(problem.model.diffusion))
    L = blocks.cholesky(q.S)
    f = evaluate_drift(problem.model.drift, at_nodes(problem.rule, q.m, L), problem.times)
    q_left, q_right = own_drifts(problem, sites.base, q)
    left = _end(problem, Q_inv, q.m[:, :-1], L[..., :-1], f[..., :-1], q_left)
    right = _end(problem, Q_inv, q.m[:, 1:], L[..., 1:], f[..., 1:], q_right)
    at_left, at_right = _linearised(left), _linearised(right)
    base = Linearisation(
        jnp.where(valid, 0.5 * (at_left.A + at_right.A), 0.0), jnp.where(valid, 0.5 * (at_left.b + at_right.b), 0.0)
    )
    data, log_likelihood = data_expectations(problem, q)
    integral = 0.5 * problem.gaps * (_value(left, Q_inv, sites.base) + _value(right, Q_inv, sites.base))
    elbo = log_likelihood - _kl_to_base(problem, sites, smoothed) + jnp.where(valid, integral, 0.0).sum()

    def masked(s: DenseSites) -> DenseSites:
        return DenseSites(jnp.where(valid, s.potential, 0.0), jnp.where(valid, s.precision, 0.0))

    target = ContinuousSites(base, masked(_site(left, Q_inv, base)), masked(_site(right, Q_inv, base)), data)
    return ContinuousTrial(sites, eta, smoothed.ok & jnp.isfinite(elbo), elbo, target, q)


class ContinuousCarry(eqx.Module):
    common: Carry
    target: ContinuousSites
    rho: Float[Array, ""]
    decrement: Float[Array, ""]  # of the last step: its symmetrised KL divergence over ρ², in nats


class Continuous(Algorithm):
    """Damped steps by exact mixing, to where the sites are those that the gradient asks for.

    The bound is known up to the error of the trapezoidal rule only: a step may lower it a little, but not much.
    """

    rho: Float[Array, ""]
    safeguard: bool = eqx.field(static=True)
    engine: Engine = eqx.field(static=True, default="auto")

    def blank_start(self, problem: Problem) -> ContinuousSites:
        blank = blank_sites(problem)
        return ContinuousSites(blank.base, blank.dense, blank.dense, blank.data)

    def begin(self, problem: Problem, start, given) -> ContinuousCarry:
        first = starting_sites(problem)
        sites = ContinuousSites(first.base, first.dense, first.dense, first.data)
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
            failed = jnp.where(rho < _SMALLEST, int(Status.STALLED), int(Status.RUNNING))
        status = jnp.where(accept, at.status, jnp.where(unmoved, int(Status.BAD_START), failed))
        status = settle(status, iteration, accept, converged, limits)
        eta, elbo, moments, sites, target = select(
            accept,
            (trial.eta, trial.elbo, trial.moments, trial.sites, trial.target),
            (at.eta, at.elbo, at.moments, at.sites, carry.target),
        )
        zero = jax.tree.map(jnp.zeros_like, target.left)
        target = select(look, ContinuousSites(target.base, zero, zero, target.data), target)
        common = Carry(eta, elbo, moments, sites, iteration, status)
        kept = jnp.where(accept, decrement, carry.decrement)
        return ContinuousCarry(common, target, rho, kept), Record(accept & ~look, elbo, carry.rho, decrement)
