"""Commands for models in files, what they say of data, and their options."""

import json
import re
import shlex
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest
from tolerances import TOLERANCES

import girsanov as gv
from girsanov.cli import app, main
from girsanov.cli.modelling import drift_kinds
from girsanov.cli.starting import bundled_data, ready_models
from girsanov.cli.words import in_options

MODEL = """
[states.x]
drift = "-decay * x"
noise = "s"

[outputs.y]
measures = "x"
distribution = "gaussian"
sd = 0.3

[parameters]
decay = {start = 1.0, low = 0, prior = "lognormal(0, 1)", unit = "1/h", meaning = "rate"}
s = {start = 1.0, fixed = true}
"""
ROWS = "t,y\n0,0.9\n0.5,1.1\n1,0.8\n1.5,1.2\n"
OU = ["--drift", "ornstein_uhlenbeck", "--param", "decay=1", "--noise", "0.09"]


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in arguments])
    return int(end.value.code or 0)


def said(capsys) -> str:
    return " ".join(capsys.readouterr().err.split())


@pytest.fixture
def files(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("model.toml").write_text(MODEL)
    Path("data.csv").write_text(ROWS)
    return tmp_path


def result(folder: str = "out") -> dict:
    return json.loads(Path(folder, "result.json").read_text(encoding="utf-8"))


# --- models that come along


@pytest.mark.parametrize("name", drift_kinds())
def test_there_is_a_ready_model_for_every_drift(name):
    """With the parameters that it has, its drift is that of the library's class."""
    model = gv.Model.from_equations(ready_models()[name])
    values = {k: float(v) for k, v in model.equations.values.items()}
    renamed = {"tau_r": "tau"} if name == "fitz_hugh_nagumo" else {}
    own = {renamed.get(k, k): v for k, v in values.items() if k not in ("s", "tau", "variance")}
    kind, special = drift_kinds()[name], {}
    if name == "linear":
        special = {"A": [[own["a11"], own["a12"]], [own["a21"], own["a22"]]], "b": [own["b1"], own["b2"]]}
    if name == "polynomial":
        special = {"coefficients": [own[f"c{k}"] for k in range(4)]}
    if name == "matern":
        special = {"order": 1.5, "lengthscale": own["lengthscale"]}
    if name == "langevin":
        special = {"force": gv.DoubleWell(own["scale"], own["well"]), "friction": own["friction"]}
    drift = kind(**(special or own))
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        for _ in range(5):
            x, t = rng.normal(size=model.dim), float(rng.uniform(0.0, 3.0))
            np.testing.assert_allclose(model.drift(x, t), drift(x, t), rtol=1e-12, atol=1e-12)
    if name == "matern":
        whole = gv.matern(1.5, own["lengthscale"], values["variance"])
        np.testing.assert_allclose(model.diffusion, whole.diffusion, rtol=1e-12)


def test_models_and_data_are_listed_and_printed(capsys):
    assert run("models") == 0 and "double_well" in capsys.readouterr().out
    assert run("models", "double_well") == 0
    assert gv.Model.from_equations(capsys.readouterr().out).dim == 1
    assert run("models", "triple_well") == 2 and "there is no 'triple_well'" in said(capsys)
    assert run("data") == 0 and "Nile" in capsys.readouterr().out


def test_the_data_are_those_of_their_sources():
    import statsmodels.api

    nile = statsmodels.api.datasets.nile.load_pandas().data.to_numpy()
    rows = [line.split(",") for line in bundled_data()["nile"].splitlines()[2:]]
    assert np.array_equal(np.array(rows, float), nile)
    lynx = np.array([line.split(",")[1] for line in bundled_data()["lynx"].splitlines()[2:]], float)
    assert len(lynx) == 114 and lynx.sum() == 175334 and lynx.max() == 6991  # as Campbell and Walker (1977) have them


# --- init and check


COLUMNS = {
    "plain": ("t,y\n0,0.9\n1,-1.1\n2,0.4\n3,0.5\n", ["gaussian"]),
    "counts": ("t,n\n0,3\n1,0\n2,7\n3,2\n", ["poisson"]),
    "yes or no": ("t,up\n0,1\n1,0\n2,1\n3,1\n", ["bernoulli"]),
    "of many sizes": ("t,y\n0,0.01\n1,5.5\n2,120\n3,2\n", ["lognormal"]),
    "two, and a gap": ("t,a b,exp\n0,0.9,2\n1,,1\n2,0.3,4\n3,0.5,\n", ["gaussian", "poisson"]),
    "dates": ("day;y\n2024-01-01;0,5\n2024-02-01;0,25\n2024-03-01;1,5\n", ["gaussian"]),
    "constant": ("t,y\n0,2.5\n1,2.5\n2,2.5\n", ["gaussian"]),
    "one row": ("t,y\n0,2.5\n", ["gaussian"]),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_init_writes_a_model_that_fits_the_data(files, capsys, name):
    text, kinds = COLUMNS[name]
    Path("data.csv").write_text(text)
    assert run("init", "data.csv", "--out", "new.toml") == 0
    shown = capsys.readouterr().out
    model = gv.Model.from_equations(Path("new.toml"))
    assert [o.distribution for o in model.equations.statement.outputs] == kinds
    command = next(line.strip() for line in shown.splitlines() if line.strip().startswith("girsanov check"))
    assert run(*shlex.split(command)[1:]) == 0, said(capsys)  # the command as it is shown
    if name == "dates":
        assert "--unit month" in command
    assert run("init", "data.csv", "--out", "new.toml") == 2 and "--force" in said(capsys)
    assert run("init", "data.csv", "--out", "new.toml", "--force") == 0


def test_check_shows_equations_parameters_and_data(files, capsys):
    assert run("check", "model.toml", "data.csv") == 0
    shown = capsys.readouterr().out
    for text in ("dx = (-decay * x) dt + (s) dβ", "y ~ gaussian(x, sd = 0.3)", "lognormal(0, 1)", "fixed", "1/h"):
        assert text in shown
    assert "4 times from 0 to 1.5" in shown and "y: from 0.8 to 1.2" in shown and "fit" in shown
    Path("data.csv").write_text("t,z\n0,1\n")
    assert run("check", "model.toml", "data.csv") == 2 and "has no column 'y'" in said(capsys)
    Path("model.toml").write_text(MODEL.replace('"gaussian"\nsd = 0.3', '"poisson"'))
    Path("data.csv").write_text("t,y\n0,3\n\n1,-2\n")
    assert run("check", "model.toml", "data.csv") == 2
    assert "column 'y' in line 4 is -2.0" in said(capsys)
    assert run("check", "model.toml", "data.csv", "data.csv") == 2 and "check takes one model" in said(capsys)


# --- data on the command line


def infer(monkeypatch, *arguments: object) -> dict:
    """The arguments of `gv.infer` in a command that is stopped there."""
    given: dict = {}

    def note(model, series, **options):
        given.update(options, model=model, series=series)
        raise ValueError("that is all")

    monkeypatch.setattr(gv, "infer", note)
    assert run("infer", *arguments, "--dt", 0.5, "--out", "out") == 2
    return given


def test_columns_of_errors_and_of_names(files, monkeypatch):
    Path("data.csv").write_text("when;who;y;sd\n0;a;1,5;0,1\n0;b;2,5;0,1\n1;a;0,5;0,2\n")
    columns = ["--time", "when", "--values", "y", "--errors", "sd"]
    panel = infer(monkeypatch, "data.csv", *OU, *columns, "--id", "who")["series"]
    assert panel.names == ["a", "b"] and panel["a"].errors.tolist() == [[0.1], [0.2]]


def test_the_column_of_the_times_is_found(files, monkeypatch, capsys):
    Path("data.csv").write_text("Year,y\n1871,1\n1872,2\n")
    assert infer(monkeypatch, "data.csv", *OU)["series"].times.tolist() == [1871.0, 1872.0]
    for header, text in (("a,b", "no column is called t, time or date"), ("day,hour,y", "'day' and 'hour' may be")):
        Path("data.csv").write_text(f"{header}\n{'1,' * header.count(',')}2\n")
        capsys.readouterr()
        assert run("infer", "data.csv", *OU, "--dt", 1) == 2
        shown = said(capsys)
        assert text in shown and "--time NAME" in shown


def test_columns_of_inputs(files, monkeypatch):
    """By the equations, or by an option for a drift f(x, t, u)."""
    Path("data.csv").write_text("t,y,dose,heat\n0,1,5,\n1,2,,0.5\n2,3,1,0.75\n")
    drift, last = 'drift = "-decay * x"', "[parameters]"
    Path("model.toml").write_text(
        MODEL.replace(drift, 'drift = "-decay * x + dose"').replace(
            last, '[inputs]\ndose = {kind = "impulse"}\n' + last
        )
    )
    one = infer(monkeypatch, "model.toml", "data.csv")["series"]
    Path("my.py").write_text("def f(x, t, u):\n    return u - x\n")
    other = infer(
        monkeypatch, "data.csv", "--drift", "my.py:f", "--noise", 1, "--values", "y", "--inputs", "dose:impulse"
    )["series"]
    wanted = gv.TimeSeries.from_csv("data.csv", values="y", inputs="dose", input_kind="impulse")
    for series in (one, other):
        assert series.dim == 1 and series.inputs.names == ("dose",)
        assert [p.kind for p in series.inputs.parts] == [p.kind for p in wanted.inputs.parts]
        np.testing.assert_array_equal(series.inputs.parts[0].values, wanted.inputs.parts[0].values)
    both = infer(monkeypatch, "data.csv", *OU, "--values", "y", "--inputs", "heat", "--inputs", "dose:previous")[
        "series"
    ]
    assert both.inputs.names == ("heat", "dose")


def test_a_span_may_have_dates(files, monkeypatch):
    Path("data.csv").write_text("t,y\n2024-03-02,1\n2024-03-04,2\n")
    given = infer(monkeypatch, "data.csv", *OU, "--unit", "D", "--span", "2024-03-01", "2024-03-05T12:00")
    assert given["span"] == (-1.0, 3.5)


BAD = {
    "dates without a unit": (
        "t,y\n2024-03-01,1\n",
        [],
        "if these are dates, say in which unit to count them: --unit D",
    ),
    "20240301": ("t,y\n20240301,1\n20240302,2\n", [], "looks like the date 2024-03-01: say in which unit.*--unit D"),
    "numbers with a unit": ("t,y\n1,1\n2,2\n", ["--unit", "D"], "--unit is for dates; times are numbers already, so"),
    "a unit that there is not": ("t,y\n2024-03-01,1\n", ["--unit", "d"], "--unit must be one of us, ms, s"),
    "day or month": ("t,y\n01.02.2024,1\n", ["--unit", "D"], "give --date-order DMY if the day comes first"),
    "thousands": ("t;y\n0;1,234\n", [], "give --decimal , if"),
    "three fields": ("t,y\n0,1,2\n", [], "line 2: 3 fields"),
    "not sorted": ("t,y\n1,1\n0,2\n", [], "the time in line 3 = 0 comes after the time in line 2 = 1; sort the rows"),
    "twice": ("t,y\n1,1\n1,2\n", [], "are both 1"),
    "huge": ("t,y\n1,1e300\n", [], "column 'y': 1e300 is too large"),
    "errors that do not fit": ("t,y,sd\n1,1,2\n", ["--values", "y", "--errors", "q"], "has no column 'q'"),
    "empty": ("", [], "is empty"),
    "span with dates": ("t,y\n1,1\n2,1\n", ["--span", "2024-01-01", "2024-01-02"], "the times of the data are numbers"),
    "a span that ends before": ("t,y\n1,1\n2,1\n", ["--span", "0", "1.5"], "outside span"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_with_data_is_said_in_the_words_of_the_command(files, capsys, name):
    text, options, message = BAD[name]
    Path("data.csv").write_text(text)
    assert run("infer", "data.csv", *OU, "--dt", 0.5, *options, "--out", "out") == 2
    shown = capsys.readouterr()
    assert shown.out == "" and len(shown.err.splitlines()) == 1 and shown.err.startswith("error: ")
    assert re.search(message, " ".join(shown.err.split())), shown.err
    assert not Path("out").exists()


def test_what_is_wrong_with_a_command_is_one_line(files, capsys):
    for arguments, message in (
        (["infer", ".", *OU], ". is a folder: give the file"),
        (["infer", "none.csv", *OU], "there is no file none.csv"),
        (["infer", "data.csv", "--nosie", 1], "No such option: --nosie"),
        (["infer"], "Missing argument"),
        (["infer", "data.csv", *OU, "--dt", "small"], "Invalid value for .--dt.*number|valid float"),
        (["infer", "model.toml", "model.toml", "data.csv"], "one model is needed, and 2 were given"),
        (["inferr", "data.csv"], "No such command 'inferr'"),
        (["learn", "data.csv", *OU, "--trainable", "drift", "--prior", "decay"], "--prior 'decay' is not of the form"),
        (["learn", "data.csv", *OU, "--constraint", "drift.decay=1,b"], "neither a name nor two numbers"),
        (["learn", "model.toml", "data.csv", "--resume"], "has neither unfinished.gv nor fit.gv"),
        (["infer", "data.csv", *OU, "--likelihood", "poisson"], "leave it or --likelihood out"),
        (["infer", "data.csv", *OU[:4], "--likelihood", "student_t:df=4"], "student_t needs scale"),
        (["infer", "data.csv", *OU[:4], "--likelihood", "cauchy"], "unknown --likelihood 'cauchy'"),
        (["infer", "data.csv", "--drift", "none.py:f", "--noise", 1], "there is no file none.py"),
    ):
        more = [] if "--dt" in arguments or arguments[0] == "inferr" else ["--dt", 0.5]
        assert run(*arguments, *more) == 2
        shown = capsys.readouterr()
        assert shown.out == "" and len(shown.err.splitlines()) == 1, shown.err
        assert re.search(message, " ".join(shown.err.split())), shown.err


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        ("give unit='D' for days", "give --unit D for days"),
        ("errors=['sd', 'se'] names 2 columns", "--errors sd --errors se names 2 columns"),
        ("give dt=, the step", "give --dt, the step"),
        ("leave objective out: objective='exact' is", "leave objective out: --objective exact is"),
        ("use pandas.read_csv(path, sep=';', decimal=',') or decimal=','", None),
        ("use method=gv.CVIDP(time='continuous')", "use --method continuous"),
        ("gv.infer(model, series, dt=0.5)", "gv.infer(model, series, --dt 0.5)"),
        ("x=3 and timestep=4", "x=3 and timestep=4"),
        ("dt must be positive", "--dt must be positive"),
        ("unit must be one of us", "--unit must be one of us"),
        ("the dt must be positive", "the dt must be positive"),
    ],
)
def test_arguments_of_the_library_become_options(message, wanted):
    if wanted is None:
        wanted = "use pandas.read_csv(path, sep=';', decimal=',') or --decimal ,"
    assert in_options(message) == wanted


# --- models by options


def test_a_drift_of_one_s_own(files, monkeypatch, capsys):
    Path("my.py").write_text(
        "import equinox as eqx\nclass Pull(eqx.Module):\n    rate: float\n    def __call__(self, x, t):\n"
        "        return -self.rate * x\ndef f(x, t):\n    return -2 * x\nnumber = 3\n"
    )
    x = np.array([1.5])
    given = infer(monkeypatch, "data.csv", "--drift", "my.py:f", "--noise", 1)
    assert given["model"].drift(x, 0.0).tolist() == [-3.0]
    given = infer(monkeypatch, "data.csv", "--drift", "my.py:Pull", "--param", "rate=4", "--noise", 1)
    assert given["model"].drift(x, 0.0).tolist() == [-6.0]
    capsys.readouterr()
    for name, message in (("my.py:number", "has no function 'number'"), ("my.py:g", "has no function 'g'")):
        assert run("infer", "data.csv", "--drift", name, "--noise", 1) == 2 and message in said(capsys)
    Path("my.py").write_text("1 / 0\n")
    assert run("infer", "data.csv", "--drift", "my.py:f", "--noise", 1) == 2
    assert "could not be run: ZeroDivisionError" in said(capsys)


def test_a_likelihood_by_name(files, monkeypatch):
    given = infer(monkeypatch, "data.csv", *OU[:4], "--likelihood", "student_t:scale=0.5,df=4")
    assert isinstance(given["model"].likelihood, gv.likelihoods.StudentT)
    assert float(given["model"].likelihood.scale) == 0.5 and float(given["model"].likelihood.df) == 4.0


def test_options_of_learning_reach_it(files, monkeypatch):
    given: dict = {}

    def note(model, series, **options):
        given.update(options)
        raise ValueError("that is all")

    monkeypatch.setattr("girsanov.learning.learn.learn", note)
    options = ["--dt", 0.5, "--trainable", "drift.decay", "--prior", "drift.decay=lognormal(0,1)", "--tolerance", 0.01]
    options += ["--constraint", "drift.decay=0.1,9", "--start-from-data", "--max-iterations", 7, "--method", "vdp"]
    assert run("learn", "data.csv", *OU, *options, "--objective", "profile", "--out", "out") == 2
    assert type(given["priors"]["drift.decay"]).__name__ == "LogNormal"
    assert given["constraints"] == {"drift.decay": (0.1, 9.0)} and given["start"] == "data"
    assert (given["tolerance"], given["max_iterations"], given["objective"]) == (0.01, 7, "profile")
    assert isinstance(given["method"], gv.VDP)


# --- runs


@pytest.mark.slow
def test_a_model_its_data_and_then_its_run(files, capsys):
    """infer with a step that is found; then forecast, with a date, and diagnose, of the run and of model and data."""
    Path("data.csv").write_text("t,y\n2024-03-01,0.9\n2024-03-02,1.1\n2024-03-03,0.8\n2024-03-04,1.2\n")
    pair = ["model.toml", "data.csv", "--unit", "D"]
    assert run("infer", *pair, "--dt", 0.25, "--out", "run") == 0
    shown = capsys.readouterr().out
    assert "read data.csv: 4 times from 2024-03-01 to 2024-03-04" in shown
    assert (
        {"model.toml", "data.csv", "posterior.gv"}
        <= set(result("run")["files"])
        == {p.name for p in Path("run").iterdir()} - {"result.json"}
    )
    assert Path("run/model.toml").read_text() == MODEL
    ahead = ["--until", "2024-03-08", "--steps", 4, "--n", 20]
    assert run("forecast", "run", *ahead, "--out", "ahead") == 0
    assert run("forecast", *pair, "--dt", 0.25, *ahead, "--out", "again") == 0
    one, other = (Path(name, "forecast.csv").read_text() for name in ("ahead", "again"))
    assert one == other and one.splitlines()[-1].startswith("2024-03-08T00")
    capsys.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert run("diagnose", "run", "--n", 200, "--json", "--out", "judged") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["verdict"] == result("judged")["verdict"] and printed["folder"] == "judged"
    assert (
        abs(printed["log_evidence"] - printed["elbo"])
        < TOLERANCES["standard_errors"] * printed["standard_error"] + 1e-6
    )
    assert run("forecast", "run", "--until", "2024-03-02", "--out", "no") == 2
    assert "--until must lie after the end" in said(capsys)
    assert run("infer", "run", "data.csv", "--unit", "D", "--dt", 0.25, "--quiet", "--out", "second") == 0
    assert capsys.readouterr().out == "" and result("second")["elbo"] == result("run")["elbo"]


@pytest.mark.slow
def test_a_panel_is_inferred_and_learnt(files):
    rows = [f"{k / 2},{name},{np.sin(k) * f:.3f}" for name, f in (("a", 1.0), ("b", 0.5)) for k in range(6)]
    Path("data.csv").write_text("t,who,y\n" + "\n".join(rows) + "\n")
    columns = ["--id", "who", "--dt", 0.25]
    assert run("infer", "model.toml", "data.csv", *columns, "--out", "run") == 0
    assert set(result("run")["series"]) == {"a", "b"}
    lines = Path("run/posterior.csv").read_text().splitlines()
    assert lines[0] == "series,time,mean,sd" and lines[1].startswith("a,0.0,") and lines[-1].startswith("b,2.5,")
    assert run("learn", "model.toml", "data.csv", *columns, "--out", "fit") in (0, 3)
    assert set(result("fit")["parameters"]) == {"decay"} and gv.load("fit/posterior.gv").panel.names == ["a", "b"]


@pytest.mark.slow
def test_compare_ranks_several_models(files):
    Path("other.toml").write_text(MODEL.replace('"-decay * x"', '"-decay * x^3"'))
    rows = [f"{k / 2},{np.sin(k / 3):.3f}" for k in range(16)]
    Path("data.csv").write_text("t,y\n" + "\n".join(rows) + "\n")
    assert run("compare", "model.toml", "other.toml", "data.csv", "--dt", 0.25, "--out", "out") in (0, 3)
    ranked = result()["models"]
    assert set(ranked) == {"model", "other"}
    assert {"model.gv", "other.gv", "comparison.csv"} <= set(result()["files"])
    fits = {name: gv.load(f"out/{name}.gv") for name in ranked}
    found = gv.compare(fits, key=jax.random.key(0)).to_dict()
    assert list(found) == list(ranked)
    for name, row in found.items():
        assert abs(row["loo"] - ranked[name]["loo"]) < TOLERANCES["evidence"]


def test_help_fits_on_a_screen(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERMINAL_WIDTH", "100")
    names = [c.name or c.callback.__name__ for c in app.registered_commands]
    for arguments in ([], *([name] for name in names if name not in ("reproduce", "report"))):
        assert run(*arguments, "--help") == 0
        lines = capsys.readouterr().out.rstrip().splitlines()
        assert len(lines) <= 46, f"{arguments}: {len(lines)} lines"
