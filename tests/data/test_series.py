"""The series a user gives, and the grid that is made around it."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tolerances import TOLERANCES

import girsanov as gv
from girsanov.data.grid import coarsen, given_grid, regular_grid


def test_one_column_keeps_its_axis():
    series = gv.TimeSeries([0, 1, 2], [1, np.nan, 3])
    assert series.values.shape == series.observed.shape == (3, 1)
    assert series.times.dtype == series.values.dtype == np.float64
    assert series.observed[:, 0].tolist() == [True, False, True]
    assert (len(series), series.dim) == (3, 1)
    assert "n=3" in repr(series)
    assert "1 entries missing" in repr(series)


def test_arrays_are_the_series_own_and_cannot_be_written():
    t, y = np.array([0.0, 1.0]), np.array([1.0, 2.0])
    series = gv.TimeSeries(t, y)
    t[0], y[0] = 9.0, 9.0
    assert series.times[0] == 0.0
    assert series.values[0, 0] == 1.0
    for a in (series.times, series.values, series.observed):
        with pytest.raises(ValueError, match="read-only"):
            a[0] = 1


def test_subset():
    series = gv.TimeSeries([0.0, 1.0, 2.0], [[1.0, 2.0], [3.0, np.nan], [5.0, 6.0]])
    part = series.subset(series.times > 0.5)
    assert part.times.tolist() == [1.0, 2.0]
    assert part.observed.tolist() == [[True, False], [True, True]]
    assert series.subset([0, 2]).values.tolist() == [[1.0, 2.0], [5.0, 6.0]]


def test_from_csv(tmp_path):
    path = tmp_path / "run.csv"
    path.write_text("t,y,z,note\n0.0,1.5,,a\n0.5,2.5,3.0,b\n")
    series = gv.TimeSeries.from_csv(path, time="t", values=["y", "z"])
    assert series.times.tolist() == [0.0, 0.5]
    assert series.values[:, 0].tolist() == [1.5, 2.5]
    assert series.observed.tolist() == [[True, False], [True, True]]  # an empty cell is missing
    assert gv.TimeSeries.from_csv(path, values="y").dim == 1
    with pytest.raises(ValueError, match=r"run\.csv has no column 'x'; its columns are \['t', 'y', 'z', 'note'\]"):
        gv.TimeSeries.from_csv(path, values=["x"])
    with pytest.raises(ValueError, match=r"line 2, column 'note': 'a' is not a number"):
        gv.TimeSeries.from_csv(path)


DAYS = ["2024-03-01", "2024-03-04", "2024-03-05T12:00"]
HOURS = gv.TimeSeries(pd.to_timedelta([1, 2], "h"), [1, 2], unit="h")


@pytest.mark.parametrize(
    "dates",
    [
        DAYS,
        np.array(DAYS, "datetime64[s]"),
        pd.to_datetime(DAYS, format="ISO8601"),
        pd.Series(pd.to_datetime(DAYS, format="ISO8601")),
        pd.to_datetime(DAYS, format="ISO8601").tz_localize("Europe/Helsinki"),
        [d.to_pydatetime() for d in pd.to_datetime(DAYS, format="ISO8601")],
        pd.to_timedelta([0, 72, 108], "h"),
    ],
    ids=["text", "numpy", "index", "pandas", "time zone", "datetime", "durations"],
)
def test_dates_are_counted_in_the_unit_from_the_first(dates):
    assert gv.TimeSeries(dates, [1, 2, 3], unit="D").times.tolist() == [0.0, 3.0, 4.5]
    assert gv.TimeSeries(dates, [1, 2, 3], unit="h").times.tolist() == [0.0, 72.0, 108.0]


def test_dates_and_back():
    series = gv.TimeSeries(DAYS, [1, 2, 3], unit="h", origin="2024-02-29")
    assert series.times.tolist() == [24.0, 96.0, 132.0]
    assert series.dates(series.times).tolist() == np.array(DAYS, "datetime64[ns]").tolist()
    assert series.numbers(pd.to_datetime(["2024-03-01T06:00"])).tolist() == [30.0]
    assert series.numbers([1, 2]).tolist() == [1.0, 2.0]
    assert series.numbers(["2024-03-01T06:00", "2024-03-02"]).tolist() == [30.0, 48.0]
    with pytest.raises(ValueError, match=r"times\[0\] = '1 March' is not a date"):
        series.numbers(["1 March"])
    part = series.subset([1, 2])
    assert (part.unit, part.origin, part.times.tolist()) == ("h", series.origin, [96.0, 132.0])
    assert series.axis([24.0])[0] == np.datetime64("2024-03-01")
    assert gv.TimeSeries([0.5], [1.0]).axis([0.5]).tolist() == [0.5]


def test_summer_time_is_an_hour_shorter():
    local = pd.to_datetime(["2024-03-30T12:00", "2024-03-31T12:00"]).tz_localize("Europe/Helsinki")
    assert gv.TimeSeries(local, [1, 2], unit="h").times.tolist() == [0.0, 23.0]
    mixed = ["2024-03-01T12:00+02:00", "2024-03-01T12:00+00:00", "2024-03-01T13:00"]  # without an offset: UTC
    assert gv.TimeSeries(mixed, [1, 2, 3], unit="h").times.tolist() == [0.0, 2.0, 3.0]


def test_dates_in_a_table(tmp_path):
    path = tmp_path / "days.csv"
    path.write_text("t,y\n" + "".join(f"{d},{i}\n" for i, d in enumerate(DAYS)))
    assert gv.TimeSeries.from_csv(path, unit="D").times.tolist() == [0.0, 3.0, 4.5]
    with pytest.raises(ValueError, match=r"line 2, column 't': '2024-03-01' is not a number; if these are.*unit="):
        gv.TimeSeries.from_csv(path)
    frame = pd.DataFrame({"t": pd.to_datetime(DAYS, format="ISO8601"), "y": [0, 1, 2]})
    for table in (frame, frame.set_index("t")):
        series = gv.TimeSeries.from_dataframe(table, unit="D")
        assert (series.times.tolist(), series.dim) == ([0.0, 3.0, 4.5], 1)
        with pytest.raises(ValueError, match="times are dates; say in which unit"):
            gv.TimeSeries.from_dataframe(table)
    with pytest.raises(ValueError, match="column 'when' holds dates, not numbers"):
        gv.TimeSeries.from_dataframe(frame.assign(when=frame.t), unit="D")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: gv.TimeSeries(np.array(DAYS, "datetime64[s]"), [1, 2, 3]), "times are dates; say in which unit"),
        (lambda: gv.TimeSeries([1.0], np.array(DAYS[:1], "datetime64[s]")), "values must be numbers, not dates"),
        (lambda: gv.TimeSeries([1.0, 2.0], [1, 2], unit="D"), "times are numbers already"),
        (lambda: gv.TimeSeries([1.0, 2.0], [1, 2], origin=DAYS[0]), "origin= goes with unit="),
        (lambda: gv.TimeSeries(pd.to_timedelta([1, 2], "h"), [1, 2], unit="h", origin=DAYS[0]), "times are durations"),
        (lambda: gv.TimeSeries(DAYS, [1, 2, 3], unit="fortnight"), "unit must be one of .* got 'fortnight'"),
        (lambda: gv.TimeSeries(["01/02/2024", "02/02/2024"], [1, 2], unit="D"), r"times\[0\] = '01/02/2024' is not a"),
        (lambda: gv.TimeSeries([DAYS[0], "NaT"], [1, 2], unit="D"), r"times\[1\] .*(nan|is not a date)"),
        (lambda: gv.TimeSeries([1.0, 2.0], [1, 2]).dates([1.0]), "given as numbers"),
        (lambda: gv.TimeSeries([1.0, 2.0], [1, 2]).numbers(pd.to_datetime(DAYS[:1])), "given as numbers"),
        (lambda: HOURS.numbers(pd.to_datetime(DAYS[:1])), "are durations: give durations or numbers"),
        (lambda: HOURS.dates([1.0]), "not as dates"),
    ],
)
def test_dates_that_are_not_clear_are_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make()


def test_from_dataframe():
    frame = pd.DataFrame({"t": [0, 1], "b": [1.0, np.nan], "a": [3, 4]})
    series = gv.TimeSeries.from_dataframe(frame)  # every column but the time, in their order
    assert series.values[0].tolist() == [1.0, 3.0]
    assert not series.observed[1, 0]


times = st.lists(st.floats(0.0, 10.0), min_size=1, max_size=10, unique=True).map(sorted)


@given(times=times, dt=st.floats(0.05, 1.0), before=st.floats(0.0, 2.0), after=st.floats(1.0, 2.0))
def test_regular_grid_is_the_union(times, dt, before, after):
    series = gv.TimeSeries(times, np.zeros(len(times)))
    span = (times[0] - before, times[-1] + after)
    grid = regular_grid(series, dt, span)
    assert np.array_equal(grid.times[grid.node], series.times)  # every observation is a node, to the last bit
    gaps = np.diff(grid.times)
    assert (gaps > 0).all()
    assert gaps.max() <= dt * (1 + TOLERANCES["same_time"])
    regular = span[0] + dt * np.arange(len(grid.times))
    for t in regular[regular <= span[1]]:  # and every regular node is there, up to rounding of the same number
        assert np.abs(grid.times - t).min() <= 2 * TOLERANCES["same_time"] * dt
    for end, t in zip(span, (grid.times[0], grid.times[-1]), strict=True):
        assert abs(end - t) <= TOLERANCES["same_time"] * dt
    assert len(grid.times) <= grid.capacity


@given(times=times, seed=st.integers(0, 1000))
def test_capacity_depends_on_the_number_of_observations_only(times, seed):
    """So that another fold with as many observations needs no other program."""
    n = len(times)
    other = np.sort(np.random.default_rng(seed).uniform(0.0, 10.0, n))
    a, b = (regular_grid(gv.TimeSeries(t, np.zeros(n)), 0.1, (0.0, 10.0)) for t in (times, other))
    assert a.capacity == b.capacity
    for ratio in (2, 8):
        coarse = [coarsen(g, ratio) for g in (a, b)]
        assert coarse[0].capacity == coarse[1].capacity
        for g, whole in zip(coarse, (a, b), strict=True):
            assert len(g.times) <= g.capacity
            assert np.array_equal(g.times[g.node], whole.times[whole.node])
            assert (g.times[0], g.times[-1]) == (whole.times[0], whole.times[-1])


def test_grid_of_one_s_own_takes_any_gaps():
    series = gv.TimeSeries([0.3, 7.0], [1.0, 2.0])
    grid = given_grid(series, [0.0, 0.3, 0.31, 5.0, 7.0, 100.0])
    assert grid.node.tolist() == [1, 4]


def test_nodes_that_differ_by_rounding_only_are_one():
    series = gv.TimeSeries([0.1 + 0.2, 0.7], [0.0, 1.0])
    union = np.union1d([0.0, 0.3, 0.6, 0.7, 1.0], series.times)
    assert len(union) == 6  # 0.3 is there twice
    grid = given_grid(series, union)
    assert grid.times.tolist() == [0.0, 0.1 + 0.2, 0.6, 0.7, 1.0]
    assert grid.node.tolist() == [1, 3]
