"""The parts of a Gaussian posterior: η = η_L + φ(λ) + ψ(Λ), a linear base process, data sites λ and dense sites Λ.

A site is an unnormalised Gaussian factor on the state at one time.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from girsanov._core.precision import float64, own, to_numpy
from girsanov._core.types import Array
from girsanov.chain import blocks
from girsanov.chain.blocks import inverse, matmul, matvec, transpose
from girsanov.chain.conversion import linear_chain
from girsanov.chain.linear_sde import Linearisation, Time, exact_transition
from girsanov.chain.natural import NaturalChain
from girsanov.model.model import Model


class DenseSites(eqx.Module):
    """Sites exp(ℓᵀx − ½xᵀΓx) per unit of time, on each state but the last: potential ℓ and precision Γ."""

    potential: Float[Array, "d M"]
    precision: Float[Array, "d d M"]


class DataSites(eqx.Module):
    """Sites exp(λᵀx − ½xᵀΛx), one for each observation, in the coordinates of the state."""

    potential: Float[Array, "d n"]
    precision: Float[Array, "d d n"]


class Sites(eqx.Module):
    """The sites of g(q), the gradient of the bound without its entropy; at the optimum they compose q itself.

    In continuous time the base drift is given at the nodes, and dense sites at both ends of every interval, each with
    the weight of half the interval.

    Attributes:
        base: the base drift A x + b: of every step, or in continuous time at every node.
        dense: the dense sites; in continuous time those at the left ends.
        data: the data sites.
        right: the dense sites at the right ends, in continuous time only.
    """

    base: Linearisation
    dense: DenseSites
    data: DataSites
    right: DenseSites | None = None


def mixing_sites(
    Q_inv: Float[Array, "d d"], dA: Float[Array, "d d M"], db: Float[Array, "d M"], rho: Float[Array, ""]
) -> DenseSites:
    """Return the sites exp(−½ρ(1 − ρ)‖dA x + db‖²_{Q⁻¹}) of a geometric mixture with weights 1 − ρ and ρ.

    The drifts of the two processes differ by dA x + db, and that of the mixture is their average.
    """
    apart = rho * (1.0 - rho)
    Q_dA = matmul(jnp.asarray(Q_inv)[:, :, None], dA)
    return DenseSites(-apart * matvec(transpose(Q_dA), db), apart * matmul(transpose(dA), Q_dA))


def base_chain(
    model: Model,
    base: Linearisation,
    gaps: Float[Array, " M"],
    valid: Bool[Array, " M"] | bool = True,
    time: Time = "discrete",
) -> NaturalChain:
    """Return η_L, the chain of the linear base drift and p(x_0).

    In discrete time its transitions are Euler–Maruyama steps, x₊ | x ~ N(x + Δ(Ax + b), ΔQ); in continuous time they
    are those of the linear SDE itself.
    """
    if time == "continuous":
        T, c, Sigma = exact_transition(base, jnp.asarray(model.noise.Q), jnp.asarray(gaps))
        W = inverse(Sigma)[0]
    else:
        A, b = jnp.asarray(base.A), jnp.asarray(base.b)
        T, c, W = blocks.eye_like(A) + gaps * A, gaps * b, model.noise.precision[:, :, None] / gaps
    initial = model.initial_state()
    precision = inverse(jnp.asarray(initial.cov))[0]
    return linear_chain(T, c, jnp.where(valid, W, 0.0), jnp.asarray(initial.mean), precision)


def data_chain(data: DataSites, node: Int[Array, " n"], like: NaturalChain) -> NaturalChain:
    """Return φ(λ), the data sites on their nodes, as a chain of the size of `like`."""
    zero = 0.0 * like
    return NaturalChain(zero.h.at[:, node].add(data.potential), zero.J.at[..., node].add(data.precision), zero.K)


class SiteForm(eqx.Module):
    """q as the sum of a base process η_L, data sites φ(λ) and dense sites ψ(Λ), which are the rest of q.

    Attributes:
        model: the model.
        gaps: the gaps of the time grid.
        node: the node of each observation.
        base: the base drift A x + b.
        data: the data sites λ.
        dense: the dense sites ψ(Λ), as natural parameters.
        time: "discrete" or "continuous", the kind of the base's transitions.
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
        """Write q with this base process and these data sites; the rest becomes the dense sites."""
        form = cls(model, gaps, node, base, data, q, time)
        return cls(model, gaps, node, base, data, to_numpy(own(q) - form._known(base)), time)

    def _base_chain(self, base: Linearisation) -> NaturalChain:
        return base_chain(own(self.model), own(base), own(self.gaps), time=self.time)

    def _known(self, base: Linearisation) -> NaturalChain:
        """Return η_L + φ(λ), which is q without its dense sites."""
        chain = self._base_chain(base)
        return chain + data_chain(own(self.data), own(self.node), chain)

    @float64
    def natural(self) -> NaturalChain:
        """Return the natural parameters of q, the sum of the three parts."""
        return to_numpy(self._known(self.base) + own(self.dense))

    @float64
    def rebase(self, base: Linearisation) -> "SiteForm":
        """Return the same q with another base process: ψ(Λ) += η_L(old) − η_L(new)."""
        dense = to_numpy(own(self.dense) + self._base_chain(self.base) - self._base_chain(base))
        return SiteForm(self.model, self.gaps, self.node, base, self.data, dense, self.time)
