"""The page of a run: what it says of the run, what it says where a piece is missing, and that texts stay texts."""

import json
import re
import tomllib

import numpy as np
import pytest
from run_folders import EQUATIONS, EVIL, a_fit, write_run

import girsanov as gv
from girsanov import report
from girsanov.model.drifts import DRIFTS
from girsanov.model.formulas import model_latex, values_of
from girsanov.page import parts, sections
from girsanov.page.run import write_run_page

pytest.importorskip("plotly", reason="the extra report is not installed")
pytest.importorskip("latex2mathml", reason="the extra report is not installed")
convert = __import__("latex2mathml.converter", fromlist=["convert"]).convert


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    """The folder of a run that learnt a parameter of equations, and its fit."""
    fit = a_fit()
    folder = tmp_path_factory.mktemp("pages") / "learn"
    write_run(folder, "learn", fit, {"dt": 0.25, "span": [0.0, 6.0], "equations": EQUATIONS, "trainable": ["r"]})
    return folder, fit


@pytest.fixture(scope="module")
def page(learnt):
    folder, _ = learnt
    return write_run_page(folder, predictions=0).read_text(encoding="utf-8")


def without_scripts(page: str) -> str:
    return re.sub(r"<script.*?</script>|<style.*?</style>", "", page, flags=re.DOTALL)


def test_it_has_the_verdict_first_then_numbers_and_how_to_repeat_it(page, learnt):
    _, fit = learnt
    text = without_scripts(page)
    order = [text.index(f"<h2>{t}</h2>") for t in
             ("Figures", "Parameters", "Model", "Data", "Diagnostics", "Settings", "How to repeat it")]  # fmt: skip
    assert [text.index("The run ended with status"), text.index("was not diagnosed"), *order] == sorted(
        [text.index("The run ended with status"), text.index("was not diagnosed"), *order]
    )
    sd = fit.standard_errors["r"]
    row = ["r", f"{float(fit.parameters['r']):.5g}", f"{sd:.3g}"]
    assert "".join(f"<td>{cell}</td>" for cell in row) in text
    assert fit.directions[0].sentence in text
    assert "<math" in text and "growth" in text
    assert "girsanov learn model.toml" in text
    assert report.sha256(learnt[0] / "a&b<i>.csv") in text


def test_it_needs_no_network(page):
    """No address is fetched: what looks like one names a format, or stands in the script of the charts."""
    text = without_scripts(page)
    assert set(re.findall(r"https?://[^\"' )]+", text)) <= {"http://www.w3.org/1998/Math/MathML"}
    assert not re.search(r"<(link|img|script|iframe)[^>]*(src|href)=[\"'](?!data:)", page)
    assert len(page.encode()) < 2_600_000  # the compressed script is 2.0 MB of it


def test_what_comes_from_the_users_file_is_text(page):
    text = without_scripts(page)
    assert EVIL not in page and "mg</script>" not in page
    assert "&lt;img src=x onerror=window.evil=1&gt;" in text
    assert "a&amp;b&lt;i&gt;.csv" in text and "a&b<i>" not in text


def test_no_value_ends_the_script_around_it():
    text = parts.embedded({"a": "</script><!--", "b": [np.nan, np.inf, 1.0], "c": "\u2028&"})
    assert "<" not in text and ">" not in text and "&" not in text and "\u2028" not in text
    assert json.loads(text) == {"a": "</script><!--", "b": [None, None, 1.0], "c": "\u2028&"}


def test_a_missing_piece_is_said(learnt, tmp_path):
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps({"schema": 1, "command": "learn"}), encoding="utf-8")
    text = write_run_page(folder).read_text(encoding="utf-8")
    for sentence in ("does not say how the run ended", "fit.gv is not in this folder", "has no settings",
                     "has no versions", "does not state enough to write down the command"):  # fmt: skip
        assert sentence in text
    (folder / "figure.png").write_bytes(b"drawn")
    assert 'src="data:image/png;base64,ZHJhd24="' in write_run_page(folder).read_text(encoding="utf-8")
    (folder / "fit.gv").write_bytes(b"no archive")
    assert "is not a Girsanov file, or it is damaged" in write_run_page(folder).read_text(encoding="utf-8")


def test_a_diagnosis_of_this_posterior_is_shown_and_of_another_one_refused(learnt, tmp_path):
    folder, fit = learnt
    found = {
        "verdict": "use particles", "message": "few paths", "log_evidence": -1.5, "standard_error": 0.25,
        "elbo": fit.elbo, "k_hat": np.inf, "ess": 3.0, "filter_evidence": -1.25, "filter_error": 0.5, "missed": 0.5,
    }  # fmt: skip
    report.write_result(tmp_path, "diagnose", found, settings={"n": 200}, seeds={}, data=None)
    page = write_run_page(folder, predictions=0, diagnosis=tmp_path, out=tmp_path / "p.html").read_text(
        encoding="utf-8"
    )
    assert "Diagnosis: use particles" in page and "-1.5 ± 0.25" in page and "3 of 200" in page
    report.write_result(
        tmp_path, "diagnose", found | {"elbo": fit.elbo + 1.0}, settings={"n": 200}, seeds={}, data=None
    )
    with pytest.raises(ValueError, match="judges another posterior: its bound is"):
        write_run_page(folder, predictions=0, diagnosis=tmp_path)
    with pytest.raises(ValueError, match="is not the folder of girsanov diagnose, but of 'learn'"):
        write_run_page(folder, predictions=0, diagnosis=folder)


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"is not the folder of a finished run: there is no .*result.json"):
        write_run_page(tmp_path)
    (tmp_path / "result.json").write_text('{"command": "simulate"}', encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"'simulate', which has no page; give a folder of girsanov learn or girsanov infer"
    ):
        write_run_page(tmp_path)
    (tmp_path / "result.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="cannot be read"):
        write_run_page(tmp_path)


def test_equations_are_written_as_the_toml_that_they_were():
    stated = {**EQUATIONS, "definitions": {"g": "r * n"}}
    stated["parameters"] = {
        **EQUATIONS["parameters"],
        "low": {"start": 1.0, "low": -np.inf},
        "plain": 2.5,
        "many": [1, "a"],
    }
    assert tomllib.loads(sections.toml_of(stated)) == stated


def test_the_command_of_options_is_written_as_it_was_given():
    settings = {
        "drift": "double_well", "params": {"scale": 4.0, "well": [1.0, 2.0]}, "diffusion": [[1.0, 0.5], [0.5, 2.0]],
        "noise": 0.01, "initial_mean": 0.0, "initial_cov": 1e-4, "emission": None, "time": "t", "values": None,
        "unit": None, "dt": 0.01, "span": [0.0, 20.0], "method": "cvi_dp", "max_iterations": 500,
    }  # fmt: skip
    result = {"command": "infer", "settings": settings, "data": {"file": "my data.csv"}, "seeds": {}}
    assert sections.command_of(result, None) == (
        "girsanov infer 'my data.csv' --drift double_well --param scale=4 --param 'well=1,2' --diffusion '1,0.5;0.5,2' "
        "--noise 0.01 --initial-mean 0 --initial-cov 0.0001 --time t --dt 0.01 --span 0 20 --method cvi_dp"
    ).replace("'well=1,2'", "well=1,2")


@pytest.mark.parametrize("drift", [kind.__name__ for kind in DRIFTS])
def test_every_drift_of_the_library_has_equations(drift):
    """All but networks, sums and Matérn processes have a formula of their own, and all are MathML."""
    from girsanov.model import formulas

    assert (drift in formulas._DRIFTS) == (drift not in ("MLP", "Sum", "Matern"))
    lines = [formulas._DRIFTS.get(drift, "f(x, t)")]
    assert all(convert(line).startswith("<math") for line in lines)


def test_a_model_is_stated_by_its_parts():
    L = gv.likelihoods
    H = np.array([[1.0, 0.0], [1.0, 2.0]])
    model = gv.Model(
        gv.VanDerPol(3.0), [0.1, 0.2], likelihood=[L.Gaussian(0.1), L.Poisson(2.0)], emission=H, offset=0.5
    )
    lines, values = model_latex(model), values_of(model)
    assert len(lines) == 5 and "damping" in lines[1] and r"z = H x + c" in lines[2] and "Poisson" in lines[3]
    assert float(values["drift.rate"]) == 3.0 and float(values["likelihood[1].exposure"]) == 2.0
    assert np.array_equal(values["emission H"], H) and np.array_equal(values["offset c"], [0.5, 0.5])
    assert np.array_equal(values["diffusion Q"], np.diag([0.1, 0.2]))


@pytest.mark.slow
def test_the_command_repeats_the_run_and_a_diagnosis_is_shown(tmp_path, monkeypatch, capsys):
    """The command that the page states gives the same bound; `--diagnose` adds the verdict."""
    import shlex

    from girsanov.cli import main

    monkeypatch.chdir(tmp_path)

    def run(arguments: list[str]) -> None:
        with pytest.raises(SystemExit) as end:
            main(arguments)
        assert end.value.code == 0, capsys.readouterr().err

    run(["simulate", "--drift", "ornstein_uhlenbeck", "--param", "decay=0.5", "--noise", "0.01", "--n", "12",
         "--span", "0", "5", "--out", "run"])  # fmt: skip
    run(["infer", "run/data.csv", "--drift", "ornstein_uhlenbeck", "--param", "decay=0.5", "--noise", "0.01",
         "--dt", "0.05", "--out", "out"])  # fmt: skip
    run(["report", "out", "--diagnose"])
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    text = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "Diagnosis: trust the bound" in text
    command = shlex.split(sections.command_of(result, None))
    monkeypatch.chdir(tmp_path / "run")
    run([*command[1:], "--out", str(tmp_path / "again")])
    assert json.loads((tmp_path / "again" / "result.json").read_text())["elbo"] == result["elbo"]
