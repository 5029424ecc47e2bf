"""`PanelPosterior`, the posteriors of all series of a panel, by their names."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from girsanov.data.panel import Panel, unknown_name
from girsanov.data.series import TimeSeries
from girsanov.inference.loop import Run
from girsanov.inference.objective import Posed
from girsanov.inference.sites import Sites
from girsanov.model.model import Model
from girsanov.result.making import make_posterior
from girsanov.result.panel_files import save_panel
from girsanov.result.posterior import History, Posterior
from girsanov.result.resolution import unresolved
from girsanov.result.xarrays import panel_dataset


class Outcome(NamedTuple):
    """The result of one series, from which its `Posterior` is made when it is asked for.

    Attributes:
        problem: the problem, not padded.
        run: how it was solved, in NumPy arrays.
        coarse: iterations and passes on coarser grids.
        series: the observations.
    """

    problem: Posed
    run: Run
    coarse: tuple[tuple[int, int], ...]
    series: TimeSeries

    def posterior(self) -> Posterior:
        """Make the posterior."""
        history = History(**self.run.trace, passes=self.run.passes, coarse=self.coarse, node_passes=None)
        return make_posterior(self.problem, self.run, self.series, history, self.run.seconds)


class PanelPosterior(Mapping[str, Posterior]):
    """The posteriors of the series of a panel: a mapping from their names, in the panel's order.

    `posts[name]` is the `Posterior` that `gv.infer` returns for this series alone. A series that could not be solved is
    among them, with its status and message; its means are NaN if it could not even be started.

    Attributes:
        model: the model.
        panel: the observations.
        seconds: duration of the whole inference, including compilation.
    """

    def __init__(self, model: Model, panel: Panel, outcomes: Mapping[str, Outcome | Posterior], *, seconds: float):
        self.model, self.panel, self.seconds = model, panel, seconds
        self._outcomes = dict(outcomes)

    def __getitem__(self, name: Any) -> Posterior:
        name = str(name)
        if name not in self._outcomes:
            raise KeyError(unknown_name(name, list(self._outcomes)))
        found = self._outcomes[name]
        if isinstance(found, Outcome):
            found = self._outcomes[name] = found.posterior()
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._outcomes)

    def __len__(self) -> int:
        return len(self._outcomes)

    @property
    def elbos(self) -> dict[str, float]:
        """The evidence bound of every series, in nats; minus infinity where a series could not be started."""
        return {k: o.run.elbo if isinstance(o, Outcome) else o.elbo for k, o in self._outcomes.items()}

    @property
    def elbo(self) -> float:
        """The evidence bound of the panel in nats, the sum over its series, which are independent."""
        return float(np.sum(list(self.elbos.values())))

    @property
    def statuses(self) -> dict[str, str]:
        """How the run of every series ended, in a word; see docs/trust.md."""
        return {k: o.run.status.name.lower() if isinstance(o, Outcome) else o.status for k, o in self._outcomes.items()}

    @property
    def messages(self) -> dict[str, str]:
        """A sentence on the status of every series."""
        return {k: o.run.message if isinstance(o, Outcome) else o.message for k, o in self._outcomes.items()}

    @property
    def converged(self) -> bool:
        """Whether the runs of all series met their tolerance."""
        return all(status == "converged" for status in self.statuses.values())

    def unresolved(self, name: str) -> str:
        """Return a sentence on the step of a series' grid that is too long for the drift; empty where none is.

        Args:
            name: the name of the series.

        Returns:
            The sentence, or an empty text; in continuous time always the latter.
        """
        o = self._outcomes[name]
        sites, times = (o.run.sites, o.problem.data.times) if isinstance(o, Outcome) else (o.target, o.times)
        discrete = isinstance(sites, Sites) and sites.right is None
        return unresolved(sites.base, np.asarray(times)) if discrete else ""

    def nlpd(self, test: Panel) -> float:
        """Return the negative log predictive density of held-out observations, averaged over all their times.

        Args:
            test: the held-out observations, a panel of some or all of the series. Times at which every value is missing
                do not count.

        Returns:
            The mean of −log p(y_i | data of its series), in nats.
        """
        if not isinstance(test, Panel):
            raise ValueError(f"the test data must be a gv.Panel, got {type(test).__name__}")
        values = []
        for name, series in test.items():
            if name not in self:
                raise ValueError(f"the test data: {unknown_name(name, list(self))}")
            try:
                values.append(self[name].nlpd_values(series)[series.observed.any(1)])
            except ValueError as error:
                raise ValueError(f"series {name!r}: {error}") from None
        return float(np.mean(np.concatenate(values)))

    def to_xarray(self) -> Any:
        """Convert the posteriors to an xarray.Dataset; needs the extra `xarray`.

        Returns:
            A dataset with the dimension `series`. Since every series has a grid of its own, `mean`, `std`, `cov` and
            `time` go by the number of the `node`, and `observations` and `observation_time` by that of the
            `observation`; what is beyond a series' last one is NaN. `elbo` and `status` are given for each series.
        """
        return panel_dataset(self, elbo=self.elbo)

    def plot(self, *, names: Any = None, output: int = 0, test: Panel | None = None) -> Any:
        """Plot small multiples: the posterior of every series with its data.

        Args:
            names: the names of the series to plot; by default all, and the first 24 where there are more.
            output: number of the output to plot, 0 by default.
            test: held-out observations.

        Returns:
            The matplotlib figure.
        """
        from girsanov.plotting import plot_panel

        names = list(self)[:24] if names is None else [str(name) for name in names]
        if not 0 <= output < self.model.data_dim:
            raise ValueError(f"output must be from 0 to {self.model.data_dim - 1}, got {output!r}")
        return plot_panel({name: self[name] for name in names}, output, {} if test is None else test, len(self))

    def save(self, path: str | Path) -> Path:
        """Write all posteriors to one file that `gv.load` reads back exactly.

        Args:
            path: the file to write.

        Returns:
            The path of the file.
        """
        return save_panel(self, path)

    def __repr__(self) -> str:
        ended = list(self.statuses.values())
        return (
            f"PanelPosterior({len(self)} series, d={self.model.dim}, elbo={self.elbo:.6g}, "
            f"{ended.count('converged')} converged, {self.seconds:.2f} s)"
        )
