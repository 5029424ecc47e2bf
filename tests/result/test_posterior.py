"""The posterior a user holds: marginals anywhere, samples, predictions, scores, files and figures; and simulation."""

import dataclasses

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest
import scipy.linalg
import scipy.stats
from support import assert_close, assert_gaussian, bridge_by_precisions, composed, condition, linear_joint, split_dense
from tolerances import TOLERANCES

import girsanov as gv
from girsanov.chain.bridge import bridge
from girsanov.chain.linear_sde import Linearisation
from girsanov.chain.moments import Moments
from girsanov.model.likelihoods import Elementwise
from girsanov.model.simulate import euler_paths

matplotlib.use("Agg")

A = np.array([[-0.8, 1.5], [-1.2, -0.3]])
B = np.array([0.4, -0.2])
Q = np.array([[0.9, 0.3], [0.3, 0.7]])
H = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
R = np.array([[0.3, 0.1, 0.0], [0.1, 0.2, 0.05], [0.0, 0.05, 0.4]])


def linear_run(noise) -> gv.Posterior:
    """Two states, three outputs, correlated noise, entries missing."""
    rng = np.random.default_rng(0)
    y = rng.normal(size=(4, 3))
    y[1, 0], y[2, 1:] = np.nan, np.nan
    model = gv.Model(gv.Linear(A, B), Q, gv.GaussianState([1.0, -0.5], 0.3), gv.likelihoods.Gaussian(noise), H)
    return gv.infer(model, gv.TimeSeries([0.1, 0.33, 0.5, 0.9], y), dt=0.1, span=(0.0, 1.0))


@pytest.fixture(scope="module")
def linear() -> gv.Posterior:
    return linear_run(R)


@pytest.fixture(scope="module")
def sharp() -> gv.Posterior:
    """Where the state is observed it is known so well that a billionth of a step away it is known less."""
    return linear_run(1e-6 * R)


def well(dt, nodes=(0.2, 0.6, 1.2)) -> gv.Posterior:
    """Three observations, and three times at which every value is missing: they are nodes and carry no information."""
    times, values = np.append([0.4, 0.8, 1.6], nodes), np.append([0.9, 0.2, -1.1], [np.nan] * 3)
    order = np.argsort(times)
    model = gv.Model(gv.DoubleWell(), 1.0, gv.GaussianState(1.0, 0.1), gv.likelihoods.Gaussian(0.05))
    return gv.infer(model, gv.TimeSeries(times[order], values[order]), dt=dt, span=(0.0, 1.6), tolerance=1e-12)


@pytest.fixture(scope="module")
def nonlinear() -> gv.Posterior:
    return well(0.04)


# --- marginals


def test_shapes(linear, nonlinear):
    for post, d in ((linear, 2), (nonlinear, 1)):
        N = len(post.times)
        assert post.mean.shape == post.std.shape == (N, d)
        assert post.cov.shape == (N, d, d)
        assert post.lag_cov.shape == (N - 1, d, d)
        assert_close(post.std**2, np.diagonal(post.cov, axis1=1, axis2=2), "exact")
        assert f"N={N}" in repr(post)
        assert "converged" in repr(post)


def test_marginals_on_the_nodes_are_the_nodes(linear):
    at = linear.marginals(linear.times)
    assert np.array_equal(at.mean, linear.mean)
    assert np.array_equal(at.cov, linear.cov)
    assert np.array_equal(at.std, linear.std)
    one = linear.marginals(linear.times[3])  # a number is one time
    assert np.array_equal(one.mean, linear.mean[3:4])
    shuffled = linear.marginals(linear.times[[5, 0, 5]])  # in any order, repeated too
    assert np.array_equal(shuffled.mean, linear.mean[[5, 0, 5]])


@pytest.mark.parametrize("share", [1e-9, 1e-6, 1e-3, 0.4, 0.999, 1.0 - 1e-6, 1.0 - 1e-9])
def test_marginals_next_to_the_nodes_and_between_them_are_those_of_the_bridge(sharp, share):
    """Euler–Maruyama from the node to the time and from the time to the next node, tied to both, in every interval."""
    gaps = np.diff(sharp.times)
    times = sharp.times[:-1] + share * gaps
    wanted = []
    for m, t in enumerate(times):
        steps = ((np.eye(2) + g * A, g * B, g * Q) for g in (t - sharp.times[m], sharp.times[m + 1] - t))
        ends = sharp.mean[m], sharp.cov[m], sharp.mean[m + 1], sharp.cov[m + 1], sharp.lag_cov[m]
        wanted.append(bridge_by_precisions(*steps, ends))
    mean, cov = (np.stack(a) for a in zip(*wanted, strict=True))
    assert_gaussian(sharp.marginals(times), (mean, cov), "bridge_rounding")


def test_marginals_off_the_grid_agree_with_a_grid_that_has_those_times():
    """To O(Δ²): halving the step divides the difference by about four."""
    errors = []
    for dt in (0.04, 0.02):
        between = np.array([0.2, 0.6, 1.2]) + 0.4 * dt
        post, finer = well(dt), well(dt, between)
        assert len(finer.times) == len(post.times) + 3
        got, node = post.marginals(between), np.searchsorted(finer.times, between)
        errors.append([np.abs(got.mean - finer.mean[node]).sum(), np.abs(got.cov - finer.cov[node]).sum()])
    coarse, fine = np.array(errors)
    assert (fine > 0).all()
    assert (coarse / fine > TOLERANCES["second_order_ratio"]).all()


def linear_posterior(grid):
    """Dense posterior of the linear model on a grid: (m, S, C)."""
    M = len(grid) - 1
    joint = linear_joint(
        np.broadcast_to(A, (M, 2, 2)), np.broadcast_to(B, (M, 2)), Q, [1.0, -0.5], 0.3 * np.eye(2), grid
    )
    node = np.searchsorted(grid, [0.4, 0.8])
    mean, cov, _ = condition(*joint, np.eye(2), 0.1 * np.eye(2), node, np.array([[0.3, 1.0], [-0.4, 0.2]]))
    return split_dense(mean, cov, 2)


def test_bridge_of_a_linear_system_is_second_order():
    """Two states with full matrices, against dense conditioning on the grid that has the times."""
    errors = []
    for steps in (40, 80, 160):
        grid = np.linspace(0.0, 0.8, steps + 1)
        t = grid[[steps // 5, steps // 2]] + 0.3 * 0.8 / steps
        M = steps
        q = Moments(*(np.moveaxis(a, 0, -1) for a in linear_posterior(grid)))
        base = Linearisation(np.repeat(A[:, :, None], M, 2), np.repeat(B[:, None], M, 1))
        mean, cov = bridge(q, base, Q, grid, t)
        finer = np.union1d(grid, t)
        m, S, _ = linear_posterior(finer)
        node = np.searchsorted(finer, t)
        errors.append([np.abs(mean - m[node]).max(), np.abs(cov - S[node]).max()])
    errors = np.array(errors)
    assert (errors[:-1] / errors[1:] > TOLERANCES["second_order_ratio"]).all()


def test_outside_the_horizon_is_an_error(linear):
    for t, place in (([0.5, 1.2], r"times\[1\] = .*1\.2"), ([-0.1], r"times\[0\] = .*-0\.1"), ([np.nan], "nan")):
        with pytest.raises(ValueError, match=place + r".*outside the horizon \[0, 1\]"):
            linear.marginals(t)
    with pytest.raises(ValueError, match=r"shape \(n,\), got \(1, 2\)"):
        linear.marginals([[0.1, 0.2]])
    with pytest.raises(ValueError, match="outside the horizon"):
        linear.predict([3.0])
    with pytest.raises(ValueError, match="outside the horizon"):
        linear.nlpd(gv.TimeSeries([3.0], [[0.0, 0.0, 0.0]]))


# --- samples


def test_samples_are_joint_draws(linear):
    n = 20_000
    paths = linear.sample(jax.random.key(0), n)
    N, d = linear.mean.shape
    assert paths.shape == (n, N, d)
    assert paths.dtype == np.float64
    five = TOLERANCES["standard_errors"]
    assert (np.abs(paths.mean(0) - linear.mean) < five * linear.std / np.sqrt(n)).all()
    e = paths - linear.mean
    for got, wanted, left, right in (
        (np.einsum("nti,ntj->tij", e, e) / n, linear.cov, linear.std, linear.std),
        (np.einsum("nti,ntj->tij", e[:, 1:], e[:, :-1]) / n, linear.lag_cov, linear.std[1:], linear.std[:-1]),
    ):
        se = np.sqrt(((left[:, :, None] * right[:, None, :]) ** 2 + wanted**2) / n)
        assert (np.abs(got - wanted) < five * se).all()
    assert np.array_equal(linear.sample(jax.random.key(0), n), paths)
    assert linear.sample(jax.random.key(1)).shape == (1, N, d)


# --- predictions


def test_predict_is_the_emission_with_noise(linear):
    t = [0.05, 0.5, 1.0]
    state, got = linear.marginals(t), linear.predict(t)
    assert_close(got.mean, state.mean @ H.T, "exact", "mean")
    assert_close(got.cov, H @ state.cov @ H.T + R, "exact", "cov")


def test_nlpd_and_rmse(linear):
    rng = np.random.default_rng(3)
    y = rng.normal(size=(3, 3))
    y[0, 1], y[2, :2] = np.nan, np.nan
    t = np.array([0.07, 0.5, 0.96])
    test = gv.TimeSeries(t, y)
    predicted = linear.predict(t)
    values, squares = [], []
    for i in range(3):
        keep = ~np.isnan(y[i])
        normal = scipy.stats.multivariate_normal(predicted.mean[i, keep], predicted.cov[i][np.ix_(keep, keep)])
        values.append(-normal.logpdf(y[i, keep]))
        squares.extend((y[i, keep] - predicted.mean[i, keep]) ** 2)
    assert_close(linear.nlpd_values(test), values, "exact", "nlpd of each")
    assert_close(linear.nlpd(test), np.mean(values), "exact", "nlpd")
    assert_close(linear.rmse(test), np.sqrt(np.mean(squares)), "exact", "rmse")


def test_nlpd_of_one_output_is_the_normal_density(nonlinear):
    t, y = np.array([0.3, 1.01]), np.array([0.5, -0.3])
    m, S = nonlinear.marginals(t)
    wanted = -scipy.stats.norm.logpdf(y, m[:, 0], np.sqrt(S[:, 0, 0] + 0.05)).mean()
    assert_close(nonlinear.nlpd(gv.TimeSeries(t, y)), wanted, "exact")


def test_scores_need_the_model_s_outputs(linear):
    with pytest.raises(ValueError, match=r"1 values at each time.*observes 3"):
        linear.nlpd(gv.TimeSeries([0.5], [0.1]))
    with pytest.raises(ValueError, match=r"1 values at each time.*observes 3"):
        linear.rmse(gv.TimeSeries([0.5], [0.1]))


# --- forecast and simulation


def sde_moments(mean, cov, time):
    """Exact mean and covariance of dx = (Ax + b)dt + L dβ after `time` (Van Loan)."""
    block = scipy.linalg.expm(time * np.block([[-A, Q], [np.zeros((2, 2)), A.T]]))
    T = block[2:, 2:].T
    return T @ mean + np.linalg.solve(A, (T - np.eye(2)) @ B), T @ cov @ T.T + T @ block[:2, 2:]


def assert_moments(draws, mean, cov):
    n, five = len(draws), TOLERANCES["standard_errors"]
    assert (np.abs(draws.mean(0) - mean) < five * np.sqrt(np.diag(cov) / n)).all()
    se = np.sqrt((np.outer(np.diag(cov), np.diag(cov)) + cov**2) / n)
    assert (np.abs(np.cov(draws.T) - cov) < five * se).all()


def test_forecast_has_the_moments_of_the_sde(linear):
    n, times = 10_000, np.array([1.0, 1.3, 2.0])
    paths = linear.forecast(times, key=jax.random.key(0), n=n, dt=2e-3)
    assert paths.shape == (n, 3, 2)
    for i, t in enumerate(times):  # the first is the end of the horizon itself
        assert_moments(paths[:, i], *sde_moments(linear.mean[-1], linear.cov[-1], t - 1.0))
    assert np.array_equal(paths, linear.forecast(times, key=jax.random.key(0), n=n, dt=2e-3))
    assert not np.array_equal(paths, linear.forecast(times, key=jax.random.key(1), n=n, dt=2e-3))


def test_forecast_of_a_drift_that_is_too_fast_for_the_step():
    """Some paths leave the range of numbers where the step is too long; with shorter steps none does."""
    model = gv.Model(gv.DoubleWell(4.0, 1.0), 1.0, gv.GaussianState(0.0, 4.0), gv.likelihoods.Gaussian(1.0))
    post = gv.infer(model, gv.TimeSeries([0.0, 0.1], [0.0, np.nan]), dt=0.1, progress=False)
    end, _, _ = start = 0.1, np.zeros(1), 4.0 * np.eye(1)
    wide = dataclasses.replace(post, moments=Moments(post.moments.m * 0.0, post.moments.S * 0.0 + 4.0, post.moments.C))
    long = euler_paths(model, np.array([1.0]), key=jax.random.key(0), n=200, dt=0.1, start=start)
    assert 0 < np.isfinite(long).sum() < long.size
    assert np.isfinite(wide.forecast([1.0], key=jax.random.key(0), n=200, dt=0.1)).all()
    explosive = gv.Model(lambda x, t: x**3, 1.0, gv.GaussianState(0.0, 4.0), gv.likelihoods.Gaussian(1.0), dim=1)
    with pytest.raises(ValueError, match=r"of 200 simulated paths are not finite from time 5"):
        dataclasses.replace(wide, model=explosive).forecast([end, 5.0], key=jax.random.key(0), n=200, dt=0.1)


def test_forecast_starts_at_the_end_of_the_horizon(linear):
    with pytest.raises(ValueError, match=r"at or after the horizon's end 1"):
        linear.forecast([0.9, 1.5], key=jax.random.key(0))
    with pytest.raises(ValueError, match="must increase"):
        linear.forecast([1.5, 1.2], key=jax.random.key(0))
    with pytest.raises(ValueError, match="finite"):
        linear.forecast([np.nan], key=jax.random.key(0))
    for dt in (0.0, -0.1, np.nan):
        with pytest.raises(ValueError, match="dt must be positive"):
            linear.forecast([1.5], key=jax.random.key(0), dt=dt)


def test_simulated_paths_and_observations_have_the_model_s_moments(linear):
    model, times = linear.model, np.array([0.0, 0.2, 0.7])
    keys = jax.random.split(jax.random.key(5), 600)
    draws = [gv.simulate(model, times, key=k, dt=0.01) for k in keys]
    paths = np.stack([d.path for d in draws])
    y = np.stack([d.series.values for d in draws])
    assert paths.shape == (600, 3, 2)
    assert y.shape == (600, 3, 3)
    for i, t in enumerate(times):
        assert_moments(paths[:, i], *sde_moments(np.array([1.0, -0.5]), 0.3 * np.eye(2), t))
    noise = y - paths @ H.T
    assert_moments(noise.reshape(-1, 3), np.zeros(3), R)
    # successive states are correlated as the SDE says: Cov(x_{t+s}, x_t) = e^{As} Cov(x_t)
    _, cov = sde_moments(np.array([1.0, -0.5]), 0.3 * np.eye(2), 0.2)
    wanted = scipy.linalg.expm(0.5 * A) @ cov
    e = paths - paths.mean(0)
    got = e[:, 2].T @ e[:, 1] / len(e)
    spread = np.outer(e[:, 2].std(0), e[:, 1].std(0))
    se = np.sqrt((spread**2 + wanted**2) / len(e))
    assert (np.abs(got - wanted) < TOLERANCES["standard_errors"] * se).all()


def test_simulation_is_reproducible_and_starts_where_told(linear):
    model, times = linear.model, np.array([0.5, 0.6])
    a, b, c = (gv.simulate(model, times, key=jax.random.key(k)) for k in (0, 0, 1))
    assert np.array_equal(a.path, b.path)
    assert np.array_equal(a.series.values, b.series.values)
    assert not np.array_equal(a.path, c.path)
    assert np.array_equal(a.series.times, times)
    sharp = gv.Model(gv.Linear(A, B), Q, gv.GaussianState([1.0, -0.5], 1e-12), gv.likelihoods.Gaussian(R), H)
    at_once = gv.simulate(sharp, times, key=jax.random.key(0)).path[0]
    later = gv.simulate(sharp, times, key=jax.random.key(0), start=0.0).path[0]
    assert np.abs(at_once - [1.0, -0.5]).max() < TOLERANCES["converged"]  # five deviations of 1e-6 and more
    assert np.abs(later - [1.0, -0.5]).max() > TOLERANCES["converged"]


# --- sites


@pytest.mark.parametrize("which", ["linear", "nonlinear"])
def test_sites_add_up_to_q_and_rebasing_leaves_it(which, request):
    post = request.getfixturevalue(which)
    sites = post.sites
    d, M = post.mean.shape[1], len(post.times) - 1
    rng = np.random.default_rng(0)
    other = Linearisation(rng.normal(size=(d, d, M)), rng.normal(size=(d, M)))
    moved = sites.rebase(other)
    back = moved.rebase(sites.base)
    for part in ("h", "J", "K"):
        q = getattr(post.natural, part)
        # at the optimum the target sites are those of q; the form of q by its sites has the rest of q as dense sites
        assert_close(composed(post)[part], q, "roundtrip" if which == "linear" else "optimum_moments", part)
        assert_close(getattr(sites.natural(), part), q, "roundtrip", part)
        assert_close(getattr(moved.natural(), part), q, "roundtrip", f"{part} after rebasing")
        # what is left of q once the base has been taken away, which for a linear drift is nothing
        there, here = (getattr(s.dense, part) for s in (back, sites))
        assert_close(there, here, "roundtrip", f"{part} there and back", size=q)
    assert not np.allclose(moved.dense.K, sites.dense.K)


def test_dense_sites_at_the_optimum_are_instantaneous(linear, nonlinear):
    """On single states, none between states; and none at all for a linear drift."""
    scale = np.abs(nonlinear.natural.K).max()
    assert np.abs(nonlinear.sites.dense.K).max() / scale < TOLERANCES["optimum"]
    assert np.abs(nonlinear.sites.dense.J).max() / scale > TOLERANCES["optimum_moments"]
    size = np.abs(linear.natural.J).max()
    for part in ("h", "J", "K"):
        dense = getattr(linear.sites.dense, part)
        assert_close(dense, np.zeros_like(dense), "exact", part, size=size)


def test_data_sites_of_gaussian_noise_are_the_data(linear):
    """λ = HᵀR⁻¹y and HᵀR⁻¹H, of the entries that were observed."""
    sites = linear.sites.data
    for i, (y, seen) in enumerate(zip(linear.series.values, linear.series.observed, strict=True)):
        P = np.linalg.inv(R[np.ix_(seen, seen)])
        assert_close(sites.potential[:, i], H[seen].T @ P @ y[seen], "exact", "potential")
        assert_close(sites.precision[..., i], H[seen].T @ P @ H[seen], "exact", "precision")


# --- xarray, files, figures


def test_to_xarray(linear):
    ds = linear.to_xarray()
    assert np.array_equal(ds["mean"].sel(time=linear.times[4]).values, linear.mean[4])
    assert ds["cov"].dims == ("time", "state", "state_")
    assert np.array_equal(ds["cov"].values, linear.cov)
    assert np.array_equal(ds["std"].values, linear.std)
    assert np.array_equal(ds["observations"].values, linear.series.values, equal_nan=True)
    assert np.array_equal(ds["observation_time"].values, linear.series.times)
    assert ds.attrs["elbo"] == linear.elbo
    assert ds.attrs["status"] == linear.status


def own_drift(x, t):
    return jnp.sin(t) - A @ x


NOISE = gv.likelihoods.Gaussian(R)
FILED = {
    "linear": gv.Model(gv.Linear(A, B), Q, gv.GaussianState([1.0, -0.5], 0.3), NOISE, H),
    "stationary": gv.Model(
        gv.OrnsteinUhlenbeck([1.0, 2.0]), [0.5, 0.7], "stationary", gv.likelihoods.StudentT(0.2, 3.0), H
    ),
    "mlp": gv.Model(gv.MLP(2, width=4, depth=2, activation="tanh", key=jax.random.key(0)), 0.3, None, NOISE, H),
    "van der Pol": gv.Model(gv.VanDerPol(4.0, 1.5), 0.3, None, gv.likelihoods.Poisson([1.0, 2.0, 3.0]), H),
    "sum": gv.Model(gv.Linear(A, B) + gv.OrnsteinUhlenbeck([0.5, 1.0], mean=0.3), 0.3, None, NOISE, H),
    "wells": gv.Model(gv.DoubleWell([4.0, 3.0], 1.0), 0.3, None, gv.likelihoods.Bernoulli(), H),
}


def assert_same(a, b):
    """Equal in structure, and in every number to the last bit."""
    left, right = jax.tree.flatten(a), jax.tree.flatten(b)
    assert left[1] == right[1]
    for x, y in zip(left[0], right[0], strict=True):
        assert np.asarray(x).dtype == np.asarray(y).dtype
        assert np.array_equal(x, y, equal_nan=True)


def test_a_posterior_over_dates(tmp_path):
    """The same numbers as with days counted by hand; dates in, dates out."""
    days = np.array(["2024-03-01", "2024-03-04", "2024-03-05T12"], "datetime64[h]")
    model, y = gv.Model(gv.OrnsteinUhlenbeck(0.5), likelihood=gv.likelihoods.Gaussian(0.1)), [1.0, 0.2, -0.3]
    post = gv.infer(model, gv.TimeSeries(days, y, unit="D"), dt=0.25)
    by_hand = gv.infer(model, gv.TimeSeries([0.0, 3.0, 4.5], y), dt=0.25)
    assert post.elbo == by_hand.elbo
    when = np.array(["2024-03-02T06"], "datetime64[h]")
    assert np.array_equal(post.marginals(when).mean, by_hand.marginals([1.25]).mean)
    future = {"key": jax.random.key(0), "n": 3}
    later = np.array(["2024-03-06T12"], "datetime64[h]")
    assert np.array_equal(post.forecast(later, **future), by_hand.forecast([5.5], **future))
    again = gv.load(post.save(tmp_path / "run.gv"))
    assert (again.series.unit, again.series.origin) == ("D", np.datetime64("2024-03-01"))
    assert again.to_xarray().date.values[-1] == np.datetime64("2024-03-05T12")
    assert "date" not in by_hand.to_xarray().coords
    axis = post.plot().axes[0]
    assert axis.get_xlabel() == "date"
    assert axis.lines[0].get_xdata()[-1] == np.datetime64("2024-03-05T12")
    test = gv.TimeSeries(days[1:] - np.timedelta64(6, "h"), [0.1, 0.2], unit="D", origin=post.series.origin)
    assert post.nlpd(test) == by_hand.nlpd(gv.TimeSeries([2.75, 4.25], [0.1, 0.2]))
    with pytest.raises(ValueError, match=r"counts time in D since 2024-03-03.*origin=series\.origin"):
        post.nlpd(gv.TimeSeries(days[1:] - np.timedelta64(6, "h"), [0.1, 0.2], unit="D"))
    with pytest.raises(ValueError, match="given as numbers"):
        by_hand.marginals(when)


@pytest.mark.parametrize("name", FILED)
def test_save_and_load_is_exact(linear, tmp_path, name):
    post = dataclasses.replace(linear, model=FILED[name])
    path = post.save(tmp_path / "run.gv")
    assert path == tmp_path / "run.gv"
    back = gv.load(path)
    assert isinstance(back, gv.Posterior)
    assert type(back.model.drift) is type(post.model.drift)
    assert_same(back.model, post.model)
    for field in ("times", "node", "moments", "natural", "target"):
        assert_same(getattr(back, field), getattr(post, field))
    for field in ("elbo", "status", "message", "seconds"):
        assert getattr(back, field) == getattr(post, field)
    for field in ("elbo", "step", "decrement"):
        assert np.array_equal(getattr(back.history, field), getattr(post.history, field))
    assert (back.history.passes, back.history.coarse) == (post.history.passes, post.history.coarse)
    assert np.array_equal(back.series.times, post.series.times)
    assert np.array_equal(back.series.values, post.series.values, equal_nan=True)


DRIFTS_OF_DRIFTS = {
    "force of the library": gv.Langevin(gv.DoubleWell(3.0, 1.2), 0.7),
    "force that is a sum": gv.Langevin(gv.DoubleWell(3.0, 1.2) + gv.OrnsteinUhlenbeck(0.4), 0.7),
    "in a sum": gv.Langevin(gv.DoubleWell(2.0)) + gv.HarmonicOscillator(2.0),
}


@pytest.mark.parametrize("name", DRIFTS_OF_DRIFTS)
def test_a_drift_of_drifts_is_saved_and_loaded(linear, tmp_path, name):
    drift = DRIFTS_OF_DRIFTS[name]
    model = gv.Model(drift, [0.0, 1.0], likelihood=gv.likelihoods.Gaussian(0.1), emission=[[1.0, 0.0]])
    back = gv.load(dataclasses.replace(linear, model=model).save(tmp_path / "run.gv"))
    assert_same(back.model, model)


def test_a_force_of_your_own_is_asked_for(linear, tmp_path):
    model = gv.Model(gv.Langevin(lambda x, t: -x), [0.0, 1.0], emission=[[1.0, 0.0]])
    path = dataclasses.replace(linear, model=model).save(tmp_path / "run.gv")
    with pytest.raises(ValueError, match=r"(?s)drift of your own.*drift=\.\.\."):
        gv.load(path)


def test_a_loaded_posterior_works_like_the_one_saved(linear, tmp_path):
    back = gv.load(linear.save(tmp_path / "run.gv"))
    t = [0.05, 0.77]
    assert np.array_equal(back.marginals(t).cov, linear.marginals(t).cov)
    assert np.array_equal(back.sample(jax.random.key(0), 2), linear.sample(jax.random.key(0), 2))
    test = gv.TimeSeries([0.3], [[0.1, 0.2, 0.3]])
    assert back.nlpd(test) == linear.nlpd(test)


def test_a_drift_of_your_own_must_be_given_again(linear, tmp_path):
    model = gv.Model(own_drift, Q, gv.GaussianState([1.0, -0.5], 0.3), NOISE, H)
    path = dataclasses.replace(linear, model=model).save(tmp_path / "run.gv")
    with pytest.raises(ValueError, match=r"drift of your own.*own_drift.*drift="):
        gv.load(path)
    assert gv.load(path, drift=own_drift).model.drift is own_drift


class Laplace(Elementwise):
    def log_density(self, y, z):
        return -jnp.abs(y - z) - jnp.log(2.0)

    def conditional(self, z):
        return z, jnp.full_like(z, 2.0)

    def sample(self, key, z):
        return z + jax.random.laplace(key, z.shape)

    def start(self, y):
        return y, jnp.ones_like(y)


def test_a_likelihood_of_your_own_must_be_given_again(linear, tmp_path):
    model = gv.Model(gv.Linear(A, B), Q, None, Laplace(), H)
    path = dataclasses.replace(linear, model=model).save(tmp_path / "run.gv")
    with pytest.raises(ValueError, match=r"likelihood of your own.*Laplace.*likelihood="):
        gv.load(path)
    assert isinstance(gv.load(path, likelihood=Laplace()).model.likelihood, Laplace)


@pytest.mark.parametrize("kind", ["text", "empty", "truncated", "another archive", "an array"])
def test_files_that_are_not_ours(linear, tmp_path, kind):
    path = tmp_path / "file"
    if kind == "text":
        path.write_bytes(b"t,y\n1,2\n")
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "truncated":
        whole = linear.save(path).read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
    else:
        with path.open("wb") as file:
            np.savez(file, a=np.zeros(3)) if kind == "another archive" else np.save(file, np.zeros(3))
    with pytest.raises(ValueError, match="is not a Girsanov file"):
        gv.load(path)


def test_no_file(tmp_path):
    with pytest.raises(ValueError, match=r"no file .*nowhere"):
        gv.load(tmp_path / "nowhere")


def test_a_file_of_a_later_version_says_so(linear, tmp_path, monkeypatch):
    from girsanov.result import saving

    monkeypatch.setattr(saving, "FORMAT", 99)
    path = linear.save(tmp_path / "run.gv")
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"format 99.*upgrade"):
        gv.load(path)


def test_plot_returns_a_figure(linear, nonlinear):
    import matplotlib.pyplot as plt

    figure = linear.plot(labels=["position", "speed"])
    assert [ax.get_ylabel() for ax in figure.axes] == ["position", "speed", "$y_{1}$", "$y_{2}$", "$y_{3}$"]
    mean, data = figure.axes[-1].lines
    assert_close(mean.get_ydata(), linear.predict(linear.times).mean[:, 2], "exact")
    assert np.array_equal(data.get_ydata(), linear.series.values[:, 2], equal_nan=True)
    plt.close(figure)
    truth = (nonlinear.times, np.zeros(len(nonlinear.times)))
    figure = nonlinear.plot(test=gv.TimeSeries([0.5], [0.3]), truth=truth)
    (ax,) = figure.axes
    lines = {line.get_label(): line for line in ax.lines}
    assert np.array_equal(lines["observations"].get_ydata(), nonlinear.series.values[:, 0], equal_nan=True)
    assert np.array_equal(lines["held out"].get_ydata(), [0.3])
    assert np.array_equal(lines["true path"].get_ydata(), truth[1])
    assert np.array_equal(ax.lines[0].get_ydata(), nonlinear.mean[:, 0])
    plt.close(figure)
    _, own = plt.subplots()
    assert nonlinear.plot(axes=own) is own.figure
    plt.close(own.figure)
