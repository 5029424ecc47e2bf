"""A linear chain with sites in square-root form: slower than the elimination in `smoother`, but accurate at any scale.

The chain is u_0 = e_0 + R_0 ξ, u_{m+1} = T_m u_m + e_m + R_m ξ with standard normal ξ, reweighted on its nodes by
exp(hᵀu − ½uᵀJu − ½‖Xu‖²). The natural parameters of such a chain are sums of numbers that may differ by more than
sixteen orders of magnitude, for example if the noise of a step is tiny compared with the spread of the state. The
smoother cannot recover digits that were lost in these sums. Here no subtraction can cancel.

A backward pass, from the last node to the first, computes messages exp(hᵀu − ½uᵀJu) from all later nodes. In units of
the noise of a step the message is added to the identity,
    B = I + Rᵀ(J + XᵀX)R = UᵀU,   Σ_q = R B⁻¹ Rᵀ,   M = R B⁻¹ R⁻¹,   q(u₊ | u) = N(M(Tu + e) + Σ_q h, Σ_q),
and the precision of the message before the step, W − WΣ_qW = R⁻ᵀ(I − B⁻¹)R⁻¹ with W = (RRᵀ)⁻¹, is computed as a sum of
squares,
    I − B⁻¹ = B⁻¹(RᵀJR)B⁻¹ + (XRB⁻¹)ᵀ(XRB⁻¹) + (I − B⁻¹)².
A forward pass computes roots of the covariances by QR. Time is the first axis in this module, because LAPACK treats the
small matrices one by one.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Bool, Float

from girsanov._core.types import Array


class Step(eqx.Module):
    """The steps u₊ = T u + e + R ξ. The first entry is not a step but the initial state, with T = 0."""

    T: Float[Array, "N d d"]
    e: Float[Array, "N d"]
    R: Float[Array, "N d d"]


class NodeSites(eqx.Module):
    """The factor exp(hᵀu − ½uᵀJu − ½‖Xu‖²) of every node; J may be indefinite."""

    h: Float[Array, "N d"]
    J: Float[Array, "N d d"]
    X: Float[Array, "N D d"]


class RootChain(eqx.Module):
    """A Gaussian Markov chain, given by its transitions u_{m+1} = T_m u_m + c_m + root_m ξ and its marginals.

    `turn` and `pull` are computed directly. As differences of two computed numbers they would consist of rounding
    errors if a step is short.

    Attributes:
        m: mean of every node.
        L: lower-triangular root of the covariance of every node, S = LLᵀ.
        T: matrix T of every step; the first entry is that of the initial state.
        root: root of the noise covariance of every step; the first entry is that of the initial state.
        turn: T minus the matrix T of the chain before reweighting.
        pull: mean after each step minus T m + e, the mean to which the original step leads from the mean m before it.
    """

    m: Float[Array, "N d"]
    L: Float[Array, "N d d"]
    T: Float[Array, "N d d"]
    root: Float[Array, "N d d"]
    turn: Float[Array, "N d d"]
    pull: Float[Array, "N d"]

    @property
    def S(self) -> Float[Array, "N d d"]:
        """Covariance of every node, S = LLᵀ."""
        return self.L @ jnp.swapaxes(self.L, 1, 2)

    @property
    def C(self) -> Float[Array, "M d d"]:
        """Lag-one covariances Cov(u_{m+1}, u_m) = T S."""
        return self.T[1:] @ self.S[:-1]


def solve(steps: Step, sites: NodeSites) -> tuple[RootChain, Float[Array, ""], Bool[Array, ""]]:
    """Return the reweighted chain, the logarithm of its normalising constant, and whether it is a density."""
    d = steps.e.shape[1]
    eye = jnp.eye(d)

    def backward(message, node):
        J_later, h_later, log_z = message
        T, e, R, h, J, X = node
        J, h = J + J_later, h + h_later
        XR = X @ R
        G = R.T @ J @ R
        U = _positive(jnp.linalg.qr(jnp.concatenate([XR, jnp.linalg.cholesky(eye + G).T]), mode="r"))
        U_inv, R_inv = solve_triangular(U, eye), solve_triangular(R, eye, lower=True)
        B_inv = U_inv @ U_inv.T
        known, XRB = eye - B_inv, XR @ B_inv
        known = B_inv @ G @ B_inv + XRB.T @ XRB + known @ known
        W_known = R_inv.T @ (0.5 * (known + known.T)) @ R_inv
        root, M = R @ U_inv, R @ B_inv @ R_inv
        spread = root.T @ h
        log_z = log_z - jnp.log(jnp.diagonal(U)).sum() + 0.5 * spread @ spread + h @ M @ e - 0.5 * e @ W_known @ e
        J_before = T.T @ W_known @ T
        message = 0.5 * (J_before + J_before.T), T.T @ (M.T @ h - W_known @ e), log_z
        return message, (T, e, M @ T, R @ known @ R_inv, root @ spread, root)

    nothing = jnp.zeros((d, d)), jnp.zeros(d), jnp.zeros(())
    nodes = (steps.T, steps.e, steps.R, sites.h, sites.J, sites.X)
    (_, _, log_z), per_step = jax.lax.scan(backward, nothing, nodes, reverse=True)

    def forward(before, step):
        m, L = before
        T, e, T_q, back, towards, root = step  # back = I − M
        there = T @ m + e
        pull = towards - back @ there
        m, L = there + pull, _positive(jnp.linalg.qr(jnp.concatenate([(T_q @ L).T, root.T]), mode="r")).T
        return (m, L), (m, L, T_q, root, -back @ T, pull)

    _, q = jax.lax.scan(forward, (jnp.zeros(d), jnp.zeros((d, d))), per_step)
    q = RootChain(*q)
    return q, log_z, jnp.isfinite(log_z) & jnp.isfinite(q.m).all() & jnp.isfinite(q.L).all()


def _positive(U: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """Change the signs of the rows of a triangular factor of QR, so that its diagonal is not negative."""
    return jnp.where(jnp.diagonal(U) < 0.0, -1.0, 1.0)[:, None] * U


def divergence(q: RootChain, p: RootChain) -> Float[Array, " N"]:
    """Return the contributions of the steps to KL(q ‖ p): for each, E_q of the divergence of the transitions."""

    def step(T_q, root_q, T_p, root_p, m, m_before, L_before, m_p, m_p_before):
        inverse = jnp.linalg.inv(root_p)
        Z = inverse @ root_q
        # q's mean minus the mean to which p's transition leads from q's mean before the step
        off = inverse @ (m - m_p - T_p @ (m_before - m_p_before))
        turned = inverse @ (T_q - T_p) @ L_before
        sizes = (Z**2).sum() - Z.shape[0] - 2.0 * (jnp.linalg.slogdet(Z)[1])
        return 0.5 * (sizes + off @ off + (turned**2).sum())

    def before(a):
        return jnp.concatenate([jnp.zeros_like(a[:1]), a[:-1]])

    return jax.vmap(step)(q.T, q.root, p.T, p.root, q.m, before(q.m), before(q.L), p.m, before(p.m))
