"""Latent neural SDE: a posterior process with a neural-network drift, fitted by gradients through simulated paths.

The posterior is dx = u(x, t) dt + L dβ with x(t₀) ~ N(m, diag s²) and u = f + L g(x, c(t), t): the model's drift plus
what a network adds, which sees the data through a context c, the state of a recurrent network that has read the
observations from the last to the next one (Li et al. 2020). By Girsanov's theorem the bound is
    L = Σ E log p(y_i | x(t_i)) − KL(q(x₀)‖p(x₀)) − ½ ∫ E‖g‖² dt,
an average over simulated paths; its gradient is taken through the solver (Kidger et al. 2021).
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
from girsanov._core.precision import float64, to_numpy
from girsanov._core.progress import reporter
from girsanov._core.types import Array
from girsanov.baselines.draws import DrawnPaths
from girsanov.data.grid import Grid, grid_with
from girsanov.data.series import TimeSeries
from girsanov.model.model import Model, check_inputs
from girsanov.model.path_model import PathModel, path_model
from girsanov.model.simulate import check_draws

_CHUNK = 10  # iterations between two looks of the host
_BATCH = 100  # final paths at a time
_CLIP = 100.0  # largest norm of a gradient that is followed in full


@dataclasses.dataclass(frozen=True)
class NeuralHistory:
    """Estimated bound of every iteration in nats, and the seconds until then, the first of them the compilation."""

    elbo: np.ndarray
    seconds: np.ndarray


@dataclasses.dataclass(frozen=True, repr=False)
class NeuralPosterior(DrawnPaths):
    """Paths of the fitted posterior process.

    - samples: (K, N, d); elbo, standard_error: the bound over these paths and its Monte Carlo error, in nats.
    - network: what was learnt; give it to `neural_sde(start=...)` to go on.
    - converged: False, always: the method has no stopping rule. Look at `history.elbo`.
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
    """q(x₀), the reader of the observations and the network that its context enters."""

    mean: Float[Array, " d"]
    log_sd: Float[Array, " d"]
    reader: eqx.nn.GRUCell
    drift: eqx.nn.MLP

    def __init__(self, path: PathModel, width: int, depth: int, *, key: Array):
        d, D = path.model.dim, path.y.shape[1]
        k1, k2 = jax.random.split(key)
        mean, cov = path.initial()
        self.mean, self.log_sd = jnp.asarray(mean), 0.5 * jnp.log(jnp.diagonal(jnp.asarray(cov)))
        self.reader = eqx.nn.GRUCell(2 * D + 1, width, key=k1)
        net = eqx.nn.MLP(d + width + 2, d, width, depth, jnp.tanh, key=k2)
        # Begin at the model's own drift.
        self.drift = eqx.tree_at(lambda n: n.layers[-1], net, replace_fn=lambda a: jax.tree.map(lambda w: 0.01 * w, a))

    def context(self, reading: Float[Array, "n D2"]) -> Float[Array, "n width"]:
        """The state of the reader at every observation, all later ones read."""

        def read(state, row):
            state = self.reader(row, state)
            return state, state

        return jax.lax.scan(read, jnp.zeros(self.reader.hidden_size), reading, reverse=True)[1]

    def __call__(self, x: Float[Array, " d"], features: Float[Array, " k"]) -> Float[Array, " d"]:
        return self.drift(jnp.concatenate([x, features]))


class _Task(eqx.Module):
    """The model on its grid, and what the reader is given."""

    path: PathModel
    reading: Float[Array, "n D2"]  # values, whether they are there, and the gap before them in mean gaps
    following: Int[Array, " M"]  # index of the next observation after every node; n where there is none
    clock: Float[Array, "M 2"]  # time as a share of the span, and the time to the next observation in mean gaps


def _task(model: Model, series: TimeSeries, grid: Grid) -> _Task:
    t, obs = grid.times, series.times
    mean_gap = (t[-1] - t[0]) / (len(obs) + 1) or 1.0
    gap = np.diff(obs, prepend=t[0]) / mean_gap
    y = np.where(series.observed, series.values, 0.0)
    following = np.searchsorted(grid.node, np.arange(len(t) - 1), side="right")
    ahead = np.append(obs, t[-1])[following] - t[:-1]
    clock = np.stack([(t[:-1] - t[0]) / max(t[-1] - t[0], 1e-300), ahead / mean_gap], 1)
    return _Task(
        path_model(model, series, grid), np.concatenate([y, series.observed, gap[:, None]], 1), following, clock
    )


def _simulate(net: PosteriorNetwork, task: _Task, key, n: int) -> tuple[Array, Array]:
    """n paths (n, N, d) of the posterior process by Euler–Maruyama on the grid, and what the network adds there."""
    import diffrax

    path, d = task.path, task.path.model.dim
    context = jnp.concatenate([net.context(task.reading), jnp.zeros((1, net.reader.hidden_size))])
    features = jnp.concatenate([context[task.following], task.clock], 1)
    k0, k1 = jax.random.split(key)
    x0 = net.mean + jnp.exp(net.log_sd) * jax.random.normal(k0, (n, d))

    def added(m, x):
        return jax.vmap(net, in_axes=(0, None))(x, features[m])

    def drift(t, x, args):
        m = jnp.clip(jnp.searchsorted(path.times, t, side="right") - 1, 0, len(path.gaps) - 1)
        f = jax.vmap(path.model.drift, in_axes=(0, None))(x, path.times[m])
        return f + added(m, x) @ path.root.T

    # Brownian motion at the nodes: with Euler's scheme on these steps only its increments between them matter.
    steps = jnp.sqrt(path.gaps)[:, None, None] * jax.random.normal(k1, (len(path.gaps), n, d))
    brownian = jnp.concatenate([jnp.zeros((1, n, d)), jnp.cumsum(steps, 0)])
    noise = diffrax.LinearInterpolation(path.times, brownian)
    terms = diffrax.MultiTerm(diffrax.ODETerm(drift), _noise_term(path.root, noise))
    solution = diffrax.diffeqsolve(
        terms, diffrax.Euler(), path.times[0], path.times[-1], None, x0,
        saveat=diffrax.SaveAt(t0=True, steps=True), stepsize_controller=diffrax.StepTo(path.times),
        max_steps=len(path.gaps),
    )  # fmt: skip
    x = jnp.moveaxis(jnp.asarray(solution.ys), 0, 1)
    g = jax.vmap(added, in_axes=(0, 1), out_axes=1)(jnp.arange(len(path.gaps)), x[:, :-1])
    return x, g


def _noise_term(root: Float[Array, "d d"], noise: Any):
    """L dβ for every path, as one linear map."""
    import diffrax
    import lineax

    def apply(t, x, args):
        return lineax.FunctionLinearOperator(lambda dw: dw @ root.T, jax.eval_shape(lambda: x))

    return diffrax.ControlTerm(apply, noise)


def _bounds(net: PosteriorNetwork, task: _Task, key, n: int) -> tuple[Float[Array, " n"], Array]:
    """The bound's integrand for each of n paths, whose mean is the bound, and the paths."""
    x, g = _simulate(net, task, key, n)
    mean, cov = task.path.initial()
    P_inv = jnp.linalg.inv(jnp.asarray(cov))
    e, var = net.mean - mean, jnp.exp(2.0 * net.log_sd)
    log_det = jnp.linalg.slogdet(jnp.asarray(cov))[1] - 2.0 * net.log_sd.sum()
    kl0 = 0.5 * (e @ P_inv @ e + (jnp.diagonal(P_inv) * var).sum() - len(var) + log_det)
    fit = jax.vmap(task.path.log_data)(x)
    return fit - kl0 - 0.5 * (task.path.gaps[:, None] * g**2).sum((1, 2)), x


def _optimiser(rate, decay) -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(_CLIP), optax.adam(lambda step: rate * decay**step))


@compiled
def _train(net: PosteriorNetwork, state, task: _Task, keys, n: int, rate, decay):
    """As many iterations as there are keys."""
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
    """The posterior as a neural SDE, on the grid that `infer` would use.

    - iterations of Adam with `paths` simulated paths each, at learning_rate · decayᵏ.
    - width, depth: of the network that adds to the drift; start: the network of an earlier run, to go on from.
    - samples: paths drawn from the fitted process; at: further times to make nodes.
    """
    begun = time.perf_counter()
    check_draws(key, samples)
    check_inputs(model, series)
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
