"""How far to trust q: importance weights of paths drawn from it, a filter that does not rely on it, a plain verdict.

w = p(x, y)/q(x) for x ~ q: their mean is an unbiased estimate of the evidence, E log w is the evidence bound, and the
shape of their upper tail, Pareto's k̂, says whether the mean can be trusted (Vehtari et al. 2024). But paths of q say
nothing of a mode that q misses. A particle filter whose proposals are not q's alone does, so both have to agree.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from girsanov._core.checks import check_whole
from girsanov._core.compile import compiled
from girsanov._core.precision import float64
from girsanov._core.types import Array
from girsanov.chain.sampling import sample
from girsanov.chain.transitions import Transitions
from girsanov.model.path_model import LOG_2PI, PathModel, exact_path_model, path_model
from girsanov.result.defensive_filter import defensive_filter

FEWEST = 100  # paths from which a tail can be judged
_CHUNK = 500  # paths at a time
_USABLE = 0.7  # k̂ up to which a mean of the weights is reliable
_SHARP = 0.025  # standard error of the weights' mean, in nats, up to which it needs no support but agreement
_EFFECTIVE = 0.05  # share of the paths that have to be effective, and at least half of FEWEST of them
_APART = 0.1  # nats between weights and filter that count as agreement whatever their errors
_VOUCHED = 0.15  # the same with two errors of the filter added, from which it vouches for weights with a heavy tail
_CLOSE = 0.05  # nats between bound and corrected evidence that count as agreement
_MISSED = 0.05  # share of the posterior away from q that may be overlooked
_CONSTANT = 1e-6  # spread of log weights below which they are all the same
_RANGE = 600.0  # nats below the largest weight at which exp leaves the range of floating-point numbers


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What the importance weights of n paths and the filter say.

    - log_evidence, standard_error: corrected estimate of log p(y) and its error, in nats: of the weights and the filter
      together where they support each other, of the weights alone where particles should be used.
    - bounds: importance-weighted bounds by number of paths each, {1: …, 10: …}, in nats; that of one path estimates
      the evidence bound itself.
    - k_hat: Pareto shape of the upper tail of the weights, inf where there is no tail; ess: effective number of paths.
    - filter_evidence, filter_error: estimate of log p(y) from the filter, and its error, in nats.
    - missed: share of the posterior, by the filter, in excursions from q where its own paths never go.
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
    filter_evidence: float
    filter_error: float
    missed: float

    def __repr__(self) -> str:
        return (
            f"Diagnosis({self.verdict}: k̂ = {self.k_hat:.2f}, bound {self.elbo:.4f}, corrected "
            f"{self.log_evidence:.4f} ± {self.standard_error:.4f}, {self.ess:.0f} of {self.n} paths effective, filter "
            f"{self.filter_evidence:.4f} ± {self.filter_error:.4f})"
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
    """Draw n paths from q, weigh them against the model on q's grid, and compare with the filter."""
    check_number(n)
    path = model_of(post)
    weigh_key, filter_key = jax.random.split(key)
    keys = jax.random.split(weigh_key, -(-n // _CHUNK))
    mean, steps = post.moments.m, post.transitions
    logs = np.concatenate([np.asarray(_log_weights(path, mean, steps, k, _CHUNK)) for k in keys])[:n]
    if not np.isfinite(logs).all():
        i = int(np.argmin(np.isfinite(logs)))
        raise ValueError(f"the log weight of path {i} drawn from q is {logs[i]}: the drift must be finite where q goes")
    log_evidence, error, ess = _mean(logs)
    k_hat = _pareto(logs)
    bounds = {k: float(np.mean(np.logaddexp.reduce(_grouped(logs, k), 1) - np.log(k))) for k in groups if k <= n}
    filtered = defensive_filter(path, post.moments, filter_key)
    filter_evidence, filter_error, _ = _mean(filtered.log_evidence)
    found = Diagnosis(
        log_evidence, error, post.elbo, bounds, k_hat, ess, n, "use particles", "", logs,
        filter_evidence, filter_error, float(np.mean(filtered.away)),
    )  # fmt: skip
    trouble = _trouble(found)
    if trouble is not None:
        return dataclasses.replace(found, message=trouble)
    log_evidence, error = _together((log_evidence, error), (filter_evidence, filter_error))
    found = dataclasses.replace(found, log_evidence=log_evidence, standard_error=error)
    verdict, message = _verdict(found, post.converged, post.status)
    return dataclasses.replace(found, verdict=verdict, message=message)


def check_number(n: Any) -> None:
    check_whole(n=n)
    if n < FEWEST:
        raise ValueError(f"n must be at least {FEWEST} paths, got {n}: the tail of fewer weights cannot be judged")


def model_of(post: Any) -> PathModel:
    """What q is weighed against: the Euler–Maruyama model, or where q was inferred in continuous time the SDE."""
    if post.time == "continuous":
        return exact_path_model(post.model, post.series, post.grid, post.target.base)
    return path_model(post.model, post.series, post.grid)


def _mean(logs: np.ndarray) -> tuple[float, float, float]:
    """log of the mean of exp(logs), its standard error by the delta method, and the effective number."""
    top = logs.max()
    if not np.isfinite(logs).all():
        return float(top), float("inf"), 0.0
    w = np.exp(logs - top)
    error = w.std(ddof=1) / w.mean() / np.sqrt(len(logs))
    return float(top + np.log(w.mean())), float(error), float(w.sum() ** 2 / (w**2).sum())


def _grouped(logs: np.ndarray, k: int) -> np.ndarray:
    return logs[: len(logs) // k * k].reshape(-1, k)


def _pareto(logs: np.ndarray) -> float:
    """k̂ of the upper tail; zero where all weights are the same, inf where the tail spans more than exp can hold."""
    if logs.max() - logs.min() < _CONSTANT:
        return 0.0
    tail = int(min(0.2 * len(logs), 3.0 * np.sqrt(len(logs))))
    if logs.max() - np.sort(logs)[-tail - 1] > _RANGE:
        return float("inf")
    from arviz_stats.base.array import array_stats

    return float(array_stats.psislw(np.maximum(logs - logs.max(), -_RANGE))[1])


def _together(first: tuple[float, float], second: tuple[float, float]) -> tuple[float, float]:
    """The mean of two estimates with errors, each by the inverse of its variance."""
    total = first[1] ** 2 + second[1] ** 2
    share = second[1] ** 2 / total if total > 0.0 else 1.0
    return share * first[0] + (1.0 - share) * second[0], float(first[1] * np.sqrt(share))


def _verdict(found: Diagnosis, converged: bool, status: str) -> tuple[str, str]:
    """Which of two numbers to report, where there is no trouble."""
    gap = found.log_evidence - found.elbo
    seen = (
        f"k̂ = {found.k_hat:.2f} with {found.ess:.0f} of {found.n} paths effective, a filter that does not rely on q "
        f"agrees with their weights, and together they put the evidence {gap:+.3f} ± {found.standard_error:.3f} nats "
        "from the bound"
    )
    if abs(gap) >= _CLOSE:
        return "trust the corrected estimate", seen
    if not converged:
        return "trust the corrected estimate", f"{seen}; the run ended as {status!r}, so that q is not the optimum"
    return "trust the bound", seen


def _trouble(found: Diagnosis) -> str | None:
    """Why neither number can be trusted, if so.

    The weights are believed where their tail is light, their error small, the filter agrees within the errors, and q
    misses nothing that it sees; or else where the filter alone is precise enough to vouch for their mean.
    """
    apart = abs(found.filter_evidence - found.log_evidence)
    both = np.hypot(found.standard_error, found.filter_error)
    estimates = (
        f"the weights of q's paths put the evidence at {found.log_evidence:.3f} ± {found.standard_error:.3f}, a filter "
        f"that does not rely on q at {found.filter_evidence:.3f} ± {found.filter_error:.3f}"
    )
    advice = "use girsanov.baselines.particle_smoother(..., guided=post)"
    if found.ess < max(_EFFECTIVE * found.n, 0.5 * FEWEST):
        few = f"only {found.ess:.0f} of {found.n} paths carry the weight, k̂ = {found.k_hat:.2f}"
        return f"{few}: q differs too much from the posterior. By comparison, {estimates}; {advice}"
    if apart + 2.0 * found.filter_error < _VOUCHED:
        return None
    if not np.isfinite(found.filter_error):
        return f"a filter that does not rely on q lost all of its particles, so that nothing confirms q; {advice}"
    if not apart < max(_APART, 3.0 * both):
        return f"{estimates}: q misses part of the posterior; {advice}"
    if found.missed > _MISSED:
        return f"{100.0 * found.missed:.0f} % of the posterior lies where q's paths never go; {estimates}; {advice}"
    if not found.k_hat < _USABLE:
        return (
            f"k̂ = {found.k_hat:.2f} is above {_USABLE}: a few paths carry all the weight, and {estimates}, not precise "
            f"enough to vouch for them; {advice}"
        )
    if not found.standard_error < _SHARP:
        return f"{estimates}: neither is precise enough; {advice}"
    return None
