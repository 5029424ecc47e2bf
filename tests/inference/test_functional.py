"""`prepare`, `solve` and `bound` inside a user's own programs: the same as `infer`, mapped and differentiated."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import assert_close, assert_gaussian
from tolerances import TOLERANCES

import girsanov as gv
from girsanov.inference.status import Status

SPAN, DT = (0.0, 2.0), 0.02
TIMES = np.array([0.31, 0.74, 1.1, 1.62, 1.9])
TIGHT = gv.CVIDP(tolerance=1e-11)
CONTINUOUS = gv.CVIDP(time="continuous", tolerance=1e-11)
STEP = 1e-4  # of central differences, relative


def double_well(scale=2.0) -> gv.Model:
    return gv.Model(
        gv.DoubleWell(scale, 1.0), 0.8, gv.GaussianState(0.5, 0.2), gv.likelihoods.Gaussian(0.05), emission=[[1.3]]
    )


def two_states() -> gv.Model:
    return gv.Model(
        gv.Linear([[-0.5, 1.0], [-1.0, -0.3]], [0.2, 0.0]),
        diffusion=[[0.5, 0.1], [0.1, 0.4]],
        initial=gv.GaussianState([1.0, 0.0], 0.3),
        likelihood=gv.likelihoods.Gaussian(0.1),
        emission=[[1.0, 0.5]],
    )


def observed(model, seed=0) -> gv.TimeSeries:
    return gv.simulate(model, TIMES, key=jax.random.key(seed), start=0.0, dt=1e-3).series


@pytest.fixture(autouse=True)
def a_program_in_64_bits():
    with jax.enable_x64(True):
        yield


CASES = {
    "double well": (double_well, TIGHT),
    "two states": (two_states, TIGHT),
    "by mirror descent": (double_well, gv.CVIDP(rho=0.5, tolerance=1e-11)),
    "in continuous time": (double_well, CONTINUOUS),
}


@pytest.mark.parametrize("name", CASES)
def test_solve_equals_infer(name):
    make, method = CASES[name]
    model = make()
    series = observed(model)
    problem = gv.prepare(model, series, DT, SPAN, method=method)
    found = jax.jit(gv.solve)(model, problem)
    post = gv.infer(model, series, DT, SPAN, method=method, progress=False)
    N = len(post.times)
    assert bool(found.converged) and int(found.status) == Status.CONVERGED
    assert abs(float(found.elbo) - post.elbo) < TOLERANCES["functional"]
    assert np.array_equal(found.times[:N], post.times)
    assert_gaussian((np.asarray(found.mean[:N]), np.asarray(found.cov[:N])), (post.mean, post.cov), "functional")
    assert np.array_equal(found.mean[N:], np.broadcast_to(found.mean[N - 1], found.mean[N:].shape))


def envelope_errors(model, problem) -> np.ndarray:
    """How far the gradient is from central differences, relative: a random direction in every array of the model."""
    value, grad = jax.jit(jax.value_and_grad(lambda m: gv.bound(m, problem)))(model)
    bound = jax.jit(gv.bound)
    assert abs(float(value) - float(bound(model, problem))) < TOLERANCES["functional"]
    rng = np.random.default_rng(0)
    leaves, structure = jax.tree.flatten(model)
    gradients, slopes, differences = jax.tree.leaves(grad), [], []
    assert len(leaves) == len(gradients)
    for i, leaf in enumerate(leaves):
        direction = rng.normal(size=np.shape(leaf))
        if np.ndim(leaf) == 2 and np.array_equal(leaf, leaf.T):  # a covariance stays symmetric
            direction = direction + direction.T
        size = STEP * (float(np.abs(leaf).max()) or 1.0) / np.abs(direction).max()
        ends = [structure.unflatten([*leaves[:i], leaf + s * size * direction, *leaves[i + 1 :]]) for s in (1.0, -1.0)]
        differences.append((float(bound(ends[0], problem)) - float(bound(ends[1], problem))) / (2.0 * size))
        slopes.append(float((np.asarray(gradients[i]) * direction).sum()))
    sizes = np.abs(differences)
    # a hundredth of the steepest is where rounding of the bound begins to be seen
    return np.abs(np.subtract(slopes, differences)) / np.maximum(sizes, 0.01 * sizes.max())


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if "continuous" not in name])
def test_the_gradient_of_the_bound_is_that_of_central_differences(name):
    """In every array of the model: drift, diffusion, noise, initial state and emission."""
    make, method = CASES[name]
    model = make()
    errors = envelope_errors(model, gv.prepare(model, observed(model), DT, SPAN, method=method))
    assert max(errors) < TOLERANCES["envelope"]


@pytest.mark.slow
def test_the_gradient_in_continuous_time_is_of_second_order_in_dt():
    model = double_well()
    coarse, fine = (
        max(envelope_errors(model, gv.prepare(model, observed(model), dt, SPAN, method=CONTINUOUS)))
        for dt in (DT, 0.5 * DT)
    )
    assert coarse < TOLERANCES["envelope_continuous"]
    assert fine < 0.4 * coarse


@pytest.mark.slow
def test_mapped_over_parameters_and_over_series():
    model = double_well()
    problem = gv.prepare(model, observed(model), DT, SPAN)
    values = np.linspace(0.5, 4.0, 64)

    def at(scale):
        return gv.bound(double_well(scale), problem)

    single = jax.jit(at)
    assert_close(np.asarray(jax.jit(jax.vmap(at))(values)), np.array([single(v) for v in values]), "mapped")
    problems = [gv.prepare(model, observed(model, seed), DT, SPAN) for seed in range(16)]
    stacked = jax.tree.map(lambda *a: np.stack(a), *problems)
    together = jax.jit(jax.vmap(gv.bound, in_axes=(None, 0)))(model, stacked)
    one = jax.jit(gv.bound)
    assert_close(np.asarray(together), np.array([one(model, p) for p in problems]), "mapped")


@pytest.mark.parametrize("method", [TIGHT, CONTINUOUS], ids=["discrete", "continuous"])
def test_a_start_saves_iterations_and_leads_to_the_same(method):
    model, near = double_well(2.0), double_well(2.1)
    problem = gv.prepare(model, observed(model), DT, SPAN, method=method)
    solve = jax.jit(gv.solve)
    first, cold = solve(model, problem), solve(near, problem)
    again, warm = solve(model, problem, first), solve(near, problem, first)
    assert int(again.iterations) <= 1 < int(first.iterations)  # it was there already
    assert abs(float(again.elbo) - float(first.elbo)) < TOLERANCES["functional"]
    assert bool(warm.converged)
    assert abs(float(warm.elbo) - float(cold.elbo)) < TOLERANCES["functional"]


def test_monte_carlo_quadrature_inside_a_user_s_program():
    """Its random key is an array, which the settings, being part of the program, may not hold."""
    model = double_well(2.0)
    method = gv.CVIDP(quadrature=gv.MonteCarlo(500, jax.random.key(3)))
    problem = gv.prepare(model, observed(model), DT, SPAN, method=method)
    post = gv.infer(model, observed(model), DT, SPAN, method=method, progress=False)
    assert abs(float(jax.jit(gv.bound)(model, problem)) - post.elbo) < TOLERANCES["functional"]


def test_a_start_nearby_saves_iterations():
    """In discrete time. In continuous time a run without a start solves the discrete problem first, and does not count
    the iterations of that."""
    model, near = double_well(2.0), double_well(2.1)
    problem = gv.prepare(model, observed(model), DT, SPAN, method=TIGHT)
    solve = jax.jit(gv.solve)
    assert int(solve(near, problem, solve(model, problem)).iterations) < int(solve(near, problem).iterations)


def test_adam_climbs_the_bound():
    model = double_well(0.5)
    problem = gv.prepare(model, observed(double_well(2.0)), DT, SPAN)
    free = eqx.tree_at(lambda m: m.drift.scale, jax.tree.map(lambda _: False, model), True)
    moving, fixed = eqx.partition(model, free)
    optimiser = optax.adam(0.1)

    @jax.jit
    def step(moving, state):
        value, grad = jax.value_and_grad(lambda m: gv.bound(eqx.combine(m, fixed), problem))(moving)
        updates, state = optimiser.update(jax.tree.map(jnp.negative, grad), state)
        return optax.apply_updates(moving, updates), state, value

    state, values = optimiser.init(moving), []
    for _ in range(20):
        moving, state, value = step(moving, state)
        values.append(float(value))
    assert values[-1] > values[0] + 0.01


def test_without_64_bits_it_says_what_to_enable():
    model = double_well()
    problem = gv.prepare(model, observed(model), DT, SPAN)
    with jax.enable_x64(False), pytest.raises(ValueError, match="jax_enable_x64"):
        gv.solve(model, problem)
    with jax.enable_x64(False), pytest.raises(ValueError, match="jax_enable_x64"):
        jax.jit(lambda m: gv.bound(m, problem))(model)


@pytest.mark.slow
def test_settings_of_the_user_do_not_matter():
    model = double_well()
    problem = gv.prepare(model, observed(model), DT, SPAN)
    plain = float(gv.bound(model, problem))
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        value, _ = jax.jit(jax.value_and_grad(lambda m: gv.bound(m, problem)))(model)
    assert float(value) == pytest.approx(plain, abs=TOLERANCES["functional"])


def test_what_cannot_be_solved_has_a_status():
    model = gv.Model(
        gv.Linear([[0.0, 1.0], [0.0, 0.0]]),
        [1e-18, 1e-18],
        gv.GaussianState(0.0, 1e12),
        gv.likelihoods.Gaussian(1e-12),
        emission=[[1.0, 0.0]],
    )
    problem = gv.prepare(model, gv.TimeSeries(TIMES, 1e4 + TIMES), DT, SPAN)
    found = jax.jit(gv.solve)(model, problem)
    assert not bool(found.converged) and Status(int(found.status)) is not Status.RUNNING
    with pytest.raises(ValueError, match=r"VDP is for gv\.infer"):
        gv.prepare(model, gv.TimeSeries(TIMES, TIMES), DT, SPAN, method=gv.VDP())
