"""(a) The smoother at d = 2 and 3 against the textbook recursion, one `lax.scan` over d×d matrices."""

from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.measure import Figure, interleaved
from benchmarks.problems import random_chain
from girsanov._core.compile import compiled
from girsanov._core.precision import float64
from girsanov.chain.natural import NaturalChain
from girsanov.chain.smoother import ENGINES, smooth

_NODES = 20_001
_TARGETS = {2: 6.0, 3: 12.0}
_REPEATS = 30


@jax.jit
def textbook(h, J, K):
    """Means, covariances, lag-one covariances and log determinant, time in the first axis."""

    def forward(carry, node):
        Jt, ht = carry
        K_m, J_next, h_next = node
        P = jnp.linalg.inv(Jt)
        carry = J_next - K_m @ P @ K_m.T, h_next - K_m @ P @ ht
        return carry, (P, ht, jnp.linalg.slogdet(Jt)[1])

    (J_last, h_last), (P, ht, log_dets) = jax.lax.scan(forward, (J[0], h[0]), (K, J[1:], h[1:]))
    S_last = jnp.linalg.inv(J_last)

    def backward(carry, node):
        m_next, S_next = carry
        P_m, h_m, K_m = node
        G = P_m @ K_m.T
        m, S = P_m @ h_m - G @ m_next, P_m + G @ S_next @ G.T
        return (m, S), (m, S, -S_next @ G.T)

    last = S_last @ h_last, S_last
    _, (m, S, C) = jax.lax.scan(backward, last, (P, ht, K), reverse=True)
    log_det = log_dets.sum() + jnp.linalg.slogdet(J_last)[1]
    return jnp.concatenate([m, last[0][None]]), jnp.concatenate([S, last[1][None]]), C, log_det


def check_same(chain: NaturalChain, engine: str, expected: tuple) -> None:
    got = smooth(chain, engine)
    q = got.moments
    for a, b in zip((q.m, q.S, q.C, got.log_det), expected, strict=True):
        a, b = np.moveaxis(np.asarray(a), -1, 0) if np.ndim(a) else np.asarray(a), np.asarray(b)
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10 * np.abs(b).max(), err_msg=f"engine {engine}")
    assert bool(got.ok)


@float64
def measure(d: int) -> list[Figure]:
    chain = random_chain(d, _NODES)
    by_time = [jnp.moveaxis(a, -1, 0).copy() for a in (chain.h, chain.J, chain.K)]
    expected = textbook(*by_time)
    calls = {"textbook": lambda: textbook(*by_time)}
    for engine in ENGINES:
        check_same(chain, engine, expected)
        run = compiled(lambda c, engine=engine: smooth(c, engine))
        calls[engine] = lambda run=run: run(chain)
    seconds = interleaved(calls, _REPEATS)
    figures = [Figure("a", f"d={d}, {name}", 1e3 * s, "ms") for name, s in seconds.items()]
    for engine in ENGINES:
        target = _TARGETS[d] if engine == "auto" else None
        ratio = seconds["textbook"] / seconds[engine]
        figures.append(Figure("a", f"d={d}, {engine}: faster than textbook", ratio, "×", at_least=target))
    return figures


def scenario(data: Path | None) -> Iterator[Figure]:
    for d in _TARGETS:
        yield from measure(d)
