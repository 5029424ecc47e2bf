"""Parameters of small linear-Gaussian models, against maximum likelihood with a Kalman filter in long doubles.

The bound is the likelihood here. A fit that says it has converged is right when its bound is the log likelihood at its
parameters to 1e-4 nats, when no better parameters are to be had nearby by more than 1e-4 nats, and when the best ones
are within .015 of a standard error, which is the same by ½(δ/se)² = 1e-4. Several maxima may exist: the climb starts
from the fit, and from the parameters that made the data.
"""

import dataclasses
import time
from typing import Any

import numpy as np
from scipy.optimize import minimize

from fuzz.cases import Outcome, assignments, attempt, decades, generator, judge

FAMILY = "learning"
NATS, ERRORS, ROUNDING = 1e-4, 0.015, 1e-9
_OBSERVATIONS, _NODES = 40, 81
# By kind of model: every parameter's name in `Case.values`, and its path in the library's model.
_PATHS = {"decay": "drift.decay", "b": "drift.b", "q": "diffusion", "r": "likelihood.variance"}
_KINDS = {
    "ou": (("r",), ("decay",), ("q", "r"), ("decay", "q", "r")),
    "level": (("b",), ("b", "r")),
    "velocity": (("r",), ("q", "r")),
    "ou2": (("decay", "r"), ("q", "r")),
}
_REAL = ("b",)  # the others are positive


@dataclasses.dataclass(frozen=True)
class Case:
    """x₊ = x + Δ(Ax + b) + N(0, ΔQ), one output h·x with noise variance r, and where learning starts."""

    name: str
    kind: str
    trainable: tuple[str, ...]
    true: dict[str, np.ndarray]
    begin: dict[str, np.ndarray]
    P0: float
    dt: float
    times: np.ndarray
    y: np.ndarray

    @property
    def shape(self) -> tuple:
        return (self.kind, self.trainable)

    @property
    def h(self) -> np.ndarray:
        return np.array({"velocity": [1.0, 0.0], "ou2": [1.0, 0.5]}.get(self.kind, [1.0]))

    @property
    def d(self) -> int:
        return 2 if self.kind in ("velocity", "ou2") else 1


def matrices(case: Case, values: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A, b and the diagonal of Q."""
    q = np.broadcast_to(values["q"], (case.d,))
    if case.kind == "velocity":
        return np.array([[0.0, 1.0], [0.0, 0.0]]), np.zeros(2), q
    return -np.diag(np.broadcast_to(values["decay"], (case.d,))), np.broadcast_to(values["b"], (case.d,)), q


def log_likelihood(case: Case, values: dict[str, np.ndarray], grid: np.ndarray) -> float:
    """By a Kalman filter over the nodes, in long doubles; one output, so no matrix is inverted."""
    A, b, q = (np.asarray(a, dtype=np.longdouble) for a in matrices(case, values))
    h, r = np.asarray(case.h, dtype=np.longdouble), np.longdouble(values["r"])
    node = dict(zip(np.searchsorted(grid, case.times).tolist(), case.y.tolist(), strict=True))
    t = np.asarray(grid, dtype=np.longdouble)
    m, P, eye = np.zeros(case.d, np.longdouble), np.longdouble(case.P0) * np.eye(case.d), np.eye(case.d)
    out = np.longdouble(0)
    for k in range(len(t)):
        if k:
            gap = t[k] - t[k - 1]
            F = eye + gap * A
            m, P = F @ m + gap * b, F @ P @ F.T + gap * np.diag(q)
        if k in node:
            Ph = P @ h
            v, e = h @ Ph + r, np.longdouble(node[k]) - h @ m
            out -= (e * e / v + np.log(v) + np.log(2 * np.longdouble(np.pi))) / 2
            gain = Ph / v
            keep = eye - np.outer(gain, h)
            m, P = m + gain * e, keep @ P @ keep.T + r * np.outer(gain, gain)
    return float(out)


def generate(seed: int, index: int) -> Case:
    rng = generator(seed, FAMILY, index)
    kind = str(rng.choice(list(_KINDS)))
    trainable = _KINDS[kind][rng.integers(len(_KINDS[kind]))]
    d = 2 if kind in ("velocity", "ou2") else 1
    unit = decades(rng, -2, 2)  # of the state; variances are in its square
    T = 10.0
    true = {
        "decay": decades(rng, -0.7, 0.3, d) if d == 2 else np.asarray(decades(rng, -0.7, 0.3)),
        "b": unit * rng.normal(size=d) if kind == "level" else np.zeros(d),
        "q": unit**2 * decades(rng, -4, 0, d) if kind == "velocity" else np.asarray(unit**2 * decades(rng, -1, 0.5)),
        "r": np.asarray(unit**2 * decades(rng, -2, 0.5)),
    }
    begin = {
        k: v if k not in trainable else np.zeros_like(v) if k in _REAL else v * decades(rng, -1, 1, np.shape(v))
        for k, v in true.items()
    }
    dt = T / (_NODES - 1)
    times = T * (np.sort(rng.permutation(_NODES - 1)[:_OBSERVATIONS]) + 0.5) / (_NODES - 1)
    case = Case(
        f"{FAMILY}-{seed}-{index}", kind, trainable, true, begin, float(unit**2 * decades(rng, -1, 4)), dt, times,
        np.zeros(_OBSERVATIONS),
    )  # fmt: skip
    A, b, q = matrices(case, true)
    x, t, y = unit * rng.normal(size=d), 0.0, []
    for s in times:
        for _ in range(8):
            gap = (s - t) / 8
            x = x + gap * (A @ x + b) + np.sqrt(gap * q) * rng.normal(size=d)
        y.append(case.h @ x + np.sqrt(true["r"]) * rng.normal())
        t = s
    return dataclasses.replace(case, y=np.array(y))


def call(case: Case) -> Any:
    import girsanov as gv

    v = case.begin
    if case.kind == "level":
        drift = gv.Linear([[-float(v["decay"])]], v["b"])
    else:
        drift = gv.Linear([[0.0, 1.0], [0.0, 0.0]]) if case.kind == "velocity" else gv.OrnsteinUhlenbeck(v["decay"])
    model = gv.Model(
        drift,
        diffusion=v["q"],
        initial=gv.GaussianState(0.0, case.P0),
        likelihood=gv.likelihoods.Gaussian(v["r"]),
        emission=[case.h.tolist()],
    )
    series = gv.TimeSeries(case.times, case.y)
    paths = [_PATHS[p] for p in case.trainable]
    return gv.learn(model, series, dt=case.dt, span=(0.0, 10.0), trainable=paths, progress=False)


def fitted(case: Case, fit: Any) -> dict[str, np.ndarray]:
    """The library's parameters by our names; the diffusion is a matrix there, of which the diagonal is learnt."""
    found = dict(case.begin)
    for name in case.trainable:
        value = np.asarray(fit.parameters[_PATHS[name]])
        if name == "q" and value.ndim == 2:
            value = np.diag(value) if case.begin["q"].ndim else value[0, 0]
        found[name] = np.asarray(value).reshape(np.shape(case.begin[name]))
    return found


def climb(case: Case, start: dict[str, np.ndarray], grid: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """The likelihood's maximum from a start, in free coordinates (logarithms), with standard errors there.

    An error is infinite where the likelihood does not curve downwards, as at a variance that runs to zero.
    """
    theta, unit = pack(case, start), np.abs(case.y).max()

    def value(t):
        return log_likelihood(case, unpack(case, t, unit), grid)

    theta = np.where(_real(case), theta / unit, theta)
    for method, options in (("Nelder-Mead", {"xatol": 1e-7, "fatol": 1e-10, "maxiter": 400}), ("BFGS", {"gtol": 1e-7})):
        with np.errstate(all="ignore"):
            found = minimize(lambda t: -_finite(value(np.clip(t, -40, 40))), theta, method=method, options=options)
        theta = found.x if -found.fun >= _finite(value(theta)) else theta
    hessian, e = np.zeros((len(theta),) * 2), 1e-3 * np.eye(len(theta))
    for i in range(len(theta)):
        for j in range(len(theta)):
            corners = [s * u * value(theta + s * e[i] + u * e[j]) for s in (1, -1) for u in (1, -1)]
            hessian[i, j] = sum(corners) / 4e-6
    values, vectors = np.linalg.eigh(-hessian)
    errors = np.sqrt((vectors**2 / values).sum(1)) if values[0] > 1e-3 else np.full(len(theta), np.inf)
    return value(theta), np.where(_real(case), theta * unit, theta), np.where(_real(case), errors * unit, errors)


def _finite(value: float) -> float:
    return value if np.isfinite(value) else -1e300


def _real(case: Case) -> np.ndarray:
    return np.concatenate([np.full(case.begin[n].size, n in _REAL) for n in case.trainable])


def pack(case: Case, values: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([np.ravel(values[n] if n in _REAL else np.log(values[n])) for n in case.trainable])


def unpack(case: Case, theta: np.ndarray, unit: float = 1.0) -> dict[str, np.ndarray]:
    out, k = dict(case.begin), 0
    for name in case.trainable:
        size = case.begin[name].size
        part = theta[k : k + size].reshape(case.begin[name].shape)
        out[name], k = part * unit if name in _REAL else np.exp(part), k + size
    return out


def deviations(case: Case, fit: Any) -> tuple[dict[str, float], str]:
    grid, found = fit.posterior.times, fitted(case, fit)
    here = log_likelihood(case, found, grid)
    best, theta, errors = climb(case, found, grid)
    other = climb(case, case.true, grid)[0]
    out = {
        "bound against the likelihood": abs(fit.elbo - here) / max(NATS, ROUNDING * abs(here)),
        "likelihood left": (best - here) / NATS,
        "parameters, in standard errors": float((np.abs(pack(case, found) - theta) / errors).max() / ERRORS),
    }
    elsewhere = f"; another maximum is {other - best:.3g} nats higher" if other > best + 10 * NATS else ""
    return {k: v if np.isfinite(v) else np.inf for k, v in out.items()}, elsewhere


def run(seed: int, index: int) -> Outcome:
    begun = time.perf_counter()
    case = generate(seed, index)
    fit, outcome, message = attempt(lambda: call(case))
    error = np.nan
    if fit is not None:
        errors, note = deviations(case, fit)
        outcome, error, message = judge(errors, fit.status == "converged", fit.status)
        message += note if fit.converged else f"{note}; {fit.message}"
    script = "" if outcome == "right" else write_script(case, fit, outcome, message)
    group = f"{case.kind}, {' '.join(case.trainable)}"
    return Outcome(
        FAMILY, case.name, outcome, error, message, group, script=script, seconds=time.perf_counter() - begun
    )


def write_script(case: Case, fit: Any, outcome: str, message: str) -> str:
    drift = {
        "level": "gv.Linear([[-decay]], b)",
        "velocity": "gv.Linear([[0.0, 1.0], [0.0, 0.0]])",
    }.get(case.kind, "gv.OrnsteinUhlenbeck(decay)")
    values = {**case.begin, "h": case.h, "P0": case.P0, "times": case.times, "y": case.y}
    best = ""
    if fit is not None:
        value, theta, _ = climb(case, fitted(case, fit), fit.posterior.times)
        named = {k: v.tolist() for k, v in unpack(case, theta).items() if k in case.trainable}
        best = f'print("maximum likelihood", {value!r}, {named!r})\n'
        best += f"# Then: status {fit.status!r}, bound {fit.elbo!r}.\n"
    return f'''"""{case.name}: {outcome}. {message.replace('"', "'")}

The oracle is maximum likelihood by a Kalman filter in long doubles.
"""

import girsanov as gv

{assignments(values)}
model = gv.Model(
    {drift},
    diffusion=q,
    initial=gv.GaussianState(0.0, P0),
    likelihood=gv.likelihoods.Gaussian(r),
    emission=[h],
)
series = gv.TimeSeries(times, y)
fit = gv.learn(model, series, dt={case.dt!r}, span=(0.0, 10.0), trainable={[_PATHS[p] for p in case.trainable]!r})
print(fit, fit.status, fit.message)
print(fit.summary())
{best}'''
