"""Solvers for the ordinary differential equations of VDP on a grid: moments forwards, multipliers backwards in time.

    ṁ = A m + b,   Ṡ = A S + S Aᵀ + Q
    λ̇ = −Aᵀλ − ∂ℓ/∂m,   Ψ̇ = −AᵀΨ − ΨA − ∂ℓ/∂S,   ℓ = −½E‖f − A x − b‖²_{Q⁻¹}

λ and Ψ are the derivatives of the bound in m(t) and S(t). They are zero after the last node, and jump by the gradient
of Σ E log p(y|x) at every observation. A scheme defines at which ends of an interval A and b are stored.
"""

import abc
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from girsanov._core.types import Array
from girsanov.chain.blocks import eye_like, inverse, matmul, matvec, symmetrise, transpose
from girsanov.chain.linear_sde import Linearisation
from girsanov.model.diffusions import Diffusion

_MAX_STEPS = 4096  # largest number of steps of the adaptive solver within one interval


class Path(NamedTuple):
    """Means and covariances of q at the nodes, and the transition matrix T of every interval."""

    m: Float[Array, "d N"]
    S: Float[Array, "d d N"]
    T: Float[Array, "d d M"]


class Slopes(NamedTuple):
    """Derivatives with respect to means and covariances: of ℓ, of the data term, or of the bound (λ and Ψ)."""

    m: Float[Array, "d *M"]
    S: Float[Array, "d d *M"]


class Multipliers(NamedTuple):
    """The multipliers λ and Ψ: `ends` at each stored end of the intervals, `first` at the first node."""

    ends: tuple[Slopes, ...]
    first: Slopes


class Scheme(eqx.Module):
    """A solver for the equations of the moments and of the multipliers.

    `ends` is 1 if A and b are stored at the left end of every interval, and 2 if at both ends, with equal weights.
    """

    ends: eqx.AbstractVar[int]

    @abc.abstractmethod
    def forward(self, drift: tuple[Linearisation, ...], gaps, Q, m0, S0) -> Path:
        """Return the moments of q, from its drift and the mean and covariance of the first node."""

    @abc.abstractmethod
    def backward(self, drift: tuple[Linearisation, ...], gaps, local: tuple[Slopes, ...], jumps: Slopes) -> Multipliers:
        """Return the multipliers, from the derivatives of ℓ at the stored ends and the jumps at the nodes."""

    @abc.abstractmethod
    def slope(self, EJ, Psi, noise: Diffusion, gaps) -> Float[Array, "d d M"]:
        """Return the right-hand side of the fixed-point equation for A."""


def _fixed_point(EJ, Psi, noise: Diffusion):
    """Return A = E[∇f] + 2QΨ."""
    return EJ + 2.0 * matmul(jnp.asarray(noise.Q)[:, :, None], Psi)


def _by_node(*arrays):
    return tuple(jnp.moveaxis(a, -1, 0) for a in arrays)


def _by_time(*arrays):
    return tuple(jnp.moveaxis(a, 0, -1) for a in arrays)


class Euler(Scheme):
    """Euler's scheme, as in the paper: q is the Euler–Maruyama chain of its drift.

    With `adjoint`, the multipliers are the derivatives of the discretised bound itself instead of Euler steps of
    their equations: Ψ_m = TᵀΨ_{m+1}T + Δ∂ℓ/∂S with T = I + ΔA, and A = E[∇f] + 2QΨT. The two agree as dt falls, and the
    adjoint form is stable next to precise observations.
    """

    adjoint: bool = eqx.field(static=True, default=False)
    ends: int = eqx.field(static=True, default=1)

    def forward(self, drift, gaps, Q, m0, S0) -> Path:
        (q,) = drift
        T, c = eye_like(q.A) + gaps * q.A, gaps * q.b

        def step(carry, interval):
            m, S = carry
            T, c, gap = interval
            carry = matvec(T, m) + c, matmul(T, matmul(S, transpose(T))) + gap * Q
            return carry, carry

        _, (m, S) = jax.lax.scan(step, (m0, S0), _by_node(T, c, gaps))
        m, S = _by_time(jnp.concatenate([m0[None], m]), jnp.concatenate([S0[None], S]))
        return Path(m, S, T)

    def backward(self, drift, gaps, local, jumps) -> Multipliers:
        (q,), (slope,) = drift, local
        jump_m, jump_S = _by_node(*jumps)

        def step(after, interval):
            lam, Psi = after
            A, gap, g_m, g_S, j_m, j_S = interval
            A_t = transpose(A)
            PsiA = matmul(Psi, A)
            change = matmul(A_t, Psi) + PsiA + g_S
            if self.adjoint:
                change = change + gap * matmul(A_t, PsiA)
            before = lam + gap * (matvec(A_t, lam) + g_m) + j_m, symmetrise(Psi + gap * change) + j_S
            return before, after

        intervals = (*_by_node(q.A, gaps, *slope), jump_m[:-1], jump_S[:-1])
        first, right = jax.lax.scan(step, (jump_m[-1], jump_S[-1]), intervals, reverse=True)
        return Multipliers((Slopes(*_by_time(*right)),), Slopes(*first))

    def slope(self, EJ, Psi, noise, gaps):
        A = _fixed_point(EJ, Psi, noise)
        if not self.adjoint:
            return A
        # A = E[∇f] + 2QΨ(I + ΔA) is equivalent to (Q⁻¹ − 2ΔΨ) A = Q⁻¹(E[∇f] + 2QΨ). The matrix on the left is
        # symmetric, and positive definite where Ψ is negative.
        Q_inv = jnp.asarray(noise.precision)[:, :, None]
        return matmul(inverse(Q_inv - 2.0 * gaps * Psi)[0], matmul(Q_inv, A))


class Adaptive(Scheme):
    """A Runge–Kutta method of order five with adaptive steps inside each interval, where A and b are linear in time."""

    rtol: float = eqx.field(static=True, default=1e-6)
    atol: float = eqx.field(static=True, default=1e-9)
    ends: int = eqx.field(static=True, default=2)

    def _solve(self, field, start, interval):
        """Integrate over one interval, with its time scaled to [0, 1]; NaN where the solver fails."""
        import diffrax

        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(field),
            diffrax.Tsit5(),
            t0=0.0,
            t1=1.0,
            dt0=None,
            y0=start,
            args=interval,
            stepsize_controller=diffrax.PIDController(rtol=self.rtol, atol=self.atol),
            saveat=diffrax.SaveAt(t1=True),
            max_steps=_MAX_STEPS,
            throw=False,
        )
        good = solution.result == diffrax.RESULTS.successful
        return jax.tree.map(lambda a: jnp.where(good, a[0], jnp.nan), solution.ys)

    def forward(self, drift, gaps, Q, m0, S0) -> Path:
        left, right = drift
        eye = jnp.eye(Q.shape[0])

        def field(s, y, interval):
            m, S, T = y
            A, b, gap = _between(s, interval)
            AS = A @ S
            return gap * (A @ m + b), gap * (AS + AS.T + Q), gap * (A @ T)

        def step(carry, interval):
            m, S, T = self._solve(field, (*carry, eye), interval)
            return (m, S), (m, S, T)

        intervals = (_by_node(left.A, left.b), _by_node(right.A, right.b), gaps)
        _, (m, S, T) = jax.lax.scan(step, (m0, S0), intervals)
        m, S, T = _by_time(jnp.concatenate([m0[None], m]), jnp.concatenate([S0[None], S]), T)
        return Path(m, symmetrise(S), T)

    def backward(self, drift, gaps, local, jumps) -> Multipliers:
        left, right = drift
        jump_m, jump_S = _by_node(*jumps)

        def field(s, y, interval):
            lam, Psi = y
            A, _, g_m, g_S, gap = _between(1.0 - s, interval)
            PsiA = Psi @ A
            return gap * (A.T @ lam + g_m), gap * (PsiA + PsiA.T + g_S)

        def step(at_right, this):
            interval, j_m, j_S = this
            lam, Psi = at_left = self._solve(field, at_right, interval)
            return (lam + j_m, Psi + j_S), (at_left, at_right)

        ends = [_by_node(q.A, q.b, *slope) for q, slope in zip((left, right), local, strict=True)]
        this = ((*ends, gaps), jump_m[:-1], jump_S[:-1])
        first, at = jax.lax.scan(step, (jump_m[-1], jump_S[-1]), this, reverse=True)
        return Multipliers(tuple(Slopes(*_by_time(*end)) for end in at), Slopes(*first))

    def slope(self, EJ, Psi, noise, gaps):
        return _fixed_point(EJ, Psi, noise)


def _between(s, interval):
    """Interpolate linearly at the fraction s of an interval; return the values and the length of the interval."""
    left, right, gap = interval
    return *((1.0 - s) * a + s * b for a, b in zip(left, right, strict=True)), gap
