"""The log predictive density log E p(y | z) under z ~ N(mean, V), if the entries of y are independent given z.

The entries are processed one after the other. The density p(y_i | z_i) of an entry times a Gaussian N(c, v) of z_i is
written as a weighted sum of pieces. Each piece is a "reading": a Gaussian observation ζ of z_i with noise variance R.
Given a reading, the other entries are still Gaussian, so the next entry starts from one Gaussian for each piece. No
matrix is inverted, so V may be singular, as it is if the emission has more rows than the state has coordinates.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from girsanov._core.special import LOG_2PI, log_stirling
from girsanov._core.types import Array

_POINTS = 48  # pieces of an entry
_DROP = 16.0  # an integrand counts as zero where it is this many nats below its largest value
_SEARCH, _ROUNDS = 24, 5  # points and rounds in the search for the interval where an integrand is not zero
_KEPT = 2048  # number of Gaussians that are kept for the fourth entry and for each later one
_AT_ONCE = 400_000  # pieces in memory at the same time
_NEWTON, _LONGEST = 40, 2.0  # Newton steps to the mode, and the longest step
_ROUNDING = 1e-13  # an entry whose variance has fallen below this share is determined by the entries before it


class Belief(NamedTuple):
    """The law of one entry of z under each of n Gaussians.

    It is N(c, v) given the entries before it, and about N(c + shift, rest) given rough readings of later entries too.
    """

    c: Float[Array, " n"]
    v: Float[Array, " n"]
    shift: Float[Array, " n"]
    rest: Float[Array, " n"]


class Pieces(NamedTuple):
    """Log weight, reading ζ and noise variance R of k pieces, for each of n Gaussians."""

    log_weight: Float[Array, "n k"]
    reading: Float[Array, "n k"]
    noise: Float[Array, "n k"]


Entry = Callable[[Belief], Pieces]


def log_predictive(
    entries: Sequence[Entry],
    rough: tuple[Float[Array, " D"], Float[Array, " D"]],
    observed: Bool[Array, " D"],
    mean: Float[Array, " D"],
    V: Float[Array, "D D"],
) -> Float[Array, ""]:
    """Return the log predictive density from functions that give the pieces of each entry.

    `rough` holds Gaussian readings of z and their precisions; they decide only where quadrature points are placed. If
    one entry determines another, the points of the first are used for both, so give the most precise entry first.
    """
    reading, precision = rough[0], jnp.where(observed, rough[1], 0.0)
    known = _ROUNDING * jnp.diagonal(V)
    log_w, m, S = jnp.zeros(1), mean[None], V[None]
    for i, entry in enumerate(entries):
        v = jnp.where(S[:, i, i] > known[i], S[:, i, i], 0.0)
        shift, rest, _ = _with_later(i, reading, precision, m, S)
        pieces = entry(Belief(m[:, i], v, jnp.where(v > 0.0, shift, 0.0), jnp.clip(rest, 0.0, v)))
        # A missing entry does not change the result: its pieces have equal weights and the gain is zero.
        log_w = log_w[:, None] + jnp.where(observed[i], pieces.log_weight, -jnp.log(pieces.log_weight.shape[1]))
        if i + 1 == len(entries):
            break
        total = v[:, None] + pieces.noise
        use = observed[i] & (v[:, None] > 0.0)
        gain = S[:, None, i] * jnp.where(use, 1.0 / jnp.where(total > 0.0, total, 1.0), 0.0)[..., None]
        e = jnp.where(observed[i], pieces.reading - m[:, i, None], 0.0)
        m = m[:, None] + gain * e[..., None]
        S = S[:, None] - gain[..., None] * S[:, None, None, i]
        log_w, m, S = log_w.ravel(), m.reshape(-1, *m.shape[2:]), S.reshape(-1, *S.shape[2:])
        if len(log_w) > _POINTS**2:
            promise = log_w + _with_later(i, reading, precision, m, S)[2]
            log_w, index = keep(log_w, jnp.logaddexp(normalised(log_w), normalised(promise)), _KEPT)
            m, S = m[index], S[index]
    return jax.scipy.special.logsumexp(log_w)


def readings_at_the_mode(
    log_density: Callable[[Array], Array],
    start: tuple[Float[Array, " D"], Float[Array, " D"]],
    observed: Bool[Array, " D"],
    mean: Float[Array, " D"],
    V: Float[Array, "D D"],
) -> tuple[Float[Array, " D"], Float[Array, " D"]]:
    """Return readings z + g/h with precisions h, where g and −h are the derivatives of log p(y | z) at the mode.

    The mode is that of p(y | z) N(z; mean, V). It is found by Newton's method, z ← mean + V(I + PV)⁻¹(P(z − mean) + g)
    with P = diag h, from the mode that the rough readings `start` imply. If an observation is many standard deviations
    away from the mean, the rough readings alone are a poor approximation near the mode.
    """
    eye = jnp.eye(len(mean))

    def slope(z):
        return jax.jvp(log_density, (z,), (jnp.ones_like(z),))[1]

    def mode(precision, pull):
        P = jnp.where(observed, precision, 0.0)
        return mean + V @ jnp.linalg.solve(eye + P[:, None] * V, jnp.where(observed, pull, 0.0))

    def derivatives(z):
        g, curvature = jax.jvp(slope, (z,), (jnp.ones_like(z),))
        return g, jnp.maximum(-curvature, 0.0)

    def newton(_, z):
        g, h = derivatives(z)
        step = mode(h, h * (z - mean) + g) - z
        return z + step * jnp.minimum(1.0, _LONGEST / jnp.maximum(jnp.abs(step).max(), 1e-300))

    reading, precision = start
    z = jax.lax.fori_loop(0, _NEWTON, newton, mode(precision, precision * (reading - mean)))
    g, h = derivatives(z)
    good = observed & jnp.isfinite(g) & jnp.isfinite(h) & (h > 0.0)
    return jnp.where(good, z + g / jnp.where(good, h, 1.0), reading), jnp.where(good, h, precision)


def _with_later(i: int, reading, precision, m, S):
    """Condition entry i on the rough readings of later entries.

    Returns:
        The shift of its mean, its remaining variance, and the log density of these readings up to a constant.
    """
    shift, log_density = jnp.zeros_like(m), jnp.zeros(len(m))
    for j in range(i + 1, len(reading)):
        ratio = 1.0 + precision[j] * jnp.maximum(S[:, j, j], 0.0)
        e, p = reading[j] - m[:, j] - shift[:, j], precision[j] / ratio
        log_density = log_density - 0.5 * (p * e**2 + jnp.log(ratio))
        shift = shift + S[:, j] * (p * e)[:, None]
        S = S - S[:, :, j, None] * p[:, None, None] * S[:, None, j]
    return shift[:, i], S[:, i, i], log_density


def in_parts(fn: Callable, *arrays: Array) -> Float[Array, " n"]:
    """Apply `fn`, a `log_predictive` of one observation, to every row of the arrays, in batches that limit memory."""
    n, D = arrays[0].shape
    rows = min(n, max(1, _AT_ONCE // _POINTS ** min(D, 3)))
    parts = -(-n // rows)
    index = jnp.minimum(jnp.arange(parts * rows), n - 1).reshape(parts, rows)
    return jax.lax.map(lambda at: jax.vmap(fn)(*(a[at] for a in arrays)), index).reshape(-1)[:n]


def normalised(log_w: Float[Array, " n"]) -> Float[Array, " n"]:
    """Shift log weights so that the weights sum to one."""
    return log_w - jax.scipy.special.logsumexp(log_w)


def keep(log_w: Float[Array, " n"], log_choice: Float[Array, " n"], count: int) -> tuple[Float[Array, " k"], Array]:
    """Select `count` of n weights such that weighted sums keep their expected value (Fearnhead and Clifford 2003).

    With g = exp(log_choice), a weight is kept with probability min(1, g/a) and is then divided by this probability. So
    weights with g > a are kept unchanged, and the others are a systematic sample. The threshold a is chosen such that
    `count` of them are kept.

    Returns:
        The log weights and the indices of those that are kept.
    """
    g = jnp.exp(log_choice - log_choice.max())
    rising = jnp.sort(g)
    size, lighter = (
        rising[::-1][:count],
        jnp.cumsum(rising)[::-1][:count],
    )  # each of the largest g, and the sum of it and all smaller ones
    places = jnp.arange(count, 0, -1)
    heavy = jnp.argmax(size * places <= lighter)
    a = lighter[heavy] / places[heavy]
    stays = jnp.where(g > a, 1.0, g / jnp.where(a > 0.0, a, 1.0))
    at, passed = jnp.arange(count) + 0.5, jnp.cumsum(stays)
    index = jnp.minimum(jnp.searchsorted(passed, at), len(g) - 1)
    return jnp.where(at < passed[-1], log_w[index] - jnp.log(stays[index]), -jnp.inf), index


def support(log_f: Callable[[Array], Array], low: Float[Array, " n"], high: Float[Array, " n"]):
    """Return the ends of the part of [low, high] where exp(log_f) is not negligible compared with its maximum."""

    def narrow(_, ends):
        low, high = ends
        x = low[:, None] + (high - low)[:, None] * jnp.linspace(0.0, 1.0, _SEARCH)
        values = log_f(x)
        here = values >= values.max(1, keepdims=True) - _DROP
        first = jnp.maximum(jnp.argmax(here, 1) - 1, 0)
        last = jnp.minimum(_SEARCH - jnp.argmax(here[:, ::-1], 1), _SEARCH - 1)
        return tuple(jnp.take_along_axis(x, i[:, None], 1)[:, 0] for i in (first, last))

    return jax.lax.fori_loop(0, _ROUNDS, narrow, (low, high))


def trapezoid(one: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[Float[Array, "n k"], Float[Array, "n 1"]]:
    """Return equally spaced points from the lowest to the highest end of two intervals, and the log of their spacing.

    The trapezoidal rule converges exponentially for a smooth integrand that vanishes at both ends.
    """
    low, high = jnp.minimum(one[0], other[0]), jnp.maximum(one[1], other[1])
    x = low[:, None] + (high - low)[:, None] * jnp.linspace(0.0, 1.0, _POINTS)
    return x, jnp.log((high - low) / (_POINTS - 1))[:, None]


def concave(log_density: Callable[[Array], Array], peak: Float[Array, ""]) -> Entry:
    """Return the pieces of an entry whose log density is concave in z. They are points, with noise R = 0.

    `peak` is an approximate maximum of the density. With z = c + √v ξ the integrand p φ(ξ) falls off from its mode at
    least as fast as the standard normal density φ from its own. The mode lies between ξ = 0 and √v ∂log p(c), and at
    most √v |∂log p(r)| beyond the peak r.
    """
    margin = (2.0 * _DROP) ** 0.5 + 0.5

    def slope(z):
        return jax.jvp(log_density, (z,), (jnp.ones_like(z),))[1]

    def integrand(c, sd):
        return lambda xi: log_density(c[:, None] + sd[:, None] * xi) - 0.5 * (xi**2 + LOG_2PI)

    def ends(c, sd):
        reach = sd * slope(c)
        to_peak = jnp.abs(peak - c) / jnp.where(sd > 0.0, sd, 1.0) + sd * jnp.abs(slope(peak))
        mode = jnp.sign(reach) * jnp.minimum(jnp.abs(reach), to_peak)
        return support(integrand(c, sd), jnp.minimum(mode, 0.0) - margin, jnp.maximum(mode, 0.0) + margin)

    def entry(b: Belief) -> Pieces:
        sd, rest = jnp.sqrt(b.v), jnp.sqrt(b.rest)
        unit = jnp.where(sd > 0.0, sd, 1.0)
        ratio = jnp.where(sd > 0.0, rest / unit, 1.0)
        low, high = ends(b.c + b.shift, rest)
        xi, log_step = trapezoid(ends(b.c, sd), (b.shift / unit + ratio * low, b.shift / unit + ratio * high))
        return Pieces(integrand(b.c, sd)(xi) + log_step, b.c[:, None] + sd[:, None] * xi, jnp.zeros_like(xi))

    return entry


def reading(y: Float[Array, ""], variance: Float[Array, ""]) -> Entry:
    """Return the single piece of an entry with Gaussian noise of this variance."""

    def entry(b: Belief) -> Pieces:
        total = b.v + variance
        log_weight = -0.5 * ((y - b.c) ** 2 / total + jnp.log(total) + LOG_2PI)
        shape = (len(b.c), 1)
        return Pieces(log_weight[:, None], jnp.broadcast_to(y, shape), jnp.broadcast_to(variance, shape))

    return entry


def beyond(limit: Float[Array, ""], side: Float[Array, ""], variance: Float[Array, ""]) -> Entry:
    """Return the pieces of an entry that says that z plus Gaussian noise lies beyond a limit, above it if side = 1.

    They are readings limit + side · r with r ≥ 0. Their density N(c, v + variance) is cut off at the limit, so that the
    nodes are those of Gauss–Legendre from there, or from where the density begins, to where it ends.
    """
    x, w = np.polynomial.legendre.leggauss(_POINTS)
    nodes, log_w = 0.5 * (x + 1.0), np.log(0.5 * w)

    def ends(c, v):
        sd = jnp.sqrt(v + variance)
        inside = side * (c - limit) / sd  # standard deviations by which the mean lies beyond the limit
        far = inside + jnp.sqrt(2.0 * _DROP + jnp.minimum(inside, 0.0) ** 2)
        return sd * jnp.maximum(inside - (2.0 * _DROP) ** 0.5, 0.0), sd * far

    def entry(b: Belief) -> Pieces:
        (low, high), (near, far) = ends(b.c, b.v), ends(b.c + b.shift, b.rest)
        low, high = jnp.minimum(low, near), jnp.maximum(high, far)
        y = limit + side * (low[:, None] + (high - low)[:, None] * nodes)
        total = (b.v + variance)[:, None]
        log_normal = -0.5 * ((y - b.c[:, None]) ** 2 / total + jnp.log(total) + LOG_2PI)
        return Pieces(log_normal + log_w + jnp.log(high - low)[:, None], y, jnp.broadcast_to(variance, y.shape))

    return entry


def scale_mixture(y: Float[Array, ""], scale: Float[Array, ""], df: Float[Array, ""]) -> Entry:
    """Return the pieces of an entry with Student-t noise.

    The noise is N(0, scale²/λ) with λ ~ Gamma(½df, ½df), so its density is an integral over u = log λ. The log of the
    integrand is ½df(u − eᵘ) + log N(y; c, v + scale² e⁻ᵘ) plus a constant. It varies in u on a scale of one, or on that
    of the Gamma density, however narrow the noise is and whatever the entries before it were.
    """
    variance = scale**2

    def integrand(c, v):
        def log_f(u):
            total = v[:, None] + variance * jnp.exp(-u)
            log_normal = -0.5 * ((y - c[:, None]) ** 2 / total + jnp.log(total) + LOG_2PI)
            return 0.5 * df * (u - jnp.expm1(u)) + log_normal

        return log_f

    def ends(c, v):
        # Outside these ends the integrand is negligible compared with its value at u = 0. With e = y − c, log N can
        # increase by at most ½e²/(v + scale²) to the left and by ½u to the right of u = 0, and it does not increase
        # further to the left of the u at which the noise alone explains e.
        square = (y - c) ** 2
        gain = 2.0 * (_DROP + 0.5 * square / (v + variance)) / df
        explained = jnp.log1p(square / variance)
        low = jnp.minimum(gain + jnp.sqrt(2.0 * gain), explained + 2.0 * _DROP / df + jnp.sqrt(4.0 * _DROP / df))
        high = jnp.broadcast_to((1.0 + jnp.sqrt(1.0 + 4.0 * df * _DROP)) / df, low.shape)
        return support(integrand(c, v), -low, high)

    def entry(b: Belief) -> Pieces:
        u, log_step = trapezoid(ends(b.c, b.v), ends(b.c + b.shift, b.rest))
        log_weight = log_stirling(0.5 * df) + integrand(b.c, b.v)(u) + log_step
        return Pieces(log_weight, jnp.broadcast_to(y, u.shape), variance * jnp.exp(-u))

    return entry
