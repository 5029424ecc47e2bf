"""How much of a result is rounding: checked after the fact, on the host, by other means than the loop's own.

The natural parameters of a chain are sums over very different scales. A relative error ε of every entry moves the
posterior, to first order and at the worst, by
    ε Σ_m Σ_ij (|J_ij S_ij| + 2|K_ij C_ij|)   in every log variance, and in nats of the bound,
    ε Σ_m sdᵀ(|J||m| + …)                     in the means, in standard deviations,
    ε Σ_m Δ(‖f_q‖² + ‖f‖²)_{Q⁻¹}              in nats of the bound, whose squares cancel.
Where that is not small, the result is done again by the careful algorithm; what it cannot mend either has the status
`ill_conditioned`, and the scale at fault is named.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from girsanov._core.types import Array
from girsanov.inference.loop import Carry, Run
from girsanov.inference.objective import Problem
from girsanov.inference.status import Status

EPSILON = float(np.finfo(np.float64).eps)
# Above these the careful algorithm takes over. The sums are what happens at the worst, and errors of many signs come to
# far less: a mean, which is off by its own share only, may have more.
_LARGE = {"variances": 1e-5, "means": 1e-4, "bound": 1e-5}
_NOTICEABLE = 1e-9  # the same for a run that found no way on
_TOO_FEW_DIGITS = 1e-6  # standard deviations by which a state may be rounded
_TOO_LARGE = 1e-3  # above, a result that nothing else can replace is not called converged


class Loss(NamedTuple):
    """What rounding may have done, at the worst: to log variances, to means in standard deviations, to the bound."""

    variances: float
    means: float
    bound: float

    @property
    def worst(self) -> float:
        return max(self)

    def asks_for_care(self, status: Status) -> bool:
        """Whether rounding may explain the result. A run that was cut short while it still gained explains itself."""
        if status not in (Status.CONVERGED, Status.MAX_ITERATIONS):
            return not self.worst <= _NOTICEABLE
        return not all(value <= _LARGE[name] for name, value in self._asdict().items())


def traced_status(problem: Problem, carry: Carry) -> Int[Array, ""]:
    """The status of a run inside a user's program: `ill_conditioned` where rounding may have spoilt it, or ended it."""
    q, inside = carry.moments, problem.in_chain

    def kept(a):  # zero on the padding
        return jnp.where(inside[: a.shape[-1]] if a.shape[-1] == inside.shape[0] else inside[1:], jnp.abs(a), 0.0)

    m, S, C, J, K = (kept(a) for a in (q.m, q.S, q.C, carry.eta.J, carry.eta.K))
    pull = jnp.einsum("ijm,jm->im", J, m)
    pull = (
        pull.at[:, 1:].add(jnp.einsum("ijm,jm->im", K, m[:, :-1])).at[:, :-1].add(jnp.einsum("ijm,im->jm", K, m[:, 1:]))
    )
    sd = jnp.sqrt(jnp.einsum("iim->im", S))
    worst = EPSILON * jnp.maximum((J * S).sum() + 2.0 * (K * C).sum(), (sd * pull).sum())
    stalled = carry.status == int(Status.STALLED)
    spoilt = ~(worst <= jnp.where(stalled, _NOTICEABLE, _TOO_LARGE))
    judged = stalled | (carry.status == int(Status.CONVERGED))
    return jnp.where(judged & spoilt, int(Status.ILL_CONDITIONED), carry.status)


def rounding_loss(problem: Problem, result: Run) -> Loss:
    """The sums above for a chain in natural form; infinite where the moments are not those of a density."""
    N = int(problem.size)
    m, S, C = (np.asarray(a)[..., :n] for a, n in zip(vars(result.moments).values(), (N, N, N - 1), strict=True))
    J, K = np.asarray(result.eta.J)[..., :N], np.asarray(result.eta.K)[..., : N - 1]
    variances = np.einsum("iim->im", S)
    if not (np.isfinite(m).all() and np.isfinite(C).all() and (variances > 0.0).all()):
        return Loss(np.inf, np.inf, np.inf)
    sd, size_J, size_K, size_m = np.sqrt(variances), np.abs(J), np.abs(K), np.abs(m)
    spread = (size_J * np.abs(S)).sum() + 2.0 * (size_K * np.abs(C)).sum()
    pull = np.einsum("ijm,jm->im", size_J, size_m)
    pull[:, 1:] += np.einsum("ijm,jm->im", size_K, size_m[:, :-1])
    pull[:, :-1] += np.einsum("ijm,im->jm", size_K, size_m[:, 1:])
    return Loss(EPSILON * float(spread), EPSILON * float((sd * pull).sum()), EPSILON * _squares(problem, result, m, S))


def _squares(problem: Problem, result: Run, m: np.ndarray, S: np.ndarray) -> float:
    """Σ Δ(‖f_q‖² + ‖f‖²)_{Q⁻¹} at the mean and one standard deviation around it."""
    M = m.shape[1] - 1
    gaps = np.asarray(problem.gaps)[:M]
    A, b = (np.asarray(a)[..., :M] for a in (result.sites.base.A, result.sites.base.b))
    f = np.einsum("ijm,jm->im", A, m[:, :-1]) + b
    f_q = np.diff(m, axis=1) / gaps
    spread = np.einsum("ijm,jkm,lkm->ilm", A, S[..., :M], A)
    Q_inv = np.linalg.inv(np.asarray(problem.model.diffusion))
    square = np.einsum("im,ij,jm->m", f, Q_inv, f) + np.einsum("im,ij,jm->m", f_q, Q_inv, f_q)
    return float((gaps * (square + np.abs(np.einsum("ij,ijm->m", Q_inv, spread)))).sum())


def flagged(problem: Problem, result: Run) -> Run:
    """The result, with the status `ill_conditioned` where rounding may have spoilt it, or ended it."""
    limit = _NOTICEABLE if result.status is Status.STALLED else _TOO_LARGE
    if result.status is Status.BAD_START or rounding_loss(problem, result).worst <= limit:
        return result
    return ill_conditioned(problem, result, "gv.CVIDP() in discrete time and without rho resolves more")


def only_rounding_is_left(result: Run) -> bool:
    """Whether a careful run that did not converge ended for want of digits.

    It did where nothing more could be gained, and where the state itself, at its level, has too few digits for its own
    standard deviation: then derivatives of the drift are differences of rounding errors.
    """
    if result.status is Status.MAX_ITERATIONS:
        m, S = np.asarray(result.moments.m), np.asarray(result.moments.S)
        return bool(EPSILON * (np.abs(m) / np.sqrt(np.einsum("iim->im", S))).max() > _TOO_FEW_DIGITS)
    return result.status is Status.STALLED


def explained(problem: Problem, result: Run) -> Run:
    """The result, with the scale at fault where it says that it is ill-conditioned, or stalled because it is."""
    stalled = result.status is Status.STALLED and not rounding_loss(problem, result).worst <= _NOTICEABLE
    return ill_conditioned(problem, result) if stalled or result.status is Status.ILL_CONDITIONED else result


def ill_conditioned(problem: Problem, result: Run, hint: str = "") -> Run:
    N = int(problem.size)
    m, S = (np.moveaxis(np.asarray(a)[..., :N], -1, 0) for a in (result.moments.m, result.moments.S))
    fault = scale_at_fault(problem, m, S) if np.isfinite(m).all() and np.isfinite(S).all() else ""
    return result._replace(status=Status.ILL_CONDITIONED, fault="; ".join(filter(None, (fault, hint))))


def scale_at_fault(problem: Problem, m: np.ndarray, S: np.ndarray) -> str:
    """A sentence on which numbers of the model lie too far apart, from a mean (N, d) and covariances (N, d, d)."""
    model, N = problem.model, len(m)
    gaps = np.asarray(problem.gaps)[: N - 1]
    spread = np.sqrt(np.maximum(np.einsum("mii->mi", S), np.finfo(float).tiny))
    step = np.sqrt(np.outer(gaps, np.diagonal(np.asarray(model.diffusion)))) if N > 1 else np.ones((0, m.shape[1]))
    initial = model.initial_state()
    first = np.sqrt(np.diagonal(np.asarray(initial.cov)))
    far = np.abs(m[0] - np.asarray(initial.mean)) / first
    candidates = {
        "the noise of one step, √(Q·dt) = {:.2g}, is far below the state's standard deviation, {:.2g}: "
        "use a larger diffusion or dt": _worst(step, spread[:-1]),
        "the state lies at {1:.2g}, with a standard deviation of {0:.2g}: subtract a constant level from the data": (
            _worst(spread, np.abs(m))
        ),
        "the initial standard deviation {:.2g} is far below the distance {:.2g} of the data from the initial mean: "
        "give initial= another mean or a larger cov": _worst(first[None], (far * first)[None]),
        "the standard deviation of the state is {:.2g} where it is best known and {:.2g} where it is least: use a "
        "larger noise variance, or a smaller initial cov": (float(spread.min()), float(spread.max())),
    }
    text, numbers = max(candidates.items(), key=lambda c: c[1][1] / c[1][0])
    return text.format(*numbers)


def scales_apart(problem: Problem, readings: np.ndarray, sds: np.ndarray) -> str:
    """A sentence on which scales of a model lie furthest apart, before anything is known of the state.

    `readings` and `sds` (n, D) are what the observations say of Hx, roughly; NaN where nothing was observed.
    """
    model, initial = problem.model, problem.model.initial_state()
    gaps = np.asarray(problem.gaps)[: int(problem.size) - 1]
    first = np.sqrt(np.diagonal(np.asarray(initial.cov)))
    step = np.sqrt(np.outer(gaps, np.diagonal(np.asarray(model.diffusion))))
    away = np.abs(readings - np.asarray(model.emission) @ np.asarray(initial.mean))
    sizes = {
        "the standard deviation of the initial state": first,
        "the noise of one step, √(Q·dt)": step,
        "the standard deviation of an observation": sds,
        "the distance of the data from the initial mean": away[away > 0.0],
    }
    found = {name: (float(np.nanmin(a)), float(np.nanmax(a))) for name, a in sizes.items() if np.isfinite(a).any()}
    low = min(found, key=lambda name: found[name][0])
    high = max(found, key=lambda name: found[name][1])
    return f"{low} is {found[low][0]:.2g}, {high} is {found[high][1]:.2g}"


def _worst(small: np.ndarray, large: np.ndarray) -> tuple[float, float]:
    """The pair whose ratio is largest."""
    if small.size == 0:
        return 1.0, 1.0
    ratio = large / small
    i = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    return float(small[i]), float(large[i])
