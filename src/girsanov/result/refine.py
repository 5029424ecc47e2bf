"""`refine`: draws from the model's own posterior by conditional particle filters, until stated targets are met.

Several chains run side by side, from paths of particle filters that do not rely on q. They stop where R̂ and the
effective number of draws, at some sixty nodes, meet the targets. Runs of the filter itself estimate the evidence.
"""

import time
from typing import Any, NamedTuple

import jax
import numpy as np

from girsanov._core.checks import check_positive, check_whole
from girsanov._core.precision import float64
from girsanov._core.progress import duration, reporter
from girsanov._core.weights import log_mean
from girsanov.baselines.particle_smoother import diagnostics
from girsanov.model.path_model import PathModel
from girsanov.model.simulate import check_draws, states, to_constant
from girsanov.result.conditional import sweeps
from girsanov.result.defensive_filter import defensive_filter
from girsanov.result.diagnosis import model_of
from girsanov.result.mixture import proposals
from girsanov.result.refined import Refined

_CHUNK = 5  # sweeps in one call of compiled code, after which Ctrl-C and the time limit count
_FEWEST = 20  # draws of each chain from which its convergence is judged
_GROWTH = 1.25  # by how much more draws there are at the next judgement
_MOST = 2000  # draws of each chain that are kept; of more, every second is
_BURN_IN = (0.05, 0.1, 0.2, 0.3, 0.5)  # shares of the draws that may be discarded at the beginning
_DISAGREE = 1.1  # above this R̂ the draws should not be used
_WIDE = 1.0  # if the log evidence of the runs has a larger standard deviation, in nats, they get more particles
_WORK = 300_000  # particle moves of a run of the filter, at first
_LEAST_PARTICLES, _MOST_PARTICLES = 250, 1000  # of such a run
_RUNS = 16  # the standard error of fewer runs is itself uncertain by more than a fifth
_MORE, _LIMIT = 4, 16_000  # factor by which they grow, and the largest number


class Targets(NamedTuple):
    """What is to be met: the largest R̂, the least effective number of draws, the largest error of the log evidence."""

    rhat: int | float
    ess: int | float
    error: int | float


class _Chains:
    """The chains with their draws so far, in coordinates in which the noise is constant, and how they were judged."""

    def __init__(self, post: Any, path: PathModel, key: Any, particles: int, chains: int, start: Refined | None):
        self.post, self.path, self.key, self.particles = post, path, key, particles
        self.prop = proposals(path, post.moments, post.transitions, particles)
        self.seconds, self.sweeps, self.due, self.pace = 0.0, 0, _FEWEST, 0.0
        self.rhat, self.ess, self.begin = float("inf"), 0.0, 0
        shape = chains, len(post.times), post.model.dim
        self.kept = np.empty((0, *shape))
        self.last, self.stride = np.broadcast_to(post.moments.m.T, shape), 1
        if start is not None:
            drawn = to_constant(post.model, start.samples, post.times).reshape(start.chains, -1, *shape[1:])
            self.kept, self.last, self.sweeps = np.moveaxis(drawn, 1, 0), drawn[:, -1], start.sweeps
            self.judge()

    def advance(self) -> None:
        """Do some sweeps. The very first paths are those of filters that do not know any path."""
        begun = time.perf_counter()
        key = jax.random.fold_in(self.key, self.sweeps)
        known = np.bool_(self.sweeps > 0)
        drawn = np.asarray(sweeps(self.path, self.prop, key, self.last, self.particles, _CHUNK, known))
        drawn = drawn[:: self.stride] if known else drawn[-1:]
        self.last, self.kept = drawn[-1], np.concatenate([self.kept, drawn])
        self.sweeps += _CHUNK
        if len(self.kept) > _MOST:
            self.kept, self.stride = self.kept[::2], min(2 * self.stride, _CHUNK)
        if len(self.kept) >= self.due:
            self.judge()
        self.pace = (time.perf_counter() - begun) / _CHUNK
        self.seconds += _CHUNK * self.pace

    def judge(self) -> None:
        """Compute R̂ and the effective number of draws, with the burn-in that leaves the most effective draws."""
        found = []
        for share in _BURN_IN:
            begin = int(np.ceil(share * len(self.kept)))
            draws = states(self.post.model, np.moveaxis(self.kept[begin:], 0, 1), self.post.times)
            ess, rhat = diagnostics(draws)
            found.append((np.nan_to_num(ess), rhat, begin))
        self.ess, self.rhat, self.begin = max(found, key=lambda f: f[0])
        self.due = min(int(np.ceil(_GROWTH * len(self.kept))), _MOST)

    def met(self, targets: Targets) -> bool:
        return bool(self.rhat <= targets.rhat and self.ess >= targets.ess)

    def left(self, targets: Targets) -> float | None:
        """Return the seconds until enough draws are effective, or None where nothing tells, as while R̂ is too large."""
        if self.met(targets):
            return 0.0
        known = self.pace > 0.0 and self.rhat <= targets.rhat and self.ess > 0.0
        return self.pace * self.sweeps * (targets.ess / self.ess - 1.0) if known else None


class _Filters:
    """Runs of the filter that does not rely on q, each with an unbiased estimate of the evidence."""

    def __init__(self, post: Any, path: PathModel, key: Any, start: Refined | None):
        self.post, self.path, self.key = post, path, key
        self.seconds, self.pace = 0.0, 0.0
        self.particles = int(np.clip(_WORK // len(post.times), _LEAST_PARTICLES, _MOST_PARTICLES))
        self.logs = np.empty(0)
        if start is not None:
            self.particles, self.logs = start.filter_particles, start.filtered

    def advance(self) -> None:
        begun = time.perf_counter()
        if len(self.logs) and self._wide() and self.particles < _LIMIT:
            self.particles, self.logs = min(_MORE * self.particles, _LIMIT), np.empty(0)
        # No key twice, also where a later call goes on with the key of an earlier one.
        key = jax.random.fold_in(jax.random.fold_in(self.key, self.particles), len(self.logs))
        more = defensive_filter(self.path, self.post.moments, self.post.transitions, key, self.particles)
        self.logs = np.concatenate([self.logs, np.asarray(more.log_evidence)])
        used = time.perf_counter() - begun
        self.pace, self.seconds = used / np.size(more.log_evidence), self.seconds + used

    def _wide(self) -> bool:
        return bool(not np.isfinite(self.logs).all() or self.logs.std(ddof=1) >= _WIDE)

    def evidence(self) -> tuple[float, float]:
        """Return the estimate of the log evidence and its error, infinite where no particle survived in any run."""
        if not len(self.logs) or self.logs.max() == -np.inf:
            return float("-inf"), float("inf")
        return log_mean(self.logs)[:2]

    def met(self, targets: Targets) -> bool:
        return len(self.logs) >= _RUNS and not self._wide() and self.evidence()[1] <= targets.error

    def left(self, targets: Targets) -> float | None:
        """Return the seconds until the error is small enough, which falls with the root of the number of runs."""
        if self.met(targets):
            return 0.0
        if self.pace == 0.0 or len(self.logs) < 2 or self._wide():
            return None
        wanted = max(_RUNS, len(self.logs) * (self.evidence()[1] / targets.error) ** 2)
        return self.pace * (wanted - len(self.logs))


@float64
def refine(
    post: Any,
    key: Any,
    targets: Targets,
    seconds: int | float,
    particles: int,
    chains: int,
    start: Any,
    progress: bool,
) -> Refined:
    """Draw from the model's own posterior; see `Posterior.refine` for the arguments."""
    begun = time.perf_counter()
    check(post, key, targets, seconds, particles, chains, start)
    path, (chain_key, filter_key) = model_of(post), jax.random.split(key)
    drawn = _Chains(post, path, chain_key, particles, chains if start is None else start.chains, start)
    filters = _Filters(post, path, filter_key, start)
    used = lambda: time.perf_counter() - begun + (0.0 if start is None else start.seconds)  # noqa: E731
    with reporter(progress) as say:
        try:
            while True:
                unmet = [part for part in (drawn, filters) if not part.met(targets)]
                over = time.perf_counter() - begun >= seconds
                if not unmet or (over and len(filters.logs) and len(drawn.kept) > _CHUNK):
                    break
                min(unmet, key=lambda part: part.seconds).advance()
                if say is not None:
                    say(_shown(drawn, filters, targets, begun + seconds - time.perf_counter()))
        except KeyboardInterrupt as interrupt:
            if len(drawn.kept) <= _CHUNK:
                interrupt.add_note("refine was interrupted before there were any draws: there is nothing to keep")
            else:
                kept = _result(post, drawn, filters, targets, used(), "interrupted")
                interrupt.kept = kept  # pyright: ignore[reportAttributeAccessIssue]
                interrupt.add_note(
                    f"refine was interrupted; the exception's attribute `kept` is {kept!r}, and start= goes on from it"
                )
            raise
    return _result(post, drawn, filters, targets, used())


def check(post: Any, key: Any, targets: Targets, seconds: Any, particles: Any, chains: Any, start: Any) -> None:
    """Raise a ValueError unless the arguments of `refine` are valid."""
    check_draws(key)
    check_whole(2, particles=particles, chains=chains)
    check_positive(seconds=seconds, ess=targets.ess, error=targets.error)
    if not (isinstance(targets.rhat, int | float) and targets.rhat > 1.0):
        raise ValueError(f"rhat must be a number above 1, for instance 1.02, got {targets.rhat!r}")
    if start is None:
        return
    if not isinstance(start, Refined):
        raise ValueError(f"start must be what post.refine returned before, got {type(start).__name__}")
    same = np.array_equal(start.times, post.times) and (start.guide.elbo, start.guide.time) == (post.elbo, post.time)
    if not same:
        raise ValueError("start must be a result of this same posterior: use start.guide.refine(..., start=start)")


def _shown(drawn: _Chains, filters: _Filters, targets: Targets, limit: float) -> str:
    """Return the progress as a text; `limit` is the time that is left at most."""
    value, error = filters.evidence()
    judged = f"R̂ = {drawn.rhat:.3f}, {drawn.ess:.0f} effective draws" if drawn.ess > 0.0 else "not judged yet"
    rest = [part.left(targets) for part in (drawn, filters)]
    about = "" if None in rest else f"about {duration(min(sum(r or 0.0 for r in rest), max(limit, 0.0)))}, "
    left = f"{about}at most {duration(max(limit, 0.0))} left"
    return f"refine, sweep {drawn.sweeps}: {judged}; log evidence {value:.3f} ± {error:.3f}; {left}"


def _result(
    post: Any, drawn: _Chains, filters: _Filters, targets: Targets, seconds: float, status: str | None = None
) -> Refined:
    drawn.judge()
    draws = states(post.model, np.moveaxis(drawn.kept[drawn.begin :], 0, 1), post.times)
    value, error = filters.evidence()
    moved = (np.diff(drawn.kept[drawn.begin :], axis=0) != 0.0).any(-1).mean((0, 1))
    met = drawn.met(targets) and filters.met(targets)
    if status is None:
        apart = drawn.rhat > _DISAGREE and len(drawn.kept) >= _FEWEST  # fewer draws do not tell
        status = "converged" if met else "disagree" if apart else "time_limit"
    message = _message(status, drawn, (value, error), targets)
    return Refined(
        post.model, post.series, post.times, draws.reshape(-1, *draws.shape[2:]), len(draws), value, error,
        drawn.ess, drawn.rhat, moved, seconds, guide=post, status=status, message=message, sweeps=drawn.sweeps,
        filtered=filters.logs, filter_particles=filters.particles,
    )  # fmt: skip


def _message(status: str, drawn: _Chains, evidence: tuple[float, float], targets: Targets) -> str:
    """Return a sentence on how the run ended, and what to do if the targets were not met."""
    seen = (
        f"R̂ = {drawn.rhat:.3f} (target {targets.rhat:g}), {drawn.ess:.0f} effective draws (target {targets.ess:g}), "
        f"log evidence {evidence[0]:.3f} ± {evidence[1]:.3f} (target ±{targets.error:g})"
    )
    go_on = "go on with post.refine(key=..., start=this result, seconds=...)"
    if status == "converged":
        return f"the targets are met: {seen}"
    if status == "disagree":
        return (
            f"the chains are in different parts of the posterior, so the draws should not be used: {seen}; give more "
            f"particles=, or {go_on}"
        )
    why = "stopped by Ctrl-C" if status == "interrupted" else "the time was over before the targets were met"
    lost = "; no particle of the filters survived, so give a shorter dt" if not np.isfinite(evidence[0]) else ""
    return f"{why}: {seen}{lost}; {go_on}"
