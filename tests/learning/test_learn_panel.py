"""Learning from panels: the maximum of an exact likelihood, and parameters of single series."""

import jax
import numpy as np
import pytest
import scipy.optimize
from support import condition, linear_joint
from tolerances import TOLERANCES

import girsanov as gv
from girsanov.learning.panel_problem import PanelProblem
from girsanov.learning.parameters import make_spec
from girsanov.learning.random_learner import RandomLearner
from girsanov.result.infer_panel import lay_out_panel

DT, COUNT = 0.1, 6


def a_model(decay=0.8, mean=0.0, Q=0.5, noise=0.1, first=0.0) -> gv.Model:
    drift = gv.Linear([[-decay]], [mean])
    return gv.Model(drift, Q, gv.GaussianState(first, 0.05), gv.likelihoods.Gaussian(noise), offset=0.0)


def a_panel(spread=1.5) -> gv.Panel:
    """Series of different lengths, which begin at different states."""
    rng = np.random.default_rng(3)
    series = []
    for k in range(COUNT):
        times = np.sort(rng.choice(np.arange(1, 41), 12 + k, replace=False)) * DT
        model = a_model(mean=0.6, first=spread * rng.normal())
        series.append(gv.simulate(model, times, key=jax.random.key(k), start=0.0, dt=0.01).series)
    return gv.Panel(series)


def log_likelihood(series, decay, b, Q, noise, first, spread=0.05) -> float:
    """By dense algebra on the same grid."""
    last = round(series.times[-1] / DT)
    times = DT * np.arange(last + 1)
    node = np.round(series.times / DT).astype(int)
    A, c = np.full((last, 1, 1), -decay), np.full((last, 1), b)
    mean, cov = linear_joint(A, c, np.array([[Q]]), np.array([first]), np.array([[spread]]), times)
    return condition(mean, cov, np.eye(1), np.array([[noise]]), node, series.values)[2]


def exact_maximum(panel, value, start) -> scipy.optimize.OptimizeResult:
    """By BFGS, whose gradient is one of central differences."""

    def grad(x):
        steps = 1e-5 * np.eye(len(x))
        return np.array([(value(panel, x - s) - value(panel, x + s)) / 2e-5 for s in steps])

    return scipy.optimize.minimize(lambda x: -value(panel, x), start, jac=grad, method="BFGS", options={"gtol": 1e-7})


def spans(panel) -> dict:
    return {name: (0.0, series.times[-1]) for name, series in panel.items()}


@pytest.mark.slow
def test_shared_drift_and_individual_initial_means(tmp_path):
    panel = a_panel()
    fit = gv.learn(
        a_model(),
        panel,
        DT,
        spans(panel),
        trainable=["drift"],
        individual=["initial.mean"],
        tolerance=1e-10,
        progress=False,
    )

    def value(panel, x):
        return sum(
            log_likelihood(s, -x[0], x[1], 0.5, 0.1, first) for s, first in zip(panel.values(), x[2:], strict=True)
        )

    best = exact_maximum(panel, value, np.array([-0.8, 0.0, *np.zeros(COUNT)]))
    assert (fit.status, fit.converged, fit.message) == ("converged", True, "converged")
    assert abs(fit.elbo + best.fun) < TOLERANCES["likelihood_maximum"]
    learnt = np.concatenate([fit.parameters["drift.A"].ravel(), fit.parameters["drift.b"]])
    assert np.abs(learnt / best.x[:2] - 1.0).max() < TOLERANCES["likelihood_maximum"]
    own = fit.individual["initial.mean"]
    assert own.shape == (COUNT, 1)
    assert np.abs(own[:, 0] - best.x[2:]).max() < TOLERANCES["likelihood_maximum"] * np.abs(best.x[2:]).max()
    _standard_errors(fit, panel, value, best.x)
    for i, name in enumerate(panel):
        assert fit.posteriors[name].model.initial.mean == own[i]
        assert np.array_equal(fit.posteriors[name].model.drift.A, fit.model.drift.A)
    loaded = gv.load(fit.posteriors.save(tmp_path / "posts.gv"))
    assert [post.model.initial.mean.item() for post in loaded.values()] == own[:, 0].tolist()
    assert len(fit.history) > 1
    assert "initial.mean[0]" in fit.summary()
    assert "6 series" in fit.summary()


def _hessian(value, x) -> np.ndarray:
    n, h = len(x), 1e-3

    def at(i, si, j, sj):
        moved = x.copy()
        moved[i] += si * h
        moved[j] += sj * h
        return value(moved)

    def entry(i, j):
        return (at(i, 1, j, 1) - at(i, 1, j, -1) - at(i, -1, j, 1) + at(i, -1, j, -1)) / (4 * h * h)

    return np.array([[entry(i, j) for j in range(n)] for i in range(n)])


def _standard_errors(fit, panel, value, x) -> None:
    """Of the shared parameters: from the Hessian of the exact likelihood in all of them."""
    H = _hessian(lambda x: value(panel, x), x)
    wanted = np.sqrt(np.diagonal(np.linalg.inv(-H)))
    got = [fit.standard_errors["drift.A[0, 0]"], fit.standard_errors["drift.b[0]"]]
    assert np.abs(np.array(got) / wanted[:2] - 1.0).max() < TOLERANCES["learnt"]
    given = 1.0 / np.sqrt(-np.diagonal(H)[2:])  # of a single series, given what is shared
    assert np.abs(fit.individual_errors["initial.mean"][:, 0] / given - 1.0).max() < TOLERANCES["learnt"]


@pytest.mark.slow
def test_shared_variances_alone_are_those_of_the_exact_maximum():
    panel = a_panel(spread=0.2)
    fit = gv.learn(
        a_model(mean=0.6),
        panel,
        DT,
        spans(panel),
        trainable=["diffusion", "likelihood", "drift.A"],
        tolerance=1e-10,
        progress=False,
    )

    def value(panel, x):
        return sum(log_likelihood(s, x[0], 0.6, np.exp(x[1]), np.exp(x[2]), 0.0) for s in panel.values())

    best = exact_maximum(panel, value, np.array([0.8, np.log(0.5), np.log(0.1)]))
    found = fit.parameters
    learnt = [-found["drift.A"].item(), found["diffusion"].item(), found["likelihood.variance"].item()]
    assert fit.converged
    assert abs(fit.elbo + best.fun) < TOLERANCES["likelihood_maximum"]
    assert np.abs(np.array(learnt) / [best.x[0], *np.exp(best.x[1:])] - 1.0).max() < TOLERANCES["likelihood_maximum"]


@pytest.mark.slow
def test_a_nonlinear_panel_where_all_is_individual_is_single_fits():
    model = gv.Model(gv.DoubleWell(2.0, 1.0), 0.8, gv.GaussianState(0.5, 0.2), gv.likelihoods.Gaussian(0.05))
    series = [
        gv.simulate(model, np.arange(1, 31) * 0.1, key=jax.random.key(k), start=0.0, dt=0.01).series for k in range(2)
    ]
    panel = gv.Panel(series)
    fit = gv.learn(model, panel, 0.05, (0.0, 3.0), trainable=[], individual="drift.well", progress=False)
    for i, one in enumerate(series):
        single = gv.learn(model, one, 0.05, (0.0, 3.0), trainable="drift.well", check=False, progress=False)
        assert abs(fit.individual["drift.well"][i] - single.parameters["drift.well"]) < TOLERANCES["learnt"]
        assert abs(fit.posteriors.elbos[str(i)] - single.elbo) < TOLERANCES["likelihood_maximum"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("diffusion", "method"), [(0.5, gv.CVIDP(time="continuous")), (gv.diffusions.Proportional(0.5), gv.CVIDP())]
)
def test_a_drift_of_one_s_own_in_continuous_time_and_with_noise_that_grows(diffusion, method):
    """All of them individual: the sum of single fits."""
    model = gv.Model(
        lambda x, t: 1.0 - x, diffusion, gv.GaussianState(1.0, 0.05), gv.likelihoods.Gaussian(0.02), offset=0.0
    )
    panel = gv.Panel([gv.TimeSeries([0.2, 0.5, 0.9], [1.2 + 0.2 * k, 1.1, 1.3]) for k in range(2)])
    fit = gv.learn(model, panel, 0.1, (0.0, 1.0), trainable=[], individual="offset", method=method, progress=False)
    assert fit.converged
    for i, one in enumerate(panel.values()):
        single = gv.learn(
            model, one, 0.1, (0.0, 1.0), trainable="offset", method=method, check=False, tolerance=1e-9, progress=False
        )
        assert abs(fit.individual["offset"][i, 0] - single.parameters["offset"][0]) < TOLERANCES["learnt"]
        assert abs(fit.posteriors.elbos[str(i)] - single.elbo) < TOLERANCES["likelihood_maximum"]


def test_what_a_series_does_not_tell_is_flat():
    times = {"a": [0.5, 1.0], "b": [0.5]}
    panel = gv.Panel({name: gv.TimeSeries(t, np.ones(len(t))) for name, t in times.items()})
    model = gv.Model(gv.Sine(scale=0.0, phase=0.3), likelihood=gv.likelihoods.Gaussian(0.05))
    fit = gv.learn(model, panel, 0.1, (0.0, 1.0), trainable=[], individual="drift.phase", progress=False)
    assert fit.status == "flat"
    assert fit.message.startswith("the data of 2 of 2 series do not tell their own drift.phase, the first is 'a'")
    assert np.isnan(fit.individual_errors["drift.phase"]).all()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"individual": ["drift.A"]}, r"'drift.A' is named both in trainable= and in individual="),
        ({"random": ["drift"]}, r"'drift.A' is named both in trainable= and in random="),
        ({"random": ["offset"], "individual": ["initial.mean"]}, "individual= and random= cannot be given together"),
        ({"trainable": []}, "name at least one parameter in trainable=, individual= or random="),
        ({"individual": "drift.depth"}, "the model has no parameter 'drift.depth'"),
        ({"objective": "modified"}, "objective= is for a single series"),
        ({"resume": 1}, "resume= is for a single series"),
        ({"method": gv.VDP()}, "a panel are learnt with method=gv.CVIDP"),
        (
            {"series": gv.TimeSeries([0.5], [1.0]), "individual": "initial.mean"},
            "individual=, random= and effects= are for a gv.Panel",
        ),
        ({"span": (0.0, 0.2)}, "series 'a': the observation"),
    ],
    ids=[
        "two roles",
        "shared and random",
        "free and random",
        "none",
        "unknown",
        "objective",
        "resume",
        "VDP",
        "one series",
        "span",
    ],
)
def test_bad_input(options, says, as_a_user):
    panel = gv.Panel({"a": gv.TimeSeries([0.5], [1.0])})
    options = {"model": a_model(), "series": panel, "dt": DT, "span": (0.0, 1.0), "trainable": ["drift.A"], **options}
    with pytest.raises(ValueError, match=says):
        gv.learn(**options)


@pytest.mark.slow
def test_random_initial_means_have_the_exact_marginal_likelihood():
    """A normal law of the initial mean adds its variance to that of the initial state."""
    panel = a_panel()
    options = {"trainable": ["likelihood.variance"], "random": ["initial.mean"], "tolerance": 1e-9, "progress": False}
    fit = gv.learn(a_model(decay=0.9, mean=0.6), panel, DT, spans(panel), **options)

    def value(panel, x):
        mean, variance, noise = x[0], np.exp(x[1]), np.exp(x[2])
        return sum(log_likelihood(s, 0.9, 0.6, 0.5, noise, mean, 0.05 + variance) for s in panel.values())

    law = fit.effects["initial.mean"]
    learnt = np.array([law.mean[0], np.log(law.variance[0]), np.log(fit.parameters["likelihood.variance"])])
    assert fit.status == "converged"
    assert abs(fit.elbo - value(panel, learnt)) < TOLERANCES["optimum"]
    best = exact_maximum(panel, value, np.array([0.0, 0.0, np.log(0.1)]))
    assert abs(fit.elbo + best.fun) < TOLERANCES["optimum"]
    assert np.abs(learnt - best.x).max() < TOLERANCES["optimum_moments"]
    assert fit.model.initial.mean[0] == law.mean[0]

    # Each is what the data of the series and the law together say: between its own best value and the mean.
    alone = gv.learn(fit.model, panel, DT, spans(panel), trainable=[], individual="initial.mean", progress=False)
    own, errors = (a["initial.mean"][:, 0] for a in (alone.individual, alone.individual_errors))
    weight = law.variance / (law.variance + errors**2)
    shrunken = weight * own + (1.0 - weight) * law.mean
    assert np.abs(fit.individual["initial.mean"][:, 0] - shrunken).max() < TOLERANCES["optimum"]
    sds = np.sqrt(weight * errors**2)
    assert np.abs(fit.individual_errors["initial.mean"][:, 0] / sds - 1.0).max() < TOLERANCES["optimum"]
    assert "variance(initial.mean)[0]" in fit.summary()
    H = _hessian(lambda x: value(panel, x), best.x)
    wanted = np.sqrt(np.diagonal(np.linalg.inv(-H))) * [1.0, law.variance[0], np.exp(best.x[2])]
    names = ["mean(initial.mean)[0]", "variance(initial.mean)[0]", "likelihood.variance"]
    assert np.abs(np.array([fit.standard_errors[n] for n in names]) / wanted - 1.0).max() < TOLERANCES["learnt"]


@pytest.mark.slow
def test_random_offsets_of_the_sleep_study(data_dir):
    path = data_dir / "real" / "sleepstudy.csv"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    panel = gv.Panel.from_csv(path, id="Subject", time="Days", values="Reaction")
    panel = gv.Panel({k: gv.TimeSeries(s.times, s.values / 100.0) for k, s in panel.items()})
    start, noise = gv.GaussianState(0.0, 0.05), gv.likelihoods.Gaussian(0.02)
    model = gv.Model(gv.OrnsteinUhlenbeck(0.5), 0.05, start, noise, offset=3.0)
    options = {"trainable": ["diffusion"], "random": ["offset"], "tolerance": 1e-9, "progress": False}
    fit = gv.learn(model, panel, 1.0, **options)

    def value(panel, x):
        """A common offset of all observations of a subject adds its variance to all their covariances."""
        mean, variance, Q = x[0], *np.exp(x[1:])
        total = 0.0
        for s in panel.values():
            A, b = np.full((len(s) - 1, 1, 1), -0.5), np.zeros((len(s) - 1, 1))
            m, P = linear_joint(A, b, np.array([[Q]]), np.zeros(1), np.array([[0.05]]), s.times)
            V, e = P + 0.02 * np.eye(len(s)) + variance, s.values[:, 0] - m - mean
            total -= 0.5 * (e @ np.linalg.solve(V, e) + np.linalg.slogdet(2 * np.pi * V)[1])
        return total

    law = fit.effects["offset"]
    learnt = np.array([law.mean[0], np.log(law.variance[0]), np.log(fit.parameters["diffusion"].item())])
    assert fit.converged
    assert abs(fit.elbo - value(panel, learnt)) < TOLERANCES["optimum"]
    best = exact_maximum(panel, value, learnt + 0.3)
    assert abs(fit.elbo + best.fun) < TOLERANCES["optimum"]
    assert np.abs(learnt - best.x).max() < TOLERANCES["optimum_moments"]


@pytest.mark.slow
def test_the_gradient_of_the_marginal_bound_is_that_of_differences():
    """With an effect in which the bound is not quadratic: the modes and the curvatures move with the parameters."""
    model = gv.Model(gv.DoubleWell(2.0, 1.0), 0.8, gv.GaussianState(0.5, 0.2), gv.likelihoods.Gaussian(0.05))
    times = np.arange(1, 31) * 0.1
    panel = gv.Panel([gv.simulate(model, times, key=jax.random.key(k), start=0.0, dt=0.01).series for k in range(3)])
    with jax.enable_x64(True):
        shared, drawn = make_spec(model, ["diffusion"]), make_spec(model, ["drift.scale"])
        method = gv.CVIDP(tolerance=1e-12)
        datas = lay_out_panel(model, panel, 0.1, (0.0, 3.0), None)
        problem = PanelProblem(shared + drawn, method, model, method.rule(1), datas)
        learner = RandomLearner(problem, shared, drawn, method, {}, 0.0, None)
        lam = np.array([np.log(0.8), np.log(2.0), np.log(0.1)])
        here = learner.first(lam, np.full((3, 1), lam[1]))
        for j in range(3):
            ends = [learner.e_step(lam + s * 1e-3 * np.eye(3)[j], here).elbo for s in (1.0, -1.0)]
            assert abs((ends[0] - ends[1]) / 2e-3 - here.grad[j]) < TOLERANCES["learnt"] * max(1.0, abs(here.grad[j]))


def test_a_summary_has_no_error_beside_an_entry_that_is_fixed():
    model = gv.Model(gv.Linear(-np.eye(2)), 0.5, gv.GaussianState(np.zeros(2), 0.5), gv.likelihoods.Gaussian(0.1))
    panel = gv.Panel(
        [gv.simulate(model, np.arange(1, 6) * 0.3, key=jax.random.key(i), dt=0.1, start=0.0).series for i in range(2)]
    )
    fit = gv.learn(model, panel, dt=0.3, span=(0.0, 1.5), trainable=["diffusion"], progress=False)
    lines = {line.split("  ")[0]: line.split()[-1] for line in fit.summary().splitlines()}
    assert lines["diffusion[0, 1]"] == lines["diffusion[1, 0]"] == "–"
    assert lines["diffusion[0, 0]"] == lines["diffusion[1, 1]"] == f"{fit.standard_errors['diffusion']:.3g}"
