"""The authors' synthetic data sets, five folds of six processes, and the models that the paper infers them with."""

import dataclasses
import zipfile
from pathlib import Path

import numpy as np

from girsanov.drifts import Benes, DoubleWell, Drift, OrnsteinUhlenbeck, Sine, SquareRoot, VanDerPol
from girsanov.likelihoods import Gaussian
from girsanov.model import GaussianState, Model
from girsanov.series import TimeSeries

PROCESSES = ("ou", "benes", "double_well", "sine", "sqrt", "van_der_pol")
FOLDS = 5

# The folders in the authors' own archive.
_ARCHIVE_FOLDERS = {
    "ou": "linear/15",
    "benes": "benes/7",
    "double_well": "dw/3",
    "sine": "sine/69",
    "sqrt": "sqrt/53",
    "van_der_pol": "vanderpol/33",
}
_FIELDS = ("time_grid", "observation_grid", "observations", "test_grid", "test_observations", "sigma", "Q", "x0")


@dataclasses.dataclass(frozen=True)
class Fold:
    """One fold of one process.

    - train, test: observations to infer from and held out.
    - sigma: standard deviation of the noise.
    - Q, x0: spectral density (d, d) and initial state (d,) that the data were simulated with.
    - span: first and last time of the simulation.
    """

    train: TimeSeries
    test: TimeSeries
    sigma: float
    Q: np.ndarray
    x0: np.ndarray
    span: tuple[float, float]


def load_fold(directory: str | Path, process: str, fold: int) -> Fold:
    """Fold `fold` of `process` from a folder with one sub-folder a process, or from the authors' unpacked archive."""
    _check_process(process)
    if fold not in range(FOLDS):
        raise ValueError(f"fold must be one of 0, …, {FOLDS - 1}, got {fold!r}")
    path = _find(Path(directory), process, fold)
    try:
        with np.load(path) as file:
            data = {name: np.asarray(file[name], dtype=np.float64) for name in _FIELDS}
    except KeyError as error:
        raise ValueError(f"{path} lacks a field of the data set: {error.args[0]}") from None
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} cannot be read as a data set: {error}") from None
    x0 = data["x0"].reshape(-1)
    return Fold(
        train=TimeSeries(data["observation_grid"], data["observations"]),
        test=TimeSeries(data["test_grid"], data["test_observations"]),
        sigma=float(data["sigma"]),
        Q=data["Q"].reshape(len(x0), len(x0)),
        x0=x0,
        span=(float(data["time_grid"][0]), float(data["time_grid"][-1])),
    )


def inference_model(process: str, fold_data: Fold) -> Model:
    """The paper's model for inference: its parameters are given, not those that simulated the data."""
    _check_process(process)
    mean = 1.0 if process in ("double_well", "van_der_pol") else 0.0
    return Model(
        drift=_drift(process),
        diffusion=fold_data.Q,
        initial="stationary" if process == "ou" else GaussianState(mean=mean, cov=1e-4),
        likelihood=Gaussian(variance=fold_data.sigma**2),
    )


def _drift(process: str) -> Drift:
    return {
        "ou": OrnsteinUhlenbeck(decay=1.2),
        "benes": Benes(scale=1.0),
        "double_well": DoubleWell(scale=4.0, well=1.0),
        "sine": Sine(scale=1.0, phase=0.0),
        "sqrt": SquareRoot(scale=1.0),
        "van_der_pol": VanDerPol(rate=5.0, damping=2.0),
    }[process]


def _check_process(process: str) -> None:
    if process not in PROCESSES:
        raise ValueError(f"unknown process {process!r}; choose one of {', '.join(PROCESSES)}")


def _find(directory: Path, process: str, fold: int) -> Path:
    folders = (process, _ARCHIVE_FOLDERS[process])
    for folder in folders:
        path = directory / folder / f"{fold}.npz"
        if path.is_file():
            return path
    missing = "" if directory.is_dir() else f"{directory} is not a folder; "
    looked = " nor ".join(str(directory / folder / f"{fold}.npz") for folder in folders)
    raise ValueError(f"no data of fold {fold} of {process}: {missing}there is neither {looked}")
