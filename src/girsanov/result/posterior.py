"""The Gaussian posterior over the path that inference returns."""

import dataclasses
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from girsanov._core.compile import compiled
from girsanov._core.precision import float64, to_numpy
from girsanov.chain.bridge import bridge
from girsanov.chain.linear_sde import Time
from girsanov.chain.moments import Moments
from girsanov.chain.natural import NaturalChain
from girsanov.chain.sampling import sample
from girsanov.chain.transitions import Transitions, transitions
from girsanov.data.grid import Grid
from girsanov.data.series import TimeSeries
from girsanov.inference.sites import SiteForm, Sites
from girsanov.model.estimate import Marginals, PathEstimate
from girsanov.model.model import Model
from girsanov.model.simulate import check_draws, euler_paths
from girsanov.result.saving import save

_sample, _transitions = compiled(sample), compiled(transitions)


@dataclasses.dataclass(frozen=True)
class History:
    """What happened, one entry an iteration on the final grid; the first entry is the start.

    - elbo: the evidence bound in nats.
    - step: the step size taken.
    - decrement: squared length of the natural gradient in the Fisher metric, in nats (mirror descent: symmetrised
      KL divergence between successive q).
    - passes: evaluations of the bound on the final grid, rejected trials included.
    - coarse: (iterations, passes) on each coarser grid, coarsest first.
    """

    elbo: np.ndarray
    step: np.ndarray
    decrement: np.ndarray
    passes: int = 0
    coarse: tuple[tuple[int, int], ...] = ()

    def __len__(self) -> int:
        return len(self.elbo)


@dataclasses.dataclass(frozen=True)
class Posterior(PathEstimate):
    """q over the states at the nodes `times`, a Gaussian Markov chain, with the bound it reaches.

    - moments, natural: the chain in its two forms, time in the last axis.
    - target: the sites that the gradient of the bound asks for at q; at the optimum they compose q.
    - node: which node each observation sits on.
    - status, message: how the run ended, in a word and in a sentence; `converged` is whether it met its tolerance.
    """

    model: Model
    series: TimeSeries
    times: np.ndarray
    node: np.ndarray
    moments: Moments
    natural: NaturalChain
    target: Sites
    elbo: float
    history: History
    status: str
    message: str
    seconds: float
    time: Time = "discrete"  # of the model on the grid: Euler–Maruyama, or the SDE itself
    quadrature_error: float | None = None  # nats by which a richer rule disagrees; looked at from four dimensions on
    exact_transitions: Transitions | None = None  # where the natural parameters would not hold their digits

    @property
    def mean(self) -> np.ndarray:
        return np.ascontiguousarray(self.moments.m.T)

    @property
    def cov(self) -> np.ndarray:
        return np.ascontiguousarray(np.moveaxis(self.moments.S, -1, 0))

    @property
    def lag_cov(self) -> np.ndarray:
        """Cov(x_{m+1}, x_m) for every step, (N − 1, d, d)."""
        return np.ascontiguousarray(np.moveaxis(self.moments.C, -1, 0))

    @property
    def converged(self) -> bool:
        return self.status == "converged"

    @property
    def sites(self) -> SiteForm:
        """q as base process p_L (the drift linearised at q), data sites λ and dense sites Λ."""
        gaps, target = np.diff(self.times), self.target
        return SiteForm.of(self.natural, self.model, gaps, self.node, target.base, target.data, self.time)

    @cached_property
    @float64
    def transitions(self) -> Transitions:
        """q's own steps, x_{m+1} = m_{m+1} + T_m (x_m − m_m) + root_{m+1} ξ, time in the last axis."""
        steps = self.exact_transitions or to_numpy(_transitions(self.natural))
        if not (np.isfinite(steps.T).all() and np.isfinite(steps.root).all()):
            raise ValueError(
                f"this posterior is {self.status}, and rounding has left its steps without a joint density, so that no "
                "paths can be drawn from it: infer with method=gv.CVIDP(), which resolves more, or bring the scales of "
                "the model closer together"
            )
        return steps

    def marginals(self, times: Any) -> Marginals:
        """Mean and covariance of the state at any times inside the horizon, off the grid by the local bridge."""
        t = self._inside(times)
        return Marginals(*bridge(self.moments, self.target.base, self.model.diffusion, self.times, t, self.time))

    @float64
    def sample(self, key: Any, n: int = 1) -> np.ndarray:
        """Joint paths on the nodes, (n, N, d)."""
        check_draws(key, n)
        return np.asarray(_sample(self.moments.m, self.transitions, key, n))

    def forecast(self, times: Any, *, key: Any, n: int = 1000, dt: float | None = None) -> np.ndarray:
        """Paths of the model's SDE from the last state onwards, at `times` after the horizon's end, (n, len(times), d).

        Euler–Maruyama with steps of at most `dt`, by default the median step of the grid. Where that is too long for
        some of the paths, which then leave the range of numbers, all are drawn again with shorter steps.
        """
        t = self._numbers(times)
        end = float(self.times[-1])
        if t.ndim != 1 or len(t) == 0 or not np.isfinite(t).all():
            raise ValueError(f"times must be finite and of shape (n,), got {times!r}")
        if t[0] < end or (np.diff(t) <= 0).any():
            raise ValueError(f"forecast times must increase and start at or after the horizon's end {end:g}, got {t!r}")
        if dt is None and len(self.times) == 1:
            raise ValueError("the grid has a single node: give forecast a step dt=")
        step = float(np.median(np.diff(self.times))) if dt is None else dt
        check_draws(key, n, step)
        start = end, self.mean[-1], self.cov[-1]
        paths: np.ndarray = np.empty((0, 0, 0))
        for shorter in (1.0, 4.0, 16.0):
            paths = euler_paths(self.model, t, key=key, n=n, dt=float(step) / shorter, start=start)
            if np.isfinite(paths).all():
                return paths
        good = np.isfinite(paths)
        lost, i = int(np.sum(~np.all(good, (1, 2)))), int(np.argmin(np.all(good, (0, 2))))
        raise ValueError(
            f"{lost} of {n} simulated paths are not finite from time {t[i]:g} on, even with steps of {step / 16.0:g}: "
            "the drift drives them out of the range of numbers; take a smaller dt, or a nearer time"
        )

    @property
    def grid(self) -> Grid:
        """The nodes, and which of them each observation sits on."""
        return Grid(self.times, self.node, len(self.times))

    def diagnose(self, *, key: Any, n: int = 2000) -> Any:
        """How far to trust this posterior: importance weights of n paths drawn from it, k̂, corrected evidence, verdict.

        The weights, and a particle filter that does not rely on q, are those of the model that q was inferred for:
        Euler–Maruyama on the nodes, or in continuous time the equation itself.
        """
        from girsanov.result.diagnosis import check_number, diagnose

        check_draws(key)
        check_number(n)
        return diagnose(self, key, int(n))

    def to_xarray(self) -> Any:
        """An xarray.Dataset with mean, std and cov over time and state, the observations, and the run's facts.

        Where the series has dates, they are the coordinate `date` beside `time`.
        """
        import xarray as xr

        state, data = np.arange(self.model.dim), np.arange(self.model.data_dim)
        dates = {} if self.series.origin is None else {"date": ("time", self.series.dates(self.times))}
        return xr.Dataset(
            {
                "mean": (("time", "state"), self.mean),
                "std": (("time", "state"), self.std),
                "cov": (("time", "state", "state_"), self.cov),
                "observations": (("observation_time", "output"), np.array(self.series.values)),
            },
            coords={
                "time": self.times,
                "state": state,
                "state_": state,
                "observation_time": np.array(self.series.times),
                "output": data,
                **dates,
            },
            attrs={"elbo": self.elbo, "status": self.status, "converged": int(self.converged), "seconds": self.seconds},
        )

    def save(self, path: str | Path) -> Path:
        """Write a versioned file that `gv.load` reads back exactly."""
        return save(self, path)

    def __repr__(self) -> str:
        return (
            f"Posterior(N={len(self.times)}, d={self.model.dim}, elbo={self.elbo:.6g}, {self.status} after "
            f"{len(self.history) - 1} iterations, {self.seconds:.2f} s)"
        )
