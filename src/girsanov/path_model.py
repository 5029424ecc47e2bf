"""The model on a grid as densities of single states and steps: what methods that draw paths work with."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from girsanov._types import Array
from girsanov.grid import Grid
from girsanov.model import Model
from girsanov.series import TimeSeries

LOG_2PI = 1.8378770664093453


class PathModel(eqx.Module):
    """p(x₀) Π p(x_{m+1} | x_m) Π p(y_m | x_m)^τ on the nodes of a grid, Euler–Maruyama between them."""

    model: Model
    times: Float[Array, " N"]
    gaps: Float[Array, " M"]
    y: Float[Array, "N D"]  # zero where nothing is observed
    observed: Bool[Array, "N D"]
    root: Float[Array, "d d"]  # of Q, lower triangular
    inverse_root: Float[Array, "d d"]

    def initial(self) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
        state = self.model.initial_state()
        return jnp.asarray(state.mean), jnp.asarray(state.cov)

    def log_initial(self, x: Float[Array, "*n d"]) -> Float[Array, "*n"]:
        mean, cov = self.initial()
        return log_normal(x - mean, jnp.linalg.inv(jnp.linalg.cholesky(cov)))

    def moved(self, node: Any, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """Mean of the next state, x + Δ f(x, t)."""
        return x + self.gaps[node] * jnp.vectorize(self.model.drift, excluded=(1,), signature="(d)->(d)")(
            x, self.times[node]
        )

    def noise(self, node: Any, xi: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """Noise of the step, √Δ L ξ, from standard normal numbers."""
        return jnp.sqrt(self.gaps[node]) * xi @ self.root.T

    def log_step(self, node: Any, x: Float[Array, "*#n d"], after: Float[Array, "*#n d"]) -> Float[Array, "*n"]:
        """log p(after | x) over the gap that begins at this node."""
        return log_normal(after - self.moved(node, x), self.inverse_root / jnp.sqrt(self.gaps[node]))

    def log_likelihood(self, node: Any, x: Float[Array, "n d"]) -> Float[Array, " n"]:
        """log p(y | x) at this node, zero where nothing is observed."""
        z = x @ jnp.asarray(self.model.emission).T
        return jax.vmap(lambda z: self.model.likelihood.log_prob(self.y[node], self.observed[node], z))(z)

    def log_data(self, path: Float[Array, "N d"]) -> Float[Array, ""]:
        """log p(y | path)."""
        z = path @ jnp.asarray(self.model.emission).T
        return jax.vmap(self.model.likelihood.log_prob)(self.y, self.observed, z).sum()

    def log_joint(self, path: Float[Array, "N d"]) -> Float[Array, ""]:
        """log p(path, y)."""
        steps = jax.vmap(self.log_step)(jnp.arange(len(self.gaps)), path[:-1], path[1:])
        return self.log_initial(path[0]) + steps.sum() + self.log_data(path)


def path_model(model: Model, series: TimeSeries, grid: Grid) -> PathModel:
    N, D = len(grid.times), series.dim
    y, observed = np.zeros((N, D)), np.zeros((N, D), bool)
    y[grid.node], observed[grid.node] = np.where(series.observed, series.values, 0.0), series.observed
    root = np.linalg.cholesky(np.asarray(model.diffusion))
    return PathModel(model, grid.times, np.diff(grid.times), y, observed, root, np.linalg.inv(root))


def log_normal(e: Float[Array, "*n d"], inverse_root: Float[Array, "d d"]) -> Float[Array, "*n"]:
    """log N(e; 0, R Rᵀ) from R⁻¹, lower triangular."""
    square = ((e @ inverse_root.T) ** 2).sum(-1)
    return -0.5 * (square + e.shape[-1] * LOG_2PI) + jnp.log(jnp.diagonal(inverse_root)).sum()
