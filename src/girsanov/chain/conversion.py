"""From moments back to natural parameters, and the chain of a linear-Gaussian transition model."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from girsanov._core.types import Array
from girsanov.chain import blocks
from girsanov.chain.blocks import inverse, matmul, matvec, transpose
from girsanov.chain.moments import Moments
from girsanov.chain.natural import NaturalChain
from girsanov.chain.square_root import RootChain


def linear_chain(
    T: Float[Array, "d d M"],
    c: Float[Array, "d M"],
    W: Float[Array, "d d M"],
    mean: Float[Array, " d"],
    precision: Float[Array, "d d"],
) -> NaturalChain:
    """x_0 ~ N(mean, precision⁻¹),  x_{m+1} | x_m ~ N(T_m x_m + c_m, W_m⁻¹).

    Each transition puts TᵀWT and −TᵀWc on its left node, W and Wc on its right node and −WT between them.
    """
    WT, Wc = matmul(W, T), matvec(W, c)
    T_t = transpose(T)
    h = jnp.pad(-matvec(T_t, Wc), ((0, 0), (0, 1))) + jnp.pad(Wc, ((0, 0), (1, 0)))
    J = jnp.pad(matmul(T_t, WT), ((0, 0), (0, 0), (0, 1))) + jnp.pad(W, ((0, 0), (0, 0), (1, 0)))
    return NaturalChain(h.at[:, 0].add(precision @ mean), J.at[:, :, 0].add(precision), -WT)


def to_natural(q: Moments) -> NaturalChain:
    """The inverse of smoothing: T_m = C_m S_m⁻¹ and W_m⁻¹ = S_{m+1} − T_m C_mᵀ are q's own transitions."""
    S_inv, _ = inverse(q.S)
    T = matmul(q.C, S_inv[..., :-1])
    c = q.m[:, 1:] - matvec(T, q.m[:, :-1])
    W, _ = inverse(blocks.symmetrise(q.S[..., 1:] - matmul(T, transpose(q.C))))
    return linear_chain(T, c, W, q.m[:, 0], S_inv[..., 0])


def from_roots(q: RootChain) -> tuple[Moments, NaturalChain]:
    """The two usual forms of a square-root chain, on the host; the natural one as exactly as it can be written."""
    m, L, T, root = (np.asarray(a) for a in (q.m, q.L, q.T, q.root))
    S = L @ np.swapaxes(L, 1, 2)
    inverse = np.linalg.inv(root)
    W = np.swapaxes(inverse, 1, 2) @ inverse
    WT = W[1:] @ T[1:]
    J = W.copy()
    J[:-1] += np.swapaxes(T[1:], 1, 2) @ WT
    h = np.einsum("mij,mj->mi", J, m)
    h[1:] -= np.einsum("mij,mj->mi", WT, m[:-1])
    h[:-1] -= np.einsum("mji,mj->mi", WT, m[1:])
    m, S, C, h, J, K = (np.moveaxis(a, 0, -1) for a in (m, S, T[1:] @ S[:-1], h, J, -WT))
    return Moments(m, S, C), NaturalChain(h, J, K)
