"""The parts of a Gaussian posterior: a linear base process, data sites λ and dense sites Λ, η = η_L + φ(λ) + ψ(Λ)."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from girsanov._precision import float64, to_numpy
from girsanov._types import Array
from girsanov.chain import blocks
from girsanov.chain.blocks import inverse
from girsanov.chain.conversion import linear_chain
from girsanov.chain.natural import NaturalChain
from girsanov.model import Model


class Linearisation(eqx.Module):
    """f_L(x) = A x + b at every time: the drift of the base process p_L."""

    A: Float[Array, "d d M"]
    b: Float[Array, "d M"]


class DenseSites(eqx.Module):
    """Sites per unit of time, exp(ℓᵀx − ½xᵀΓx), on each state but the last."""

    potential: Float[Array, "d M"]
    precision: Float[Array, "d d M"]


class DataSites(eqx.Module):
    """exp(λᵀx − ½xᵀΛx) for every observation, in the coordinates of the state."""

    potential: Float[Array, "d n"]
    precision: Float[Array, "d d n"]


class Sites(eqx.Module):
    """The sites of g(q), the natural parameters that the gradient of the bound asks for; q's own at the optimum."""

    base: Linearisation
    dense: DenseSites
    data: DataSites


def base_chain(
    model: Model, base: Linearisation, gaps: Float[Array, " M"], valid: Bool[Array, " M"] | bool = True
) -> NaturalChain:
    """η_L: Euler–Maruyama transitions of the linear drift, x₊ | x ~ N(x + Δ(Ax + b), ΔQ), and p(x_0)."""
    Q_inv, _ = inverse(jnp.asarray(model.diffusion))
    initial = model.initial_state()
    A = jnp.asarray(base.A)
    T = blocks.eye_like(A) + gaps * A
    W = jnp.where(valid, Q_inv[:, :, None] / gaps, 0.0)
    return linear_chain(
        T, gaps * jnp.asarray(base.b), W, jnp.asarray(initial.mean), inverse(jnp.asarray(initial.cov))[0]
    )


def data_chain(data: DataSites, node: Int[Array, " n"], like: NaturalChain) -> NaturalChain:
    """φ(λ): the data sites on their nodes, in a chain of the size of `like`."""
    zero = 0.0 * like
    return NaturalChain(zero.h.at[:, node].add(data.potential), zero.J.at[..., node].add(data.precision), zero.K)


class SiteForm(eqx.Module):
    """q written as base process, data sites and what is left, the dense sites ψ(Λ), as natural parameters.

    `natural()` is their sum. `rebase` moves to another base process, ψ(Λ) += η_L(old) − η_L(new): q stays as it is.
    """

    model: Model
    gaps: Float[Array, " M"]
    node: Int[Array, " n"]
    base: Linearisation
    data: DataSites
    dense: NaturalChain

    @classmethod
    @float64
    def of(cls, q: NaturalChain, model: Model, gaps: Array, node: Array, base: Linearisation, data: DataSites):
        chain = base_chain(model, base, gaps)
        return cls(model, gaps, node, base, data, to_numpy(q - chain - data_chain(data, node, chain)))

    @float64
    def natural(self) -> NaturalChain:
        chain = base_chain(self.model, self.base, self.gaps)
        return to_numpy(chain + data_chain(self.data, self.node, chain) + self.dense)

    @float64
    def rebase(self, base: Linearisation) -> "SiteForm":
        difference = base_chain(self.model, self.base, self.gaps) - base_chain(self.model, base, self.gaps)
        return SiteForm(self.model, self.gaps, self.node, base, self.data, to_numpy(self.dense + difference))
