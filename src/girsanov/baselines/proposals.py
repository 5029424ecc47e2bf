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

from girsanov._core.compile import compiled
from girsanov._core.types import Array
from girsanov.chain import blocks
from girsanov.chain.blocks import inverse, inverse_lower, matmul, matvec
from girsanov.chain.conversion import own_steps
from girsanov.chain.messages import Message, Step, back, reweighted, tilt
from girsanov.chain.moments import Moments
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
    time: Any
    status: Any


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
    """States are drawn from the model's transitions, and ψ is the likelihood of the present observation.

    The steps must be those of Euler–Maruyama, which can be drawn exactly.
    """

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

    ψ_m is the message exp(hᵀx − ½xᵀJx) with which the present and later observations enter q at node m. A step of the
    model is N(x₊; μ(x), Σ), where μ is `PathModel.moved`; times the message it is N(Gμ(x) + Vh, V), with
    V⁻¹ = Σ⁻¹ + J and G = VΣ⁻¹. The message may be raised to a power τ < 1, because q is often narrower than the
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


def guide(path: PathModel, post: GaussianPath, trust: Any) -> Guided:
    """Return the proposal from a Gaussian posterior, on the nodes of `path`, with its messages raised to a power.

    In continuous time `path` must have the linear drift of the posterior's base.
    """
    return _guide(path, post.moments, post.target, trust)


def guided(path: PathModel, q: Moments, sites: Any, trust: Any) -> Guided:
    """Return the proposal of `guide` from q's moments and sites, also inside compiled code."""
    psi = _messages(path, q, sites) if path.linear is None else _messages_of_sites(path, sites)
    psi = jax.tree.map(lambda a: trust * a, psi)
    mean, cov = path.initial()
    L = jnp.linalg.cholesky(cov)
    start = Step(L, inverse_lower(L), mean, jnp.eye(len(mean)))
    tilted = tilt(start, Message(psi.h[:, 0], psi.J[..., 0]))
    mean0, root0 = reweighted(start, tilted).c, L @ jnp.linalg.cholesky(tilted.V)
    # With Φ = I the reweighted step is the map from the model's mean μ(x) to that of the proposal.
    L, L_inv = (jnp.moveaxis(jnp.asarray(a), 0, -1) for a in (path.step_root, path.inverse_step_root))
    step = Step(L, L_inv, jnp.zeros(L.shape[1:]), blocks.eye_like(L))
    tilted = tilt(step, Message(psi.h[:, 1:], psi.J[..., 1:]))
    moved = reweighted(step, tilted)
    root = blocks.cholesky(tilted.V)
    by_time = (moved.Phi, moved.c, matmul(L, root), matmul(inverse_lower(root), L_inv), psi.h, psi.J)
    return Guided(mean0, root0, *(jnp.moveaxis(a, -1, 0) for a in by_time))


_guide = compiled(guided)


def _messages(path: PathModel, q: Moments, sites: Any) -> Message:
    """Return the message of every node from q's own transitions, relative to Euler–Maruyama steps.

    The transition of q is that of the linearised model times the message,
    N(x₊; (I + ΔA)x + Δb, ΔQ) exp(hᵀx₊ − ½x₊ᵀJx₊). Hence J = Σ_q⁻¹ − (ΔQ)⁻¹ and h = Σ_q⁻¹c − Q⁻¹b. At the first node
    the message is q(x₀)/p(x₀).
    """
    gaps = jnp.asarray(path.data.gaps)
    steps = own_steps(jax.tree.map(jnp.asarray, q))
    Q_inv = jnp.asarray(path.model.noise.precision)[:, :, None]
    J = steps.W - Q_inv / gaps
    h = matvec(steps.W, steps.c) - matvec(Q_inv, jnp.asarray(sites.base.b[:, : len(gaps)]))
    mean, cov = path.initial()
    P_inv = inverse(cov)[0]
    J0, h0 = steps.first - P_inv, steps.first @ jnp.asarray(q.m[:, 0]) - P_inv @ mean
    return Message(jnp.concatenate([h0[:, None], h], -1), jnp.concatenate([J0[..., None], J], -1))


def _messages_of_sites(path: PathModel, sites: Any) -> Message:
    """Return the message of every node from q's sites, which a linear SDE carries from each node to the one before.

    If the noise is singular, transitions have precisions of size Δ⁻³, and a difference of two of them would not have
    any digit of the message. Here no precisions are subtracted.
    """
    assert path.linear is not None
    parts = (path.step_root, path.inverse_step_root @ path.linear.Phi, path.linear.c, path.linear.Phi)
    steps = Step(*(jnp.moveaxis(jnp.asarray(a), 0, -1) for a in parts))
    steps, by_node = jax.tree.map(lambda a: jnp.moveaxis(a, -1, 0), (steps, _on_nodes(path, sites)))

    def backward(message: Message, node):
        step, site = node
        message = site + back(step, tilt(step, message))
        return message, message

    last, earlier = (jax.tree.map(lambda a, n=n: a[n], by_node) for n in (-1, slice(-1)))
    _, messages = jax.lax.scan(backward, last, (steps, earlier), reverse=True)
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), messages, last)
    return jax.tree.map(lambda a: jnp.moveaxis(a, 0, -1), both)


def _on_nodes(path: PathModel, sites: Any) -> Message:
    """Return the sum of all sites on every node; the dense ones have the weight of half an interval at either end."""
    half, node = 0.5 * jnp.asarray(path.data.gaps), path.data.node

    def total(left, right, data):
        zero = jnp.zeros((*left.shape[:-1], 1))
        dense = jnp.concatenate([half * left, zero], -1) + jnp.concatenate([zero, half * right], -1)
        return dense.at[..., node].add(data)

    left, right, data = sites.dense, sites.right, sites.data
    return Message(
        total(left.potential, right.potential, data.potential),
        total(left.precision, right.precision, data.precision),
    )
