"""Inputs: their values, tables with columns of inputs, and messages for what cannot be used."""

import numpy as np
import pandas as pd
import pytest

import girsanov as gv

TIMES, VALUES = [0.0, 1.0, 3.0], [2.0, 4.0, 0.0]


def test_values_of_every_kind():
    t = [0.0, 0.5, 1.0, 2.0, 3.0]
    every = gv.Inputs.joined(
        [
            gv.Inputs(TIMES, VALUES),
            gv.Inputs(TIMES, VALUES, "previous"),
            gv.Inputs.impulses(TIMES, VALUES),
            gv.Inputs.constant([7.0]),
        ]
    )
    np.testing.assert_array_equal(
        every.values(t), [[2, 2, 0, 7], [3, 2, 0, 7], [4, 4, 0, 7], [2, 4, 0, 7], [0, 0, 0, 7]]
    )
    assert every.dim == 4 and every.events.tolist() == TIMES and every.has_impulses
    nodes = every.on(np.array(t))
    np.testing.assert_array_equal(nodes.before[:, 2], [4, 2, 0, 7])  # a step and an impulse have a side each
    np.testing.assert_array_equal(nodes.after[:, 2], [4, 4, 0, 7])
    np.testing.assert_array_equal(nodes.dosed[2], [2, 2, 6, 6, 6])
    assert nodes.events.tolist() == [0, 2, 4]


def test_inputs_of_a_series_with_dates_may_have_dates():
    days = pd.date_range("2024-03-01", periods=3)
    series = gv.TimeSeries(days, [1.0, 2.0, 3.0], unit="D", inputs=gv.Inputs(days[1:], [5.0, 6.0]))
    np.testing.assert_array_equal(series.inputs.values([1.5]), [[5.5]])
    assert series.subset([0, 2]).inputs is series.inputs
    assert series.with_inputs(None).inputs is None


def test_columns_of_a_table_are_inputs(tmp_path):
    """A row may have inputs and no values; an empty cell is no sample and no dose."""
    rows = "id,t,y,dose,temp\na,0,,100,20\na,1,5,,\na,2,4,0,22\nb,0,,,20\nb,1.5,3,,19\n"
    (tmp_path / "doses.csv").write_text(rows)
    how = {"inputs": ["dose", "temp"], "input_kind": ["impulse", "linear"]}
    panel = gv.Panel.from_csv(tmp_path / "doses.csv", id="id", **how)
    assert panel.dim == 1 and panel["a"].inputs.names == ("dose", "temp")
    np.testing.assert_array_equal(panel["a"].inputs.values([1.0]), [[0.0, 21.0]])
    assert panel["a"].inputs.events.tolist() == [0.0] and not panel["b"].inputs.events.size
    frame = pd.read_csv(tmp_path / "doses.csv")
    same = gv.Panel.from_dataframe(frame, id="id", **how)
    np.testing.assert_array_equal(same["b"].inputs.values([0.75]), panel["b"].inputs.values([0.75]))
    one = gv.TimeSeries.from_dataframe(frame[frame["id"] == "a"].drop(columns="id"), **how)
    np.testing.assert_array_equal(one.inputs.values([1.0]), [[0.0, 21.0]])
    with pytest.raises(ValueError, match="input_kind= has 1 entries for the 2 columns"):
        gv.Panel.from_csv(tmp_path / "doses.csv", id="id", inputs=["dose", "temp"], input_kind=["impulse"])
    with pytest.raises(ValueError, match="has no column 'dosis'"):
        gv.Panel.from_csv(tmp_path / "doses.csv", id="id", inputs="dosis")


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: gv.Inputs([0.0, 2.0, 1.0], VALUES), r"must increase: times\[2\] = 1 follows times\[1\] = 2"),
        (lambda: gv.Inputs(TIMES, [1.0, np.nan, 2.0]), r"values\[1, 0\] of the inputs is nan at time 1.0"),
        (lambda: gv.Inputs(TIMES, [1.0, 2.0]), r"shape \(k,\) and values of shape"),
        (lambda: gv.Inputs(TIMES, VALUES, "spline"), "kind must be 'linear', 'previous' or 'impulse', got 'spline'"),
        (lambda: gv.Inputs(TIMES, VALUES, "previous", until=2.0), "until=2 comes before the last time"),
        (lambda: gv.Inputs(TIMES, VALUES, until=9.0), "for kind='previous' only"),
        (lambda: gv.TimeSeries(TIMES, VALUES, inputs=VALUES), r"inputs must be a gv.Inputs\(times, values\)"),
        (lambda: gv.Inputs(TIMES, VALUES, names=["a", "b"]), "the names of the inputs must be 1 different texts"),
    ],
)
def test_inputs_that_cannot_be_used_say_why(make, message):
    with pytest.raises(ValueError, match=message):
        make()


LINEAR = gv.Model(gv.Linear([[-1.0]], 0.0, [[1.0]]), likelihood=gv.likelihoods.Gaussian(0.1))


def series(inputs, end=3.0):
    return gv.TimeSeries([0.0, 1.0, end], VALUES, inputs=inputs)


@pytest.mark.parametrize(
    "model, inputs, message",
    [
        (LINEAR, None, r"the drift takes inputs, f\(x, t, u\), but the series has none"),
        (gv.Model(gv.OrnsteinUhlenbeck(1.0)), gv.Inputs.constant(1.0), "so that they would not be used"),
        (LINEAR, gv.Inputs([0.0, 2.5], [1.0, 1.0]), "known from 0 to 2.5, but they are needed from 0 to 3"),
        (LINEAR, gv.Inputs([1.0], [1.0], "previous"), "known from 1 on, but they are needed from 0 to 3"),
        (LINEAR, gv.Inputs.impulses([-1.0], [1.0]), "the impulse at time -1 comes before the span"),
        (LINEAR, gv.Inputs.constant([1.0, 2.0]), "the drift takes 1 inputs, but those of the series have 2 components"),
        (gv.Model(lambda x, t, u: -x + u[1], dim=1), gv.Inputs.constant(1.0), "index 1 is out of bounds"),
        (gv.Model(lambda x, t, u: u, dim=1), gv.Inputs.constant([1.0, 2.0]), r"must return an array of shape \(1,\)"),
        (gv.Model(lambda x, t, u: -x * u, dim=1), gv.Inputs.impulses([1.0], [1.0]), r"of the form g\(x, t\) \+ G u"),
    ],
)
def test_models_and_inputs_that_do_not_fit_say_why_and_name_the_series(model, inputs, message):
    with pytest.raises(ValueError, match=message):
        gv.infer(model, series(inputs), dt=0.5)
    with pytest.raises(ValueError, match="series 'one': .*" + message):
        gv.infer(model, gv.Panel({"one": series(inputs)}), dt=0.5)


def test_the_series_of_a_panel_have_the_same_inputs():
    with pytest.raises(ValueError, match="series 'b' has no inputs, but series 'a' has"):
        gv.Panel({"a": series(gv.Inputs.constant(1.0)), "b": series(None)})
    with pytest.raises(ValueError, match="the inputs of series 'b' have 2 components, those of series 'a' 1"):
        gv.Panel({"a": series(gv.Inputs.constant(1.0)), "b": series(gv.Inputs.constant([1.0, 2.0]))})


def test_a_given_grid_must_have_the_steps_and_impulses():
    with pytest.raises(ValueError, match="the grid misses the step or impulse of the inputs at time 0"):
        gv.infer(LINEAR, series(gv.Inputs.impulses([0.25], [1.0])), grid=[0.0, 1.0, 2.0, 3.0])


def test_a_stationary_start_is_for_drifts_without_inputs():
    with pytest.raises(ValueError, match="initial='stationary' is for a drift without inputs"):
        gv.Model(gv.Linear([[-1.0]], 0.0, [[1.0]]), initial="stationary")
