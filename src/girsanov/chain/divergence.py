"""Entropy, log partition function and Kullback–Leibler divergence of Gaussian Markov chains."""

from typing import Any

from jaxtyping import Float

from girsanov._core.special import LOG_2PI
from girsanov._core.types import Array
from girsanov.chain.moments import expectations
from girsanov.chain.natural import NaturalChain, inner
from girsanov.chain.smoother import Engine, smooth


def entropy(entries: Any, log_det: Float[Array, ""]) -> Float[Array, ""]:
    """Return the entropy ½ n (1 + log 2π) − ½ log det(precision) of a Gaussian with n = `entries` coordinates."""
    return 0.5 * (entries * (1.0 + LOG_2PI) - log_det)


def log_partition(chain: NaturalChain, engine: Engine = "auto") -> Float[Array, ""]:
    """Return the log partition function A(η), whose gradient is μ.

    A(η) = log ∫ exp⟨η, T(x)⟩ dx = ½ hᵀm − ½ log det(precision) + ½ N d log 2π.
    """
    s = smooth(chain, engine)
    d, n = chain.h.shape
    return 0.5 * ((chain.h * s.moments.m).sum() - s.log_det + n * d * LOG_2PI)


def kl(q: NaturalChain, p: NaturalChain, engine: Engine = "auto") -> Float[Array, ""]:
    """Return KL(q ‖ p) = ⟨η_q − η_p, μ_q⟩ − A(η_q) + A(η_p)."""
    s = smooth(q, engine)
    return inner(q - p, expectations(s.moments)) - log_partition(q, engine) + log_partition(p, engine)
