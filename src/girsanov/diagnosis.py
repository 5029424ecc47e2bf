"""How far to trust q: importance weights of paths drawn from it, with a plain verdict.

w = p(x, y)/q(x) for x ~ q: their mean is an unbiased estimate of the evidence, E log w is the evidence bound, and the
shape of their upper tail, Pareto's k̂, says whether the mean can be trusted (Vehtari et al. 2024).
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Float

from girsanov._compile import compiled
from girsanov._precision import float64
from girsanov._types import Array
from girsanov.chain.sampling import sample
from girsanov.chain.transitions import Transitions
from girsanov.path_model import LOG_2PI, PathModel, path_model

_CHUNK = 500  # paths at a time
_USABLE = 0.7  # k̂ up to which a mean of the weights is reliable
_CLOSE = 0.1  # nats between bound and corrected evidence that count as agreement
_CONSTANT = 1e-6  # spread of log weights below which they are all the same


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What the importance weights of n paths say.

    - log_evidence, standard_error: corrected estimate of log p(y) and its error, in nats.
    - bounds: importance-weighted bounds by number of paths each, {1: …, 10: …}, in nats; that of one path estimates
      the evidence bound itself.
    - k_hat: Pareto shape of the upper tail of the weights; ess: effective number of paths.
    - verdict: "trust the bound", "trust the corrected estimate" or "use particles"; message: why.
    """

    log_evidence: float
    standard_error: float
    elbo: float
    bounds: dict[int, float]
    k_hat: float
    ess: float
    n: int
    verdict: str
    message: str
    log_weights: np.ndarray

    def __repr__(self) -> str:
        return (
            f"Diagnosis({self.verdict}: k̂ = {self.k_hat:.2f}, bound {self.elbo:.4f}, corrected "
            f"{self.log_evidence:.4f} ± {self.standard_error:.4f}, {self.ess:.0f} of {self.n} paths effective)"
        )


@compiled
def _log_weights(path: PathModel, m: Float[Array, "d N"], q: Transitions, key, n: int):
    x = sample(m, q, key, n)  # (n, N, d)
    T, root = (jnp.moveaxis(jnp.asarray(a), -1, 0) for a in (q.T, q.root))
    scale, log_det = jnp.linalg.inv(root), -jnp.linalg.slogdet(root)[1].sum()

    def one(x):
        e = x - m.T
        own = e - jnp.pad(jnp.einsum("mij,mj->mi", T, e[:-1]), ((1, 0), (0, 0)))
        square = (jnp.einsum("mij,mj->mi", scale, own) ** 2).sum()
        return path.log_joint(x) - (log_det - 0.5 * (square + x.size * LOG_2PI))

    return jax.lax.map(one, x, batch_size=50)


@float64
def diagnose(post: Any, key: Any, n: int = 2000, groups: tuple[int, ...] = (1, 10, 100)) -> Diagnosis:
    """Draw n paths from q and weigh them against the model on q's grid."""
    grid = post.grid
    path = path_model(post.model, post.series, grid)
    keys = jax.random.split(key, -(-n // _CHUNK))
    logs = np.concatenate([np.asarray(_log_weights(path, post.moments.m, post.transitions, k, _CHUNK)) for k in keys])[
        :n
    ]
    if not np.isfinite(logs).all():
        i = int(np.argmin(np.isfinite(logs)))
        raise ValueError(f"the log weight of path {i} drawn from q is {logs[i]}: the drift must be finite where q goes")
    k_hat = _pareto(logs)
    top = logs.max()
    w = np.exp(logs - top)
    log_evidence = float(top + np.log(w.mean()))
    error = float(w.std(ddof=1) / w.mean() / np.sqrt(n))
    bounds = {k: float(np.mean(logsumexp(_grouped(logs, k), axis=1) - np.log(k))) for k in groups if k <= n}
    ess = float(w.sum() ** 2 / (w**2).sum())
    verdict, message = _verdict(k_hat, log_evidence - post.elbo, error)
    return Diagnosis(log_evidence, error, post.elbo, bounds, k_hat, ess, n, verdict, message, logs)


def _grouped(logs: np.ndarray, k: int) -> np.ndarray:
    return logs[: len(logs) // k * k].reshape(-1, k)


def _pareto(logs: np.ndarray) -> float:
    """k̂ of the upper tail; zero where all weights are the same."""
    if logs.max() - logs.min() < _CONSTANT:
        return 0.0
    from arviz_stats.base.array import array_stats

    return float(array_stats.psislw(logs)[1])


def _verdict(k_hat: float, gap: float, error: float) -> tuple[str, str]:
    if not k_hat < _USABLE:
        return "use particles", (
            f"k̂ = {k_hat:.2f} is above {_USABLE}: a few paths carry all the weight, so that q misses part of the "
            "posterior and the corrected evidence cannot be trusted either; use "
            "girsanov.baselines.particle_smoother(..., guided=post)"
        )
    if abs(gap) < max(_CLOSE, 3.0 * error):
        return "trust the bound", f"k̂ = {k_hat:.2f} and the corrected evidence is {gap:+.3f} nats from the bound"
    return "trust the corrected estimate", (
        f"k̂ = {k_hat:.2f}: the weights can be averaged, and the corrected evidence is {gap:+.3f} nats from the bound"
    )
