"""The inference loop: converged values, safeguards, stopping rules, and what is compiled."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import assert_close, assert_compiles_once, assert_gaussian, composed
from tolerances import TOLERANCES

import girsanov as gv
from girsanov._core import progress
from girsanov.chain.linear_sde import Linearisation
from girsanov.result.resolution import unresolved

TIMES = 0.4 * np.arange(1, 9)
VALUES = np.array([0.8, 1.1, 0.5, -0.6, -1.0, -0.9, -1.2, -0.8])
SPAN = (0.0, 3.2)
DT = 0.02  # for every test that does not vary it: one grid, few programs
SERIES = gv.TimeSeries(TIMES, VALUES)


def double_well(scale=4.0, well=1.0, variance=0.01):
    initial = gv.GaussianState(mean=1.0, cov=1e-2)
    return gv.Model(gv.DoubleWell(scale, well), 1.0, initial, gv.likelihoods.Gaussian(variance))


def run(series=SERIES, model=None, dt=DT, **options):
    return gv.infer(model or double_well(), series, dt=dt, span=SPAN, **options)


# A single observation at the far end, beyond the barrier: mirror descent with a full step leaves the densities.
FAR = np.full(8, np.nan)
FAR[-1] = -1.0
HARD = gv.TimeSeries(TIMES, FAR)


# --- the paper's folds


def fold(data_dir, name: str):
    """Model, training series, held-out series and span of fold 0, with the settings of the paper's experiments."""
    with np.load(data_dir / name / "0.npz") as z:
        x0, Q, sigma, end = np.ravel(z["x0"]), z["Q"], float(z["sigma"]), float(z["time_grid"][-1])
        train = gv.TimeSeries(z["observation_grid"], z["observations"])
        test = gv.TimeSeries(z["test_grid"], z["test_observations"])
    drifts = {
        "ou": gv.OrnsteinUhlenbeck(decay=1.2),
        "benes": gv.Benes(scale=1.0),
        "double_well": gv.DoubleWell(scale=4.0, well=1.0),
        "sine": gv.Sine(scale=1.0, phase=0.0),
        "sqrt": gv.SquareRoot(scale=1.0),
        "van_der_pol": gv.VanDerPol(rate=5.0, damping=2.0),
    }
    initial = "stationary" if name == "ou" else gv.GaussianState(x0, 1e-4)
    return gv.Model(drifts[name], Q, initial, gv.likelihoods.Gaussian(sigma**2)), train, test, (0.0, end)


@pytest.mark.paper
@pytest.mark.parametrize("name", ["ou", "benes", "double_well", "sine", "sqrt", "van_der_pol"])
def test_converged_values_of_the_paper_s_folds(data_dir, name):
    """From the default settings, none by hand."""
    path = data_dir.parent / "expected" / "cvi_dp_fold0.json"
    if not path.is_file():
        pytest.skip(f"the expected values are not in {path}")
    expected = json.loads(path.read_text())["values"][name]
    model, train, test, span = fold(data_dir, name)
    post = gv.infer(model, train, dt=expected["dt"], span=span)
    assert post.converged
    kink = name == "sqrt"  # its drift has a kink: the value depends on the quadrature in the third decimal
    assert abs(post.elbo - expected["elbo"]) < TOLERANCES["converged_kink" if kink else "converged"]
    assert abs(post.nlpd(test) - expected["nlpd"]) < TOLERANCES["nlpd"]


# --- the trace


@pytest.mark.parametrize("series", [SERIES, HARD], ids=["easy", "hard"])
@pytest.mark.parametrize("method", [gv.CVIDP(), gv.CVIDP(rho=1.0)], ids=["conjugate", "mirror"])
def test_safeguarded_trace_never_falls(method, series):
    post = run(series, method=method)
    trace = post.history.elbo
    assert post.converged
    assert len(trace) > 3
    assert np.isfinite(trace).all()
    assert np.diff(trace).min() > -TOLERANCES["exact"]
    assert trace[-1] == post.elbo
    assert len(post.history.step) == len(post.history.decrement) == len(trace) == len(post.history)
    assert post.history.passes >= len(trace)  # rejected trials are counted


def test_both_algorithms_reach_the_same_optimum():
    for series in (SERIES, HARD):
        a, b = run(series), run(series, method=gv.CVIDP(rho=1.0), tolerance=1e-9)
        assert abs(a.elbo - b.elbo) < TOLERANCES["converged"]


def test_step_of_an_iteration_is_the_step_taken():
    """All of it, refinement of the line included: the first one goes from η towards g(η), the sites of the gradient."""
    method = gv.CVIDP(coarse_to_fine=False)
    before, after = (run(method=method, max_iterations=n) for n in (0, 1))
    step, target = after.history.step[1], composed(before)
    assert step > 0
    for part in ("h", "J", "K"):
        a, b = (getattr(p.natural, part) for p in (before, after))
        assert_close(b, (1 - step) * a + step * target[part], "roundtrip", part)


def test_plain_mirror_descent_with_too_large_a_step_says_so():
    post = run(HARD, method=gv.CVIDP(rho=1.0, safeguard=False))
    assert post.status == "not_a_density"
    assert not post.converged
    assert "smaller rho" in post.message
    for a in (post.mean, post.cov, post.lag_cov, post.history.elbo, post.elbo):  # the last good result
        assert np.isfinite(a).all()
    assert (np.linalg.eigvalsh(post.cov) > 0).all()
    assert run(HARD, method=gv.CVIDP(rho=1.0)).elbo > post.elbo  # where the safeguard goes on


@given(rho=st.floats(0.05, 1.0), hard=st.booleans())
def test_no_step_size_gives_a_nan(rho, hard):
    post = run(HARD if hard else SERIES, method=gv.CVIDP(rho=rho, safeguard=False, max_iterations=30))
    assert post.status in ("converged", "max_iterations", "not_a_density")
    for a in (post.mean, post.cov, post.lag_cov, post.history.elbo, post.elbo):
        assert np.isfinite(a).all()


@given(rho=st.floats(0.1, 0.6), steps=st.integers(1, 6))
def test_inner_steps_are_single_steps(rho, steps):
    """K steps in one run are K runs of one step, each from the posterior before: no step reuses a stale gradient."""
    post = run(method=gv.CVIDP(rho=rho, safeguard=False, max_iterations=steps))
    single, trace = None, []
    for _ in range(steps):
        single = run(method=gv.CVIDP(rho=rho, safeguard=False, max_iterations=1), start=single)
        trace.append(single.elbo)
    assert_gaussian((single.mean, single.cov, single.lag_cov), (post.mean, post.cov, post.lag_cov), "roundtrip")
    assert_close(np.array(trace), post.history.elbo[1:], "roundtrip", "trace")


def test_mirror_step_is_a_convex_combination_of_natural_parameters():
    """η ← (1 − ρ) η + ρ g(η), with g(η) composed of the posterior's target sites."""
    rho = 0.3
    begin = run(method=gv.CVIDP(rho=rho, safeguard=False, max_iterations=2))
    after = run(method=gv.CVIDP(rho=rho, safeguard=False, max_iterations=1), start=begin)
    full = run(method=gv.CVIDP(rho=1.0, safeguard=False, max_iterations=1), start=begin)
    for part in ("h", "J", "K"):
        a, b, g = (getattr(p.natural, part) for p in (begin, after, full))
        assert_close(g, composed(begin)[part], "roundtrip", f"{part} of the target sites")
        assert_close(b, (1 - rho) * a + rho * g, "roundtrip", part)


# --- stopping


def test_max_iterations_is_a_status():
    post = run(max_iterations=2)
    assert post.status == "max_iterations"
    assert not post.converged
    assert len(post.history) == 3  # the start and two iterations
    assert "raise max_iterations" in post.message
    more = run(max_iterations=2, start=post)
    assert more.elbo > post.elbo


def test_no_iterations_is_the_start():
    post = run(max_iterations=0)
    assert len(post.history) == 1
    assert post.elbo == post.history.elbo[0] < run().elbo


def test_tolerance_is_honoured():
    loose, tight = run(tolerance=1e-1), run(tolerance=1e-10)
    assert loose.converged
    assert tight.converged
    assert len(loose.history) < len(tight.history)
    assert abs(run().elbo - tight.elbo) < TOLERANCES["converged"]
    assert tight.elbo > loose.elbo


def test_start_from_the_solution_stops_at_once():
    post = run()
    again = run(start=post)
    assert again.converged
    assert len(again.history) <= 2
    assert abs(again.elbo - post.elbo) < TOLERANCES["optimum"]


def test_start_from_another_grid():
    coarse = run(dt=2 * DT)
    post = run(start=coarse)
    assert post.converged
    assert abs(post.elbo - run().elbo) < TOLERANCES["converged"]


def test_coarser_grids_give_the_same_optimum():
    dt = 0.005  # 641 nodes: one coarser grid
    with_levels = run(dt=dt)
    without = run(dt=dt, method=gv.CVIDP(coarse_to_fine=False))
    assert len(with_levels.history.coarse) == 1
    assert without.history.coarse == ()
    assert abs(with_levels.elbo - without.elbo) < TOLERANCES["converged"]
    assert len(with_levels.history) < len(without.history)


# --- discretisation and quadrature


def test_result_drifts_with_the_step_only_by_its_own_first_order_error():
    a, b, c = (run(dt=dt).elbo for dt in (0.02, 0.01, 0.005))
    order = np.log2((b - a) / (c - b))
    assert abs(order - 1.0) < TOLERANCES["order"]


def test_more_quadrature_nodes_change_nothing():
    post = run(method=gv.CVIDP(quadrature=gv.GaussHermite(32)))
    assert abs(post.elbo - run().elbo) < TOLERANCES["converged"]


def test_monte_carlo_quadrature_is_unbiased_to_within_its_error():
    exact = run().elbo
    rules = [gv.MonteCarlo(2000, jax.random.key(k)) for k in range(8)]
    errors = np.array([run(method=gv.CVIDP(quadrature=rule)).elbo - exact for rule in rules])
    assert abs(errors.mean()) < TOLERANCES["standard_errors"] * errors.std(ddof=1) / np.sqrt(len(errors))
    assert errors.std() > 0.0  # the rule was used


# --- precision


def test_answers_are_float64_and_the_user_s_setting_stays():
    assert jnp.zeros(1).dtype == jnp.float32
    post = run()
    for a in (post.times, post.mean, post.cov, post.lag_cov, post.history.elbo, post.natural.J, post.target.base.A):
        assert isinstance(a, np.ndarray)
        assert a.dtype == np.float64
    assert jnp.zeros(1).dtype == jnp.float32
    with jax.enable_x64(True):
        assert run().elbo == post.elbo


# --- compilation


def test_same_shapes_do_not_compile_again():
    dt = 0.025  # a grid that no other test uses
    rng = np.random.default_rng(0)
    times = [
        np.sort(rng.uniform(0.05, 3.15, 8)),
        np.sort(np.append(rng.uniform(0.05, 3.15, 7), 1.0)),
    ]  # on and off the grid
    assert_compiles_once(
        lambda: run(dt=dt),
        lambda: run(dt=dt),  # the same
        lambda: run(gv.TimeSeries(TIMES, 1.1 * VALUES), dt=dt),  # other data
        lambda: run(HARD, dt=dt),  # other missing entries
        lambda: run(model=double_well(3.0, 1.2), dt=dt),  # another drift parameter
        lambda: run(model=double_well(variance=0.02), dt=dt),  # another noise
        lambda: run(dt=dt, tolerance=1e-3, max_iterations=7),  # other stopping rules
        *(lambda t=t: run(gv.TimeSeries(t, VALUES), dt=dt) for t in times),  # another fold with as many observations
    )


def test_a_callable_with_another_closure_over_numbers_is_another_drift_but_a_module_is_not():
    """Parameters of a user's own module are traced: a changed one does not compile again."""
    import equinox as eqx

    class Tilted(eqx.Module):
        tilt: float

        def __call__(self, x, t):
            return self.tilt - x**3

    def go(tilt):
        model = gv.Model(Tilted(tilt), 1.0, gv.GaussianState(0.0, 1.0), gv.likelihoods.Gaussian(0.1))
        return gv.infer(model, gv.TimeSeries([0.2, 0.5], [0.3, 0.1]), dt=0.05, span=(0.0, 0.5)).elbo

    elbos = []
    assert_compiles_once(lambda: elbos.append(go(0.5)), lambda: elbos.append(go(-0.5)))
    assert elbos[0] != elbos[1]


@pytest.mark.slow
def test_same_shapes_do_not_compile_again_on_a_fine_grid():
    """Above ten thousand nodes the coarser grids have programs of their own; they are shared between folds as well."""
    dt, rng = 0.0003, np.random.default_rng(0)
    other = gv.TimeSeries(np.sort(rng.uniform(0.05, 3.15, 8)), VALUES)
    assert_compiles_once(lambda: run(dt=dt), lambda: run(other, dt=dt), lambda: run(model=double_well(3.0), dt=dt))


# --- progress


def test_progress_is_shown_on_long_runs_and_can_be_turned_off(monkeypatch, capsys):
    with progress.reporter(True) as say:
        say("too early")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "_AFTER", -1.0)
    with progress.reporter(True) as say:
        say("at iteration 3")
    assert "at iteration 3" in capsys.readouterr().err
    with progress.reporter(False) as say:
        assert say is None


# --- a grid that does not resolve the drift


def test_a_step_too_long_for_the_drift_is_a_warning(recwarn):
    model = gv.Model(gv.OrnsteinUhlenbeck(5.0), likelihood=gv.likelihoods.Gaussian(0.1))
    series = gv.TimeSeries([1.0, 2.0], [0.1, 0.2])
    methods = {"discrete": gv.CVIDP(), "continuous": gv.CVIDP(time="continuous")}
    for dt, time in ((0.25, "discrete"), (0.1, "discrete"), (0.25, "continuous")):
        recwarn.clear()
        gv.infer(model, series, dt=dt, method=methods[time])
        said = [str(w.message) for w in recwarn if "too long for the drift" in str(w.message)]
        assert len(said) == ((dt, time) == (0.25, "discrete"))
        assert all("the step of 0.25" in s and "rate there is 5 per unit" in s and "below 0.2," in s for s in said)


@pytest.mark.parametrize(
    ("A", "rate"),
    [([[0.0, 5.0], [-5.0, 0.0]], 5.0), ([[0.0, 50.0], [0.0, 0.0]], 0.0), ([[-8.0, 0.0], [0.0, 2.0]], 8.0)],
    ids=["rotation", "shear", "saddle"],
)
def test_what_is_too_long_is_the_largest_eigenvalue_times_the_step(A, rate):
    """A shear has none, however large its entries are."""
    times = np.array([0.0, 0.1, 0.4])  # the second step is the long one
    base = Linearisation(np.repeat(np.array(A)[:, :, None], 2, axis=2), np.zeros((2, 2)))
    said = unresolved(base, times)
    assert bool(said) == (0.3 * rate > 1.0)
    assert not said or (f"rate there is {rate:g}" in said and "step of 0.3 from time 0.1" in said)
