"""Every drift of the library keeps the contract. A new class needs an example here, and nothing else."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from support import assert_close

import girsanov as gv
from girsanov.model.drifts import DRIFTS, Drift, Linear, OrnsteinUhlenbeck

A = np.array([[-1.0, 0.4, 0.1], [-0.6, -0.5, 0.3], [0.2, 0.0, -0.8]])
B = np.array([0.3, -0.2, 0.5])


def mlp(layers, activation, x):
    for W, b in layers[:-1]:
        x = activation(W @ x + b)
    W, b = layers[-1]
    return W @ x + b


NETWORKS = [
    (gv.MLP(1, key=jax.random.key(0)), lambda v: np.maximum(v, 0.0)),
    (gv.MLP(3, 5, 2, "tanh", key=jax.random.key(1)), np.tanh),
    (gv.MLP(2, activation="softplus", key=jax.random.key(2)), lambda v: np.log1p(np.exp(v))),
]
# class: [(example, dimension that its parameters fix, the same function in NumPy)]
EXAMPLES: dict[type[Drift], list] = {
    gv.OrnsteinUhlenbeck: [
        (gv.OrnsteinUhlenbeck(1.2), None, lambda x: -1.2 * x),
        (gv.OrnsteinUhlenbeck([0.5, 2.0]), 2, lambda x: -np.array([0.5, 2.0]) * x),
    ],
    gv.Benes: [(gv.Benes(1.5), None, lambda x: 1.5 * np.tanh(x))],
    gv.DoubleWell: [
        (gv.DoubleWell(), None, lambda x: 4.0 * x * (1.0 - x**2)),
        (gv.DoubleWell([3.0, 2.0, 1.0], 0.5), 3, lambda x: np.array([3.0, 2.0, 1.0]) * x * (0.5 - x**2)),
    ],
    gv.Sine: [(gv.Sine(2.0, 0.3), None, lambda x: 2.0 * np.sin(x - 0.3))],
    gv.SquareRoot: [(gv.SquareRoot(2.0), None, lambda x: np.sqrt(2.0 * np.abs(x)))],
    gv.VanDerPol: [
        (gv.VanDerPol(), 2, lambda x: 5.0 * np.array([2.0 * (x[0] - x[0] ** 3 / 3.0 - x[1]), x[0] / 2.0])),
    ],
    gv.Linear: [
        (gv.Linear(A, B), 3, lambda x: A @ x + B),
        (gv.Linear([[-2.0]]), 1, lambda x: -2.0 * x),
    ],
    gv.MLP: [
        (net, len(net.layers[-1][1]), functools.partial(mlp, net.layers, activation)) for net, activation in NETWORKS
    ],
}
CASES = [
    pytest.param(*example, id=f"{kind.__name__}{i}") for kind in EXAMPLES for i, example in enumerate(EXAMPLES[kind])
]


@pytest.fixture(autouse=True, scope="module")
def _float64():
    with jax.enable_x64(True):
        yield


def test_every_drift_is_registered_exported_and_has_an_example():
    defined = {c for c in Drift.__subclasses__() if c.__module__ == Drift.__module__}
    assert set(DRIFTS) == defined
    assert set(EXAMPLES) == set(DRIFTS)
    for kind in DRIFTS:
        assert getattr(gv, kind.__name__) is kind
        assert kind.__doc__


@pytest.mark.parametrize(("drift", "dim", "formula"), CASES)
def test_values_shape_and_dtype(drift, dim, formula):
    rng = np.random.default_rng(0)
    d = dim or 2
    assert drift.dim == dim
    f = eqx.filter_jit(lambda drift, x, t: jax.vmap(drift, (0, None))(x, t))
    x = np.concatenate([2.0 * rng.normal(size=(20, d)), np.zeros((1, d))])
    got = f(drift, x, jnp.asarray(0.3))
    assert got.dtype == jnp.float64
    assert_close(got, np.stack([formula(v) for v in x]), "exact")
    assert drift(jnp.asarray(x[0]), jnp.asarray(0.3)).shape == (d,)


@pytest.mark.parametrize(("drift", "dim", "formula"), CASES)
def test_parameters_are_float64_arrays_that_can_be_traced(drift, dim, formula):
    leaves = jax.tree.leaves(drift)
    assert leaves
    for leaf in leaves:
        assert isinstance(leaf, np.ndarray)
        assert leaf.dtype == np.float64


@pytest.mark.parametrize(("drift", "dim", "formula"), CASES)
def test_gradients_in_state_and_parameters(drift, dim, formula):
    d = dim or 2
    rng = np.random.default_rng(1)
    x = 0.5 + rng.uniform(0.1, 1.0, size=d)  # away from the kink of the square root
    flat, unflatten = ravel_pytree(drift)
    v = rng.normal(size=d)

    @eqx.filter_jit
    def value(p, x):
        return v @ unflatten(p)(x, jnp.asarray(0.0))

    point = np.concatenate([np.asarray(flat), x])
    size = len(flat)
    gradient = np.concatenate([np.asarray(g) for g in jax.grad(value, (0, 1))(jnp.asarray(flat), jnp.asarray(x))])
    eps = 1e-6
    for k in range(len(point)):
        up, down = point.copy(), point.copy()
        up[k] += eps
        down[k] -= eps
        wanted = float(value(up[:size], up[size:]) - value(down[:size], down[size:])) / (2 * eps)
        assert_close(gradient[k], wanted, "gradient", f"entry {k}")


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_a_short_run_of_inference(kind):
    drift, dim, _ = EXAMPLES[kind][0]
    d = dim or 1
    series = gv.TimeSeries([0.1, 0.3], np.full((2, d), 0.4))
    model = gv.Model(drift, 1.0, gv.GaussianState(0.5, 0.2), gv.likelihoods.Gaussian(0.1), dim=d)
    post = gv.infer(model, series, dt=0.1, span=(0.0, 0.3), method=gv.CVIDP(rho=0.5, max_iterations=5))
    assert post.mean.shape == (4, d)
    assert np.isfinite(post.mean).all()
    assert post.elbo > post.history.elbo[0]


def jacobian(drift, d):
    return np.asarray(jax.jacfwd(lambda x: drift(x, jnp.asarray(0.0)))(jnp.zeros(d)))


@pytest.mark.parametrize(
    ("drift", "d"),
    [(OrnsteinUhlenbeck(1.2), 1), (OrnsteinUhlenbeck(0.7), 2), (OrnsteinUhlenbeck([0.5, 2.0]), 2), (Linear(A, B), 3)],
)
def test_stationary_law_solves_the_lyapunov_equation(drift, d):
    """f(mean) = 0 and A P + P Aᵀ + Q = 0 with a full Q."""
    G = np.random.default_rng(0).normal(size=(d, d))
    Q = G @ G.T + 0.5 * np.eye(d)
    mean, P = (np.asarray(a) for a in drift.stationary(jnp.asarray(Q)))
    J = jacobian(drift, d)
    assert_close(drift(jnp.asarray(mean), jnp.asarray(0.0)), np.zeros(d), "exact", "mean")
    assert_close(J @ P + P @ J.T + Q, np.zeros((d, d)), "exact", "Lyapunov")
    assert_close(P, P.T, "exact", "symmetry")
    assert (np.linalg.eigvalsh(P) > 0).all()


def test_stationary_state_of_a_model_follows_its_drift():
    Q = np.array([[1.0, 0.3], [0.3, 0.5]])
    model = gv.Model(gv.OrnsteinUhlenbeck([0.5, 2.0]), Q, "stationary")
    state = model.initial_state()
    mean, P = model.drift.stationary(jnp.asarray(Q))
    assert_close(state.mean, mean, "exact")
    assert_close(state.cov, P, "exact")


@pytest.mark.parametrize(
    "drift", [gv.OrnsteinUhlenbeck(-1.0), gv.Linear([[0.5, 0.0], [0.0, -1.0]])], ids=["ou", "linear"]
)
def test_an_unstable_drift_has_no_stationary_law(drift):
    with pytest.raises(ValueError, match="stationary"):
        gv.Model(drift, 1.0, "stationary")


def test_mlp_follows_its_key():
    a, b, c = (gv.MLP(2, key=jax.random.key(k)).layers[0][0] for k in (0, 0, 1))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)
