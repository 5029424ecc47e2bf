"""The model on a grid as densities of single states and steps: what methods that draw paths work with."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from girsanov._core.compile import compiled
from girsanov._core.precision import float64
from girsanov._core.types import Array
from girsanov.chain.linear_sde import Linearisation, exact_transition
from girsanov.data.grid import Grid
from girsanov.data.series import TimeSeries
from girsanov.model.model import Model

LOG_2PI = 1.8378770664093453


class LinearSteps(eqx.Module):
    """Exact transitions x₊ | x ~ N(Φx + c, Σ) of a linear drift A x + b that is given at the nodes."""

    Phi: Float[Array, "M d d"]
    c: Float[Array, "M d"]
    A: Float[Array, "N d d"]
    b: Float[Array, "N d"]


class PathModel(eqx.Module):
    """p(x₀) Π p(x_{m+1} | x_m) Π p(y_m | x_m)^τ on the nodes of a grid.

    Between nodes Euler–Maruyama, N(x + Δf(x, t), ΔQ); or the SDE itself, near a linear one, see `log_step`.
    """

    model: Model
    times: Float[Array, " N"]
    gaps: Float[Array, " M"]
    y: Float[Array, "N D"]  # zero where nothing is observed
    observed: Bool[Array, "N D"]
    root: Float[Array, "d d"]  # of Q, lower triangular
    step_root: Float[Array, "M d d"]  # of the covariance of a step
    inverse_step_root: Float[Array, "M d d"]
    linear: LinearSteps | None = None

    def initial(self) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
        state = self.model.initial_state()
        return jnp.asarray(state.mean), jnp.asarray(state.cov)

    def log_initial(self, x: Float[Array, "*n d"]) -> Float[Array, "*n"]:
        mean, cov = self.initial()
        return log_normal(x - mean, jnp.linalg.inv(jnp.linalg.cholesky(cov)))

    def _drift(self, node: Any, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        return jnp.vectorize(self.model.drift, excluded=(1,), signature="(d)->(d)")(x, jnp.asarray(self.times)[node])

    def moved(self, node: Any, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """Mean of the next state: x + Δf(x, t), or Φx + c + Δ(f(x, t) − Ax − b)."""
        if self.linear is None:
            return x + self.gaps[node] * self._drift(node, x)
        e = self._drift(node, x) - self._linear_drift(node, x)
        return x @ self.linear.Phi[node].T + self.linear.c[node] + self.gaps[node] * e

    def _linear_drift(self, node: Any, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        assert self.linear is not None
        return x @ self.linear.A[node].T + self.linear.b[node]

    def noise(self, node: Any, xi: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """Noise of the step from standard normal numbers."""
        return xi @ self.step_root[node].T

    def log_step(self, node: Any, x: Float[Array, "*#n d"], after: Float[Array, "*#n d"]) -> Float[Array, "*n"]:
        """log p(after | x) over the gap that begins at this node.

        In continuous time, with e = f − f_B for the linear drift f_B = A x + b, Girsanov's theorem gives
            p(x₊ | x) = p_B(x₊ | x) E exp{∫ eᵀQ⁻¹ ∘ dx − ∫ φ dt},  φ = ½ div e + ½ eᵀQ⁻¹(f + f_B),
        over the bridges of f_B from x to x₊. Both integrals are taken by the trapezoidal rule from the two ends: an
        error of second order in Δ, and none where the drift is linear.
        """
        if self.linear is None:
            return log_normal(after - self.moved(node, x), self.inverse_step_root[node])
        start = x @ self.linear.Phi[node].T + self.linear.c[node]
        e0, phi0 = self._tilt(node, x)
        e1, phi1 = self._tilt(node + 1, after)
        along = 0.5 * (self._scaled(e0 + e1) * self._scaled(after - x)).sum(-1)
        base = log_normal(after - start, self.inverse_step_root[node])
        return base + along - 0.5 * self.gaps[node] * (phi0 + phi1)

    def _tilt(self, node: Any, x: Float[Array, "*#n d"]) -> tuple[Float[Array, "*#n d"], Float[Array, "*#n"]]:
        """e and φ at a node."""
        drift, linear = self._drift(node, x), self._linear_drift(node, x)
        e = drift - linear
        t = jnp.asarray(self.times)[node]
        slope = jnp.vectorize(lambda v: jnp.trace(jax.jacfwd(self.model.drift)(v, t)), signature="(d)->()")(x)
        div = slope - jnp.trace(self.linear.A[node])  # pyright: ignore[reportOptionalMemberAccess]
        return e, 0.5 * (div + (self._scaled(e) * self._scaled(drift + linear)).sum(-1))

    def _scaled(self, e: Float[Array, "*#n d"]) -> Float[Array, "*#n d"]:
        """e by the inverse root of Q."""
        return e @ jnp.linalg.inv(jnp.asarray(self.root)).T

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
    """The Euler–Maruyama model."""
    root = np.linalg.cholesky(np.asarray(model.diffusion))
    gaps = np.diff(grid.times)
    step_root = np.sqrt(gaps)[:, None, None] * root
    return PathModel(model, grid.times, gaps, *_data(series, grid), root, step_root, np.linalg.inv(step_root))


@float64
def exact_path_model(model: Model, series: TimeSeries, grid: Grid, base: Linearisation) -> PathModel:
    """The SDE itself, by steps that are exact where its drift is that of `base`, which is given at the nodes."""
    gaps = np.diff(grid.times)
    steps = _steps(base, np.asarray(model.diffusion), gaps)
    Phi, c, Sigma, A, b = (np.moveaxis(np.asarray(a), -1, 0) for a in (*steps, base.A, base.b))
    root, step_root = np.linalg.cholesky(np.asarray(model.diffusion)), np.linalg.cholesky(Sigma)
    linear = LinearSteps(Phi, c, A, b)
    return PathModel(
        model, grid.times, gaps, *_data(series, grid), root, step_root, np.linalg.inv(step_root), linear
    )  # fmt: skip


@compiled
def _steps(base: Linearisation, Q, gaps):
    return exact_transition(base, jnp.asarray(Q), jnp.asarray(gaps))


def _data(series: TimeSeries, grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    """Values and mask for every node."""
    N, D = len(grid.times), series.dim
    y, observed = np.zeros((N, D)), np.zeros((N, D), bool)
    y[grid.node], observed[grid.node] = np.where(series.observed, series.values, 0.0), series.observed
    return y, observed


def log_normal(e: Float[Array, "*n d"], inverse_root: Float[Array, "d d"]) -> Float[Array, "*n"]:
    """log N(e; 0, R Rᵀ) from R⁻¹, lower triangular."""
    square = ((e @ inverse_root.T) ** 2).sum(-1)
    return -0.5 * (square + e.shape[-1] * LOG_2PI) + jnp.log(jnp.diagonal(inverse_root)).sum()
