"""The gallery and the tutorials run and come to the independent answers; the site builds without a warning."""

import importlib.util
import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from tolerances import TOLERANCES

ROOT = Path(__file__).resolve().parents[2]
LOCATED = importlib.util.spec_from_file_location("site_build", ROOT / "docs" / "site" / "build.py")
assert LOCATED is not None and LOCATED.loader is not None
build = importlib.util.module_from_spec(LOCATED)
LOCATED.loader.exec_module(build)

SECONDS = 60.0  # of the processor, from the start of the process: on a machine that does nothing else it is no longer

# Numbers that a script prints beside those of an independent calculation, and how close they have to be.
CLOSE = {
    "nile": {
        "variance of the noise": "same_maximum",
        "variance of a year's change": "same_maximum",
        "log evidence": "printed",
        "level in 1898": "same_maximum",
        "level in 1899": "same_maximum",
    },
    "co2": {
        "sd of a year's wandering, ppm": "same_maximum",
        "increase of the growth, ppm a year²": "same_maximum",
        "miss of the last five years, ppm": "same_maximum",
        "December 2001, ppm": "same_maximum",
    },
    "sleep": {
        "mean at the start, ms": "same_maximum",
        "mean slowing, ms a day": "same_maximum",
        "sd between people, start": "same_maximum",
        "sd between people, slowing": "same_maximum",
        "sd of a measurement": "same_maximum",
        "log evidence": "printed",
    },
    "gps": {"log evidence": "printed"},
    "ngrip": {"log evidence": "bound_near_evidence", "mean 38 000 years ago": "same_maximum"},
    "exchange": {"log evidence, bound and exact": "bound_near_evidence"},
    "coal": {"disasters a year, 1851 to 1885": "other_model", "disasters a year, 1895 to 1962": "other_model"},
    "lynx_hare": {name: "other_model" for name in ("birth", "eaten", "food", "death")},
}
IN_NATS = ("printed", "bound_near_evidence")
VERDICT = re.compile(r"^converged; (trust the bound|trust the corrected estimate|use particles): ", re.MULTILINE)


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    """Where scripts and notebooks leave their figures and output; the site is made of them."""
    return tmp_path_factory.mktemp("results")


def pairs(printed: str) -> dict[str, tuple[float, float]]:
    """Rows with a name and two numbers, ours first."""
    rows = re.findall(r"^(\S.*?)  +(-?[\d.e+-]+)  +(-?[\d.e+-]+)$", printed, re.MULTILINE)
    return {name: (float(ours), float(theirs)) for name, ours, theirs in rows}


@pytest.mark.slow
@pytest.mark.parametrize("script", build.SCRIPTS, ids=lambda p: p.stem)
def test_a_script_of_the_gallery_comes_to_the_independent_answer_in_time(script, results):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    printed = build.run_script(script, results / script.stem)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < SECONDS
    assert VERDICT.search(printed), printed
    assert [p.name for p in (results / script.stem).glob("*.png")] == [f"{script.stem}.png"]
    found = pairs(printed)
    for name, tolerance in CLOSE[script.stem].items():
        ours, theirs = found[name]
        scale = 1.0 if tolerance in IN_NATS else abs(theirs)
        assert abs(ours - theirs) <= TOLERANCES[tolerance] * scale, f"{name}: {ours}, but {theirs}"


@pytest.mark.slow
def test_the_changes_in_the_record_are_where_others_found_them(results):
    coal = pairs((results / "coal" / "output.txt").read_text())["first year of the lower rate"]
    assert all(1886 <= year <= 1896 for year in coal), coal
    nile = pairs((results / "nile" / "output.txt").read_text())
    assert (
        abs(nile["variance of the noise"][0] - 15099) < 1 and abs(nile["variance of a year's change"][0] - 1469.1) < 1
    )


@pytest.mark.slow
@pytest.mark.parametrize("notebook", build.NOTEBOOKS, ids=lambda p: p.stem)
def test_a_tutorial_runs(notebook, results):
    done = json.loads(build.run_notebook(notebook, results).read_text())
    code = [c for c in done["cells"] if c["cell_type"] == "code"]
    assert all(c["execution_count"] for c in code)
    assert any("image/png" in o.get("data", {}) for c in code for o in c["outputs"])


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_without_a_network(results, tmp_path):
    build.run_all(results, keep=True)  # what the tests above have left out, where only some of them were chosen
    out = tmp_path / "site"
    build.stage(tmp_path / "source", results)
    build.write_html(tmp_path / "source", out)
    pages = {p.relative_to(out).as_posix(): p.read_text(encoding="utf-8") for p in out.rglob("*.html")}
    for page in [p.stem for p in (ROOT / "docs").glob("*.md")] + ["readme", "changelog", "contributing", "search"]:
        assert f"{page}.html" in pages
    for script in build.SCRIPTS:
        assert f"{script.stem}.png" in pages[f"gallery/{script.stem}.html"]
    assert 'id="girsanov.Posterior.diagnose"' in pages["api/results.html"]
    assert "use particles" in pages["tutorials/trust_and_compare.html"]
    assert (out / "searchindex.js").stat().st_size > 50_000
    for name, text in pages.items():
        loaded = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?://[^"]+)"', text)
        assert not loaded, f"{name} loads {loaded}"


@pytest.mark.slow
def test_a_link_that_leads_nowhere_is_an_error(tmp_path):
    """So the strictness is at work."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "conf.py").write_text((ROOT / "docs" / "site" / "conf.py").read_text(encoding="utf-8"), encoding="utf-8")
    (source / "index.md").write_text("# Page\n\n[nowhere](absent.md#place)\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", str(source), str(tmp_path / "out")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0 and "absent.md" in done.stderr


def test_notebooks_are_kept_without_outputs():
    assert len(build.NOTEBOOKS) == 2
    for notebook in build.NOTEBOOKS:
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
            assert not cell.get("outputs") and cell.get("execution_count") is None, notebook.name


def test_every_script_of_the_gallery_has_an_independent_answer():
    assert {script.stem for script in build.SCRIPTS} == set(CLOSE)
    assert len(CLOSE) >= 8
