"""Linear-Gaussian models over extreme scales, against a Kalman smoother in 150 digits: the bound is exact here.

An answer is right when every mean is within .05 posterior sd, every sd within 5 %, every lag-one covariance within 5 %
of the product of its sds, and the bound within max(.05, 1e-6 |log evidence|) nats. The relative part is what rounding
leaves: it is large where a misfit of many sds is squared, and the misfit is the difference of two numbers that may be
1e10 times as large as the sd and are known to 16 digits.
"""

import dataclasses
import time
from typing import Any

import numpy as np

from fuzz.cases import Outcome, assignments, attempt, chance, decades, generator, judge
from fuzz.extended import Exact, smoother

FAMILY = "linear"
MEAN, STD, LAG, NATS, NATS_RELATIVE = 0.05, 0.05, 0.05, 0.05, 1e-6
# Float64 has 16 digits. Solving with a matrix of condition κ loses log10 κ of them, sums over some hundred nodes two
# more, and an answer needs two: up to here an algorithm that loses no more than it must is right.
ALLOWED = 1e12
# Number of observations, regular nodes, outputs and whether R is full, by dimension: few, since each is a program to
# compile. The grid's padded size is nodes + observations, wherever the latter fall.
SHAPES = {
    1: [(3, 20, 1, False), (10, 60, 1, False), (40, 120, 1, False), (20, 270, 1, False)],
    2: [(5, 30, 1, False), (40, 120, 1, False), (12, 80, 2, False), (25, 250, 2, True)],
    3: [(8, 40, 1, False), (30, 150, 2, False), (15, 100, 3, True)],
    4: [(10, 40, 1, False), (30, 120, 2, False), (20, 60, 4, False)],
    5: [(12, 40, 2, False), (30, 100, 1, False), (20, 60, 5, True)],
}
DIMENSIONS = (0.3, 0.3, 0.2, 0.12, 0.08)
METHODS = {"default": "gv.CVIDP()", "mirror": "gv.CVIDP(rho=1.0)", "continuous": 'gv.CVIDP(time="continuous")'}


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, its data and the call. `shape` is what decides on the program that it compiles to."""

    name: str
    method: str
    dt: float
    span: tuple[float, float]
    A: np.ndarray
    b: np.ndarray
    Q: np.ndarray
    m0: np.ndarray
    P0: np.ndarray
    H: np.ndarray
    R: np.ndarray  # (D,) for a diagonal covariance, or (D, D)
    times: np.ndarray
    y: np.ndarray

    @property
    def shape(self) -> tuple:
        return (len(self.A), *self.y.shape, round((self.span[1] - self.span[0]) / self.dt), self.R.ndim, self.method)

    @property
    def noise(self) -> np.ndarray:
        return np.diag(self.R) if self.R.ndim == 1 else self.R


def generate(seed: int, index: int) -> Case:
    rng = generator(seed, FAMILY, index)
    d = int(rng.choice([1, 2, 3, 4, 5], p=DIMENSIONS))
    method = str(rng.choice(list(METHODS), p=[0.8, 0.1, 0.1]))
    shapes = SHAPES[d] if method == "default" else SHAPES[d][:1]
    n, nodes, D, full = shapes[rng.integers(len(shapes))]
    T = decades(rng, -1, 2)
    start = 0.0 if chance(rng, 0.8) else float(rng.normal() * 10 * T)
    dt = T / (nodes - 1)
    times = _times(rng, n, start, T, dt)
    A = _drift(rng, d, T, dt)
    Q = _covariance(rng, decades(rng, -8, 8), d, 1.5)
    P0 = _covariance(rng, decades(rng, -12, 6), d, 1.0)
    R = _covariance(rng, decades(rng, -10, 6), D, 0.5, full)
    H = np.eye(d)[np.sort(rng.permutation(d)[:D])] if chance(rng, 0.6) else rng.normal(size=(D, d))
    b, m0 = _levels(rng, A, P0, T)
    y = _data(rng, A, b, Q, m0, P0, H, R, times, start, dt)
    y = _with_missing(rng, y)
    return Case(
        f"{FAMILY}-{seed}-{index}", method, dt, (start, float(start + T)), A, b, Q, m0, P0, H,
        R if full else np.diag(R).copy(), times, y,
    )  # fmt: skip


def _times(rng: np.random.Generator, n: int, start: float, T: float, dt: float) -> np.ndarray:
    """Irregular times inside the span; sometimes on the nodes, sometimes in pairs that almost coincide."""
    u = np.sort(rng.random(n)) if chance(rng, 0.7) else (np.arange(n) + rng.random()) / n
    t = start + T * (0.001 + 0.998 * u)
    if chance(rng, 0.1):
        t[1::2] = t[: 2 * (n // 2) : 2] + dt * decades(rng, -8, -1, n // 2)
    t = np.sort(t)
    return t if (np.diff(t) > 0).all() and t[-1] < start + T else start + T * (np.arange(n) + 0.5) / n


def _drift(rng: np.random.Generator, d: int, T: float, dt: float) -> np.ndarray:
    """A with rates that the step resolves: stable, oscillating, an integrator, mildly unstable, or none."""
    fastest = 0.45 / dt
    rate = min(fastest, decades(rng, -1, 1.7) / T)
    kind = rng.choice(["stable", "integrator", "unstable", "none"], p=[0.55, 0.25, 0.12, 0.08])
    if kind == "none":
        return np.zeros((d, d))
    if kind == "integrator" and d > 1:
        A = np.diag(np.full(d - 1, min(fastest, decades(rng, 0, 1.5) / T)), 1)
        return A - np.eye(d) * (0.0 if chance(rng, 0.7) else min(fastest, decades(rng, -1, 1) / T))
    G, B = rng.normal(size=(d, d)), rng.normal(size=(d, d))
    A = -(B @ B.T / d + 0.05 * np.eye(d)) + (G - G.T) * rng.choice([0.0, 0.3, 2.0])
    A *= rate / np.abs(np.linalg.eigvals(A)).max()
    if kind == "unstable":
        A += (rng.uniform(0.1, 3.0) / T - np.linalg.eigvals(A).real.max()) * np.eye(d)
    if chance(rng, 0.3):  # coordinates in units of their own
        unit = decades(rng, -1, 1, d)
        A = A * unit[:, None] / unit
    return A


def _covariance(rng: np.random.Generator, scale: float, k: int, spread: float, full: bool = False) -> np.ndarray:
    """A multiple of the identity, a diagonal whose scales differ by `spread` decades either way, or a full matrix."""
    form = "full" if full else rng.choice(["scalar", "diagonal", "full"], p=[0.4, 0.4, 0.2] if k > 1 else [1, 0, 0])
    sd = np.sqrt(scale * (np.ones(k) if form == "scalar" else decades(rng, -spread, spread, k)))
    if form != "full":
        return np.diag(sd**2)
    G = rng.normal(size=(k, k))
    C = G @ G.T + 0.3 * k * np.eye(k)
    C /= np.sqrt(np.outer(np.diag(C), np.diag(C)))
    C *= np.outer(sd, sd)
    return 0.5 * (C + C.T)


def _levels(rng: np.random.Generator, A: np.ndarray, P0: np.ndarray, T: float) -> tuple[np.ndarray, np.ndarray]:
    """b and the initial mean: at zero, at a level that the drift keeps, or a start far from everything."""
    d = len(A)
    kind = rng.choice(["zero", "plain", "level", "far"], p=[0.3, 0.35, 0.2, 0.15])
    if kind == "zero":
        return np.zeros(d), np.zeros(d)
    if kind == "plain":
        return rng.normal(size=d) / T, rng.normal(size=d) + np.sqrt(np.diag(P0)) * rng.normal(size=d)
    if kind == "level":
        level = decades(rng, 1, 5) * rng.choice([-1.0, 1.0], d)
        return -A @ level, level + np.sqrt(np.diag(P0)) * rng.normal(size=d)
    return np.zeros(d), decades(rng, 2, 6) * rng.choice([-1.0, 1.0], d)


def _data(rng, A, b, Q, m0, P0, H, R, times, start, dt) -> np.ndarray:
    """Drawn from the model; or from it with another start; or a curve that has nothing to do with it."""
    kind = rng.choice(["model", "from zero", "curve"], p=[0.7, 0.15, 0.15])
    noise = rng.normal(size=(len(times), len(H))) @ np.linalg.cholesky(R).T
    if kind == "curve":
        size = decades(rng, -2, 3)
        u = (times - start)[:, None] / (times[-1] - start)
        return size * np.sin(2 * np.pi * u * rng.uniform(0.5, 3, len(H)) + rng.uniform(0, 6, len(H))) + noise
    x, t = (m0 + np.linalg.cholesky(P0) @ rng.normal(size=len(A))) * (kind == "model"), start
    root, path = np.linalg.cholesky(Q), []
    for s in times:
        steps = max(1, int(np.ceil((s - t) / dt)))
        gap = (s - t) / steps
        for _ in range(steps):
            x = x + gap * (A @ x + b) + np.sqrt(gap) * root @ rng.normal(size=len(A))
        path.append(x)
        t = s
    return np.array(path) @ H.T + noise


def _with_missing(rng: np.random.Generator, y: np.ndarray) -> np.ndarray:
    if not chance(rng, 0.3):
        return y
    gone = rng.random(y.shape) < 0.2
    gone[0, 0] = False
    return np.where(gone, np.nan, y)


def call(case: Case) -> Any:
    """The library's answer."""
    import girsanov as gv

    model = gv.Model(
        gv.Linear(case.A, case.b),
        diffusion=case.Q,
        initial=gv.GaussianState(case.m0, case.P0),
        likelihood=gv.likelihoods.Gaussian(case.R),
        emission=case.H,
    )
    method = {"default": {}, "mirror": {"rho": 1.0}, "continuous": {"time": "continuous"}}[case.method]
    series = gv.TimeSeries(case.times, case.y)
    return gv.infer(model, series, dt=case.dt, span=case.span, method=gv.CVIDP(**method), progress=False)


def oracle(case: Case, grid: np.ndarray) -> Exact:
    node = np.searchsorted(grid, case.times)
    if not np.array_equal(grid[np.minimum(node, len(grid) - 1)], case.times):
        raise RuntimeError("an observation time is not a node of the grid")
    when = "continuous" if case.method == "continuous" else "discrete"
    return smoother(case.A, case.b, case.Q, case.m0, case.P0, case.H, case.noise, grid, node, case.y, when)


def own_grid(case: Case) -> np.ndarray:
    """The grid that the documentation describes, for calls that gave none."""
    t0, t1 = case.span
    regular = t0 + case.dt * np.arange(round((t1 - t0) / case.dt) + 1)
    regular[-1] = t1
    far = np.abs(regular[:, None] - case.times).min(1) > 1e-6 * case.dt
    return np.union1d(regular[far], case.times)


def deviations(post: Any, exact: Exact, key_seed: int) -> dict[str, float]:
    """Every deviation as a multiple of what is allowed; infinite where anything is not finite."""
    import jax

    scale = exact.std[1:, :, None] * exact.std[:-1, None, :]
    allowed = max(NATS, NATS_RELATIVE * abs(exact.evidence))
    with np.errstate(invalid="ignore", over="ignore"):
        out = {
            "mean": (np.abs((post.mean - exact.mean) - exact.tail) / exact.std).max() / MEAN,
            "std": np.abs(post.std / exact.std - 1).max() / STD,
            "lag": (np.abs(post.lag_cov - exact.lag) / scale).max() / LAG,
            "bound": abs(post.elbo - exact.evidence) / allowed,
        }
    off = np.random.default_rng(key_seed).uniform(post.times[0], post.times[-1], 7)
    with np.errstate(invalid="ignore"):
        between = post.marginals(off)
        finite = {
            "samples": post.sample(jax.random.key(key_seed), 4),
            "off the grid": np.concatenate([between.mean, between.std], 1),
        }
    out |= {f"{name} finite": 0.0 if np.isfinite(a).all() else np.inf for name, a in finite.items()}
    return {k: float(v) if np.isfinite(v) else np.inf for k, v in out.items()}


def run(seed: int, index: int) -> Outcome:
    begun = time.perf_counter()
    case = generate(seed, index)
    post, outcome, message = attempt(lambda: call(case))
    exact, error = oracle(case, own_grid(case) if post is None else post.times), np.nan
    if post is not None:
        errors, outcome, message = attempt(lambda: deviations(post, exact, index))
        if errors is not None:
            outcome, error, message = judge(errors, post.status == "converged", post.status)
        elif outcome == "refused":  # a posterior that has converged draws samples; another one may say that it cannot
            outcome = "crashed" if post.converged else post.status
        message = message if post.converged else f"{message}; {post.message}"
    script = "" if outcome == "right" else write_script(case, exact, post, outcome, message)
    return Outcome(
        FAMILY, case.name, outcome, error, message, f"d = {len(case.A)}", exact.condition, script,
        time.perf_counter() - begun,
    )  # fmt: skip


def write_script(case: Case, exact: Exact, post: Any, outcome: str, message: str) -> str:
    """A program without this package: the model's numbers, the call, the oracle's answer and what came out."""
    values = {k: getattr(case, k) for k in ("dt", "span", "A", "b", "Q", "m0", "P0", "H", "R", "times", "y")}
    came = "" if post is None else f"# Then: status {post.status!r}, bound {post.elbo!r}, {message}.\n"
    return f'''"""{case.name}: {outcome}. {message.replace('"', "'")}

The oracle is a Kalman smoother in 150 digits; `condition` is max Λ_ii Σ_ii of the posterior precision.
"""

import numpy as np

import girsanov as gv

{assignments(values)}
model = gv.Model(
    gv.Linear(A, b),
    diffusion=Q,
    initial=gv.GaussianState(m0, P0),
    likelihood=gv.likelihoods.Gaussian(R),
    emission=H,
)
post = gv.infer(model, gv.TimeSeries(times, y), dt=dt, span=span, method={METHODS[case.method]})
{came}
evidence, condition = {exact.evidence!r}, {exact.condition!r}
exact_mean = np.array({exact.mean.tolist()})
exact_std = np.array({exact.std.tolist()})
print(post, post.message)
print("bound", post.elbo, "exact", evidence, "condition", condition)
print("mean, in sds: off by", np.abs((post.mean - exact_mean) / exact_std).max())
print("sd: off by the share", np.abs(post.std / exact_std - 1).max())
'''
