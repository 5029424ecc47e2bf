"""The sections of the page of a run: what came out first, then what it was made from, and how to repeat it."""

import shlex
from collections.abc import Mapping
from typing import Any

import numpy as np

from girsanov.model.formulas import model_latex, values_of
from girsanov.page.mathml import equations
from girsanov.page.parts import Html, code, facts, missing, paragraph, section, table, verdict

_DIAGNOSED = {"trust the bound": "good", "trust the corrected estimate": "warn", "use particles": "bad"}
_MOST = 60  # rows of a table of numbers


def number(value: Any, digits: int = 5) -> str:
    """Return a number as text; a dash where there is none."""
    return "–" if value is None or not np.isfinite(value) else f"{float(value):.{digits}g}"


def verdicts(result: Mapping[str, Any], run: Any, diagnosis: Any) -> Html:
    """Return how the run ended, and what a diagnosis says of it."""
    status = result.get("status") or getattr(run, "status", None)
    message = result.get("message") or getattr(run, "message", "")
    if status is None:
        parts = [missing("result.json of this folder does not say how the run ended.")]
    else:
        kind = "good" if status == "converged" else "warn"
        parts = [verdict(kind, f"The run ended with status {status}", [str(message)] * (message != status))]
    if diagnosis is not None:
        kind = _DIAGNOSED.get(diagnosis.verdict, "warn")
        parts.append(verdict(kind, f"Diagnosis: {diagnosis.verdict}", [diagnosis.message]))
    elif run is not None:
        text = "The posterior was not diagnosed. girsanov report RUN --diagnose says how far it can be trusted."
        parts.append(missing(text))
    return Html("".join(parts))


def overview(result: Mapping[str, Any], post: Any) -> Html:
    """Return the few numbers at the top."""
    values = {
        "evidence bound, nats": number(result.get("elbo"), 7),
        "observations": result.get("observations", "–"),
        "nodes of the grid": result.get("nodes", "–"),
        "iterations": result.get("iterations", "–"),
        "seconds, compilation included": number(result.get("seconds"), 3),
    }
    return facts({k: v for k, v in values.items() if v != "–"})


def parameters(fit: Any) -> Html:
    """Return the table of learnt parameters, with their errors, and what the data tell of them."""
    errors, step = fit.standard_errors or {}, fit.step_error or {}
    stated = {} if fit.model.equations is None else {p.name: p for p in fit.model.equations.statement.parameters}
    rows = []
    for path, value in fit.parameters.items():
        for index, v in np.ndenumerate(value):
            name = path + (str(list(index)) if index else "")
            diagonal = len(set(index)) < 2
            sd, about = errors.get(name, errors.get(path) if diagonal else None), stated.get(path)
            ends = "–" if sd is None else f"{number(v - 2.0 * sd)} … {number(v + 2.0 * sd)}"
            about_it = "" if about is None else ", ".join(t for t in (about.meaning, about.unit) if t)
            rows.append([name, number(v), number(sd, 3), ends, number(step.get(name), 2), about_it])
    head = ["parameter", "value", "standard error", "±2 standard errors", "step error", ""]
    parts = [table(head, rows[:_MOST], classes={(i, 5): "left" for i in range(len(rows))})]
    if len(rows) > _MOST:
        parts.append(missing(f"The first {_MOST} of {len(rows)} numbers are shown; the file fit.gv has them all."))
    if not errors:
        parts.append(
            missing("There are no standard errors: they were not asked for, or the bound has no proper maximum.")
        )
    if step:
        text = "The step error is what half the time step would change, in standard errors."
        parts.append(paragraph(text, "soft"))
    if fit.evidence is not None:
        parts.append(paragraph(fit.evidence.sentence() + "."))
    if fit.directions:
        lines = [[number(d.spread, 3), d.sentence] for d in fit.directions]
        parts += [
            Html("<h3>Identifiability</h3>"),
            table(["sd, log or relative", "what the data tell"], lines, "texts"),
        ]
    else:
        parts.append(missing("Identifiability is not known: this fit has no curvature of the bound."))
    return section("Parameters", *parts)


def model(found: Any) -> Html:
    """Return the model as equations, and its numbers."""
    lines = equations(model_latex(found))
    rows = [[name, _shown(value)] for name, value in values_of(found).items()]
    own = [] if found.equations is not None else [paragraph(f"Drift: {type(found.drift).__name__}.", "soft")]
    return section("Model", lines, *own, table(["number", "value"], rows[:_MOST], "texts"))


def _shown(value: np.ndarray) -> str:
    if value.size == 1:
        return number(value.item())
    if value.size > 25:
        return f"array of shape {value.shape}"
    return np.array2string(value, precision=5, separator=", ").replace("\n", "")


def data(result: Mapping[str, Any], series: Any, names: Any) -> Html:
    """Return what the data are."""
    source = result.get("data") or {}
    first, last = (str(series.axis(series.times[[i]])[0]) for i in (0, -1))
    if series.origin is not None:
        first, last = (t.removesuffix(".000000000").removesuffix("T00:00:00") for t in (first, last))
    else:
        first, last = number(series.times[0]), number(series.times[-1])
    gaps = np.diff(series.times)
    rows = [["file", source.get("file", "not stored")], ["SHA-256", source.get("sha256", "not stored")]]
    rows += [["observations", f"{len(series)}, from {first} to {last}"]]
    if len(gaps):
        unit = "" if series.unit is None else f" {series.unit}"
        rows.append(["gaps", f"{number(gaps.min())} to {number(gaps.max())}{unit}, median {number(np.median(gaps))}"])
    columns = []
    for i in range(series.dim):
        y, seen = series.values[:, i], series.observed[:, i]
        some = y[seen] if seen.any() else np.array([np.nan])
        errors = "–" if series.errors is None else number(np.nanmedian(series.errors[:, i]), 3)
        name = names[i] if names is not None else f"y{i + 1}" if series.dim > 1 else "y"
        columns.append([name, int(seen.sum()), int((~seen).sum()), number(some.min()), number(np.median(some)),
                        number(some.max()), errors])  # fmt: skip
    head = ["output", "observed", "missing", "smallest", "median", "largest", "median error"]
    return section("Data", table([], rows, "texts"), table(head, columns))


def diagnostics(result: Mapping[str, Any], post: Any, diagnosis: Any, residuals: Any) -> Html:
    """Return the numbers that tell of numerical and of statistical trouble."""
    rows = [["iterations on the final grid", result.get("iterations", "–")]]
    error = result.get("quadrature_error")
    rows.append(["quadrature error", "not measured in this run" if error is None else f"{number(error, 3)} nats"])
    if post is not None:
        gaps = np.diff(post.times)
        step = f"{number(gaps.min(), 3)} to {number(gaps.max(), 3)}" if len(gaps) else "a single node"
        rows += [["steps of the grid", step], ["time", post.time], ["status of the posterior", post.status]]
    if diagnosis is not None:
        weights = f"{number(diagnosis.log_evidence, 6)} ± {number(diagnosis.standard_error, 2)}"
        rows += [
            ["log evidence, corrected", weights],
            ["by the filter alone", f"{number(diagnosis.filter_evidence, 6)} ± {number(diagnosis.filter_error, 2)}"],
            ["evidence bound", number(diagnosis.elbo, 6)],
            ["Pareto k̂", number(diagnosis.k_hat, 3)],
            ["effective paths", f"{diagnosis.ess:.0f} of {diagnosis.n}"],
            ["share of the posterior that q misses", f"{100.0 * diagnosis.missed:.0f} %"],
        ]  # fmt: skip
    parts = [table([], rows, "texts")]
    if residuals is not None:
        levels = (0.5, 0.8, 0.95)
        shares = residuals.coverage(levels)
        names = residuals.model.output_names or [f"y{j + 1}" for j in range(shares.shape[1])]
        head = ["observations inside predictive intervals", *(f"{100 * level:.0f} %" for level in levels)]
        parts.append(table(head, [[names[j], *(f"{100 * s:.0f} %" for s in shares[:, j])] for j in range(len(names))]))
    return section("Diagnostics", *parts)


def settings(result: Mapping[str, Any]) -> Html:
    """Return the settings, seeds and versions of the run."""
    given = result.get("settings") or {}
    rows = [[k, _text(v)] for k, v in given.items() if k not in ("equations", "model")]
    parts = [table(["setting", "value"], rows, "texts")] if rows else [missing("result.json has no settings.")]
    if result.get("seeds"):
        parts.append(table(["seed", "value"], [[k, v] for k, v in result["seeds"].items()], "texts"))
    versions = result.get("versions") or {}
    line = ", ".join(f"{k} {v}" for k, v in versions.items())
    parts.append(paragraph(f"Made with {line}.") if line else missing("result.json has no versions."))
    return section("Settings", *parts)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_text(v) for v in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{k} = {_text(v)}" for k, v in value.items())
    return "not given" if value is None else str(value)


def repeat(result: Mapping[str, Any], model_file: str | None) -> Html:
    """Return the command that repeats the run, as far as the folder states it."""
    given, source = result.get("settings") or {}, (result.get("data") or {}).get("file")
    parts = []
    if source is None or not given:
        parts.append(missing("result.json does not state enough to write down the command."))
    else:
        parts += [paragraph("In a folder with the data:"), code(command_of(result, model_file))]
    if given.get("equations") is not None and model_file is None:
        parts += [paragraph("with these equations in model.toml:"), code(toml_of(given["equations"]))]
    file = "fit.gv" if result.get("command") == "learn" else "posterior.gv"
    parts.append(paragraph("In Python, the result as it is here:"))
    parts.append(code(f'import girsanov as gv\n\nresult = gv.load("{file}")'))
    return section("How to repeat it", *parts)


_OPTIONS = ("diffusion", "noise", "likelihood", "initial_mean", "initial_cov", "emission", "time", "id", "unit",
            "decimal", "date_order", "dt", "span", "method", "objective", "max_iterations", "tolerance")  # fmt: skip
_OF_LEARNING = ("objective", "max_iterations", "tolerance")
_REPEATED = ("values", "errors", "inputs", "trainable", "individual", "prior", "constraint")


def command_of(result: Mapping[str, Any], model_file: str | None) -> str:
    """Return the command line of a run, from its settings."""
    given, verb = dict(result["settings"]), str(result.get("command"))
    words = ["girsanov", verb]
    if given.get("equations") is not None or model_file is not None:
        words.append(model_file or "model.toml")
    words.append(str(result["data"]["file"]))
    if given.get("drift") is not None:
        words += ["--drift", str(given["drift"])]
    for name, value in (given.get("params") or {}).items():
        words += ["--param", f"{name}={_word(value)}"]
    for name in _OPTIONS:
        value = given.get(name)
        if value is None or (name in _OF_LEARNING and verb != "learn"):
            continue
        ends = [_word(v) for v in value] if name == "span" else [_word(value)]
        words += [f"--{name.replace('_', '-')}", *ends]
    for name in _REPEATED:
        for value in given.get(name) or []:
            words += [f"--{name}", str(value)]
    words += ["--start-from-data"] if given.get("start_from_data") else []
    for name, seed in (result.get("seeds") or {}).items():
        words += [f"--{name}", str(seed)]
    return shlex.join(words)


def _word(value: Any) -> str:
    """Return a number, list or matrix as the command line reads it: 1,2;3,4."""
    if isinstance(value, list):
        return (";" if value and isinstance(value[0], list) else ",").join(_word(v) for v in value)
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def toml_of(equations_: Mapping[str, Any]) -> str:
    """Return a description of equations as TOML."""
    import json

    def inline(value: Any) -> str:
        if isinstance(value, Mapping):
            return "{" + ", ".join(f"{k} = {inline(v)}" for k, v in value.items()) + "}"
        if isinstance(value, list | tuple):
            return "[" + ", ".join(inline(v) for v in value) + "]"
        if isinstance(value, float) and not np.isfinite(value):
            return "nan" if np.isnan(value) else "inf" if value > 0.0 else "-inf"
        return json.dumps(value, ensure_ascii=False)

    lines = []
    for part, entries in equations_.items():
        if part in ("states", "outputs"):
            for name, entry in entries.items():
                lines += [f"[{part}.{name}]", *(f"{k} = {inline(v)}" for k, v in entry.items()), ""]
        else:
            lines += [f"[{part}]", *(f"{k} = {inline(v)}" for k, v in entries.items()), ""]
    return "\n".join(lines).rstrip()
