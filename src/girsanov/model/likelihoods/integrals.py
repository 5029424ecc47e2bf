"""Sums over quadrature nodes for expectations under scalar and paired Gaussians."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from girsanov._core.types import Array
from girsanov.model.quadrature import GaussHermite, root_of

_NARROW_NODES = 40  # quadrature nodes for E log p if the noise may be narrower than the Gaussian
_REACH = 6.5  # standard deviations on either side that nodes other than those of Gauss–Hermite cover
_STEPS = 64  # quadrature nodes for moments of y


def hermite(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights of Gauss–Hermite with n points, for a standard normal."""
    rule = GaussHermite(n).rule(1)
    return rule.nodes[0], rule.weights


def quadrature_sums(
    values: Float[Array, "n D"], xi: Float[Array, "n #D"], w: Float[Array, "n #D"], sd: Float[Array, " D"]
) -> tuple[Float[Array, " D"], Float[Array, " D"], Float[Array, " D"]]:
    """Return E[v] of every entry and its derivatives in mean and variance, from values v at nodes ξ = (z − mean)/sd.

    The derivatives are E[v ξ]/sd and ½(E[v ξ²] − E[v])/sd². If sd = 0, z does not depend on the state, and no gradient
    is used.
    """
    inverse_sd = jnp.where(sd > 0.0, 1.0 / jnp.where(sd > 0.0, sd, 1.0), 0.0)
    value, first, second = ((w * values * a).sum(0) for a in (1.0, xi, xi**2 - 1.0))
    return value, first * inverse_sd, 0.5 * second * inverse_sd**2


def two_scale_nodes(
    centre: Float[Array, " D"],
    width: Float[Array, " D"],
    mean: Float[Array, " D"],
    sd: Float[Array, " D"],
    factor: float,
) -> tuple[Float[Array, "n D"], Float[Array, "n D"]]:
    """Return nodes and weights for ξ = (z − mean)/sd ~ N(0, 1) and functions of z that change over `width` at `centre`.

    They are those of Gauss–Hermite if z is not broader than the width a. Otherwise z = centre + a sinh(t): equal steps
    in t resolve both the scale of z and that of the function. `factor` is the number of nodes as a multiple of the
    usual one.
    """
    n = round(factor * _NARROW_NODES)
    xi, w = (a[:, None] for a in hermite(n))
    a = width
    unit = jnp.where(sd > 0.5 * a, sd, a)
    low, high = (jnp.arcsinh((mean - centre + side * unit) / a) for side in (-_REACH, _REACH))
    step = (high - low) / (n - 1)
    up = jnp.exp(low + step * jnp.arange(n)[:, None])
    down = 1.0 / up
    at = (centre - mean) / unit + (0.5 * a / unit) * (up - down)
    weight = jnp.exp(-0.5 * at**2) * (up + down) * (step * a / unit * (0.5 / np.sqrt(2.0 * np.pi)))
    return jnp.where(sd > 0.5 * a, at, xi), jnp.where(sd > 0.5 * a, weight, w)


def normal_nodes() -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Return nodes and weights of the trapezoidal rule for a standard normal.

    The rule is fine enough for a function of z that looks like a step because the marginal of z is broad.
    """
    xi = jnp.linspace(-6.5, 6.5, _STEPS)
    w = jnp.exp(-0.5 * xi**2)
    return xi, w / w.sum()


def pair_covariance(
    first: Callable[[Array], Array],
    second: Callable[[Array], Array],
    mean: Float[Array, " 2"],
    V: Float[Array, "2 2"],
    means: Float[Array, " 2"],
) -> Float[Array, ""]:
    """Return the covariance of first(z₁) and second(z₂) if z ~ N(mean, V), where `means` are their means."""
    xi, w = normal_nodes()
    z = mean + jnp.stack(jnp.meshgrid(xi, xi), -1).reshape(-1, 2) @ root_of(V).T
    return jnp.outer(w, w).ravel() @ (first(z[:, 0]) * second(z[:, 1])) - means[0] * means[1]
