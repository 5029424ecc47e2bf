"""The commands `girsanov infer` and `girsanov learn`, which read observations from a file."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from girsanov import report
from girsanov.cli.app import app
from girsanov.cli.groups import with_groups
from girsanov.cli.modelling import Stated, models_and_data, stated_model
from girsanov.cli.options import (
    DataOptions,
    Files,
    ModelOptions,
    Out,
    SayOptions,
    Seed,
    Span,
    Step,
    pair,
    run_option,
)
from girsanov.cli.output import not_converged, outcome_of, run_folder, say, table_of, write_posterior
from girsanov.cli.reading import Read, in_lines, read_data, times_of
from girsanov.cli.run_folder import UNFINISHED, copy_input
from girsanov.cli.step import chosen_step
from girsanov.cli.unfinished import earlier_fit

if TYPE_CHECKING:
    import girsanov as gv


class Task(NamedTuple):
    """What a command works on."""

    stated: Stated
    read: Read
    span: tuple[float, float] | None
    dt: float
    line: str  # on the step, if it was chosen here

    @property
    def model(self) -> "gv.Model":
        """The model."""
        return self.stated.model

    def settings(self) -> dict[str, Any]:
        """Return the settings for result.json."""
        return {**self.stated.settings, **self.read.settings, "dt": self.dt}

    def copy_files(self, stage: Path, out: Path) -> None:
        """Copy the file of the data, and that of the equations, into the folder of the run."""
        copy_input(self.read.file, stage, out)
        file = self.stated.file
        if file is not None and file.suffix.lower() == ".toml":
            copy_input(file, stage, out, "model.toml")


def methods() -> dict[str, Any]:
    """Return the methods of inference by their names on the command line."""
    import girsanov as gv

    return {"cvi_dp": gv.CVIDP(), "continuous": gv.CVIDP(time="continuous"), "vdp": gv.VDP()}


def method_of(name: str, tolerance: float | None = None) -> Any:
    """Return the method of this name."""
    known = methods()
    if name not in known:
        raise ValueError(f"unknown --method {name!r}; choose one of {', '.join(known)}")
    how = known[name]
    return how if tolerance is None else dataclasses.replace(how, tolerance=tolerance)


def make_task(
    stated: Stated, read: Read, dt: float | None, span: tuple[str, str] | None, method: Any, progress: bool = True
) -> Task:
    """Return what to work on, with the span as numbers and a step."""
    horizon = None
    if span is not None:
        begin, end = times_of(read.data, span, "--span")
        horizon = (begin, end)
    if dt is not None:
        return Task(stated, read, horizon, dt, "")
    with in_lines(read.data):
        found = chosen_step(stated.model, read.data, horizon, method, progress)
    return Task(stated, read, horizon, found.dt, found.line)


def read_task(
    files: list[Path],
    model: ModelOptions,
    data: DataOptions,
    dt: float | None,
    span: Any,
    method: Any,
    progress: bool = True,
) -> Task:
    """Return the task of a command that takes one model, or options, and data."""
    of_models, file = models_and_data(files)
    if len(of_models) > 1:
        raise ValueError(f"one model is needed, and {len(of_models)} were given; girsanov compare takes several")
    stated = stated_model(of_models[0] if of_models else None, model)
    read = read_data(file, data, stated.model)
    return make_task(stated, read, dt, span, method, progress)


Method = Annotated[str, run_option("cvi_dp (if not given), continuous or vdp", metavar="NAME")]
Tolerance = Annotated[float | None, run_option("When a run has converged, in nats", metavar="NUMBER")]


@app.command()
@with_groups
def infer(
    files: Files,
    model: ModelOptions,
    data: DataOptions,
    dt: Step = None,
    span: Span = None,
    method: Method = "cvi_dp",
    tolerance: Tolerance = None,
    out: Out = Path("out/infer"),
    *,
    say_how: SayOptions,
) -> None:
    """Infer the path of a latent process from noisy observations."""
    import girsanov as gv

    with run_folder(out, "infer") as folder:
        how = method_of(method, tolerance)
        task = read_task(files, model, data, dt, span, how, not say_how.quiet)
        with in_lines(task.read.data):
            post = gv.infer(
                task.model, task.read.data, dt=task.dt, span=task.span, method=how, progress=not say_how.quiet
            )
        write_posterior(post, folder)
        post.save(folder / "posterior.gv")
        task.copy_files(folder, out)
        settings = task.settings() | {"span": _horizon(post), "method": method}
        settings |= {"tolerance": how.tolerance, "max_iterations": how.max_iterations}
        outcome = outcome_of(post)
        report.write_result(folder, "infer", outcome, settings=settings, seeds={}, data=task.read.file)
    rows = {"ELBO": f"{post.elbo:.6f} nats", "status": outcome["status"]}
    if hasattr(post, "times"):
        rows["iterations"] = f"{len(post.history) - 1} on {len(post.times)} nodes"
    rows["time"] = f"{post.seconds:.2f} s, compilation included"
    title = f"{task.read.file.name}, {task.stated.name}"
    say(say_how, out, task.read.line, task.line or None, table_of(title, rows))
    not_converged({} if post.converged else {outcome["status"]: outcome["message"]})


def _horizon(post: Any) -> list[float]:
    """Return begin and end of the grid, of a panel the widest."""
    ends = [one.times[[0, -1]] for one in (post.values() if hasattr(post, "elbos") else [post])]
    return [float(min(a for a, _ in ends)), float(max(b for _, b in ends))]


@dataclasses.dataclass
class LearnOptions:
    """How parameters are learnt."""

    trainable: Annotated[list[str] | None, run_option("Parameter to learn; else all that are free", metavar="NAME")] = (
        None
    )
    individual: Annotated[list[str] | None, run_option("Of each series by itself", metavar="NAME", hidden=True)] = None
    prior: Annotated[list[str] | None, run_option("Such as K=lognormal(4,1); repeatable", metavar="NAME=PRIOR")] = None
    constraint: Annotated[
        list[str] | None, run_option("positive, real, or low,high; repeatable", metavar="NAME=RANGE")
    ] = None
    start_from_data: Annotated[bool, run_option("Take starting values from the data", "--start-from-data")] = False
    objective: Annotated[str | None, run_option("profile, …, exact or particles", metavar="NAME")] = None
    max_iterations: Annotated[int, run_option("Most iterations; 100", min=1, metavar="N")] = 100


@app.command()
@with_groups
def learn(
    files: Files,
    model: ModelOptions,
    data: DataOptions,
    options: LearnOptions,
    dt: Step = None,
    span: Span = None,
    method: Method = "cvi_dp",
    tolerance: Tolerance = None,
    resume: Annotated[bool, run_option("Go on from what is in --out", "--resume")] = False,
    seed: Seed = 0,
    out: Out = Path("out/learn"),
    *,
    say_how: SayOptions,
) -> None:
    """Learn parameters, with standard errors."""
    import jax

    import girsanov as gv

    with run_folder(out, "learn") as folder:
        how = method_of(method)
        task = read_task(files, model, data, dt, span, how, not say_how.quiet)
        settings = task.settings() | {"method": method, **_stated(options, tolerance)}
        arguments = _arguments(options, tolerance)
        if resume:
            arguments["resume"] = earlier_fit(out, model, task.read.data)
        needs_key = options.objective == "particles"
        if needs_key:
            arguments["key"] = jax.random.key(seed)
        if hasattr(task.read.data, "times"):
            arguments |= {"checkpoint": out / UNFINISHED, "method": how}
        elif method != "cvi_dp":
            arguments["method"] = how
        with in_lines(task.read.data):
            fit = gv.learn(
                task.model, task.read.data, dt=task.dt, span=task.span, progress=not say_how.quiet, **arguments
            )
        _write_fit(fit, folder)
        task.copy_files(folder, out)
        post = getattr(fit, "posterior", None) or fit.posteriors  # pyright: ignore[reportAttributeAccessIssue]
        settings |= {"span": _horizon(post), "trainable": list(fit.trainable)}
        seeds = {"seed": seed} if needs_key else {}
        report.write_result(folder, "learn", _outcome(fit, post), settings=settings, seeds=seeds, data=task.read.file)
    say(say_how, out, task.read.line, task.line or None, fit.summary())
    not_converged({} if fit.converged else {fit.status: fit.message})


def _stated(o: LearnOptions, tolerance: float | None) -> dict[str, Any]:
    """Return the options of learning as result.json stores them."""
    stated = {"trainable": o.trainable, "objective": o.objective, "max_iterations": o.max_iterations}
    more = {"prior": o.prior, "constraint": o.constraint, "start_from_data": o.start_from_data, "tolerance": tolerance}
    return stated | {name: value for name, value in (more | {"individual": o.individual}).items() if value}


def _arguments(o: LearnOptions, tolerance: float | None) -> dict[str, Any]:
    """Return the arguments of `gv.learn` that the options give."""
    from girsanov.model.equations.priors import parse_prior

    given: dict[str, Any] = {"trainable": o.trainable or None, "max_iterations": o.max_iterations}
    given |= {"objective": o.objective} if o.objective else {}
    given |= {"individual": o.individual} if o.individual else {}
    given |= {"start": "data"} if o.start_from_data else {}
    given |= {"tolerance": tolerance} if tolerance is not None else {}
    if o.prior:
        pairs = dict(pair("--prior", text) for text in o.prior)
        given["priors"] = {k: parse_prior(v, f"--prior {k}").distribution() for k, v in pairs.items()}
    if o.constraint:
        given["constraints"] = {k: _range(k, v) for k, v in (pair("--constraint", text) for text in o.constraint)}
    return given


def _range(name: str, text: str) -> Any:
    """Return a constraint: the name of one, or two ends."""
    if "," not in text:
        return text
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--constraint {name}={text} is neither a name nor two numbers low,high") from None
    return low, high


def _write_fit(fit: Any, folder: Path) -> None:
    """Write the posterior, the fit, its history and a figure of that."""
    if hasattr(fit, "posterior"):
        write_posterior(fit.posterior, folder)
        fit.save(folder / "fit.gv")
        fit.plot().savefig(folder / "learning.png", dpi=150)
    else:
        write_posterior(fit.posteriors, folder)
        fit.posteriors.save(folder / "posterior.gv")
    columns = {"elbo": fit.history.elbo, "seconds": fit.history.seconds}
    for path, trace in fit.history.parameters.items():
        flat = trace.reshape(len(trace), -1)
        columns |= dict(zip(report.names(path, flat.shape[1]), flat.T, strict=True))
    report.write_table(folder / "history.csv", columns)


def _outcome(fit: Any, post: Any) -> dict[str, Any]:
    """Return the facts of a fit, as result.json stores them."""
    outcome = outcome_of(post) | {"status": fit.status, "message": fit.message, "converged": fit.converged}
    outcome |= {"elbo": fit.elbo, "iterations": len(fit.history) - 1, "seconds": float(fit.history.seconds[-1])}
    outcome |= {"parameters": fit.parameters, "standard_errors": fit.standard_errors}
    if getattr(fit, "evidence", None) is not None:
        outcome["evidence"] = fit.evidence.stored()
    for name in ("individual", "individual_errors"):
        if getattr(fit, name, None):
            outcome[name] = getattr(fit, name)
    return outcome
