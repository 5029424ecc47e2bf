"""The constants log 2π and ε of float64, and two differences that involve log Γ, to full precision for every x > 0.

Computed directly, the two differences would cancel for large x. Here both go from x to x + 10, where Stirling's series
has converged, by terms that stay small. There is no threshold in x, so they can be differentiated everywhere.
"""

import jax.numpy as jnp
from jaxtyping import Float

from girsanov._core.types import Array

_STEPS = 10
_HALF = (-1 / 8, 1 / 192, -1 / 640, 17 / 14336, -31 / 18432, 691 / 180224)
_WHOLE = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)
LOG_2PI = 1.8378770664093453
EPSILON = 2.0**-52  # the distance from 1 to the next float64


def _odd_powers(coefficients: tuple[float, ...], x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return Σ c_k x^(−2k−1)."""
    total = jnp.zeros_like(x)
    for c in reversed(coefficients):
        total = total / x**2 + c
    return total / x


def half_step_of_log_gamma(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return log Γ(x + ½) − log Γ(x) − ½ log x, which is about −1/(8x) for large x."""
    steps = sum(jnp.log1p(0.5 / (x + k)) for k in range(_STEPS))
    return 0.5 * jnp.log1p(_STEPS / x) - steps + _odd_powers(_HALF, x + _STEPS)


def log_rising(x: Float[Array, "..."], n: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return log Γ(x + n) − log Γ(x) − n log x for n ≥ 0, which is about n(n − 1)/(2x) for large x."""
    up = x + _STEPS
    steps = sum(jnp.log1p(n / (x + k)) for k in range(_STEPS))
    series = _odd_powers(_WHOLE, up + n) - _odd_powers(_WHOLE, up)
    return (up - 0.5) * jnp.log1p(n / up) - n + n * jnp.log1p((_STEPS + n) / x) + series - steps


def log_stirling(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return x log x − x − log Γ(x), which is about ½ log(x/2π) for large x."""
    up = x + _STEPS
    steps = sum(jnp.log1p((k - _STEPS) / up) for k in range(_STEPS))
    return _STEPS - x * jnp.log1p(_STEPS / x) + steps + 0.5 * (jnp.log(up) - LOG_2PI) - _odd_powers(_WHOLE, up)
