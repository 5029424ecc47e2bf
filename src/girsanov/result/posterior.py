"""`Posterior`, the Gaussian posterior over the path that `gv.infer` returns, and its history."""

import dataclasses
import warnings
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from girsanov.model.quadrature import Rule
from girsanov.model.simulate import check_draws, states
from girsanov.model.state_law import lag_covariance, of_state, quantiles
from girsanov.result.forecasting import forecast
from girsanov.result.pictures import Checks, Pictures
from girsanov.result.saving import save
from girsanov.result.xarrays import dataset

if TYPE_CHECKING:
    import girsanov.result.diagnosis
    import girsanov.result.refined

_sample, _transitions = compiled(sample), compiled(transitions)
_LOW = 0.022750131948179195  # probability of a normal variable below its mean minus two standard deviations


def _rows(a: np.ndarray) -> np.ndarray:
    """Return an array with its last axis, time, as the first one."""
    return np.ascontiguousarray(np.moveaxis(a, -1, 0))


@dataclasses.dataclass(frozen=True)
class History:
    """The history of a run: arrays with one entry for the start and one for each iteration on the final grid.

    Attributes:
        elbo: the evidence bound, in nats.
        step: the step size of the iteration.
        decrement: squared length of the natural gradient in the Fisher metric, in nats. For mirror descent it is the
            symmetrised KL divergence between successive q; in continuous time and with the careful algorithm, that
            divided by the squared step size; for VDP, half the squared length of what is left of
            its fixed-point equations.
        passes: number of evaluations of the bound on the final grid, including rejected trials.
        coarse: (iterations, passes) on each coarser grid, the coarsest first.
        node_passes: after `update`, the number of nodes that all passes together went over; None after a whole run.
    """

    elbo: np.ndarray
    step: np.ndarray
    decrement: np.ndarray
    passes: int = 0
    coarse: tuple[tuple[int, int], ...] = ()
    node_passes: int | None = None

    def __len__(self) -> int:
        """Number of entries: the iterations and the start."""
        return len(self.elbo)


@dataclasses.dataclass(frozen=True)
class Posterior(Checks, Pictures, PathEstimate):
    """The Gaussian posterior q over the path, a Markov chain on the nodes of the time grid, as `gv.infer` returns it.

    Attributes:
        model: the model.
        series: the observations.
        times: times of the nodes, (N,).
        node: index of the node of each observation.
        moments: q by its means, covariances and lag-one covariances, with time as the last axis. These and the next two
            are in coordinates in which the noise is constant; they are the state's own if its noise is constant.
        natural: q by its natural parameters, with time as the last axis.
        target: the sites given by the gradient of the bound at q; at the optimum they compose q.
        elbo: the evidence bound, in nats.
        history: the bound and the step sizes, by iteration.
        status: how the run ended, in a word; see docs/trust.md.
        message: a sentence on the status.
        seconds: duration of the run, including compilation.
        time: "discrete" for the Euler–Maruyama model on the grid, or "continuous" for the SDE itself.
        rule: nodes and weights of the quadrature; None for the default rule.
        quadrature_error: difference from a more accurate quadrature rule, in nats. It is computed from four dimensions
            on and where the emission is not linear; else it is None, and `diagnose` computes it.
        exact_transitions: q's own transitions, where they are more exact than the natural parameters; else None.
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
    time: Time = "discrete"
    rule: Rule | None = None
    quadrature_error: float | None = None
    exact_transitions: Transitions | None = None

    @property
    def mean(self) -> np.ndarray:
        """Means of the state at the nodes, (N, d)."""
        return self._at_nodes.mean

    @property
    def cov(self) -> np.ndarray:
        """Covariances of the state at the nodes, (N, d, d)."""
        return self._at_nodes.cov

    @property
    def lag_cov(self) -> np.ndarray:
        """Lag-one covariances Cov(x_{m+1}, x_m) of every step, (N − 1, d, d)."""
        return lag_covariance(self.model, self._latent, _rows(self.moments.C))

    @cached_property
    def _latent(self) -> Marginals:
        """Means and covariances at the nodes, in coordinates in which the noise is constant."""
        return Marginals(np.ascontiguousarray(self.moments.m.T), _rows(self.moments.S))

    @cached_property
    def _at_nodes(self) -> Marginals:
        return of_state(self.model, self._latent, self.times)

    @property
    def converged(self) -> bool:
        """Whether the run met its tolerance."""
        return self.status == "converged"

    @property
    def sites(self) -> SiteForm:
        """q as the sum of a base process p_L (the drift linearised at q), data sites λ and dense sites Λ."""
        gaps, target = np.diff(self.times), self.target
        return SiteForm.of(self.natural, self.model.latent, gaps, self.node, target.base, target.data, self.time)

    @cached_property
    @float64
    def transitions(self) -> Transitions:
        """q's own transitions, x_{m+1} = m_{m+1} + T_m (x_m − m_m) + root_{m+1} ξ, with time as the last axis."""
        steps = self.exact_transitions or to_numpy(_transitions(self.natural))
        if not (np.isfinite(steps.T).all() and np.isfinite(steps.root).all()):
            raise ValueError(
                f"no paths can be drawn from this posterior: its status is {self.status}, and rounding has left its "
                "transitions without a joint density. Infer with method=gv.CVIDP(), which tolerates wider scales, or "
                "bring the scales of the model closer together"
            )
        return steps

    def marginals(self, times: Any) -> Marginals:
        """Return the mean and covariance of the state at any times inside the horizon.

        Between two nodes the path is the linear SDE of the linearised drift, conditioned on the states at both nodes.

        Args:
            times: numbers, or dates where the series has dates, (n,).

        Returns:
            `mean` (n, d) and `cov` (n, d, d).
        """
        return of_state(self.model, self._latent_marginals(times), self._inside(times))

    def _latent_marginals(self, times: Any) -> Marginals:
        t, Q = self._inside(times), self.model.latent.noise.Q
        return Marginals(*bridge(self.moments, self.target.base, Q, self.times, t, self.time))

    def quantiles(self, times: Any, q: Any) -> np.ndarray:
        """Return quantiles of every coordinate of the state at any times inside the horizon.

        Args:
            times: numbers, or dates where the series has dates, (n,).
            q: probabilities between 0 and 1, (k,) or a scalar.

        Returns:
            The quantiles, (k, n, d).
        """
        return quantiles(self.model, self._latent_marginals(times), q, self._inside(times))

    def band(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the lower and the upper end of a band for the state at every node.

        Returns:
            The mean minus and plus two standard deviations, shape (N, d) each; if the noise depends on the state, the
            quantiles with the same probabilities.
        """
        low, high = quantiles(self.model, self._latent, [_LOW, 1.0 - _LOW], self.times)
        return low, high

    @float64
    def sample(self, key: Any, n: int = 1) -> np.ndarray:
        """Draw paths of the state from the posterior.

        Args:
            key: a JAX random key.
            n: number of paths; default 1.

        Returns:
            The paths at the nodes, (n, N, d).
        """
        check_draws(key, n)
        return states(self.model, np.asarray(_sample(self.moments.m, self.transitions, key, n)), self.times)

    def forecast(
        self, times: Any, *, key: Any, n: int = 1000, dt: float | None = None, inputs: Any = None
    ) -> np.ndarray:
        """Simulate the model onwards from the posterior of the last state, by Euler–Maruyama.

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
        start = self._latent.mean[-1], self._latent.cov[-1]
        return forecast(self, times, lambda n: start, key=key, n=n, dt=dt, inputs=inputs)

    def update(
        self, series: TimeSeries, dt: float | None = None, *, grid: Any = None, method: Any = None
    ) -> "Posterior":
        """Extend this posterior by later observations, and infer anew only what they change.

        The new nodes, and as much of the end of the old path as the new data reach, are inferred from the old solution
        on. The result is the posterior of all data together. Posteriors in continuous time, and those that were made
        by the careful algorithm or by VDP, are inferred anew as a whole.

        Args:
            series: the later observations, all after the end of the horizon, with the unit and origin of the old ones.
            dt: step of the new nodes, by default the longest step of the grid. The regular nodes go on from those of
                the first node.
            grid: times of the new nodes, instead of `dt`; they must contain the times of the new observations.
            method: `gv.CVIDP(...)` with settings; by default `gv.CVIDP()`.

        Returns:
            The posterior of all data. Its history is that of the new part alone, and `history.node_passes` says over
            how many nodes its passes went.

        Raises:
            ValueError: if the observations are not later ones, or do not fit the model.
        """
        from girsanov.result.update import update

        return update(self, series, dt, grid, method)

    @property
    def grid(self) -> Grid:
        """The time grid, that is the nodes and the node of each observation."""
        return Grid(self.times, self.node, len(self.times))

    def diagnose(self, *, key: Any, n: int = 2000) -> "girsanov.result.diagnosis.Diagnosis":
        """Judge how far this posterior can be trusted.

        n paths are drawn from q and weighted by importance sampling; a particle filter that does not rely on q confirms
        their weights or not. Both use the model that q was inferred for: Euler–Maruyama on the nodes, or in continuous
        time the SDE itself. The bound and its gradient are compared with those by a more accurate quadrature rule.

        Args:
            key: a JAX random key.
            n: number of paths, at least 100; default 2000.

        Returns:
            A `Diagnosis` with a verdict, its reasons, and a corrected estimate of the evidence.
        """
        from girsanov.result.diagnosis import check_number, diagnose

        check_draws(key)
        check_number(n)
        return diagnose(self, key, int(n))

    def refine(
        self,
        *,
        key: Any,
        rhat: int | float = 1.02,
        ess: int | float = 400.0,
        error: int | float = 0.03,
        seconds: int | float = 300.0,
        particles: int = 64,
        chains: int = 4,
        start: Any = None,
        progress: bool = True,
    ) -> "girsanov.result.refined.Refined":
        """Draw paths from the model's own posterior, and estimate the evidence, until stated targets are met.

        Conditional particle filters with ancestor sampling move the paths. Their particles follow the model, this
        posterior, or bridges to the next observation, so that they also find a mode that this posterior misses. The
        model is that of `diagnose`: Euler–Maruyama on the nodes, or in continuous time the SDE itself, as singular
        noise needs it. A part of the posterior that none of the particles finds is still missed, and R̂ does not tell.

        Args:
            key: a JAX random key.
            rhat: largest R̂ over all coordinates and some sixty nodes; default 1.02.
            ess: least effective number of draws over the same coordinates and nodes; default 400.
            error: largest standard error of the log evidence, in nats; default 0.03.
            seconds: time limit, compilation included; default 300. It counts after every few sweeps.
            particles: number of particles of every sweep, at least 2; default 64.
            chains: number of independent chains, at least 2; default 4.
            start: an earlier result for this posterior to go on from, with its chains.
            progress: whether to show the progress of runs that take longer than two seconds; default True.

        Returns:
            A `Refined`: the drawn paths, with the names of a posterior, `log_evidence`, `standard_error`, `ess`,
            `rhat`, `status` and `message`. The status is "converged" only where all targets are met.

        Raises:
            ValueError: if an argument is not valid, or if no paths can be weighed, as with singular noise in discrete
                time.
            KeyboardInterrupt: on Ctrl-C. Its attribute `kept` is what was done until then, a `Refined` to use or to go
                on from, once there are a few draws.
        """
        from girsanov.result.refine import Targets, refine

        refined = refine(self, key, Targets(rhat, ess, error), seconds, particles, chains, start, progress)
        if not refined.converged:
            warnings.warn(f"refine has not converged ({refined.status}): {refined.message}", stacklevel=2)
        return refined

    def to_xarray(self) -> Any:
        """Convert the posterior to an xarray.Dataset; needs the extra `xarray`.

        Returns:
            A dataset with `mean`, `std` and `cov` over time and state and the observations. Its attributes are `elbo`,
            `status`, `converged` and `seconds`. Where the series has dates, they are the coordinate `date`.
        """
        return dataset(self, elbo=self.elbo)

    def save(self, path: str | Path) -> Path:
        """Write the posterior to a file that `gv.load` reads back exactly.

        Args:
            path: the file to write.

        Returns:
            The path of the file.
        """
        return save(self, path)

    def __repr__(self) -> str:
        return (
            f"Posterior(N={len(self.times)}, d={self.model.dim}, elbo={self.elbo:.6g}, {self.status} after "
            f"{len(self.history) - 1} iterations, {self.seconds:.2f} s)"
        )
