"""Theophylline in twelve subjects: `gv.learn` with random effects against a mixed-effects fit of the same equation.

    python -m benchmarks.pharmacokinetics [--data DIR]

One compartment with first-order absorption, concentrations divided by the dose, ka and Cl log-normal over the subjects:

    dc = (r(t) − ke c) dt,  r(t) = ka ke / Cl · exp(−ka t),  y = c + noise of standard deviation τ.

The reference fits this ordinary differential equation, which has a closed form, by maximum likelihood: the effects are
integrated out by Gauss–Hermite quadrature about the mode of every subject (81 nodes). The variance of its errors is
τ² + (ρ c)²; what it finds with ρ = 0 is said too. It uses NumPy and SciPy only.

The stochastic equation lets the rate of absorption fluctuate. Of a dose of 1 the share g = exp(−ka t)(1 + w) is still
in the gut, where w is a Brownian motion, and b is the drug in gut and body together, as a concentration; absorption
does not change b:

    dw = s dβ,  db = −ke (b − g ke / Cl) dt + 0.01 dβ',  y = b − g ke / Cl + noise.

It is learnt in a process of its own, timed from its start. At s = 0 it is the ordinary equation.

Held out is one subject after the other. Both models are fitted to the others by BFGS from their fit to all, on the
likelihood in which the effects are integrated out over their law by the same trapezoidal rule on 37 × 37 nodes: of
independent errors about the curve, or by a Kalman filter on the nodes of the grid, which is exact for this model. The
density of the subject's data is the same integral.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize
from rich.console import Console
from rich.table import Table

_OWN = 0.01  # noise of b per root of an hour
_START_W, _START_B = 0.01, 0.02  # standard deviations of w and b at the dose
_REACH, _NODES = 4.5, 37  # of the rule for the effects, in standard deviations
EQUATIONS = f"""
[states.w]
drift = "0"
noise = "s"
start_sd = {_START_W}

[states.b]
drift = "-ke * (b - (1 + w) * exp(-ka * t) * ke / Cl)"
noise = {_OWN}
start = "ke / Cl"
start_sd = {_START_B}

[outputs.concentration]
measures = "b - (1 + w) * exp(-ka * t) * ke / Cl"
distribution = "gaussian"
sd = "tau"

[parameters]
ka = {{start = 1.5, low = 0, unit = "1/h"}}
ke = {{start = 0.09, low = 0, unit = "1/h"}}
Cl = {{start = 0.04, low = 0, unit = "L/h/kg"}}
s = {{start = 0.6, low = 0}}
tau = {{start = 0.1, low = 0}}
"""


class Law(NamedTuple):
    """A population: medians of ka and Cl, standard deviations of their logarithms, ke, τ, ρ, and s of the SDE."""

    ka: float
    ke: float
    Cl: float
    sd_ka: float
    sd_Cl: float
    tau: float
    rho: float = 0.0
    s: float = 0.0


class Subject(NamedTuple):
    times: np.ndarray  # hours
    values: np.ndarray  # mg/L for a dose of 1 mg/kg


def read(data: Path) -> dict[str, Subject]:
    """Return the times and the concentrations for a dose of 1 mg/kg of all subjects."""
    rows = np.genfromtxt(data / "real" / "Theoph.csv", delimiter=",", names=True)
    subjects = {}
    for k in np.unique(rows["Subject"]):
        own = rows[rows["Subject"] == k]
        subjects[str(int(k))] = Subject(own["Time"], own["conc"] / own["Dose"])
    return subjects


def nodes(subject: Subject) -> np.ndarray:
    """Return a grid: steps of three minutes for four hours, then of a quarter of an hour, and the times of samples."""
    regular = np.concatenate([np.arange(0.0, 4.0, 0.05), np.arange(4.0, subject.times[-1], 0.25)])
    return np.unique(np.round(np.concatenate([regular, subject.times]), 6))


# The reference: the ordinary differential equation.


def curve(ka: Any, ke: float, Cl: Any, t: np.ndarray) -> np.ndarray:
    """c(t) = ka ke / (Cl (ka − ke)) · (exp(−ke t) − exp(−ka t))."""
    return ke * ka / (Cl * (ka - ke)) * (np.exp(-ke * t) - np.exp(-ka * t))


def log_density(law: Law, subject: Subject, ka: np.ndarray, Cl: np.ndarray) -> np.ndarray:
    """log p(y | ka, Cl) of independent errors with the variance τ² + (ρ c)², for many ka and Cl."""
    c = curve(ka[:, None], law.ke, Cl[:, None], subject.times)
    variance = law.tau**2 + (law.rho * c) ** 2
    return -0.5 * np.sum((subject.values - c) ** 2 / variance + np.log(2.0 * np.pi * variance), axis=1)


def log_marginal(law: Law, subject: Subject, order: int = 9) -> float:
    """log ∫ p(y | e) N(e; 0, I) de, where e are the effects in units of their standard deviations."""
    t, y = subject

    def residuals(e: np.ndarray) -> np.ndarray:
        c = curve(law.ka * np.exp(law.sd_ka * e[0]), law.ke, law.Cl * np.exp(law.sd_Cl * e[1]), t)
        return np.concatenate([(y - c) / np.sqrt(law.tau**2 + (law.rho * c) ** 2), e])

    middle = scipy.optimize.least_squares(residuals, np.zeros(2))  # about which the nodes are laid
    root = np.linalg.cholesky(np.linalg.inv(middle.jac.T @ middle.jac))
    x, w = np.polynomial.hermite_e.hermegauss(order)
    z, weights = np.stack(np.meshgrid(x, x), -1).reshape(-1, 2), np.outer(w, w).ravel() / (2.0 * np.pi)
    e = middle.x + z @ root.T
    logs = log_density(law, subject, law.ka * np.exp(law.sd_ka * e[:, 0]), law.Cl * np.exp(law.sd_Cl * e[:, 1]))
    logs += 0.5 * np.sum(z**2 - e**2, 1) + np.linalg.slogdet(root)[1]
    return float(np.log(np.sum(weights * np.exp(logs - logs.max()))) + logs.max())


def reference(subjects: dict[str, Subject], start: Law, fields: int = 7) -> tuple[Law, float]:
    """Return the law of the ordinary equation with the largest likelihood, and that; 6 fields are without ρ."""

    def fallen(logs: np.ndarray) -> float:
        return -sum(log_marginal(Law(*np.exp(logs)), subject) for subject in subjects.values())

    best = scipy.optimize.minimize(fallen, np.log(start[:fields]), method="BFGS", options={"gtol": 1e-2})
    return Law(*np.exp(best.x)), -float(best.fun)


# The stochastic equation.


def learn(subjects: dict[str, Subject], start: Law | None = None) -> tuple[Law, Any]:
    """Return the law of the stochastic equation and the fit."""
    import girsanov as gv

    given = {} if start is None else {name: getattr(start, name) for name in ("ka", "ke", "Cl", "s", "tau")}
    model = gv.Model.from_equations(EQUATIONS, **given)
    panel = gv.Panel({name: gv.TimeSeries(s.times, s.values) for name, s in subjects.items()})
    grid = {name: nodes(s) for name, s in subjects.items()}
    options = {"trainable": ["ke", "s", "tau"], "random": ["ka", "Cl"], "progress": False}
    fit = gv.learn(model, panel, grid=grid, **options)
    shared, effects = fit.parameters, fit.effects
    ka, Cl = effects["ka"], effects["Cl"]
    numbers = (np.exp(ka.mean), shared["ke"], np.exp(Cl.mean), np.sqrt(ka.variance), np.sqrt(Cl.variance))
    return Law(*(float(np.ravel(v)[0]) for v in (*numbers, shared["tau"], 0.0, shared["s"]))), fit


def filtered(law: Law, subject: Subject, ka: np.ndarray, Cl: np.ndarray) -> np.ndarray:
    """Return log p(y | ka, Cl) for many ka and Cl, by a Kalman filter of (w, b) with Euler steps on the grid."""
    times, V = nodes(subject), Cl / law.ke
    w, b, total, n = np.zeros_like(ka), 1.0 / V, np.zeros_like(ka), 0
    ww, wb, bb = np.full_like(ka, _START_W**2), np.zeros_like(ka), np.full_like(ka, _START_B**2)
    for m, t in enumerate(times):
        r = np.exp(-ka * t) / V  # y = b − r (1 + w) + noise
        if abs(t - subject.times[n]) < 1e-5:
            e = subject.values[n] - b + r * (1.0 + w)
            cw, cb = wb - r * ww, bb - r * wb
            v = cb - r * cw + law.tau**2
            total -= 0.5 * (e**2 / v + np.log(2.0 * np.pi * v))
            w, b = w + cw * e / v, b + cb * e / v
            ww, wb, bb = ww - cw * cw / v, wb - cw * cb / v, bb - cb * cb / v
            n += 1
        if n == len(subject.times):
            break
        dt = times[m + 1] - t
        a, k = dt * law.ke * r, 1.0 - dt * law.ke  # b ← k b + a (1 + w)
        b = k * b + a * (1.0 + w)
        ww, wb, bb = ww, k * wb + a * ww, k * k * bb + 2.0 * k * a * wb + a * a * ww
        ww, bb = ww + law.s**2 * dt, bb + _OWN**2 * dt
    return total


# Held-out subjects.


def marginal(law: Law, subject: Subject) -> float:
    """Return the log density of a subject's data under a population."""
    x = np.linspace(-_REACH, _REACH, _NODES)
    weight = np.exp(-0.5 * x**2) / np.sum(np.exp(-0.5 * x**2))
    a, b = (e.ravel() for e in np.meshgrid(x, x))
    ka, Cl = law.ka * np.exp(law.sd_ka * a), law.Cl * np.exp(law.sd_Cl * b)
    logs = filtered(law, subject, ka, Cl) if law.s > 0.0 else log_density(law, subject, ka, Cl)
    return float(np.log(np.sum(np.outer(weight, weight).ravel() * np.exp(logs - logs.max()))) + logs.max())


def derivatives(law: Law, subject: Subject, h: float = 0.02) -> tuple[np.ndarray, np.ndarray]:
    """Return gradient and Hessian of `marginal` in the logarithms of the numbers that are not zero."""
    free = [i for i, v in enumerate(law) if v > 0.0]

    def at(*moves: tuple[int, float]) -> float:
        logs = np.zeros(len(law))
        for i, size in moves:
            logs[free[i]] += size
        return marginal(Law(*(np.array(law) * np.exp(logs))), subject)

    n, here = len(free), at()
    ends = np.array([[at((i, h)), at((i, -h))] for i in range(n)])
    H = np.diag((ends.sum(1) - 2.0 * here) / h**2)
    for i in range(n):
        for j in range(i):
            corners = at((i, h), (j, h)) - at((i, h), (j, -h)) - at((i, -h), (j, h)) + at((i, -h), (j, -h))
            H[i, j] = H[j, i] = corners / (4.0 * h * h)
    return (ends[:, 0] - ends[:, 1]) / (2.0 * h), H


def leave_one_out(law: Law, subjects: dict[str, Subject]) -> tuple[np.ndarray, float]:
    """Return the log densities of the held-out subjects, and the sum of those at the fit to all."""
    curvature = sum(derivatives(law, subject)[1] for subject in subjects.values())
    free, logs = np.array(law) > 0.0, []
    guess = np.linalg.inv(-curvature)
    guess = 0.5 * (guess + guess.T)

    def moved(x: np.ndarray) -> Law:
        logarithms = np.zeros(len(law))
        logarithms[free] = x
        return Law(*(np.array(law) * np.exp(logarithms)))

    for name, subject in subjects.items():
        others = [s for k, s in subjects.items() if k != name]
        options = {"gtol": 0.05, "hess_inv0": guess}
        best = scipy.optimize.minimize(
            lambda x, others=others: -sum(marginal(moved(x), s) for s in others),
            np.zeros(free.sum()),
            method="BFGS",
            options=options,
        )
        if not np.abs(best.jac).max() < 0.5:
            raise RuntimeError(f"the fit without subject {name} has not converged: {best.message}")
        logs.append(marginal(moved(best.x), subject))
    return np.array(logs), sum(marginal(law, subject) for subject in subjects.values())


def one_process(data: Path) -> dict[str, Any]:
    law, fit = learn(read(data))
    cpu = time.process_time()
    return {"law": law, "status": fit.status, "elbo": fit.elbo, "cpu": cpu, "evaluations": int(fit.history.e_steps[-1])}


def main(argv: list[str] | None = None) -> int:
    from benchmarks.measure import fresh_process
    from benchmarks.run import find_data

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="folder with real/Theoph.csv (default: ../shared/data)"
    )
    options = parser.parse_args(argv)
    data, console = find_data(options.data), Console(width=130)
    if data is None or not (data / "real" / "Theoph.csv").is_file():
        console.print("real/Theoph.csv is not there: use --data DIR")
        return 0
    subjects = read(data)
    additive, lower = reference(subjects, Law(1.5, 0.08, 0.04, 0.6, 0.2, 0.15), 6)
    ode, likelihood = reference(subjects, additive._replace(tau=0.1, rho=0.1))
    console.print(f"ordinary equation, additive error: ka {additive.ka:.4g}, log likelihood {lower:.2f}")
    begun = time.perf_counter()
    found = fresh_process("benchmarks.pharmacokinetics", "--one", data)
    seconds, sde = time.perf_counter() - begun, Law(*found["law"])
    table = Table(title="theophylline: population parameters", title_justify="left")
    for heading in ("parameter", "ordinary equation", "stochastic equation", "difference"):
        table.add_column(heading, justify="left" if heading == "parameter" else "right")
    for name, a, b in zip(Law._fields, ode, sde, strict=True):
        apart = f"{100 * (b / a - 1):+.1f} %" if a else ""
        table.add_row(name, f"{a:.4g}" if a else "–", f"{b:.4g}", apart)
    console.print(table)
    console.print(f"log likelihood: ordinary {likelihood:.2f}, stochastic (marginal bound) {found['elbo']:.2f}")
    console.print(
        f"learn: {found['status']}, {seconds:.1f} s from process start, {found['cpu']:.1f} s of processor time, "
        f"{found['evaluations']} evaluations of the panel (aim: under 60 s)"
    )
    (ordinary, below), (stochastic, above) = (leave_one_out(law, subjects) for law in (ode, sde))
    console.print(f"exact log likelihoods at these values: ordinary {below:.2f}, stochastic {above:.2f}")
    gain, count = stochastic - ordinary, sum(len(s.times) for s in subjects.values())
    for name, one, other in zip(subjects, ordinary, stochastic, strict=True):
        console.print(f"without subject {name}: ordinary {one:.2f}, stochastic {other:.2f} nats")
    nlpd = f"ordinary {-ordinary.sum() / count:.4f}, stochastic {-stochastic.sum() / count:.4f}"
    console.print(f"held-out NLPD an observation: {nlpd}")
    error = gain.std(ddof=1) * np.sqrt(len(gain))
    console.print(f"gain {gain.sum():.1f} ± {error:.1f} nats, better in {(gain > 0).sum()} of {len(gain)} subjects")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(one_process(Path(sys.argv[2]))))
    else:
        sys.exit(main())
