"""Quadrature rules for Gaussian expectations, E[g(ξ)] ≈ Σ_n w_n g(ξ_n) with ξ ~ N(0, I_d)."""

import functools
import math
from itertools import combinations, product

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from girsanov._core.precision import frozen
from girsanov._core.types import Array

# Nodes per dimension of the default tensor rule, for each dimension of the state; for larger d the default is cubature.
_TENSOR_POINTS = {1: 24, 2: 8, 3: 6}
_POSITIVE = 6  # the largest dimension for which cubature of degree 7 has positive weights
_CHECK_POINTS = {1: 40, 2: 14, 3: 10, 4: 5, 5: 5, 6: 4}  # nodes per dimension of the tensor rule that checks another
_MOST_POINTS = {1: 100, 2: 60, 3: 24}  # largest number of nodes per dimension of such a tensor rule


class Rule(eqx.Module):
    """Nodes ξ of shape (d, n) and weights of shape (n,) that sum to one.

    `fine` says that other quadratures, those of likelihoods over single outputs, take more nodes than usual too.
    """

    nodes: Float[Array, "d n"]
    weights: Float[Array, " n"]
    fine: bool = eqx.field(static=True, default=False)


class GaussHermite(eqx.Module):
    """Gauss–Hermite quadrature: a tensor product of one-dimensional rules, for states of few dimensions.

    The rule is exact for polynomials of degree 2·points − 1 in each coordinate.

    Args:
        points: number of nodes per dimension; the rule has pointsᵈ nodes.
    """

    points: int = eqx.field(static=True)

    def rule(self, d: int) -> Rule:
        """Return the nodes and weights.

        Args:
            d: dimension of the state.

        Returns:
            The rule, with nodes of shape (d, pointsᵈ).

        Raises:
            ValueError: if the rule has more than a million nodes.
        """
        if d * math.log10(self.points) > 6:
            raise ValueError(
                f"Gauss–Hermite with {self.points} points per dimension needs {self.points}**{d} nodes for a state of "
                f"dimension {d}; use quadrature=gv.Cubature()"
            )
        return _tensor_rule(self.points, d)


@functools.lru_cache(maxsize=16)  # every call of `infer` asks for a rule
def _tensor_rule(points: int, d: int) -> Rule:
    x, w = np.polynomial.hermite_e.hermegauss(points)
    grids = np.meshgrid(*[x] * d, indexing="ij")
    weights = np.ones(1)
    for _ in range(d):
        weights = np.outer(weights, w / w.sum()).ravel()
    return Rule(frozen(np.stack([g.ravel() for g in grids])), frozen(weights))


class Cubature(eqx.Module):
    """Fully symmetric cubature rules, for states of many dimensions.

    The rule of degree 5 (McNamee and Stenger 1967) has 2d² + 1 nodes: the origin, ±√3 e_i and ±√3 e_i ± √3 e_j, with
    weights 1 + d(d − 7)/18, (4 − d)/18 and 1/36. Some weights are negative for d > 4, so use it for smooth drifts.

    The rule of degree 7 (Stroud 1967) has 2ᵈ + 2d² + 1 nodes for d ≤ 6: the origin, ±r e_i, ±s e_i ± s e_j and
    t(±1, …, ±1), with positive weights. The gradient of the bound is exact for a quadratic drift and nearly exact for a
    cubic one.

    Args:
        degree: 5 (the default) or 7; the rule is exact for polynomials up to this degree.
    """

    degree: int = eqx.field(static=True, default=5)

    def rule(self, d: int) -> Rule:
        """Return the nodes and weights.

        Args:
            d: dimension of the state.

        Returns:
            The rule, with nodes of shape (d, n).

        Raises:
            ValueError: if the degree is not 5 or 7, or if it is 7 and d > 6.
        """
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
    """Return (count, radius, weight) of the orbits of the rule of degree 7; see `_fully_symmetric`.

    They solve the equations of the moments x²y²z², x⁴y², x²y², x⁶, x⁴ and x², with u, v, w for r⁻², s⁻², t⁻².
    """
    v = (6.0 - math.sqrt(24.0 - 3.0 * d)) / (3.0 * (d + 4.0))
    u, w = (1.0 - (d - 2) * v) / (8.0 - d), 1.0 - 2.0 * v
    on_axes, on_pairs, on_corners = (8.0 - d) * u**3, 0.5 * v**3, w**3 / 2.0**d
    centre = 1.0 - 2 * d * on_axes - 2 * d * (d - 1) * on_pairs - w**3
    return [(0, 0.0, centre), (1, u**-0.5, on_axes), (2, v**-0.5, on_pairs), (d, w**-0.5, on_corners)]


def _fully_symmetric(d: int, orbits: list[tuple[int, float, float]]) -> Rule:
    """Return the rule of the given orbits (count, radius, weight).

    An orbit consists of all points with `count` coordinates equal to ±radius and the others zero, each with `weight`.
    """
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
    """Monte Carlo: equally weighted antithetic normal draws, the same ones at every time.

    Args:
        samples: number of nodes; an odd number is increased by one.
        key: JAX random key for the draws.
    """

    samples: int = eqx.field(static=True)
    key: Array

    def rule(self, d: int) -> Rule:
        """Return the nodes and weights.

        Args:
            d: dimension of the state.

        Returns:
            The rule, with nodes of shape (d, n).
        """
        half = jax.random.normal(self.key, (d, (self.samples + 1) // 2))
        nodes = np.concatenate([half, -half], axis=1).astype(np.float64)
        return Rule(nodes, np.full(nodes.shape[1], 1.0 / nodes.shape[1]))


Quadrature = GaussHermite | Cubature | MonteCarlo


def default_quadrature(d: int) -> Quadrature:
    """Return the default rule for a state of dimension d: Gauss–Hermite up to d = 3, cubature above."""
    return GaussHermite(_TENSOR_POINTS[d]) if d in _TENSOR_POINTS else Cubature(7 if d <= _POSITIVE else 5)


def richer(rule: Rule) -> Rule:
    """Return a rule of clearly higher degree than the given one, with which a result by the given rule is checked.

    Up to d = 3 it is a tensor rule with at least 1.5 times as many points per dimension, up to a limit. It is a tensor
    rule with five points per dimension for d = 4 and 5, and four for d = 6, and a fully symmetric rule of degree 7 for
    larger d.
    """
    d, n = rule.nodes.shape
    if d > max(_CHECK_POINTS):
        better = _fully_symmetric_7(d)
    else:
        points = _CHECK_POINTS[d]
        if d in _TENSOR_POINTS:
            points = min(max(points, math.ceil(1.5 * n ** (1.0 / d))), _MOST_POINTS[d])
        better = GaussHermite(points).rule(d)
    return Rule(better.nodes, better.weights, fine=True)


def stronger(rule: Rule) -> str:
    """Return the call that makes a rule to use instead of one that is not accurate enough."""
    d, n = rule.nodes.shape
    if d in _MOST_POINTS and n < _MOST_POINTS[d] ** d:
        return f"gv.GaussHermite({min(2 * math.ceil(n ** (1.0 / d) - 1e-9), _MOST_POINTS[d])})"
    return "gv.GaussHermite(5)" if d in _CHECK_POINTS and n < 5**d else "gv.MonteCarlo(samples, key)"


def _fully_symmetric_7(d: int) -> Rule:
    """Return the rule of degree 7 for any dimension (Genz and Keister 1996).

    With λ_1, λ_2, λ_3 the entries of `radii` after zero, its points are the origin and those with one coordinate ±λ_1,
    ±λ_2 or ±λ_3, with two coordinates ±λ_1, or with three coordinates ±λ_1. All other weights of the rule are zero.
    """
    radii = np.array([0.0, math.sqrt(3.0), 4.1849560176727323, 0.74109534999454085])
    a, polynomial = [], np.ones(1)  # a_i = E Π_{j<i} (x² − λ_j²)
    for i in range(4):
        a.append(sum(c * math.prod(range(2 * k - 1, 0, -2)) for k, c in enumerate(polynomial)))
        polynomial = np.convolve(polynomial, [-(radii[i] ** 2), 1.0])

    def series(p: int) -> np.ndarray:
        """Return the terms of the weight that belong to one coordinate at the p-th radius."""
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


def root_of(S: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """Return a square root of a covariance that may be singular, for states m + root ξ.

    It is singular if a state is known exactly, as at a drawn path, or if an emission has more rows than the state has
    entries.
    """
    size, axes = jnp.linalg.eigh(S)
    return axes * jnp.sqrt(jnp.maximum(size, 0.0))
