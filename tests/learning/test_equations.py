"""Models of equations in inference and learning: the same as models of Python code with the same meaning."""

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from support import assert_close

import girsanov as gv

WELL = {
    "states": {"x": {"drift": "4 * scale * x * (well - x^2) / 4", "noise": "s", "start": "well", "start_sd": 0.1}},
    "outputs": {"y": {"measures": "x", "distribution": "gaussian", "sd": "tau"}},
    "parameters": {
        "scale": {"start": 3.0, "low": 0},
        "well": {"start": 1.1},
        "s": {"start": 0.8, "low": 0},
        "tau": {"start": 0.1, "low": 0, "fixed": True},
    },
}
GRID = {"dt": 0.05, "span": (0.0, 6.0)}
QUIET = {"progress": False, "step_error": False}


def written(scale=3.0, well=1.1, s=0.8, tau=0.1) -> gv.Model:
    def drift(x, t):
        return scale * x * (well - x**2)

    return gv.Model(drift, s**2, gv.GaussianState(well, 0.01), gv.likelihoods.Gaussian(tau**2))


@pytest.fixture(scope="module")
def series() -> gv.TimeSeries:
    return gv.simulate(written(), np.arange(1, 25) * 0.25, key=jax.random.key(2), dt=0.01, start=0.0).series


@pytest.fixture(scope="module")
def fit(series):
    return gv.learn(gv.Model.from_equations(WELL), series, **GRID, **QUIET)


def test_inference_is_that_of_the_model_in_python(series):
    one = gv.infer(gv.Model.from_equations(WELL), series, **GRID, progress=False)
    other = gv.infer(written(), series, **GRID, progress=False)
    assert_close(one.elbo, other.elbo, "optimum", size=1.0)
    assert_close(one.mean, other.mean, "optimum", size=1.0)
    assert one.plot().axes[0].get_ylabel() == "x"
    assert one.to_xarray().state.values.tolist() == ["x"]


def test_what_is_free_is_learnt_wherever_it_stands(fit, series):
    """The mean of the start is a parameter of the drift too: its slope has both parts."""
    assert fit.converged and fit.trainable == ("scale", "well", "s")
    best = {k: float(v) for k, v in fit.parameters.items()}
    assert_close(fit.elbo, gv.infer(written(**best), series, **GRID, progress=False).elbo, "optimum", size=1.0)
    for name, error in fit.standard_errors.items():  # a maximum: the bound falls to both sides
        for sign in (-1.0, 1.0):
            beside = written(**{**best, name: best[name] + sign * 0.3 * error})
            assert gv.infer(beside, series, **GRID, progress=False).elbo < fit.elbo
    assert fit.model.equations.values["well"] == best["well"] == fit.model.initial.mean[0]
    assert "well" in fit.summary()


def test_priors_and_ranges_are_those_of_the_equations(series):
    stated = {**WELL["parameters"], "s": {"start": 0.8, "low": 0, "prior": "lognormal(-2, 0.1)"}}
    stated["well"] = {"start": 1.1, "low": 1.0, "high": 1.2}
    options = {"trainable": ["well", "s"], "check": False, "standard_errors": False}
    fit = gv.learn(gv.Model.from_equations({**WELL, "parameters": stated}), series, **GRID, **options, **QUIET)
    other = gv.learn(
        gv.Model.from_equations(WELL), series, **GRID, **options, **QUIET, constraints={"well": (1.0, 1.2)},
        priors={"s": dist.LogNormal(-2.0, 0.1)},
    )  # fmt: skip
    for name in ("well", "s"):
        assert_close(fit.parameters[name], other.parameters[name], "optimum")
    free = gv.learn(
        gv.Model.from_equations({**WELL, "parameters": stated}), series, **GRID, **options, **QUIET, priors={}
    )
    assert float(free.parameters["s"]) > 2.0 * float(fit.parameters["s"])


def test_a_file_keeps_equations_and_values(fit, tmp_path):
    back = gv.load(fit.save(tmp_path / "fit.gv"))
    assert back.model.equations.source == fit.model.equations.source
    for name, value in fit.model.equations.values.items():
        assert back.model.equations.values[name] == value
    assert np.array_equal(back.posterior.marginals([1.23]).mean, fit.posterior.marginals([1.23]).mean)
    assert back.model.state_names == ("x",)


def test_a_model_without_equations_needs_the_names(series):
    with pytest.raises(ValueError, match="trainable is empty: name at least one part of the model"):
        gv.learn(written(), series, **GRID)
    with pytest.raises(ValueError, match="the model has no parameter 'drift'; it has scale, well, s, tau"):
        gv.learn(gv.Model.from_equations(WELL), series, trainable="drift", **GRID)
