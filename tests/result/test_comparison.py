"""`gv.compare`: scores against dense Gaussians, corrected evidence, and what cannot be compared."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from support import assert_close
from tolerances import TOLERANCES

import girsanov as gv
from girsanov.baselines import exact_smoother
from girsanov.result import comparison
from girsanov.result.leave_out import cut_indices, leave_future_out, leave_one_out

QUIET: dict[str, Any] = {"progress": False}
DT, SPAN = 0.05, (0.0, 6.0)
TIMES = 0.2 * np.arange(1, 31)


def ou(decay=1.0) -> gv.Model:
    return gv.Model(gv.OrnsteinUhlenbeck(decay, 0.3), 0.8, gv.GaussianState(0.2, 0.5), gv.likelihoods.Gaussian(0.1))


def plane() -> gv.Model:
    drift = gv.Linear([[-1.0, 0.5], [-0.4, -0.7]], [0.1, 0.2])
    noise = gv.likelihoods.Gaussian(np.array([[0.1, 0.03], [0.03, 0.2]]))
    return gv.Model(drift, [0.6, 0.9], gv.GaussianState([0.5, 0.0], 0.4), noise, [[1.0, 0.5], [0.0, 1.0]])


def data(model: gv.Model, missing: bool = True) -> gv.TimeSeries:
    y = np.array(gv.simulate(model, TIMES, key=jax.random.key(2), dt=DT, start=0.0).series.values)
    if missing:
        y[5], y[11, -1] = np.nan, np.nan
    return gv.TimeSeries(TIMES, y)


def law(model: gv.Model, post: gv.Posterior) -> tuple[np.ndarray, np.ndarray]:
    """Mean (n, D) and covariance (n, D, n, D) of all observations of a linear model with Euler's steps."""
    d, gaps = model.dim, np.diff(post.times)
    A = np.asarray(model.drift.A) if d > 1 else -np.array([[model.drift.decay]])
    b = np.asarray(model.drift.b) if d > 1 else np.array([model.drift.decay * model.drift.mean])
    m, P = [np.asarray(model.initial.mean)], [np.asarray(model.initial.cov)]
    steps = [np.eye(d) + gap * A for gap in gaps]
    for T, gap in zip(steps, gaps, strict=True):
        m.append(T @ m[-1] + gap * b)
        P.append(T @ P[-1] @ T.T + gap * np.asarray(model.diffusion))
    H, R = np.asarray(model.emission), np.asarray(model.likelihood.variance).reshape(model.data_dim, -1)
    n, D = post.series.values.shape
    cov = np.zeros((n, D, n, D))
    for i, first in enumerate(post.node):
        T = np.eye(d)
        for k, last in enumerate(post.node[i:], start=i):
            for step in steps[post.node[k - 1] if k > i else first : last]:
                T = step @ T
            cov[k, :, i] = H @ T @ P[first] @ H.T + (R if k == i else 0.0)
            cov[i, :, k] = cov[k, :, i].T
    return np.array([H @ m[node] for node in post.node]), cov


def conditional(mean, cov, y, target: np.ndarray, given: np.ndarray) -> float:
    """Return log p(y[target] | y[given]) for masks of the entries that are seen."""
    mu, V, y = mean.ravel(), cov.reshape(mean.size, mean.size), y.ravel()
    gain = V[np.ix_(target, given)] @ np.linalg.inv(V[np.ix_(given, given)])
    e = y[target] - mu[target] - gain @ (y[given] - mu[given])
    S = V[np.ix_(target, target)] - gain @ V[np.ix_(given, target)]
    return float(-0.5 * (e @ np.linalg.solve(S, e) + np.linalg.slogdet(2.0 * np.pi * S)[1]))


@pytest.mark.parametrize("model", [ou(), plane()], ids=["one dimension", "two outputs"])
def test_scores_of_linear_models_are_those_of_dense_gaussians(model):
    series = data(model)
    post = gv.infer(model, series, dt=DT, span=SPAN, method=gv.CVIDP(tolerance=1e-10), **QUIET)
    mean, cov = law(model, post)
    seen, rows = series.observed, np.broadcast_to(np.arange(30)[:, None], series.observed.shape)

    def score(i: int, given: np.ndarray) -> float:
        return conditional(mean, cov, series.values, (seen & (rows == i)).ravel(), (seen & given).ravel())

    each = np.flatnonzero(seen.any(1))
    assert_close(leave_one_out(post), np.array([score(i, rows != i) for i in each]), "optimum", size=1.0)
    ahead = leave_future_out(post, 10)
    assert ahead.converged.all() and 5 not in ahead.index and len(ahead.index) == 10 and ahead.index[-1] == 29
    assert_close(ahead.scores, np.array([score(i, rows < i) for i in ahead.index]), "optimum", size=1.0)


@pytest.mark.slow
def test_scores_in_continuous_time_are_those_of_short_steps():
    fine = gv.infer(ou(), data(ou()), dt=0.0025, span=SPAN, **QUIET)
    post = gv.infer(ou(), data(ou()), dt=0.1, span=SPAN, method=gv.CVIDP(time="continuous"), **QUIET)
    assert np.abs(leave_one_out(post) - leave_one_out(fine)).max() < TOLERANCES["bridge"]
    assert np.abs(leave_future_out(post, 5).scores - leave_future_out(fine, 5).scores).max() < TOLERANCES["bridge"]


@pytest.fixture(scope="module")
def posts() -> dict[str, gv.Posterior]:
    series = data(ou())
    return {f"decay {k:g}": gv.infer(ou(k), series, dt=DT, span=SPAN, **QUIET) for k in (8.0, 1.0)}


def test_models_are_ranked_and_differences_have_their_errors(posts):
    found = gv.compare(posts, cuts=6, **QUIET)
    assert list(found.rows) == ["decay 1", "decay 8"]
    first, last = found.rows.values()
    assert (first.evidence_behind, first.loo_behind) == (0.0, 0.0) and first.evidence_kind == "bound"
    assert last.evidence_behind == posts["decay 1"].elbo - posts["decay 8"].elbo
    apart = found.loo_values["decay 1"] - found.loo_values["decay 8"]
    assert_close(last.loo_behind, apart.sum(), "exact")
    assert_close(last.loo_behind_error, np.sqrt(28 * np.var(apart, ddof=1)), "exact")
    assert len(found.lfo_times) == 6 and found.lfo_times[-1] == TIMES[-1]
    assert_close(first.lfo, leave_future_out(posts["decay 1"], 6).scores.sum(), "optimum", size=1.0)
    assert found.to_dict()["decay 8"]["loo"] == last.loo
    lines = repr(found).splitlines()
    assert "LOO (28)" in lines[0] and "LFO (6)" in lines[0] and lines[1].startswith("decay 1 ") and len(lines) == 3


def test_a_fit_compares_itself(posts):
    fit = gv.learn(ou(), data(ou()), DT, SPAN, trainable="drift.decay", check=False, **QUIET)
    found = fit.compare([posts["decay 8"]], cuts=2, **QUIET)
    assert list(found.rows) == ["fit 0", "fit 1"]
    assert str(found.rows["fit 0"]) == str(gv.compare({"a": fit, "b": posts["decay 8"]}, cuts=2, **QUIET).rows["a"])
    assert set(fit.compare({"fast": posts["decay 8"]}, cuts=2, **QUIET).rows) == {"this", "fast"}


@pytest.mark.slow
def test_the_evidence_is_corrected_where_it_can_be():
    model = gv.Model(gv.DoubleWell(1.0, 1.0), 1.0, gv.GaussianState(-1.0, 0.1), gv.likelihoods.Gaussian(0.04))
    series = data(model, missing=False)
    wells, linear = (gv.infer(m, series, dt=DT, span=SPAN, **QUIET) for m in (model, ou()))
    found = gv.compare({"wells": wells, "linear": linear}, key=jax.random.key(0), **QUIET)
    exact = exact_smoother(model, series, DT, SPAN).log_evidence
    row = found.rows["wells"]
    assert row.evidence_kind == "corrected"
    assert abs(row.evidence - exact) < TOLERANCES["standard_errors"] * row.evidence_error + 1e-3
    assert abs(row.evidence - exact) < abs(wells.elbo - exact)


def test_what_cannot_be_compared(posts):
    post = posts["decay 1"]
    other = gv.infer(ou(), data(ou(), missing=False), dt=DT, span=SPAN, **QUIET)
    with pytest.raises(ValueError, match="'a' and 'b' are fits of different series: their values differ"):
        gv.compare({"a": post, "b": other})
    with pytest.raises(ValueError, match=r"'b' must be a result of gv\.learn or gv\.infer, got float"):
        gv.compare({"a": post, "b": 1.0})
    with pytest.raises(ValueError, match="give a dictionary of fits by name"):
        gv.compare({})
    with pytest.raises(ValueError, match="cuts"):
        gv.compare({"a": post}, cuts=0)


def test_where_diagnose_trusts_nothing_the_bound_stays_and_is_marked(posts, monkeypatch):
    post = posts["decay 1"]
    judged = post.diagnose(key=jax.random.key(0), n=100)
    monkeypatch.setattr(
        gv.Posterior, "diagnose", lambda self, key: dataclasses.replace(judged, verdict="use particles")
    )
    found = gv.compare(posts, key=jax.random.key(0), cuts=1, **QUIET)
    assert {row.evidence_kind for row in found.rows.values()} == {"bound"}
    assert "decay 1: the evidence is the bound, since diagnose says 'use particles'" in repr(found)


def test_ctrl_c_keeps_the_models_that_are_done(posts, monkeypatch):
    real = comparison.leave_one_out

    def interrupted(post):
        if post is posts["decay 1"]:
            raise KeyboardInterrupt
        return real(post)

    monkeypatch.setattr(comparison, "leave_one_out", interrupted)
    with pytest.raises(KeyboardInterrupt) as stopped:
        gv.compare(posts, cuts=1, **QUIET)
    assert list(stopped.value.kept.rows) == ["decay 8"]


def test_cuts_are_observations_with_a_value():
    series = data(ou())
    assert cut_indices(series, 100).tolist() == [i for i in range(8, 30) if i != 11]
    assert cut_indices(series, 1).tolist() == [8]
    assert len(cut_indices(gv.TimeSeries([1.0], [0.5]), 10)) == 0


def test_names_that_are_no_texts_become_texts():
    series = data(ou())
    post = gv.infer(ou(), series, 0.2, SPAN, progress=False)
    got = gv.compare({1: post, 2.5: post}, cuts=2, progress=False)
    assert set(got.rows) == {"1", "2.5"}
    with pytest.raises(ValueError, match="two fits are called '1'"):
        gv.compare({1: post, "1": post}, cuts=2, progress=False)
    with pytest.raises(ValueError, match=r"'7' must be a result of gv.learn or gv.infer, got int"):
        gv.compare({7: 3}, progress=False)
