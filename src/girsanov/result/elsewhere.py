"""A search for other maxima of the bound, by starts that leave one observation out.

With noise that has heavy tails, an observation may be followed by the path or be explained as an outlier, and each
choice can be a maximum of the bound. A run that starts from all data, and a particle filter that meets the data one by
one, both find the choice that suits the first of two observations which contradict each other. A start without one of
them finds the other choice.
"""

from typing import Any, NamedTuple

import equinox as eqx
import numpy as np

from girsanov.data.on_grid import on_grid
from girsanov.inference.cvi_dp import CVIDP
from girsanov.inference.objective import Posed
from girsanov.inference.status import Status
from girsanov.model.quadrature import Rule

_TRIED = 12  # observations that are left out, one at a time
_DISTINCT = 6.0  # two posteriors are distinct where their means differ by this many standard deviations


class Elsewhere(NamedTuple):
    """The highest maximum of the bound away from a posterior.

    Attributes:
        elbo: its bound, in nats.
        time: time of the observation that its start left out.
    """

    elbo: float
    time: float


def look_elsewhere(post: Any, rule: Rule) -> Elsewhere | None:
    """Return the highest maximum that differs from a posterior, or None where none was found or none is looked for.

    It is looked for if the likelihood has heavy tails. The observations left out are those that pull hardest.
    """
    likelihood = post.model.likelihood
    heavy = any(part.heavy_tailed for part in getattr(likelihood, "parts", (likelihood,)))
    if not heavy or len(post.series) < 2:
        return None
    problem, method = Posed(post.model, on_grid(post.series, post.grid), rule), CVIDP(time=post.time)
    found: Elsewhere | None = None
    for i in _hardest(post):
        seen = np.array(problem.data.observed)
        seen[i] = False
        first, _ = method.solve(eqx.tree_at(lambda p: p.data.observed, problem, seen))
        if first.status is Status.BAD_START:
            continue
        other = method.continue_from(problem, method.next_start(first, first.sites, first.eta))
        # However its run ended: the bound of any q is a bound on the evidence.
        if other.status is Status.BAD_START or not np.isfinite(other.elbo) or not _differs(post, other):
            continue
        if found is None or other.elbo > found.elbo:
            found = Elsewhere(other.elbo, float(post.series.times[i]))
    return found


def _hardest(post: Any) -> np.ndarray:
    """Return the indices of the observations whose force g on the state is largest, by gᵀSg in nats."""
    data, m, S = post.target.data, post.moments.m[:, post.node], post.moments.S[..., post.node]
    force = np.asarray(data.potential) - np.einsum("ijn,jn->in", np.asarray(data.precision), m)
    size = np.einsum("in,ijn,jn->n", force, S, force)
    return np.argsort(-size, kind="stable")[:_TRIED]


def _differs(post: Any, other: Any) -> bool:
    N, m = len(post.times), post.moments.m
    sd = np.sqrt(np.einsum("iin->in", post.moments.S))
    return bool((np.abs(np.asarray(other.moments.m)[:, :N] - m) > _DISTINCT * sd).any())
