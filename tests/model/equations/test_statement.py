"""Descriptions of models: what they make, and what is refused, with its place and the remedy."""

import re

import jax
import numpy as np
import pytest

import girsanov as gv
from girsanov.model.equations import EquationError, latex, read_source, read_statement

GROWTH = """
[states.n]
drift = "r * n * (1 - n / K)"
noise = "s * n"
start = "K / 10"
start_sd = 0.5
unit = "thousands"

[outputs.catch]
measures = "n"
distribution = "lognormal"
sd = "tau"

[parameters]
r = {start = 0.5, low = 0, prior = "lognormal(-1, 0.5)", unit = "1/year", meaning = "growth rate"}
K = {start = 100.0, low = 0}
s = {start = 0.2, low = 0}
tau = {start = 0.1, low = 0, high = 1}
"""

PENDULUM = {
    "states": {
        "angle": {"drift": "speed"},
        "speed": {"drift": "-pull - friction * speed", "noise": "sigma"},
    },
    "outputs": {
        "swing": {"measures": "2 * angle + shift", "distribution": "gaussian", "sd": 0.1},
        "count": {"measures": "exp(angle - speed)", "distribution": "poisson"},
    },
    "parameters": {
        "w": 2.0,
        "friction": {"start": 0.3, "low": 0},
        "sigma": 0.5,
        "shift": {"start": 1.0, "fixed": True},
    },
    "definitions": {"pull": "square * sin(angle)", "square": "w^2"},
}


def changed(**tables):
    """The pendulum with some tables changed; None takes a name out."""
    out = {}
    for name, table in PENDULUM.items():
        merged = {**table, **tables.get(name, {})}
        out[name] = {k: v for k, v in merged.items() if v is not None}
    return {**out, **{k: v for k, v in tables.items() if k not in PENDULUM}}


def test_a_file_gives_the_model_that_it_states(tmp_path):
    path = tmp_path / "growth.toml"
    path.write_text(GROWTH)
    for source in (path, str(path), GROWTH):
        model = gv.Model.from_equations(source)
        assert model.state_names == ("n",) and model.output_names == ("catch",)
        assert isinstance(model.noise, gv.diffusions.Proportional) and float(model.noise.scale) == 0.2
        assert isinstance(model.likelihood, gv.likelihoods.LogNormal)
        assert float(model.likelihood.variance) == pytest.approx(0.01)
        assert float(model.initial.mean[0]) == 10.0 and float(model.initial.cov[0, 0]) == 0.25
        with jax.enable_x64(True):
            assert float(model.drift(np.array([20.0]), 0.0)[0]) == pytest.approx(0.5 * 20.0 * 0.8)
            assert float(model.emission(np.array([20.0]), 0.0)[0]) == pytest.approx(np.log(20.0))
    assert model.equations.free == ("r", "K", "s", "tau")
    assert [model.equations.kind(name) for name in model.equations.free] == ["positive"] * 3 + [(0.0, 1.0)]
    assert list(model.equations.priors) == ["r"]
    assert float(gv.Model.from_equations(GROWTH, K=50.0).initial.mean[0]) == 5.0


def test_several_states_and_outputs():
    model = gv.Model.from_equations(PENDULUM)
    assert np.array_equal(model.diffusion, np.diag([0.0, 0.25])) and model.noise.is_singular
    with jax.enable_x64(True):
        f = model.drift(np.array([0.3, -0.2]), 1.0)
    assert np.allclose(f, [-0.2, -4.0 * np.sin(0.3) + 0.3 * 0.2], rtol=1e-12)
    assert np.array_equal(model.emission, [[2.0, 0.0], [1.0, -1.0]]) and np.array_equal(model.offset, [1.0, 0.0])
    assert model.equations.free == ("w", "friction", "sigma")


@pytest.mark.parametrize(
    ("noise", "kind", "settings"),
    [
        ("0.3", "Diffusion", {}),
        ("s * sqrt(x)", "SquareRoot", {"scale": 0.4}),
        ("x * s / 2", "Proportional", {"scale": 0.2}),
        ("s * x ^ p", "Power", {"scale": 0.4, "exponent": 0.75}),
        ("s * (1 + x^2)", "Scale", {"low": 0.1, "high": 9.0}),
    ],
)
def test_noise_is_of_the_kind_that_its_form_shows(noise, kind, settings):
    used = {k: v for k, v in {"s": 0.4, "p": 0.75}.items() if k in re.findall(r"\w+", noise)}
    model = gv.Model.from_equations(
        {"states": {"x": {"drift": "1 - x", "noise": noise, "start": 1, "range": [0.1, 9]}}, "parameters": used}
    )
    assert type(model.noise).__name__ == kind
    for name, value in settings.items():
        assert float(getattr(model.noise, name)) == pytest.approx(value, rel=1e-12)


def test_an_emission_that_is_not_affine_is_a_function():
    tables = {
        "outputs": {"swing": {"measures": "sin(angle) * t", "distribution": "gaussian", "sd": 0.1}, "count": None}
    }
    model = gv.Model.from_equations(changed(**tables, parameters={"shift": None}))
    assert not model.observation.is_linear
    assert float(model.emission(np.array([0.3, 0.0]), 2.0)[0]) == pytest.approx(2.0 * np.sin(0.3))


@pytest.mark.parametrize(
    ("distribution", "measures", "z"),
    [
        ("poisson", "2 * x", np.log(0.6)),
        ("gamma", "exp(x) + 1", np.log(np.exp(0.3) + 1.0)),
        ("bernoulli", "x", np.log(0.3 / 0.7)),
        ("bernoulli", "logistic(x - 1)", -0.7),
        ("stochastic_volatility", "exp(x)", 0.3),
        ("student_t", "x^2", 0.09),
    ],
)
def test_what_is_measured_is_in_the_units_of_the_data(distribution, measures, z):
    settings = {"gamma": {"shape": 2.0}, "student_t": {"scale": 0.5}}.get(distribution, {})
    output = {"measures": measures, "distribution": distribution, **settings}
    model = gv.Model.from_equations({"states": {"x": {"drift": "-x", "noise": 1}}, "outputs": {"y": output}})
    x = np.array([0.3])
    with jax.enable_x64(True):
        offset = 0.0 if model.offset is None else model.offset
        got = model.emission @ x + offset if model.observation.is_linear else model.emission(x, 0.0)
    assert got[0] == pytest.approx(z, rel=1e-12)
    assert model.observation.is_linear == (measures in ("logistic(x - 1)", "exp(x)"))


WRONG = [
    ({"states": {"x": {}}, "parameters": {}}, r"states.x has no drift: give e.g. drift ="),
    ({}, "the description has no state"),
    ({"state": {}}, r"has no setting 'state' \(did you mean 'states'\?\)"),
    ({"states": {"x": {"drft": "1"}}}, r"states.x has no setting 'drft' \(did you mean 'drift'\?\)"),
    ({"states": {"2x": {"drift": "1"}}}, "a name consists of letters"),
    ({"states": {"exp": {"drift": "1"}}}, "this name has a meaning of its own"),
    ({"states": {"x": {"drift": "1"}}, "parameters": {"drift": 1.0}}, "parameters.drift: this name has a meaning"),
    ({"states": {"x": {"drift": "y"}}}, r"states.x.drift: 'y' is not defined.*the names are t, x"),
    ({"states": {"x": {"drift": "x"}}, "parameters": {"a": 1.0}}, "parameters.a is used nowhere"),
    ({"states": {"x": {"drift": "a"}}, "parameters": {"a": {}}}, "parameters.a has no start"),
    ({"states": {"x": {"drift": "a"}}, "parameters": {"a": "one"}}, "parameters.a.start must be a number, got 'one'"),
    ({"states": {"x": {"drift": "a"}}, "parameters": {"a": {"start": 2.0, "low": 3.0}}}, "low < high is needed"),
    ({"states": {"x": {"drift": "a"}}, "parameters": {"a": {"start": 0.0, "low": 0.0}}}, "lies at an end of the range"),
    ({"states": {"x": {"drift": "a"}}, "parameters": {"a": {"start": 3.0, "low": 2.0}}}, "a range has two ends"),
    ({"states": {"x": {"drift": "a"}}, "parameters": {"a": {"start": 1.0, "prior": "flat"}}}, "must be text such as"),
    (
        {"states": {"x": {"drift": "a"}}, "parameters": {"a": {"start": 1.0, "prior": "norml(0, 1)"}}},
        r"did you mean 'normal'",
    ),
    (
        {"states": {"x": {"drift": "a"}}, "parameters": {"a": {"start": 1.0, "prior": "normal(0)"}}},
        "is not of the form normal",
    ),
    ({"states": {"x": {"drift": "a"}}, "parameters": {"a": {"start": 1.0, "prior": "normal(0, -1)"}}}, "not allowed"),
    (changed(definitions={"square": "pull + w"}), "go in a circle, pull → square → pull"),
    (changed(states={"w": {"drift": "1"}}), r"parameters.w: one of the states has this name already"),
    (
        changed(states={"speed": {"drift": "-pull * friction", "noise": "sigma * angle"}}),
        "states.speed.noise depends on angle",
    ),
    (
        changed(states={"speed": {"drift": "-pull * friction", "noise": "sigma * exp(speed)"}}),
        "give the range of the state",
    ),
    (changed(states={"speed": {"drift": "1", "noise": "1", "start": "angle"}}), "'angle' is not defined"),
    (changed(states={"speed": {"drift": "pull", "start": "pull"}}), "may depend on parameters only"),
    (changed(states={"speed": {"drift": "1", "noise": "1", "range": [2, 1]}}), r"range must be \[low, high\]"),
    (changed(outputs={"swing": None, "count": None}), "several states and no output"),
    (changed(outputs={"swing": {"distribution": "gaussian"}}), "must say what it measures"),
    (
        changed(outputs={"swing": {"measures": "angle", "distribution": "gauss"}}),
        r"unknown 'gauss' \(did you mean 'gaussian'",
    ),
    (changed(outputs={"swing": {"measures": "angle", "distribution": "gaussian"}}), "needs sd, e.g. sd = 0.1"),
    (changed(outputs={"swing": {"measures": "angle", "sd": 1.0}}), "outputs.swing has no setting 'sd'"),
    (changed(outputs={"swing": {"measures": "angle + shift"}}), "outputs.swing has no distribution, and others have"),
    ([1, 2], "equations must be a mapping"),
    ({"states": {"x": {"drift": object()}}}, "equations must consist of names, texts and numbers"),
    ("no/such/file.toml", "there is no file"),
    ("[states\nx", "is not valid TOML"),
    ("a = " + "[" * 2000 + "]" * 2000 + "\n", "TOML|levels"),
]


@pytest.mark.parametrize(("source", "message"), WRONG, ids=range(len(WRONG)))
def test_what_is_wrong_is_named_with_its_place(source, message):
    with pytest.raises(ValueError, match=message):
        gv.Model.from_equations(source)


def test_a_value_of_no_parameter_is_refused():
    with pytest.raises(ValueError, match="have no parameter 'q'; they have r, K, s, tau"):
        gv.Model.from_equations(GROWTH, q=1.0)
    with pytest.raises(ValueError, match=r"only a model from gv.Model.from_equations"):
        gv.Model(gv.DoubleWell(1.0, 1.0)).restated({})


def test_equations_as_latex():
    lines = latex(read_statement(read_source(GROWTH)))
    assert lines == [
        r"dn = r\,n\,\left(1 - \frac{n}{K}\right)\,dt + s\,n\,d\beta_{n}",
        r"\mathrm{catch} \sim \mathrm{LogNormal}\left(n,\; \text{sd} = \tau\right)",
    ]
    pendulum = latex(read_statement(read_source(PENDULUM)))
    assert pendulum[0] == r"d\mathrm{angle} = \mathrm{speed}\,dt"
    assert r"w^{2}\,\sin\left(\mathrm{angle}\right)" in pendulum[1] and r"+ \sigma\,d\beta" in pendulum[1]


def test_an_error_shows_the_line_and_the_place():
    with pytest.raises(EquationError) as caught:
        gv.Model.from_equations({"states": {"x": {"drift": "-a * (x - )"}}, "parameters": {"a": 1.0}})
    first, line, carets = str(caught.value).splitlines()
    assert first.startswith("states.x.drift: this is not an expression")
    assert line.strip() == "-a * (x - )" and carets.index("^") >= line.index("- )")
