"""The page of one run of `girsanov infer` or `girsanov learn`, from its folder."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from girsanov._core.extras import check_extra
from girsanov.page import charts, sections
from girsanov.page.drift_charts import drift_chart
from girsanov.page.parts import Html, chart, document, missing, picture, section, write
from girsanov.result.drift_error import drift_error
from girsanov.result.loading import load

_FILES = {"learn": "fit.gv", "infer": "posterior.gv"}
_SAME = 1e-6  # share by which the bound of the same posterior may differ, read from a file or computed again


def write_run_page(
    folder: Path,
    *,
    diagnose: bool = False,
    diagnosis: Path | None = None,
    seed: int = 0,
    predictions: int = 40,
    out: Path | None = None,
    read: Callable[[Path], Any] = load,
) -> Path:
    """Write the page of a run as one HTML file, which needs no other file and no network.

    Args:
        folder: the folder of the run, with its `result.json`.
        diagnose: whether to diagnose the posterior, which takes some seconds.
        diagnosis: the folder of an earlier diagnosis of it, by `girsanov diagnose`.
        seed: seed of the diagnosis.
        predictions: the largest number of observations that are predicted from their past; with 0 each is predicted
            from all others, which costs nothing.
        out: the file to write; by default `report.html` in the folder.
        read: what reads a saved result; by default `gv.load`.

    Returns:
        The path of the file.

    Raises:
        ValueError: if the folder is not one of a finished run of `infer` or `learn`, or the diagnosis is of another
            posterior.
    """
    for package in ("plotly", "latex2mathml"):
        check_extra(package, "a report page")
    result = read_result(folder)
    run, why = _saved(folder, result, read)
    post = getattr(run, "posterior", run)
    found = None if diagnosis is None else read_diagnosis(diagnosis, result)
    if diagnose and post is not None:
        found = post.diagnose(key=jax.random.key(seed))
    residuals, why_not = _residuals(post, predictions)
    body: list[str] = [sections.verdicts(result, run, found), sections.overview(result, post)]
    if post is None:
        drawn = folder / "figure.png"
        parts = [picture("The figure that the run drew.", drawn)] if drawn.is_file() else []
        body.append(section("Figures", missing(why), *parts))
    else:
        body.append(_figures(run, post, found, residuals, why_not))
        body.append(sections.parameters(run) if run is not post else Html(""))
        body += [sections.model(post.model), sections.data(result, post.series, post.model.output_names)]
    body.append(sections.diagnostics(result, post, found, residuals))
    file = "model.toml" if (folder / "model.toml").is_file() else None
    body += [sections.settings(result), sections.repeat(result, file)]
    name = (result.get("data") or {}).get("file") or folder.name
    below = f"girsanov {result['command']}, results of the folder {folder.resolve().name}"
    return write(
        out or folder / "report.html", document(f"{name}: {_titles(result)}", below, body, charts=post is not None)
    )


def _titles(result: dict[str, Any]) -> str:
    return "what was learnt" if result["command"] == "learn" else "the inferred path"


def read_diagnosis(folder: Path, result: dict[str, Any]) -> Any:
    """Return what `girsanov diagnose` wrote, as an object with the names of a diagnosis."""
    found = _content(folder)
    if found.get("command") != "diagnose":
        raise ValueError(f"{folder} is not the folder of girsanov diagnose, but of {found.get('command')!r}")
    apart = abs(found["elbo"] - result.get("elbo", np.nan))
    if not apart < _SAME * (1.0 + abs(found["elbo"])):
        raise ValueError(
            f"{folder} judges another posterior: its bound is {found['elbo']:.7g} nats, that of this run "
            f"{result.get('elbo', float('nan')):.7g}"
        )
    return SimpleNamespace(**found, n=found["settings"]["n"], where=None)


def read_result(folder: Path) -> dict[str, Any]:
    """Return the content of `result.json`, or raise a ValueError unless it is that of a run with a page."""
    result, path = _content(folder), folder / "result.json"
    if result.get("command") not in _FILES:
        known = " or ".join(f"girsanov {name}" for name in _FILES)
        raise ValueError(f"{path} is that of {result.get('command')!r}, which has no page; give a folder of {known}")
    return result


def _content(folder: Path) -> dict[str, Any]:
    path = folder / "result.json"
    if not path.is_file():
        raise ValueError(f"{folder} is not the folder of a finished run: there is no {path}")
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    return result if isinstance(result, dict) else {}


def _saved(folder: Path, result: dict[str, Any], read: Callable[[Path], Any]) -> tuple[Any, str]:
    """Return the saved result of a run; or None, and a sentence on why there is none."""
    path = folder / _FILES[result["command"]]
    if result.get("series"):
        return None, f"The run has {len(result['series'])} series: their posteriors are not drawn one by one here."
    if not path.is_file():
        return None, f"{path.name} is not in this folder: the run is of an older version, or the file was removed."
    try:
        found = read(path)
    except ValueError as error:
        return None, f"{path.name} cannot be read: {error}."
    if not hasattr(getattr(found, "posterior", found), "series"):
        return None, f"{path.name} has the posteriors of many series, which this page does not draw."
    return found, ""


def _residuals(post: Any, predictions: int) -> tuple[Any, str]:
    if post is None:
        return None, ""
    try:
        kind = "ahead" if predictions > 0 else "left out"
        return post.residuals(kind, cuts=max(predictions, 1)), ""
    except ValueError as error:
        return None, f"There are no residuals: {error}."


def _figures(run: Any, post: Any, diagnosis: Any, residuals: Any, why_not: str) -> Html:
    parts: list[str] = [chart(charts.path_chart(post))]
    if run is not post:
        error, t = drift_error(run), float(0.5 * (post.times[0] + post.times[-1]))
        parts.append(chart(drift_chart(post, None if error is None else lambda x: error(x, t))))
        parts.append(chart(_learning(run)))
    else:
        parts += [chart(drift_chart(post, None)), chart(_bound(post))]
    if residuals is None:
        parts.append(missing(why_not))
    else:
        over_time, *pairs = charts.residual_charts(residuals)
        parts += [chart(over_time), '<div class="pair">' + "".join(chart(c) for c in pairs) + "</div>"]
    if diagnosis is not None and diagnosis.where is not None:
        parts.append(chart(charts.where_chart(post, diagnosis.where)))
    return section("Figures", *parts)


def _learning(fit: Any) -> Any:
    values = {**fit.history.parameters, "bound (nats)": fit.history.elbo}
    errors = {k: v for k, v in (fit.standard_errors or {}).items() if np.isfinite(v)}
    return charts.history_chart(values, errors, "Parameters and evidence bound, by iteration of learning.")


def _bound(post: Any) -> Any:
    return charts.history_chart(
        {"bound (nats)": post.history.elbo}, {}, "Evidence bound, by iteration on the final grid."
    )
