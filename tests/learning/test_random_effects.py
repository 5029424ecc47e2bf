"""Random intercepts and slopes of straight lines with Brownian motion: the marginal likelihood in closed form.

The state is x = a + b t + W with Var W(t) = Q t, observed with noise of variance R, and a ~ N(μ₀, τ₀²), b ~ N(μ₁, τ₁²).
The observations of a series are then normal: with Z = (1, t), mean Zμ and covariance
V = P₀ 11ᵀ + Q min(t, t') + R I + Z diag(τ²) Zᵀ.
"""

import numpy as np
import pytest
import scipy.optimize
from tolerances import TOLERANCES

import girsanov as gv

Q, P0 = 5e-3, 1e-3
NAMES = ["initial.mean", "drift.b"]


def lines() -> gv.Model:
    return gv.Model(gv.Linear([[0.0]], [0.0]), Q, gv.GaussianState(0.0, P0), gv.likelihoods.Gaussian(0.1))


def simulated() -> gv.Panel:
    """Lines with different intercepts and slopes, by NumPy: six to nine whole times each."""
    rng = np.random.default_rng(5)
    panel = {}
    for k in range(12):
        times = np.sort(rng.choice(np.arange(10.0), 6 + k % 4, replace=False))
        walk = np.cumsum(rng.normal(0.0, np.sqrt(Q), 10))[times.astype(int)]
        a, b = 2.0 + 0.7 * rng.normal(), 0.3 + 0.2 * rng.normal()
        panel[f"s{k}"] = gv.TimeSeries(times, a + b * times + walk + rng.normal(0.0, np.sqrt(0.1), len(times)))
    return gv.Panel(panel)


def sleep_study(data_dir) -> gv.Panel:
    path = data_dir / "real" / "sleepstudy.csv"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    panel = gv.Panel.from_csv(path, id="Subject", time="Days", values="Reaction")
    return gv.Panel({name: gv.TimeSeries(s.times, s.values / 100.0) for name, s in panel.items()})


def parts(series, R) -> tuple[np.ndarray, np.ndarray]:
    """Return Z and the covariance of a series whose intercept and slope are known."""
    t = series.times
    return np.column_stack([np.ones_like(t), t]), P0 + Q * np.minimum(t[:, None], t) + R * np.eye(len(t))


def log_likelihood(panel, x) -> float:
    """At x = (μ₀, μ₁, log τ₀², log τ₁², log R)."""
    total = 0.0
    for series in panel.values():
        Z, V = parts(series, np.exp(x[4]))
        V, e = V + (Z * np.exp(x[2:4])) @ Z.T, series.values[:, 0] - Z @ x[:2]
        total -= 0.5 * (e @ np.linalg.solve(V, e) + np.linalg.slogdet(2.0 * np.pi * V)[1])
    return total


def at_the_maximum(panel) -> np.ndarray:
    """Variances by the simplex method, inside of which the means follow by generalised least squares."""

    def means(logs):
        normal, right = np.zeros((2, 2)), np.zeros(2)
        for series in panel.values():
            Z, V = parts(series, np.exp(logs[2]))
            weighted = np.linalg.solve(V + (Z * np.exp(logs[:2])) @ Z.T, Z)
            normal, right = normal + Z.T @ weighted, right + weighted.T @ series.values[:, 0]
        return np.linalg.solve(normal, right)

    def fallen(logs):
        return -log_likelihood(panel, np.concatenate([means(logs), logs]))

    options = {"xatol": 1e-9, "fatol": 1e-11, "maxiter": 5000, "maxfev": 5000}
    logs = scipy.optimize.minimize(fallen, np.log([0.3, 0.03, 0.1]), method="Nelder-Mead", options=options).x
    return np.concatenate([means(logs), logs])


def predicted(panel, x) -> tuple[np.ndarray, np.ndarray]:
    """Return intercept and slope of every series given its data and the law, and their standard deviations."""
    values, errors = [], []
    for series in panel.values():
        Z, V = parts(series, np.exp(x[4]))
        T = np.diag(np.exp(x[2:4]))
        gain = T @ Z.T @ np.linalg.inv(V + Z @ T @ Z.T)
        values.append(x[:2] + gain @ (series.values[:, 0] - Z @ x[:2]))
        inverse = np.linalg.inv(T) + Z.T @ np.linalg.solve(V, Z)
        errors.append(np.sqrt(np.diagonal(np.linalg.inv(inverse))))
    return np.array(values), np.array(errors)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["simulated", "sleep study"])
def test_intercepts_and_slopes_have_the_exact_marginal_likelihood(where, request):
    panel = simulated() if where == "simulated" else sleep_study(request.getfixturevalue("data_dir"))
    spans = {name: (0.0, series.times[-1]) for name, series in panel.items()}
    options = {"trainable": ["likelihood.variance"], "random": NAMES, "tolerance": 1e-10, "progress": False}
    fit = gv.learn(lines(), panel, 1.0, spans, **options)
    assert fit.status == "converged"

    laws = [fit.effects[name] for name in NAMES]
    learnt = np.concatenate([law.mean for law in laws] + [np.log(law.variance) for law in laws])
    learnt = np.append(learnt, np.log(fit.parameters["likelihood.variance"]))
    assert abs(fit.elbo - log_likelihood(panel, learnt)) < TOLERANCES["optimum"]
    best = at_the_maximum(panel)
    assert abs(fit.elbo - log_likelihood(panel, best)) < TOLERANCES["optimum"]
    assert np.abs(learnt - best).max() < TOLERANCES["optimum_moments"]

    values, errors = predicted(panel, best)
    table = fit.table()
    assert list(table) == list(panel)
    for k, name in enumerate(NAMES):
        assert np.abs(fit.individual[name][:, 0] - values[:, k]).max() < TOLERANCES["optimum_moments"]
        assert np.abs(fit.individual_errors[name][:, 0] / errors[:, k] - 1.0).max() < TOLERANCES["optimum_moments"]
        left = [row[f"{name}[0] shrinkage"] for row in table.values()]
        assert np.abs(left - errors[:, k] ** 2 / np.exp(best[2 + k])).max() < TOLERANCES["optimum_moments"]
        assert [row[f"{name}[0]"] for row in table.values()] == fit.individual[name][:, 0].tolist()
        assert [row[f"{name}[0] error"] for row in table.values()] == fit.individual_errors[name][:, 0].tolist()
