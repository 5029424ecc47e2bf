"""Annealed importance sampling of the evidence, with conditional particle filters as transitions.

The integrals Z_j = ∫ p(y|x)^{τ(j)} p(x) dx with τ(j) = (j/J)⁴ lead from Z₀ = 1 to the evidence Z_J. With one path per
step the estimate is
    log Z_J ≈ Σ_j (τ(j) − τ(j−1)) log p(y | x_j),   x_j ~ p(y|x)^{τ(j−1)} p(x) / Z_{j−1},
where x_j is drawn by several sweeps of CPF-AS (see `particle_filter`) that start from x_{j−1}. As in the paper, the
geometric mean of several runs is reported. Its logarithm underestimates log Z_J on average; more steps reduce the bias.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from girsanov._core.checks import check_whole
from girsanov._core.compile import compiled
from girsanov._core.precision import float64
from girsanov._core.progress import reporter
from girsanov.baselines.particle_filter import conditional_sweep
from girsanov.baselines.particle_smoother import ParticlePosterior, draw, resampling_nodes
from girsanov.baselines.proposals import Bootstrap
from girsanov.data.grid import grid_with
from girsanov.data.series import TimeSeries
from girsanov.model.driven import driven_on
from girsanov.model.model import Model, check_inputs
from girsanov.model.path_model import PathModel, path_model
from girsanov.model.simulate import check_draws

_CHUNK = 10  # annealing steps in one call of compiled code


@compiled
def _prior_paths(path: PathModel, keys):
    def one(key):
        N, d = path.data.times.shape[0], path.model.dim
        xi = jax.random.normal(key, (N, 1, d))
        first = Bootstrap().initial(path, xi[0])

        def step(x, this):
            x = Bootstrap().propose(path, this[0], x, this[1])
            return x, x

        _, rest = jax.lax.scan(step, first, (jnp.arange(N - 1), xi[1:]))
        return jnp.concatenate([first, rest[:, 0]])

    return jax.vmap(one)(keys)


@compiled
def _climb(path: PathModel, keys, paths, before, after, n: int, sweeps: int, resample):
    """Do several annealing steps for every run; return the paths at the end and the contributions to log Z_J."""

    def rung(carry, this):
        paths, total = carry
        keys, low, high = this
        total = total + (high - low) * jax.vmap(path.log_data)(paths)

        def sweep(paths, keys):
            one = lambda key, old: conditional_sweep(path, Bootstrap(), key, old, n, resample, high)  # noqa: E731
            return jax.vmap(one)(keys, paths), None

        return (jax.lax.scan(sweep, paths, keys)[0], total), None

    return jax.lax.scan(rung, (paths, jnp.zeros(paths.shape[0])), (keys, before, after))[0]


@float64
def annealed_importance_sampling(
    model: Model,
    series: TimeSeries,
    dt: float,
    span: tuple[float, float] | None = None,
    *,
    key: Any,
    steps: int = 1000,
    runs: int = 3,
    sweeps: int = 10,
    particles: int = 100,
    samples: int = 0,
    checkpoint: str | Path | None = None,
    progress: bool = True,
) -> ParticlePosterior:
    """Estimate the evidence by annealed importance sampling, on the grid that `infer` would use.

    The paper used steps=8000, runs=3 and sweeps=10.

    Args:
        model: the model.
        series: the observations.
        dt: step of the time grid.
        span: first and last time of the grid; by default those of the observations.
        key: JAX random key.
        steps: number J of annealing steps; 1000 by default.
        runs: number of independent estimates, computed in parallel; 3 by default.
        sweeps: sweeps of CPF-AS in every annealing step; 10 by default.
        particles: number of particles of each sweep; 100 by default.
        samples: number of paths to draw from the posterior after the last step. With 0, the default, the result holds
            only the last path of every run.
        checkpoint: a file in which the state is saved regularly. The same call continues from it after an interruption.
        progress: whether to print progress on standard error.

    Returns:
        A `ParticlePosterior` with `log_evidence`, its `standard_error` (None for a single run) and `samples`.

    Raises:
        ValueError: if the checkpoint was written for another model, series, key or setting.
    """
    import time

    begun = time.perf_counter()
    check_draws(key)
    check_whole(steps=steps, runs=runs, sweeps=sweeps)
    model = check_inputs(model, series)
    grid = grid_with(series, dt, span, None)
    model = driven_on(model, series, grid.times)
    path, resample = path_model(model, series, grid), resampling_nodes(grid, particles)
    start_key, climb_key, sample_key = jax.random.split(key, 3)
    tau = (np.arange(steps + 1) / steps) ** 4
    print_ = _fingerprint(path, key, steps, runs, sweeps, particles)
    j, paths, total = _resume(checkpoint, print_, lambda: _prior_paths(path, jax.random.split(start_key, runs)), runs)
    with reporter(progress) as say:
        while j < steps:
            k = min(_CHUNK, steps - j)
            keys = jax.vmap(lambda i: jax.random.split(jax.random.fold_in(climb_key, i), (sweeps, runs)))(
                np.arange(j, j + k)
            )
            paths, more = _climb(path, keys, paths, tau[j : j + k], tau[j + 1 : j + k + 1], particles, sweeps, resample)
            j, total = j + k, total + np.asarray(more)
            _keep(checkpoint, print_, j, paths, total)
            if say is not None:
                say(f"annealing, step {j} of {steps}")
    draws, every = np.asarray(paths)[:, None], None
    if samples:
        every = draw(path, Bootstrap(), sample_key, paths, particles, resample, -(-samples // runs), None)
        draws = np.moveaxis(every, 0, 1)
    error = float(total.std(ddof=1) / np.sqrt(runs)) if runs > 1 else None
    seconds = time.perf_counter() - begun
    return ParticlePosterior.of(model, series, grid.times, draws, every, (float(total.mean()), error), seconds)


def _fingerprint(path: PathModel, key: Any, *settings: int) -> str:
    """Return a hash of model, data, key and settings; a checkpoint is used only if its hash is the same."""
    leaves = [np.asarray(a).tobytes() for a in jax.tree.leaves((path, jax.random.key_data(key))) if np.ndim(a) >= 0]
    return hashlib.sha256(json.dumps(settings).encode() + b"".join(leaves)).hexdigest()


def _resume(checkpoint: Any, print_: str, fresh: Any, runs: int) -> tuple[int, Any, np.ndarray]:
    if checkpoint is None or not Path(checkpoint).exists():
        return 0, fresh(), np.zeros(runs)
    with np.load(checkpoint, allow_pickle=False) as file:
        if str(file["fingerprint"]) != print_:
            raise ValueError(
                f"{checkpoint} belongs to another model, series, key or setting: remove it or name another file"
            )
        return int(file["step"]), file["paths"], file["total"]


def _keep(checkpoint: Any, print_: str, step: int, paths: Any, total: np.ndarray) -> None:
    """Write the checkpoint to a temporary file and rename it, so that the checkpoint is always complete."""
    if checkpoint is None:
        return
    target = Path(checkpoint)
    aside = target.with_name(target.name + ".part")
    with aside.open("wb") as file:
        np.savez(file, fingerprint=print_, step=step, paths=np.asarray(paths), total=total)
    aside.replace(target)
