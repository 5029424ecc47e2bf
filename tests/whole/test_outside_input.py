"""Mistakes of input that a user cannot see: each is read as it is meant, or is an error."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from tolerances import TOLERANCES

import girsanov as gv
from girsanov.baselines import exact_smoother
from girsanov.data.grid import given_grid, grid_with, locate, regular_grid
from girsanov.evaluation import chunk_folds

pytestmark = pytest.mark.usefixtures("as_a_user")

NOW = 1.7e9  # seconds since 1970
GONE = -9999.0


def model(**parts):
    return gv.Model(**{"drift": gv.OrnsteinUhlenbeck(1.0), "likelihood": gv.likelihoods.Gaussian(0.1), **parts})


@pytest.fixture(scope="module")
def unix():
    """A posterior whose times are Unix seconds."""
    return gv.infer(model(), gv.TimeSeries(NOW + np.array([0.0, 4.0, 9.0]), [0.1, 0.7, -0.3]), dt=0.5)


# --- large times


def test_a_time_after_the_end_is_not_the_end(unix):
    end = NOW + 9.0
    for late in (1e-3, 1.5):
        with pytest.raises(ValueError, match=r"times\[1\] = 17000000.* lies outside the horizon \[1700000000, 17000"):
            unix.marginals([end, end + late])
    same = unix.marginals([end, np.nextafter(end, np.inf)])  # the same number but for rounding
    assert np.array_equal(same.mean[0], same.mean[1])
    before = unix.marginals([end - 1e-3])
    assert before.mean[0, 0] != same.mean[0, 0]


def test_the_time_of_day_does_not_change_the_answer(unix):
    """The drift does not depend on time: the posterior is that of the same series from zero on."""
    zero = gv.infer(model(), gv.TimeSeries([0.0, 4.0, 9.0], [0.1, 0.7, -0.3]), dt=0.5)
    assert len(unix.times) == len(zero.times)
    at = np.array([0.0, 0.3, 4.0, 7.77, 9.0])
    np.testing.assert_allclose(unix.marginals(NOW + at).mean, zero.marginals(at).mean, atol=TOLERANCES["same_time"])


def test_nodes_that_rounding_moved_are_still_the_observations():
    """NOW + 0.1 k is rounded to a 4-millionth of a second, more than a millionth of the step."""
    obs = NOW + np.round(0.1 * np.arange(1, 40, 3), 10)
    grid = regular_grid(gv.TimeSeries(obs, np.zeros(len(obs))), 0.1, (NOW, NOW + 4.0))
    assert len(grid.times) == 41
    assert np.array_equal(grid.times[grid.node], obs)


def test_distinct_observations_stay_distinct():
    close = np.array([0.0, 1.0, 1.0 + 1e-9, 2.0])
    series = gv.TimeSeries(close, np.zeros(4))
    for grid in (regular_grid(series, 0.5, None), given_grid(series, np.union1d(close, [0.5, 1.5]))):
        assert len(set(grid.node.tolist())) == 4
        assert np.array_equal(grid.times[grid.node], close)
    with pytest.raises(ValueError, match=r"misses the observation at time 1\.000000001 \(index 2\)"):
        given_grid(series, [0.0, 1.0, 2.0])


def test_at_times_are_nodes_however_large_they_are():
    series = gv.TimeSeries(NOW + np.array([0.0, 4.0]), [0.1, 0.7])
    at = NOW + np.array([0.25, 1.0, 3.9])  # each within 1e-9 NOW of an observation
    grid = grid_with(series, 1.0, None, at)
    assert np.isin(at, grid.times).all()
    exact = exact_smoother(model(), series, dt=1.0, at=at)
    zero = exact_smoother(model(), gv.TimeSeries([0.0, 4.0], [0.1, 0.7]), dt=1.0, at=at - NOW)
    np.testing.assert_allclose(exact.marginals(at).mean, zero.marginals(at - NOW).mean, atol=TOLERANCES["same_time"])
    with pytest.raises(ValueError, match="is not a node"):
        exact.marginals([NOW + 3.5])


def test_at_takes_dates_where_the_series_has_them():
    series = gv.TimeSeries(["2024-03-01", "2024-03-05"], [0.1, 0.7], unit="D")
    assert 2.0 in grid_with(series, 0.75, None, pd.to_datetime(["2024-03-03"])).times


@pytest.mark.parametrize("origin", [0.0, NOW])
def test_locate_knows_a_sum_of_steps(origin):
    nodes = origin + 0.01 * np.arange(1001)
    summed = origin + np.cumsum(np.full(1000, 0.01))
    index, on = locate(nodes, summed)
    assert on.all() and np.array_equal(index, np.arange(1, 1001))
    assert not locate(nodes, nodes[:-1] + 0.003)[1].any()


def test_a_chunk_begins_where_it_is_meant_to():
    """Chunks of 0.1 s at Unix seconds: times at their starts, rounded either way, are one chunk each."""
    t = NOW + 0.1 * np.arange(20)
    splits = chunk_folds(gv.TimeSeries(t, np.zeros(20)), 20, 0.1, seed=0)
    assert sorted(len(split.test) for split in splits) == [1] * 20


# --- values that are not there, and values that are no numbers


@pytest.mark.parametrize(
    "values",
    [
        np.ma.array([1.0, GONE, 3.0], mask=[False, True, False]),
        [1.0, np.ma.masked, 3.0],
        [1.0, None, 3.0],
        [1.0, pd.NA, 3.0],
        pd.array([1, pd.NA, 3], dtype="Int64"),
        pd.Series([1.0, pd.NA, 3.0], dtype="Float64"),
        pd.DataFrame({"y": pd.array([1.0, pd.NA, 3.0], dtype="Float64")}),
        np.array([1.0, pd.NA, 3.0], dtype=object),
    ],
    ids=["masked array", "masked", "None", "NA", "Int64", "Float64", "table", "objects"],
)
def test_masked_and_NA_are_missing(values):
    series = gv.TimeSeries([0.0, 1.0, 2.0], values)
    assert series.observed[:, 0].tolist() == [True, False, True]
    assert series.values[[0, 2], 0].tolist() == [1.0, 3.0]


def test_masked_columns():
    columns = np.ma.array([[1.0, GONE], [3.0, 4.0]], mask=[[False, True], [False, False]])
    for values in (columns, list(columns)):
        assert gv.TimeSeries([0.0, 1.0], values).observed.tolist() == [[True, False], [True, True]]
    with pytest.raises(ValueError, match="differ in length"):
        gv.TimeSeries([0.0, 1.0], np.ma.array([1.0, 2.0, 3.0]))


def test_truth_values_are_data_and_no_times():
    assert gv.TimeSeries([0.0, 1.0], [True, False]).values[:, 0].tolist() == [1.0, 0.0]
    with pytest.raises(ValueError, match="times must be numbers, not True and False"):
        gv.TimeSeries([False, True], [1.0, 2.0])


MASKED_TIMES = np.ma.array([0.0, GONE, 2.0], mask=[False, True, False])
DAYS = np.array(["2024-03-01", "2024-03-02", "2024-03-03"], "datetime64[D]")
BAD = {
    "masked time": (lambda: gv.TimeSeries(MASKED_TIMES, [1, 2, 3]), r"times\[1\] is masked or missing"),
    "masked date": (
        lambda: gv.TimeSeries(np.ma.array(DAYS, mask=[False, True, False]), [1, 2, 3], unit="D"),
        r"times\[1\] is masked",
    ),
    "NA time": (lambda: gv.TimeSeries([0.0, pd.NA, 2.0], [1, 2, 3]), r"times\[1\] is masked or missing"),
    "masked grid": (lambda: given_grid(gv.TimeSeries([0.0], [1.0]), MASKED_TIMES), r"grid\[1\] is masked"),
    "masked parameter": (
        lambda: gv.Linear(np.ma.array([[GONE]], mask=[[True]])),
        r"\[0, 0\] is masked or missing",
    ),
    "text": (lambda: gv.TimeSeries([0.0, 1.0], ["1", "2"]), "values must be numbers, not text such as '1'"),
    "text in a list": (lambda: gv.TimeSeries([0.0, 1.0], ["1", None]), "values must be numbers, not text"),
    "times as text": (lambda: gv.TimeSeries(["0", "1"], [1.0, 2.0]), "times must be numbers, not text such as '0'"),
    "complex": (lambda: gv.TimeSeries([0.0, 1.0], np.array([1.0, 2.0 + 1j])), "values must be real numbers"),
    "complex times": (lambda: gv.TimeSeries(np.array([0.0, 1.0 + 0j]), [1.0, 2.0]), "times must be real numbers"),
    "complex parameter": (lambda: gv.Linear(np.array([[1j]])), "must be real numbers"),
    "nanoseconds": (
        lambda: gv.TimeSeries(1_700_000_000_000_000_000 + np.arange(3) * 100, [1, 2, 3]),
        r"times\[1\] = 1700000000000000100 is too long for a float64.*subtract the first",
    ),
    "a very large number": (lambda: gv.TimeSeries([0, 10**400], [1, 2]), "times must be numbers: int too large"),
    "times as a column": (
        lambda: gv.TimeSeries([[0.0], [1.0]], [1.0, 2.0]),
        r"times must have shape \(n,\), got \(2, 1\)",
    ),
    "close times are told apart": (
        lambda: gv.TimeSeries([NOW + 1.5, NOW + 0.5], [1.0, 2.0]),
        r"times\[1\] = 1700000000\.5 comes after times\[0\] = 1700000001\.5",
    ),
    "no dates": (lambda: gv.TimeSeries(DAYS[:0], [], unit="D"), "times are empty"),
    "a date in the far future": (
        lambda: gv.TimeSeries(["3000-01-01", "3000-01-02"], [1.0, 2.0], unit="D"),
        r"times\[0\] = '3000-01-01' does not lie between the years 1679 and 2261",
    ),
    "a forecast of the far future": (
        lambda: gv.TimeSeries(DAYS, [1, 2, 3], unit="D").dates([1e6]),
        r"times\[0\] = 1e\+06 D after 2024-03-01.*is not a date between the years 1679 and 2261",
    ),
    "complex drift": (
        lambda: gv.Model(lambda x, t: x * 1j),
        "drift must return real floating-point numbers, got complex128; take jnp.real",
    ),
    "whole-number drift": (
        lambda: gv.Model(lambda x, t: jnp.sign(x).astype(int)),
        "drift must return real floating-point numbers, got int64; multiply it by 1.0",
    ),
    "too many nodes": (
        lambda: regular_grid(gv.TimeSeries([0.0, 1.0], [1.0, 2.0]), 1e-12, None),
        r"dt = 1e-12 over the span from 0 to 1 asks for 1e\+12 nodes and about .* GB, but this machine .* a larger dt",
    ),
    "nodes that are one number": (
        lambda: regular_grid(gv.TimeSeries([NOW, NOW + 1.0], [1.0, 2.0]), 1e-7, None),
        "closer together than float64 can tell apart at this size.*subtract the first time",
    ),
    "too many steps": (
        lambda: gv.simulate(model(), [0.0, 1.0], key=jax.random.key(0), dt=1e-20),
        r"dt = 1e-20 from 0 to 1 asks for 1e\+20 steps",
    ),
    "start is not a number": (
        lambda: gv.simulate(model(), [0.0, 1.0], key=jax.random.key(0), start=np.nan),
        "start must be one finite number, got nan",
    ),
    "dt is text": (
        lambda: grid_with(gv.TimeSeries([0.0], [1.0]), "0.1", None, None),
        "dt must be positive and finite, got '0.1'",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_said(name):
    call, message = BAD[name]
    with pytest.raises(ValueError, match=f"(?s){message}"):
        call()


# --- arrays of the user's own


class Own:
    """A drift of the user's own, registered as a pytree with an array."""

    def __init__(self, rate):
        self.rate = rate

    def __call__(self, x, t):
        return -self.rate * x


jax.tree_util.register_pytree_node(Own, lambda o: ((o.rate,), None), lambda _, leaves: Own(*leaves))


def test_a_model_keeps_its_arrays():
    H, Q, m0, P0 = np.eye(2), np.diag([1.0, 2.0]), np.array([0.5, 0.0]), np.eye(2)
    A, noise, rate = -np.eye(2), np.array([0.1, 0.2]), np.array([1.0, 2.0])
    linear = gv.Model(gv.Linear(A), Q, gv.GaussianState(m0, P0), gv.likelihoods.Gaussian(noise), H)
    own = gv.Model(Own(rate), Q)
    series = gv.TimeSeries([0.0, 0.5, 1.0], [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    post = gv.infer(linear, series, dt=0.25)
    before = post.predict([0.3, 0.5]), gv.infer(linear, series, dt=0.25).elbo
    for a in (H, Q, m0, P0, A, noise, rate):
        a[:] = 5.0
    assert np.array_equal(post.predict([0.3, 0.5]).mean, before[0].mean)
    assert gv.infer(linear, series, dt=0.25).elbo == before[1]
    assert own.drift.rate.tolist() == [1.0, 2.0]
    parts = [linear.emission, linear.diffusion, linear.drift.A, linear.likelihood.variance, own.drift.rate]
    for a in (*parts, linear.initial.mean, linear.initial.cov, own.emission, post.times, post.node):
        with pytest.raises(ValueError, match="read-only"):
            a[:] = 1.0


def test_a_loaded_posterior_cannot_be_written(tmp_path):
    post = gv.infer(model(), gv.TimeSeries([0.0, 1.0], [0.1, 0.2]), dt=0.5)
    again = gv.load(post.save(tmp_path / "run.gv"))
    for a in (again.times, again.mean, again.moments.S):
        with pytest.raises(ValueError, match="read-only"):
            a[:] = 1.0


# --- files and tables


def write(tmp_path, text, **options):
    path = tmp_path / "run.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return gv.TimeSeries.from_csv(path, **options)


CSV = {
    "a field too many in every row": (
        "t,y\n0,1,2\n1,2,3\n",
        {},
        r"run\.csv, line 2: 3 fields, '0,1,2', where the header",
    ),
    "a field too many in one row": ("t,y\n0,1\n1,2,3\n", {}, r"line 3: 3 fields, '1,2,3'.*2 columns"),
    "after blank lines": ("t,y\n\n0,1\n\n\n1,2,3\n", {}, r"line 6: 3 fields"),
    "after a note of two lines": ('t,y,note\n0,1,"a\nb"\n1,2,3,4\n', {"values": "y"}, r"line 4: 4 fields"),
    "with carriage returns": (b"t,y\r\n0,1\r\n1,2,3\r\n", {}, r"line 3: 3 fields"),
    "decimal commas": ("t,y\n0,5,1,5\n", {}, r"line 2: 4 fields.*decimals by points.*sep=';', decimal=','"),
    "text": ("t,y\n0,1\n1,high\n", {}, r"line 3, column 'y': 'high' is not a number"),
    "a thousand": ("t,y\n0,1_000\n", {}, r"line 2, column 'y': '1_000' is not a number"),
    "a time that is missing": ("t,y\n0,1\n,2\n", {}, r"line 3, column 't': the time is missing"),
    "an empty file": ("", {}, r"run\.csv is empty"),
    "blank lines only": ("\n\n", {}, r"run\.csv is empty"),
    "a header only": ("t,y\n", {}, "a header and no rows"),
    "times only": ("t\n0\n", {}, "no column of values"),
    "two columns of one name": ("t,y,y\n0,1,2\n", {}, "2 columns 'y': rename one"),
    "two columns of times": ("t,y,t\n0,1,2\n", {}, "2 columns 't': rename one"),
    "an index without a name": (",t,y\n0,0.5,1\n", {}, "column 1 has no name.*index=False"),
    "time as a value": ("t,y\n0,1\n", {"values": ["t", "y"]}, "'t' is the column of the times"),
    "a value twice": ("t,y\n0,1\n", {"values": ["y", "y"]}, "'y' is named twice"),
    "an open quote": ('t,y\n0,1\n1,"2\n2,3\n', {}, "line 3: this is not CSV"),
    "numbers with a unit": ("t,y\n2001,1\n2002,2\n", {"unit": "D"}, "times are numbers already"),
}


@pytest.mark.parametrize("name", CSV)
def test_a_bad_file_is_said_with_the_line(tmp_path, name):
    text, options, message = CSV[name]
    with pytest.raises(ValueError, match=f"(?s){message}"):
        write(tmp_path, text, **options)


@pytest.mark.parametrize(
    "text",
    [
        "t,y\n0,1.5\n1,\n2,3\n",
        b"\xef\xbb\xbft,y\r\n0,1.5\r\n1,NA\r\n2,3\r\n",  # with the mark that spreadsheets put first
        '"t", "y"\n0, 1.5\n\n1\n2,"3"\n',
        "\n t ,y \n0,1.5\n1,nan\n2,3e0",
    ],
)
def test_a_good_file(tmp_path, text):
    series = write(tmp_path, text)
    assert series.times.tolist() == [0.0, 1.0, 2.0]
    assert series.observed[:, 0].tolist() == [True, False, True]
    assert series.values[[0, 2], 0].tolist() == [1.5, 3.0]


def test_a_file_reads_back_exactly(tmp_path):
    t = np.cumsum(np.random.default_rng(0).uniform(size=200))
    pd.DataFrame({"t": t, "y": np.sin(t), "up": t > 50}).to_csv(tmp_path / "run.csv.gz", index=False)
    series = gv.TimeSeries.from_csv(tmp_path / "run.csv.gz")
    assert np.array_equal(series.times, t) and np.array_equal(series.values[:, 0], np.sin(t))
    assert np.array_equal(series.values[:, 1], t > 50)


def test_tables():
    table = pd.DataFrame({"t": [0.0, 1.0], "y": pd.array([1, pd.NA], dtype="Int64")})
    assert gv.TimeSeries.from_dataframe(table).observed[:, 0].tolist() == [True, False]
    numbered = pd.DataFrame([[0.0, 1.5], [1.0, 2.5]])
    assert gv.TimeSeries.from_dataframe(numbered, time="0").values[:, 0].tolist() == [1.5, 2.5]
    for frame, options, message in (
        (pd.DataFrame([[0.0, 1.0, 2.0]], columns=["t", "y", "y"]), {}, "2 columns 'y'"),
        (pd.DataFrame([[0.0, 1.0, 2.0]], columns=["t", "t", "y"]), {}, "2 columns 't'"),
        (table, {"values": ["t"]}, "'t' is the column of the times"),
        (table[["t"]], {}, "no column of values"),
        (table.assign(y=[1j, 2.0]), {}, "must be real numbers"),
        (table.assign(t=[0, 2**60 + 1]), {}, "too long for a float64"),
    ):
        with pytest.raises(ValueError, match=message):
            gv.TimeSeries.from_dataframe(frame, **options)


# --- simulation


def test_a_short_gap_does_not_slow_the_others():
    """Ten steps of its own for a short gap; for the others, fifty in a unit of time, since the drift's rate is one."""
    far = np.linspace(0.0, 10.0, 21)
    times = np.sort(np.concatenate([far, far[1:-1] + 1e-7]))
    steps = []
    counting = model(drift=lambda x, t: jax.debug.callback(lambda: steps.append(1)) or -x)
    path = gv.simulate(counting, times, key=jax.random.key(0)).path
    jax.effects_barrier()
    assert np.isfinite(path).all()
    assert 500 + 10 * 19 <= len(steps) <= 500 + 10 * len(times)


def test_a_fast_drift_is_simulated_in_short_steps():
    """dx = −100 (x − 1) dt + dβ over gaps of one: x is stationary at once, about 1 with variance 1 / 200."""
    fast = model(drift=gv.Linear([[-100.0]], [100.0]))
    x = gv.simulate(fast, np.arange(1.0, 401.0), key=jax.random.key(0), start=0.0).path[:, 0]
    assert abs(x.mean() - 1.0) < TOLERANCES["standard_errors"] * np.sqrt(1 / 200 / 400)
    assert abs(200 * x.var() - 1.0) < TOLERANCES["standard_errors"] * np.sqrt(2 / 400)


def test_the_clock_of_a_simulation_runs_at_large_times():
    """Steps of 1e-8 s after 1970 are below what the clock resolves: it must not stand still over many of them."""
    seen = []
    timed = model(drift=lambda x, t: jax.debug.callback(lambda s: seen.append(float(s)), t) or -x)
    gv.simulate(timed, [NOW, NOW + 1e-4], key=jax.random.key(0), dt=1e-7 / 4)
    jax.effects_barrier()
    assert max(seen) > NOW + 0.9e-4
