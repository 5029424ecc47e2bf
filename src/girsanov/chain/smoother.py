"""Moments of a chain from its natural parameters, by a sequential or a partitioned elimination."""

from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from girsanov._core.compile import small_loops_are_functions
from girsanov._core.types import Array
from girsanov.chain import blocks
from girsanov.chain.blocks import inverse, matmul, matvec, transpose
from girsanov.chain.moments import ExpectationChain, Moments, expectations
from girsanov.chain.natural import NaturalChain

Engine = Literal["auto", "sequential", "partitioned"]
ENGINES: tuple[Engine, ...] = ("auto", "sequential", "partitioned")


class Smoothed(eqx.Module):
    """The result of smoothing a chain.

    Attributes:
        moments: means, covariances and lag-one covariances.
        log_det: log determinant of the joint precision matrix.
        ok: whether every pivot of the elimination was positive. If not, the natural parameters are not those of a
            density, and the other fields are meaningless.
    """

    moments: Moments
    log_det: Float[Array, ""]
    ok: Bool[Array, ""]


# For each dimension d, the number of nodes from which the partitioned elimination is worth its longer compilation,
# measured on two cores; for other d a single scan is always faster. A scan whose body XLA compiles to one function is
# fast for every d. If XLA does not (see `_core.compile`), only a body of a few scalars is fast.
_PARTITION_FROM = {1: 1_000_000}
_PARTITION_FROM_SLOW_LOOPS = {1: 1_000_000, 2: 200_000, 3: 3_000, 4: 10_000}
_PARTITION_TANGENT_FROM_SLOW_LOOPS = {1: 1_000_000, 2: 2_000, 3: 3_000, 4: 10_000}


def smooth(chain: NaturalChain, engine: Engine = "auto") -> Smoothed:
    """Return the moments of the chain, by the given engine or ("auto") by the faster one for its d and N."""
    return _engine(chain, engine, _PARTITION_FROM_SLOW_LOOPS)(chain)


def tangent(chain: NaturalChain, direction: NaturalChain, engine: Engine = "auto") -> ExpectationChain:
    """Return the derivative F · direction of the expectation parameters, with the Fisher matrix F = ∂μ/∂η."""
    smoother = _engine(chain, engine, _PARTITION_TANGENT_FROM_SLOW_LOOPS)
    return jax.jvp(lambda eta: expectations(smoother(eta).moments), (chain,), (direction,))[1]


def _engine(chain: NaturalChain, engine: Engine, slow_loops: dict[int, int]) -> Callable[[NaturalChain], Smoothed]:
    d, n = chain.h.shape
    if engine == "auto":
        partition_from = _PARTITION_FROM if d == 1 or small_loops_are_functions() else slow_loops
        engine = "partitioned" if d in partition_from and n >= partition_from[d] else "sequential"
    return sequential if engine == "sequential" else partitioned


def _log_det_and_ok(pivots: Float[Array, "..."]) -> tuple[Float[Array, ""], Bool[Array, ""]]:
    ok = jnp.all(pivots > 0.0) & jnp.all(jnp.isfinite(pivots))
    return jnp.log(jnp.where(ok, pivots, 1.0)).sum(), ok


def sequential(chain: NaturalChain) -> Smoothed:
    """Smooth by forward elimination and backward substitution, node by node.

    Forward   J̃_{m+1} = J_{m+1} − K_m J̃_m⁻¹ K_mᵀ,  h̃_{m+1} = h_{m+1} − K_m J̃_m⁻¹ h̃_m
    Backward  m_m = J̃_m⁻¹ h̃_m − G m_{m+1},  S_m = J̃_m⁻¹ + G S_{m+1} Gᵀ,  C_m = −S_{m+1} Gᵀ,  G = J̃_m⁻¹ K_mᵀ
    """
    h, J, K = (jnp.moveaxis(a, -1, 0) for a in (chain.h, chain.J, chain.K))

    def forward(carry, node):
        Jt, ht = carry
        K_m, J_next, h_next = node
        P, pivots = inverse(Jt)
        G, v = matmul(P, transpose(K_m)), matvec(P, ht)
        return (J_next - matmul(K_m, G), h_next - matvec(K_m, v)), (P, G, v, pivots)

    (J_last, h_last), (P, G, v, pivots) = jax.lax.scan(forward, (J[0], h[0]), (K, J[1:], h[1:]))
    S_last, last_pivots = inverse(J_last)
    m_last = matvec(S_last, h_last)

    def backward(carry, node):
        m_next, S_next = carry
        P_m, G_m, v_m = node
        C = -matmul(S_next, transpose(G_m))
        m, S = v_m - matvec(G_m, m_next), P_m - matmul(G_m, C)
        return (m, S), (m, S, C)

    _, (m, S, C) = jax.lax.scan(backward, (m_last, S_last), (P, G, v), reverse=True)
    m, S = jnp.concatenate([m, m_last[None]]), jnp.concatenate([S, S_last[None]])
    log_det, ok = _log_det_and_ok(jnp.concatenate([pivots, last_pivots[None]]))
    return Smoothed(Moments(*(jnp.moveaxis(a, 0, -1) for a in (m, S, C))), log_det, ok)


def partitioned(chain: NaturalChain, lanes: int | None = None) -> Smoothed:
    """Smooth by elimination in two levels: first in B segments in parallel, then in the chain of their last nodes.

    In every segment all nodes but the last are eliminated. This carries along the coupling K̃ to z, the last node of
    the previous segment, and what is added to the precision and potential of z. The last nodes of the segments form a
    chain of B nodes. Given its moments, every segment is run backwards:
        x_m = J̃⁻¹h̃ − G x_{m+1} − H z + ε,   G = J̃⁻¹Kᵀ,  H = J̃⁻¹K̃
        C = −S₊Gᵀ − R₊Hᵀ,   R_m = Cov(x_m, z) = −G R₊ − H S_z,   S_m = J̃⁻¹ − G C − H R_mᵀ
    """
    d, n = chain.h.shape
    B = lanes or max(1, round(n**0.5))
    L = -(-n // B)
    pad = B * L - n  # padding nodes come before the chain; they are standard normal and independent of all others
    eye = jnp.eye(d, dtype=chain.J.dtype)[:, :, None]
    h = jnp.pad(chain.h, ((0, 0), (pad, 0)))
    J = jnp.concatenate([jnp.broadcast_to(eye, (d, d, pad)), chain.J], -1)
    K = jnp.pad(chain.K, ((0, 0), (0, 0), (pad + 1, 0)))  # K[m] couples m to m − 1

    def segments(a):  # (..., B·L) -> (L, ..., B)
        a = a.reshape(*a.shape[:-1], B, L)
        return jnp.moveaxis(a, -1, 0)

    h, J, K = segments(h), segments(J), segments(K)

    def forward(carry, node):
        Jt, ht, Kt, Jz, hz = carry
        K_next, J_next, h_next = node
        P, pivots = inverse(Jt)
        G, H, v = matmul(P, transpose(K_next)), matmul(P, Kt), matvec(P, ht)
        Kt_T = transpose(Kt)
        Jz, hz = Jz - matmul(Kt_T, H), hz - matvec(Kt_T, v)
        carry = J_next - matmul(K_next, G), h_next - matvec(K_next, v), -matmul(K_next, H), Jz, hz
        return carry, (P, G, H, v, pivots)

    start = (J[0], h[0], K[0], jnp.zeros_like(J[0]), jnp.zeros_like(h[0]))
    (J_end, h_end, K_end, Jz, hz), (P, G, H, v, pivots) = jax.lax.scan(forward, start, (K[1:], J[1:], h[1:]))

    # The chain of the last nodes: that of segment b also receives what segment b + 1 adds to its z.
    ends = NaturalChain(
        h_end + jnp.roll(hz, -1, -1).at[..., -1].set(0.0),
        J_end + jnp.roll(Jz, -1, -1).at[..., -1].set(0.0),
        K_end[..., 1:],
    )
    top = sequential(ends)
    m_end, S_end, C_end = top.moments.m, top.moments.S, top.moments.C
    zero_first = ((0, 0), (1, 0))
    m_z, S_z = jnp.pad(m_end[:, :-1], zero_first), jnp.pad(S_end[..., :-1], ((0, 0), *zero_first))
    R_end = jnp.pad(C_end, ((0, 0), *zero_first))

    def backward(carry, node):
        m_next, S_next, R_next = carry
        P_m, G_m, H_m, v_m = node
        C = -matmul(S_next, transpose(G_m)) - matmul(R_next, transpose(H_m))
        R = -matmul(G_m, R_next) - matmul(H_m, S_z)
        m = v_m - matvec(G_m, m_next) - matvec(H_m, m_z)
        S = P_m - matmul(G_m, C) - matmul(H_m, transpose(R))
        return (m, S, R), (m, S, C)

    (_, _, R_first), (m, S, C) = jax.lax.scan(backward, (m_end, S_end, R_end), (P, G, H, v), reverse=True)

    def joined(a, last):  # (L−1, ..., B) and (..., B) -> (..., B·L)
        a = jnp.moveaxis(jnp.concatenate([a, last[None]]), 0, -1)
        return a.reshape(*a.shape[:-2], B * L)

    # The lag-one covariance across the border of two segments is R of the first node; it belongs to the step from z.
    C = jnp.concatenate([R_first[None], C])
    C = jnp.moveaxis(C, 0, -1).reshape(d, d, B * L)[..., pad + 1 :]
    m, S = joined(m, m_end)[..., pad:], joined(S, S_end)[..., pad:]
    log_det, ok = _log_det_and_ok(pivots)
    S = blocks.symmetrise(S)
    return Smoothed(Moments(m, S, C), log_det + top.log_det, ok & top.ok)
