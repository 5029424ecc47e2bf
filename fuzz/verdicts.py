"""Verdicts of `post.diagnose` on scalar cases whose evidence is known.

A case is a drift f(x) = −a x + s sin x + c x (w − x²), a likelihood, irregular times with gaps, and data simulated from
them (for outliers, some of them moved). Its evidence comes from a filter on a grid of states written here, in NumPy
alone. `python -m fuzz.verdicts --cases 500 --seed 1` prints how often the verdicts were right.
"""

import argparse
import dataclasses
import warnings
from collections import Counter
from typing import Any

import equinox as eqx
import jax
import numpy as np
from scipy.special import gammaln

import girsanov as gv

FAMILIES = ("double well", "sine", "student", "student outliers", "poisson", "bernoulli")
SHAPES = ((200, 4), (300, 12), (400, 50))  # nodes and observations: few shapes, since each is compiled
FAR, NEAR, SMALL = 0.5, 0.1, 0.05  # nats


class Drift(eqx.Module):
    """−a x + s sin x + c x (w − x²), for the library."""

    a: Any
    s: Any
    c: Any
    w: Any

    def __call__(self, x, t):
        return -self.a * x + self.s * jax.numpy.sin(x) + self.c * x * (self.w - x**2)


@dataclasses.dataclass(frozen=True)
class Case:
    """One problem; `Case.make(family, seed)` with the seed of its repr makes it again."""

    family: str
    seed: int
    drift: tuple[float, float, float, float]  # a, s, c, w
    diffusion: float
    initial: tuple[float, float]
    likelihood: tuple[str, tuple[float, ...]]
    times: np.ndarray
    node: np.ndarray
    values: np.ndarray

    def __repr__(self) -> str:
        a, s, c, w = (round(v, 3) for v in self.drift)
        name, numbers = self.likelihood
        return (
            f"Case.make({self.family!r}, {self.seed}): a={a} s={s} c={c} w={w} Q={self.diffusion:.3g} "
            f"{name}{tuple(round(v, 4) for v in numbers)} N={len(self.times)} n={len(self.node)} T={self.times[-1]:.2f}"
        )

    @classmethod
    def make(cls, family: str, seed: int) -> "Case":
        rng = np.random.default_rng([FAMILIES.index(family), seed])
        drift, Q = _drift(family, rng)
        N, n = SHAPES[rng.integers(len(SHAPES))]
        gaps = _between(rng, 0.01, 0.05) * rng.uniform(0.4, 1.6, N - 1)
        times = np.concatenate([[0.0], np.cumsum(np.clip(gaps, 0.005, 0.05))])
        node = _observed(rng, N, n)
        likelihood = _likelihood(family, rng)
        initial = (float(rng.normal()), float(_between(rng, 0.01, 1.0)))
        path = _path(rng, drift, Q, initial, times)
        values = _observe(rng, likelihood, path[node])
        if family == "student outliers":
            hit = rng.choice(n, rng.integers(1, 4), replace=False)
            values[hit] += rng.choice([-1.0, 1.0], len(hit)) * _between(rng, 0.3, 5.0, len(hit))
        return cls(family, seed, drift, Q, initial, likelihood, times, node, values)

    def model(self) -> gv.Model:
        name, numbers = self.likelihood
        return gv.Model(
            Drift(*(np.float64(v) for v in self.drift)),
            self.diffusion,
            gv.GaussianState(*self.initial),
            getattr(gv.likelihoods, name)(*numbers),
        )

    def series(self) -> gv.TimeSeries:
        return gv.TimeSeries(self.times[self.node], self.values)

    def log_evidence(self, resolution: float = 2.5) -> float:
        """log p(y) of the Euler–Maruyama model, by sums over points `resolution` to a standard deviation."""
        return _filter(self, resolution)


def _between(rng, low, high, size=None):
    """Uniform in the logarithm."""
    return np.exp(rng.uniform(np.log(low), np.log(high), size))


def _drift(family: str, rng) -> tuple[tuple[float, float, float, float], float]:
    kind = {"double well": "well", "sine": "sine"}.get(family) or rng.choice(["linear", "sine", "well"])
    Q = float(_between(rng, 0.2, 2.0))
    if kind == "linear":
        return (float(_between(rng, 0.2, 3.0)), 0.0, 0.0, 0.0), Q
    if kind == "sine":
        return (0.0, float(_between(rng, 0.5, 5.0)), 0.0, 0.0), Q
    return (0.0, 0.0, float(_between(rng, 0.5, 5.0)), float(rng.uniform(0.5, 2.0))), Q


def _likelihood(family: str, rng) -> tuple[str, tuple[float, ...]]:
    sd = float(_between(rng, 0.01, 1.0))
    if family == "poisson":
        return "Poisson", (float(_between(rng, 0.5, 50.0)),)
    if family == "bernoulli":
        return "Bernoulli", ()
    if family.startswith("student"):
        return "StudentT", (sd, float(rng.choice([2.0, 3.0, 4.0, 8.0])))
    return "Gaussian", (sd**2,)


def _observed(rng, N: int, n: int) -> np.ndarray:
    """Nodes of the observations: anywhere, but for one or two stretches that stay empty."""
    free = np.ones(N, bool)
    free[0] = False
    for _ in range(rng.integers(0, 3)):
        length = rng.integers(N // 10, N // 3)
        begin = rng.integers(0, N - length)
        free[begin : begin + length] = False
    return np.sort(rng.choice(np.flatnonzero(free), n, replace=False))


def _f(drift, x):
    a, s, c, w = drift
    return -a * x + s * np.sin(x) + c * x * (w - x**2)


def _path(rng, drift, Q, initial, times) -> np.ndarray:
    x = [initial[0] + np.sqrt(initial[1]) * rng.normal()]
    for gap in np.diff(times):
        x.append(x[-1] + gap * _f(drift, x[-1]) + np.sqrt(gap * Q) * rng.normal())
    return np.array(x)


def _observe(rng, likelihood, z) -> np.ndarray:
    name, numbers = likelihood
    if name == "Gaussian":
        return z + np.sqrt(numbers[0]) * rng.normal(size=z.shape)
    if name == "StudentT":
        return z + numbers[0] * rng.standard_t(numbers[1], z.shape)
    if name == "Poisson":
        return rng.poisson(numbers[0] * np.exp(z)).astype(float)
    return (rng.uniform(size=z.shape) < 1.0 / (1.0 + np.exp(-z))).astype(float)


def _log_density(likelihood, y: float, z: np.ndarray) -> np.ndarray:
    name, numbers = likelihood
    if name == "Gaussian":
        return -0.5 * ((y - z) ** 2 / numbers[0] + np.log(2.0 * np.pi * numbers[0]))
    if name == "StudentT":
        s, nu = numbers
        norm = gammaln(0.5 * (nu + 1.0)) - gammaln(0.5 * nu) - 0.5 * np.log(nu * np.pi) - np.log(s)
        return norm - 0.5 * (nu + 1.0) * np.log1p(((y - z) / s) ** 2 / nu)
    if name == "Poisson":
        return y * (z + np.log(numbers[0])) - numbers[0] * np.exp(z) - gammaln(y + 1.0)
    return -np.logaddexp(0.0, np.where(y > 0.5, -z, z))


def _noise(case: Case) -> tuple[float, np.ndarray]:
    """The narrowest likelihood's width in units of the state, and states that the data point to."""
    name, numbers = case.likelihood
    if name == "Gaussian":
        return float(np.sqrt(numbers[0])), case.values
    if name == "StudentT":
        return numbers[0], case.values
    return float(1.0 / np.sqrt(1.0 + case.values.max())), np.zeros(1)


def _filter(case: Case, resolution: float) -> float:
    """Trapezoidal sums on equal spacings: with two points or more to a standard deviation they are exact to rounding.

    Nodes without an observation get points as far apart as their transitions allow, the others as their noise does.
    """
    m0, P0 = case.initial
    Q, gaps = case.diffusion, np.diff(case.times)
    width, seen = _noise(case)
    at = dict(zip(case.node.tolist(), case.values, strict=True))
    reach = 6.0 + 4.0 * np.sqrt(Q * case.times[-1])
    least, most = min(m0, *seen) - reach, max(m0, *seen) + reach
    low, high = least, most
    beside = np.minimum(np.append(gaps, np.inf), np.insert(gaps, 0, np.inf))  # the shorter of the gaps beside a node
    total, x, weight = 0.0, None, None
    for m in range(len(case.times)):
        sd = np.sqrt(Q * beside[m])
        sd = min(sd, np.sqrt(P0)) if m == 0 else sd
        sd = min(sd, width) if m in at else sd
        if x is not None:  # as far as the step can lead
            far = 12.0 * np.sqrt(Q * gaps[m - 1])
            moved = x + gaps[m - 1] * _f(case.drift, x)
            low, high = max(least, moved.min() - far), min(most, moved.max() + far)
        after = np.arange(low, high, sd / resolution)
        if x is None or weight is None:
            log_p = -0.5 * ((after - m0) ** 2 / P0 + np.log(2.0 * np.pi * P0))
        else:
            var = gaps[m - 1] * Q
            centre = x + gaps[m - 1] * _f(case.drift, x)
            kernel = np.exp(-0.5 * (after[:, None] - centre) ** 2 / var) / np.sqrt(2.0 * np.pi * var)
            with np.errstate(divide="ignore"):
                log_p = np.log(kernel @ weight)
        if m in at:
            log_p = log_p + _log_density(case.likelihood, at[m], after)
        log_p = log_p + np.log(after[1] - after[0])
        top = log_p.max()
        p = np.exp(log_p - top)
        total += top + np.log(p.sum())
        keep = p > 1e-30 * p.max()  # the rest is nothing, and most of the work
        x, weight = after[keep], p[keep] / p[keep].sum()
    return float(total)


def judge(case: Case, key: Any) -> dict:
    """What `diagnose` says of the case, and whether that is right."""
    post = gv.infer(case.model(), case.series(), grid=case.times, progress=False)
    found = post.diagnose(key=key)
    truth = case.log_evidence()
    errors = {"bound": found.elbo - truth, "corrected": found.log_evidence - truth}
    return outcome(case, found, errors, post.status)


def outcome(case: Case, found: Any, errors: dict, status: str) -> dict:
    trusted = found.verdict.startswith("trust")
    # without a warning, the bound would have been reported where the correction is small
    small = abs(found.log_evidence - found.elbo) < SMALL
    bound = found.verdict == "trust the bound" if trusted else small
    error = errors["bound" if bound else "corrected"]
    good = abs(error) < NEAR
    return {
        "family": case.family,
        "outcome": ("right" if good else "wrong") if trusted else ("needless" if good else "warned"),
        "error": float(error),
        "verdict": found.verdict,
        "case": repr(case),
        "status": status,
        "seen": repr(found),
    }


def run(cases: int, seed: int) -> list[dict]:
    """As many cases, the families in turn."""
    out = []
    for i in range(cases):
        case = Case.make(FAMILIES[i % len(FAMILIES)], 1_000_000 * seed + i)
        out.append(judge(case, jax.random.key(i)))
    return out


def table(results: list[dict]) -> str:
    kinds = ("right", "wrong", "needless", "warned")
    lines = [f"{'family':18s}" + "".join(f"{kind:>10s}" for kind in kinds)]
    for family in (*FAMILIES, "all"):
        count = Counter(r["outcome"] for r in results if family in (r["family"], "all"))
        lines.append(f"{family:18s}" + "".join(f"{count[kind]:10d}" for kind in kinds))
    trusted = [r for r in results if r["outcome"] in ("right", "wrong")]
    far = sum(abs(r["error"]) > FAR for r in trusted)
    wrong = sum(r["outcome"] == "wrong" for r in trusted)
    needless = sum(r["outcome"] == "needless" for r in results)
    lines.append(
        f"{len(trusted)} trusted of {len(results)}: {far} wrong by more than {FAR} nats, {wrong} by more than {NEAR} "
        f"({100.0 * wrong / max(len(trusted), 1):.1f} %); {needless} needless warnings "
        f"({100.0 * needless / max(len(results), 1):.1f} %)"
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    warnings.filterwarnings("ignore", message="the step of")  # the truth is that of the same steps
    results = run(given.cases, given.seed)
    for r in results:
        if r["outcome"] == "wrong":
            print(f"{r['error']:+.3f} {r['verdict']} | {r['case']} | {r['seen']}")
    print(table(results))


if __name__ == "__main__":
    main()
