"""The user's own JAX beside ours: 32-bit programs over the same arrays, in any order, and settings of every kind.

JAX keeps one form of a NumPy array, in 32 or in 64 bits, as long as any program holds it. The user's programs here hold
the arrays of a model; ours must neither see their truncated form nor leave a form that is too wide for theirs.
"""

import contextlib
import threading

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_close, assert_compiles_once

import girsanov as gv
from girsanov._core.compile import compiled
from girsanov._core.precision import float64
from girsanov.baselines import exact_smoother, particle_smoother

A = np.array([[-1.0, 1.0 / 3.0], [0.1, -0.7]])
X = np.array([0.3, -0.9])
KEY = jax.random.key(0)


def of_module(x, t):
    return A @ x


def through_a_helper(x, t):
    return 2.0 * of_module(x, t)


def with_default(x, t, matrix=A, *, other=A):
    return matrix @ x + other @ x


def closure():
    matrix = np.array(A)
    return lambda x, t: (lambda v: matrix @ v)(x)


class Callable:
    def __init__(self):
        self.matrix = np.array(A)

    def __call__(self, x, t):
        return self.matrix @ x


b = np.array([0.1, 1.0 / 7.0])
# name: (drift, what it is at X)
DRIFTS = {
    "linear": (lambda: gv.Linear(A, b), A @ X + b),
    "double well": (lambda: gv.DoubleWell(1.0 / 3.0, 0.7), X * (0.7 - X**2) / 3.0),
    "array of the module": (lambda: of_module, A @ X),
    "helper function": (lambda: through_a_helper, 2.0 * A @ X),
    "default": (lambda: with_default, 2.0 * A @ X),
    "closure": (closure, A @ X),
    "object": (Callable, A @ X),
}


def users_programs(model):
    """What a user makes of a model in 32 bits; a program holds what it closes over as long as it lives."""
    x, y, seen = X.astype(np.float32), np.ones(2, np.float32), np.ones(2, bool)
    leaves = [a for a in jax.tree.leaves(model) if isinstance(a, np.ndarray)]
    calls = [
        (jax.jit(jax.vmap(model.drift, in_axes=(0, None))), (x[None], 0.0)),
        (jax.jit(lambda x: model.drift(x, 0.0)), (x,)),
        (jax.jit(jax.jacfwd(lambda x: model.drift(x, 0.0))), (x,)),
        (jax.jit(lambda z: model.likelihood.log_prob(y, seen, z)), (x,)),
        (jax.jit(lambda: [jnp.asarray(a) * 1.0 for a in leaves]), ()),
        (eqx.filter_jit(lambda model, x: model.drift(x, 0.0)), (model, x)),
        (lambda x: model.drift(x, 0.0), (jnp.asarray(x),)),
    ]
    for f, args in calls:
        assert {a.dtype for a in jax.tree.leaves(f(*args))} == {np.dtype(np.float32)}
    return calls


@pytest.mark.parametrize("user_first", [True, False], ids=["user first", "ours first"])
@pytest.mark.parametrize("name", DRIFTS)
def test_programs_of_the_user_and_ours_do_not_meet(name, user_first):
    drift, wanted = DRIFTS[name]
    model = gv.Model(drift(), diffusion=[0.3, 0.7], likelihood=gv.likelihoods.StudentT([0.1, 0.2], 3.3))
    run = float64(compiled(lambda model, x: model.drift(x, 0.0)))
    alive = users_programs(model) if user_first else []
    assert_close(run(model, X), wanted, "exact")
    alive += users_programs(model)
    other = float64(compiled(lambda model, x: 2.0 * model.drift(x, 0.0)))
    assert_close(other(model, X), 2.0 * wanted, "exact")
    assert_compiles_once(lambda: float64(compiled(lambda m: m.diffusion * 3.0))(model), lambda: run(model, X))


@pytest.mark.slow
def test_every_verb_gives_the_same_beside_programs_of_the_user():
    """Bit for bit what a model gives that no other program has seen."""
    times = np.linspace(0.0, 1.0, 5)

    def answers(beside):
        alive = []
        model = gv.Model(gv.OrnsteinUhlenbeck([0.7, 1.0 / 3.0]), [0.3, 0.7], "stationary", gv.likelihoods.StudentT(0.3))
        alive += beside(model)
        series = gv.simulate(model, times, key=KEY).series
        post = gv.infer(model, series, dt=0.1)
        alive += beside(post.model)
        drawn = particle_smoother(model, series, dt=0.1, key=KEY, particles=9, samples=4, burn_in=1, guided=post)
        yield from (series.values, post.mean, post.cov, post.elbo, post.sites.natural().h, post.sample(KEY))
        yield from (*post.marginals([0.33]), *post.predict([0.33])[:2], post.nlpd(series), drawn.nlpd(series))
        yield from (post.forecast([1.5], key=KEY, n=2), *drawn.marginals([0.33]), post.diagnose(key=KEY, n=100).k_hat)

    jax.clear_caches()  # a program that is there already does not read the arrays' forms again
    with_programs = list(answers(users_programs))
    for got, wanted in zip(with_programs, answers(lambda model: []), strict=True):
        assert np.array_equal(got, wanted)


def test_a_thread_of_the_user():
    """A 32-bit call with the model as its argument, in another thread, at any moment of ours."""
    model = gv.Model(gv.Linear(A, b), [0.3, 0.7])
    program = jax.jit(lambda model, x: model.drift(x, 0.0))
    stop = threading.Event()

    def user():
        while not stop.is_set():
            program(model, X.astype(np.float32))

    thread = threading.Thread(target=user)
    thread.start()
    try:
        for k in range(20):  # a new program every time
            got = float64(compiled(lambda model, x, k=k: model.drift(x, 0.0) + k))(model, X)
            assert_close(got, A @ X + b + k, "exact")
    finally:
        stop.set()
        thread.join()


def test_a_model_has_arrays_of_its_own():
    matrix, noise = np.array(A), np.array([0.3, 0.7])
    model = gv.Model(gv.Linear(matrix), noise, likelihood=gv.likelihoods.Gaussian(noise), emission=matrix)
    matrix[:], noise[:] = 5.0, 5.0
    assert np.array_equal(model.drift.A, A)
    assert np.array_equal(model.emission, A)
    assert np.array_equal(model.likelihood.variance, [0.3, 0.7])
    single = gv.Linear(jnp.asarray(A, jnp.float32))  # a 32-bit JAX array is read like any other
    assert isinstance(single.A, np.ndarray)
    assert single.A.dtype == np.float64


SETTINGS = {
    "jax_numpy_dtype_promotion": ["strict"],
    "jax_numpy_rank_promotion": ["raise", "warn"],
    "jax_default_matmul_precision": ["bfloat16", "BF16_BF16_F32"],
    "jax_transfer_guard": ["disallow"],
    "jax_disable_jit": [True],
    "jax_debug_nans": [True],
    "jax_debug_infs": [True],
    "jax_enable_x64": [True],
}


@contextlib.contextmanager
def setting(name, value):
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        yield
    finally:
        jax.config.update(name, before)


def under_every_setting(answers):
    wanted = list(answers())
    for name, values in SETTINGS.items():
        for value in values:
            with setting(name, value):
                for got, reference in zip(answers(), wanted, strict=True):
                    assert np.array_equal(got, reference), f"{name}={value}"


MODELS = {
    "double well": (gv.DoubleWell(), gv.likelihoods.Gaussian(0.1), 1),
    "van der Pol": (gv.VanDerPol(), gv.likelihoods.Gaussian(0.1), 2),
    "Poisson": (gv.DoubleWell(), gv.likelihoods.Poisson(2.0), 1),
    "Student-t": (gv.DoubleWell(), gv.likelihoods.StudentT(0.1), 1),
    "Bernoulli": (gv.DoubleWell(), gv.likelihoods.Bernoulli(), 1),
    "linear": (gv.Linear(A), gv.likelihoods.Gaussian(0.1), 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["double well", *(pytest.param(n, marks=pytest.mark.slow) for n in list(MODELS)[1:])])
def test_settings_of_the_user_do_not_matter(name):
    drift, likelihood, d = MODELS[name]

    def answers():
        model = gv.Model(drift, 0.1 * np.ones(d), likelihood=likelihood)
        series = gv.simulate(model, np.linspace(0.0, 0.5, 5), key=KEY).series
        post = gv.infer(model, series, dt=0.05)
        yield from (series.values, post.elbo, post.mean, post.sample(KEY), *post.predict([0.33])[:2])
        yield from (post.nlpd(series), post.forecast([0.6], key=KEY, n=2), post.diagnose(key=KEY, n=100).k_hat)

    under_every_setting(answers)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_settings_of_the_user_do_not_matter_to_the_other_algorithms(name):
    drift, likelihood, d = MODELS[name]
    model = gv.Model(drift, 0.1 * np.ones(d), likelihood=likelihood)
    series = gv.simulate(model, np.linspace(0.0, 0.5, 5), key=KEY).series

    def answers():
        yield gv.infer(model, series, dt=0.05, method=gv.CVIDP(time="continuous")).elbo
        yield gv.infer(model, series, dt=0.05, method=gv.VDP(max_iterations=10)).elbo
        yield gv.learn(model, series, dt=0.05, trainable="diffusion", max_iterations=2).model.diffusion
        if d == 1:
            yield exact_smoother(model, series, dt=0.05).log_evidence
        yield particle_smoother(model, series, dt=0.05, key=KEY, particles=9, samples=4, burn_in=1).mean

    under_every_setting(answers)
