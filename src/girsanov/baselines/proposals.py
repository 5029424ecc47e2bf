"""Where particles are proposed, and what they are weighted with on the way.

Particles at node m are weighted towards γ_m(x_{0:m}) = p(x_{0:m}) p(y_{<m} | x_{<m}) ψ_m(x_m), with a function ψ_m of
the present state in place of the present and all later observations; the last node divides it out, so that every ψ
leaves the weights of whole paths exact. A proposal says ψ and how to draw the next state.
"""

import abc
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Float

from girsanov._core.precision import own
from girsanov._core.types import Array
from girsanov.chain import blocks
from girsanov.chain.blocks import inverse, matmul, matvec, transpose
from girsanov.model.path_model import PathModel, log_normal


@runtime_checkable
class GaussianPath(Protocol):
    """What a guide has to have: a Gaussian Markov chain over the nodes and the drift linearised along it.

    The posterior of `gv.infer` does; nothing here knows how it was made.
    """

    model: Any
    times: Any
    moments: Any
    target: Any


class Proposal(eqx.Module):
    @abc.abstractmethod
    def initial(self, path: PathModel, xi: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """First states from standard normal numbers."""

    @abc.abstractmethod
    def log_initial_weight(self, path: PathModel, x: Float[Array, "n d"]) -> Float[Array, " n"]:
        """log p(x₀)/q(x₀), without ψ."""

    @abc.abstractmethod
    def propose(
        self, path: PathModel, node: Any, x: Float[Array, "n d"], xi: Float[Array, "n d"]
    ) -> Float[Array, "n d"]:
        """Next states from standard normal numbers."""

    @abc.abstractmethod
    def log_weight(self, path: PathModel, node: Any, x: Float[Array, "n d"], after: Float[Array, "n d"]):
        """log p(after | x)/q(after | x), without ψ."""

    @abc.abstractmethod
    def log_psi(self, path: PathModel, node: Any, x: Float[Array, "n d"], power: Any) -> Float[Array, " n"]: ...


class Bootstrap(Proposal):
    """States move by the model itself, and ψ is the likelihood of the present observation."""

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
    """States move by the model's own transition, twisted by ψ, and ψ_m is q's message from the present and the future.

    q's transition is the linearised model's times the message, N(x₊; (I + ΔA)x + Δb, ΔQ) exp(hᵀx₊ − ½x₊ᵀJx₊), hence
    J = Σ_q⁻¹ − (ΔQ)⁻¹ and h = Σ_q⁻¹c − Q⁻¹b; at the first node the message is q(x₀)/p(x₀). With the drift itself
    instead of its linearisation, states move by N(G(x + Δf(x)) + Σh, Σ), Σ⁻¹ = (ΔQ)⁻¹ + J, G = Σ(ΔQ)⁻¹. The message
    may be tempered, ψ^τ with τ < 1: q is narrower than the posterior, and p/q is unbounded where ψ vanishes too soon.
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
    """Proposals from a Gaussian posterior on its own grid, with its messages to the power `trust`."""
    q, model, base = own((post.moments, post.model, post.target.base))
    m, S, C = (jnp.asarray(a) for a in (q.m, q.S, q.C))
    gaps = jnp.asarray(post.times[1:] - post.times[:-1])
    S_inv, _ = inverse(S)
    T = matmul(C, S_inv[..., :-1])
    c = m[:, 1:] - matvec(T, m[:, :-1])
    Sigma = blocks.symmetrise(S[..., 1:] - matmul(T, transpose(C)))
    W, _ = inverse(Sigma)
    Q_inv = inverse(jnp.asarray(model.diffusion))[0][:, :, None]
    J = trust * (W - Q_inv / gaps)
    h = trust * (matvec(W, c) - matvec(Q_inv, jnp.asarray(base.b[:, : len(gaps)])))
    Sigma, _ = inverse(Q_inv / gaps + J)
    gain, shift = matmul(Sigma, Q_inv / gaps), matvec(Sigma, h)
    prior = model.initial_state()
    P_inv = inverse(jnp.asarray(prior.cov))[0]
    J0, h0 = trust * (S_inv[..., 0] - P_inv), trust * (S_inv[..., 0] @ m[:, 0] - P_inv @ prior.mean)
    S0 = jnp.linalg.inv(P_inv + J0)
    root = blocks.cholesky(Sigma)
    by_time = (gain, shift, root, blocks.inverse_lower(root), h, J)
    gain, shift, root, inverse_root, h, J = (jnp.moveaxis(a, -1, 0) for a in by_time)
    h, J = jnp.concatenate([h0[None], h]), jnp.concatenate([J0[None], J])
    return Guided(S0 @ (P_inv @ prior.mean + h0), jnp.linalg.cholesky(S0), gain, shift, root, inverse_root, h, J)
