"""The oracles of `make fuzz` against dense algebra, and a fixed slice of its cases."""

import numpy as np
import pytest
from scipy.linalg import expm
from support import assert_close, condition, linear_joint, split_dense
from tolerances import TOLERANCES

from fuzz import extended, linear
from fuzz.cases import Outcome


def small_chain(rng, d=2, D=2, N=9):
    times = np.sort(rng.uniform(0, 2, N))
    A, b = rng.normal(size=(d, d)) - np.eye(d), rng.normal(size=d)
    G, B = rng.normal(size=(d, d)), rng.normal(size=(d, d))
    Q, P0 = G @ G.T + np.eye(d), B @ B.T + np.eye(d)
    H, R = rng.normal(size=(D, d)), np.diag(rng.uniform(0.1, 1, D)) + 0.05
    node = np.array([1, 2, 5, N - 1])
    y = rng.normal(size=(4, D))
    y[1, 0] = np.nan
    y[2] = np.nan
    return A, b, Q, rng.normal(size=d), P0, H, R, times, node, y


def dense_precision(A, b, Q, m0, P0, H, R, times, node, y):
    N, d = len(times), len(A)
    prior = linear_joint([A] * (N - 1), [b] * (N - 1), Q, m0, P0, times)
    mean, cov, evidence = condition(*prior, H, R, node, y)
    return mean, cov, evidence, d


def test_extended_precision_smoother_equals_dense_conditioning():
    chain = small_chain(np.random.default_rng(3))
    got = extended.smoother(*chain)
    mean, cov, evidence, d = dense_precision(*chain)
    m, S, C = split_dense(mean, cov, d)
    assert_close(got.mean, m, "exact")
    assert_close(got.std, np.sqrt(np.diagonal(S, axis1=1, axis2=2)), "exact")
    assert_close(got.lag, C, "exact")
    assert_close(got.evidence, evidence, "exact")


def test_condition_is_a_lower_estimate_within_its_bound():
    chain = small_chain(np.random.default_rng(4))
    got = extended.smoother(*chain)
    _, cov, _, d = dense_precision(*chain)
    precision = np.linalg.inv(cov)
    sd = np.sqrt(np.diag(precision))
    kappa = np.linalg.cond(precision / np.outer(sd, sd))
    assert got.condition <= kappa <= 2 * d * len(cov) * got.condition


def test_extended_precision_smoother_has_digits_to_spare(monkeypatch):
    """The same to 14 digits with twice the bits, on a model that float64 cannot solve."""
    case = next(c for c in (linear.generate(1, i) for i in range(200)) if len(c.A) == 4 and c.R.min() < 1e-8)
    grid = linear.own_grid(case)
    once = linear.oracle(case, grid)
    monkeypatch.setattr(extended, "BITS", 2 * extended.BITS)
    twice = linear.oracle(case, grid)
    for name in ("mean", "std", "lag", "evidence", "condition"):
        np.testing.assert_allclose(getattr(once, name), getattr(twice, name), rtol=TOLERANCES["exact"], err_msg=name)
    assert (np.abs(once.tail) <= np.abs(np.spacing(once.mean))).all()


def test_transitions_of_the_sde():
    A, b, Q, *_ = small_chain(np.random.default_rng(5))
    F, c, W = extended.exact_steps(A, b, Q, np.array([0.0, 0.7]))[0]
    s = np.linspace(0, 0.7, 2001)
    E = np.array([expm(A * v) for v in s])
    weights = np.full(len(s), 0.7 / 2000)
    weights[[0, -1]] /= 2
    assert_close(extended._floats(F), E[-1], "exact")
    assert_close(extended._floats(c)[:, 0], np.einsum("n,nij,j->i", weights, E, b), "integral")
    assert_close(extended._floats(W), np.einsum("n,nij,jk,nlk->il", weights, E, Q, E), "integral")


def test_cases_depend_on_seed_and_number_alone():
    a, b, other = linear.generate(7, 11), linear.generate(7, 11), linear.generate(8, 11)
    assert a.name == "linear-7-11"
    for name in vars(a):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    assert not np.array_equal(a.y, other.y)


def test_scripts_run_by_themselves(tmp_path):
    """A failure's script has every number that it needs, and gives the answer of the call that it reports."""
    case = next(
        c for c in (linear.generate(2, i) for i in range(99)) if c.shape[:2] == (1, 3) and c.method == "default"
    )
    post = linear.call(case)
    text = linear.write_script(case, linear.oracle(case, post.times), post, "wrong", "to see")
    names = {}
    exec(compile(text, "script", "exec"), names)
    np.testing.assert_array_equal(names["post"].mean, post.mean)
    assert names["post"].elbo == post.elbo
    np.testing.assert_array_equal(names["times"], case.times)


def test_grid_is_the_documented_one():
    case = next(
        c for c in (linear.generate(2, i) for i in range(99)) if c.shape[:2] == (1, 3) and c.method == "default"
    )
    np.testing.assert_allclose(linear.own_grid(case), linear.call(case).times, rtol=0, atol=1e-9 * case.dt)


def report(outcomes: list[Outcome]) -> str:
    return "\n".join(f"{o.case}: {o.outcome}, {o.message}" for o in outcomes)


@pytest.mark.slow
def test_linear_slice():
    outcomes = [linear.run(20, index) for index in range(120)]
    failures = [o for o in outcomes if o.failed]
    assert not failures, report(failures)
    solvable = [o for o in outcomes if o.condition <= linear.ALLOWED]
    others = [o for o in solvable if o.outcome != "right"]
    assert len(others) <= TOLERANCES["unsolved"] * len(solvable), report(others)
