"""The parts of a model in the coordinates w in which its noise is constant, and moments of the state x = ψ(w)."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from girsanov._core.types import Array
from girsanov.model.diffusions import StateDiffusion
from girsanov.model.observation import NonlinearObservation, Observation

_NODES = 40  # of the Gauss–Hermite rule for moments of the state
_BATCH = 256  # times whose moments are computed together


class LatentDrift(eqx.Module):
    """The drift of w: f(x, t)/ψ' − ½s²ψ''/ψ' with x = ψ(w)."""

    drift: Callable
    noise: StateDiffusion

    def __call__(self, w, t):
        x, slope, curvature = self.noise.rates(w)
        return (self.drift(x, t) - 0.5 * self.noise.scales(w.shape[0]) ** 2 * curvature) / slope


class LatentEmission(eqx.Module):
    """The emission of an observation model as a function of w."""

    observation: Observation
    noise: StateDiffusion

    def __call__(self, w, t):
        return self.observation.emit(t, self.noise.to_state(w))


def latent_observation(observation: Observation, noise: StateDiffusion) -> Observation:
    """Return the observation model of w."""
    return NonlinearObservation(
        observation.likelihood,
        LatentEmission(observation, noise),
        None,
        observation.dim,
        observation.data_dim,
        observation.stated,
    )


def latent_initial(
    noise: StateDiffusion, mean: Float[Array, " d"], cov: Float[Array, "d d"]
) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    """Return mean and covariance of w at the start: the median of x is `mean`, its covariance `cov` to first order."""
    w = noise.to_constant(jnp.asarray(mean))
    slope = noise.rates(w)[1]
    return w, jnp.asarray(cov) / (slope[:, None] * slope[None, :])


def cross_moments(
    noise: StateDiffusion,
    one: tuple[Float[Array, "n d"], Float[Array, "n d"]],
    other: tuple[Float[Array, "n d"], Float[Array, "n d"]],
    C: Float[Array, "n d d"],
) -> tuple[Float[Array, "n d"], Float[Array, "n d"], Float[Array, "n d d"]]:
    """Return the means of x = ψ(w) and x' = ψ(w') and their covariance, where w and w' are jointly Gaussian.

    Args:
        noise: has ψ.
        one: means and standard deviations of w.
        other: those of w'.
        C: the covariance of w and w'.

    Returns:
        E[x], E[x'] and Cov(x, x'), by Gauss–Hermite quadrature over every pair of coordinates.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    xi, p = jnp.asarray(nodes), jnp.asarray(weights / weights.sum())

    def at_one_time(parts):
        (m, s), (k, r), C = parts
        rho = C / (s[:, None] * r[None, :])
        rest = jnp.sqrt(jnp.maximum(1.0 - rho**2, 0.0))  # rounding may leave |ρ| a little above one
        x, alone = noise.to_state(m + xi[:, None] * s), noise.to_state(k + xi[:, None] * r)
        mean, mean_other = p @ x, p @ alone
        # w'_j given w_i: [node of w_i, node of the rest, i, j]
        w = k + r * (rho * xi[:, None, None, None] + rest * xi[None, :, None, None])
        given = jnp.einsum("b,abij->aij", p, noise.to_state(w) - mean_other)
        return mean, mean_other, jnp.einsum("a,ai,aij->ij", p, x - mean, given)

    return jax.lax.map(at_one_time, (one, other, C), batch_size=_BATCH)


def state_moments(
    noise: StateDiffusion, m: Float[Array, "n d"], S: Float[Array, "n d d"]
) -> tuple[Float[Array, "n d"], Float[Array, "n d d"]]:
    """Return mean and covariance of x = ψ(w) at n times, where w ~ N(m, S)."""
    at = m, jnp.sqrt(jnp.diagonal(S, axis1=1, axis2=2))
    mean, _, cov = cross_moments(noise, at, at, S)
    return mean, 0.5 * (cov + jnp.swapaxes(cov, 1, 2))
