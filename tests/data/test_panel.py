"""Panels: several series by name, from mappings, tables and arrays, and what a message says of the series at fault."""

import numpy as np
import pandas as pd
import pytest

import girsanov as gv

TABLE = "subject,t,y,z\nb,0.0,1.0,\na,0.5,2.0,3.0\nb,1.0,4.0,5.0\na,0.7,NA,6.0\n"
A, B = gv.TimeSeries([0.0, 1.0], [1.0, 2.0]), gv.TimeSeries([0.5], [3.0])


def same(one: gv.TimeSeries, other: gv.TimeSeries) -> bool:
    arrays = ("times", "values", "observed")
    return all(np.array_equal(getattr(one, k), getattr(other, k), equal_nan=True) for k in arrays)


def test_a_panel_is_a_mapping_of_names():
    panel = gv.Panel({"a": A, 7: B})
    assert list(panel) == panel.names == ["a", "7"]
    assert (len(panel), panel.dim, panel["a"], panel[7]) == (2, 1, A, B)
    assert repr(panel) == "Panel(2 series of 1 to 2 times, D=1)"
    assert panel.subset([7]).names == ["7"]
    assert gv.Panel([A, B]).names == ["0", "1"]
    assert dict(gv.Panel(panel)) == dict(panel)
    assert "c" not in panel
    with pytest.raises(KeyError, match="there is no series 'c'; the panel has 'a', '7'"):
        panel["c"]


def test_from_a_table(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text(TABLE)
    read = gv.Panel.from_csv(path, id="subject")
    frame = pd.read_csv(path)
    tables = (frame, frame.set_index("subject"), frame.set_index(["subject", "t"]))
    for panel in (read, *(gv.Panel.from_dataframe(table, id="subject") for table in tables)):
        assert panel.names == ["b", "a"]  # as they first appear
        assert same(panel["a"], gv.TimeSeries([0.5, 0.7], [[2.0, 3.0], [np.nan, 6.0]]))
        assert same(panel["b"], gv.TimeSeries([0.0, 1.0], [[1.0, np.nan], [4.0, 5.0]]))
    path.write_text("subject,t,y,sd\na,0.0,1.0,0.1\nb,0.0,1.0,0.2\n")
    assert gv.Panel.from_csv(path, id="subject", errors="sd")["b"].errors.tolist() == [[0.2]]
    by_number = frame.assign(subject=[2.0, 1.0, 2.0, 1.0])
    assert gv.Panel.from_dataframe(by_number, id="subject").names == ["2", "1"]


def test_dates_are_counted_from_the_first_of_all_series(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("id,t,y\na,2024-03-03,1\nb,2024-03-01,2\na,2024-03-04,3\n")
    read = gv.Panel.from_csv(path, id="id", unit="D")
    frame = pd.read_csv(path, parse_dates=["t"])
    for panel in (read, gv.Panel.from_dataframe(frame, id="id", unit="D")):
        assert panel["a"].times.tolist() == [2.0, 3.0]
        assert panel["b"].times.tolist() == [0.0]
        assert panel["a"].origin == panel["b"].origin == np.datetime64("2024-03-01")
    later = gv.Panel.from_csv(path, id="id", unit="h", origin="2024-02-29")
    assert later["a"].times.tolist() == [72.0, 96.0]
    lasted = frame.assign(t=frame.t - frame.t.min())
    assert gv.Panel.from_dataframe(lasted, id="id", unit="D")["a"].times.tolist() == [2.0, 3.0]


def test_from_xarray():
    xr = pytest.importorskip("xarray")
    values = [[1.0, np.nan, 3.0], [np.nan, 5.0, 6.0]]
    array = xr.DataArray(values, dims=("subject", "time"), coords={"subject": ["a", "b"], "time": [0.0, 0.5, 1.0]})
    for one in (array, array.T, array.expand_dims("output", 2)):
        panel = gv.Panel.from_xarray(one, id="subject")
        assert same(panel["a"], gv.TimeSeries([0.0, 1.0], [1.0, 3.0]))
        assert same(panel["b"], gv.TimeSeries([0.5, 1.0], [5.0, 6.0]))
    dated = array.assign_coords(time=np.array(["2024-03-01", "2024-03-02", "2024-03-03"], "datetime64[ns]"))
    assert gv.Panel.from_xarray(dated, id="subject", unit="D")["b"].times.tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match=r"the dimensions 'series' and 'time'.*got \('subject', 'time'\)"):
        gv.Panel.from_xarray(array)
    with pytest.raises(ValueError, match="the coordinate 'subject' has 'a' twice"):
        gv.Panel.from_xarray(array.assign_coords(subject=["a", "a"]), id="subject")
    with pytest.raises(ValueError, match="series 'b' is empty"):
        gv.Panel.from_xarray(array.where(array.subject == "a"), id="subject")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: gv.Panel({}), "the panel is empty: give at least one series"),
        (lambda: gv.Panel(A), "a panel is made from a mapping of names to gv.TimeSeries"),
        (lambda: gv.Panel({"a": [1.0, 2.0]}), r"series 'a' must be a gv.TimeSeries\(times, values\), got \[1.0, 2.0\]"),
        (lambda: gv.Panel({1: A, "1": B}), "two series are called '1'.*rename one"),
        (
            lambda: gv.Panel({"a": A, "b": gv.TimeSeries([0.0], [[1.0, 2.0]])}),
            "series 'b' has 2 values at each time, but series 'a' has 1; write NaN where a series lacks an output",
        ),
        (
            lambda: gv.Panel({"a": A, "b": gv.TimeSeries(["2024-03-01"], [1.0], unit="D")}),
            "the times of series 'b' are counted in D, those of series 'a' in plain numbers",
        ),
    ],
    ids=["empty", "a series", "numbers", "two of a name", "outputs", "units"],
)
def test_bad_panels(make, says, as_a_user):
    with pytest.raises(ValueError, match=says):
        make()


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ("t,id,y\n0,a,1\n1,,2\n", {}, r"d\.csv, line 3, column 'id': the name of the series is missing; drop that row"),
        ("t,id,y\n0,a,1\n0,b,2\n0,a,3\n", {}, r"series 'a': times\[0\] and times\[1\] are both 0; average"),
        ("t,id,y\n0,a,1\n2,b,2\n1,b,3\n", {}, r"series 'b': times must increase: times\[1\] = 1"),
        ("t,id,y\n0,a,1\n0,b,NA\n1,b,\n", {}, r"series 'b': every value is missing"),
        ("t,id,y\n0,a,1\n", {"id": "who"}, r"has no column 'who'; its columns are \['t', 'id', 'y'\]"),
        ("t,id,y\n0,a,1\n", {"id": "t"}, r"'t' cannot be the column of the times and that of the names"),
        ("t,id,y\n0,a,1\n", {"values": ["y", "id"]}, r"'id' is the column of the names of the series and cannot"),
        ("t,id,y\n0,a,1\n", {"errors": "id"}, r"'id' is the column of the names of the series and cannot.*errors"),
        ("t,id\n0,a\n", {}, "has no column of values"),
    ],
    ids=["no name", "a time twice", "order", "nothing seen", "unknown", "as time", "as value", "as error", "bare"],
)
def test_bad_tables(tmp_path, text, options, says):
    path = tmp_path / "d.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=says):
        gv.Panel.from_csv(path, **{"id": "id", **options})
    with pytest.raises(ValueError, match=says.replace(r"d\.csv, line 3", "row 1").split(", column")[0]):
        gv.Panel.from_dataframe(pd.read_csv(path), **{"id": "id", **options})
