"""The climb on the evidence by particles: `learn(..., objective="particles")`.

Block by block, chains of conditional particle filters draw paths from the model's own posterior at some parameters, and
Newton's step by the mean score of the block leads to the next ones. Near the top every draw gives an estimate of it,
its parameters and the step by its score together; the mean over all draws made nearby leads to the next parameters.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from girsanov._core.compile import compiled
from girsanov._core.weights import log_mean
from girsanov.data.on_grid import SeriesOnGrid, on_grid
from girsanov.data.series import TimeSeries
from girsanov.inference.loop import Run
from girsanov.inference.status import Status
from girsanov.learning.curvature import minus_hessian
from girsanov.learning.learner import Learner
from girsanov.learning.newton import Point, Summit, farthest
from girsanov.learning.objectives import log_prior
from girsanov.learning.parameters import entries, to_vector
from girsanov.learning.score import Lines, lines, scores
from girsanov.learning.trust_region import best_step, scales
from girsanov.learning.verdict import Verdict
from girsanov.result.conditional import sweeps
from girsanov.result.defensive_filter import defensive_filter
from girsanov.result.diagnosis import model_of
from girsanov.result.infer import make_posterior, run_history
from girsanov.result.mixture import proposals

ERROR = 0.05  # largest Monte Carlo error of a parameter, in standard errors, with which the climb has converged
_PARTICLES, _CHAINS, _CHUNK = 64, 4, 5  # of the sweeps; so many sweeps are one call of compiled code
_FIRST, _GROWTH, _MOST = 40, 1.5, 400  # sweeps of the first block, how they grow, and the most of them
_BURN_IN = {True: 20, False: 5}  # sweeps that are left out: of the first block, of others
_NEAR, _FAR = 0.1, 1.0  # blocks count together up to such a distance from the estimate, in standard errors
_RADIUS = 2.0  # longest step in standard errors
_ENOUGH = 800  # draws from which the curvature is that of the paths; before, it is the bound's
_RHAT, _APART = 1.1, 3.5  # the chains' estimates agree up to this R̂; the last block's and all others' up to such errors
_CURVATURE = 0.25  # largest error of a curvature, as a share of it; of a standard error it is half as much
_EVIDENCE = 3  # further runs of the filters at the end


class Block(NamedTuple):
    """Draws at some parameters θ: their scores with that of the prior, (chains, draws, P), and minus their Hessian."""

    theta: Float[np.ndarray, " P"]
    scores: Float[np.ndarray, "C n P"]
    complete: Float[np.ndarray, "P P"]


class Estimate(NamedTuple):
    """An estimate of the best parameters, its Monte Carlo error in standard errors, and R̂ of the chains' estimates."""

    theta: Float[np.ndarray, " P"]
    error: Float[np.ndarray, " P"]
    rhat: float


@compiled
def _prior_derivatives(theta, spec, priors):
    value = lambda t: log_prior(spec, t, priors)  # noqa: E731
    return jax.grad(value)(theta), jax.hessian(value)(theta)


@dataclasses.dataclass
class ParticleClimb:
    """The state of a climb: the last E-step, the last paths of the chains, and all blocks.

    `best` has the parameters of the last block, their E-step and an estimate of the log evidence there; `better` is
    called where it changes.
    """

    learner: Learner
    series: TimeSeries
    run: Run
    key: Any
    data: SeriesOnGrid
    along: Lines
    paths: np.ndarray | None = None
    blocks: list[Block] = dataclasses.field(default_factory=list)
    best: tuple[np.ndarray, Run, float] | None = None
    calls: int = 0
    better: Callable[[], None] | None = None

    def new_key(self) -> Any:
        self.calls += 1
        return jax.random.fold_in(self.key, self.calls)

    def e_step(self, theta: np.ndarray) -> Any:
        """Return the posterior by the bound at θ, which guides the particles."""
        run = self.learner.e_step(theta, self.learner.start(self.run, self.run.sites, self.run.eta))
        self.run = self.run if run.status is Status.BAD_START else run
        return make_posterior(self.learner.at(theta), self.run, self.series, run_history(self.run, []), 0.0)

    def draw(self, theta: np.ndarray, count: int) -> None:
        """Draw a block of paths at θ by each chain, and enter its parameters into the history."""
        post = self.e_step(theta)
        path = model_of(post)
        filtered = defensive_filter(path, post.moments, post.transitions, self.new_key()).log_evidence
        value = log_mean(np.asarray(filtered)).value
        self.learner.record(theta, self.run.elbo, value)
        self.best = np.array(theta), self.run, value
        if self.better is not None:
            self.better()
        guide = proposals(path, post.moments, post.transitions, _PARTICLES)
        first = self.paths is None
        old = np.broadcast_to(post.moments.m.T, (_CHAINS, *post.moments.m.T.shape)) if first else self.paths
        own_start = np.bool_(_own_start(path, post))
        found, parts = [], []
        left = _BURN_IN[first]
        for i in range(-(-(count + left) // _CHUNK)):
            known = np.bool_(not first or i > 0)
            drawn = np.asarray(sweeps(path, guide, self.new_key(), old, _PARTICLES, _CHUNK, known))
            old = drawn[-1]
            if (i + 1) * _CHUNK <= left:
                continue
            flat = drawn.reshape(-1, *drawn.shape[2:])
            stated = self.learner.problem.stated
            grads, hessian = scores(theta, self.learner.spec, stated, self.data, self.along, own_start, flat)
            found.append(np.asarray(grads).reshape(*drawn.shape[:2], -1))
            parts.append(np.asarray(hessian))
            if self.learner.say is not None:
                self.learner.say(f"learning by particles, block {len(self.blocks) + 1}, sweep {(i + 1) * _CHUNK}")
        self.paths = old
        grad, curvature = np.zeros(len(theta)), np.zeros((len(theta), len(theta)))
        if self.learner.priors:
            grad, curvature = map(np.asarray, _prior_derivatives(theta, self.learner.spec, self.learner.priors))
        drawn_scores = np.moveaxis(np.concatenate(found), 0, 1) + grad
        self.blocks.append(Block(np.array(theta), drawn_scores, -np.mean(parts, 0) - curvature))

    def evidence(self, theta: np.ndarray) -> tuple[float, float]:
        """Return the log evidence at θ and its error, by runs of the filter."""
        post = self.e_step(theta)
        path = model_of(post)
        runs = [defensive_filter(path, post.moments, post.transitions, self.new_key()) for _ in range(_EVIDENCE)]
        return log_mean(np.concatenate([np.asarray(r.log_evidence) for r in runs]))[:2]


def particle_climb(learner: Learner, series: TimeSeries, run: Run, key: Any) -> ParticleClimb:
    """Return a climb at its start."""
    data = on_grid(series, learner.problem.data.grid)
    return ParticleClimb(learner, series, run, key, data, lines(data))


def _own_start(path: Any, post: Any) -> bool:
    """Return whether the data tell less of the first state than its own law does."""
    P0, S0 = np.asarray(path.initial()[1]), post.moments.S[..., 0]
    return bool(np.trace(np.linalg.solve(P0, S0)) > 0.5 * len(P0))


def curvature(blocks: list[Block]) -> Float[np.ndarray, "P P"]:
    """Return minus the Hessian of the log evidence by the draws of some blocks (Louis' identity)."""
    sizes = np.array([b.scores.shape[0] * b.scores.shape[1] for b in blocks], float)
    apart = np.concatenate([(b.scores - b.scores.mean((0, 1))).reshape(-1, len(b.theta)) for b in blocks])
    complete = np.einsum("b,bij->ij", sizes / sizes.sum(), np.stack([b.complete for b in blocks]))
    return complete - apart.T @ apart / (len(apart) - len(blocks))


def is_known(blocks: list[Block], B: Float[np.ndarray, "P P"]) -> bool:
    """Return whether the curvature of the log evidence is precise, by how far those of the chains are apart."""
    values, vectors = np.linalg.eigh(B)
    white = vectors / np.sqrt(values)
    chains = [curvature([b._replace(scores=b.scores[c : c + 1]) for b in blocks]) for c in range(_CHAINS)]
    apart = [np.linalg.norm(white.T @ (own - B) @ white, 2) ** 2 for own in chains]
    return bool(np.sqrt(np.mean(apart) / _CHAINS) <= _CURVATURE)


def estimate(blocks: list[Block], B: Float[np.ndarray, "P P"]) -> Estimate:
    """Return the mean of θ + B⁻¹ score over all draws of some blocks, with its error from their autocorrelation."""
    from arviz_stats.base.array import array_stats

    roots = np.concatenate([b.theta + b.scores @ np.linalg.inv(B) for b in blocks], axis=1)
    ess = np.asarray(array_stats.ess(roots, chain_axis=0, draw_axis=1, method="mean"))
    rhat = float(np.max(array_stats.rhat(roots, chain_axis=0, draw_axis=1)))
    unit = np.sqrt(np.diagonal(np.linalg.inv(B)))
    return Estimate(roots.mean((0, 1)), roots.std((0, 1)) / np.sqrt(ess) / unit, rhat)


def _positive(B: np.ndarray) -> bool:
    return bool(np.isfinite(B).all() and np.linalg.eigvalsh(B)[0] > 0.0)


def climb(
    climber: ParticleClimb, tolerance: float, max_iterations: int, check: bool
) -> tuple[Verdict, float, float, dict[str, float]]:
    """Climb from the parameters of the fit by the bound.

    Returns:
        The verdict, the log evidence, its error, and the Monte Carlo errors of the parameters in standard errors.
    """
    learner = climber.learner
    theta = to_vector(learner.spec, learner.problem.stated)
    by_bound = minus_hessian(learner, theta, climber.run, np.arange(len(theta)))
    blocks, count = climber.blocks, float(_FIRST)
    B, found, status = by_bound, None, "max_iterations"
    for _ in range(max_iterations):
        climber.draw(theta, int(count))
        if not np.isfinite(blocks[-1].scores).all():
            status = "stalled"
            break
        near = _nearby(blocks, theta, B, found)
        own = curvature(near)
        draws = sum(b.scores.shape[0] * b.scores.shape[1] for b in near)
        B = own if _positive(own) and (draws >= _ENOUGH or not _positive(by_bound)) else by_bound
        B = B if _positive(B) else near[-1].complete
        step = best_step(blocks[-1].scores.mean((0, 1)), B, scales(B, _RADIUS, farthest(learner.spec, theta)), _RADIUS)
        if _length(step.s, B) > 1.0:
            theta, found = theta + step.s, None
            continue
        found = estimate(near, B)
        if B is own and is_known(near, B) and _agreed(found, blocks[-1], B):
            theta, status = found.theta, "converged"
            break
        theta, count = found.theta, min(_GROWTH * count, _MOST)
    own = curvature(_nearby(blocks, theta, B, found)) if blocks else by_bound
    return _ended(climber, theta, own, found, status)


def _nearby(blocks: list[Block], theta: np.ndarray, B: np.ndarray, found: Estimate | None) -> list[Block]:
    """Return the last block, and those before it that are close by and follow each other.

    The further away a block is, the less is its step that of Newton's method. That matters as the estimate becomes more
    precise.
    """
    reach = _FAR if found is None else float(np.clip(2.0 * found.error.max(), _NEAR, _FAR))
    out = [blocks[-1]]
    for block in reversed(blocks[:-1]):
        if not (_positive(B) and _length(block.theta - theta, B) <= reach):
            break
        out.insert(0, block)
    return out


def _length(s: np.ndarray, B: np.ndarray) -> float:
    """Return the length of a step in standard errors, as an average over the coordinates."""
    return float(np.sqrt(max(s @ B @ s, 0.0) / len(s)))


def _agreed(found: Estimate, last: Block, B: np.ndarray) -> bool:
    """Return whether the estimate is precise, the chains agree, and the score of the last block is that of the top."""
    alone = estimate([last], B)
    unit = np.sqrt(np.diagonal(np.linalg.inv(B)))
    apart = np.abs(alone.theta - found.theta) / unit
    return bool(
        (found.error <= ERROR).all()
        and found.rhat <= _RHAT
        and _length(last.theta - found.theta, B) <= _NEAR
        and (apart <= _APART * alone.error).all()
    )


def _ended(climber: ParticleClimb, theta: np.ndarray, own: np.ndarray, found: Estimate | None, status: str):
    value, error = climber.evidence(theta)
    learner, nothing = climber.learner, np.full(len(theta), np.nan)
    learner.record(theta, climber.run.elbo, value)
    precision = own if _positive(own) else np.full_like(own, np.nan)
    noise = {} if found is None else dict(zip(entries(learner.spec), found.error.tolist(), strict=True))
    worst = f"{max(noise.values()):.2f} standard errors" if noise else "not known yet"
    drawn = sum(b.scores.shape[0] * b.scores.shape[1] for b in climber.blocks)
    message = {
        "converged": f"converged: the Monte Carlo error of the parameters is at most {worst}, by {drawn} paths",
        "max_iterations": (
            f"learning stopped at max_iterations, when the Monte Carlo error of the parameters was {worst} (the limit "
            f"is {ERROR:g}); raise max_iterations, or go on with resume=fit"
        ),
        "stalled": "the score of a drawn path is not finite: the drift or its derivatives must be finite everywhere",
    }[status]
    if not _positive(own):
        message += "; no standard errors: these paths are too few to tell the curvature"
    point = Point(theta, climber.run, value, nothing)
    return Verdict(status, message, Summit(point, precision, status)), float(value), float(error), noise
