"""Panels with individual and with random initial states: coverage of the intervals, the variance learnt, shrinkage.

    python -m benchmarks.panel_coverage [--panels 20] [--study individual random]

Every panel has 30 series of 60 observations of dx = (b + A x) dt + L dβ with noise. Drift, Q and R are shared, and
every series starts at a mean m_i of its own, drawn from N(μ, τ²). The panels are simulated on the grid on which they
are learnt, and learning starts from values that are off by a factor. An interval is the estimate ± 1.96 standard
errors, of the logarithm where the parameter is positive.

*individual* learns all m_i as free parameters. Maximum likelihood then has a bias that more series do not remove. With
z = ∂E y/∂m, the covariance V of one series and P = V⁻¹ − V⁻¹z zᵀV⁻¹/(zᵀV⁻¹z), the score of the profile in θ has the
mean −½ zᵀV⁻¹ ∂V V⁻¹z/(zᵀV⁻¹z) in place of 0, and its information is ½ tr(P ∂V P ∂V') + ∂μᵀP ∂μ'. The averages of the
estimates are therefore compared with the truth plus this bias, to first order, which is "expected"; the intervals are
compared with the truth, since that is what a user wants of them.

*random* learns μ and τ². With s² the squared standard error of one m_i from its own series, the m̂_i of balanced series
have the variance τ² + s², of which maximum likelihood finds (S − 1)/S on average, since it measures the spread about
the mean of the S series themselves. So its τ̂² is τ² − (τ² + s²)/S on average, and that is what the average over the
panels is compared with; the bias itself, that of every variance by maximum likelihood, is printed beside it. The truth
itself is what shrunken and separate m_i are compared with: separate ones come from each series alone at the same shared
parameters.
"""

import argparse
import sys
import time
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

import girsanov as gv

_Z = 1.959963984540054
_SERIES, _N, _DT = 30, 60, 0.1
_A, _B, _Q, _R, _P0 = -0.8, 0.4, 0.5, 0.1, 0.05
_MEAN, _VARIANCE = 0.5, 0.6
_OFF = 1.5  # factor between the start of learning and the truth
_SPAN = (0.0, _N * _DT)
_SHARED = ["drift", "diffusion", "likelihood.variance"]
_TRUTH = {"drift.A[0, 0]": _A, "drift.b[0]": _B, "diffusion": _Q, "likelihood.variance": _R}
_EFFECT = {"mean(initial.mean)[0]": _MEAN, "variance(initial.mean)[0]": _VARIANCE}
_REAL = ("drift.A[0, 0]", "drift.b[0]", "mean(initial.mean)[0]")


def make_panel(seed: int) -> tuple[gv.Panel, np.ndarray]:
    """Return a panel by Euler–Maruyama, and the means of the initial states."""
    rng = np.random.default_rng(seed)
    means = _MEAN + np.sqrt(_VARIANCE) * rng.normal(size=_SERIES)
    x = means + np.sqrt(_P0) * rng.normal(size=_SERIES)
    path = []
    for _ in range(_N):
        x = x + _DT * (_B + _A * x) + np.sqrt(_DT * _Q) * rng.normal(size=_SERIES)
        path.append(x)
    y = np.array(path) + np.sqrt(_R) * rng.normal(size=(_N, _SERIES))
    times = _DT * np.arange(1, _N + 1)
    return gv.Panel([gv.TimeSeries(times, y[:, i]) for i in range(_SERIES)]), means


def guess() -> gv.Model:
    drift = gv.Linear([[_A * _OFF]], [_B * _OFF])
    return gv.Model(drift, _Q * _OFF, gv.GaussianState(0.0, _P0), gv.likelihoods.Gaussian(_R / _OFF))


def bias() -> np.ndarray:
    """Return the bias of (A, b, Q, R) by maximum likelihood with free initial means, to first order in 1/n."""
    k = np.arange(1, _N + 1)

    def law(A: float, b: float, Q: float, R: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return ∂E y/∂m, the rest of E y, and the covariance of y."""
        a = 1.0 + _DT * A
        lag = k[:, None] - k
        response = np.where(lag >= 0, a ** np.maximum(lag, 0.0), 0.0)  # of x_i to the noise of the step to x_j
        z = a**k
        V = _DT * Q * response @ response.T + _P0 * np.outer(z, z) + R * np.eye(_N)
        return z, _DT * b * response.sum(1), V

    theta = np.array([_A, _B, _Q, _R])
    ends = [[law(*(theta + s * 1e-5 * e)) for s in (1.0, -1.0)] for e in np.eye(4)]
    dz, dmu, dV = ([(plus[j] - minus[j]) / 2e-5 for plus, minus in ends] for j in range(3))
    z, _, V = law(*theta)
    Vz = np.linalg.solve(V, z)
    P = np.linalg.inv(V) - np.outer(Vz, Vz) / (z @ Vz)
    score = np.array([-0.5 * Vz @ d @ Vz / (z @ Vz) for d in dV])
    means = [(u + _MEAN * v, np.sqrt(_VARIANCE) * v) for u, v in zip(dmu, dz, strict=True)]  # averages over m
    known = [
        [
            0.5 * np.trace(P @ dV[i] @ P @ dV[j]) + sum(u @ P @ v for u, v in zip(means[i], means[j], strict=True))
            for j in range(4)
        ]
        for i in range(4)
    ]
    return np.linalg.solve(np.array(known), score)


class Outcome(NamedTuple):
    """Of one panel: estimates and standard errors of the shared numbers, and those of the initial means."""

    estimates: dict[str, float]
    errors: dict[str, float]
    own: np.ndarray
    own_errors: np.ndarray
    status: str


def outcome(fit: Any) -> Outcome:
    values = {}
    for path, value in fit.parameters.items():
        if path.startswith(("drift", "mean(", "variance(")):
            values |= {path + str(list(index)): float(value[index]) for index in np.ndindex(value.shape)}
        else:
            values[path] = float(np.ravel(value)[0])
    own, errors = (part["initial.mean"][:, 0] for part in (fit.individual, fit.individual_errors))
    return Outcome(values, fit.standard_errors or {}, own, errors, fit.status)


def inside(result: Outcome, name: str, truth: float) -> bool:
    """Return whether the interval of a number holds the truth; without a standard error it does not."""
    estimate, error = result.estimates[name], result.errors.get(name, np.nan)
    if name not in _REAL:  # the delta method on the logarithm
        estimate, error, truth = np.log(estimate), error / estimate, np.log(truth)
    return bool(abs(estimate - truth) <= _Z * error)


def table_of(
    results: list[Outcome], truths: dict[str, float], title: str, biases: np.ndarray | None = None
) -> tuple[Table, int, int]:
    """Return a table of estimates beside what to expect of them, and how many intervals of all hold the truth."""
    table, expected = Table(title=title, title_justify="left"), np.array(list(truths.values()))
    expected = expected if biases is None else expected + biases
    for name in ("parameter", "truth", "expected", "mean", "sd", "median std. error", "off, std. errors", "covered"):
        table.add_column(name, justify="left" if name == "parameter" else "right", no_wrap=True)
    hits = 0
    for (name, truth), value in zip(truths.items(), expected, strict=True):
        estimates = np.array([r.estimates[name] for r in results])
        errors = np.array([r.errors.get(name, np.nan) for r in results])
        covered = sum(inside(r, name, truth) for r in results)
        hits += covered
        figures = (value, estimates.mean(), estimates.std(ddof=1), np.nanmedian(errors))
        off = (estimates.mean() - value) / (estimates.std(ddof=1) / np.sqrt(len(results)))
        cells = (*(f"{v:.4f}" for v in figures), f"{off:+.2f}", f"{covered} of {len(results)}")
        table.add_row(name, f"{truth:g}", *cells)
    return table, hits, len(results) * len(truths)


def study_individual(count: int, console: Console) -> None:
    """Free initial means: coverage."""
    results, truths = [], []
    for seed in range(count):
        panel, means = make_panel(seed)
        fit = gv.learn(guess(), panel, _DT, _SPAN, trainable=_SHARED, individual=["initial.mean"], progress=False)
        results.append(outcome(fit))
        truths.append(means)
    table, hits, total = table_of(results, _TRUTH, f"{count} panels, individual initial means", bias())
    console.print(table)
    say_statuses(results, console)
    own = sum(int((np.abs(r.own - m) <= _Z * r.own_errors).sum()) for r, m in zip(results, truths, strict=True))
    members = count * _SERIES
    console.print(f"shared parameters: {hits} of {total} covered, {100 * hits / total:.1f} %")
    console.print(f"initial means: {own} of {members} covered, {100 * own / members:.1f} %")
    share = 100 * (hits + own) / (total + members)
    console.print(f"all: {share:.1f} % (aim: 90 to 99 %)\n")


def study_random(count: int, console: Console) -> None:
    """A normal law of the initial means: its variance, and shrinkage."""
    results, truths, separate, expected = [], [], [], []
    for seed in range(count):
        panel, means = make_panel(seed)
        fit = gv.learn(guess(), panel, _DT, _SPAN, trainable=_SHARED, random=["initial.mean"], progress=False)
        alone = gv.learn(fit.model, panel, _DT, _SPAN, trainable=[], individual=["initial.mean"], progress=False)
        results.append(outcome(fit))
        truths.append(means)
        separate.append(alone.individual["initial.mean"][:, 0])
        s2 = np.mean(alone.individual_errors["initial.mean"] ** 2)
        expected.append(_VARIANCE - (_VARIANCE + s2) / _SERIES)
    table, hits, total = table_of(results, _TRUTH | _EFFECT, f"{count} panels, random initial means")
    console.print(table)
    say_statuses(results, console)
    console.print(f"shared parameters and law: {hits} of {total} covered, {100 * hits / total:.1f} %")
    found = np.array([r.estimates["variance(initial.mean)[0]"] for r in results])
    error = found.std(ddof=1) / np.sqrt(count)
    for what, value in (("expectation of maximum likelihood", np.mean(expected)), ("truth", _VARIANCE)):
        away = (found.mean() - value) / error
        console.print(
            f"variance of the law: {found.mean():.4f} ± {error:.4f}, {what} {value:.4f}: {away:+.2f} std. errors"
        )
    shrunken = np.sqrt(np.mean([(r.own - m) ** 2 for r, m in zip(results, truths, strict=True)]))
    free = np.sqrt(np.mean([(s - m) ** 2 for s, m in zip(separate, truths, strict=True)]))
    better = sum(
        ((r.own - m) ** 2).sum() < ((s - m) ** 2).sum() for r, s, m in zip(results, separate, truths, strict=True)
    )
    console.print(
        f"initial means, distance from the truth: shrunken {shrunken:.4f}, separate {free:.4f}; "
        f"shrunken ones are closer in {better} of {count} panels"
    )


def say_statuses(results: list[Outcome], console: Console) -> None:
    statuses = [r.status for r in results]
    console.print(", ".join(f"{statuses.count(s)} {s}" for s in sorted(set(statuses))))


STUDIES = {"individual": study_individual, "random": study_random}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--panels", type=int, default=20, help="number of simulated panels")
    parser.add_argument("--study", nargs="+", default=list(STUDIES), choices=list(STUDIES))
    options = parser.parse_args(argv)
    console = Console()
    console = console if console.is_terminal else Console(width=130)
    for study in options.study:
        begun = time.perf_counter()
        STUDIES[study](options.panels, console)
        console.print(f"{time.perf_counter() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
