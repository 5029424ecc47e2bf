"""Natural parameters of a Gaussian Markov chain, and sums and multiples of them."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Float

from girsanov._core.types import Array
from girsanov.chain.moments import ExpectationChain


class NaturalChain(eqx.Module):
    """The chain q(x) ∝ exp( Σ h_mᵀx_m − ½ Σ x_mᵀ J_m x_m − Σ x_{m+1}ᵀ K_m x_m ); time is the last axis.

    Natural parameters form a vector space: chains can be added, subtracted and scaled. A sum of chains is a product
    of densities.

    Attributes:
        h: the potential, shape (d, N).
        J: diagonal blocks of the precision matrix, shape (d, d, N).
        K: blocks (m + 1, m) of the precision matrix, below the diagonal, shape (d, d, N − 1).
    """

    h: Float[Array, "d N"]
    J: Float[Array, "d d N"]
    K: Float[Array, "d d M"]

    def __add__(self, other: "NaturalChain") -> "NaturalChain":
        return NaturalChain(self.h + other.h, self.J + other.J, self.K + other.K)

    def __sub__(self, other: "NaturalChain") -> "NaturalChain":
        return NaturalChain(self.h - other.h, self.J - other.J, self.K - other.K)

    def __mul__(self, scale) -> "NaturalChain":
        return NaturalChain(self.h * scale, self.J * scale, self.K * scale)

    __rmul__ = __mul__


def inner(eta: NaturalChain, mu: ExpectationChain) -> Float[Array, ""]:
    """Return the inner product ⟨η, μ⟩ with η = (h, −½J, −K) and μ = E(x, xxᵀ, x₊xᵀ)."""
    return (eta.h * mu.first).sum() - 0.5 * (eta.J * mu.second).sum() - (eta.K * mu.cross).sum()


def to_dense(chain: NaturalChain) -> tuple[Float[Array, " D"], Float[Array, "D D"]]:
    """Return potential vector and precision matrix of all states jointly, for tests and very small problems."""
    d, n = chain.h.shape
    precision = jnp.zeros((n, d, n, d), chain.J.dtype)
    m = jnp.arange(n)
    precision = precision.at[m, :, m, :].set(jnp.moveaxis(chain.J, 2, 0))
    below = jnp.moveaxis(chain.K, 2, 0)
    precision = precision.at[m[1:], :, m[:-1], :].set(below)
    precision = precision.at[m[:-1], :, m[1:], :].set(jnp.swapaxes(below, 1, 2))
    return chain.h.T.reshape(-1), precision.reshape(n * d, n * d)
