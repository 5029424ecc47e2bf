"""Proposals of the particle filters: how the next state is drawn, and the intermediate targets of the weights.

At node m the weights are those of the target γ_m(x_{0:m}) = p(x_{0:m}) p(y_{<m} | x_{<m}) ψ_m(x_m), where the function
ψ_m of the present state stands in for the present and all later observations. At the last node ψ is divided out, so the
weights of whole paths are exact for every choice of ψ. A proposal defines ψ and how to draw the next state.
"""

import abc
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from girsanov._core.precision import own
from girsanov._core.types import Array
from girsanov.chain import blocks
from girsanov.chain.blocks import inverse, matmul, matvec
from girsanov.chain.conversion import own_steps
from girsanov.model.path_model import PathModel, log_normal


@runtime_checkable
class GaussianPath(Protocol):
    """The attributes that a guide needs: a Gaussian Markov chain on the nodes, and the drift linearised along it.

    The posterior that `gv.infer` returns has them; this module does not depend on how it was computed.
    """

    model: Any
    times: Any
    moments: Any
    target: Any


class Proposal(eqx.Module):
    """Base class of proposals."""

    @abc.abstractmethod
    def initial(self, path: PathModel, xi: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """Return proposed initial states, made from standard normal numbers ξ."""

    @abc.abstractmethod
    def log_initial_weight(self, path: PathModel, x: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Return log p(x₀)/q(x₀) for the proposal density q, without ψ."""

    @abc.abstractmethod
    def propose(
        self, path: PathModel, node: Any, x: Float[Array, "n d"], xi: Float[Array, "n d"]
    ) -> Float[Array, "n d"]:
        """Return proposed states at the next node, made from the states at this node and standard normal numbers ξ."""

    @abc.abstractmethod
    def log_weight(self, path: PathModel, node: Any, x: Float[Array, "n d"], after: Float[Array, "n d"]):
        """Return log p(after | x)/q(after | x) for the proposal density q, without ψ."""

    @abc.abstractmethod
    def log_psi(self, path: PathModel, node: Any, x: Float[Array, "n d"], power: Any) -> Float[Array, " n"]:
        """Return log ψ of this node at each state; `power` is the exponent of the likelihood."""


class Bootstrap(Proposal):
    """States are drawn from the model's transitions, and ψ is the likelihood of the present observation."""

    def initial(self, path, xi):
        mean, cov = path.initial()
        return mean + xi @ jnp.linalg.cholesky(cov).T

    def log_initial_weight(self, path, x):
        return jnp.zeros(x.shape[0])

    def propose(self, path, node, x, xi):
        return path.moved(node, x) + path.noise(node, xi)

    def log_weight(self, path, node, x, after):
        return jnp.zeros(x.shape[0])

    def log_psi(self, path, node, x, power):
        return power * path.log_likelihood(node, x)


class Guided(Proposal):
    """States are drawn from the model's transitions times ψ, where ψ comes from a Gaussian posterior q.

    ψ_m is the message with which the present and later observations enter q at node m. The transition of q is that of
    the linearised model times the message, N(x₊; (I + ΔA)x + Δb, ΔQ) exp(hᵀx₊ − ½x₊ᵀJx₊). Hence J = Σ_q⁻¹ − (ΔQ)⁻¹ and
    h = Σ_q⁻¹c − Q⁻¹b. At the first node the message is q(x₀)/p(x₀).

    With the drift itself instead of its linearisation, states are drawn from N(G(x + Δf(x)) + Σh, Σ) with
    Σ⁻¹ = (ΔQ)⁻¹ + J and G = Σ(ΔQ)⁻¹. The message may be raised to a power τ < 1, because q is often narrower than the
    posterior, and then p/q is unbounded where ψ falls off too fast.
    """

    mean0: Float[Array, " d"]
    root0: Float[Array, "d d"]
    gain: Float[Array, "M d d"]
    shift: Float[Array, "M d"]
    root: Float[Array, "M d d"]
    inverse_root: Float[Array, "M d d"]
    h: Float[Array, "N d"]
    J: Float[Array, "N d d"]

    def initial(self, path, xi):
        return self.mean0 + xi @ self.root0.T

    def log_initial_weight(self, path, x):
        return path.log_initial(x) - log_normal(x - self.mean0, jnp.linalg.inv(self.root0))

    def _centre(self, path, node, x):
        return path.moved(node, x) @ self.gain[node].T + self.shift[node]

    def propose(self, path, node, x, xi):
        return self._centre(path, node, x) + xi @ self.root[node].T

    def log_weight(self, path, node, x, after):
        return path.log_step(node, x, after) - log_normal(after - self._centre(path, node, x), self.inverse_root[node])

    def log_psi(self, path, node, x, power):
        return x @ self.h[node] - 0.5 * jnp.einsum("ni,ij,nj->n", x, self.J[node], x)


def guide(post: GaussianPath, trust: float) -> Guided:
    """Return the proposal from a Gaussian posterior, on its grid, with its messages raised to the power `trust`."""
    q, model, base = own((post.moments, post.model, post.target.base))
    m0, gaps = jnp.asarray(q.m[:, 0]), jnp.asarray(post.times[1:] - post.times[:-1])
    steps = own_steps(jax.tree.map(jnp.asarray, q))
    W, c = steps.W, steps.c
    Q_inv = jnp.asarray(model.noise.precision)[:, :, None]
    J = trust * (W - Q_inv / gaps)
    h = trust * (matvec(W, c) - matvec(Q_inv, jnp.asarray(base.b[:, : len(gaps)])))
    Sigma, _ = inverse(Q_inv / gaps + J)
    gain, shift = matmul(Sigma, Q_inv / gaps), matvec(Sigma, h)
    prior = model.initial_state()
    P_inv = inverse(jnp.asarray(prior.cov))[0]
    J0, h0 = trust * (steps.first - P_inv), trust * (steps.first @ m0 - P_inv @ prior.mean)
    S0 = jnp.linalg.inv(P_inv + J0)
    root = blocks.cholesky(Sigma)
    by_time = (gain, shift, root, blocks.inverse_lower(root), h, J)
    gain, shift, root, inverse_root, h, J = (jnp.moveaxis(a, -1, 0) for a in by_time)
    h, J = jnp.concatenate([h0[None], h]), jnp.concatenate([J0[None], J])
    return Guided(S0 @ (P_inv @ prior.mean + h0), jnp.linalg.cholesky(S0), gain, shift, root, inverse_root, h, J)
