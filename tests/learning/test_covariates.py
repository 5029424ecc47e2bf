"""Covariates of a series: in the model of a series, in panels, in learning, in files, and what messages say of them."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.optimize
import xarray as xr
from support import condition, linear_joint
from tolerances import TOLERANCES

import girsanov as gv
from girsanov.learning.panel_problem import PanelProblem
from girsanov.learning.parameters import make_spec
from girsanov.learning.random_learner import RandomLearner
from girsanov.learning.slopes import make_slopes
from girsanov.result.infer_panel import lay_out_panel

DT, SPAN = 0.1, (0.0, 2.0)
POWER = 0.75
TABLE = "subject,t,Wt,y,Dose\nann,0.5,70,1.0,4\nann,1.0,70,2.0,4\nbob,0.5,80.5,1.0,5\n"


def of_series(p, c):
    """The dose is where a series begins, and its rate grows with its weight."""
    size = (c["weight"] / 70.0) ** p["covariates.power"]
    return {"initial.mean": [c["dose"]], "drift.decay": p["drift.decay"] * size}


def of_one(decay=1.0, first=1.0) -> gv.Model:
    return gv.Model(
        gv.OrnsteinUhlenbeck(decay), 0.3, gv.GaussianState(first, 0.01), gv.likelihoods.Gaussian(0.02), offset=0.0
    )


def by_hand(c, decay=1.0, power=POWER) -> gv.Model:
    return of_one(decay * (c["weight"] / 70.0) ** power, c["dose"])


@pytest.fixture(scope="module")
def model() -> gv.Model:
    return of_one().with_covariates(of_series, power=POWER)


@pytest.fixture(scope="module")
def panel(model) -> gv.Panel:
    rng = np.random.default_rng(1)
    series = {}
    for k in range(5):
        c = {"dose": rng.uniform(2.0, 5.0), "weight": rng.uniform(40.0, 110.0), f"unused {k}": 1.0}
        times = np.arange(1, 11 + k % 2) * 0.2
        series[f"s{k}"] = gv.simulate(
            model, times[times <= 2.0], key=jax.random.key(k), start=0.0, dt=DT, covariates=c
        ).series
    return gv.Panel(series)


def assert_same(post: gv.Posterior, wanted: gv.Posterior) -> None:
    assert abs(post.elbo - wanted.elbo) < TOLERANCES["mapped"]
    assert np.abs(post.mean - wanted.mean).max() < TOLERANCES["mapped"]
    assert np.abs(post.cov - wanted.cov).max() < TOLERANCES["mapped"]


def test_the_posterior_is_that_of_the_model_written_by_hand(model, panel):
    c = panel["s1"].covariates
    post, wanted = (gv.infer(m, panel["s1"], DT, SPAN) for m in (model, by_hand(c)))
    assert_same(post, wanted)
    assert post.model.covariates is None
    assert post.model.initial.mean == [c["dose"]]
    assert post.model.drift.decay == pytest.approx(wanted.model.drift.decay, rel=1e-14)


@pytest.mark.slow
def test_posteriors_of_a_panel_are_those_of_models_written_by_hand(model, panel, tmp_path):
    posts = gv.infer(model, panel, DT, SPAN, progress=False)
    for name in ("s1", "s4"):
        c = panel[name].covariates
        wanted = gv.infer(by_hand(c), panel[name], DT, SPAN)
        assert_same(posts[name], wanted)
        own = posts[name].model
        assert own.covariates is None
        assert own.initial.mean == [c["dose"]]
        assert own.drift.decay == pytest.approx(wanted.model.drift.decay, rel=1e-14)
    one, wanted = posts["s4"], gv.infer(by_hand(panel["s4"].covariates), panel["s4"], DT, SPAN)
    ahead = [post.forecast([2.5], key=jax.random.key(0), n=4) for post in (one, wanted)]
    assert np.abs(ahead[0] - ahead[1]).max() < TOLERANCES["mapped"]
    assert posts.model.covariates is not None
    file = posts.save(tmp_path / "posts.gv")
    loaded = gv.load(file, of_series=of_series)
    assert loaded.elbo == posts.elbo
    assert loaded.panel["s2"].covariates == panel["s2"].covariates
    assert loaded.model.given(panel["s2"].covariates).drift.decay == posts["s2"].model.drift.decay
    with pytest.raises(ValueError, match=r"model of covariates by a function of your own, .*of_series.*give it again"):
        gv.load(file)


@pytest.mark.slow
def test_functions_for_programs_take_covariates(model, panel):
    problem = gv.prepare(model, panel["s1"], DT, SPAN)
    wanted = gv.infer(by_hand(panel["s1"].covariates), panel["s1"], DT, SPAN)
    with jax.enable_x64(True):
        assert abs(float(eqx.filter_jit(gv.bound)(model, problem)) - wanted.elbo) < TOLERANCES["mapped"]


def test_simulations_take_covariates(model):
    c = {"dose": 3.0, "weight": 50.0}
    times = np.arange(1, 5) * 0.5
    sim = gv.simulate(model, times, key=jax.random.key(0), start=0.0, dt=DT, covariates=c)
    wanted = gv.simulate(by_hand(c), times, key=jax.random.key(0), start=0.0, dt=DT)
    assert np.abs(sim.path - wanted.path).max() < TOLERANCES["exact"]
    assert sim.series.covariates == c
    with pytest.raises(ValueError, match="takes a covariate that the series does not have: 'weight'; there is 'dose'"):
        gv.simulate(model, times, key=jax.random.key(0), start=0.0, dt=DT, covariates={"dose": 1.0})


def log_likelihood(series, decay, power) -> float:
    """By dense algebra on the same grid."""
    c = series.covariates
    times = DT * np.arange(round(SPAN[1] / DT) + 1)
    node = np.round(series.times / DT).astype(int)
    A = np.full((len(times) - 1, 1, 1), -decay * (c["weight"] / 70.0) ** power)
    b = np.zeros((len(times) - 1, 1))
    mean, cov = linear_joint(A, b, np.array([[0.3]]), np.array([c["dose"]]), np.array([[0.01]]), times)
    return condition(mean, cov, np.eye(1), np.array([[0.02]]), node, series.values)[2]


@pytest.mark.slow
def test_a_rate_and_its_power_of_weight_are_those_of_the_exact_maximum(model, panel, tmp_path):
    names = ["drift.decay", "covariates.power"]
    fit = gv.learn(model, panel, DT, SPAN, trainable=names, tolerance=1e-10, progress=False)

    def loss(x):
        return -sum(log_likelihood(s, np.exp(x[0]), x[1]) for s in panel.values())

    best = scipy.optimize.minimize(loss, [0.0, POWER], method="BFGS", options={"gtol": 1e-6})
    learnt = [fit.parameters[name].item() for name in names]
    assert fit.converged
    assert abs(fit.elbo + best.fun) < TOLERANCES["likelihood_maximum"]
    assert np.abs(np.array(learnt) - [np.exp(best.x[0]), best.x[1]]).max() < TOLERANCES["learnt"]
    assert fit.model.given(panel["s0"].covariates).drift.decay == fit.posteriors["s0"].model.drift.decay


@pytest.mark.slow
def test_a_single_series_learns_the_parameter_before_its_covariates(model, panel, tmp_path):
    series = panel["s1"]
    fit = gv.learn(model, series, DT, SPAN, trainable=["drift.decay"], progress=False, tolerance=1e-10)
    best = scipy.optimize.minimize_scalar(lambda x: -log_likelihood(series, np.exp(x), POWER), bounds=(-3, 3))
    assert abs(fit.elbo + best.fun) < TOLERANCES["likelihood_maximum"]
    assert abs(fit.parameters["drift.decay"].item() / np.exp(best.x) - 1.0) < TOLERANCES["learnt"]
    size = (series.covariates["weight"] / 70.0) ** POWER
    assert fit.posterior.model.drift.decay == pytest.approx(fit.model.drift.decay * size)
    loaded = gv.load(fit.save(tmp_path / "fit.gv"), of_series=of_series)
    assert loaded.model.drift.decay == fit.model.drift.decay
    with pytest.raises(ValueError, match="objective='exact' does not take a model with covariates"):
        gv.learn(model, series, DT, SPAN, trainable=["drift.decay"], objective="exact")


def with_doses() -> gv.Panel:
    """Series of the hand-written model at one weight, whose first states depend on a dose in large units."""
    doses = np.random.default_rng(2).normal(3e4, 1e4, 8)
    firsts = 1.0 + 1e-4 * (doses - 3e4) + 0.2 * np.random.default_rng(3).normal(size=8)
    series = {}
    for k, (dose, first) in enumerate(zip(doses, firsts, strict=True)):
        sim = gv.simulate(of_one(1.0, first), np.arange(1, 11) * 0.2, key=jax.random.key(k), start=0.0, dt=DT)
        series[f"s{k}"] = gv.TimeSeries(sim.series.times, sim.series.values, covariates={"dose": dose, "weight": 70.0})
    return gv.Panel(series)


@pytest.mark.slow
def test_effects_of_covariates_on_random_initial_means_are_those_of_the_exact_maximum():
    """A normal law of the initial mean adds its variance to that of the initial state."""
    panel = with_doses()
    doses = np.array([s.covariates["dose"] for s in panel.values()])
    options = {"random": ["initial.mean"], "effects": {"initial.mean": ["dose"]}, "tolerance": 1e-9}
    fit = gv.learn(of_one(), panel, DT, SPAN, trainable=["likelihood.variance"], progress=False, **options)

    def loss(x):
        mean, variance, noise = x[0] + x[1] * (doses - doses.mean()) / 1e4, np.exp(x[2]), np.exp(x[3])
        return -sum(exactly(s, m, 0.01 + variance, noise) for s, m in zip(panel.values(), mean, strict=True))

    best = scipy.optimize.minimize(loss, [1.0, 0.5, -2.0, -3.0], method="BFGS", options={"gtol": 1e-7})
    law, found = fit.effects["initial.mean"], fit.parameters
    slope = law.slopes["dose"][0]
    learnt = np.array([law.mean[0], 1e4 * slope, np.log(law.variance[0]), np.log(found["likelihood.variance"])])
    assert fit.converged
    assert abs(fit.elbo + best.fun) < TOLERANCES["optimum"]
    assert np.abs(learnt - best.x).max() < TOLERANCES["optimum_moments"]
    assert found["effect(dose on initial.mean)"] == slope
    wanted = np.sqrt(np.linalg.inv(numerical_hessian(loss, best.x))[1, 1])
    assert abs(1e4 * fit.standard_errors["effect(dose on initial.mean)[0]"] / wanted - 1.0) < TOLERANCES["learnt"]
    assert "effect(dose on initial.mean)[0]" in fit.summary()
    # Without the covariate, its part of the variation counts as variance.
    plain = gv.learn(
        of_one(), panel, DT, SPAN, trainable=["likelihood.variance"], random="initial.mean", progress=False
    )
    assert plain.effects["initial.mean"].variance > 4.0 * law.variance
    assert plain.effects["initial.mean"].slopes == {}


def exactly(series, first, spread, noise) -> float:
    """The log likelihood at decay 1, by dense algebra."""
    times = DT * np.arange(round(SPAN[1] / DT) + 1)
    A, b = np.full((len(times) - 1, 1, 1), -1.0), np.zeros((len(times) - 1, 1))
    mean, cov = linear_joint(A, b, np.array([[0.3]]), np.array([first]), np.array([[spread]]), times)
    node = np.round(series.times / DT).astype(int)
    return condition(mean, cov, np.eye(1), np.array([[noise]]), node, series.values)[2]


def numerical_hessian(value, x) -> np.ndarray:
    h, n = 1e-3, len(x)
    steps = h * np.eye(n)

    def entry(i, j):
        signs = ((1, 1), (1, -1), (-1, 1), (-1, -1))
        return sum(a * b * value(x + a * steps[i] + b * steps[j]) for a, b in signs) / (4 * h * h)

    return np.array([[entry(i, j) for j in range(n)] for i in range(n)])


@pytest.mark.slow
def test_the_gradient_of_the_marginal_bound_in_slopes_is_that_of_differences():
    """With an effect in which the bound is not quadratic: the modes and the curvatures move with the slopes."""
    model = gv.Model(gv.DoubleWell(2.0, 1.0), 0.8, gv.GaussianState(0.5, 0.2), gv.likelihoods.Gaussian(0.05))
    times = np.arange(1, 31) * 0.1
    panel = gv.Panel(
        [
            gv.TimeSeries(
                times, gv.simulate(model, times, key=jax.random.key(k), start=0.0, dt=0.01).series.values,
                covariates={"size": float(k * k)},
            )
            for k in range(3)
        ]
    )  # fmt: skip
    with jax.enable_x64(True):
        shared, drawn = make_spec(model, ["diffusion"]), make_spec(model, ["drift.scale"])
        method = gv.CVIDP(tolerance=1e-12)
        datas = lay_out_panel(model, panel, 0.1, (0.0, 3.0), None)
        problem = PanelProblem(shared + drawn, method, model, method.rule(1), datas)
        slopes = make_slopes(drawn, {"drift": "size"}, panel)
        learner = RandomLearner(problem, shared, drawn, method, {}, 0.0, None, slopes)
        lam = np.array([np.log(0.8), np.log(2.0), np.log(0.1), 0.2])
        here = learner.first(lam, np.full((3, 1), lam[1]))
        for j in (1, 3):
            ends = [learner.e_step(lam + s * 1e-3 * np.eye(4)[j], here).elbo for s in (1.0, -1.0)]
            assert abs((ends[0] - ends[1]) / 2e-3 - here.grad[j]) < TOLERANCES["learnt"] * max(1.0, abs(here.grad[j]))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"effects": {"diffusion": ["dose"]}}, r"effects= names 'diffusion', which is not among the random effects"),
        ({"effects": {"drift": ["age"]}}, "series 's0' has no covariate 'age', which effects= names; it has 'dose'"),
        (
            {"effects": {"drift": ["weight"]}},
            "'weight' is 70 in all 8 series, which do not tell its effect on 'drift.d",
        ),
        ({"effects": {"drift": ["dose", "dose"]}}, r"a covariate of 'drift.decay' twice"),
        ({"effects": ["dose"]}, "effects= must be a mapping from random effects to names of covariates"),
        ({"effects": {"drift": "dose"}, "random": (), "individual": "drift"}, "not among the random effects"),
    ],
)
def test_effects_that_cannot_be_are_refused(options, says, as_a_user):
    options = {"random": ["drift"], "trainable": ["diffusion"], **options}
    with pytest.raises(ValueError, match=says):
        gv.learn(of_one(), with_doses(), DT, SPAN, **options)


def test_models_of_equations_and_of_noise_by_the_state_take_covariates():
    text = {
        "states": {"x": {"drift": "-k*x", "noise": "0.2*x", "start": "1", "start_sd": "0.1"}},
        "outputs": {"y": {"measures": "x", "distribution": "gaussian", "sd": 0.1}},
        "parameters": {"k": {"start": 0.5, "low": 0.0}},
    }
    model = gv.Model.from_equations(text).with_covariates(
        lambda p, c: {"k": p["k"] * jnp.exp(p["covariates.effect"] * c["group"])}, effect=0.3
    )
    own = model.given({"group": 1.0})
    assert own.equations.values["k"] == pytest.approx(0.5 * np.exp(0.3))
    assert own.covariates is None
    inside = gv.Model(gv.Polynomial([0.0, -1.0]), gv.diffusions.Proportional(0.1), gv.GaussianState(1.0, 0.01))
    model = inside.with_covariates(lambda p, c: {"initial.mean": [c["dose"]]})
    assert model.given({"dose": 2.0}).initial.mean == [2.0]
    with pytest.raises(ValueError, match=re.escape("with its covariates, initial.mean")):
        model.given({"dose": -2.0})


WRONG = {
    "no parameter": (lambda p, c: {"drift.rate": 1.0}, "returned a value for 'drift.rate', which is no parameter"),
    "shape": (lambda p, c: {"initial.mean": c["dose"]}, r"returned 'initial.mean' with shape \(\) instead of \(1,\)"),
    "no dict": (lambda p, c: c["dose"], "must return a dict of parameters by name"),
    "not finite": (lambda p, c: {"drift.decay": jnp.log(-c["dose"])}, "with its covariates, drift.decay is nan"),
    "covariance": (lambda p, c: {"initial.cov": [[-c["dose"]]]}, "with its covariates, initial.cov"),
    "asked for": (
        lambda p, c: {"drift.decay": p["decay"]},
        "the model has no parameter 'decay'; there is 'diffusion', 'drift.decay'",
    ),
    "missing": (lambda p, c: {"drift.decay": c["age"]}, "does not have: 'age'; there is 'dose', 'unused 1', 'weight'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_function_is_said_with_the_name_of_the_series(panel, case):
    function, message = WRONG[case]
    model = of_one().with_covariates(function)
    with pytest.raises(ValueError, match=f"series 's1': .*{message}"):
        gv.infer(model, panel.subset(["s1"]), DT, SPAN)
    with pytest.raises(ValueError, match=message):
        gv.infer(model, panel["s1"], DT, SPAN)


def test_covariates_of_tables_are_constant_within_a_series(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text(TABLE)
    frame = pd.read_csv(path)
    read = gv.Panel.from_csv(path, id="subject", covariates=["Wt", "Dose"])
    framed = gv.Panel.from_dataframe(frame, id="subject", covariates=["Wt", "Dose"])
    indexed = gv.Panel.from_dataframe(frame.set_index(["subject", "Wt"]), id="subject", covariates=["Wt", "Dose"])
    for panel in (read, framed, indexed):
        assert panel.dim == 1
        assert panel["ann"].covariates == {"Wt": 70.0, "Dose": 4.0}
        assert panel["bob"].covariates == {"Wt": 80.5, "Dose": 5.0}
    assert read["ann"].subset([0]).covariates == {"Wt": 70.0, "Dose": 4.0}
    assert gv.Panel.from_csv(path, id="subject", values="y", covariates="Wt")["ann"].covariates == {"Wt": 70.0}
    path.write_text(TABLE.replace("1.0,70", "1.0,71"))
    with pytest.raises(
        ValueError, match="series 'ann': the covariate 'Wt' varies: it is 70 in one row and 71 in another"
    ):
        gv.Panel.from_csv(path, id="subject", covariates=["Wt", "Dose"])
    path.write_text(TABLE.replace("1.0,70", "1.0,NA"))
    with pytest.raises(ValueError, match="series 'ann': the covariate 'Wt' is missing in 1 of 2 rows"):
        gv.Panel.from_csv(path, id="subject", covariates=["Wt", "Dose"])
    for table in (path, frame):
        read = gv.Panel.from_csv if table is path else gv.Panel.from_dataframe
        with pytest.raises(ValueError, match="has no column 'age'"):
            read(table, id="subject", covariates=["age"])
        with pytest.raises(ValueError, match="'t' is the column of the times and cannot be one of covariates= too"):
            read(table, id="subject", covariates=["t"])
        with pytest.raises(ValueError, match="'y' is the column of the covariates and cannot be one of the values too"):
            read(table, id="subject", values=["y"], covariates=["y"])


def test_covariates_of_arrays_are_coordinates():
    array = xr.DataArray(
        np.ones((2, 3)),
        dims=("series", "time"),
        coords={"series": ["a", "b"], "time": [0.0, 1.0, 2.0], "weight": ("series", [60.0, 70.0])},
    )
    panel = gv.Panel.from_xarray(array, covariates="weight")
    assert [series.covariates for series in panel.values()] == [{"weight": 60.0}, {"weight": 70.0}]
    with pytest.raises(ValueError, match="'time', which is no coordinate of the dimension 'series' alone"):
        gv.Panel.from_xarray(array, covariates=["time"])


@pytest.mark.parametrize("value", [np.nan, "heavy", [1.0, 2.0], None])
def test_a_covariate_is_one_finite_number(value):
    with pytest.raises(ValueError, match="the covariate 'weight' must be one finite number under a name"):
        gv.TimeSeries([0.0], [1.0], covariates={"weight": value})
    with pytest.raises(ValueError, match="covariates must be a mapping of names to numbers"):
        gv.TimeSeries([0.0], [1.0], covariates=[70.0])
