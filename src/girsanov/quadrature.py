"""Rules for Gaussian expectations: E[g(ξ)] ≈ Σ_n w_n g(ξ_n) with ξ ~ N(0, I_d)."""

import math
from itertools import combinations

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float

from girsanov._types import Array

# Nodes a dimension of the tensor rule, by the dimension of the state; above, cubature takes over.
_TENSOR_POINTS = {1: 24, 2: 8, 3: 6}


class Rule(eqx.Module):
    """Nodes ξ of shape (d, n) and weights of shape (n,) that sum to one."""

    nodes: Float[Array, "d n"]
    weights: Float[Array, " n"]


class GaussHermite(eqx.Module):
    """Tensor product of one-dimensional rules: exact for polynomials of degree 2·points − 1 in each coordinate."""

    points: int = eqx.field(static=True)

    def rule(self, d: int) -> Rule:
        if d * math.log10(self.points) > 6:
            raise ValueError(
                f"Gauss–Hermite with {self.points} points a dimension needs {self.points}**{d} nodes for a state of "
                f"dimension {d}; use quadrature=gv.Cubature()"
            )
        x, w = np.polynomial.hermite_e.hermegauss(self.points)
        grids = np.meshgrid(*[x] * d, indexing="ij")
        weights = np.ones(1)
        for _ in range(d):
            weights = np.outer(weights, w / w.sum()).ravel()
        return Rule(np.stack([g.ravel() for g in grids]), weights)


class Cubature(eqx.Module):
    """Fully symmetric rule of degree 5 with 2d² + 1 nodes (McNamee and Stenger 1967), for states of many dimensions.

    Nodes: the origin, ±√3 e_i and ±√3 e_i ± √3 e_j, with weights 1 + d(d − 7)/18, (4 − d)/18 and 1/36. The weights
    are negative in part for d > 4, so use it for smooth drifts.
    """

    def rule(self, d: int) -> Rule:
        r = math.sqrt(3.0)
        nodes, weights = [np.zeros(d)], [1.0 + d * (d - 7) / 18.0]
        for i in range(d):
            for s in (r, -r):
                nodes.append(s * np.eye(d)[i])
                weights.append((4.0 - d) / 18.0)
        for i, j in combinations(range(d), 2):
            for s in (r, -r):
                for u in (r, -r):
                    nodes.append(s * np.eye(d)[i] + u * np.eye(d)[j])
                    weights.append(1.0 / 36.0)
        return Rule(np.stack(nodes, axis=1), np.array(weights))


class MonteCarlo(eqx.Module):
    """Equally weighted antithetic normal draws, the same ones at every time: `samples` nodes from `key`."""

    samples: int = eqx.field(static=True)
    key: Array

    def rule(self, d: int) -> Rule:
        half = jax.random.normal(self.key, (d, (self.samples + 1) // 2))
        nodes = np.concatenate([half, -half], axis=1).astype(np.float64)
        return Rule(nodes, np.full(nodes.shape[1], 1.0 / nodes.shape[1]))


Quadrature = GaussHermite | Cubature | MonteCarlo


def default_quadrature(d: int) -> Quadrature:
    return GaussHermite(_TENSOR_POINTS[d]) if d in _TENSOR_POINTS else Cubature()
