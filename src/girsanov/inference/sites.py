"""The parts of a Gaussian posterior: a linear base process, data sites λ and dense sites Λ, η = η_L + φ(λ) + ψ(Λ)."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from girsanov._core.precision import float64, own, to_numpy
from girsanov._core.types import Array
from girsanov.chain import blocks
from girsanov.chain.blocks import inverse
from girsanov.chain.conversion import linear_chain
from girsanov.chain.linear_sde import Linearisation, Time, exact_transition
from girsanov.chain.natural import NaturalChain
from girsanov.model.model import Model


class DenseSites(eqx.Module):
    """Sites per unit of time, exp(ℓᵀx − ½xᵀΓx), on each state but the last."""

    potential: Float[Array, "d M"]
    precision: Float[Array, "d d M"]


class DataSites(eqx.Module):
    """exp(λᵀx − ½xᵀΛx) for every observation, in the coordinates of the state."""

    potential: Float[Array, "d n"]
    precision: Float[Array, "d d n"]


class Sites(eqx.Module):
    """The sites of g(q), the natural parameters that the gradient of the bound asks for; q's own at the optimum.

    In continuous time the base is given at the nodes, and dense sites at either end of every interval: `dense` at the
    left one, `right` at the right one, each with half the interval's weight.
    """

    base: Linearisation
    dense: DenseSites
    data: DataSites
    right: DenseSites | None = None


def base_chain(
    model: Model,
    base: Linearisation,
    gaps: Float[Array, " M"],
    valid: Bool[Array, " M"] | bool = True,
    time: Time = "discrete",
) -> NaturalChain:
    """η_L: transitions of the linear drift and p(x_0).

    Discrete time: Euler–Maruyama, x₊ | x ~ N(x + Δ(Ax + b), ΔQ). Continuous time: those of the SDE itself.
    """
    Q = jnp.asarray(model.diffusion)
    if time == "continuous":
        T, c, Sigma = exact_transition(base, Q, jnp.asarray(gaps))
        W = inverse(Sigma)[0]
    else:
        A, b = jnp.asarray(base.A), jnp.asarray(base.b)
        T, c, W = blocks.eye_like(A) + gaps * A, gaps * b, inverse(Q)[0][:, :, None] / gaps
    initial = model.initial_state()
    precision = inverse(jnp.asarray(initial.cov))[0]
    return linear_chain(T, c, jnp.where(valid, W, 0.0), jnp.asarray(initial.mean), precision)


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
    time: Time = eqx.field(static=True, default="discrete")

    @classmethod
    @float64
    def of(
        cls,
        q: NaturalChain,
        model: Model,
        gaps: Float[Array, " M"],
        node: Int[Array, " n"],
        base: Linearisation,
        data: DataSites,
        time: Time = "discrete",
    ) -> "SiteForm":
        form = cls(model, gaps, node, base, data, q, time)
        return cls(model, gaps, node, base, data, to_numpy(own(q) - form._known(base)), time)

    def _base_chain(self, base: Linearisation) -> NaturalChain:
        return base_chain(own(self.model), own(base), own(self.gaps), time=self.time)

    def _known(self, base: Linearisation) -> NaturalChain:
        """η_L + φ(λ): all but the dense sites."""
        chain = self._base_chain(base)
        return chain + data_chain(own(self.data), own(self.node), chain)

    @float64
    def natural(self) -> NaturalChain:
        return to_numpy(self._known(self.base) + own(self.dense))

    @float64
    def rebase(self, base: Linearisation) -> "SiteForm":
        dense = to_numpy(own(self.dense) + self._base_chain(self.base) - self._base_chain(base))
        return SiteForm(self.model, self.gaps, self.node, base, self.data, dense, self.time)
