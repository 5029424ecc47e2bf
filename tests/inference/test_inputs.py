"""Models with inputs: linear ones against a Kalman smoother, others against the same model written without them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import kalman_inputs as oracle
import numpy as np
import pytest
from tolerances import TOLERANCES

import girsanov as gv

A = np.array([[-1.0, 0.3], [0.8, -0.6]])
B = np.array([[1.0, 0.5, 0.2], [0.0, 0.2, -0.4]])
STEPS, WAVE = ([-1.0, 1.3, 2.7], [0.5, 2.0, -1.0]), ([0.0, 0.5, 2.0, 5.0], [0.0, 3.0, -2.0, 1.0])
IMPULSES = {0.0: 2.0, 0.77: 3.0, 3.1: 1.5, 3.9: -1.0}
SPAN = (0.0, 5.0)


def inputs():
    return [
        gv.Inputs(*STEPS, kind="previous"),
        gv.Inputs(*WAVE),
        gv.Inputs.impulses(list(IMPULSES), list(IMPULSES.values())),
    ]


def data(n=12):
    rng = np.random.default_rng(0)
    t, y = np.sort(rng.uniform(0.0, 5.0, n)), rng.normal(size=(n, 2))
    t[5], y[3, 0] = 3.1, np.nan  # an observation at an impulse sees the state after it
    return t, y


def nodes(t):
    """Return a grid with the knots of the linear input, where the steps of the reference smoother are exact too."""
    return np.unique(np.concatenate([np.round(np.linspace(0.0, 5.0, 51), 9), t, WAVE[0], list(IMPULSES), STEPS[0][1:]]))


def model(A=A, b=(0.1, -0.2), B=B, Q=((0.3, 0.05), (0.05, 0.2))):
    return gv.Model(gv.Linear(A, b, B), Q, gv.GaussianState([0.2, -0.1], [0.4, 0.5]), gv.likelihoods.Gaussian(0.3))


def reference(model, steps=STEPS):
    """Return the model for the reference smoother."""

    def u(beside):
        def values(t):
            step = steps[1][max(np.searchsorted(steps[0], t + beside) - 1, 0)]
            return np.array([step, np.interp(t, *WAVE), 0.0])

        return values

    drift, jumps = model.drift, {t: np.array([0.0, 0.0, a]) for t, a in IMPULSES.items()}
    return oracle.Linear(
        np.asarray(drift.A), np.asarray(drift.b), np.asarray(drift.B), np.asarray(model.noise.Q),
        np.asarray(model.initial.mean), np.asarray(model.initial.cov), np.eye(2), 0.3 * np.eye(2),
        u(1e-12), u(-1e-12), jumps,
    )  # fmt: skip


def close(got, expected, tolerance="exact"):
    expected = np.asarray(expected)
    assert np.max(np.abs(np.asarray(got) - expected)) <= TOLERANCES[tolerance] * max(1.0, np.max(np.abs(expected)))


@pytest.mark.parametrize("time", ["discrete", "continuous"])
def test_a_linear_model_with_inputs_and_impulses_has_the_answer_of_a_kalman_smoother(time):
    t, y = data()
    series = gv.TimeSeries(t, y, inputs=inputs())
    grid = nodes(t)
    post = gv.infer(model(), series, grid=grid, method=gv.CVIDP(time=time))
    exact = oracle.kalman(reference(model()), post.times, t, y, time == "continuous")
    assert post.converged
    close(post.mean, exact.mean)
    close(post.cov, exact.cov)
    close(post.elbo, exact.log_evidence, "evidence")

    finer = np.union1d(post.times, [0.769, 0.771, 1.299, 1.301, 4.93])
    if time == "continuous":  # between the nodes too, where the answer does not depend on the grid
        between = oracle.kalman(reference(model()), finer, t, y, True)
        new = np.searchsorted(finer, [0.769, 0.771, 1.299, 1.301, 4.93])
        found = post.marginals(finer[new])
        close(found.mean, between.mean[new])
        close(found.cov, between.cov[new])
    # An impulse moves the state at once, and not before.
    before, after = post.marginals([3.9 - 1e-9, 3.9]).mean
    close(after - before, B[:, 2] * IMPULSES[3.9], "same_time")


def test_steps_and_impulses_are_nodes_of_every_grid_and_coarse_ones_do_not_miss_them():
    t, y = data()
    pulse = [-1.0, 2.0, 2.003], [0.0, 400.0, 0.0]
    series = gv.TimeSeries(t, y, inputs=[gv.Inputs(*pulse, kind="previous"), *inputs()[1:]])
    post = gv.infer(model(), series, dt=0.002, span=SPAN)
    assert post.history.coarse  # there were coarser grids
    exact = oracle.kalman(reference(model(), pulse), post.times, t, y, False)
    close(post.mean, exact.mean, "converged")
    close(post.elbo, exact.log_evidence, "optimum")
    assert {2.0, 2.003, *IMPULSES} <= set(post.times.tolist())


@pytest.mark.slow
def test_noise_free_rows_may_have_inputs():
    """A cart pushed by a force, of which only the velocity has noise, in continuous time."""
    A, B, Q = np.array([[0.0, 1.0], [-1.0, -0.4]]), np.array([[0.0, 0.0, 0.7], [1.0, 0.5, -1.0]]), np.diag([0.0, 0.5])
    t, y = data()
    series = gv.TimeSeries(t, y, inputs=inputs())
    grid = nodes(t)
    cart = model(A, (0.0, 0.0), B, Q)
    post = gv.infer(cart, series, grid=grid)
    exact = oracle.kalman(reference(cart), post.times, t, y, True)
    close(post.mean, exact.mean, "roundtrip")
    close(post.elbo, exact.log_evidence, "evidence")


@pytest.mark.slow
@pytest.mark.parametrize("time", ["discrete", "continuous"])
def test_the_bound_has_the_gradient_of_the_exact_evidence(time):
    t, y = data()
    grid = nodes(t)
    problem = gv.prepare(model(), gv.TimeSeries(t, y, inputs=inputs()), grid=grid, method=gv.CVIDP(time=time))

    def evidence(B):
        return oracle.kalman(reference(model(B=B)), grid, t, y, time == "continuous").log_evidence

    with jax.enable_x64(True):
        solution = jax.jit(gv.solve)(model(), problem)
        slope = jax.jit(jax.grad(lambda B: gv.bound(model(B=B), problem)))(jnp.asarray(B))
    exact = oracle.kalman(reference(model()), grid, t, y, time == "continuous")
    close(np.asarray(solution.mean)[: len(grid)], exact.mean)
    numeric = np.array([[_central(evidence, B, i, j) for j in range(3)] for i in range(2)])
    close(slope, numeric, "gradient")


def _central(fn, at, i, j, h=1e-4):
    up, down = at.copy(), at.copy()
    up[i, j] += h
    down[i, j] -= h
    return (fn(up) - fn(down)) / (2.0 * h)


@pytest.mark.slow
def test_inputs_at_the_nodes_are_a_drift_of_time():
    """f(x, t, u) with a linear input has the same answer as f(x, t) with the same function inside, for all methods."""
    knots, values = np.linspace(0.0, 5.0, 6), np.array([0.0, 1.0, -1.0, 2.0, 0.0, 1.0])
    t, y = data()
    driven = lambda x, t, u: jnp.stack([x[1], x[0] - x[0] ** 3 - 0.5 * x[1] + u[0]])  # noqa: E731
    inside = lambda x, t: driven(x, t, jnp.interp(t, jnp.asarray(knots), jnp.asarray(values))[None])  # noqa: E731
    rest = {"diffusion": [0.05, 0.3], "likelihood": gv.likelihoods.Gaussian(0.1), "dim": 2}
    with_inputs = gv.TimeSeries(t, y, inputs=gv.Inputs(knots, values))
    for method in (gv.CVIDP(), gv.CVIDP(time="continuous"), gv.VDP(omega=0.5)):
        grid = np.unique(np.concatenate([np.round(np.linspace(0.0, 5.0, 101), 9), t, knots]))
        one = gv.infer(gv.Model(driven, **rest), with_inputs, grid=grid, method=method)
        other = gv.infer(gv.Model(inside, **rest), gv.TimeSeries(t, y), grid=grid, method=method)
        close(one.mean, other.mean, "optimum_moments")
        close(one.elbo, other.elbo, "optimum")


@pytest.mark.slow
def test_impulses_and_noise_that_depends_on_the_state():
    """A dose enters a depot without noise of its own state; the compartment that it feeds has proportional noise."""
    times, amounts = [0.0, 2.0], [3.0, 2.0]
    t = np.linspace(0.25, 5.0, 12)
    y = np.random.default_rng(1).uniform(0.5, 1.5, (12, 1))
    noise = [0.01, gv.diffusions.Proportional(0.2)]
    start = gv.GaussianState([0.0, 0.5], [0.01, 0.01])
    drift = lambda x, t, u: jnp.stack([-x[0] + u[0], x[0] - 0.7 * x[1]])  # noqa: E731
    m = gv.Model(drift, noise, start, gv.likelihoods.Gaussian(0.05), [[0.0, 1.0]], dim=2)
    series = gv.TimeSeries(t, y, inputs=gv.Inputs.impulses(times, amounts))
    post = gv.infer(m, series, dt=0.05, span=SPAN)
    # The same model in coordinates without jumps, written by hand.
    steps = jnp.asarray([3.0, 5.0])
    z = lambda x, t: drift(jnp.stack([x[0] + steps[(t > 2.0 - 1e-9).astype(int)], x[1]]), t, jnp.zeros(1))  # noqa: E731
    by_hand = gv.infer(
        gv.Model(z, noise, start, gv.likelihoods.Gaussian(0.05), [[0.0, 1.0]], dim=2),
        gv.TimeSeries(t, y),
        grid=post.times,
    )
    close(post.elbo, by_hand.elbo, "optimum")
    shift = np.where(post.times > 2.0 - 1e-9, 5.0, 3.0)
    close(post.mean - np.stack([shift, 0.0 * shift], 1), by_hand.mean, "optimum_moments")
    moved = lambda x, t, u: drift(x, t, u) + jnp.stack([0.0, u[0]])  # noqa: E731
    with pytest.raises(ValueError, match="impulses move coordinate 1, whose noise depends on the state"):
        gv.infer(eqx.tree_at(lambda m: m.drift, m, moved), series, dt=0.05, span=SPAN)
