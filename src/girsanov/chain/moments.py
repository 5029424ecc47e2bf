"""Moments of a Gaussian Markov chain: central moments, and raw moments, which are the expectation parameters."""

import equinox as eqx
from jaxtyping import Float

from girsanov._core.types import Array
from girsanov.chain import blocks


class Moments(eqx.Module):
    """Means m_m, covariances S_m and lag-one covariances C_m = Cov(x_{m+1}, x_m); time is the last axis."""

    m: Float[Array, "d N"]
    S: Float[Array, "d d N"]
    C: Float[Array, "d d M"]


class ExpectationChain(eqx.Module):
    """Expectation parameters μ = E[(x_m, x_m x_mᵀ, x_{m+1} x_mᵀ)], dual to the natural parameters."""

    first: Float[Array, "d N"]
    second: Float[Array, "d d N"]
    cross: Float[Array, "d d M"]

    def __sub__(self, other: "ExpectationChain") -> "ExpectationChain":
        return ExpectationChain(self.first - other.first, self.second - other.second, self.cross - other.cross)


def expectations(q: Moments) -> ExpectationChain:
    """Return the expectation parameters (raw moments) of central moments."""
    return ExpectationChain(
        q.m,
        q.S + blocks.outer(q.m, q.m),
        q.C + blocks.outer(q.m[:, 1:], q.m[:, :-1]),
    )


def central(mu: ExpectationChain) -> Moments:
    """Return the central moments of expectation parameters; this is the inverse of `expectations`."""
    m = mu.first
    return Moments(m, mu.second - blocks.outer(m, m), mu.cross - blocks.outer(m[:, 1:], m[:, :-1]))
