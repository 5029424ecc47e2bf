"""`Refined`, draws from the model's own posterior, as `post.refine` returns them."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np

from girsanov._core.checks import as_floats
from girsanov.baselines.particle_smoother import ParticlePosterior
from girsanov.data.grid import locate
from girsanov.model.simulate import check_draws, states
from girsanov.result.forecasting import forecast
from girsanov.result.pictures import Pictures
from girsanov.result.saving import save_refined
from girsanov.result.xarrays import dataset

_HALVINGS = 50  # of the interval in which a quantile between nodes is sought
_REACH = 9.0  # standard deviations around the draws within which it lies


@dataclasses.dataclass(frozen=True, repr=False)
class Refined(Pictures, ParticlePosterior):
    """Paths drawn from the model's own posterior, with the evidence; `post.refine` returns them.

    Beside the attributes of a `ParticlePosterior`:

    Attributes:
        guide: the `Posterior` that was refined.
        status: "converged" where the targets are met, otherwise "time_limit" or "disagree".
        message: a sentence on the status.
        sweeps: number of sweeps of each chain, those before the first draw that was kept included.
        filtered: the log evidence by each run of the filters, in nats.
        filter_particles: number of particles of each of these runs.
    """

    guide: Any
    status: str
    message: str
    sweeps: int
    filtered: np.ndarray
    filter_particles: int

    @property
    def converged(self) -> bool:
        """Whether the targets were met."""
        return self.status == "converged"

    def quantiles(self, times: Any, q: Any) -> np.ndarray:
        """Return quantiles of every coordinate of the state at any times inside the horizon.

        Args:
            times: numbers, or dates where the series has dates, (n,).
            q: probabilities between 0 and 1, (k,) or a scalar.

        Returns:
            The quantiles, (k, n, d): at nodes those of the draws, between nodes those of the mixture of the Gaussians
            that bridge each draw.
        """
        p = np.atleast_1d(as_floats("q", q))
        if p.ndim != 1 or not ((p > 0.0) & (p < 1.0)).all():
            raise ValueError(f"q must be probabilities between 0 and 1, a number or shape (k,), got {q!r}")
        t = self._inside(times)
        node, on_node = locate(self.times, t)
        out = np.quantile(self.samples[:, node], p, axis=0)
        if not on_node.all():
            mean, cov = self._conditional(t[~on_node])
            sd = np.sqrt(np.diagonal(cov, axis1=1, axis2=2))
            out[:, ~on_node] = states(self.model, _mixture_quantiles(mean, sd, p), t[~on_node])
        return out

    def sample(self, key: Any, n: int = 1) -> np.ndarray:
        """Pick some of the drawn paths at random, with replacement.

        Args:
            key: a JAX random key.
            n: number of paths; default 1.

        Returns:
            The paths at the nodes, (n, N, d).
        """
        return self.samples[self._picked(key, n)]

    def _picked(self, key: Any, n: int) -> np.ndarray:
        check_draws(key, n)
        return np.asarray(jax.random.randint(key, (n,), 0, len(self.samples)))

    def forecast(
        self, times: Any, *, key: Any, n: int = 1000, dt: float | None = None, inputs: Any = None
    ) -> np.ndarray:
        """Simulate the model onwards from the last states of the drawn paths, by Euler–Maruyama.

        Where a path becomes infinite because the steps are too long, all paths are drawn again with shorter steps.

        Args:
            times: increasing times at or after the end of the horizon, (k,).
            key: a JAX random key.
            n: number of paths; default 1000.
            dt: longest step of the simulation; by default the median step of the grid.
            inputs: what acts on the state after the end of the horizon, as in `TimeSeries`; by default the inputs of
                the series where they reach that far. Impulses up to the end are part of the last state.

        Returns:
            The paths at `times`, (n, k, d).

        Raises:
            ValueError: if the times are not valid, if no inputs are known there, or if paths are not finite even with
                steps of dt / 16.
        """
        pick_key, path_key = (key, key) if not isinstance(key, jax.Array) else jax.random.split(key)
        start = lambda n: (self._latent_samples[self._picked(pick_key, n), -1], None)  # noqa: E731
        return forecast(self, times, start, key=path_key, n=n, dt=dt, inputs=inputs)

    def to_xarray(self) -> Any:
        """Convert the draws to an xarray.Dataset; needs the extra `xarray`.

        Returns:
            A dataset with `samples` over chain, draw, time and state, and with `mean`, `std`, `cov` and the
            observations as `Posterior.to_xarray` has them. Its attributes are `log_evidence`, `standard_error`, `ess`,
            `rhat`, `status`, `converged` and `seconds`.
        """
        numbers = {k: getattr(self, k) for k in ("log_evidence", "standard_error", "ess", "rhat")}
        samples = self.samples.reshape(self.chains, -1, *self.samples.shape[1:])
        return dataset(self, **numbers).assign(samples=(("chain", "draw", "time", "state"), samples))

    def save(self, path: str | Path) -> Path:
        """Write the draws, with the posterior that guided them, to a file that `gv.load` reads back exactly.

        Args:
            path: the file to write.

        Returns:
            The path of the file.
        """
        return save_refined(self, path)

    def __repr__(self) -> str:
        return (
            f"Refined(N={len(self.times)}, d={self.model.dim}, {len(self.samples)} paths, {self.ess:.0f} of them "
            f"effective, R̂ = {self.rhat:.3f}, log evidence {self.log_evidence:.4f} ± {self.standard_error:.4f}, "
            f"{self.status} after {self.sweeps} sweeps, {self.seconds:.1f} s)"
        )


def _mixture_quantiles(mean: np.ndarray, sd: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Return quantiles (k, n, d) of equal mixtures of normal densities with means (K, n, d) and spreads (n, d)."""
    from scipy.special import ndtr

    low = np.tile(mean.min(0) - _REACH * sd, (len(p), 1, 1))
    high = np.tile(mean.max(0) + _REACH * sd, (len(p), 1, 1))
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        below = np.stack([ndtr((x - mean) / sd).mean(0) for x in middle]) < p[:, None, None]
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return 0.5 * (low + high)
