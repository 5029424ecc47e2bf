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


def panel_dataset(posts: Any, **attributes: Any) -> Any:
    """Return an xarray.Dataset of the posteriors of a panel, with the series as the first dimension."""
    check_extra("xarray", "posts.to_xarray()")
    import xarray as xr

    state, data = np.arange(posts.model.dim), np.arange(posts.model.data_dim)
    nodes = max(len(post.times) for post in posts.values())
    rows = max(len(post.series) for post in posts.values())

    def stacked(size: int, part: Any) -> np.ndarray:
        parts = [np.asarray(part(post)) for post in posts.values()]
        out = np.full((len(parts), size, *parts[0].shape[1:]), np.nan)
        for row, one in zip(out, parts, strict=True):
            row[: len(one)] = one
        return out

    by_node, by_row = ("series", "node"), ("series", "observation")
    return xr.Dataset(
        {
            "mean": ((*by_node, "state"), stacked(nodes, lambda post: post.mean)),
            "std": ((*by_node, "state"), stacked(nodes, lambda post: post.std)),
            "cov": ((*by_node, "state", "state_"), stacked(nodes, lambda post: post.cov)),
            "observations": ((*by_row, "output"), stacked(rows, lambda post: post.series.values)),
            "elbo": ("series", np.array(list(posts.elbos.values()))),
            "status": ("series", np.array(list(posts.statuses.values()))),
        },
        coords={
            "series": np.array(list(posts)),
            "time": (by_node, stacked(nodes, lambda post: post.times)),
            "observation_time": (by_row, stacked(rows, lambda post: post.series.times)),
            "state": state,
            "state_": state,
            "output": data,
        },
        attrs={**attributes, "converged": int(posts.converged), "seconds": posts.seconds},
    )
