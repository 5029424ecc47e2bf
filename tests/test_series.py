"""The series a user gives, and the grid that is made around it."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tolerances import TOLERANCES

import girsanov as gv
from girsanov.grid import coarsen, given_grid, regular_grid


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
    with pytest.raises(ValueError, match=r"column 'note', row 0: 'a' is not a number"):
        gv.TimeSeries.from_csv(path)


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
