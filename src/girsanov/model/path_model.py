"""The densities of single states, steps and observations of a model on a grid, for methods that draw paths."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from girsanov._core.compile import compiled
from girsanov._core.precision import float64, to_numpy
from girsanov._core.special import LOG_2PI
from girsanov._core.types import Array
from girsanov.chain import blocks
from girsanov.chain.linear_sde import Linearisation, exact_transition, linear_transition
from girsanov.data.grid import Grid
from girsanov.data.instants import Instant
from girsanov.data.on_grid import SeriesOnGrid, on_grid
from girsanov.data.rows import Rows
from girsanov.data.series import TimeSeries
from girsanov.model.diffusions import Diffusion
from girsanov.model.model import Model


class LinearSteps(eqx.Module):
    """Exact transitions x₊ | x ~ N(Φx + c, Σ) for a linear drift A x + b that is given at the nodes.

    Ψ is the integral of Φ over the step: a constant e that is added to the drift moves the mean of x₊ by Ψe. If the
    noise is singular, e reaches positions only through velocities, by Δ²/2 and not by Δ.
    """

    Phi: Float[Array, "M d d"]
    Psi: Float[Array, "M d d"]
    c: Float[Array, "M d"]
    left: tuple[Float[Array, "M d d"], Float[Array, "M d"]]  # A and b at the left ends of the steps
    right: tuple[Float[Array, "M d d"], Float[Array, "M d"]]  # and at their right ends


class PathModel(eqx.Module):
    """The joint density p(x₀) Π p(x_{m+1} | x_m) Π p(y_m | x_m) on the nodes of a grid.

    If `linear` is None, a step is that of Euler–Maruyama, N(x + Δf(x, t), ΔQ). Otherwise it approximates the transition
    of the SDE in continuous time, near that of a linear SDE; see `log_step`.
    """

    model: Model
    data: SeriesOnGrid
    rows: Rows  # one for every node; where nothing is observed, all values are missing
    step_root: Float[Array, "M d d"]  # root of the noise covariance of every step
    inverse_step_root: Float[Array, "M d d"]
    linear: LinearSteps | None = None

    def initial(self) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
        """Return mean and covariance of the initial state."""
        state = self.model.initial_state()
        return jnp.asarray(state.mean), jnp.asarray(state.cov)

    def log_initial(self, x: Float[Array, "*n d"]) -> Float[Array, "*n"]:
        """Return log p(x₀) at x."""
        mean, cov = self.initial()
        return log_normal(x - mean, jnp.linalg.inv(jnp.linalg.cholesky(cov)))

    def _drift(self, node: Any, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        return self._drift_at(_moment(self.data.at_nodes, node), x)

    def _drift_at(self, t: Any, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        return jnp.vectorize(lambda v: self.model.drift(v, t), signature="(d)->(d)")(x)

    def moved(self, node: Any, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """Return the mean of the next state: x + Δf(x, t), or Φx + c + Ψ(f(x, t) − Ax − b) if `linear` is given."""
        if self.linear is None:
            return x + self.data.gaps[node] * self._drift(node, x)
        e = self._drift(node, x) - _linear_drift(self.linear.left, node, x)
        return x @ self.linear.Phi[node].T + self.linear.c[node] + e @ self.linear.Psi[node].T

    def noise(self, node: Any, xi: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """Return the noise of the step after this node, made from standard normal numbers ξ."""
        return xi @ self.step_root[node].T

    def log_step(self, node: Any, x: Float[Array, "*#n d"], after: Float[Array, "*#n d"]) -> Float[Array, "*n"]:
        """Return log p(after | x) for the step that begins at this node.

        In continuous time, with e = f − f_B for the linear drift f_B = A x + b, Girsanov's theorem gives
            p(x₊ | x) = p_B(x₊ | x) E exp{∫ eᵀQ⁻¹ ∘ dx − ∫ φ dt},  φ = ½ div e + ½ eᵀQ⁻¹(f + f_B),
        where the expectation is over bridges of f_B from x to x₊. Both integrals are approximated by the trapezoidal
        rule between the two ends. The error is of second order in Δ and vanishes if f = f_B.
        """
        if self.linear is None:
            return log_normal(after - self.moved(node, x), self.inverse_step_root[node])
        start = x @ self.linear.Phi[node].T + self.linear.c[node]
        e0, phi0 = self._tilt(_moment(self.data.at_nodes, node), self.linear.left, node, x)
        e1, phi1 = self._tilt(_moment(self.data.at_ends, node + 1), self.linear.right, node, after)
        along = 0.5 * self._product(e0 + e1, after - x)
        base = log_normal(after - start, self.inverse_step_root[node])
        return base + along - 0.5 * self.data.gaps[node] * (phi0 + phi1)

    def _tilt(
        self, t: Any, base: tuple, step: Any, x: Float[Array, "*#n d"]
    ) -> tuple[Float[Array, "*#n d"], Float[Array, "*#n"]]:
        """Return e and φ of `log_step` at time t, one end of a step, where `base` has A and b of all steps."""
        drift, linear = self._drift_at(t, x), _linear_drift(base, step, x)
        e = drift - linear
        slope = jnp.vectorize(lambda v: jnp.trace(jax.jacfwd(self.model.drift)(v, t)), signature="(d)->()")(x)
        div = slope - jnp.trace(base[0][step])
        return e, 0.5 * (div + self._product(e, drift + linear))

    def _product(self, e: Float[Array, "*#n d"], v: Float[Array, "*#n d"]) -> Float[Array, "*#n"]:
        """Return eᵀQ⁻¹v, where e lies in the range of Q if that is singular."""
        return ((e @ self.model.noise.precision) * v).sum(-1)

    def log_likelihood(self, node: Any, x: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Return log p(y | x) at this node for each state; it is zero if nothing is observed there."""
        row = self.rows[node]
        return jax.vmap(lambda x: self.model.observation.log_prob(row, x))(x)

    def log_data(self, path: Float[Array, "N d"]) -> Float[Array, ""]:
        """Return log p(y | path) of all observations."""
        return jax.vmap(self.model.observation.log_prob)(self.rows, path).sum()

    def log_joint(self, path: Float[Array, "N d"]) -> Float[Array, ""]:
        """Return log p(path, y), the joint log density of a path and all observations."""
        steps = jax.vmap(self.log_step)(jnp.arange(len(self.data.gaps)), path[:-1], path[1:])
        return self.log_initial(path[0]) + steps.sum() + self.log_data(path)


def _moment(times: Any, node: Any) -> Any:
    """Return one of several times, with its inputs if there are any."""
    return times[node] if isinstance(times, Instant) else jnp.asarray(times)[node]


def _linear_drift(base: tuple, step: Any, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
    A, b = base
    return x @ A[step].T + b[step]


def path_model(model: Model, series: TimeSeries, grid: Grid) -> PathModel:
    """Make the PathModel with Euler–Maruyama steps, which have densities only if the noise is not singular.

    If the noise depends on the state, the paths are those of w, in whose coordinates it is constant.
    """
    data = on_grid(series, grid)
    model = model.driven_by(data.inputs).latent
    if model.noise.is_singular:
        raise ValueError(
            "the diffusion of this model is singular, so that steps of Euler–Maruyama have no density and this method "
            "cannot weigh paths. With post = gv.infer(...), use post.diagnose(key=...) for the evidence and "
            "girsanov.baselines.particle_smoother(..., guided=post) for paths, or give every coordinate a little noise"
        )
    return on_nodes(model, data)


def on_nodes(model: Model, data: SeriesOnGrid) -> PathModel:
    """Make the PathModel of `path_model` from data without padding, also inside compiled code, and without its checks.

    The noise of the model must not depend on the state.
    """
    step_root = model.noise.step_roots(data.gaps)
    return PathModel(model, data, data.by_node(), step_root, model.noise.inverse_step_roots(data.gaps))


@float64
def exact_path_model(model: Model, series: TimeSeries, grid: Grid, base: Linearisation) -> PathModel:
    """Make the PathModel in continuous time, whose steps are exact if the drift is the linear drift `base`.

    `base` is given at the nodes. If the noise depends on the state, the paths are those of w.
    """
    data = on_grid(series, grid)
    model = model.driven_by(data.inputs).latent
    return _with_steps(model, data, to_numpy(_compiled_steps(base, model.noise, data.gaps)))


def exact_on_nodes(model: Model, data: SeriesOnGrid, base: Linearisation) -> PathModel:
    """Make the PathModel of `exact_path_model` from data without padding, also inside compiled code.

    The noise of the model must not depend on the state.
    """
    return _with_steps(model, data, _steps(base, model.noise, data.gaps))


def _with_steps(model: Model, data: SeriesOnGrid, steps: Any) -> PathModel:
    L, L_inv, linear = steps
    return PathModel(model, data, data.by_node(), L, L_inv, linear)


def _steps(base: Linearisation, noise: Diffusion, gaps):
    """Return for every step the Cholesky factor L of Σ, L⁻¹, and Φ, Ψ, c with the linear drift, time first."""
    Q, gaps = jnp.asarray(noise.Q), jnp.asarray(gaps)
    Phi, c, Sigma = exact_transition(base, Q, gaps)
    left, right = (jax.tree.map(jnp.asarray, end) for end in (base.at_left, base.at_right))
    # c is linear in b: Ψ is c for unit vectors b
    units = jnp.broadcast_to(jnp.eye(Phi.shape[0])[:, :, None], Phi.shape)
    Psi = jax.vmap(lambda b: linear_transition((left.A, right.A), (b, b), Q, gaps).c, out_axes=1)(units)
    L = blocks.cholesky(Sigma)
    parts = (L, blocks.inverse_lower(L), Phi, Psi, c, left.A, left.b, right.A, right.b)
    L, L_inv, Phi, Psi, c, A, b, A_right, b_right = (jnp.moveaxis(a, -1, 0) for a in parts)
    return L, L_inv, LinearSteps(Phi, Psi, c, (A, b), (A_right, b_right))


_compiled_steps = compiled(_steps)


def log_normal(e: Float[Array, "*n d"], inverse_root: Float[Array, "d d"]) -> Float[Array, "*n"]:
    """Return log N(e; 0, R Rᵀ) from R⁻¹, which is lower triangular."""
    square = ((e @ inverse_root.T) ** 2).sum(-1)
    return -0.5 * (square + e.shape[-1] * LOG_2PI) + jnp.log(jnp.diagonal(inverse_root)).sum()
