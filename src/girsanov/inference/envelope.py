"""The bound at a q that is held fixed, and its derivative in parameters of the model.

At the q that is best for the parameters, it is the derivative of max_q L(q, θ): the envelope theorem.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Float

from girsanov._core.types import Array
from girsanov.chain.moments import Moments
from girsanov.chain.smoother import Smoothed
from girsanov.inference.careful import Path, bound
from girsanov.inference.continuous_bound import ContinuousSites, envelope
from girsanov.inference.objective import Posed, evaluate

Fixed = Moments | Path | ContinuousSites


def bound_at(problem: Posed, q: Fixed) -> Float[Array, ""]:
    """Return L(q, θ) for the parameters θ of the problem's model; for moments, up to the entropy of q.

    In continuous time the sites of q are held fixed instead of its moments, because q has the diffusion of the model.
    """
    if isinstance(q, ContinuousSites):
        return envelope(problem, q)
    if isinstance(q, Path):
        return bound(problem, q)[0]
    return evaluate(problem, Smoothed(q, jnp.zeros(()), jnp.asarray(True)))[0]


def value_and_grad_at(
    value: Callable[[Float[Array, " P"]], Float[Array, ""]], theta: Float[Array, " P"], q: Fixed
) -> tuple[Float[Array, ""], Float[Array, " P"]]:
    """Return the value and its gradient at θ, where the value is computed from `bound_at` this q.

    Transitions of the continuous process are computed in loops whose length depends on their numbers. JAX
    differentiates such loops in forward mode only, with one pass for each parameter.
    """
    if not isinstance(q, ContinuousSites):
        return jax.value_and_grad(value)(theta)

    def twice(t):
        here = value(t)
        return here, here

    grad, here = jax.jacfwd(twice, has_aux=True)(theta)
    return here, grad
