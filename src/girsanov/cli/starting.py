"""The commands to begin with: `girsanov init`, `check`, `models` and `data`."""

from importlib.resources import files as of_package
from pathlib import Path
from typing import Annotated, Any

import typer

from girsanov.cli.app import app
from girsanov.cli.first_model import first_model
from girsanov.cli.groups import with_groups
from girsanov.cli.modelling import is_model, stated_model
from girsanov.cli.options import DataOptions, ModelOptions, run_option
from girsanov.cli.output import console, table_of
from girsanov.cli.reading import in_lines, read_data
from girsanov.cli.step import first_step


@app.command(rich_help_panel="To begin")
@with_groups
def init(
    file: Annotated[Path, typer.Argument(metavar="DATA", help="Data (.csv, .xlsx, .parquet).")],
    data: DataOptions,
    out: Annotated[Path, run_option("File to write; model.toml", metavar="FILE")] = Path("model.toml"),
    force: Annotated[bool, run_option("Replace the file if it exists", "--force")] = False,
) -> None:
    """Write a commented first model for a data file."""
    if out.exists() and not force:
        raise ValueError(f"{out} exists: give another --out, or --force to replace it")
    made = first_model(file, data)
    _write(out, made.text, force)
    console.print(made.line, markup=False, soft_wrap=True)
    for note in made.notes:
        console.print(note, markup=False, soft_wrap=True)
    options = "".join(f" {option}" for option in made.options)
    console.print(f"written to {out}; read it, change what does not fit, and go on with", markup=False, soft_wrap=True)
    for command in ("check", "learn"):
        console.print(f"  girsanov {command} {out} {file}{options}", markup=False, soft_wrap=True)


@app.command(rich_help_panel="To begin")
@with_groups
def check(
    files: Annotated[list[Path], typer.Argument(metavar="MODEL [DATA]", help="A model, and data if you like.")],
    data: DataOptions,
) -> None:
    """Show a model as equations, and whether data fit it."""
    model_file, *others = files
    if len(others) > 1 or not is_model(model_file) or not model_file.exists():
        raise ValueError(
            f"there is no file {model_file}"
            if not model_file.exists()
            else "check takes one model (.toml, .gv or a run folder), and after it one file of data"
        )
    stated = stated_model(model_file, ModelOptions())
    model = stated.model
    if model.equations is not None:
        _show(model.equations)
    else:
        console.print(f"{type(model.drift).__name__}, {model.dim} states, {model.data_dim} outputs", markup=False)
    if not others:
        return
    read = read_data(others[0], data, model)
    console.print(read.line, markup=False, soft_wrap=True)
    _check_fit(model, read.data)
    for name, (low, high) in _ranges(model, read.data).items():
        console.print(f"{name}: from {low:g} to {high:g}", markup=False)
    console.print("the model and the data fit", markup=False)


def _show(equations: Any) -> None:
    """Print the equations, as they are written, and a table of the parameters."""
    from rich.table import Table

    statement, texts = equations.statement, equations.statement.texts
    for s in statement.states:
        noise = texts.get(f"states.{s.name}.noise", "0")
        term = "" if noise in ("0", "0.0") else f" + ({noise}) dβ"
        console.print(f"d{s.name} = ({texts[f'states.{s.name}.drift']}) dt{term}", markup=False, soft_wrap=True)
    for i in statement.inputs:
        console.print(f"{i.name} is an input, {i.kind}", markup=False, soft_wrap=True)
    for name in statement.definitions:
        console.print(f"{name} = {texts[f'definitions.{name}']}", markup=False, soft_wrap=True)
    for o in statement.outputs:
        settings = "".join(f", {k} = {v}" for k, v in o.settings.items())
        law = o.distribution or "gaussian, by the errors of the data"
        console.print(f"{o.name} ~ {law}({o.measures}{settings})", markup=False, soft_wrap=True)
    if not statement.parameters:
        return
    table = Table("parameter", "start", "range", "prior", "unit", "meaning", title_justify="left")
    for p in statement.parameters:
        ends = "fixed" if p.fixed else {"real": "any", "positive": "> 0"}.get(str(p.kind), f"{p.low:g} to {p.high:g}")
        prior = "" if p.prior is None else f"{p.prior.name}({', '.join(f'{v:g}' for v in p.prior.numbers)})"
        table.add_row(p.name, f"{equations.values[p.name]:g}", ends, prior, p.unit or "", p.meaning or "")
    console.print(table)


def _check_fit(model: Any, data: Any) -> None:
    """Raise a ValueError if a series and the model do not fit; the grid is that of the first step that is tried."""
    import girsanov as gv

    for series in data.values() if hasattr(data, "values") and not hasattr(data, "times") else [data]:
        begin, end = float(series.times[0]), float(series.times[-1])
        dt = first_step(series.times, begin, end) if end > begin else 1.0
        with in_lines(series):
            gv.prepare(model, series, dt=dt)


def _ranges(model: Any, data: Any) -> dict[str, tuple[float, float]]:
    """Return the least and the largest value of every output."""
    import numpy as np

    members = [data] if hasattr(data, "times") else list(data.values())
    values = np.concatenate([one.values for one in members])
    names = model.output_names or [f"output {i + 1}" for i in range(values.shape[1])]
    return {n: (float(np.nanmin(v)), float(np.nanmax(v))) for n, v in zip(names, values.T, strict=True)}


def ready_models() -> dict[str, str]:
    """Return the models that come with the library, as text by name."""
    folder = of_package("girsanov.cli") / "models"
    found = {f.name.removesuffix(".toml"): f.read_text(encoding="utf-8") for f in folder.iterdir()}
    return dict(sorted(found.items()))


def bundled_data() -> dict[str, str]:
    """Return the data that come with the library, as text by name."""
    folder = of_package("girsanov.cli") / "data"
    found = {f.name.removesuffix(".csv"): f.read_text(encoding="utf-8") for f in folder.iterdir()}
    return dict(sorted(found.items()))


def _one_of(kind: str, name: str | None, known: dict[str, str], out: Path | None) -> None:
    """Print one text, write it to a file, or list what there is."""
    if name is not None and name not in known:
        raise ValueError(f"there is no {name!r} among the {kind}; there are {', '.join(known)}")
    if name is None:
        rows = {n: text.splitlines()[0].lstrip("# ") for n, text in known.items()}
        console.print(table_of(kind, rows))
        console.print("NAME prints one, and NAME --out FILE writes it to a file", markup=False)
    elif out is None:
        print(known[name], end="")
    else:
        _write(out, known[name], False)
        console.print(f"written to {out}", markup=False, soft_wrap=True)


def _write(out: Path, text: str, force: bool) -> None:
    """Write a new file; one that exists is replaced only if that is wanted."""
    if out.exists() and not force and (out.is_dir() or out.read_text(encoding="utf-8", errors="replace") != text):
        raise ValueError(f"{out} exists: give another --out, or remove it first")
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"--out {out} cannot be written: {error.strerror}; choose another file") from None


ToFile = Annotated[Path | None, run_option("File to write", metavar="FILE")]


@app.command(rich_help_panel="To begin")
def models(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A model to print.")] = None, out: ToFile = None
) -> None:
    """List the ready models, or print one."""
    _one_of("ready models", name, ready_models(), out)


@app.command(rich_help_panel="To begin")
def data(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Data to print.")] = None, out: ToFile = None
) -> None:
    """List the data that come along, or print one."""
    _one_of("data", name, bundled_data(), out)
