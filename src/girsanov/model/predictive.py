"""log E p(y | z) under z ~ N(mean, V), where the entries of y are independent given z: one entry after the other.

The density of an entry times a Gaussian N(c, v) of its z is a sum of pieces, each a Gaussian reading ζ of z with noise
R. A reading leaves the other entries Gaussian, so the next entry meets one Gaussian for each piece. Nothing is
inverted: V may be singular, as it is where the emission has more rows than the state has coordinates.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from girsanov._core.special import log_stirling
from girsanov._core.types import Array

_POINTS = 48  # pieces of an entry
_DROP = 16.0  # nats below its largest value at which an integrand is taken to vanish
_SEARCH, _ROUNDS = 24, 5  # points and rounds in the search for where it does
_KEPT = 2048  # Gaussians that go on to the fourth entry and to those after it
_AT_ONCE = 400_000  # pieces in memory
_NEWTON, _LONGEST = 40, 2.0  # steps to the mode, and how far one may lead
_ROUNDING = 1e-13  # share of its variance below which an entry is known from the entries before it
_LOG_2PI = 1.8378770664093453


class Belief(NamedTuple):
    """What n Gaussians say of one entry: N(c, v), and with rough readings of later entries N(c + shift, rest)."""

    c: Float[Array, " n"]
    v: Float[Array, " n"]
    shift: Float[Array, " n"]
    rest: Float[Array, " n"]


class Pieces(NamedTuple):
    """log weight, ζ and R of k pieces for each of n Gaussians."""

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
    """From the pieces of each entry; `rough` are Gaussian readings of z, with their precision, which place the points.

    Where one entry is known from another, the points of the first must serve both: give the most precise first.
    """
    reading, precision = rough[0], jnp.where(observed, rough[1], 0.0)
    known = _ROUNDING * jnp.diagonal(V)
    log_w, m, S = jnp.zeros(1), mean[None], V[None]
    for i, entry in enumerate(entries):
        v = jnp.where(S[:, i, i] > known[i], S[:, i, i], 0.0)
        shift, rest, _ = _with_later(i, reading, precision, m, S)
        pieces = entry(Belief(m[:, i], v, jnp.where(v > 0.0, shift, 0.0), jnp.clip(rest, 0.0, v)))
        # An entry that is missing changes nothing: its pieces have equal weights and no gain.
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
    """Readings z + g/h of precision h, where g and −h are the derivatives of log p at the mode of p(y | z) N(mean, V).

    Newton's method, z ← mean + V(I + PV)⁻¹(P(z − mean) + g) with P = diag h, from where the rough readings `start`
    lead. Where an observation lies many standard deviations off, those say little of the density near the mode.
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
    """How the rough readings of later entries shift the mean of entry i, the variance that they leave it, and their
    log density but for a constant."""
    shift, log_density = jnp.zeros_like(m), jnp.zeros(len(m))
    for j in range(i + 1, len(reading)):
        ratio = 1.0 + precision[j] * jnp.maximum(S[:, j, j], 0.0)
        e, p = reading[j] - m[:, j] - shift[:, j], precision[j] / ratio
        log_density = log_density - 0.5 * (p * e**2 + jnp.log(ratio))
        shift = shift + S[:, j] * (p * e)[:, None]
        S = S - S[:, :, j, None] * p[:, None, None] * S[:, None, j]
    return shift[:, i], S[:, i, i], log_density


def in_parts(fn: Callable, *arrays: Array) -> Float[Array, " n"]:
    """`fn`, of the kind above, on every row of the arrays, as many at a time as memory should hold."""
    n, D = arrays[0].shape
    rows = min(n, max(1, _AT_ONCE // _POINTS ** min(D, 3)))
    parts = -(-n // rows)
    index = jnp.minimum(jnp.arange(parts * rows), n - 1).reshape(parts, rows)
    return jax.lax.map(lambda at: jax.vmap(fn)(*(a[at] for a in arrays)), index).reshape(-1)[:n]


def normalised(log_w: Float[Array, " n"]) -> Float[Array, " n"]:
    return log_w - jax.scipy.special.logsumexp(log_w)


def keep(log_w: Float[Array, " n"], log_choice: Float[Array, " n"], count: int) -> tuple[Float[Array, " k"], Array]:
    """Fewer weights with the same expected sum of any function: log weights and indices (Fearnhead and Clifford 2003).

    One stays with probability min(1, g/a), where g is exp(log_choice), and then weighs more by the inverse: those with
    a large g stay as they are, the others are a systematic sample. The threshold a leaves `count` of them.
    """
    g = jnp.exp(log_choice - log_choice.max())
    rising = jnp.sort(g)
    size, lighter = (
        rising[::-1][:count],
        jnp.cumsum(rising)[::-1][:count],
    )  # one, and the sum of it and the lighter ones
    places = jnp.arange(count, 0, -1)
    heavy = jnp.argmax(size * places <= lighter)
    a = lighter[heavy] / places[heavy]
    stays = jnp.where(g > a, 1.0, g / jnp.where(a > 0.0, a, 1.0))
    at, passed = jnp.arange(count) + 0.5, jnp.cumsum(stays)
    index = jnp.minimum(jnp.searchsorted(passed, at), len(g) - 1)
    return jnp.where(at < passed[-1], log_w[index] - jnp.log(stays[index]), -jnp.inf), index


def support(log_f: Callable[[Array], Array], low: Float[Array, " n"], high: Float[Array, " n"]):
    """Ends of the part of [low, high] where log_f does not vanish beside its largest value."""

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
    """Points from the lower to the upper end of two intervals, and the logarithm of their distance.

    The rule converges exponentially for a smooth integrand that vanishes at both ends.
    """
    low, high = jnp.minimum(one[0], other[0]), jnp.maximum(one[1], other[1])
    x = low[:, None] + (high - low)[:, None] * jnp.linspace(0.0, 1.0, _POINTS)
    return x, jnp.log((high - low) / (_POINTS - 1))[:, None]


def concave(log_density: Callable[[Array], Array], peak: Float[Array, ""]) -> Entry:
    """Pieces of an entry whose log density is concave in z: points, so that R = 0. `peak` is about where it is largest.

    With z = c + √v ξ the integrand p φ(ξ) falls from its mode at least as fast as φ from its own. The mode lies between
    ξ = 0 and √v ∂log p(c), and no further beyond the peak r than √v |∂log p(r)|.
    """
    margin = (2.0 * _DROP) ** 0.5 + 0.5

    def slope(z):
        return jax.jvp(log_density, (z,), (jnp.ones_like(z),))[1]

    def integrand(c, sd):
        return lambda xi: log_density(c[:, None] + sd[:, None] * xi) - 0.5 * (xi**2 + _LOG_2PI)

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


def scale_mixture(y: Float[Array, ""], scale: Float[Array, ""], df: Float[Array, ""]) -> Entry:
    """Pieces of Student-t noise, N(0, scale²/λ) with λ ~ Gamma(½df, ½df), as an integral over u = log λ.

    The logarithm of the integrand is ½df(u − eᵘ) + log N(y; c, v + scale² e⁻ᵘ) and a constant: smooth on a scale of one
    in u, or of the Gamma density, however narrow the noise is and whatever has been read before.
    """
    variance = scale**2

    def integrand(c, v):
        def log_f(u):
            total = v[:, None] + variance * jnp.exp(-u)
            log_normal = -0.5 * ((y - c[:, None]) ** 2 / total + jnp.log(total) + _LOG_2PI)
            return 0.5 * df * (u - jnp.expm1(u)) + log_normal

        return log_f

    def ends(c, v):
        # Beyond these the integrand is below its value at u = 0 by more than can be gained elsewhere: log N gains at
        # most ½e²/(v + scale²) to the left and ½u to the right, and nothing to the left of where the noise explains e.
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
