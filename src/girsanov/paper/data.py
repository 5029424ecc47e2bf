"""The authors' data sets, or simulated ones of the same kind, and the paper's models of them."""

import dataclasses
import functools
import json
import zipfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

from girsanov.data.series import TimeSeries
from girsanov.evaluation.folds import Split, block_folds, chunk_folds
from girsanov.model import drifts
from girsanov.model.drifts import Drift
from girsanov.model.likelihoods import Gaussian
from girsanov.model.model import GaussianState, Model
from girsanov.model.simulate import simulate
from girsanov.paper.settings import PROCESSES, experiment

FOLDS = 5
_FIELDS = ("time_grid", "observation_grid", "observations", "test_grid", "test_observations", "sigma", "Q", "x0")


@dataclasses.dataclass(frozen=True)
class Fold:
    """One fold of the data of one process.

    Attributes:
        train: the observations to infer from.
        test: the held-out observations.
        sigma: standard deviation of the noise.
        Q: spectral density of the diffusion that the data were simulated with, (d, d).
        x0: initial state that the data were simulated with, (d,).
        span: first and last time of the simulation.
    """

    train: TimeSeries
    test: TimeSeries
    sigma: float
    Q: np.ndarray
    x0: np.ndarray
    span: tuple[float, float]


def load_fold(directory: str | Path | None, process: str, fold: int, changes: dict | None = None) -> Fold:
    """Return one fold of the data of a process.

    Args:
        directory: a folder with a sub-folder for each process, or the authors' unpacked archive. None simulates a
            series with the paper's settings.
        process: name of the process.
        fold: number of the fold, from 0 to 4.
        changes: changes of the settings, by dotted path.
    """
    _check_process(process)
    if fold not in range(FOLDS):
        raise ValueError(f"fold must be one of 0, …, {FOLDS - 1}, got {fold!r}")
    settings = experiment(process, changes)
    if directory is None:
        return _simulated_fold(settings, PROCESSES.index(process), fold)
    path = _find(Path(directory), f"fold {fold} of {process}", (settings["folder"], settings["archive"]), f"{fold}.npz")
    data = _arrays(path, _FIELDS)
    x0 = data["x0"].reshape(-1)
    return Fold(
        train=TimeSeries(data["observation_grid"], data["observations"]),
        test=TimeSeries(data["test_grid"], data["test_observations"]),
        sigma=float(data["sigma"]),
        Q=data["Q"].reshape(len(x0), len(x0)),
        x0=x0,
        span=(float(data["time_grid"][0]), float(data["time_grid"][-1])),
    )


def _simulated_fold(settings: dict[str, Any], seed: int, fold: int) -> Fold:
    """Simulate a fold. All folds of a process have the same path, and each holds out other `held_out` observations."""
    how = settings["simulation"]
    x0 = np.array(how["state"], dtype=np.float64)
    d, n, held = len(x0), int(how["observations"]), int(how["held_out"])
    rng = np.random.default_rng(seed)
    steps = np.sort(rng.choice(np.arange(1, round(how["end"] / how["step"])), n, replace=False))
    model = Model(
        _drift(settings["drift"], how["parameters"]),
        np.eye(d),
        GaussianState(x0, 1e-12),
        Gaussian(variance=float(how["noise"]) ** 2),
    )
    key = jax.random.key(seed)
    series = simulate(model, steps * how["step"], key=key, start=0.0, dt=float(how["step"])).series
    test = np.isin(np.arange(n), rng.permutation(n)[fold * held : (fold + 1) * held])
    span = (0.0, float(how["end"]))
    return Fold(series.subset(~test), series.subset(test), float(how["noise"]), np.eye(d), x0, span)


def inference_model(process: str, fold_data: Fold, changes: dict | None = None) -> Model:
    """Return the paper's model for inference, whose parameters need not be those that simulated the data."""
    _check_process(process)
    settings = experiment(process, changes)
    return _model(settings, fold_data, settings["inference"]["parameters"])


def learning_model(process: str, fold_data: Fold, changes: dict | None = None) -> tuple[Model, list[str]]:
    """Return the model with the parameters at which learning starts, and the names of those that are learnt."""
    settings = experiment(process, changes)
    start = {**settings["inference"]["parameters"], **settings["learning"]["parameters"]}
    return _model(settings, fold_data, start), list(settings["learning"]["trainable"])


def _model(settings: dict[str, Any], fold_data: Fold, parameters: dict[str, float]) -> Model:
    initial = settings["inference"]["initial"]
    return Model(
        drift=_drift(settings["drift"], parameters),
        diffusion=fold_data.Q,
        initial="stationary" if initial == "stationary" else GaussianState(**initial),
        likelihood=Gaussian(variance=fold_data.sigma**2),
    )


def _drift(name: str, parameters: dict[str, float]) -> Drift:
    return getattr(drifts, name)(**parameters)


# --- finance and GPS


@dataclasses.dataclass(frozen=True)
class RealFold:
    """One fold of a real data set, with the first and last time of all of its folds."""

    train: TimeSeries
    test: TimeSeries
    span: tuple[float, float]

    def column(self, i: int) -> "RealFold":
        """Return the fold with one coordinate of its observations."""
        train, test = (TimeSeries(s.times, s.values[:, i]) for s in (self.train, self.test))
        return RealFold(train, test, self.span)


def load_real(directory: str | Path | None, name: str, fold: int, changes: dict | None = None) -> RealFold:
    """Return one fold of "finance" or "gps": the authors' own, or without a folder one of a simulated series."""
    settings = experiment(name, changes)
    if fold not in range(settings["folds"]):
        raise ValueError(f"fold must be one of 0, …, {settings['folds'] - 1}, got {fold!r}")
    if directory is None:
        split = _simulated_real(name, json.dumps(settings))[fold]
        train, test = split.train, split.test
    else:
        path = _find(Path(directory), f"fold {fold} of {name}", (settings["folder"],), f"{fold}_data.npz")
        train, test = (_columns(path, part) for part in ("train", "test"))
    times = np.concatenate([train.times, test.times])
    return RealFold(train, test, (float(times.min()), float(times.max())))


def real_model(name: str, drift: Any, changes: dict | None = None) -> Model:
    """Return the paper's model of one coordinate of a real data set, with the given drift."""
    how = experiment(name, changes)["model"]
    noise = Gaussian(variance=float(how["noise_variance"]))
    return Model(drift, float(how["diffusion"]), GaussianState(**how["initial"]), noise, dim=1)


def _columns(path: Path, part: str) -> TimeSeries:
    if path.parent.name == "gps":
        data = _arrays(path, tuple(f"{part}_data_{c}" for c in "txy"))
        t, x, y = (data[f"{part}_data_{c}"].reshape(-1) for c in "txy")
        return TimeSeries(t, np.stack([x, y], 1))
    table = _arrays(path, (f"{part}_data",))[f"{part}_data"]
    return TimeSeries(table[:, 2], table[:, 1])


@functools.cache
def _simulated_real(name: str, settings: str) -> list[Split]:
    """Simulate a real data set and return all folds; `settings` is JSON text, since the cache needs hashable keys."""
    return (_simulated_finance if name == "finance" else _simulated_gps)(json.loads(settings))


def _simulated_finance(settings: dict[str, Any]) -> list[Split]:
    how = settings["simulation"]
    growth, n = float(how["growth"]), int(how["observations"])
    model = real_model("finance", lambda x, t: growth + 0.0 * x)
    times = np.linspace(0.0, float(how["end"]), n)
    return block_folds(simulate(model, times, key=jax.random.key(6), dt=0.02).series, settings["folds"])


def _simulated_gps(settings: dict[str, Any]) -> list[Split]:
    how = settings["simulation"]
    times = np.linspace(0.0, float(how["end"]), int(how["observations"]))
    columns = []
    for seed, speed in ((7, 0.3), (8, -0.2)):
        model = real_model("gps", lambda x, t, speed=speed: speed - 0.1 * x)
        columns.append(simulate(model, times, key=jax.random.key(seed), dt=0.01).series.values)
    series = TimeSeries(times, np.concatenate(columns, 1))
    return chunk_folds(series, settings["folds"], float(how["chunk"]), seed=7)


# --- files


def _check_process(process: str) -> None:
    if process not in PROCESSES:
        raise ValueError(f"unknown process {process!r}; choose one of {', '.join(PROCESSES)}")


def _arrays(path: Path, fields: tuple[str, ...]) -> dict[str, np.ndarray]:
    try:
        with np.load(path) as file:
            return {name: np.asarray(file[name], dtype=np.float64) for name in fields}
    except KeyError as error:
        raise ValueError(f"{path} is not a data set of the authors: a field is missing: {error.args[0]}") from None
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} cannot be read as a data set of the authors: {error}") from None


def _find(directory: Path, what: str, folders: tuple[str, ...], name: str) -> Path:
    for folder in folders:
        path = directory / folder / name
        if path.is_file():
            return path
    missing = "" if directory.is_dir() else f"{directory} is not a folder; "
    looked = " nor ".join(str(directory / folder / name) for folder in folders)
    neither = "neither " if len(folders) > 1 else "no "
    raise ValueError(f"no data of {what}: {missing}there is {neither}{looked}")
