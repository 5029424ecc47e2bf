"""Scalar models, most of them not linear, against a forward–backward recursion on a fine grid of states.

Of a run that says it has converged:
- the bound is no more than the log evidence, and equal to it for Ornstein–Uhlenbeck with Gaussian noise, where the
  means and sds are exact too;
- the bound is what q's own moments give by another quadrature;
- no random direction promises to raise it.
Every fourth case also compares `baselines.exact_smoother`.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fuzz import line
from fuzz.bound import bound, possible_gain
from fuzz.cases import NoOracle, Outcome, assignments, attempt, chance, decades, generator, judge
from fuzz.densities import draw, log_density

FAMILY = "scalar"
# What is allowed. Quadrature of the drift and the likelihood may leave some hundredths of a nat.
ABOVE, OWN, GAIN, EXACT, MOMENTS = 0.05, 0.05, 1e-3, 1e-3, 0.05
# Observations and regular nodes: one shape a likelihood, since every one is a program to compile.
_SHAPES = {"Gaussian": (25, 121), "StudentT": (25, 121), "Poisson": (8, 61), "Bernoulli": (8, 61)}
_DRIFTS = ("OrnsteinUhlenbeck", "DoubleWell", "Sine", "Benes")
_LIKELIHOODS = ("Gaussian", "StudentT", "Poisson", "Bernoulli")
_ORACLE_EVERY = 4


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    drift: str
    drift_numbers: dict[str, float]
    likelihood: str
    likelihood_numbers: dict[str, float]
    Q: float
    m0: float
    P0: float
    dt: float
    span: tuple[float, float]
    times: np.ndarray
    y: np.ndarray

    @property
    def shape(self) -> tuple:
        return (self.drift, self.likelihood, len(self.times), round(self.span[1] / self.dt))

    def f(self, x: np.ndarray) -> np.ndarray:
        return drift_values(self.drift, self.drift_numbers, x)

    def factors(self, grid: np.ndarray) -> dict[int, Callable]:
        def factor(y):
            return lambda x: log_density(self.likelihood, self.likelihood_numbers, y, x)

        node = np.searchsorted(grid, self.times)
        return {int(k): factor(y) for k, y in zip(node, self.y, strict=True)}

    @property
    def width(self) -> float:
        """The sd of the narrowest likelihood."""
        n = self.likelihood_numbers
        if self.likelihood == "Poisson":
            return float(1 / np.sqrt(self.y.max() + 1))
        return {"Gaussian": np.sqrt(n.get("variance", 1)), "StudentT": n.get("scale", 1)}.get(self.likelihood, 1.0)


def drift_values(kind: str, n: dict[str, float], x: np.ndarray) -> np.ndarray:
    if kind == "OrnsteinUhlenbeck":
        return -n["decay"] * x
    if kind == "DoubleWell":
        return n["scale"] * x * (n["well"] - x**2)
    return n["scale"] * (np.sin(x - n["phase"]) if kind == "Sine" else np.tanh(x))


def generate(seed: int, index: int) -> Case:
    rng = generator(seed, FAMILY, index)
    drift, likelihood = str(rng.choice(_DRIFTS)), str(rng.choice(_LIKELIHOODS))
    n, nodes = _SHAPES[likelihood]
    numbers = {
        "OrnsteinUhlenbeck": {"decay": decades(rng, -1, 0.7)},
        "DoubleWell": {"scale": decades(rng, -0.5, 0.6), "well": rng.uniform(0.5, 1.5)},
        "Sine": {"scale": decades(rng, -0.5, 0.5), "phase": rng.uniform(-3, 3)},
        "Benes": {"scale": decades(rng, -0.5, 0.3)},
    }[drift]
    data = {
        "Gaussian": {"variance": decades(rng, -4, 0.5)},
        "StudentT": {"scale": decades(rng, -2, 0), "df": rng.uniform(1.5, 8)},
        "Poisson": {"exposure": decades(rng, -0.5, 3)},
        "Bernoulli": {},
    }[likelihood]
    T = rng.uniform(1.5, 5.0) * (nodes - 1) / 60
    dt = T / (nodes - 1)
    Q, m0, P0 = decades(rng, -1, 0.5), float(rng.normal()), decades(rng, -2, 0)
    t = dt * np.sort(rng.permutation(nodes - 1)[:n] + 0.5 + rng.choice([-0.5, -0.2, 0.0, 0.2]))
    t = np.where(t > 0, t, 0.5 * dt)
    x, path = m0 + np.sqrt(P0) * rng.normal(), []
    for gap in np.diff(t, prepend=0.0):
        for _ in range(10):
            x = x + gap / 10 * drift_values(drift, numbers, x) + np.sqrt(Q * gap / 10) * rng.normal()
        path.append(x)
    y = draw(rng, likelihood, data, np.array(path))
    if likelihood == "StudentT" and chance(rng, 0.3):  # outliers
        y[rng.integers(n, size=2)] += rng.normal(size=2) * decades(rng, 0, 1)
    return Case(f"{FAMILY}-{seed}-{index}", drift, numbers, likelihood, data, Q, m0, P0, dt, (0.0, T), t, y)


def call(case: Case) -> tuple[Any, Any, Any]:
    """Model, series and posterior of the library."""
    import girsanov as gv

    model = gv.Model(
        getattr(gv, case.drift)(**case.drift_numbers),
        diffusion=case.Q,
        initial=gv.GaussianState(case.m0, case.P0),
        likelihood=getattr(gv.likelihoods, case.likelihood)(**case.likelihood_numbers),
    )
    series = gv.TimeSeries(case.times, case.y)
    return model, series, gv.infer(model, series, dt=case.dt, span=case.span, progress=False)


def oracle(case: Case, grid: np.ndarray) -> line.Line:
    reach = 4 * np.sqrt(case.P0 + case.Q * case.span[1])
    centres = np.append(case.y, case.m0) if case.likelihood == "Gaussian" else np.array([case.m0])
    start = (centres.min() - reach, centres.max() + reach)
    return line.smoother(case.f, case.Q, case.m0, case.P0, grid, case.factors(grid), case.width, start)


def deviations(case: Case, post: Any, exact: line.Line, rng: np.random.Generator) -> dict[str, float]:
    """Every deviation as a multiple of what is allowed."""
    m, S, C = post.mean[:, 0], post.cov[:, 0, 0], post.lag_cov[:, 0, 0]
    if not all(np.isfinite(a).all() for a in (m, S, C)) or (S <= 0).any():
        return {"finite": np.inf}

    def own(m, S, C):
        return bound(m, S, C, case.f, case.Q, case.m0, case.P0, post.times, case.factors(post.times))

    out = {
        "bound above the evidence": (post.elbo - exact.evidence) / ABOVE,
        "bound of these moments": abs(post.elbo - own(m, S, C)) / OWN,
        "possible gain": possible_gain(m, S, C, rng, own) / GAIN,
    }
    if (case.drift, case.likelihood) == ("OrnsteinUhlenbeck", "Gaussian"):
        out["exact bound"] = abs(post.elbo - exact.evidence) / EXACT
        out["exact mean"] = (np.abs(m - exact.mean) / exact.std).max() / MOMENTS
        out["exact sd"] = np.abs(np.sqrt(S) / exact.std - 1).max() / MOMENTS
    return out


def baseline(model: Any, series: Any, case: Case, exact: line.Line) -> dict[str, float]:
    import girsanov as gv

    other = gv.baselines.exact_smoother(model, series, dt=case.dt, span=case.span)
    return {
        "exact_smoother's evidence": abs(other.log_evidence - exact.evidence) / EXACT,
        "exact_smoother's mean": (np.abs(other.mean[:, 0] - exact.mean) / exact.std).max() / EXACT,
        "exact_smoother's sd": np.abs(other.std[:, 0] / exact.std - 1).max() / EXACT,
    }


def run(seed: int, index: int) -> Outcome:
    begun = time.perf_counter()
    case = generate(seed, index)
    got, outcome, message = attempt(lambda: call(case))
    post, exact, error = None, None, np.nan
    if got is not None:
        model, series, post = got
        try:
            exact = oracle(case, post.times)
            outcome, error, message = judge_all(seed, index, case, model, series, post, exact)
        except NoOracle as problem:
            outcome, message = "no oracle", str(problem)
    script = "" if outcome in ("right", "no oracle") else write_script(case, exact, post, outcome, message)
    group = f"{case.drift}, {case.likelihood}"
    return Outcome(
        FAMILY, case.name, outcome, error, message, group, script=script, seconds=time.perf_counter() - begun
    )


def judge_all(seed, index, case: Case, model, series, post, exact: line.Line) -> tuple[str, float, str]:
    """Of the posterior, and of every fourth case's baseline, which claims to be right whatever the posterior does."""
    rng = generator(seed, "scalar directions", index)
    found = judge(deviations(case, post, exact, rng), post.status == "converged", post.status)
    if found[0] == "wrong" or index % _ORACLE_EVERY:
        return found
    errors, outcome, message = attempt(lambda: baseline(model, series, case, exact))
    if errors is None:
        return outcome, np.nan, f"exact_smoother: {message}"
    other = judge(errors, True, "")
    return other if other[0] == "wrong" or (found[0] == "right" and other[1] > found[1]) else found


def write_script(case: Case, exact: Any, post: Any, outcome: str, message: str) -> str:
    def arguments(numbers):
        return ", ".join(f"{k}={v!r}" for k, v in numbers.items())

    values = {k: getattr(case, k) for k in ("Q", "m0", "P0", "dt", "span", "times", "y")}
    came = "" if post is None else f"# Then: status {post.status!r}, bound {post.elbo!r}.\n"
    truth = "" if exact is None else f'print("exact evidence", {exact.evidence!r}, "±", {exact.error!r})\n'
    return f'''"""{case.name}: {outcome}. {message.replace('"', "'")}

The oracle is a forward–backward recursion on a fine grid of states.
"""

import girsanov as gv

{assignments(values)}
model = gv.Model(
    gv.{case.drift}({arguments({k: float(v) for k, v in case.drift_numbers.items()})}),
    diffusion=Q,
    initial=gv.GaussianState(m0, P0),
    likelihood=gv.likelihoods.{case.likelihood}({arguments({k: float(v) for k, v in case.likelihood_numbers.items()})}),
)
post = gv.infer(model, gv.TimeSeries(times, y), dt=dt, span=span)
{came}print(post, post.message)
{truth}print("exact_smoother", gv.baselines.exact_smoother(model, gv.TimeSeries(times, y), dt=dt, span=span))
'''
