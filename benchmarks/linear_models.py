"""Linear models with Gaussian noise of several kinds, and their likelihood by a Kalman filter that is independent."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import girsanov as gv

P0 = 1.0


class Seasonal(eqx.Module):
    """−decay (x − mean − slope t) + Σ_k cosines_k cos 2πkt + sines_k sin 2πkt, one state."""

    decay: jax.Array
    mean: jax.Array
    slope: jax.Array
    cosines: jax.Array
    sines: jax.Array
    constraints = {"decay": "positive"}  # noqa: RUF012

    def __call__(self, x, t):
        phase = 2.0 * jnp.pi * t * jnp.arange(1, self.cosines.shape[0] + 1)
        return (
            -self.decay * (x - self.mean - self.slope * t) + jnp.cos(phase) @ self.cosines + jnp.sin(phase) @ self.sines
        )


@dataclasses.dataclass(frozen=True)
class Kind:
    """A family of models: the drift of its values, which are positive, which are learnt, and what draws true ones."""

    dim: int
    drift: Callable[[dict], Any]
    paths: dict[str, str]  # path in the model, by name
    positive: tuple[str, ...]
    draw: Callable[[np.random.Generator], dict]
    emission: Any = None
    observations: int = 80
    end: float = 10.0


def _linear(v: dict) -> gv.Linear:
    return gv.Linear(v["A"], v["b"])


def seasonal(v: dict) -> Seasonal:
    return Seasonal(*(v[k] if isinstance(v[k], jax.Array) else np.asarray(v[k]) for k in SEASONAL))


def _stack(*values: Any) -> Any:
    """Stack numbers, of which some may be traced; numbers that are not stay NumPy's, with all their digits."""
    return (jnp if any(isinstance(v, jax.core.Tracer) for v in values) else np).stack(values)


def _oscillator(v: dict) -> gv.Linear:
    return gv.Linear(_stack(0.0, 1.0, v["stiffness"], v["damping"]).reshape(2, 2))


NOISES = {"q": "diffusion", "r": "likelihood.variance"}
POSITIVE = ("decay", "q", "r")
SEASONAL = ("decay", "mean", "slope", "cosines", "sines")


def _stable(rng: np.random.Generator, d: int) -> np.ndarray:
    return -np.diag(rng.uniform(0.4, 2.0, d)) + 0.4 * rng.normal(size=(d, d)) * (1.0 - np.eye(d))


def _noises(rng: np.random.Generator, d: int | None = None) -> dict:
    q = 10.0 ** rng.uniform(-1.0, 0.5, () if d is None else d)
    return {"q": q, "r": 10.0 ** rng.uniform(-2.5, -0.5)}


KINDS = {
    "linear, d = 1": Kind(
        1, _linear, {"A": "drift.A", "b": "drift.b", **NOISES}, POSITIVE,
        lambda rng: {"A": _stable(rng, 1), "b": rng.normal(size=1), **_noises(rng)},
    ),
    "linear, d = 2": Kind(
        2, _linear, {"A": "drift.A", "b": "drift.b", **NOISES}, POSITIVE,
        lambda rng: {"A": _stable(rng, 2), "b": rng.normal(size=2), **_noises(rng, 2)},
    ),
    "ou, d = 2": Kind(
        2, lambda v: gv.OrnsteinUhlenbeck(v["decay"], v["mean"]),
        {"decay": "drift.decay", "mean": "drift.mean", **NOISES}, POSITIVE,
        lambda rng: {"decay": rng.uniform(0.4, 2.0, 2), "mean": 3.0 * rng.normal(size=2), **_noises(rng, 2)},
    ),
    "ou, d = 3": Kind(
        3, lambda v: gv.OrnsteinUhlenbeck(v["decay"], v["mean"]),
        {"decay": "drift.decay", "mean": "drift.mean", **NOISES}, POSITIVE,
        lambda rng: {"decay": rng.uniform(0.4, 2.0, 3), "mean": 3.0 * rng.normal(size=3), **_noises(rng)},
    ),
    "oscillator, d = 2": Kind(
        2, _oscillator,
        {"stiffness": "drift.A[1,0]", "damping": "drift.A[1,1]", "q": "diffusion[1,1]", "r": "likelihood.variance"},
        ("q", "r"),
        lambda rng: {"stiffness": -rng.uniform(2.0, 10.0), "damping": -rng.uniform(0.2, 1.0), **_noises(rng)},
        emission=[[1.0, 0.0]],
    ),
    "season, d = 1": Kind(
        1, seasonal,
        {"decay": "drift.decay", "mean": "drift.mean", "cosines": "drift.cosines", "sines": "drift.sines", **NOISES},
        POSITIVE,
        lambda rng: {
            "decay": rng.uniform(0.5, 3.0), "mean": rng.normal(), "slope": 0.0,
            "cosines": 3.0 * rng.normal(size=2), "sines": 3.0 * rng.normal(size=2), **_noises(rng),
        },
        observations=150,
    ),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Case:
    kind: Kind
    true: dict
    begin: dict
    series: gv.TimeSeries
    dt: float
    first: float = 0.0  # mean of the first state, where it is not a parameter

    def start(self, values: dict) -> gv.GaussianState:
        return gv.GaussianState(values.get("first", self.first), P0)

    def model(self, values: dict) -> gv.Model:
        q = values["q"]
        if self.kind.emission is not None:  # no noise on the position but a little that is known
            q = _stack(1e-3, q)
        return gv.Model(
            self.kind.drift(values), q, self.start(values), gv.likelihoods.Gaussian(values["r"]),
            emission=self.kind.emission,
        )  # fmt: skip


def make(name: str, rng: np.random.Generator) -> Case:
    kind = KINDS[name]
    true = kind.draw(rng)
    begin = {
        k: np.asarray(v) * (10.0 ** rng.uniform(-1.0, 1.0, np.shape(v)) if k in kind.positive else 0.0)
        for k, v in true.items()
    }
    if "A" in true:
        begin["A"] = -np.eye(kind.dim) * 10.0 ** rng.uniform(-1.0, 0.5)
    if "stiffness" in true:
        begin.update(stiffness=-1.0, damping=-1.0)
    times = np.sort(rng.uniform(0.0, kind.end, kind.observations))
    key = jax.random.key(int(rng.integers(2**31)))
    case = Case(kind, true, begin, gv.TimeSeries(times, times), kind.end / 100.0)
    series = gv.simulate(case.model(true), times, key=key, start=0.0, dt=kind.end / 1000.0).series
    return dataclasses.replace(case, series=series)


def pack(case: Case, values: dict) -> np.ndarray:
    parts = [np.ravel(values[k]) for k in case.kind.paths]
    return np.concatenate(
        [np.log(p) if k in case.kind.positive else p for k, p in zip(case.kind.paths, parts, strict=True)]
    )


def unpack(case: Case, theta: Any) -> dict:
    out, i = dict(case.true), 0
    for k in case.kind.paths:
        shape = np.shape(case.true[k])
        part = theta[i : i + int(np.prod(shape))].reshape(shape)
        out[k], i = (jnp.exp(part) if k in case.kind.positive else part), i + int(np.prod(shape))
    return out


def kalman(case: Case, grid: np.ndarray) -> Callable[[Any], Any]:
    """Return minus the log likelihood of the Euler–Maruyama model on a grid as a function of the free coordinates."""
    d = case.kind.dim
    H = jnp.eye(d) if case.kind.emission is None else jnp.asarray(case.kind.emission)
    node = np.searchsorted(grid, case.series.times)
    seen, y = np.zeros(len(grid), bool), np.zeros((len(grid), case.series.dim))
    seen[node], y[node] = True, case.series.values

    def update(m, P, y_n, seen_n, r):
        S = H @ P @ H.T + r * jnp.eye(len(H))
        e = y_n - H @ m
        gain = jnp.linalg.solve(S, H @ P).T
        log_p = -0.5 * (e @ jnp.linalg.solve(S, e) + jnp.linalg.slogdet(2.0 * jnp.pi * S)[1])
        keep = jnp.eye(d) - gain @ H
        new = m + gain @ e, keep @ P @ keep.T + r * gain @ gain.T
        return (*(jnp.where(seen_n, a, b) for a, b in zip(new, (m, P), strict=True)), jnp.where(seen_n, log_p, 0.0))

    def value(theta):
        v = unpack(case, theta)
        model = case.model(v)
        drift, Q, r = model.drift, jnp.asarray(model.diffusion), v["r"]
        zero = jnp.zeros(d)

        def step(carry, here):
            m, P = carry
            t, gap, y_n, seen_n = here
            b = drift(zero, t)
            A = jax.vmap(lambda e: drift(e, t) - b)(jnp.eye(d)).T
            F = jnp.eye(d) + gap * A
            m, P, log_p = update(F @ m + gap * b, F @ P @ F.T + gap * Q, y_n, seen_n, r)
            return (m, P), log_p

        m, P = jnp.broadcast_to(jnp.asarray(v.get("first", case.first)), (d,)), P0 * jnp.eye(d)
        m, P, first = update(m, P, y[0], seen[0], r)
        rest = jax.lax.scan(step, (m, P), (grid[:-1], np.diff(grid), y[1:], seen[1:]))[1]
        return -first - rest.sum()

    return value
