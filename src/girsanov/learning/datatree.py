"""Draws of the parameters as an xarray.DataTree in the layout of ArviZ."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from girsanov._core.extras import check_extra
from girsanov.data.series import TimeSeries
from girsanov.learning.chains import Draws
from girsanov.learning.correction import Correction
from girsanov.learning.parameters import Spec, entries

Group = dict[str, tuple[tuple[str, ...], np.ndarray]]
_CHAIN = ("chain", "draw")


def posterior_group(spec: Spec, values: np.ndarray) -> tuple[Group, dict[str, Any]]:
    """Return variables and coordinates of the parameters, from the values of all entries (chains, draws, P).

    A parameter with several entries has a dimension of its own, whose coordinate has the names of the entries.
    """
    names, variables, coords, start = entries(spec), {}, {}, 0
    for p in spec:
        part, labels = values[..., start : start + p.size], names[start : start + p.size]
        start += p.size
        if labels == [p.path]:
            variables[p.path] = (_CHAIN, part[..., 0])
        else:
            variables[p.path] = ((*_CHAIN, f"{p.path}_entry"), part)
            coords[f"{p.path}_entry"] = labels
    return variables, coords


def statistics_group(draws: Draws, extra: Mapping[str, np.ndarray]) -> Group:
    """Return the statistics of the chains, with the names that ArviZ has for them."""
    found = {
        "lp": draws.lp,
        "energy": draws.energy,
        "acceptance_rate": draws.acceptance,
        "step_size": draws.step_size,
        "n_steps": draws.steps,
        "diverging": draws.diverging,
        **extra,
    }
    return {name: (_CHAIN, np.asarray(a)) for name, a in found.items()}


def data_hash(series: TimeSeries) -> str:
    """Return the SHA-256 hash of times, values and errors of a series, in hexadecimal digits."""
    found = hashlib.sha256()
    for a in (series.times, series.values, series.errors):
        if a is not None:
            found.update(str(a.shape).encode() + np.ascontiguousarray(a).tobytes())
    return found.hexdigest()


def make_tree(
    spec: Spec,
    series: TimeSeries,
    values: np.ndarray,
    statistics: Group,
    scores: np.ndarray,
    replicates: np.ndarray | None,
    correction: Correction | None,
    chosen: np.ndarray | None,
    attrs: Mapping[str, Any],
    noise: float | None,
) -> Any:
    """Return the tree; `chosen` has the places, among all draws, of those that the weights have drawn."""
    check_extra("xarray", "gv.sample_parameters")
    import xarray as xr

    shape = values.shape[:2]
    coords: dict[str, Any] = {"chain": np.arange(shape[0]), "draw": np.arange(shape[1])}
    variables, named = posterior_group(spec, values)
    seen = series.observed.any(1)
    at: dict[str, Any] = {"time": np.array(series.times), "output": np.arange(series.dim)}
    found = {
        "posterior": xr.Dataset(variables, coords | named),
        "sample_stats": xr.Dataset(statistics, coords),
        "log_likelihood": xr.Dataset(
            {"y": ((*_CHAIN, "time"), scores[..., seen])}, coords | {"time": np.array(series.times)[seen]}
        ),
        "observed_data": xr.Dataset({"y": (("time", "output"), np.array(series.values))}, at),
    }
    if replicates is not None:
        found["posterior_predictive"] = xr.Dataset({"y": ((*_CHAIN, "time", "output"), replicates)}, coords | at)
    if correction is not None and chosen is not None:
        drawn, _ = posterior_group(spec, values.reshape(-1, values.shape[-1])[chosen].reshape(values.shape))
        weights: Group = {"log_weight": (_CHAIN, correction.log_weights), "weight": (_CHAIN, correction.weights)}
        said = {
            "k_hat": correction.k_hat,
            "effective": correction.effective,
            "verdict": correction.verdict,
            "message": correction.message,
            "noise": noise,
        }
        found["corrected"] = xr.Dataset({**drawn, **weights}, coords | named, attrs=said)
    return xr.DataTree.from_dict({"/": xr.Dataset(attrs=dict(attrs)), **found})
