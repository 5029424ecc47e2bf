"""Latent neural SDE: a posterior process with a neural-network drift, fitted by gradients through simulated paths.

The posterior process is dx = u(x, t) dt + L dβ with x(t₀) ~ N(m, diag s²) and u = f + L g(x, c(t), t), where f is the
model's drift and g a neural network. The network depends on the data through a context c(t): the state of a recurrent
network that has read the observations backwards in time, from the last one to the next one after t (Li et al. 2020). By
Girsanov's theorem the bound is
    L = Σ E log p(y_i | x(t_i)) − KL(q(x₀)‖p(x₀)) − ½ ∫ E‖g‖² dt.
It is estimated by an average over simulated paths and differentiated through the solver (Kidger et al. 2021).
"""

import dataclasses
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float, Int

from girsanov._core.checks import check_positive, check_whole
from girsanov._core.compile import compiled
from girsanov._core.extras import check_extra
from girsanov._core.precision import float64, to_numpy
from girsanov._core.progress import reporter
from girsanov._core.types import Array
from girsanov.baselines.draws import DrawnPaths
from girsanov.data.grid import Grid, grid_with
from girsanov.data.series import TimeSeries
from girsanov.model.model import Model, check_inputs
from girsanov.model.path_model import PathModel, path_model
from girsanov.model.simulate import check_draws

_CHUNK = 10  # iterations in one call of compiled code
_BATCH = 100  # final paths that are simulated in one call
_CLIP = 100.0  # a gradient with a larger norm is scaled down to this norm


@dataclasses.dataclass(frozen=True)
class NeuralHistory:
    """The course of the training.

    Attributes:
        elbo: estimate of the bound in every iteration, in nats.
        seconds: seconds from the start until the iteration was done, including the compilation.
    """

    elbo: np.ndarray
    seconds: np.ndarray


@dataclasses.dataclass(frozen=True, repr=False)
class NeuralPosterior(DrawnPaths):
    """Paths of the fitted posterior process, as `neural_sde` returns them.

    Attributes:
        model: the model.
        series: the observations.
        times: times of the nodes, shape (N,).
        samples: paths of the posterior process at the nodes, shape (K, N, d).
        elbo: the bound, estimated from these paths, in nats.
        standard_error: Monte Carlo error of `elbo`, in nats.
        network: the trained network; pass it to `neural_sde(start=...)` to continue the training.
        history: the course of the training.
        seconds: seconds that the call took.
        converged: always False, because the method has no stopping rule. Look at `history.elbo` instead.
    """

    model: Model
    series: TimeSeries
    times: np.ndarray
    samples: np.ndarray
    elbo: float
    standard_error: float
    network: "PosteriorNetwork"
    history: NeuralHistory
    seconds: float
    converged: bool = False


class PosteriorNetwork(eqx.Module):
    """The trained part of the posterior process.

    Attributes:
        mean: mean of q(x₀).
        log_sd: log standard deviations of q(x₀).
        reader: the recurrent network that reads the observations and gives the context.
        drift: the network g that is added to the drift.
    """

    mean: Float[Array, " d"]
    log_sd: Float[Array, " d"]
    reader: eqx.nn.GRUCell
    drift: eqx.nn.MLP

    def __init__(self, path: PathModel, width: int, depth: int, *, key: Array):
        d, D = path.model.dim, path.model.data_dim
        k1, k2 = jax.random.split(key)
        mean, cov = path.initial()
        self.mean, self.log_sd = jnp.asarray(mean), 0.5 * jnp.log(jnp.diagonal(jnp.asarray(cov)))
        self.reader = eqx.nn.GRUCell(2 * D + 1, width, key=k1)
        net = eqx.nn.MLP(d + width + 2, d, width, depth, jnp.tanh, key=k2)
        # Small weights in the last layer, so that the training starts close to the model's drift.
        self.drift = eqx.tree_at(lambda n: n.layers[-1], net, replace_fn=lambda a: jax.tree.map(lambda w: 0.01 * w, a))

    def context(self, reading: Float[Array, "n D2"]) -> Float[Array, "n width"]:
        """Return the context for every observation: the reader's state after this one and all later ones."""

        def read(state, row):
            state = self.reader(row, state)
            return state, state

        return jax.lax.scan(read, jnp.zeros(self.reader.hidden_size), reading, reverse=True)[1]

    def __call__(self, x: Float[Array, " d"], features: Float[Array, " k"]) -> Float[Array, " d"]:
        """Return g at the state x, given the context and the time features."""
        return self.drift(jnp.concatenate([x, features]))


class _Task(eqx.Module):
    """The model on its grid, and the inputs of the networks."""

    path: PathModel
    reading: Float[Array, "n D2"]  # values, their mask, and the gap before each observation in units of the mean gap
    following: Int[Array, " M"]  # index of the next observation after every node, or n if there is none
    clock: Float[Array, "M 2"]  # time as a share of the span, and time to the next observation in mean gaps


def _task(model: Model, series: TimeSeries, grid: Grid) -> _Task:
    t, obs = grid.times, series.times
    mean_gap = (t[-1] - t[0]) / (len(obs) + 1) or 1.0
    gap = np.diff(obs, prepend=t[0]) / mean_gap
    y = series.filled
    following = np.searchsorted(grid.node, np.arange(len(t) - 1), side="right")
    ahead = np.append(obs, t[-1])[following] - t[:-1]
    clock = np.stack([(t[:-1] - t[0]) / max(t[-1] - t[0], 1e-300), ahead / mean_gap], 1)
    return _Task(
        path_model(model, series, grid), np.concatenate([y, series.observed, gap[:, None]], 1), following, clock
    )


def _simulate(net: PosteriorNetwork, task: _Task, key, n: int) -> tuple[Array, Array]:
    """Simulate n paths of the posterior process by Euler–Maruyama on the grid.

    Returns:
        The paths, shape (n, N, d), and the values of g along them, shape (n, M, d).
    """
    import diffrax

    path, root, d = task.path, task.path.model.noise.root, task.path.model.dim
    context = jnp.concatenate([net.context(task.reading), jnp.zeros((1, net.reader.hidden_size))])
    features = jnp.concatenate([context[task.following], task.clock], 1)
    k0, k1 = jax.random.split(key)
    x0 = net.mean + jnp.exp(net.log_sd) * jax.random.normal(k0, (n, d))

    def added(m, x):
        return jax.vmap(net, in_axes=(0, None))(x, features[m])

    def drift(t, x, args):
        m = jnp.clip(jnp.searchsorted(path.data.times, t, side="right") - 1, 0, len(path.data.gaps) - 1)
        f = jax.vmap(path.model.drift, in_axes=(0, None))(x, path.data.times[m])
        return f + added(m, x) @ root.T

    # Brownian motion at the nodes. Euler's scheme on these steps uses only its increments between nodes.
    steps = jnp.sqrt(path.data.gaps)[:, None, None] * jax.random.normal(k1, (len(path.data.gaps), n, d))
    brownian = jnp.concatenate([jnp.zeros((1, n, d)), jnp.cumsum(steps, 0)])
    noise = diffrax.LinearInterpolation(path.data.times, brownian)
    terms = diffrax.MultiTerm(diffrax.ODETerm(drift), _noise_term(root, noise))
    solution = diffrax.diffeqsolve(
        terms, diffrax.Euler(), path.data.times[0], path.data.times[-1], None, x0,
        saveat=diffrax.SaveAt(t0=True, steps=True), stepsize_controller=diffrax.StepTo(path.data.times),
        max_steps=len(path.data.gaps),
    )  # fmt: skip
    x = jnp.moveaxis(jnp.asarray(solution.ys), 0, 1)
    g = jax.vmap(added, in_axes=(0, 1), out_axes=1)(jnp.arange(len(path.data.gaps)), x[:, :-1])
    return x, g


def _noise_term(root: Float[Array, "d d"], noise: Any):
    """Return the noise L dβ of all paths as a diffrax term with a single linear map."""
    import diffrax
    import lineax

    def apply(t, x, args):
        return lineax.FunctionLinearOperator(lambda dw: dw @ root.T, jax.eval_shape(lambda: x))

    return diffrax.ControlTerm(apply, noise)


def _bounds(net: PosteriorNetwork, task: _Task, key, n: int) -> tuple[Float[Array, " n"], Array]:
    """Return for each of n simulated paths a value whose mean estimates the bound, and the paths."""
    x, g = _simulate(net, task, key, n)
    mean, cov = task.path.initial()
    P_inv = jnp.linalg.inv(jnp.asarray(cov))
    e, var = net.mean - mean, jnp.exp(2.0 * net.log_sd)
    log_det = jnp.linalg.slogdet(jnp.asarray(cov))[1] - 2.0 * net.log_sd.sum()
    kl0 = 0.5 * (e @ P_inv @ e + (jnp.diagonal(P_inv) * var).sum() - len(var) + log_det)
    fit = jax.vmap(task.path.log_data)(x)
    return fit - kl0 - 0.5 * (task.path.data.gaps[:, None] * g**2).sum((1, 2)), x


def _optimiser(rate, decay) -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(_CLIP), optax.adam(lambda step: rate * decay**step))


@compiled
def _train(net: PosteriorNetwork, state, task: _Task, keys, n: int, rate, decay):
    """Do one training iteration for each key; return network, optimiser state and estimates of the bound."""
    optimiser = _optimiser(rate, decay)
    learnt, rest = eqx.partition(net, eqx.is_inexact_array)

    def step(carry, key):
        learnt, state = carry

        def loss(learnt):
            return -_bounds(eqx.combine(learnt, rest), task, key, n)[0].mean()

        value, grad = jax.value_and_grad(loss)(learnt)
        updates, state = optimiser.update(grad, state, learnt)
        return (optax.apply_updates(learnt, updates), state), -value

    (learnt, state), elbo = jax.lax.scan(step, (learnt, state), keys)
    return eqx.combine(learnt, rest), state, elbo


_final = compiled(_bounds)


@float64
def neural_sde(
    model: Model,
    series: TimeSeries,
    dt: float,
    span: tuple[float, float] | None = None,
    *,
    key: Any,
    iterations: int = 1000,
    paths: int = 32,
    learning_rate: float = 1e-2,
    decay: float = 0.999,
    width: int = 32,
    depth: int = 2,
    samples: int = 1000,
    at: Any = None,
    start: PosteriorNetwork | None = None,
    progress: bool = True,
) -> NeuralPosterior:
    """Fit a neural SDE to the posterior process, on the grid that `infer` would use.

    It needs the extra `diffrax`. There is no stopping rule: look at `history.elbo` of the result.

    Args:
        model: the model.
        series: the observations.
        dt: step of the time grid.
        span: first and last time of the grid; by default those of the observations.
        key: JAX random key.
        iterations: iterations of Adam; 1000 by default.
        paths: simulated paths per iteration; 32 by default.
        learning_rate: the learning rate of the first iteration; 0.01 by default.
        decay: factor in (0, 1] by which the learning rate is multiplied after each iteration; 0.999 by default.
        width: units per hidden layer of the network, and size of its context; 32 by default.
        depth: hidden layers of the network that is added to the drift; 2 by default.
        samples: number of paths to draw from the fitted process; 1000 by default.
        at: additional times to make nodes, such as those of held-out observations.
        start: the network of an earlier result, to continue its training; `width` and `depth` are then not used.
        progress: whether to print progress on standard error.

    Returns:
        Paths of the fitted process, the bound and the network.

    Raises:
        ValueError: if the bound is not finite in some iteration.
        MissingExtra: if diffrax is not installed.
    """
    begun = time.perf_counter()
    check_extra("diffrax", "baselines.neural_sde")
    check_draws(key, samples, name="samples")
    model = check_inputs(model, series)
    if series.inputs is not None:
        raise ValueError(
            "the neural SDE is for models without inputs: use gv.infer, or girsanov.baselines.particle_smoother"
        )
    if model.latent is not model:
        raise ValueError(
            "the neural SDE is for models with constant noise; the noise of this one depends on the state: use "
            "gv.infer, or girsanov.baselines.particle_smoother"
        )
    _check(iterations, paths, learning_rate, decay, width, depth)
    grid = grid_with(series, dt, span, at)
    task = _task(model, series, grid)
    k_net, k_train, k_final = jax.random.split(key, 3)
    net = PosteriorNetwork(task.path, width, depth, key=k_net) if start is None else start
    rates = np.float64(learning_rate), np.float64(decay)
    state = _optimiser(*rates).init(eqx.filter(net, eqx.is_inexact_array))
    elbo, seconds = [np.zeros(0)], [np.zeros(0)]
    with reporter(progress) as say:
        for i in range(0, iterations, _CHUNK):
            keys = jax.random.split(jax.random.fold_in(k_train, i), _CHUNK)
            net_after, state, values = _train(net, state, task, keys, paths, *rates)
            values = np.asarray(values)
            _check_finite(values, i)
            net = net_after
            elbo.append(values)
            seconds.append(np.full(_CHUNK, time.perf_counter() - begun))
            if say is not None:
                say(f"neural SDE, iteration {i + _CHUNK} of {iterations}, bound about {values.mean():.2f}")
    values, drawn = _draw(net, task, k_final, samples)
    error = float(values.std(ddof=1) / np.sqrt(len(values))) if samples > 1 else float("nan")
    history = NeuralHistory(np.concatenate(elbo)[:iterations], np.concatenate(seconds)[:iterations])
    return NeuralPosterior(
        model, series, grid.times, drawn, float(values.mean()), error, to_numpy(net), history,
        time.perf_counter() - begun,
    )  # fmt: skip


def _draw(net: PosteriorNetwork, task: _Task, key, samples: int) -> tuple[np.ndarray, np.ndarray]:
    parts = [_final(net, task, k, _BATCH) for k in jax.random.split(key, -(-samples // _BATCH))]
    values, drawn = (np.concatenate([np.asarray(p[i]) for p in parts])[:samples] for i in range(2))
    return values, drawn


def _check(iterations, paths, learning_rate, decay, width, depth) -> None:
    check_whole(0, iterations=iterations)
    check_whole(1, paths=paths, width=width, depth=depth)
    check_positive(learning_rate=learning_rate)
    if not 0.0 < decay <= 1.0:
        raise ValueError(f"decay must be in (0, 1], got {decay!r}")


def _check_finite(values: np.ndarray, done: int) -> None:
    if not np.isfinite(values).all():
        i = done + int(np.argmin(np.isfinite(values)))
        raise ValueError(
            f"the bound is {values[i - done]} in iteration {i}: simulated paths left the range where the drift is "
            "finite; take a smaller learning_rate or a smaller dt"
        )
