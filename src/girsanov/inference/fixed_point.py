"""The fixed-point iteration of VDP (Archambeau et al. 2007): q is a diffusion with affine drift A x + b.

The bound
    L = Σ E log p(y|x) − KL(q₀‖p₀) − ½∫E‖f − A x − b‖²_{Q⁻¹}dt
is maximised subject to the differential equations of the moments, whose multipliers λ and Ψ are those of `schemes`:
    A ← (1−ω) A + ω (E[∇f] + 2QΨ),   b ← (1−ω) b + ω (E[f] − A m + Qλ),
    q₀ ∝ q₀^{1−ω} (p₀ · exp(λ₀ᵀ(x−m₀) + (x−m₀)ᵀΨ₀(x−m₀)))^ω.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from girsanov._core.types import Array
from girsanov.chain import blocks
from girsanov.chain.blocks import inverse, matmul, matvec, transpose
from girsanov.chain.conversion import own_steps
from girsanov.chain.divergence import entropy
from girsanov.chain.linear_sde import Linearisation
from girsanov.chain.moments import Moments
from girsanov.chain.natural import NaturalChain
from girsanov.chain.smoother import Engine, smooth
from girsanov.data.instants import times_first
from girsanov.inference.expectations import site_gradient, sums_in_chunks
from girsanov.inference.loop import Algorithm, Carry, Limits, Record, rounding, select, settle
from girsanov.inference.objective import Posed, compose, data_expectations, initial_term
from girsanov.inference.schemes import Scheme, Slopes
from girsanov.inference.start import starting_sites
from girsanov.inference.status import Status

_GROWTH, _SHRINKAGE = 1.1, 0.5
_SMALLEST = 1e-8  # a safeguarded run has stalled when its step size falls below this


class AffineProcess(eqx.Module):
    """A diffusion with affine drift.

    Attributes:
        drift: A and b at each end of the intervals at which the scheme stores them.
        h0, J0: potential and precision of the initial state.
    """

    drift: tuple[Linearisation, ...]
    h0: Float[Array, " d"]
    J0: Float[Array, "d d"]


class Target(eqx.Module):
    """The right-hand sides of the fixed-point equations.

    Attributes:
        A: the new A, at each stored end of the intervals.
        mean_drift: the mean of the new drift A x + b under the current q.
        m: the means of the current q at these points.
        h0, J0: potential and precision of the new initial state.
    """

    A: tuple[Float[Array, "d d M"], ...]
    mean_drift: tuple[Float[Array, "d M"], ...]
    m: tuple[Float[Array, "d M"], ...]
    h0: Float[Array, " d"]
    J0: Float[Array, "d d"]


def damped(q: AffineProcess, target: Target, omega: Float[Array, ""], centred: bool) -> AffineProcess:
    """Take a step of size ω towards the target.

    Without `centred`, A and b are damped, as in the paper. With `centred`, A and the mean drift A m + b are damped; for
    small ω this step is a preconditioned gradient of the bound, and so a direction of ascent.
    """

    def mix(old, new):
        return (1.0 - omega) * old + omega * new

    drift = []
    for old, target_A, mean_drift, m in zip(q.drift, target.A, target.mean_drift, target.m, strict=True):
        A = mix(old.A, target_A)
        if centred:
            b = mix(matvec(old.A, m) + old.b, mean_drift) - matvec(A, m)
        else:
            b = mix(old.b, mean_drift - matvec(A, m))
        drift.append(Linearisation(A, b))
    return AffineProcess(tuple(drift), mix(q.h0, target.h0), mix(q.J0, target.J0))


def moments_of(problem: Posed, scheme: Scheme, q: AffineProcess) -> tuple[Moments, Bool[Array, ""]]:
    """Return the moments of q at the nodes, constant on the padding, and whether q is a probability density."""
    S0, pivots = inverse(q.J0)
    gaps = jnp.where(problem.data.in_chain[1:], problem.data.gaps, 0.0)
    path = scheme.forward(q.drift, gaps, jnp.asarray(problem.model.noise.Q), S0 @ q.h0, S0)
    ok = (pivots > 0.0).all() & jnp.isfinite(path.m).all() & (inverse(path.S)[1] > 0.0).all()
    return Moments(path.m, path.S, matmul(path.T, path.S[..., :-1])), ok


class FixedPointTrial(eqx.Module):
    """One evaluated process.

    Attributes:
        process: q itself.
        ok: whether q is a probability density with a finite bound.
        elbo: the evidence bound, in nats.
        target: the right-hand sides of the fixed-point equations.
        distance: KL divergence between q and the target, in nats, to second order.
    """

    process: AffineProcess
    ok: Bool[Array, ""]
    elbo: Float[Array, ""]
    target: Target
    distance: Float[Array, ""]


def _at_ends(array: Float[Array, "... N"], ends: int) -> tuple[Float[Array, "... M"], ...]:
    return (array[..., :-1], array[..., 1:])[:ends]


def evaluate_process(problem: Posed, scheme: Scheme, q: AffineProcess) -> FixedPointTrial:
    """Return the bound at q by Girsanov's theorem, and the right-hand sides of the fixed-point equations."""
    moments, ok = moments_of(problem, scheme, q)
    Q, Q_inv = jnp.asarray(problem.model.noise.Q), problem.model.noise.precision
    gaps = jnp.where(problem.data.in_chain[1:], problem.data.gaps, 0.0)
    L = blocks.cholesky(moments.S)
    times = (problem.data.at_nodes[:-1], problem.data.at_ends[1:])[: scheme.ends]
    places = zip(q.drift, *(_at_ends(a, scheme.ends) for a in (moments.m, L)), times, strict=True)
    ends = [_end(problem, Q_inv, *place) for place in places]
    integral = (gaps * sum(value for value, *_ in ends)).sum() / scheme.ends
    data, log_likelihood = data_expectations(problem, moments)
    d = moments.m.shape[0]
    S0 = moments.S[..., 0]
    spread = entropy(d, -jnp.log(inverse(S0)[1]).sum())
    elbo = log_likelihood + initial_term(problem, moments) + spread + integral

    # A data site is exp(hᵀx − ½xᵀJx) with h = ∂m − 2∂S m and J = −2∂S.
    at = moments.m[:, problem.data.node]
    jump_m = jnp.zeros_like(moments.m).at[:, problem.data.node].add(data.potential - matvec(data.precision, at))
    jump_S = jnp.zeros_like(moments.S).at[..., problem.data.node].add(-0.5 * data.precision)
    back = scheme.backward(q.drift, gaps, tuple(slopes for _, slopes, _, _ in ends), Slopes(jump_m, jump_S))
    A = tuple(
        scheme.slope(EJ, at.S, problem.model.noise, gaps) for (_, _, EJ, _), at in zip(ends, back.ends, strict=True)
    )
    Qs = Q[:, :, None]
    mean_drift = tuple(Ef + matvec(Qs, at.m) for (*_, Ef), at in zip(ends, back.ends, strict=True))
    prior = problem.model.initial_state()
    P_inv, _ = inverse(jnp.asarray(prior.cov))
    J0 = P_inv - 2.0 * back.first.S
    h0 = P_inv @ prior.mean + back.first.m - 2.0 * back.first.S @ moments.m[:, 0]
    target = Target(A, mean_drift, _at_ends(moments.m, scheme.ends), h0, J0)
    return FixedPointTrial(q, ok & jnp.isfinite(elbo), elbo, target, _distance(q, target, moments, Q_inv, gaps))


def _end(problem: Posed, Q_inv, q: Linearisation, m, L, times):
    """Return, for one end of every interval, ℓ, its derivatives in m and S, E[∇f] and E[f]."""
    c, a = matvec(q.A, m) + q.b, matmul(q.A, L)
    sums = sums_in_chunks(problem.model.drift, Q_inv, problem.rule, (m, L, c, a, times))
    Qi = Q_inv[:, :, None]
    value = sums.w0 - 0.5 * ((c * matvec(Qi, c)).sum(0) + (a * matmul(Qi, a)).sum((0, 1)))
    w1, w2 = site_gradient(sums, Q_inv, c, a, c, a)
    L_inv = blocks.inverse_lower(L)
    L_invT = transpose(L_inv)
    slopes = Slopes(matvec(L_invT, w1), 0.5 * matmul(L_invT, matmul(w2, L_inv)))
    return value, slopes, matmul(sums.F1, L_inv), sums.F0


def _distance(q: AffineProcess, target: Target, moments: Moments, Q_inv, gaps) -> Float[Array, ""]:
    """Return ½∫E‖(A* − A)x + b* − b‖²_{Q⁻¹}dt + ½δᵀFδ, where δ is the change of the natural parameters of q₀."""
    ends = len(q.drift)
    Qi, total = Q_inv[:, :, None], jnp.zeros(())
    places = zip(
        q.drift, target.A, target.mean_drift, _at_ends(moments.m, ends), _at_ends(moments.S, ends), strict=True
    )
    for old, A, mean_drift, m, S in places:
        u, D = mean_drift - matvec(old.A, m) - old.b, A - old.A
        spread = blocks.trace(matmul(transpose(D), matmul(Qi, matmul(D, S))))
        total += (gaps * ((u * matvec(Qi, u)).sum(0) + spread)).sum() / (2.0 * ends)
    m0, S0 = moments.m[:, 0], moments.S[..., 0]
    change = (target.J0 - q.J0) @ S0
    shift = target.h0 - q.h0 - (target.J0 - q.J0) @ m0
    return total + 0.5 * shift @ S0 @ shift + 0.25 * jnp.trace(change @ change)


def affine_of(moments: Moments, gaps: Float[Array, " M"], ends: int) -> AffineProcess:
    """Return the process with the transitions of a chain, A = (C S⁻¹ − I)/Δ, which is constant on every interval."""
    m, steps = moments.m, own_steps(moments)
    A = (steps.T - blocks.eye_like(steps.T)) / gaps
    b = (m[:, 1:] - m[:, :-1]) / gaps - matvec(A, m[:, :-1])
    return AffineProcess((Linearisation(A, b),) * ends, steps.first @ m[:, 0], steps.first)


def prior_process(problem: Posed, ends: int) -> AffineProcess:
    """Return the prior with its drift linearised at its own moments, one interval after the other."""
    model, xi, weights = problem.model, jnp.asarray(problem.rule.nodes), jnp.asarray(problem.rule.weights)
    Q, initial = jnp.asarray(model.noise.Q), model.initial_state()
    m0, S0 = jnp.asarray(initial.mean), jnp.asarray(initial.cov)
    over_nodes = jax.vmap(model.drift, in_axes=(1, None), out_axes=1)

    def step(carry, interval):
        m, S = carry
        t, gap = interval
        L = blocks.cholesky(S)
        f = over_nodes(m[:, None] + L @ xi, t)
        A = (f * weights) @ xi.T @ blocks.inverse_lower(L)
        b = f @ weights - A @ m
        T = jnp.eye(len(m)) + gap * A
        return (T @ m + gap * b, T @ S @ T.T + gap * Q), (A, b)

    gaps = jnp.where(problem.data.in_chain[1:], problem.data.gaps, 0.0)
    _, (A, b) = jax.lax.scan(step, (m0, S0), (times_first(problem.data.at_nodes[:-1]), gaps))
    drift = Linearisation(jnp.moveaxis(A, 0, -1), b.T)
    P_inv, _ = inverse(S0)
    return AffineProcess((drift,) * ends, P_inv @ m0, P_inv)


class FixedPointCarry(eqx.Module):
    """The state of the algorithm between two passes: the current process, and the best one so far."""

    process: AffineProcess
    target: Target
    elbo: Float[Array, ""]
    best: AffineProcess
    best_elbo: Float[Array, ""]
    omega: Float[Array, ""]
    iteration: Int[Array, ""]
    status: Int[Array, ""]


class FixedPoint(Algorithm):
    """The fixed-point iteration with step size ω.

    With a safeguard, a step that lowers the bound is rejected and ω is halved; after accepted steps ω grows again.
    """

    omega: Float[Array, ""]
    scheme: Scheme
    safeguard: bool = eqx.field(static=True)
    from_prior: bool = eqx.field(static=True)
    engine: Engine = eqx.field(static=True, default="auto")

    def blank_start(self, problem: Posed) -> NaturalChain:
        d, N = problem.model.dim, len(problem.data.times)
        return NaturalChain(np.zeros((d, N)), np.zeros((d, d, N)), np.zeros((d, d, N - 1)))

    def begin(self, problem: Posed, start: Any, given: Bool[Array, ""]) -> FixedPointCarry:
        chain = start if isinstance(start, NaturalChain) else compose(problem, start)
        eta = select(given, chain, compose(problem, starting_sites(problem)))
        process = affine_of(smooth(eta, self.engine).moments, problem.data.gaps, self.scheme.ends)
        if self.from_prior:
            process = select(given, process, prior_process(problem, self.scheme.ends))
        nowhere = tuple(0.0 * q.b for q in process.drift)
        target = Target(tuple(q.A for q in process.drift), nowhere, nowhere, process.h0, process.J0)
        low = jnp.asarray(-jnp.inf)
        count, running = jnp.asarray(-1), jnp.asarray(int(Status.RUNNING))
        return FixedPointCarry(process, target, low, process, low, jnp.asarray(self.omega), count, running)

    def common(self, carry: FixedPointCarry) -> Carry:
        """Return the common part, with the best process so far as `sites`; the chain is computed after the run."""
        return Carry(None, carry.best_elbo, None, carry.best, carry.iteration, carry.status)

    def step(self, problem: Posed, carry: FixedPointCarry, limits: Limits) -> tuple[FixedPointCarry, Record]:
        first = carry.iteration < 0
        omega = jnp.where(first, 0.0, carry.omega)
        trial = evaluate_process(problem, self.scheme, damped(carry.process, carry.target, omega, self.safeguard))
        accept = trial.ok
        if self.safeguard:
            accept &= first | (trial.elbo >= carry.elbo - rounding(problem, carry.elbo))
        iteration = carry.iteration + accept
        omega, failed = carry.omega, int(Status.DIVERGED)
        if self.safeguard:
            grown = jnp.where(first, omega, jnp.minimum(self.omega, _GROWTH * omega))
            omega = jnp.where(accept, grown, _SHRINKAGE * omega)
            failed = jnp.where(omega < _SMALLEST, int(Status.STALLED), int(Status.RUNNING))
        status = jnp.where(accept, carry.status, jnp.where(first, int(Status.BAD_START), failed))
        status = settle(status, iteration, accept, trial.distance < limits.tolerance, limits)
        better = accept & (trial.elbo > carry.best_elbo)
        process, target, elbo = select(
            accept, (trial.process, trial.target, trial.elbo), (carry.process, carry.target, carry.elbo)
        )
        best, best_elbo = select(better, (trial.process, trial.elbo), (carry.best, carry.best_elbo))
        new = FixedPointCarry(process, target, elbo, best, best_elbo, omega, iteration, status)
        return new, Record(accept, elbo, carry.omega, trial.distance)
