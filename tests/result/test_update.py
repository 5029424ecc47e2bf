"""`post.update`: a posterior extended piece by piece is that of all data together, at a share of the work."""

import jax
import numpy as np
import pytest
from tolerances import TOLERANCES

import girsanov as gv

METHOD = gv.CVIDP(tolerance=1e-12)
GAP, DT = 0.25, 0.05


def linear() -> gv.Model:
    drift = gv.Linear([[-0.8, 1.0], [-1.0, -0.6]], [0.1, 0.2])
    start = gv.GaussianState([1.0, 0.0], 0.3)
    return gv.Model(drift, [0.4, 0.2], start, gv.likelihoods.Gaussian(0.1), [[1.0, 0.0]])


def double_well() -> gv.Model:
    return gv.Model(gv.DoubleWell(2.0, 1.0), 0.8, gv.GaussianState(0.5, 0.2), gv.likelihoods.Gaussian(0.05))


def growth() -> gv.Model:
    drift, noise = gv.Polynomial([0.0, 1.0, -1.0]), gv.diffusions.Proportional(0.5)
    return gv.Model(drift, noise, gv.GaussianState(0.5, 0.05), gv.likelihoods.LogNormal(0.05))


def simulated(model, n) -> gv.TimeSeries:
    times = GAP * np.arange(1, n + 1)
    return gv.simulate(model, times, key=jax.random.key(1), start=0.0, dt=0.01).series


def in_pieces(model, series, count, method=METHOD) -> list[gv.Posterior]:
    """The posteriors after each piece of the series."""
    parts = [series.subset(slice(k[0], k[-1] + 1)) for k in np.array_split(np.arange(len(series)), count)]
    posts = [gv.infer(model, parts[0], DT, (0.0, parts[0].times[-1]), method=method)]
    for part in parts[1:]:
        posts.append(posts[-1].update(part, method=method))
    return posts


def assert_same(post: gv.Posterior, whole: gv.Posterior) -> None:
    assert post.status == whole.status == "converged"
    assert np.abs(post.times - whole.times).max() < TOLERANCES["same_time"]
    assert np.array_equal(post.node, whole.node)
    assert np.array_equal(post.series.values, whole.series.values, equal_nan=True)
    assert abs(post.elbo - whole.elbo) < TOLERANCES["optimum"]
    for name in ("mean", "cov", "lag_cov"):
        assert np.abs(getattr(post, name) - getattr(whole, name)).max() < TOLERANCES["functional"]


@pytest.mark.slow
def test_a_linear_model_takes_one_pass_over_the_end(tmp_path):
    model, series = linear(), simulated(linear(), 240)
    posts = in_pieces(model, series, 3)
    whole = gv.infer(model, series, DT, (0.0, 60.0), method=METHOD)
    assert_same(posts[-1], whole)
    assert posts[-1].history.passes == 1
    assert posts[-1].history.node_passes < len(whole.times)
    # The pieces of a posterior fit each other: paths, sites and predictions use all of them.
    assert (
        np.abs(posts[-1].sites.natural().J - whole.natural.J).max() < TOLERANCES["functional"] * whole.natural.J.max()
    )
    assert np.abs(posts[-1].marginals([40.01]).mean - whole.marginals([40.01]).mean).max() < TOLERANCES["functional"]
    loaded = gv.load(posts[-1].save(tmp_path / "post.gv"))
    assert loaded.history.node_passes == posts[-1].history.node_passes
    assert loaded.elbo == posts[-1].elbo


@pytest.mark.slow
@pytest.mark.parametrize("make", [double_well, growth])
def test_ten_pieces_are_the_whole(make):
    model, series = make(), simulated(make(), 200)
    posts = in_pieces(model, series, 10)
    assert_same(posts[-1], gv.infer(model, series, DT, (0.0, 50.0), method=METHOD))
    assert len(posts[-1].history) > 1


@pytest.mark.slow
def test_a_short_path_and_one_in_continuous_time_are_inferred_as_a_whole():
    model, series = double_well(), simulated(double_well(), 12)
    for method in (METHOD, gv.CVIDP(time="continuous", tolerance=1e-10)):
        post = in_pieces(model, series, 3, method)[-1]
        assert_same(post, gv.infer(model, series, DT, (0.0, 3.0), method=method))


def test_missing_entries_dates_and_covariates_go_on():
    model = gv.Model(gv.OrnsteinUhlenbeck(0.5), 0.3, gv.GaussianState(0.0, 0.3), gv.likelihoods.Gaussian(0.1))
    days = np.datetime64("2024-03-01") + np.arange(6)
    y = [0.1, np.nan, 0.4, 0.2, np.nan, 0.3]
    whole = gv.TimeSeries(days, y, unit="D", covariates={"dose": 2.0})
    post = gv.infer(model, whole.subset(slice(0, 4)), 0.5)
    later = gv.TimeSeries(days[4:], y[4:], unit="D", origin=whole.origin)
    post = post.update(later)
    assert_same(post, gv.infer(model, whole, 0.5))
    assert post.series.covariates == {"dose": 2.0}
    assert post.series.origin == whole.origin
    with pytest.raises(ValueError, match=r"counts time in None since None, the old one in D since 2024-03-01"):
        post.update(gv.TimeSeries([9.0], [1.0]))


@pytest.fixture(scope="module")
def short() -> gv.Posterior:
    return gv.infer(double_well(), gv.TimeSeries([0.0, 0.5, 1.0], [0.1, 0.2, 0.3], covariates={"dose": 1.0}), 0.1)


@pytest.mark.parametrize(
    ("series", "options", "says"),
    [
        (([1.0], [1.0]), {}, r"times\[0\] = 1 is not after the end of the horizon, 1; infer with all of the data"),
        (([2.0], [[1.0, 2.0]]), {}, r"the series has 2 values at each time, but the model observes 1"),
        (([2.0], [1.0], [0.1]), {}, r"the new observations have known errors and the old ones do not"),
        (([2.0], [1.0]), {"dt": 0.1, "grid": [2.0]}, r"give either dt="),
        (([2.0], [1.0]), {"grid": [0.5, 2.0]}, r"grid must have the new nodes only"),
        (([2.0], [1.0]), {"grid": [1.5, 2.5]}, r"the grid misses the observation at time 2.0"),
        (([2.0], [1.0]), {"method": gv.VDP()}, r"update takes method=gv.CVIDP"),
    ],
)
def test_what_is_no_later_observation(short, series, options, says, as_a_user):
    errors = {"errors": series[2]} if len(series) == 3 else {}
    with pytest.raises(ValueError, match=says):
        short.update(gv.TimeSeries(*series[:2], **errors), **options)
    with pytest.raises(ValueError, match=r"update is for series without inputs"):
        short.update(gv.TimeSeries([2.0], [1.0], inputs=gv.Inputs([0.0, 3.0], [1.0, 2.0])))
    with pytest.raises(ValueError, match=r"covariates \{'dose': 2.0\}, the old ones \{'dose': 1.0\}"):
        short.update(gv.TimeSeries([2.0], [1.0], covariates={"dose": 2.0}))


@pytest.mark.slow
def test_a_posterior_that_is_no_optimum_is_inferred_as_a_whole():
    model, series = double_well(), simulated(double_well(), 60)
    post = gv.infer(model, series.subset(slice(0, 40)), DT, (0.0, 10.0), max_iterations=0)
    assert post.status == "max_iterations"
    post = post.update(series.subset(slice(40, 60)), method=METHOD)
    assert_same(post, gv.infer(model, series, DT, (0.0, 15.0), method=METHOD))
    assert post.history.node_passes is None
