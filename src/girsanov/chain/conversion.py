"""Natural parameters of a chain from its transitions, from its moments or from its square-root form."""

from typing import NamedTuple

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
    """Return the chain with x_0 ~ N(mean, precision⁻¹) and x_{m+1} | x_m ~ N(T_m x_m + c_m, W_m⁻¹).

    Each transition adds TᵀWT and −TᵀWc to its left node, W and Wc to its right node, and −WT to their coupling.
    """
    WT, Wc = matmul(W, T), matvec(W, c)
    T_t = transpose(T)
    h = jnp.pad(-matvec(T_t, Wc), ((0, 0), (0, 1))) + jnp.pad(Wc, ((0, 0), (1, 0)))
    J = jnp.pad(matmul(T_t, WT), ((0, 0), (0, 0), (0, 1))) + jnp.pad(W, ((0, 0), (0, 0), (1, 0)))
    return NaturalChain(h.at[:, 0].add(precision @ mean), J.at[:, :, 0].add(precision), -WT)


class OwnSteps(NamedTuple):
    """The transitions x_{m+1} | x_m ~ N(T_m x_m + c_m, W_m⁻¹) of a chain, and the precision `first` of its first state.

    The name distinguishes them from the transitions of the model that the chain approximates.
    """

    T: Float[Array, "d d M"]
    c: Float[Array, "d M"]
    W: Float[Array, "d d M"]
    first: Float[Array, "d d"]


def own_steps(q: Moments) -> OwnSteps:
    """Return the chain's transitions, T_m = C_m S_m⁻¹ and W_m⁻¹ = S_{m+1} − T_m C_mᵀ.

    `transitions.transitions` computes T_m and a root of W_m⁻¹ to more digits, from the natural parameters.
    """
    S_inv, _ = inverse(q.S)
    T = matmul(q.C, S_inv[..., :-1])
    c = q.m[:, 1:] - matvec(T, q.m[:, :-1])
    W, _ = inverse(blocks.symmetrise(q.S[..., 1:] - matmul(T, transpose(q.C))))
    return OwnSteps(T, c, W, S_inv[..., 0])


def to_natural(q: Moments) -> NaturalChain:
    """Return the natural parameters of the chain with these moments; this is the inverse of `smoother.smooth`."""
    T, c, W, first = own_steps(q)
    return linear_chain(T, c, W, q.m[:, 0], first)


def from_roots(q: RootChain) -> tuple[Moments, NaturalChain]:
    """Return moments and natural parameters of a square-root chain, in NumPy arrays.

    The natural parameters come from the roots, not from the moments, which would cost digits.
    """
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
