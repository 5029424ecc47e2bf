"""Profiles and intervals against a Kalman filter and SciPy, and what is said where the data give no limit."""

import jax
import numpy as np
import pytest
import scipy.optimize
from scipy.stats import chi2
from support import assert_close, ou_log_likelihood

import girsanov as gv

DT, END = 0.05, 20.0
QUIET = {"progress": False, "step_error": False}


def ou_model(decay=1.0, diffusion=1.0, noise=0.1) -> gv.Model:
    return gv.Model(gv.OrnsteinUhlenbeck(decay), diffusion, gv.GaussianState(0.0, 0.5), gv.likelihoods.Gaussian(noise))


@pytest.fixture(scope="module")
def series() -> gv.TimeSeries:
    return gv.simulate(ou_model(), np.arange(1, 81) * 0.25, key=jax.random.key(1), dt=0.01, start=0.0).series


@pytest.fixture(scope="module")
def fit(series):
    return gv.learn(ou_model(0.5, 2.0), series, DT, (0.0, END), trainable=["drift", "diffusion"], **QUIET)


def exact_profile(series, decay: float) -> tuple[float, float]:
    """The largest log likelihood over the diffusion at a decay, and that diffusion."""

    def loss(log_diffusion):
        return -ou_log_likelihood(series, DT, END, decay, np.exp(log_diffusion), noise=0.1, variance=0.5)

    found = scipy.optimize.minimize_scalar(loss, bounds=(-4.0, 3.0), method="bounded", options={"xatol": 1e-9})
    return -found.fun, float(np.exp(found.x))


def test_the_profile_of_a_linear_model_is_that_of_its_likelihood(fit, series):
    got = fit.profile("drift.decay", progress=False)
    wanted = np.array([exact_profile(series, decay) for decay in got.values])
    assert_close(got.objective, wanted[:, 0], "profiled", size=1.0)
    assert_close(got.others["diffusion"], wanted[:, 1], "fitted")
    assert got.message == "" and (np.diff(got.values) > 0.0).all()


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_an_interval_ends_where_the_likelihood_has_fallen_by_half_a_quantile(fit, series, level):
    got = fit.profile("drift.decay", level=level, progress=False)
    best = scipy.optimize.minimize_scalar(
        lambda decay: -exact_profile(series, decay)[0], bounds=(0.05, 5.0), method="bounded", options={"xatol": 1e-9}
    )
    drop = 0.5 * chi2.ppf(level, 1)
    assert_close(got.drop, drop, "exact")

    def excess(decay):
        return exact_profile(series, decay)[0] + best.fun + drop

    wanted = [scipy.optimize.brentq(excess, best.x, end, xtol=1e-10) for end in (0.02, 8.0)]
    assert_close(np.array(got.interval), np.array(wanted), "fitted")
    assert f"{100 * level:g} % in" in repr(got)


def test_an_end_that_the_data_do_not_give_is_that_of_the_range(series):
    """Without noise in the observations the likelihood hardly falls: they can be the path itself."""
    fit = gv.learn(ou_model(), series, DT, (0.0, END), trainable=["drift", "diffusion", "likelihood"], **QUIET)
    got = fit.profile("likelihood.variance", progress=False)
    assert got.interval[0] == 0.0 and np.isfinite(got.interval[1])
    assert "no limit to likelihood.variance downwards" in got.message
    with pytest.raises(ValueError, match=r"no learnt entry 'drift'; there are drift.decay, diffusion"):
        fit.profile("drift")
    with pytest.raises(ValueError, match=r"level must be a probability between 0 and 1, got 95.0"):
        fit.profile("drift.decay", level=95.0)


def test_the_picture_has_the_curve_the_parabola_and_the_interval(fit):
    got = fit.profile("diffusion", progress=False)
    ax = got.plot()
    curve, parabola = ax.lines[0].get_xydata(), ax.lines[1].get_xydata()
    assert np.array_equal(curve[:, 0], got.values) and curve[:, 1].max() == 0.0
    top = parabola[np.argmax(parabola[:, 1])]
    assert abs(top[0] - got.estimate) < 0.05 * got.standard_error
    assert ax.get_xlabel() == "diffusion"
    drawn = [line.get_xdata()[0] for line in ax.lines if len(set(line.get_xdata())) == 1]
    assert sorted(drawn) == sorted(got.interval)


def test_a_fit_from_a_file_says_what_it_lacks(fit, tmp_path):
    back = gv.load(fit.save(tmp_path / "fit.gv"))
    assert back.directions == fit.directions and back.identifiability() == fit.identifiability()
    with pytest.raises(ValueError, match=r"read from a file.*resume=fit"):
        back.profile("drift.decay")


@pytest.mark.slow
def test_entries_of_a_covariance_have_no_profile_of_their_own():
    model = gv.Model(gv.Linear(-np.eye(2)), np.array([[1.0, 0.3], [0.3, 0.5]]), likelihood=gv.likelihoods.Gaussian(0.1))
    data = gv.simulate(model, np.arange(1, 21) * 0.2, key=jax.random.key(0), start=0.0).series
    fit = gv.learn(model, data, 0.2, trainable=["diffusion"], max_iterations=2, **QUIET)
    with pytest.raises(ValueError, match=r"diffusion\[1, 0\] has no coordinate of its own.*'diagonal'"):
        fit.profile("diffusion[1, 0]")
