"""Ready-made models and parts of models."""

from typing import Any

import numpy as np
from jax.core import Tracer

from girsanov._core.checks import check_positive, check_whole
from girsanov._core.precision import parameter
from girsanov.data.series import TimeSeries
from girsanov.model.drifts import Matern
from girsanov.model.model import Model


def matern(order: float, lengthscale: Any = 1.0, variance: Any = 1.0, *, likelihood: Any = None) -> Model:
    """Make the model of a scalar Gaussian process with a Matérn covariance, under any likelihood.

    The state has the process first and then its derivatives; the process is observed. The initial state is stationary.
    To learn the covariance, use `trainable=["drift", "diffusion"]`: the lengthscale and the density of the noise.

    Args:
        order: ν, one of 0.5, 1.5 and 2.5. Larger ones are smoother.
        lengthscale: a positive number; 1 by default. It may be traced, as the variance may.
        variance: variance of the process, a positive number; 1 by default.
        likelihood: p(y | z) of one output, from `girsanov.likelihoods`; Gaussian noise by default.

    Returns:
        The model.
    """
    given = {"lengthscale": lengthscale, "variance": variance}
    check_positive(**{name: value for name, value in given.items() if not isinstance(value, Tracer)})
    drift = Matern(order, lengthscale)
    d = int(order + 0.5)
    diffusion = drift.spectral_density(parameter(variance)) * np.eye(d)[-1]
    return Model(drift, diffusion, initial="stationary", likelihood=likelihood, emission=np.eye(1, d))


def start_emission(series: TimeSeries, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Return an emission and an offset to start learning from, by principal components of the data.

    Use it where the data have more outputs than the state has coordinates. The coordinates of the state then have unit
    variance and are uncorrelated over time. A principal component has no sign; it is chosen so that the largest entry
    of every column is positive.

    Args:
        series: the observations. Missing values are replaced by the mean of their output.
        dim: the dimension d of the state, less than the number D of outputs.

    Returns:
        The emission H, shape (D, d), and the offset, shape (D,).

    Raises:
        ValueError: if d is not less than D, or an output has no values.
    """
    if not isinstance(series, TimeSeries):
        raise ValueError(f"series must be a gv.TimeSeries(times, values), got {type(series).__name__}")
    check_whole(dim=dim)
    if dim >= series.dim:
        raise ValueError(
            f"principal components give fewer coordinates than the {series.dim} outputs, but dim = {dim}; leave out "
            "emission= to observe the state directly, or give it a matrix"
        )
    empty = np.flatnonzero(~series.observed.any(0))
    if len(empty):
        raise ValueError(f"output {empty[0]} has no values: leave its column out")
    offset = np.nanmean(series.values, axis=0)
    centred = np.where(series.observed, series.values - offset, 0.0)
    _, size, axes = np.linalg.svd(centred, full_matrices=False)
    H = (axes[:dim] * size[:dim, None]).T / np.sqrt(len(series))
    if H.shape[1] < dim or not (np.abs(H).max(0) > 0.0).all():
        raise ValueError(f"the data vary in fewer than {dim} directions: take a smaller dim")
    return H * np.sign(H[np.abs(H).argmax(0), np.arange(dim)]), offset
