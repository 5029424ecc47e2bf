"""Results as datasets of xarray, which comes with an extra."""

from typing import Any

import numpy as np

from girsanov._core.extras import check_extra


def _names(model: Any) -> tuple[Any, Any]:
    """Return the coordinates of states and outputs: their names, or numbers from 0 on."""
    given = (model.state_names, model.dim), (model.output_names, model.data_dim)
    state, output = (np.arange(count) if names is None else np.array(names) for names, count in given)
    return state, output


def dataset(estimate: Any, **attributes: Any) -> Any:
    """Return an xarray.Dataset of an estimate and its data; `attributes` go beside status, converged and seconds."""
    check_extra("xarray", "post.to_xarray()")
    import xarray as xr

    series, state, data = estimate.series, *_names(estimate.model)
    dates = {} if series.origin is None else {"date": ("time", series.dates(estimate.times))}
    return xr.Dataset(
        {
            "mean": (("time", "state"), estimate.mean),
            "std": (("time", "state"), estimate.std),
            "cov": (("time", "state", "state_"), estimate.cov),
            "observations": (("observation_time", "output"), np.array(series.values)),
        },
        coords={
            "time": estimate.times,
            "state": state,
            "state_": state,
            "observation_time": np.array(series.times),
            "output": data,
            **dates,
        },
        attrs={
            **attributes,
            "status": estimate.status,
            "converged": int(estimate.converged),
            "seconds": estimate.seconds,
        },
    )
