"""The diagnosis of a posterior q: importance weights of its paths, a filter that does not rely on q, its quadrature.

The importance weights are w = p(x, y)/q(x) for x ~ q. Their mean is an unbiased estimate of the evidence, E log w is
the evidence bound, and the shape of their upper tail, Pareto's k̂, says whether the mean can be trusted (Vehtari et al.
2024). But paths of q do not show a mode that q misses. A particle filter with other proposals beside q can find one, so
the two estimates have to agree.
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
from girsanov._core.special import LOG_2PI
from girsanov._core.types import Array
from girsanov._core.weights import log_mean, pareto_smoothed
from girsanov.chain.sampling import sample
from girsanov.chain.transitions import Transitions
from girsanov.data.on_grid import on_grid
from girsanov.inference.continuous_bound import ContinuousSites
from girsanov.inference.objective import Posed
from girsanov.inference.quadrature_check import quadrature_error, remedy
from girsanov.model.path_model import PathModel, exact_path_model, path_model
from girsanov.model.quadrature import Rule, default_quadrature
from girsanov.result.defensive_filter import defensive_filter
from girsanov.result.elsewhere import Elsewhere, look_elsewhere
from girsanov.result.where import Where, log_parts, messages, stretches, where

FEWEST = 100  # smallest number of paths from which the tail of the weights can be judged
_CHUNK = 500  # number of paths that are drawn at a time
_USABLE = 0.7  # the mean of the weights is reliable up to this k̂
_SHARP = 0.025  # largest standard error of the log mean weight, in nats, with which the weights are believed
_EFFECTIVE = 0.05  # smallest share of effective paths; there must also be at least FEWEST / 2 of them
_APART = 0.1  # weights and filter agree if their difference is below this, in nats, whatever their errors
_VOUCHED = 0.15  # the filter confirms weights with a heavy tail if the difference plus two of its errors is below this
_CLOSE = 0.05  # bound and corrected evidence agree if their difference is below this, in nats
_MISSED = 0.05  # largest share of the posterior away from q that is accepted
_BELOW = 2.5  # another maximum this many nats below the bound adds 0.08 nats to the evidence
_UNRESOLVED = 0.01  # a larger quadrature error is mentioned, in nats: it is a fifth of the smallest limit above


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """The result of `Posterior.diagnose`: how far the posterior can be trusted.

    Attributes:
        log_evidence: corrected estimate of log p(y), in nats, from the importance weights and the filter together. With
            the verdict "use particles" it is from the weights alone.
        standard_error: standard error of `log_evidence`, in nats.
        elbo: the evidence bound of the posterior, in nats.
        bounds: importance-weighted bounds in nats, by the number of paths in each average: {1: …, 10: …, 100: …}. The
            first estimates the evidence bound itself.
        k_hat: Pareto shape k̂ of the upper tail of the weights; inf where the tail is too wide to be fitted.
        ess: effective number of paths.
        n: number of paths drawn.
        verdict: "trust the bound", "trust the corrected estimate" or "use particles".
        message: the reasons for the verdict.
        log_weights: log importance weights of the paths, (n,).
        filter_evidence: estimate of log p(y) by the filter, in nats.
        filter_error: standard error of `filter_evidence`, in nats.
        missed: share of the posterior, according to the filter, in excursions to where q's own paths never go.
        quadrature_error: what a more accurate quadrature rule changes, in nats: the larger of the change of the bound
            and of rᵀFr, where r is the change of its gradient. None where rounding hides it.
        where: effective numbers of paths stretch by stretch along the time axis, which say where q and the model part
            on q's own paths. None where rounding hides it.
        posterior: the posterior that was judged.
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
    quadrature_error: float | None = None
    where: Where | None = None
    posterior: Any = None

    def plot(self, *, axes: Any = None) -> Any:
        """Plot the posterior with the data, and below it the share of effective paths along the time axis.

        Args:
            axes: matplotlib axes to draw in: those of `Posterior.plot`, and one more; by default a new figure is made.

        Returns:
            The matplotlib figure.

        Raises:
            ValueError: if the weights could not be told apart along the time axis, so that `where` is None.
        """
        from girsanov.plotting import plot_where

        if self.where is None:
            raise ValueError(
                "this diagnosis has no `where`, because rounding hides the parts of the weights; use posterior.plot()"
            )
        return plot_where(self.posterior, self.where, axes=axes)

    def __repr__(self) -> str:
        quadrature = "" if self.quadrature_error is None else f", quadrature error {self.quadrature_error:.2g}"
        return (
            f"Diagnosis({self.verdict}: k̂ = {self.k_hat:.2f}, bound {self.elbo:.4f}, corrected "
            f"{self.log_evidence:.4f} ± {self.standard_error:.4f}, {self.ess:.0f} of {self.n} paths effective, filter "
            f"{self.filter_evidence:.4f} ± {self.filter_error:.4f}{quadrature})"
        )


@compiled
def _log_weights(
    path: PathModel, m: Float[Array, "d N"], q: Transitions, psi: Any, stretch: Any, count: int, key, n: int
):
    """Return the log weights of n paths of q, (n,), and if ψ is given their parts in stretches of time, (n, count)."""
    x = sample(m, q, key, n)  # (n, N, d)
    T, root = (jnp.moveaxis(jnp.asarray(a), -1, 0) for a in (q.T, q.root))
    scale, log_det = jnp.linalg.inv(root), -jnp.linalg.slogdet(root)[1].sum()

    def one(x):
        e = x - m.T
        own = e - jnp.pad(jnp.einsum("mij,mj->mi", T, e[:-1]), ((1, 0), (0, 0)))
        own = jnp.einsum("mij,mj->mi", scale, own)
        total = path.log_joint(x) - (log_det - 0.5 * ((own**2).sum() + x.size * LOG_2PI))
        return total, None if psi is None else log_parts(path, psi, x, q, own, stretch, count)

    return jax.lax.map(one, x, batch_size=50)


@float64
def diagnose(post: Any, key: Any, n: int = 2000, groups: tuple[int, ...] = (1, 10, 100)) -> Diagnosis:
    """Draw n paths from a posterior, compute their importance weights, and compare them with the filter.

    `groups` are the numbers of paths of the importance-weighted bounds.
    """
    check_number(n)
    path = model_of(post)
    weigh_key, filter_key = jax.random.split(key)
    keys = jax.random.split(weigh_key, -(-n // _CHUNK))
    mean, steps = post.moments.m, post.transitions
    psi, nodes = messages(path, post), stretches(post.times)
    stretch = np.repeat(np.arange(len(nodes) - 1), np.diff(nodes))
    drawn = [_log_weights(path, mean, steps, psi, stretch, len(nodes) - 1, k, _CHUNK) for k in keys]
    logs = np.concatenate([np.asarray(total) for total, _ in drawn])[:n]
    if not np.isfinite(logs).all():
        i = int(np.argmin(np.isfinite(logs)))
        raise ValueError(
            f"the log weight of path {i} drawn from q is {logs[i]}: the drift must be finite wherever q has paths"
        )
    apart = None
    if psi is not None:
        parts = np.concatenate([np.asarray(parts) for _, parts in drawn])[:n]
        apart = where(post.times, nodes, parts) if np.isfinite(parts).all() else None
    log_evidence, error, ess = _mean(logs)
    _, k_hat = pareto_smoothed(logs)
    bounds = {k: float(np.mean(np.logaddexp.reduce(_grouped(logs, k), 1) - np.log(k))) for k in groups if k <= n}
    filtered = defensive_filter(path, post.moments, steps, filter_key)
    filter_evidence, filter_error, _ = _mean(filtered.log_evidence)
    found = Diagnosis(
        log_evidence, error, post.elbo, bounds, k_hat, ess, n, "use particles", "", logs,
        filter_evidence, filter_error, float(np.mean(filtered.away)), measured_quadrature(post),
        apart, post,
    )  # fmt: skip
    trouble = _missed_maximum(found, look_elsewhere(post, _rule(post))) or _trouble(found)
    if trouble is not None:
        return dataclasses.replace(found, message=trouble + _localised(found) + _unresolved(found, post))
    log_evidence, error = _together((log_evidence, error), (filter_evidence, filter_error))
    found = dataclasses.replace(found, log_evidence=log_evidence, standard_error=error)
    verdict, message = _verdict(found, post.converged, post.status)
    parts = "" if verdict == "trust the bound" else _localised(found)
    return dataclasses.replace(found, verdict=verdict, message=message + parts + _unresolved(found, post))


def _localised(found: Diagnosis) -> str:
    return "" if found.where is None else found.where.sentence()


def measured_quadrature(post: Any) -> float | None:
    """Return the quadrature error of a posterior in nats, as its run found it, or else found now.

    It is None for a posterior of the careful algorithm whose run did not measure it: its moments have too few digits.
    """
    if post.quadrature_error is not None:
        return post.quadrature_error
    problem = Posed(post.model, on_grid(post.series, post.grid), _rule(post))
    sites = None
    if post.target.right is not None:
        sites = ContinuousSites(post.target.base, post.target.dense, post.target.right, post.target.data)
    elif post.exact_transitions is not None:
        return None
    return quadrature_error(problem, post.natural, post.moments, sites).nats


def _rule(post: Any) -> Rule:
    return default_quadrature(post.model.dim).rule(post.model.dim) if post.rule is None else post.rule


def _unresolved(found: Diagnosis, post: Any) -> str:
    """Return a sentence on the quadrature where its error is not small, to be added to the reasons for the verdict."""
    error = found.quadrature_error
    if error is None or error <= _UNRESOLVED:
        return ""
    return (
        f". The quadrature does not resolve the drift, or the emission or likelihood of the observations: a more "
        f"accurate rule changes the bound or its best q by {error:.2g} nats; {remedy(_rule(post))}"
    )


def check_number(n: Any) -> None:
    """Raise a ValueError unless n is a whole number that is large enough."""
    check_whole(n=n)
    if n < FEWEST:
        raise ValueError(f"n must be at least {FEWEST} paths, got {n}: the tail of fewer weights cannot be judged")


def model_of(post: Any) -> PathModel:
    """Return the model for the weights of a posterior: Euler–Maruyama, or the SDE if it is in continuous time."""
    if len(post.times) == 1:
        raise ValueError("the grid has a single node, so there is no path to weigh: infer with a longer span=")
    if post.time == "continuous":
        return exact_path_model(post.model, post.series, post.grid, post.target.base)
    return path_model(post.model, post.series, post.grid)


def _mean(logs: np.ndarray) -> tuple[float, float, float]:
    """Return value, error and effective number of `log_mean`; the error is infinite where a weight is not finite."""
    if not np.isfinite(logs).all():
        return float(logs.max()), float("inf"), 0.0
    return log_mean(logs)


def _grouped(logs: np.ndarray, k: int) -> np.ndarray:
    return logs[: len(logs) // k * k].reshape(-1, k)


def _together(first: tuple[float, float], second: tuple[float, float]) -> tuple[float, float]:
    """Return the mean of two estimates (value, error), weighted by their inverse variances, and its error."""
    total = first[1] ** 2 + second[1] ** 2
    share = second[1] ** 2 / total if total > 0.0 else 1.0
    return share * first[0] + (1.0 - share) * second[0], float(first[1] * np.sqrt(share))


def _missed_maximum(found: Diagnosis, other: Elsewhere | None) -> str | None:
    """Return what another maximum of the bound means for the evidence, or None where it does not matter."""
    if other is None or other.elbo < found.elbo - _BELOW:
        return None
    higher = other.elbo - found.elbo
    how = f"{higher:.2f} nats higher" if higher > 0.0 else f"only {-higher:.2f} nats lower"
    return (
        f"the bound has another maximum, {how}, where the observation at time {other.time:.6g} has another part: q is "
        "one of several explanations of the data. Infer once more without this observation, and then with it and "
        "start= that posterior; or use post.refine(key=...)"
    )


def _verdict(found: Diagnosis, converged: bool, status: str) -> tuple[str, str]:
    """Return the verdict and its reasons where there is no trouble: trust the bound or the corrected estimate."""
    gap = found.log_evidence - found.elbo
    seen = (
        f"k̂ = {found.k_hat:.2f} with {found.ess:.0f} of {found.n} paths effective; a particle filter that does not "
        f"rely on q agrees with their weights, and together they estimate that the log evidence differs by {gap:+.3f} "
        f"± {found.standard_error:.3f} nats from the bound"
    )
    if abs(gap) >= _CLOSE:
        return "trust the corrected estimate", seen
    if found.quadrature_error is not None and found.quadrature_error >= _CLOSE:
        return "trust the corrected estimate", seen
    if not converged:
        return "trust the corrected estimate", f"{seen}; the run ended with status {status!r}, so q is not the optimum"
    return "trust the bound", seen


def _trouble(found: Diagnosis) -> str | None:
    """Return why neither the bound nor the corrected estimate can be trusted, or None where one of them can.

    The weights are believed where their tail is light, their error is small, the filter agrees with them within the
    errors, and it finds no part of the posterior that q misses. They are also believed where the filter alone is
    precise enough to confirm their mean.
    """
    apart = abs(found.filter_evidence - found.log_evidence)
    both = np.hypot(found.standard_error, found.filter_error)
    estimates = (
        f"the log evidence is {found.log_evidence:.3f} ± {found.standard_error:.3f} by the weights of q's paths, and "
        f"{found.filter_evidence:.3f} ± {found.filter_error:.3f} by a particle filter that does not rely on q"
    )
    advice = "use post.refine(key=...)"
    if found.ess < max(_EFFECTIVE * found.n, 0.5 * FEWEST):
        few = f"only {found.ess:.0f} of {found.n} paths are effective, k̂ = {found.k_hat:.2f}"
        return f"{few}: q differs too much from the posterior. For comparison, {estimates}; {advice}"
    if apart + 2.0 * found.filter_error < _VOUCHED:
        return None
    if not np.isfinite(found.filter_error):
        return f"a particle filter that does not rely on q lost all its particles, so nothing confirms q; {advice}"
    if not apart < max(_APART, 3.0 * both):
        return f"{estimates}: q misses part of the posterior; {advice}"
    if found.missed > _MISSED:
        return f"{100.0 * found.missed:.0f} % of the posterior lies where q's paths never go; {estimates}; {advice}"
    if not found.k_hat < _USABLE:
        return (
            f"k̂ = {found.k_hat:.2f} is above {_USABLE}: a few paths have nearly all the weight. Here {estimates}, "
            f"which is not precise enough to confirm the weights; {advice}"
        )
    if not found.standard_error < _SHARP:
        return f"{estimates}: neither estimate is precise enough; {advice}"
    return None
