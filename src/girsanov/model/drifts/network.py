"""Neural networks."""

import itertools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from girsanov._core.types import Array
from girsanov.model.drifts.base import Drift

ACTIVATIONS: dict[str, Callable] = {"relu": jax.nn.relu, "tanh": jnp.tanh, "softplus": jax.nn.softplus}


class MLP(Drift):
    """A fully connected neural network from ℝᵈ to ℝᵈ.

    Weights and biases are drawn uniformly from ±1/√n, where n is the number of inputs of the layer.

    Args:
        dim: dimension d of the state.
        width: units in each hidden layer; 3 by default.
        depth: number of hidden layers; 1 by default.
        activation: "relu" (the default), "tanh" or "softplus".
        key: JAX random key for the initial weights.
    """

    layers: tuple[tuple[Float[Array, "i o"], Float[Array, " i"]], ...]
    activation: str = eqx.field(static=True)

    def __init__(self, dim: int, width: int = 3, depth: int = 1, activation: str = "relu", *, key: Array):
        if activation not in ACTIVATIONS:
            raise ValueError(f"unknown activation {activation!r}; choose one of {sorted(ACTIVATIONS)}")
        sizes = [dim] + [width] * depth + [dim]
        layers = []
        for n_in, n_out in itertools.pairwise(sizes):
            key, kw, kb = jax.random.split(key, 3)
            bound = 1.0 / np.sqrt(n_in)
            W = jax.random.uniform(kw, (n_out, n_in), minval=-bound, maxval=bound)
            b = jax.random.uniform(kb, (n_out,), minval=-bound, maxval=bound)
            layers.append((np.asarray(W, np.float64), np.asarray(b, np.float64)))
        self.layers, self.activation = tuple(layers), activation

    @property
    def dim(self) -> int | None:
        return self.layers[0][0].shape[1]

    def reinitialise(self, key: Array) -> "MLP":
        """Draw new weights.

        Args:
            key: JAX random key.

        Returns:
            A network of the same shape with new random weights.
        """
        return MLP(self.layers[0][0].shape[1], len(self.layers[0][1]), len(self.layers) - 1, self.activation, key=key)

    def __call__(self, x, t):
        act = ACTIVATIONS[self.activation]
        for W, b in self.layers[:-1]:
            x = act(W @ x + b)
        W, b = self.layers[-1]
        return W @ x + b
