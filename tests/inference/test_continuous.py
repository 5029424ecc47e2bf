"""CVI-DP in continuous time: exact for linear drifts at every step, second order for others, safeguarded throughout."""

import functools
import itertools

import equinox as eqx
import jax
import numpy as np
import pytest
import scipy.integrate
import scipy.linalg
import scipy.optimize
from support import (
    assert_close,
    assert_compiles_once,
    assert_gaussian,
    bridge_by_precisions,
    composed,
    condition,
    pose,
    split_dense,
)
from tolerances import TOLERANCES

import girsanov as gv
from girsanov._core.precision import float64
from girsanov.chain.linear_sde import Time, linear_transition
from girsanov.data.grid import regular_grid
from girsanov.inference.continuous_bound import ContinuousSites, evaluate_continuous
from girsanov.paper.data import inference_model, load_fold
from girsanov.result.making import make_posterior, run_history

CAPACITY = 2000  # nodes that every grid of one state is padded to: all of them share a compiled program
CAPACITY_2D = 1000


@float64
def solve(model, series, dt, span, time: Time = "continuous", tolerance=1e-10, **options):
    """`gv.infer` with a padded grid."""
    capacity = CAPACITY if model.dim == 1 else CAPACITY_2D
    grid = regular_grid(series, dt, span)._replace(capacity=capacity)
    method = gv.CVIDP(time=time, tolerance=tolerance, **options)
    problem = pose(model, series, grid, method.rule(model.dim))
    result, coarse = method.solve(problem)
    return make_posterior(problem, result, series, run_history(result, coarse), 0.0)


# --- linear drift: dense conditioning of the SDE itself


def exact_transition(A, b, Q, gap):
    """x₊ | x ~ N(Φx + c, Σ) of dx = (A x + b) dt + L dβ, by Van Loan's and an affine matrix exponential."""
    d = len(A)
    E = scipy.linalg.expm(gap * np.block([[-A, Q], [np.zeros((d, d)), A.T]]))
    Phi = E[d:, d:].T
    affine = np.zeros((d + 1, d + 1))
    affine[:d, :d], affine[:d, d] = A, b
    Sigma = Phi @ E[:d, d:]
    return Phi, scipy.linalg.expm(gap * affine)[:d, d], 0.5 * (Sigma + Sigma.T)


def exact_joint(A, b, Q, mean, cov, times):
    """Joint mean and covariance of the SDE's states at these times."""
    N, d = len(times), len(mean)
    m, P = np.zeros((N, d)), np.zeros((N, d, N, d))
    m[0], P[0, :, 0] = mean, cov
    for k, gap in enumerate(np.diff(times)):
        Phi, c, Sigma = exact_transition(A, b, Q, gap)
        m[k + 1] = Phi @ m[k] + c
        P[k + 1, :, : k + 1] = np.tensordot(Phi, P[k, :, : k + 1], 1)
        P[: k + 1, :, k + 1] = np.moveaxis(P[k + 1, :, : k + 1], 0, 2)
        P[k + 1, :, k + 1] = Phi @ P[k, :, k] @ Phi.T + Sigma
    return m.ravel(), P.reshape(N * d, N * d)


SPAN = (0.0, 1.2)
TIMES = np.array([0.1, 0.24, 0.45, 0.7, 0.911, 1.0])  # on the grids and off them
OFF_GRID = np.array([0.011, 0.1, 0.163, 0.437, 0.6999, 0.701, 0.95, 1.191])


class Linear:
    """A linear SDE with full matrices, its data, and the dense answer at any times."""

    def __init__(self, A, b, Q, H, R, mean, cov, unseen=()):
        self.A, self.b, self.Q, self.H, self.R = (np.array(a, dtype=float) for a in (A, b, Q, H, R))
        self.mean, self.cov = np.array(mean, dtype=float), np.array(cov, dtype=float)
        rng = np.random.default_rng(0)
        self.y = rng.normal(size=(len(TIMES), len(self.H)))
        self.y[:, list(unseen)] = np.nan
        self.series = gv.TimeSeries(TIMES, self.y)
        initial = gv.GaussianState(self.mean, self.cov)
        self.model = gv.Model(gv.Linear(self.A, self.b), self.Q, initial, gv.likelihoods.Gaussian(self.R), self.H)

    def dense(self, times):
        """Mean (N, d), covariance (N, d, d) and lag-one covariance at these times, and the log evidence."""
        every = np.union1d(np.union1d(times, TIMES), [SPAN[0]])
        joint = exact_joint(self.A, self.b, self.Q, self.mean, self.cov, every)
        mean, cov, evidence = condition(*joint, self.H, self.R, np.searchsorted(every, TIMES), self.y)
        m, S, C = split_dense(mean, cov, len(self.mean))
        at = np.searchsorted(every, times)
        return m[at], S[at], C, evidence


ROTATING = [[-1.0, 0.6], [-0.9, -0.4]]
FULL_Q = [[0.8, 0.3], [0.3, 0.5]]
FULL_R = [[0.02, 0.01], [0.01, 0.03]]
MIXED = [[1.0, 0.5], [-0.3, 1.0]]
LINEAR = {
    "one state": Linear([[-1.2]], [0.0], [[1.0]], [[1.0]], [[0.01]], [0.0], [[1 / 2.4]]),
    "one state, sharp noise": Linear([[-1.2]], [0.4], [[1.0]], [[1.0]], [[1e-4]], [0.5], [[1e-4]]),
    "one state, sharper noise": Linear([[-1.2]], [0.4], [[1.0]], [[2.0]], [[1e-6]], [0.5], [[1e-4]]),
    "one state, pushed away": Linear([[0.9]], [-0.4], [[0.3]], [[1.0]], [[0.01]], [0.5], [[0.1]]),
    "two states": Linear(ROTATING, [0.3, -0.2], FULL_Q, np.eye(2), FULL_R, [1.0, -0.5], [[0.2, 0.05], [0.05, 0.3]]),
    "two states, one combination observed": Linear(
        ROTATING, [0.3, -0.2], FULL_Q, MIXED, FULL_R, [1.0, -0.5], 0.1 * np.eye(2), unseen=[1]
    ),
    "two states, sharp noise": Linear(
        ROTATING, [0.3, -0.2], FULL_Q, MIXED, 1e-4 * np.eye(2), [1.0, -0.5], 1e-4 * np.eye(2)
    ),
    "two states, one observed sharply": Linear(
        ROTATING, [0.3, -0.2], FULL_Q, np.eye(2), 1e-4 * np.eye(2), [1.0, -0.5], 1e-4 * np.eye(2), unseen=[1]
    ),
    "two states, stiff": Linear(
        20.0 * np.array(ROTATING), [0.3, -0.2], FULL_Q, MIXED, FULL_R, [1.0, -0.5], 0.1 * np.eye(2)
    ),
}


@pytest.mark.parametrize("dt", [0.08, 0.02, 0.005])
@pytest.mark.parametrize("name", LINEAR)
def test_linear_drift_is_exact_at_every_step(name, dt):
    problem = LINEAR[name]
    post = solve(problem.model, problem.series, dt, SPAN)
    *moments, evidence = problem.dense(post.times)
    assert post.converged
    assert_close(post.elbo, evidence, "evidence", "evidence")
    assert_gaussian((post.mean, post.cov, post.lag_cov), moments, "identity")


@pytest.mark.parametrize("name", LINEAR)
def test_linear_drift_is_exact_between_the_nodes(name):
    problem = LINEAR[name]
    post = solve(problem.model, problem.series, 0.08, SPAN)
    *moments, _, evidence = problem.dense(OFF_GRID)
    assert_close(post.elbo, evidence, "evidence", "evidence, from the observation times alone")
    assert_gaussian(post.marginals(OFF_GRID), moments, "identity", "off the grid:")


@pytest.mark.parametrize("name", LINEAR)
def test_linear_drift_is_exact_next_to_the_nodes(name):
    """On both sides of every node, those of sharp observations too, where the state is known to 5e-4."""
    problem = LINEAR[name]
    post = solve(problem.model, problem.series, 0.08, SPAN)
    beside = np.array([-1e-3, -1e-6, -1e-9, 1e-9, 1e-6, 1e-3])
    times = np.unique(post.times[:, None] + beside)
    times = times[(times > SPAN[0]) & (times < SPAN[1])]
    assert not np.isin(times, post.times).any()
    *moments, _, _ = problem.dense(times)
    assert_gaussian(post.marginals(times), moments, "identity", "next to a node:")


def gp_regression(decay, Q, times, y, variance, at):
    """Mean, variance and log evidence of GP regression with the covariance Q/(2θ) exp(−θ|t − t'|)."""

    def kernel(s, t):
        return Q / (2.0 * decay) * np.exp(-decay * np.abs(s[:, None] - t[None, :]))

    V = kernel(times, times) + variance * np.eye(len(times))
    gain = np.linalg.solve(V, kernel(times, at)).T
    log_evidence = -0.5 * (y @ np.linalg.solve(V, y) + np.linalg.slogdet(2.0 * np.pi * V)[1])
    return gain @ y, Q / (2.0 * decay) - (gain * kernel(at, times)).sum(1), log_evidence


@pytest.mark.parametrize("dt", [0.08, 0.005])
def test_ornstein_uhlenbeck_is_gaussian_process_regression(dt):
    problem = LINEAR["one state"]
    post = solve(problem.model, problem.series, dt, SPAN)
    mean, var, evidence = gp_regression(1.2, 1.0, TIMES, problem.y[:, 0], 0.01, OFF_GRID)
    assert_close(post.elbo, evidence, "evidence", "evidence")
    assert_gaussian(post.marginals(OFF_GRID), (mean[:, None], var[:, None, None]), "identity")


@pytest.mark.slow
@pytest.mark.paper
@pytest.mark.parametrize("dt", [0.08, 0.02, 0.005])
def test_the_paper_s_ou_folds_are_gaussian_process_regression(data_dir, dt):
    for i in (0, 1):
        fold = load_fold(data_dir, "ou", i)
        post = gv.infer(inference_model("ou", fold), fold.train, dt, fold.span, method=gv.CVIDP(time="continuous"))
        y, noise = np.array(fold.train.values[:, 0]), fold.sigma**2
        mean, var, evidence = gp_regression(1.2, 1.0, np.array(fold.train.times), y, noise, post.times)
        assert_close(post.elbo, evidence, "evidence", f"evidence of fold {i}")
        assert_gaussian((post.mean, post.cov), (mean[:, None], var[:, None, None]), "identity", f"fold {i}:")


def test_transitions_of_a_drift_that_turns_within_the_interval():
    """Against an ODE solver: of fifth order over one interval, where a constant drift would leave an error of third."""
    rng = np.random.default_rng(4)
    A0, A1, Q = rng.normal(size=(2, 2)), rng.normal(size=(2, 2)), np.array(FULL_Q)
    b0, b1 = rng.normal(size=2), rng.normal(size=2)

    def solved(h):
        def rates(t, y):
            Phi, c, S = y[:4].reshape(2, 2), y[4:6], y[6:].reshape(2, 2)
            A, b = A0 + t * (A1 - A0), b0 + t * (b1 - b0)  # over an interval of length one
            return np.concatenate([(A @ Phi).ravel(), A @ c + b, (A @ S + S @ A.T + Q).ravel()])

        start = np.concatenate([np.eye(2).ravel(), np.zeros(6)])
        return scipy.integrate.solve_ivp(rates, (0.0, h), start, rtol=1e-12, atol=1e-13).y[:, -1]

    def magnus(h):
        end = lambda a, b: (a[..., None], (a + h * (b - a))[..., None])  # noqa: E731
        with jax.enable_x64(True):
            out = linear_transition(end(A0, A1), end(b0, b1), Q, np.array([h]))
            return np.concatenate([np.asarray(a)[..., 0].ravel() for a in out])

    errors = [np.abs(magnus(h) - solved(h)).max() for h in (0.4, 0.2, 0.1)]
    assert observed_order((0.4, 0.2, 0.1), errors) >= 5.0 - TOLERANCES["order"], errors


# --- other drifts: orders of convergence, and the limit


def sharp(drift, mean, variance=1e-4):
    return gv.Model(drift, 1.0, gv.GaussianState(mean, 1e-4), gv.likelihoods.Gaussian(variance))


SHORT_SPAN = (0.0, 1.2)
SHORT_TIMES = {1: np.array([0.16, 0.4, 0.72, 1.04]), 2: np.array([0.16, 0.4, 0.56, 0.72, 0.96])}
MODELS = {
    "sine": sharp(gv.Sine(1.0, 0.0), 0.0),
    "double_well": sharp(gv.DoubleWell(4.0, 1.0), 1.0),
    "van_der_pol": sharp(gv.VanDerPol(5.0, 2.0), np.ones(2), variance=0.01),
}
STEPS = (0.04, 0.02, 0.01, 0.005)
FINE = (0.0025, 0.00125)  # their extrapolation is the limit
ORDER = {"sine": 2.0 - TOLERANCES["order"], "double_well": 1.5, "van_der_pol": 2.0 - TOLERANCES["order"]}
CASES = [
    *((name, seed) for name in ("sine", "double_well") for seed in (0, 1)),
    *(pytest.param(name, 2, marks=pytest.mark.slow) for name in ("sine", "double_well")),
    *(pytest.param("van_der_pol", seed, marks=pytest.mark.slow) for seed in (0, 1, 2)),
]
QUANTITIES = ("elbo", "mean", "std")


@functools.cache
def short_series(name: str, seed: int) -> gv.TimeSeries:
    model = MODELS[name]
    return gv.simulate(model, SHORT_TIMES[model.dim], key=jax.random.key(seed), start=0.0, dt=1e-3).series


@functools.cache
def answers(name: str, seed: int, time: Time, dt: float):
    """The bound, and means and standard deviations every 0.04."""
    post = solve(MODELS[name], short_series(name, seed), dt, SHORT_SPAN, time)
    assert post.converged, f"{time}, dt = {dt:g}: {post.status}"
    node = np.searchsorted(post.times, 0.04 * np.arange(31) - 1e-9)
    return {"elbo": np.array(post.elbo), "mean": post.mean[node], "std": post.std[node]}


def limit(name, seed, quantity):
    """Second-order extrapolation from the two finest grids."""
    coarse, fine = (answers(name, seed, "continuous", dt)[quantity] for dt in FINE)
    return (4.0 * fine - coarse) / 3.0


def error(name, seed, quantity, time, dt):
    return np.abs(answers(name, seed, time, dt)[quantity] - limit(name, seed, quantity)).max()


def observed_order(steps, errors):
    return np.polyfit(np.log(steps), np.log(errors), 1)[0]


@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize(("name", "seed"), CASES)
def test_order_of_convergence(name, seed, quantity):
    errors = [error(name, seed, quantity, "continuous", dt) for dt in STEPS]
    assert observed_order(STEPS, errors) >= ORDER[name], errors


@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize(("name", "seed"), CASES)
def test_limit_is_that_of_the_discrete_version(name, seed, quantity):
    """Of first order in dt: two of its grids extrapolate to within dt², and a third says how much that is."""
    a, b, c = (answers(name, seed, "discrete", dt)[quantity] for dt in (0.005, 0.0025, 0.00125))
    two, three = 2.0 * c - b, (a - 6.0 * b + 8.0 * c) / 3.0
    apart = np.abs(three - limit(name, seed, quantity)).max()
    assert apart <= np.abs(three - two).max() + TOLERANCES["optimum"]
    assert apart < error(name, seed, quantity, "discrete", 0.00125)


@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize(("name", "seed"), CASES)
def test_closer_to_the_limit_than_the_discrete_version_on_a_finer_grid(name, seed, quantity):
    continuous = error(name, seed, quantity, "continuous", 0.02)
    discrete = error(name, seed, quantity, "discrete", 0.005)
    assert continuous < discrete


@pytest.mark.slow
@pytest.mark.paper
@pytest.mark.parametrize("process", ["sine", "double_well", "van_der_pol"])
def test_orders_on_the_paper_s_folds(data_dir, process):
    fold = load_fold(data_dir, process, 1)
    model = inference_model(process, fold)
    grids: dict[Time, tuple[float, ...]] = {"continuous": (*STEPS, *FINE), "discrete": (0.005,)}
    posts = {
        (time, dt): gv.infer(model, fold.train, dt, fold.span, method=gv.CVIDP(time=time, tolerance=1e-10))
        for time, dts in grids.items()
        for dt in dts
    }
    common = posts["continuous", 0.04].times
    for quantity in QUANTITIES:
        found = {}
        for run, post in posts.items():
            node = np.searchsorted(post.times, common - 1e-9)
            found[run] = np.array(post.elbo) if quantity == "elbo" else getattr(post, quantity)[node]
        end = (4.0 * found["continuous", 0.00125] - found["continuous", 0.0025]) / 3.0
        errors = [np.abs(found["continuous", dt] - end).max() for dt in STEPS]
        assert observed_order(STEPS, errors) >= ORDER[process], f"{quantity}: {errors}"
        assert errors[1] < np.abs(found["discrete", 0.005] - end).max(), quantity


# --- safeguards


LONG_SPAN, LONG_TIMES = (0.0, 4.8), np.array([0.4, 1.04, 2.4, 4.0])


def assert_is_a_density(post):
    for a in (post.mean, post.cov, post.lag_cov, post.history.elbo, post.elbo):
        assert np.isfinite(a).all()
    assert (np.linalg.eigvalsh(post.cov) > 0.0).all()
    S = post.cov[:, 0, 0]
    assert (post.lag_cov[:, 0, 0] ** 2 < S[1:] * S[:-1]).all()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_long_steps_on_a_double_well_are_safeguarded(seed):
    """Paths through the barrier, seen with sharp noise: full steps leave the densities, safeguarded ones do not."""
    model = MODELS["double_well"]
    series = gv.simulate(model, LONG_TIMES, key=jax.random.key(seed), start=0.0, dt=1e-3).series
    post = solve(model, series, 0.08, LONG_SPAN, tolerance=1e-6)
    assert post.converged
    assert_is_a_density(post)
    broken = solve(model, series, 0.08, LONG_SPAN, tolerance=1e-6, rho=1.0, safeguard=False)
    assert broken.status == "not_a_density"
    assert "safeguard" in broken.message
    assert_is_a_density(broken)  # the last good result
    assert post.elbo > broken.elbo


@pytest.mark.slow
@pytest.mark.paper
def test_long_steps_on_the_paper_s_double_well_folds(data_dir):
    for i in range(5):
        fold = load_fold(data_dir, "double_well", i)
        model = inference_model("double_well", fold)
        post, broken = (
            gv.infer(model, fold.train, 0.08, fold.span, method=method)
            for method in (gv.CVIDP(time="continuous"), gv.CVIDP(time="continuous", rho=1.0, safeguard=False))
        )
        assert post.converged, f"fold {i}"
        assert_is_a_density(post)
        assert broken.status == "not_a_density", f"fold {i}"
        assert post.elbo > broken.elbo, f"fold {i}"


# --- through the public functions


@functools.cache
def inferred():
    model = MODELS["double_well"]
    method = gv.CVIDP(time="continuous", tolerance=1e-10)
    return gv.infer(model, short_series("double_well", 1), 0.08, SHORT_SPAN, method=method)


def test_padding_does_not_matter():
    post, padded = inferred(), solve(MODELS["double_well"], short_series("double_well", 1), 0.08, SHORT_SPAN)
    assert post.converged
    assert post.time == "continuous"
    assert_close(post.elbo, padded.elbo, "exact", "bound")
    assert_gaussian((post.mean, post.cov, post.lag_cov), (padded.mean, padded.cov, padded.lag_cov), "exact")


def test_sites_compose_the_posterior_whatever_their_base():
    post = inferred()
    sites = post.sites
    assert sites.time == "continuous"
    other = sites.rebase(type(sites.base)(0.5 * sites.base.A, sites.base.b + 1.0))
    assert_close(other.base.b, sites.base.b + 1.0, "exact", "base")
    Q, gaps = np.asarray(post.model.diffusion), np.diff(post.times)
    wanted = composed(post, lambda m: turning_transition(post.target.base, m, Q, gaps[m], 0.0, 1.0))
    for part in ("h", "J", "K"):  # at the optimum the target sites are those of q
        assert_close(getattr(post.natural, part), wanted[part], "optimum_moments", f"{part} of the target sites")
    for form in (sites, other):
        for part in ("h", "J", "K"):
            assert_close(getattr(form.natural(), part), getattr(post.natural, part), "roundtrip", part)
    # between the base's transitions and the data there are only sites of single states
    assert_close(sites.dense.K, np.zeros_like(sites.dense.K), "roundtrip", "pairwise sites", size=post.natural.K)


def test_saved_and_loaded(tmp_path):
    post = inferred()
    back = gv.load(post.save(tmp_path / "posterior.npz"))
    assert back.time == "continuous"
    assert back.elbo == post.elbo
    assert back.status == post.status
    for name in ("times", "mean", "cov", "lag_cov"):
        assert np.array_equal(getattr(back, name), getattr(post, name)), name
    between = 0.5 * (post.times[1:] + post.times[:-1])
    for a, b in itertools.zip_longest(back.marginals(between), post.marginals(between)):
        assert np.array_equal(a, b)
    assert_close(back.sites.natural().h, post.sites.natural().h, "roundtrip", "sites")


def turning_transition(base, m, Q, gap, begin, end):
    """Φ, c, Σ from one share of the gap after node m to another, A and b on the line between the nodes, by an ODE."""
    d, h = len(Q), (end - begin) * gap

    def rates(u, y):
        share = begin + u * (end - begin)
        A, b = (a[..., m] + share * (a[..., m + 1] - a[..., m]) for a in (base.A, base.b))
        Phi, c, S = y[: d * d].reshape(d, d), y[d * d : d * d + d], y[d * d + d :].reshape(d, d)
        return h * np.concatenate([(A @ Phi).ravel(), A @ c + b, (A @ S + S @ A.T + Q).ravel()])

    start = np.concatenate([np.eye(d).ravel(), np.zeros(d + d * d)])
    size = np.concatenate([np.ones(d * d), np.full(d + d * d, h)])
    y = scipy.integrate.solve_ivp(rates, (0.0, 1.0), start, method="DOP853", rtol=1e-12, atol=1e-14 * size).y[:, -1]
    return y[: d * d].reshape(d, d), y[d * d : d * d + d], y[d * d + d :].reshape(d, d)


@pytest.mark.parametrize(
    ("beside", "tolerance"),
    [(1e-9, "bridge_rounding"), (1e-6, "integral"), (1e-3, "bridge_turn"), (0.1, "bridge_turn"), (0.4, "bridge_turn")],
)
def test_marginals_between_the_nodes_are_those_of_the_bridge(beside, tolerance):
    """A drift that turns within the gap, tied to both nodes; this share of the gap away from either.

    At the sharpest nodes a variance grows by the factor 1 + 800 · share, which next to a node is far more than allowed.
    """
    post = inferred()
    times, wanted = [], []
    for m, gap in enumerate(np.diff(post.times)):
        ends = post.mean[m], post.cov[m], post.mean[m + 1], post.cov[m + 1], post.lag_cov[m]
        for share in (beside, 1.0 - beside):
            times.append(post.times[m] + share * gap)
            halves = ((0.0, share), (share, 1.0))
            parts = (turning_transition(post.target.base, m, post.model.diffusion, gap, *half) for half in halves)
            wanted.append(bridge_by_precisions(*parts, ends))
    mean, cov = (np.stack(a) for a in zip(*wanted, strict=True))
    assert_gaussian(post.marginals(times), (mean, cov), tolerance)


def test_marginals_at_other_times_do_not_compile_again():
    problem = LINEAR["two states"]
    post = solve(problem.model, problem.series, 0.08, SPAN)
    assert_compiles_once(lambda: post.marginals([0.13, 0.57]), lambda: post.marginals([0.21, 0.93]))


def test_started_from_its_own_solution():
    post = inferred()
    again = gv.infer(
        post.model, post.series, 0.08, SHORT_SPAN, method=gv.CVIDP(time="continuous", tolerance=1e-10), start=post
    )
    assert again.converged
    assert abs(again.elbo - post.elbo) < TOLERANCES["converged"]
    assert len(again.history) - 1 <= 1 < len(post.history) - 1  # it was there already
    assert again.history.coarse == ()  # and solved nothing else on the way
    assert gv.infer(post.model, post.series, 0.08, SHORT_SPAN, start=post).converged  # in discrete time too


def test_settings_reach_the_discrete_run_that_comes_first():
    """Its limits and grids are those asked for."""
    model = MODELS["double_well"]
    series = gv.simulate(model, LONG_TIMES, key=jax.random.key(0), start=0.0, dt=1e-3).series
    plain, single, short = (
        gv.infer(model, series, 0.008, LONG_SPAN, method=gv.CVIDP(time="continuous", **options), progress=False)
        for options in ({}, {"coarse_to_fine": False}, {"max_iterations": 3})
    )
    assert len(plain.history.coarse) > 1 and len(single.history.coarse) == 1
    assert all(iterations <= 100 for iterations, _ in short.history.coarse[:-1])
    assert short.history.coarse[-1][0] <= 3 and short.status == "max_iterations"


@pytest.mark.slow
def test_the_sites_of_both_ends_compose_the_posterior(tmp_path):
    post = inferred()
    problem = pose(post.model, post.series, post.grid, gv.CVIDP().rule(post.model.dim))
    target = post.target
    with jax.enable_x64(True):
        here = evaluate_continuous(problem, ContinuousSites(target.base, target.dense, target.right, target.data))
        assert_close(np.asarray(here.eta.J), post.natural.J, "converged", "precision")
        m, S = (np.moveaxis(np.asarray(a), -1, 0) for a in (here.moments.m, here.moments.S))
        assert_gaussian((m, S), (post.mean, post.cov), "converged")
        assert abs(float(here.elbo) - post.elbo) < TOLERANCES["converged"]
    loaded = gv.load(post.save(tmp_path / "continuous.gv"), drift=post.model.drift)
    assert np.array_equal(loaded.target.right.potential, target.right.potential)


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match="give a rho"):
        gv.CVIDP(time="continuous", safeguard=False)
    with pytest.raises(ValueError, match="objective='modified' is for discrete time"):
        options = {"method": gv.CVIDP(time="continuous"), "objective": "modified"}
        gv.learn(MODELS["sine"], short_series("sine", 0), dt=0.08, trainable="drift", **options)


@pytest.mark.slow
def test_learning_in_continuous_time_reaches_the_top_of_the_profile():
    series, method = short_series("sine", 0), gv.CVIDP(time="continuous", tolerance=1e-10)
    fit = gv.learn(MODELS["sine"], series, dt=0.08, trainable="drift.scale", method=method)
    assert fit.status == "converged" and fit.posterior.time == "continuous"
    scale = float(fit.model.drift.scale)

    def bound(value):
        model = eqx.tree_at(lambda m: m.drift.scale, fit.model, np.asarray(value))
        return gv.infer(model, series, dt=0.08, method=method).elbo

    top = scipy.optimize.minimize_scalar(lambda v: -bound(v), bracket=(0.9 * scale, scale, 1.1 * scale), tol=1e-4)
    assert_close(fit.posterior.elbo, -top.fun, "likelihood_maximum", size=1.0)
