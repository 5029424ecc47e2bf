"""Rules for Gaussian expectations: E[g(ξ)] ≈ Σ_n w_n g(ξ_n) with ξ ~ N(0, I_d)."""

import math
from itertools import combinations, product

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float

from girsanov._core.types import Array

# Nodes a dimension of the tensor rule, by the dimension of the state; above, cubature takes over.
_TENSOR_POINTS = {1: 24, 2: 8, 3: 6}
_POSITIVE = 6  # the dimension up to which cubature of degree 7 has positive weights
_CHECK_POINTS = {1: 40, 2: 14, 3: 10, 4: 5, 5: 5, 6: 4}  # of the tensor rule that checks another
_MOST_POINTS = {1: 100, 2: 60, 3: 24}


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
    """Fully symmetric rules for states of many dimensions.

    - degree 5, 2d² + 1 nodes (McNamee and Stenger 1967): the origin, ±√3 e_i and ±√3 e_i ± √3 e_j, with weights
      1 + d(d − 7)/18, (4 − d)/18 and 1/36. They are negative in part for d > 4, so use it for smooth drifts.
    - degree 7, 2ᵈ + 2d² + 1 nodes (Stroud 1967), d ≤ 6: the origin, ±r e_i, ±s e_i ± s e_j and t(±1, …, ±1), with
      positive weights. The gradient of the bound is exact for a quadratic drift, and near so for a cubic one.
    """

    degree: int = eqx.field(static=True, default=5)

    def rule(self, d: int) -> Rule:
        if self.degree not in (5, 7):
            raise ValueError(f"cubature has degree 5 or 7, got degree={self.degree!r}")
        if self.degree == 7 and d > _POSITIVE:
            raise ValueError(
                f"cubature of degree 7 is for states of up to {_POSITIVE} dimensions, where its weights are positive; "
                f"this state has dimension {d}: use quadrature=gv.Cubature(5)"
            )
        return _fully_symmetric(d, _degree_5(d) if self.degree == 5 else _degree_7(d))


def _degree_5(d: int) -> list[tuple[int, float, float]]:
    r = math.sqrt(3.0)
    return [(0, 0.0, 1.0 + d * (d - 7) / 18.0), (1, r, (4.0 - d) / 18.0), (2, r, 1.0 / 36.0)]


def _degree_7(d: int) -> list[tuple[int, float, float]]:
    """From the moments x²y²z², x⁴y², x²y², x⁶, x⁴, x² in turn, with u, v, w for r⁻², s⁻², t⁻²."""
    v = (6.0 - math.sqrt(24.0 - 3.0 * d)) / (3.0 * (d + 4.0))
    u, w = (1.0 - (d - 2) * v) / (8.0 - d), 1.0 - 2.0 * v
    on_axes, on_pairs, on_corners = (8.0 - d) * u**3, 0.5 * v**3, w**3 / 2.0**d
    centre = 1.0 - 2 * d * on_axes - 2 * d * (d - 1) * on_pairs - w**3
    return [(0, 0.0, centre), (1, u**-0.5, on_axes), (2, v**-0.5, on_pairs), (d, w**-0.5, on_corners)]


def _fully_symmetric(d: int, orbits: list[tuple[int, float, float]]) -> Rule:
    """All points with `count` coordinates of size `radius` and the others zero, each with its weight."""
    nodes, weights = [], []
    for count, radius, weight in orbits:
        for at in combinations(range(d), count):
            for signs in product((1.0, -1.0), repeat=count):
                point = np.zeros(d)
                point[list(at)] = radius * np.array(signs)
                nodes.append(point)
                weights.append(weight)
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
    return GaussHermite(_TENSOR_POINTS[d]) if d in _TENSOR_POINTS else Cubature(7 if d <= _POSITIVE else 5)


def richer(rule: Rule) -> Rule:
    """A rule of clearly higher degree, with many more nodes: what an answer by the given one is checked with.

    Up to d = 3 a tensor rule with half as many points again, then one of five points a dimension, of four at d = 6;
    above, a fully symmetric rule of degree 7.
    """
    d, n = rule.nodes.shape
    if d > max(_CHECK_POINTS):
        return _fully_symmetric_7(d)
    points = _CHECK_POINTS[d]
    if d in _TENSOR_POINTS:
        points = min(max(points, math.ceil(1.5 * n ** (1.0 / d))), _MOST_POINTS[d])
    return GaussHermite(points).rule(d)


def _fully_symmetric_7(d: int) -> Rule:
    """Degree 7 in any dimension (Genz and Keister 1996): the origin and radii 1, 2, 3, (1, 1), (1, 1, 1)
    of the ones below, all that have a weight."""
    radii = np.array([0.0, math.sqrt(3.0), 4.1849560176727323, 0.74109534999454085])
    a, polynomial = [], np.ones(1)  # a_i = E Π_{j<i} (x² − λ_j²)
    for i in range(4):
        a.append(sum(c * math.prod(range(2 * k - 1, 0, -2)) for k, c in enumerate(polynomial)))
        polynomial = np.convolve(polynomial, [-(radii[i] ** 2), 1.0])

    def series(p: int) -> np.ndarray:
        """Of one coordinate that stands at the p-th radius."""
        gaps = radii[p] ** 2 - radii**2
        return np.array([a[k + p] / np.prod(np.delete(gaps[: k + p + 1], p)) for k in range(4 - p)])

    orbits = [(0, 0.0, ()), (1, radii[1], (1,)), (1, radii[2], (2,)), (1, radii[3], (3,)), (2, radii[1], (1, 1))]
    orbits.append((3, radii[1], (1, 1, 1)))

    def weight(places: tuple[int, ...]) -> float:
        total = np.ones(1)
        for p in (*places, *[0] * (d - len(places))):
            total = np.convolve(total, series(p))[: 4 - sum(places)]
        return float(total.sum()) / 2 ** len(places)

    return _fully_symmetric(d, [(count, float(radius), weight(places)) for count, radius, places in orbits])
