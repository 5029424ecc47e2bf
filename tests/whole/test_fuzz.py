"""The oracles of `make fuzz` against dense algebra, and a fixed slice of its cases."""

import numpy as np
import pytest
from scipy.linalg import expm
from support import assert_close, condition, linear_joint, split_dense
from tolerances import TOLERANCES

from fuzz import __main__ as command
from fuzz import extended, integrals, learning, line, linear, scalar, scores
from fuzz.bound import bound, possible_gain
from fuzz.cases import Outcome
from fuzz.densities import log_density
from fuzz.execute import from_record


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
    s, weights = np.polynomial.legendre.leggauss(12)
    s, weights = 0.35 * (s + 1), 0.35 * weights
    E = np.array([expm(A * v) for v in s])
    assert_close(extended._floats(F), expm(0.7 * A), "exact")
    assert_close(extended._floats(c)[:, 0], np.einsum("n,nij,j->i", weights, E, b), "exact")
    assert_close(extended._floats(W), np.einsum("n,nij,jk,nlk->il", weights, E, Q, E), "exact")


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


def scalar_chain(rng, N=12, n=4):
    times = np.cumsum(rng.uniform(0.05, 0.2, N))
    node, y = np.sort(rng.permutation(N)[:n]), rng.normal(size=n)
    return dict(decay=0.7, Q=0.8, m0=0.3, P0=0.5, r=0.2, times=times, node=node, y=y)


def dense_scalar(c):
    N = len(c["times"])
    A, b = [np.array([[-c["decay"]]])] * (N - 1), [np.zeros(1)] * (N - 1)
    prior = linear_joint(A, b, np.array([[c["Q"]]]), np.array([c["m0"]]), np.array([[c["P0"]]]), c["times"])
    return condition(*prior, np.eye(1), np.array([[c["r"]]]), c["node"], c["y"][:, None])


def gaussian_factors(c):
    return {
        int(k): (lambda x, y=y: log_density("Gaussian", {"variance": c["r"]}, y, x))
        for k, y in zip(c["node"], c["y"], strict=True)
    }


def test_grid_of_states_equals_dense_conditioning():
    c = scalar_chain(np.random.default_rng(1))
    arguments = (lambda x: -c["decay"] * x, c["Q"], c["m0"], c["P0"], c["times"], gaussian_factors(c))
    got = line.smoother(*arguments, np.sqrt(c["r"]), (-2.0, 2.0))
    mean, cov, evidence = dense_scalar(c)
    assert_close(got.evidence, evidence, "evidence")
    assert_close(got.mean, mean, "evidence")
    assert_close(got.std, np.sqrt(np.diag(cov)), "evidence")


def test_bound_of_the_exact_posterior_is_the_evidence_and_stationary():
    c = scalar_chain(np.random.default_rng(2))
    mean, cov, evidence = dense_scalar(c)
    m, S, C = mean, np.diag(cov), np.diag(cov, -1)

    def at(m, S, C):
        return bound(m, S, C, lambda x: -c["decay"] * x, c["Q"], c["m0"], c["P0"], c["times"], gaussian_factors(c))

    assert_close(at(m, S, C), evidence, "evidence")
    rng = np.random.default_rng(0)
    assert possible_gain(m, S, C, rng, at) < TOLERANCES["optimum"]
    assert possible_gain(m + 0.3 * np.sqrt(S), S, C, rng, at) > 1000 * TOLERANCES["optimum"]


@pytest.mark.parametrize("kind", ["Poisson", "Bernoulli", "StudentT"])
@pytest.mark.parametrize("D", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_predictive_integrals(kind, D):
    """Against a plain grid over the state's density, which resolves these likelihoods."""
    rng = np.random.default_rng(6)
    numbers = {"Poisson": {"exposure": 3.0}, "Bernoulli": {}, "StudentT": {"scale": 0.8, "df": 3.0}}[kind]
    y = {"Poisson": [5.0, 0.0, 2.0], "Bernoulli": [1.0, 0.0, 1.0], "StudentT": [0.3, 4.0, -1.0]}[kind][:D]
    G = rng.normal(size=(D, D))
    mean, V = 0.3 * rng.normal(size=D), 0.3 * (G @ G.T + 0.1 * np.eye(D))
    side = np.linspace(-9, 9, {1: 4001, 2: 601, 3: 121}[D])
    u = np.stack([a.ravel() for a in np.meshgrid(*[side] * D)], 1)
    values = -0.5 * (u**2).sum(1) + log_density(kind, numbers, y, mean + u @ np.linalg.cholesky(V).T).sum(1)
    wanted = np.logaddexp.reduce(values) + D * np.log((side[1] - side[0]) / np.sqrt(2 * np.pi))
    assert_close(integrals.log_predictive(kind, numbers, np.array(y), mean, V), wanted, "score")


def test_kalman_filter_of_learning_equals_dense_conditioning():
    case = next(c for c in (learning.generate(1, i) for i in range(50)) if c.kind == "ou2")
    times = np.union1d(np.linspace(0, 10, 21), case.times)
    A, b, q = learning.matrices(case, case.true)
    N = len(times)
    prior = linear_joint([A] * (N - 1), [b] * (N - 1), np.diag(q), np.zeros(2), case.P0 * np.eye(2), times)
    node = np.searchsorted(times, case.times)
    _, _, evidence = condition(*prior, case.h[None], np.atleast_2d(case.true["r"]), node, case.y[:, None])
    assert_close(learning.log_likelihood(case, case.true, times), evidence, "evidence")


def test_climb_leaves_parameters_that_are_not_the_best():
    """What a fit that stopped at its start would be told: a higher likelihood elsewhere, by a stationary climb."""
    case = next(c for c in (learning.generate(1, i) for i in range(50)) if c.shape == ("ou", ("r",)))
    grid = np.union1d(np.linspace(0, 10, 21), case.times)
    best, theta, errors = learning.climb(case, case.begin, grid)
    assert best > learning.log_likelihood(case, case.begin, grid) + learning.NATS
    # A step of k standard errors loses ½k² nats, on the average of both sides: the slope at the top is nothing.
    beside = [learning.log_likelihood(case, learning.unpack(case, theta + k * errors), grid) for k in (0.1, -0.1)]
    assert_close((best - np.mean(beside)) / 0.005, 1.0, "coarse_moments")


@pytest.mark.parametrize(("outcome", "code"), [("right", 0), ("stalled", 0), ("wrong", 1), ("crashed", 1)])
def test_exit_code_and_scripts(tmp_path, monkeypatch, capsys, outcome, code):
    found = Outcome(
        "linear", "linear-3-0", outcome, 2.5, "why", "d = 1", 10.0, "" if outcome == "right" else "print(1)"
    )
    monkeypatch.setattr(command, "execute", lambda counts, seed, jobs: [found])
    assert command.main(["--family", "linear", "--cases", "1", "--seed", "3", "--out", str(tmp_path)]) == code
    written = [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.py")]
    assert written == {"right": [], "stalled": ["stalled/linear-3-0.py"]}.get(outcome, ["linear-3-0.py"])
    assert "linear" in capsys.readouterr().out


def test_a_family_with_a_driver_of_its_own():
    record = {"family": "verdicts", "outcome": "wrong", "error": 0.7, "verdict": "trust the bound", "case": {"df": 2.0}}
    got = from_record(record, 5, 8)
    assert (got.case, got.outcome, got.error, got.group) == ("verdicts-5-8", "wrong", 0.7, "trust the bound")
    assert got.failed and "'df': 2.0" in got.script


def report(outcomes: list[Outcome]) -> str:
    return "\n".join(f"{o.case}: {o.outcome}, {o.message}" for o in outcomes)


def linear_slice(seed: int, each: int = 16) -> list[int]:
    """16 cases of every dimension, all with the first shape met, since every shape is compiled."""
    chosen, met = {d: [] for d in range(1, 6)}, {}
    for index in range(2000):
        shape = linear.generate(seed, index).shape
        if met.setdefault(shape[0], shape) == shape and len(chosen[shape[0]]) < each:
            chosen[shape[0]].append(index)
    return [index for indices in chosen.values() for index in indices]


# Cases that were wrong once, with what they must be now: right, or a status that names the scale at fault.
ONCE_WRONG = {
    "the bound is large, and rounding ends the climb": (linear, 20261, 1337, ("right",)),
    "steps that rounding leaves without a density": (linear, 20261, 559, ("right", "ill_conditioned")),
    "counts of two outputs far off": (scores, 20261, 148, ("right",)),
}
ONCE_WRONG_SLOW = {
    "a start far from sharp data": (linear, 20261, 126, ("right", "ill_conditioned")),
    "no density to start from": (linear, 20261, 1123, ("right", "ill_conditioned", "refused")),
    "rules that differ by the last digit of a bound of 3e14": (linear, 52001, 293, ("right",)),
    "four states, one sharp sensor": (linear, 20263, 42, ("right", "ill_conditioned")),
    "NaN samples of four states": (linear, 20261, 510, ("right", "ill_conditioned")),
    "three states with a sharp sensor, in continuous time": (linear, 41002, 985, ("right",)),
    "precise data far from zero, in continuous time": (linear, 41003, 1274, ("right",)),
    "counts of three outputs far off": (scores, 20263, 48, ("right",)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", [*ONCE_WRONG, *(pytest.param(name, marks=pytest.mark.slow) for name in ONCE_WRONG_SLOW)]
)
def test_what_was_wrong_once(name):
    family, seed, index, allowed = (ONCE_WRONG | ONCE_WRONG_SLOW)[name]
    found = family.run(seed, index)
    assert found.outcome in allowed, found.message
    if found.outcome != "right":
        assert "scale" in found.message


@pytest.mark.slow
def test_linear_slice():
    outcomes = [linear.run(20, index) for index in linear_slice(20)]
    assert len(outcomes) == 80
    failures = [o for o in outcomes if o.failed]
    assert not failures, report(failures)
    solvable = [o for o in outcomes if o.condition <= linear.ALLOWED]
    others = [o for o in solvable if o.outcome != "right"]
    assert len(others) <= TOLERANCES["unsolved"] * len(solvable), report(others)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "cases"), [(scalar, 12), (scores, 12), (learning, 3)])
def test_slice_of_other_families(family, cases):
    failures = [o for o in (family.run(20, index) for index in range(cases)) if o.failed]
    assert not failures, report(failures)
