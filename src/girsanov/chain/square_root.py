"""A linear chain with sites in square-root form: slower than the elimination in `smoother`, and exact at any scale.

The chain is u_0 = e_0 + R_0 ξ, u_{m+1} = T_m u_m + e_m + R_m ξ with standard normal ξ, reweighted on its nodes by
exp(hᵀu − ½uᵀJu − ½‖Xu‖²). The natural parameters of such a chain are sums of numbers that may differ by more than
sixteen digits, as where the noise of a step is tiny against the spread of the state: what they lose is lost for the
smoother. Here nothing is subtracted that could cancel. From the last node to the first, what is known from later on is
a message exp(hᵀu − ½uᵀJu); in units of the step's own noise it adds to an identity,
    B = I + Rᵀ(J + XᵀX)R = UᵀU,   Σ_q = R B⁻¹ Rᵀ,   M = R B⁻¹ R⁻¹,   q(u₊ | u) = N(M(Tu + e) + Σ_q h, Σ_q),
and the message that it leaves, W − WΣ_qW = R⁻ᵀ(I − B⁻¹)R⁻¹ with W = (RRᵀ)⁻¹, is taken as the sum of squares
    I − B⁻¹ = B⁻¹(RᵀJR)B⁻¹ + (XRB⁻¹)ᵀ(XRB⁻¹) + (I − B⁻¹)².
From the first node to the last, roots of covariances follow by QR. Time is the first axis here: the small matrices go
through LAPACK one by one.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Bool, Float

from girsanov._core.types import Array


class Step(eqx.Module):
    """u₊ = T u + e + R ξ, for every step; the first one stands for the initial state, with T = 0."""

    T: Float[Array, "N d d"]
    e: Float[Array, "N d"]
    R: Float[Array, "N d d"]


class NodeSites(eqx.Module):
    """exp(hᵀu − ½uᵀJu − ½‖Xu‖²) on every node; J may be indefinite."""

    h: Float[Array, "N d"]
    J: Float[Array, "N d d"]
    X: Float[Array, "N D d"]


class RootChain(eqx.Module):
    """A Gaussian Markov chain by its own transitions, u_{m+1} = T_m u_m + c_m + root_m ξ, and its marginals.

    - m, L: mean and root of the covariance of every node, S = LLᵀ.
    - T, root: of every step, the first one again standing for the initial state.
    - turn, pull: by how much its steps differ from those that it was made of: T less their T, and its mean after the
      step less theirs. Taken as differences of the two they would be rounding where a step is short.
    """

    m: Float[Array, "N d"]
    L: Float[Array, "N d d"]
    T: Float[Array, "N d d"]
    root: Float[Array, "N d d"]
    turn: Float[Array, "N d d"]
    pull: Float[Array, "N d"]

    @property
    def S(self) -> Float[Array, "N d d"]:
        return self.L @ jnp.swapaxes(self.L, 1, 2)

    @property
    def C(self) -> Float[Array, "M d d"]:
        """Cov(u_{m+1}, u_m) = T S."""
        return self.T[1:] @ self.S[:-1]


def solve(steps: Step, sites: NodeSites) -> tuple[RootChain, Float[Array, ""], Bool[Array, ""]]:
    """The reweighted chain, the logarithm of its normalising constant, and whether it is a density."""
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
    """The triangular factor of a QR decomposition with a diagonal that is not negative."""
    return jnp.where(jnp.diagonal(U) < 0.0, -1.0, 1.0)[:, None] * U


def divergence(q: RootChain, p: RootChain) -> Float[Array, " N"]:
    """KL(q ‖ p), step by step: Σ E_q KL between the transitions."""

    def step(T_q, root_q, T_p, root_p, m, m_before, L_before, m_p, m_p_before):
        inverse = jnp.linalg.inv(root_p)
        Z = inverse @ root_q
        # the mean that p's transition gives from q's state, less q's own
        off = inverse @ (m - m_p - T_p @ (m_before - m_p_before))
        turned = inverse @ (T_q - T_p) @ L_before
        sizes = (Z**2).sum() - Z.shape[0] - 2.0 * (jnp.linalg.slogdet(Z)[1])
        return 0.5 * (sizes + off @ off + (turned**2).sum())

    def before(a):
        return jnp.concatenate([jnp.zeros_like(a[:1]), a[:-1]])

    return jax.vmap(step)(q.T, q.root, p.T, p.root, q.m, before(q.m), before(q.L), p.m, before(p.m))
