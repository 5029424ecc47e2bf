"""Models that are built inside a user's program, from numbers that are traced, and what does not fit a problem."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_close
from tolerances import TOLERANCES

import girsanov as gv

SPAN, DT = (0.0, 2.0), 0.1
TIMES = np.array([0.31, 0.74, 1.1, 1.62, 1.9])
SERIES = gv.TimeSeries(TIMES, np.sin(3.0 * TIMES))
PAIRS = gv.TimeSeries(TIMES, np.stack([np.sin(3.0 * TIMES), np.cos(2.0 * TIMES)], 1))
NOISE = gv.likelihoods.Gaussian(0.1)


@pytest.fixture(autouse=True)
def a_program_in_64_bits():
    with jax.enable_x64(True):
        yield


def with_mean(mu):
    return gv.Model(gv.DoubleWell(), 0.8, gv.GaussianState(mu, 0.2), NOISE)


def with_mean_of_two(mu):
    return gv.Model(gv.OrnsteinUhlenbeck([1.0, 0.5]), 0.8, gv.GaussianState(mu, 0.2), NOISE)


def with_constant(b):
    A = [[-1.0, 0.3], [0.0, -0.5]]
    return gv.Model(gv.Linear(A, b), 0.8, "stationary", NOISE)


def with_velocity(s):
    diffusion = [0.0, s] if isinstance(s, float) else jnp.stack([0.0, s])
    initial = gv.GaussianState([0.0, 1.0], 0.5)
    return gv.Model(gv.IntegratedOU(0.7), diffusion, initial, NOISE, emission=[[1.0, 0.0]])


def with_noise_in_common(s):
    diffusion = s * np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    A = [[-1.0, 0.0, 0.0], [0.0, -2.0, 0.0], [1.0, 0.0, -1.0]]
    return gv.Model(gv.Linear(A), diffusion, likelihood=NOISE, emission=[[1.0, 0.0, 1.0]])


def with_lengthscale(length):
    return gv.matern(1.5, lengthscale=length, likelihood=NOISE)


CASES = {
    "mean of a scalar state": (with_mean, SERIES),
    "one mean for both coordinates": (with_mean_of_two, PAIRS),
    "constant of a stationary drift": (with_constant, PAIRS),
    "noise of a velocity": (with_velocity, SERIES),
    "noise that coordinates share": (with_noise_in_common, SERIES),
    "lengthscale of a Matérn process": (with_lengthscale, SERIES),
}
SLOW = ("noise that coordinates share", "lengthscale of a Matérn process", "noise of a velocity")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in CASES])
def test_a_model_of_a_traced_number_has_the_bound_of_the_number(name):
    make, series = CASES[name]
    problem = gv.prepare(make(0.6), series, DT, SPAN)
    wanted = gv.infer(make(0.9), series, DT, SPAN, progress=False)
    assert wanted.converged
    assert abs(float(jax.jit(lambda v: gv.bound(make(v), problem))(0.9)) - wanted.elbo) < TOLERANCES["functional"]


def test_the_variance_of_a_matern_process_may_be_traced():
    traced = jax.jit(lambda v: gv.matern(2.5, 0.8, v).diffusion)(0.7)
    assert_close(traced, gv.matern(2.5, 0.8, 0.7).diffusion, "exact")


def test_arrays_of_jax_that_are_not_traced_are_checked_as_numbers_are():
    with pytest.raises(ValueError, match=r"diffusion must be positive and finite, got -1\.0"):
        gv.Model(gv.DoubleWell(), diffusion=jnp.array(-1.0))
    with pytest.raises(ValueError, match=r"variance must be positive and finite, got -1\.0"):
        gv.likelihoods.Gaussian(jnp.array(-1.0))
    model = gv.Model(gv.DoubleWell(), initial=gv.GaussianState(jnp.array(0.3)), dim=2)
    assert np.array_equal(model.initial_state().mean, [0.3, 0.3])


@pytest.mark.slow
def test_the_gradient_in_the_noise_of_a_velocity_is_that_of_differences():
    problem = gv.prepare(with_velocity(0.6), SERIES, DT, SPAN)

    def at(s):
        return gv.bound(with_velocity(s), problem)

    slope = float(jax.jit(jax.grad(at))(0.6))
    traced, step = jax.jit(at), 1e-4
    differences = (float(traced(0.6 + step)) - float(traced(0.6 - step))) / (2.0 * step)
    assert abs(slope - differences) < TOLERANCES["envelope_continuous"] * abs(differences)


def test_a_problem_of_other_noise_is_refused():
    regular = gv.Model(gv.IntegratedOU(0.7), [0.1, 1.0], likelihood=NOISE, emission=[[1.0, 0.0]])
    problem = gv.prepare(regular, SERIES, DT, SPAN)
    with pytest.raises(ValueError, match=r"rank 1 in the coordinates \[1\].*prepared.*rank 2 in the coordinates"):
        gv.bound(with_velocity(0.6), problem)
    with pytest.raises(ValueError, match="zeros in the same places"):
        jax.jit(gv.bound)(with_velocity(0.6), problem)
    with pytest.raises(ValueError, match="zeros in the same places"):
        gv.solve(regular, gv.prepare(with_velocity(0.6), SERIES, DT, SPAN))


@pytest.mark.parametrize("call", [gv.solve, gv.bound, jax.jit(gv.bound)], ids=["solve", "bound", "bound, compiled"])
def test_a_problem_that_does_not_fit_the_model_is_refused(call):
    problem = gv.prepare(with_mean(0.6), SERIES, DT, SPAN)
    with pytest.raises(ValueError, match="prepared for a state of dimension 1, but the model has dimension 2"):
        call(with_velocity(0.6), problem)
    with pytest.raises(ValueError, match="observations of dimension 1, but the model has dimension 2"):
        call(gv.Model(gv.DoubleWell(), likelihood=NOISE, emission=[[1.0], [2.0]]), problem)


@pytest.mark.usefixtures("as_a_user")
def test_arguments_of_other_types_are_refused():
    model = with_mean(0.6)
    problem = gv.prepare(model, SERIES, DT, SPAN)
    with pytest.raises(ValueError, match=r"problem must be the result of gv\.prepare.*got TimeSeries"):
        gv.bound(model, SERIES)
    with pytest.raises(ValueError, match=r"model must be a gv\.Model, got DoubleWell"):
        gv.solve(gv.DoubleWell(), problem)
    with pytest.raises(ValueError, match=r"start must be a result of gv\.solve, or None, got Posterior"):
        gv.bound(model, problem, gv.infer(model, SERIES, DT, SPAN, progress=False))
    stacked = jax.tree.map(lambda *a: np.stack(a), problem, problem)
    with pytest.raises(ValueError, match=r"shape \(2, 5, 1\).*jax\.vmap"):
        gv.bound(model, stacked)


@pytest.mark.parametrize("call", [gv.solve, gv.bound])
def test_the_message_about_64_bits_names_the_function_that_was_called(call):
    model = with_mean(0.6)
    problem = gv.prepare(model, SERIES, DT, SPAN)
    with jax.enable_x64(False), pytest.raises(ValueError, match=rf"girsanov\.{call.__name__} runs inside"):
        call(model, problem)


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize("dim", [0, -1, 1.5, "two", np.nan])
def test_a_dimension_is_a_positive_whole_number(dim):
    with pytest.raises(ValueError, match="dim must be a whole number ≥ 1, got"):
        gv.Model(gv.DoubleWell(), dim=dim)


@pytest.mark.usefixtures("as_a_user")
def test_a_dimension_may_be_a_whole_number_of_any_type():
    assert gv.Model(gv.DoubleWell(), dim=2.0).initial_state().cov.shape == (2, 2)
    assert gv.Model(gv.DoubleWell(), dim=np.int64(2)).dim == 2
