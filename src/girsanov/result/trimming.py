"""Runs without the padding of the grid and of the observations."""

from typing import Any

import jax
import numpy as np

from girsanov.chain.moments import Moments
from girsanov.chain.natural import NaturalChain
from girsanov.chain.transitions import Transitions
from girsanov.inference.continuous_bound import ContinuousSites
from girsanov.inference.loop import Run
from girsanov.inference.sites import Sites


def trimmed(result: Run, N: int, n: int) -> Run:
    """Return a run on N nodes with n observations, without padding, in NumPy arrays of its own."""

    def trim(part: Any, n: int) -> Any:
        return jax.tree.map(lambda a: np.array(np.asarray(a)[..., :n]), part)

    q, sites, eta = result.moments, result.sites, result.eta
    data, base = trim(sites.data, n), trim(sites.base, N if isinstance(sites, ContinuousSites) else N - 1)
    if isinstance(sites, ContinuousSites):
        short = ContinuousSites(base, trim(sites.left, N - 1), trim(sites.right, N - 1), data)
    else:
        short = Sites(base, trim(sites.dense, N - 1), data)
    steps = result.steps
    return result._replace(
        moments=Moments(trim(q.m, N), trim(q.S, N), trim(q.C, N - 1)),
        eta=NaturalChain(trim(eta.h, N), trim(eta.J, N), trim(eta.K, N - 1)),
        sites=short,
        steps=None if steps is None else Transitions(trim(steps.T, N - 1), trim(steps.root, N)),
    )
