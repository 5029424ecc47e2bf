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
from girsanov.learning.parameters import make_spec
from girsanov.model.drifts import DRIFTS, Drift, Linear, OrnsteinUhlenbeck

A = np.array([[-1.0, 0.4, 0.1], [-0.6, -0.5, 0.3], [0.2, 0.0, -0.8]])
B = np.array([0.3, -0.2, 0.5])


def _lorenz(x):
    return np.array([10.0 * (x[1] - x[0]), x[0] * (28.0 - x[2]) - x[1], x[0] * x[1] - 8.0 / 3.0 * x[2]])


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
        (gv.OrnsteinUhlenbeck(0.5, mean=[1.0, -3.0]), 2, lambda x: -0.5 * (x - np.array([1.0, -3.0]))),
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
        (gv.Linear(-2.0, 0.3), 1, lambda x: -2.0 * x + 0.3),
    ],
    gv.Logistic: [
        (gv.Logistic(), None, lambda x: x * (1.0 - x)),
        (gv.Logistic([0.5, 2.0], 3.0), 2, lambda x: np.array([0.5, 2.0]) * x * (1.0 - x / 3.0)),
    ],
    gv.Polynomial: [
        (gv.Polynomial([0.1, -1.0, 0.0, -0.5]), None, lambda x: 0.1 - x - 0.5 * x**3),
        (gv.Polynomial([[0.1, 0.2], [-1.0, 2.0]]), 2, lambda x: np.array([0.1, 0.2]) + np.array([-1.0, 2.0]) * x),
    ],
    gv.LotkaVolterra: [
        (
            gv.LotkaVolterra(0.6, 0.03, 0.02, 0.9),
            2,
            lambda x: np.array([0.6 * x[0] - 0.03 * x[0] * x[1], 0.02 * x[0] * x[1] - 0.9 * x[1]]),
        )
    ],
    gv.FitzHughNagumo: [
        (
            gv.FitzHughNagumo(),
            2,
            lambda x: np.array([x[0] - x[0] ** 3 / 3.0 - x[1] + 0.5, (x[0] + 0.7 - 0.8 * x[1]) / 12.5]),
        )
    ],
    gv.Lorenz63: [
        (
            gv.Lorenz63(),
            3,
            _lorenz,
        )
    ],
    gv.Lorenz96: [
        (
            gv.Lorenz96(np.full(5, 8.0)),
            5,
            lambda x: np.array([(x[(i + 1) % 5] - x[i - 2]) * x[i - 1] - x[i] + 8.0 for i in range(5)]),
        )
    ],
    gv.Langevin: [
        (
            gv.Langevin(gv.DoubleWell([3.0]), 0.4),
            2,
            lambda x: np.append(x[1:], 3.0 * x[0] * (1.0 - x[0] ** 2) - 0.4 * x[1]),
        ),
        (
            gv.Langevin(gv.OrnsteinUhlenbeck(2.0), [0.4, 0.5]),
            4,
            lambda x: np.concatenate([x[2:], -2.0 * x[:2] - np.array([0.4, 0.5]) * x[2:]]),
        ),
    ],
    gv.ConstantVelocity: [
        (gv.ConstantVelocity(), 2, lambda x: np.array([x[1], 0.0])),
        (gv.ConstantVelocity(2), 4, lambda x: np.array([x[2], x[3], 0.0, 0.0])),
    ],
    gv.IntegratedOU: [(gv.IntegratedOU([0.7]), 2, lambda x: np.array([x[1], -0.7 * x[1]]))],
    gv.HarmonicOscillator: [
        (gv.HarmonicOscillator(2.0, 0.3), 2, lambda x: np.array([x[1], -4.0 * x[0] - 0.3 * x[1]])),
    ],
    gv.Duffing: [
        (
            gv.Duffing(-1.0, 0.5, 0.2, 0.0),
            2,
            lambda x: np.array([x[1], -0.2 * x[1] + x[0] - 0.5 * x[0] ** 3]),
        )
    ],
    gv.Matern: [
        (gv.Matern(1.5, 0.7), 2, lambda x: np.array([x[1], -3.0 / 0.49 * x[0] - 2.0 * np.sqrt(3.0) / 0.7 * x[1]])),
        (gv.Matern(0.5, 2.0), 1, lambda x: -0.5 * x),
    ],
    gv.Sum: [
        (
            gv.OrnsteinUhlenbeck(0.4) + gv.Sine(2.0) + gv.Polynomial([0.5]),
            None,
            lambda x: -0.4 * x + 2.0 * np.sin(x) + 0.5,
        ),
        (
            gv.Lorenz63() + gv.OrnsteinUhlenbeck([1.0, 2.0, 3.0]),
            3,
            lambda x: _lorenz(x) - np.array([1.0, 2.0, 3.0]) * x,
        ),
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
    defined = {c for c in Drift.__subclasses__() if c.__module__.startswith("girsanov.model.drifts.")}
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
    assert leaves or isinstance(drift, gv.ConstantVelocity)
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
    eps, wanted = 1e-6, []
    for k in range(len(point)):
        up, down = point.copy(), point.copy()
        up[k] += eps
        down[k] -= eps
        wanted.append(float(value(up[:size], up[size:]) - value(down[:size], down[size:])) / (2 * eps))
    assert_close(gradient, wanted, "gradient")


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
    assert_close(drift(jnp.asarray(mean), jnp.asarray(0.0)), np.zeros(d), "exact", "mean", size=1.0)
    assert_close(J @ P + P @ J.T, -Q, "exact", "Lyapunov")
    assert_close(P, P.T, "exact", "symmetry")
    assert (np.linalg.eigvalsh(P) > 0).all()


def test_stationary_state_of_a_model_follows_its_drift():
    """P_ij = Q_ij / (decay_i + decay_j), also after the diffusion has been changed."""
    decay, Q = np.array([0.5, 2.0]), np.array([[1.0, 0.3], [0.3, 0.5]])
    model = gv.Model(gv.OrnsteinUhlenbeck(decay), Q, "stationary")
    for one, factor in ((model, 1.0), (eqx.tree_at(lambda m: m.diffusion, model, 3.0 * Q), 3.0)):
        state = one.initial_state()
        assert np.array_equal(state.mean, np.zeros(2))
        assert_close(state.cov, factor * Q / (decay[:, None] + decay), "exact")


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


def test_the_mean_of_an_ornstein_uhlenbeck_process_is_a_parameter_where_it_is_given():
    without, given = gv.Model(gv.OrnsteinUhlenbeck(0.5)), gv.Model(gv.OrnsteinUhlenbeck(0.5, mean=0.0))
    assert [p.path for p in make_spec(without, "drift")] == ["drift.decay"]
    assert [p.path for p in make_spec(given, "drift")] == ["drift.decay", "drift.mean"]
    model = gv.Model(gv.OrnsteinUhlenbeck(0.5, mean=[2.0, -1.0]), 1.0, "stationary")
    assert_close(model.initial_state().mean, np.array([2.0, -1.0]), "exact")


def test_a_sum_takes_functions_and_keeps_the_constraints_of_its_parts():
    own = gv.DoubleWell() + (lambda x, t: jnp.cos(t) * jnp.ones_like(x))
    assert_close(own(jnp.array([0.5]), jnp.asarray(0.0)), [4.0 * 0.5 * 0.75 + 1.0], "exact")
    other = (lambda x, t: 2.0 * x) + gv.Sine()
    assert_close(other(jnp.array([0.5]), jnp.asarray(0.0)), [1.0 + np.sin(0.5)], "exact")
    spec = make_spec(gv.Model(gv.Sine() + gv.OrnsteinUhlenbeck(0.5)), "drift")
    assert {p.path: p.kind for p in spec} == {
        "drift.parts[0].scale": "real",
        "drift.parts[0].phase": "real",
        "drift.parts[1].decay": "positive",
    }
    with pytest.raises(ValueError, match=r"states of different dimensions: \[2, 3\]"):
        gv.Model(gv.Lorenz63() + gv.VanDerPol())
    with pytest.raises(TypeError):
        gv.Sine() + 1.0  # pyright: ignore[reportOperatorIssue]


def test_lorenz_96_says_what_it_needs():
    with pytest.raises(ValueError, match="four coordinates or more, got 3; give Model a dim="):
        gv.Model(gv.Lorenz96(), dim=3)
    assert gv.Model(gv.Lorenz96(), dim=6).dim == 6
