"""Estimates of the rounding error of a result, made after a run.

The natural parameters of a chain are sums of numbers of very different scales. A relative error ε in every entry
changes the posterior, to first order and in the worst case, by
    ε Σ_m Σ_ij (|J_ij S_ij| + 2|K_ij C_ij|)   in every log variance, and in the bound, in nats,
    ε Σ_m sdᵀ(|J||m| + …)                     in the means, in standard deviations,
    ε Σ_m Δ(‖f_q‖² + ‖f‖²)_{Q⁻¹}              in the bound, in nats, because these squares cancel in it.
Where one of these is not small, the careful algorithm computes the result again. Where that does not help either, the
status is `ill_conditioned`, and the message names the scales that lie too far apart.

These are worst cases. For results that the careful algorithm does not replace, the error is also measured: the exact
moments of a chain with precision Λ and potential h have h − Λm = 0 and tr ΛΣ = Nd. Of the computed ones,
    (h − Λm)ᵀΣ(h − Λm) = (m − m*)ᵀΛ(m − m*)   and   |tr ΛΣ − Nd|
are twice the nats that the bound loses because the means and the covariances are not exact.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from girsanov._core.special import EPSILON
from girsanov._core.types import Array
from girsanov.inference.loop import Carry, Run
from girsanov.inference.objective import Posed
from girsanov.inference.status import Status

# Above one of these values the careful algorithm takes over. The sums are worst cases; errors of different signs cancel
# to much less. The limit of the means is larger because the error of each mean is only its own share of the sum.
_LARGE = {"variances": 1e-5, "means": 1e-4, "bound": 1e-5}
_NOTICEABLE = 1e-9  # the same limit for a run that stalled or failed
_TOO_FEW_DIGITS = 1e-6  # the largest rounding error of a state, in its standard deviations
_SPOILT = 1e-2  # above this, in nats, a measured error makes such a result ill-conditioned
_TOO_LARGE = 1e-3  # above this, a result is called ill-conditioned where the careful algorithm cannot replace it


class Loss(NamedTuple):
    """The largest possible effect of rounding on a result.

    Attributes:
        variances: on a log variance.
        means: on a mean, in standard deviations.
        bound: on the evidence bound, in nats.
    """

    variances: float
    means: float
    bound: float

    @property
    def worst(self) -> float:
        """The largest of the three."""
        return max(self)

    def asks_for_care(self, status: Status) -> bool:
        """Return whether the careful algorithm should compute the result again.

        A run that stopped at `max_iterations` is judged like a converged one: it ended early for another reason.
        """
        if status not in (Status.CONVERGED, Status.MAX_ITERATIONS):
            return not self.worst <= _NOTICEABLE
        return not all(value <= _LARGE[name] for name, value in self._asdict().items())


def traced_status(problem: Posed, carry: Carry) -> Int[Array, ""]:
    """Return the status of a run inside a user's JAX program.

    The status is `ill_conditioned` where rounding may have spoilt the result or stopped the run, else that of `carry`.
    """
    parts, nodes = _traced_parts(problem, carry)
    worst = EPSILON * jnp.max(jnp.stack(list(_sums(jnp, parts, problem.model.noise.precision))))
    stalled = carry.status == int(Status.STALLED)
    spoilt = ~(worst <= jnp.where(stalled, _NOTICEABLE, _TOO_LARGE)) | ~(_measured(jnp, parts, nodes) <= _SPOILT)
    judged = stalled | (carry.status == int(Status.CONVERGED))
    return jnp.where(judged & spoilt, int(Status.ILL_CONDITIONED), carry.status)


def traced_loss(problem: Posed, carry: Carry) -> Float[Array, "3"]:
    """Return the entries of a `Loss` inside a compiled program; NaN where q is not a density."""
    parts, _ = _traced_parts(problem, carry)
    return EPSILON * jnp.stack(list(_sums(jnp, parts, problem.model.noise.precision)))


def _traced_parts(problem: Posed, carry: Carry) -> "tuple[_Parts, Array]":
    """Return the parts of a chain with zeros on the padding, and its number of nodes."""
    nodes, steps = problem.data.in_chain, problem.data.in_chain[1:]

    def kept(a, inside):  # sets the padding to zero
        return jnp.where(inside, a, 0.0)

    q, eta, base = carry.moments, carry.eta, carry.sites.base
    on_nodes = (kept(a, nodes) for a in (q.m, q.S, eta.h, eta.J))
    parts = _Parts(*on_nodes, *(kept(a, steps) for a in (q.C, eta.K, base.A, base.b, problem.data.gaps)))
    return parts, nodes.sum()


def rounding_loss(problem: Posed, result: Run) -> Loss:
    """Estimate the effect of rounding on a result in natural parameters; infinite where q is not a density."""
    parts = _parts(problem, result)
    if not (np.isfinite(parts.m).all() and np.isfinite(parts.C).all() and (np.einsum("iim->im", parts.S) > 0.0).all()):
        return Loss(np.inf, np.inf, np.inf)
    return Loss(*(EPSILON * float(a) for a in _sums(np, parts, problem.model.noise.precision)))


class _Parts(NamedTuple):
    """A chain by its moments and natural parameters, the linearised drift and the gaps, as NumPy or traced arrays."""

    m: Any
    S: Any
    h: Any
    J: Any
    C: Any
    K: Any
    A: Any
    b: Any
    gaps: Any


def _parts(problem: Posed, result: Run) -> _Parts:
    N, M = int(problem.data.size), int(problem.data.size) - 1
    q, eta, base = result.moments, result.eta, result.sites.base
    on_nodes = (np.asarray(a)[..., :N] for a in (q.m, q.S, eta.h, eta.J))
    return _Parts(*on_nodes, *(np.asarray(a)[..., :M] for a in (q.C, eta.K, base.A, base.b, problem.data.gaps)))


def _sums(xp: Any, chain: _Parts, Q_inv: Any) -> tuple[Any, Any, Any]:
    """Return the three sums of the module's docstring without ε; `xp` is `numpy` or `jax.numpy`."""
    sd = xp.sqrt(xp.einsum("iim->im", chain.S))
    m, S, J, C, K = (xp.abs(a) for a in (chain.m, chain.S, chain.J, chain.C, chain.K))
    spread = (J * S).sum() + 2.0 * (K * C).sum()
    return spread, (sd * _times(xp, J, K, m)).sum(), _squares(xp, chain, Q_inv)


def _times(xp: Any, J: Any, K: Any, m: Any) -> Any:
    """Return Λm, where Λ has the blocks J on its diagonal and K below it."""
    rest = xp.pad(xp.einsum("ijm,jm->im", K, m[:, :-1]), ((0, 0), (1, 0)))
    rest = rest + xp.pad(xp.einsum("ijm,im->jm", K, m[:, 1:]), ((0, 0), (0, 1)))
    return xp.einsum("ijm,jm->im", J, m) + rest


def _measured(xp: Any, chain: _Parts, nodes: Any) -> Any:
    """Return the larger of rᵀΣr with r = h − Λm, by the diagonal blocks of Σ, and |tr ΛΣ − Nd|, in nats."""
    r = chain.h - _times(xp, chain.J, chain.K, chain.m)
    means = xp.abs(xp.einsum("im,ijm,jm->m", r, chain.S, r)).sum()
    trace = (chain.J * chain.S).sum() + 2.0 * (chain.K * chain.C).sum()
    return xp.maximum(means, xp.abs(trace - nodes * chain.m.shape[0]))


def _squares(xp: Any, chain: _Parts, Q_inv: Any) -> Any:
    """Return Σ Δ(‖f_q‖² + ‖f‖²)_{Q⁻¹} at the mean, plus the contribution of one standard deviation around it."""
    A, gaps = chain.A, chain.gaps
    f = xp.einsum("ijm,jm->im", A, chain.m[:, :-1]) + chain.b
    f_q = xp.diff(chain.m, axis=1) / xp.where(gaps > 0.0, gaps, 1.0)
    around = xp.einsum("ijm,jkm,lkm->ilm", A, chain.S[..., :-1], A)
    square = xp.einsum("im,ij,jm->m", f, Q_inv, f) + xp.einsum("im,ij,jm->m", f_q, Q_inv, f_q)
    return (gaps * (square + xp.abs(xp.einsum("ij,ijm->m", Q_inv, around)))).sum()


def flagged(problem: Posed, result: Run) -> Run:
    """Set the status `ill_conditioned` where rounding may have spoilt the result or stopped the run."""
    limit = _NOTICEABLE if result.status is Status.STALLED else _TOO_LARGE
    if result.status is Status.BAD_START:
        return result
    measured = _measured(np, _parts(problem, result), int(problem.data.size))
    if rounding_loss(problem, result).worst <= limit and measured <= _SPOILT:
        return result
    return ill_conditioned(problem, result, "gv.CVIDP() in discrete time and without rho tolerates wider scales")


def only_rounding_is_left(result: Run) -> bool:
    """Return whether a careful run that did not converge ended because double precision has too few digits.

    This is so where the run stalled, and where it stopped at `max_iterations` with a state whose rounding error is too
    large a share of its standard deviation: derivatives of the drift are then differences of rounding errors.
    """
    if result.status is Status.MAX_ITERATIONS:
        m, S = np.asarray(result.moments.m), np.asarray(result.moments.S)
        return bool(EPSILON * (np.abs(m) / np.sqrt(np.einsum("iim->im", S))).max() > _TOO_FEW_DIGITS)
    return result.status is Status.STALLED


def explained(problem: Posed, result: Run) -> Run:
    """Name the scales that lie too far apart where the result is ill-conditioned or has stalled because of rounding."""
    stalled = result.status is Status.STALLED and not rounding_loss(problem, result).worst <= _NOTICEABLE
    return ill_conditioned(problem, result) if stalled or result.status is Status.ILL_CONDITIONED else result


def ill_conditioned(problem: Posed, result: Run, hint: str = "") -> Run:
    """Return the result with the status `ill_conditioned` and a sentence on the scales that lie too far apart."""
    N = int(problem.data.size)
    m, S = (np.moveaxis(np.asarray(a)[..., :N], -1, 0) for a in (result.moments.m, result.moments.S))
    fault = scale_at_fault(problem, m, S) if np.isfinite(m).all() and np.isfinite(S).all() else ""
    return result._replace(status=Status.ILL_CONDITIONED, fault="; ".join(filter(None, (fault, hint))))


def scale_at_fault(problem: Posed, m: np.ndarray, S: np.ndarray) -> str:
    """Name the two numbers of the model that lie furthest apart, from q's mean (N, d) and covariances (N, d, d)."""
    model, N = problem.model, len(m)
    gaps = np.asarray(problem.data.gaps)[: N - 1]
    spread = np.sqrt(np.maximum(np.einsum("mii->mi", S), np.finfo(float).tiny))
    axes = np.sqrt(np.maximum(np.linalg.eigvalsh(S), np.finfo(float).tiny))
    step = model.noise.step_sds(gaps)
    initial = model.initial_state()
    first = np.sqrt(np.diagonal(np.asarray(initial.cov)))
    far = np.abs(m[0] - np.asarray(initial.mean)) / first
    candidates = {
        "the noise of one step, √(Q·dt) = {:.2g}, is far below the state's standard deviation, {:.2g}: "
        "use a larger diffusion or a larger dt": _worst(step, spread[:-1]),
        "the state lies at {1:.2g}, with a standard deviation of {0:.2g}: subtract a constant level from the data": (
            _worst(spread, np.abs(m))
        ),
        "the initial standard deviation {:.2g} is far below the distance {:.2g} of the data from the initial mean: "
        "give initial= another mean or a larger cov": _worst(first[None], (far * first)[None]),
        "the standard deviation of the state is {:.2g} in the direction that is known best and {:.2g} in the one that "
        "is known worst: use a larger noise variance, or a smaller initial cov": (float(axes.min()), float(axes.max())),
    }
    text, numbers = max(candidates.items(), key=lambda c: c[1][1] / c[1][0])
    return text.format(*numbers)


def scales_apart(problem: Posed, away: np.ndarray, sds: np.ndarray) -> str:
    """Name the two scales of a model that lie furthest apart, before a posterior of the state is known.

    `away` and `sds`, both (n, D), are the distance of each observation from that of the initial mean, and its standard
    deviation; they are NaN where nothing was observed.
    """
    model, initial = problem.model, problem.model.initial_state()
    gaps = np.asarray(problem.data.gaps)[: int(problem.data.size) - 1]
    first = np.sqrt(np.diagonal(np.asarray(initial.cov)))
    step = model.noise.step_sds(gaps)
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
    """Return the pair (small, large) whose ratio is largest; a step without noise is no scale."""
    if not (small > 0.0).any():
        return 1.0, 1.0
    ratio = np.where(small > 0.0, large / np.where(small > 0.0, small, 1.0), 0.0)
    i = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    return float(small[i]), float(large[i])
