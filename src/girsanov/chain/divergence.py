"""Entropy, log partition function and Kullback–Leibler divergence of chains."""

from jaxtyping import Float

from girsanov._core.types import Array
from girsanov.chain.moments import expectations
from girsanov.chain.natural import NaturalChain, inner
from girsanov.chain.smoother import Engine, Smoothed, smooth

LOG_2PI = 1.8378770664093453


def entropy(smoothed: Smoothed) -> Float[Array, ""]:
    """H[q] = ½ N d (1 + log 2π) − ½ log det(precision)."""
    d, n = smoothed.moments.m.shape
    return 0.5 * (n * d * (1.0 + LOG_2PI) - smoothed.log_det)


def log_partition(chain: NaturalChain, engine: Engine = "auto") -> Float[Array, ""]:
    """A(η) = log ∫ exp⟨η, T(x)⟩ dx = ½ hᵀm − ½ log det(precision) + ½ N d log 2π; its gradient is μ."""
    s = smooth(chain, engine)
    d, n = chain.h.shape
    return 0.5 * ((chain.h * s.moments.m).sum() - s.log_det + n * d * LOG_2PI)


def kl(q: NaturalChain, p: NaturalChain, engine: Engine = "auto") -> Float[Array, ""]:
    """KL(q ‖ p) = ⟨η_q − η_p, μ_q⟩ − A(η_q) + A(η_p)."""
    s = smooth(q, engine)
    return inner(q - p, expectations(s.moments)) - log_partition(q, engine) + log_partition(p, engine)
