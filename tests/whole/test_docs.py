"""README and documentation: Python blocks and `girsanov` commands run and print what is stated; links lead somewhere.

The blocks of one file run in order, in one namespace and one empty folder. What a block prints is stated in the comment
on the line of the print, or in the comment lines right below it.
"""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import jax
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    info: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [Block(m[1].strip(), m[2], text[: m.start()].count("\n") + 2) for m in FENCE.finditer(text)]


def commands(text: str) -> list[list[str]]:
    """Arguments of every `girsanov …` line; other commands (make, pip) are for the reader."""
    lines = text.replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("girsanov ")]


def stated_output(text: str) -> list[str]:
    stated, below = [], False
    for line in text.splitlines():
        if re.match(r"\s*print\(", line):
            inline = re.search(r"\)\s+# (.*)$", line)
            stated += [inline[1]] if inline else []
            below = inline is None
        elif below and line.startswith("# "):
            stated.append(line[2:])
        else:
            below = False
    return stated


SLOW = (
    "baselines.md",
    "bound.md",
    "equations.md",
    "extending.md",
    "files.md",
    "inputs.md",
    "inside_jax.md",
    "learning.md",
    "methods.md",
    "models.md",
    "online.md",
    "panels.md",
    "pharmacokinetics.md",
    "pictures.md",
    "start.md",
    "trust.md",
)  # pages whose examples run long
RUN = [
    pytest.param(p, marks=pytest.mark.slow) if p.name in SLOW else p
    for p in PAGES
    if any(b.info.startswith("python") for b in blocks(p))
]


@pytest.fixture
def own_settings():
    """What a page sets in JAX ends with it."""
    wide = jax.config.jax_enable_x64
    yield
    jax.config.update("jax_enable_x64", wide)


@pytest.mark.parametrize("page", RUN, ids=str)
def test_blocks_run_and_print_what_they_say(page, tmp_path, monkeypatch, capsys, own_settings):
    import matplotlib.pyplot as plt

    from girsanov.cli import main

    plt.switch_backend("Agg")
    monkeypatch.chdir(tmp_path)
    namespace: dict = {"__name__": "__main__"}
    for block in blocks(page):
        if block.info == "python":
            code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
            exec(code, namespace)
            assert capsys.readouterr().out.splitlines() == stated_output(block.text), f"{page.name}, line {block.line}"
        elif block.info == "sh":
            for arguments in commands(block.text):
                with pytest.raises(SystemExit) as end:
                    main(arguments)
                assert end.value.code == 0, f"{page.name}: girsanov {shlex.join(arguments)}"
            capsys.readouterr()
    plt.close("all")


def test_only_blocks_that_need_a_file_of_the_user_are_left_out():
    known = {"python", "python no-run", "sh", "bibtex", ""}
    assert {b.info for p in PAGES for b in blocks(p)} <= known
    for page in PAGES:
        assert all("from_csv" in b.text or "load" in b.text for b in blocks(page) if b.info == "python no-run")


def anchors(page: Path) -> set[str]:
    """Names of a page's headings as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text(encoding="utf-8"))):
        if target.startswith(("https://", "http://")):
            continue
        name, _, anchor = target.partition("#")
        other = (page.parent / name).resolve() if name else page
        assert other.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(other), f"{page.name}: {target}"


def test_readme_states_its_commands_and_has_a_small_picture():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for command in ("make demo", "make test", "pip install"):
        assert command in text
    assert (ROOT / "docs/images/double_well.png").stat().st_size < 200_000


def test_readme_lists_the_commands_there_are():
    from girsanov.cli import app

    row = next(
        r for r in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if r.startswith("| command line")
    )
    named = {word.split()[-1] for word in re.findall(r"`([^`]*)`", row)}
    assert named == {c.callback.__name__ for c in app.registered_commands if c.callback is not None}
