"""Inference in panels: the posteriors of single calls, one program for all series, and series that fail alone."""

import warnings

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
from support import assert_compiles_nothing, count_compilations
from tolerances import TOLERANCES

import girsanov as gv
from girsanov.inference.many import buckets, capacity

DT = 0.05


def double_well(scale=2.0) -> gv.Model:
    return gv.Model(gv.DoubleWell(scale, 1.0), 0.8, gv.GaussianState(0.5, 0.2), gv.likelihoods.Gaussian(0.05))


def observed(model, n, seed, last=2.0) -> gv.TimeSeries:
    times = np.sort(np.random.default_rng(seed).uniform(0.1, last, n))
    return gv.simulate(model, times, key=jax.random.key(seed), start=0.0, dt=1e-2).series


def a_panel(model) -> gv.Panel:
    """Lengths, spans and missing values differ, and one series has known errors."""
    series = {f"s{k}": observed(model, 5, k) for k in range(4)}
    series["long"] = observed(model, 9, 7, last=4.0)
    gone = series["s1"].values.copy()
    gone[2] = np.nan
    series["s1"] = gv.TimeSeries(series["s1"].times, gone)
    return gv.Panel(series)


def spans(panel) -> dict:
    return {name: (0.0, 4.0 if name == "long" else 2.0) for name in panel}


def assert_same(post: gv.Posterior, single: gv.Posterior) -> None:
    tolerance = TOLERANCES["mapped"]
    assert (post.status, post.message, post.time) == (single.status, single.message, single.time)
    assert np.array_equal(post.times, single.times)
    assert np.array_equal(post.node, single.node)
    assert abs(post.elbo - single.elbo) < tolerance
    assert post.history.elbo.shape == single.history.elbo.shape
    assert len(post.history.coarse) == len(single.history.coarse)
    pairs = zip(
        jax.tree.leaves((post.moments, post.target)), jax.tree.leaves((single.moments, single.target)), strict=True
    )
    for got, wanted in pairs:
        assert got.shape == wanted.shape
        assert np.abs(got - wanted).max() <= tolerance * max(1.0, np.abs(wanted).max())


METHODS = {
    "discrete": (gv.CVIDP(), DT),
    "from coarser grids": (gv.CVIDP(), 0.0035),
    "mirror descent": (gv.CVIDP(rho=0.5), DT),
    "continuous": (gv.CVIDP(time="continuous"), DT),
    "VDP": (gv.VDP(), DT),
}


@pytest.mark.parametrize("name", [k if k == "discrete" else pytest.param(k, marks=pytest.mark.slow) for k in METHODS])
def test_posteriors_are_those_of_single_calls(name):
    method, dt = METHODS[name]
    model = double_well()
    panel = a_panel(model)
    posts = gv.infer(model, panel, dt, spans(panel), method=method, progress=False)
    assert list(posts) == panel.names
    for name in ("s0", "s1", "long"):
        assert_same(posts[name], gv.infer(model, panel[name], dt, spans(panel)[name], method=method, progress=False))
    assert posts.converged
    assert posts.elbo == sum(post.elbo for post in posts.values())
    assert posts[f"s{0}"] is posts["s0"]
    with pytest.raises(KeyError, match="there is no series 'x'; the panel has 's0'"):
        posts["x"]


@pytest.mark.slow
def test_two_states_with_errors_and_a_careful_model():
    model = gv.Model(
        gv.VanDerPol(1.0, 1.0), 0.3, gv.GaussianState([1.0, 0.0], 0.3), emission=[[1.0, 0.0]],
    )  # fmt: skip
    sharp = gv.Model(gv.OrnsteinUhlenbeck(1.0), 1e-12, gv.GaussianState(0.0, 1.0), gv.likelihoods.Gaussian(0.05))
    for stated, names in ((model, ("s0", "e")), (sharp, ("s0",))):
        panel = dict(a_panel(double_well()))
        t, y = panel["s2"].times, panel["s2"].values
        panel["e"] = gv.TimeSeries(t, y, errors=np.full_like(y, 0.2))
        panel = gv.Panel(panel)
        with warnings.catch_warnings(action="ignore"):
            posts = gv.infer(stated, panel, DT, (0.0, 4.0), progress=False)
            for name in names:
                assert_same(posts[name], gv.infer(stated, panel[name], DT, (0.0, 4.0), progress=False))


def test_another_panel_of_the_same_sizes_compiles_nothing():
    model = double_well()
    first, other = (gv.Panel([observed(model, 5, 10 * s + k) for k in range(5)]) for s in (1, 2))
    gv.infer(model, first, DT, (0.0, 2.0), progress=False)
    assert_compiles_nothing(lambda: gv.infer(double_well(2.5), other, DT, (0.0, 2.0), progress=False))
    with count_compilations() as made:
        gv.infer(model, other.subset(["3", "1", "0", "4", "2"]), DT, (0.0, 1.99), progress=False)
    assert len(made) == 0


def picky() -> gv.Model:
    """The drift is defined up to 3 only, where no more than one of the series lies."""
    return gv.Model(
        lambda x, t: jnp.where(x < 3.0, -x, jnp.nan), 0.1, gv.GaussianState(0.0, 0.01), gv.likelihoods.Gaussian(0.05)
    )


def test_a_series_that_fails_takes_nobody_along(tmp_path):
    model = picky()
    good, bad = gv.TimeSeries([0.5, 1.0], [0.1, 0.2]), gv.TimeSeries([0.5, 1.0], [9.0, 9.0])
    with pytest.warns(
        UserWarning, match=r"not converged for 1 of 3 series \(1 bad_start\); the first is 'b': .*drift"
    ) as w:
        posts = gv.infer(model, gv.Panel({"a": good, "b": bad, "c": good}), 0.1, (0.0, 1.0), progress=False)
    assert len(w) == 1
    assert posts.statuses == {"a": "converged", "b": "bad_start", "c": "converged"}
    assert not posts.converged
    assert posts.elbo == posts["b"].elbo == -np.inf
    assert np.isnan(posts["b"].mean).all()
    assert "the drift returned" in posts.messages["b"] == posts["b"].message
    assert_same(posts["a"], gv.infer(model, good, 0.1, (0.0, 1.0), progress=False))
    with pytest.raises(ValueError, match=r"none of the 1 series could be started; series 'b': .*the drift returned"):
        gv.infer(model, gv.Panel({"b": bad}), 0.1, (0.0, 1.0), progress=False)
    loaded = gv.load(posts.save(tmp_path / "p.gv"), drift=model.drift)
    assert loaded.statuses == posts.statuses


def test_results_of_a_panel(tmp_path):
    model = double_well()
    panel = a_panel(model)
    posts = gv.infer(model, panel, DT, (0.0, 4.0), progress=False)
    test = gv.Panel({name: observed(model, 4, 31) for name in ("s0", "s3")})
    each = np.concatenate([posts[name].nlpd_values(one) for name, one in test.items()])
    assert abs(posts.nlpd(test) - each.mean()) < TOLERANCES["exact"]
    with pytest.raises(ValueError, match="the test data: there is no series 'q'"):
        posts.nlpd(gv.Panel({"q": test["s0"]}))

    loaded = gv.load(posts.save(tmp_path / "panel.gv"))
    assert (list(loaded), loaded.elbos, loaded.seconds) == (list(posts), posts.elbos, posts.seconds)
    for name in posts:
        assert_same(loaded[name], posts[name])
        assert np.array_equal(loaded.panel[name].values, panel[name].values, equal_nan=True)

    figure = posts.plot(test=test)
    assert [ax.get_title() for ax in figure.axes if ax.get_visible()] == list(posts)
    assert len(posts.plot(names=["s1"]).axes) == 1
    plt.close("all")
    assert repr(posts).startswith(f"PanelPosterior(5 series, d=1, elbo={posts.elbo:.6g}, 5 converged")

    pytest.importorskip("xarray")
    table = posts.to_xarray()
    N = len(posts["s0"].times)
    assert dict(table.sizes) | {
        "series": 5,
        "node": max(len(post.times) for post in posts.values()),
        "observation": 9,
    } == dict(table.sizes)
    assert np.array_equal(table["mean"].sel(series="s0")[:N], posts["s0"].mean)
    assert np.isnan(table["mean"].sel(series="s0")[N:]).all()
    assert table["elbo"].values.tolist() == list(posts.elbos.values())


def test_steps_that_are_too_long_are_warned_of_once():
    model = gv.Model(gv.OrnsteinUhlenbeck(40.0), likelihood=gv.likelihoods.Gaussian(0.1))
    panel = gv.Panel([gv.TimeSeries([0.5, 1.0], [0.1 * k, 0.2]) for k in range(3)])
    with pytest.warns(UserWarning, match="3 of 3 series have steps that are too long; the first is '0': the step") as w:
        gv.infer(model, panel, 0.1, (0.0, 1.0), progress=False)
    assert len(w) == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"span": {"a": (0.0, 2.0)}}, "span= has no entry for series 'b'"),
        ({"span": {"a": (0.0, 2.0), "b": (0.0, 2.0), "c": (0.0, 2.0)}}, "not in the panel: there is no series 'c'"),
        ({"span": (0.0, 0.7)}, r"series 'b': the observation at times\[0\] = 1.5 lies outside span"),
        ({"dt": None}, "series 'a': give either dt="),
        ({"start": 3}, "start= is for a single series"),
        ({"model": gv.Model(gv.Benes(), likelihood=gv.likelihoods.Poisson())}, "series 'b': .*is -1"),
    ],
    ids=["no span", "an unknown span", "outside", "no step", "start", "values"],
)
def test_bad_input_names_the_series(options, says, as_a_user):
    panel = gv.Panel({"a": gv.TimeSeries([0.5], [1.0]), "b": gv.TimeSeries([1.5, 1.8], [2.0, -1.0])})
    with pytest.raises(ValueError, match=says):
        gv.infer(**{"model": double_well(), "series": panel, "dt": 0.1, "span": (0.0, 2.0), **options})


def test_buckets():
    assert [capacity(n) for n in (1, 16, 17, 100, 200, 300)] == [16, 16, 32, 112, 224, 320]
    assert buckets([100, 300, 200], 1) == [[0, 1, 2]]
    assert buckets([100] * 3000 + [9000], 1) == [[3000], list(range(3000))]
