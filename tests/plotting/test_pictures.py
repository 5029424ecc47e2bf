"""Pictures: what is drawn is the data, the posterior, and what `predict_quantiles` says; axes say what they show."""

import itertools

import jax
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import scipy.stats as st
from matplotlib.colors import to_rgb
from matplotlib.ticker import MaxNLocator
from support import assert_close
from tolerances import TOLERANCES

import girsanov as gv
from girsanov.model.predictive_law import Predictive
from girsanov.plotting import labels, style

matplotlib.use("Agg")
TAIL = st.norm.cdf(-2.0)
QUIET = {"progress": False}


@pytest.fixture(autouse=True)
def no_figure_stays():
    yield
    plt.close("all")


def lines(ax) -> dict:
    return {line.get_label(): line for line in ax.lines}


def areas(ax) -> list[np.ndarray]:
    """Lower and upper ends of every area between two curves, (2, n), from its outline."""
    found = []
    for area in ax.collections:
        if isinstance(area, matplotlib.collections.PolyCollection):
            corners = area.get_paths()[0].vertices
            n = (len(corners) - 3) // 2  # first point, n below, corner, n above in reverse, and the closing point
            found.append(np.stack([corners[1 : n + 1, 1], corners[n + 2 : -1, 1][::-1]]))
    return found


@pytest.fixture(scope="module")
def wells():
    model = gv.Model(gv.DoubleWell(4.0, 1.0), 1.0, gv.GaussianState(1.0, 0.1), gv.likelihoods.Gaussian(0.04))
    series = gv.simulate(model, np.arange(1, 17) * 0.5, key=jax.random.key(3), dt=0.05, start=0.0).series
    return gv.infer(model, series, dt=0.1, span=(0.0, 8.0), **QUIET)


@pytest.fixture(scope="module")
def counts():
    model = gv.Model(gv.OrnsteinUhlenbeck(0.5), 0.5, likelihood=gv.likelihoods.Poisson(3.0), output_names="deaths")
    series = gv.simulate(model, np.arange(1, 21) * 0.5, key=jax.random.key(1), dt=0.05, start=0.0).series
    dates = np.datetime64("2020-02-01T00", "s") + (86400 * series.times).astype("timedelta64[s]")
    return gv.infer(model, gv.TimeSeries(dates, series.values, unit="D"), dt=0.25, **QUIET)


@pytest.fixture(scope="module")
def neuron():
    names = ["voltage", "recovery"]
    model = gv.Model(gv.FitzHughNagumo(), [0.02, 0.01], gv.GaussianState([0.0, 0.0], 0.1), state_names=names)
    series = gv.simulate(model, np.arange(1, 16) * 1.0, key=jax.random.key(1), dt=0.1, start=0.0).series
    return gv.infer(model, series, dt=0.25, span=(0.0, 15.0), **QUIET)


def test_colours_are_told_apart_with_and_without_red_and_green():
    """Seen by somebody without one kind of cones (Viénot, Brettel and Mollon 1999), any two lie well apart."""
    linear = np.array([to_rgb(c) for c in style.COLOURS]) ** 2.2
    no_red = np.array([[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]])
    no_green = np.array([[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]])
    for seen in (np.eye(3), no_red, no_green):
        rgb = np.clip(linear @ seen.T, 0.0, 1.0) ** (1 / 2.2)
        apart = np.abs(rgb[:, None] - rgb[None]).max(-1) + np.eye(len(rgb))
        assert apart.min() > 0.1


def test_counts_are_drawn_on_their_own_scale_with_the_quantiles_of_predictions(counts):
    figure = counts.plot()
    state, data = figure.axes
    assert set(lines(state)) == {"posterior mean, ±2 sd"}  # the log rate has no data on its axis
    assert np.array_equal(lines(data)["observations"].get_ydata(), counts.series.values[:, 0])
    assert np.array_equal(lines(data)["observations"].get_xdata(), counts.series.dates(counts.series.times))
    low, high = counts.predict_quantiles(counts.times, [TAIL, 1.0 - TAIL])[:, :, 0]
    assert np.array_equal(areas(data)[0], [low, high]) and low.min() == 0.0
    assert (data.get_ylabel(), data.get_xlabel(), state.get_xlabel()) == ("deaths", "date", "")
    figure.canvas.draw()
    ticks = data.get_yticks()
    assert np.array_equal(ticks, np.round(ticks))


def test_the_band_of_a_directly_observed_state_is_that_of_the_posterior(wells):
    (ax,) = wells.plot().axes
    assert_close(areas(ax)[0], np.stack(wells.band())[:, :, 0], "exact")
    assert np.array_equal(lines(ax)["observations"].get_ydata(), wells.series.values[:, 0])


def test_errors_are_bars_and_limits_are_lines_with_triangles():
    y, sd = np.array([0.9, 0.2, 0.2, 1.4, np.nan]), np.array([0.1, 0.2, 0.1, 0.3, np.nan])
    model = gv.Model(gv.OrnsteinUhlenbeck(1.0), likelihood=gv.likelihoods.Censored(0.1, low=0.2))
    post = gv.infer(model, gv.TimeSeries(np.arange(1.0, 6.0), y, errors=sd), dt=0.5, **QUIET)
    (ax,) = post.plot().axes
    (bars,) = ax.containers
    assert bars.get_label() == "observations, ±2 errors"
    assert np.array_equal(bars[0].get_ydata(), [0.9, np.nan, np.nan, 1.4, np.nan], equal_nan=True)
    ends = np.array([segment[:, 1] for segment in bars[2][0].get_segments() if len(segment)])
    assert_close(ends[[0, -1]] if len(ends) == 2 else ends[np.isfinite(ends).all(1)], [[0.7, 1.1], [0.8, 2.0]], "exact")
    drawn = lines(ax)
    assert np.array_equal(drawn["at the limit"].get_xdata(), [2.0, 3.0])
    assert set(drawn["detection limit"].get_ydata()) == {0.2}


def test_names_and_units_of_equations_are_on_the_axes():
    model = gv.Model.from_equations(
        {
            "states": {"n": {"drift": "r * n", "noise": "0.1", "unit": "thousands", "start": 1.0}},
            "outputs": {"seen": {"measures": "2 * n", "sd": 0.5, "distribution": "gaussian", "unit": "$/kg"}},
            "parameters": {"r": {"start": -0.2, "unit": "1/year"}},
        }
    )
    series = gv.TimeSeries(np.timedelta64(1, "h") * np.arange(1, 9), np.linspace(2.0, 1.0, 8), unit="h")
    figure = gv.infer(model, series, dt=0.5, **QUIET).plot()
    figure.canvas.draw()  # the dollar sign is text, and no formula that cannot be read
    assert [ax.get_ylabel() for ax in figure.axes] == ["n (thousands)", r"seen (\$/kg)"]
    assert figure.axes[-1].get_xlabel() == "time (hours)"
    assert labels.parameter_label(model, "r") == "r (1/year)"


def test_thousands_of_points_are_all_drawn_small_and_as_an_image(wells):
    import dataclasses

    t = np.linspace(0.01, 7.99, 5000)
    many = dataclasses.replace(wells, series=gv.TimeSeries(t, np.sin(t)))
    (ax,), (few,) = many.plot().axes, wells.plot().axes
    line, other = lines(ax)["observations"], lines(few)["observations"]
    assert np.array_equal(line.get_ydata(), np.sin(t))
    assert line.get_rasterized() and not other.get_rasterized()
    assert line.get_markersize() < 0.5 * other.get_markersize()


def test_long_paths_are_thinned_but_keep_their_ends():
    assert np.array_equal(style.nodes_to_draw(np.arange(7.0)), np.arange(7))
    kept = style.nodes_to_draw(np.arange(50_000.0))
    assert len(kept) <= 3000 and (kept[0], kept[-1]) == (0, 49_999) and np.diff(kept).max() <= 17


def test_many_coordinates_get_several_columns():
    for panels, columns in ((1, 1), (6, 1), (9, 2), (40, 3)):
        axes = style.new_axes(panels)
        figure = axes[0].figure
        assert list(figure.axes) == list(axes) and len(axes) == panels
        assert figure.get_size_inches()[0] < 11.0 and len(style.bottom(axes)) == columns
        assert axes[0].get_subplotspec().get_gridspec().ncols == columns


def test_the_phase_plane_has_the_path_the_data_and_the_lines_of_no_drift(neuron):
    ax = neuron.plot_phase("voltage", "recovery")
    drawn = lines(ax)
    assert np.array_equal(drawn["posterior mean, 95 %"].get_xydata(), neuron.mean)
    assert np.array_equal(drawn["observations"].get_xydata(), neuron.series.values)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("voltage", "recovery")
    zero = next(c for c in ax.collections if isinstance(c, matplotlib.contour.ContourSet))
    v, w = np.concatenate([path.vertices for path in zero.get_paths()]).T  # where v − v³/3 − w + current is zero
    inside = np.abs(v) < 1.5
    assert_close(w[inside], (v - v**3 / 3.0 + 0.5)[inside], "learnt")
    ellipse = next(patch for patch in ax.patches if isinstance(patch, matplotlib.patches.Ellipse))
    radii = np.sqrt(st.chi2(2).ppf(0.95) * np.linalg.eigvalsh(neuron.cov[0]))
    assert_close(np.sort([ellipse.width, ellipse.height]), 2.0 * radii, "exact")
    assert neuron.plot_phase(1, 0, ax=ax) is ax
    with pytest.raises(ValueError, match=r"y must be voltage, recovery or a number from 0 to 1, got 'speed'"):
        neuron.plot_phase("voltage", "speed")


def test_one_coordinate_has_no_phase_plane(wells):
    with pytest.raises(ValueError, match=r"y must be a number from 0 to 0, got 1"):
        wells.plot_phase()
    with pytest.raises(ValueError, match=r"two coordinates, got 0 twice; plot_drift"):
        wells.plot_phase(0, 0)


def test_the_drift_is_drawn_over_the_time_spent_at_each_state(wells):
    ax = wells.plot_drift()
    x, f = lines(ax)["drift"].get_data()
    assert_close(f, 4.0 * x * (1.0 - x**2), "exact")
    low, high = wells.band()
    assert x[0] < low.min() and x[-1] > high.max()
    (area,) = areas(ax)
    share = area[1] / area[1].max()
    weight = np.gradient(wells.times)
    wanted = (st.norm(wells.mean[:, 0], wells.std[:, 0]).pdf(x[:, None]) * weight).sum(1)
    assert_close(share, wanted / wanted.max(), "exact")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("$x$", "drift of $x$")


def test_the_band_of_a_learnt_drift_follows_from_the_covariance_of_its_parameters(wells):
    fit = gv.learn(wells.model, wells.series, 0.1, (0.0, 8.0), trainable=["drift"], check=False, **QUIET)
    ax = fit.plot_drift()
    x = lines(ax)["drift"].get_xdata()
    scale, well = (float(fit.parameters[name]) for name in ("drift.scale", "drift.well"))
    assert list(fit.standard_errors) == ["drift.scale", "drift.well"]
    slopes = np.stack([x * (well - x**2), scale * x], -1)  # of scale x (well − x²) in scale and in well
    sd = np.sqrt(np.einsum("ki,ij,kj->k", slopes, fit.covariance, slopes))
    low, high = areas(ax)[0]
    assert_close(0.25 * (high - low), sd, "gradient")


def test_fits_have_integer_ticks_and_intervals(wells):
    fit = gv.learn(wells.model, wells.series, 0.1, (0.0, 8.0), trainable=["drift"], check=False, **QUIET)
    figure = fit.plot()
    figure.canvas.draw()
    assert [ax.get_ylabel() for ax in figure.axes] == ["drift.scale", "drift.well", "bound (nats)"]
    for ax in figure.axes:
        assert isinstance(ax.xaxis.get_major_locator(), MaxNLocator)
        assert np.array_equal(ax.get_xticks(), np.round(ax.get_xticks()))
    for ax, name in zip(figure.axes, fit.history.parameters, strict=False):
        assert np.array_equal(ax.lines[0].get_ydata(), fit.history.parameters[name])
        (span,) = ax.patches
        value, sd = float(fit.parameters[name]), fit.standard_errors[name]
        assert_close([span.get_y(), span.get_height()], [value - 2.0 * sd, 4.0 * sd], "exact")
    assert figure.axes[-1].get_xlabel() == "iteration"


def test_a_forecast_is_a_fan_of_observations(counts):
    """It holds the noise of observations: whole numbers, none below zero, and as wide as simulated counts."""
    later = counts.series.dates(np.array([9.5, 11.0, 14.0]))
    figure = counts.plot_forecast(later, key=jax.random.key(0), n=4000)
    (ax,) = figure.axes
    assert np.array_equal(lines(ax)["observations"].get_ydata(), counts.series.values[:, 0])
    _, *fan = areas(ax)
    assert len(fan) == 3 and all((inner[0] >= outer[0]).all() for outer, inner in itertools.pairwise(fan))
    assert fan[0].min() == 0.0 and np.array_equal(fan[0], np.round(fan[0]))
    # At the last node the fan begins with the prediction there.
    laws = Predictive(counts.model, counts.times[-1:], *(a[-1:] for a in (counts.mean, counts.cov)))
    for q, y in zip((0.1, 0.9), fan[1][:, 0], strict=True):
        error = TOLERANCES["standard_errors"] * np.sqrt(q * (1.0 - q) / 4000)
        assert laws.cdf(0, np.array([y]))[0][0] - error < q < laws.cdf(0, np.array([y]))[1][0] + error
    assert ax.get_xlabel() == "date" and ax.get_ylabel() == "deaths"


def test_the_command_line_draws_a_fan_over_the_states_of_counts(counts, tmp_path):
    from girsanov.cli.output import save_figure

    fan = np.array([9.5, 12.0]), np.array([[[-1.0], [-1.5]], [[0.0], [0.0]], [[1.0], [1.5]]])
    save_figure(counts, tmp_path / "figure.png", fan=fan)
    state, data = plt.gcf().axes
    assert np.array_equal(lines(state)["forecast median, 90 %"].get_ydata(), [0.0, 0.0])
    assert "forecast median, 90 %" not in lines(data) and (tmp_path / "figure.png").stat().st_size > 0


@pytest.fixture(scope="module")
def linear():
    """A linear model with known answers: an Ornstein–Uhlenbeck process with a mean that is wrong for the data."""
    model = gv.Model(gv.OrnsteinUhlenbeck(0.8), 0.5, gv.GaussianState(0.3, 0.4), gv.likelihoods.Gaussian(0.1))
    t, y = np.array([0.5, 1.0, 2.0, 2.5, 4.0]), np.array([0.4, -0.3, np.nan, 0.9, 2.0])
    sd = np.array([0.0, 0.3, np.nan, 0.0, 0.2])
    return gv.infer(model, gv.TimeSeries(t, y, errors=sd), dt=0.1, span=(0.0, 4.0), **QUIET)


def dense(post):
    """Mean, covariance and noise of all observations that are there, by Euler–Maruyama written out."""
    t, N = post.times, len(post.times)
    gaps = np.diff(t)
    T = np.eye(N)
    for m, gap in enumerate(gaps):
        T[m + 1] = (1.0 - 0.8 * gap) * T[m]
        T[m + 1, m + 1] = 1.0
    K = T @ np.diag(np.concatenate([[0.4], 0.5 * gaps])) @ T.T
    seen = post.series.observed[:, 0]
    at = np.searchsorted(t, post.series.times[seen] - 1e-9)
    noise = 0.1 + post.series.errors[seen, 0] ** 2
    return (0.3 * T[:, 0])[at], K[np.ix_(at, at)], noise, post.series.values[seen, 0]


def test_residuals_ahead_are_the_innovations(linear):
    m, K, R, y = dense(linear)
    got = linear.residuals(progress=False)
    wanted = []
    for i in range(1, len(y)):
        G = np.linalg.solve(K[:i, :i] + np.diag(R[:i]), K[:i, i])
        mean, variance = m[i] + G @ (y[:i] - m[:i]), K[i, i] - G @ K[:i, i] + R[i]
        wanted.append((y[i] - mean) / np.sqrt(variance))
    assert np.array_equal(got.index, [1, 3, 4]) and got.good.all()
    assert_close(got.values[:, 0], wanted, "optimum")
    assert_close(got.pit[:, 0], st.norm.cdf(wanted), "optimum")


def test_residuals_left_out_are_those_of_all_others(linear):
    m, K, R, y = dense(linear)
    got = linear.residuals("left out")
    P = np.linalg.inv(K + np.diag(R))
    assert np.array_equal(got.index, [0, 1, 3, 4])
    assert_close(got.values[:, 0], (P @ (y - m)) / np.sqrt(np.diagonal(P)), "optimum")
    with pytest.raises(ValueError, match="kind must be 'ahead' or 'left out', got 'smoothed'"):
        linear.residuals("smoothed")


def test_transforms_of_counts_lie_within_the_probability_of_the_count(counts):
    got = counts.residuals("left out")
    y, u = counts.series.values[:, 0], got.pit[:, 0]
    assert ((u > 0.0) & (u < 1.0)).all() and len(set(u)) == len(u)
    assert np.array_equal(got.pit, counts.residuals("left out").pit)  # drawn, but the same each time
    assert u[np.argmin(y)] < u[np.argmax(y)]


def test_pictures_of_residuals_have_the_numbers(linear):
    got = linear.residuals("left out")
    figure = got.plot()
    over_time, histogram, coverage = figure.axes
    assert np.array_equal(over_time.lines[1].get_ydata(), got.values[:, 0])
    assert np.array_equal(over_time.lines[1].get_xdata(), got.times)
    heights = np.array([bar.get_height() * bar.get_width() for bar in histogram.patches if bar.get_width() < 1.0])
    assert_close(heights * 4.0, np.histogram(got.pit[:, 0], len(heights), (0.0, 1.0))[0], "exact")
    levels, share = coverage.lines[0].get_data()
    inside = [(np.abs(2.0 * got.pit[:, 0] - 1.0) <= level).mean() for level in levels]
    assert_close(share, inside, "exact", size=1.0)
    assert "all other observations" in over_time.get_title(loc="left")
    assert over_time.get_ylabel() == "residual of $y$"


@pytest.mark.slow
def test_a_right_model_covers_its_data_and_a_wrong_one_does_not():
    """Of 200 observations ahead, the share in 80 % intervals is within its error; half the noise misses it."""
    kind = gv.likelihoods.Poisson
    model = gv.Model(gv.OrnsteinUhlenbeck(0.5, 2.0), 0.3, gv.GaussianState(2.0, 0.3), kind())
    series = gv.simulate(model, np.arange(1, 201) * 0.5, key=jax.random.key(5), dt=0.05, start=0.0).series
    wrong = gv.Model(gv.OrnsteinUhlenbeck(0.5, 2.0), 0.003, gv.GaussianState(2.0, 0.003), kind())
    right, off = (
        gv.infer(m, series, dt=0.1, span=(0.0, 100.0), **QUIET).residuals(progress=False) for m in (model, wrong)
    )
    error = np.sqrt(0.8 * 0.2 / len(right.index))
    assert abs(right.coverage([0.8])[0, 0] - 0.8) < 3.0 * error < abs(off.coverage([0.8])[0, 0] - 0.8)
    assert st.kstest(right.pit[:, 0], "uniform").pvalue > 0.01 > st.kstest(off.pit[:, 0], "uniform").pvalue
    lag = np.corrcoef(right.values[:-1, 0], right.values[1:, 0])[0, 1]
    assert abs(lag) < TOLERANCES["standard_errors"] / np.sqrt(len(right.index))
