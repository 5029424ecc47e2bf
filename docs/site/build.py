"""Build the documentation site: `make docs`, or `python docs/site/build.py --out out/site`.

The pages of `docs` are copied with links that fit the site; the scripts of the gallery and the notebooks run, and their
figures and output become pages; the API comes from docstrings. Then Sphinx writes HTML, and any warning is an error.
Nothing needs the network.
"""

import argparse
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
GALLERY = ROOT / "examples" / "gallery"
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
SCRIPTS = sorted(p for p in GALLERY.glob("*.py") if p.stem != "common")
PATIENCE = 1800.0  # seconds until a script is given up, on a machine that has much else to do
_TITLE = re.compile(r'^"""# (.*)$', re.MULTILINE)


def run_script(script: Path, folder: Path) -> str:
    """Run a script of the gallery, keep its figures and what it prints in `folder`, and return the latter."""
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, str(script), "--out", str(folder)],
        capture_output=True, text=True, timeout=PATIENCE, cwd=folder, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{script.name} failed:\n{done.stderr}")
    (folder / "output.txt").write_text(done.stdout, encoding="utf-8")
    return done.stdout


def run_notebook(notebook: Path, folder: Path) -> Path:
    """Execute a notebook into `folder`; a cell that fails raises an error that shows it."""
    import nbformat
    from nbclient import NotebookClient

    folder.mkdir(parents=True, exist_ok=True)
    book = nbformat.read(notebook, as_version=4)
    NotebookClient(
        book, timeout=PATIENCE, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    nbformat.write(book, folder / notebook.name)
    return folder / notebook.name


def run_all(results: Path, keep: bool) -> None:
    """Run scripts and notebooks into `results`; with `keep`, only those that have changed since they ran."""

    def fresh(source: Path, result: Path) -> bool:
        return keep and result.exists() and result.stat().st_mtime > source.stat().st_mtime

    for script in SCRIPTS:
        if not fresh(script, results / script.stem / "output.txt"):
            begun = time.perf_counter()
            run_script(script, results / script.stem)
            print(f"{script.name}: {time.perf_counter() - begun:.0f} s", flush=True)
    for notebook in NOTEBOOKS:
        if not fresh(notebook, results / notebook.name):
            print(notebook.name, flush=True)
            run_notebook(notebook, results)


def relinked(text: str) -> str:
    """Return a page with links as they are on the site, where all pages of `docs` lie beside each other."""
    text = text.replace("](docs/", "](").replace("](../", "](")
    text = re.sub(r"\]\(README\.md", "](readme.md", text)
    text = re.sub(r"\]\(CONTRIBUTING\.md", "](contributing.md", text)
    text = re.sub(r"\]\(CHANGELOG\.md", "](changelog.md", text)
    text = re.sub(r"\]\(examples/gallery/(\w+)\.py\)", r"](gallery/\1.md)", text)
    text = text.replace("](examples/gallery)", "](gallery/index.md)")
    text = re.sub(r"\[([^\]]*)\]\((?:LICENSE|CITATION\.cff|examples[^)]*)\)", r"\1", text)
    return re.sub(r"```python no-run", "```python", text)


def gallery_page(script: Path, results: Path) -> str:
    """Return the page of a script: its text, what it printed, its figures, its source."""
    docstring, _, code = script.read_text(encoding="utf-8")[3:].partition('"""\n')
    figures = "\n\n".join(f"![{p.stem}]({p.name})" for p in sorted((results / script.stem).glob("*.png")))
    printed = (results / script.stem / "output.txt").read_text(encoding="utf-8")
    return (
        f"{docstring.strip()}\n\n{figures}\n\nIt prints:\n\n```text\n{printed.strip()}\n```\n\n"
        f"The script, `examples/gallery/{script.name}`; [`common.py`](common.md) has what all of them share.\n\n"
        f"```python\n{code.strip()}\n```\n"
    )


def stage_gallery(source: Path, results: Path) -> None:
    """Write the pages of the gallery and their overview."""
    folder = source / "gallery"
    folder.mkdir()
    rows = []
    for script in SCRIPTS:
        (folder / f"{script.stem}.md").write_text(gallery_page(script, results), encoding="utf-8")
        figures = sorted((results / script.stem).glob("*.png"))
        for figure in figures:
            shutil.copy(figure, folder / figure.name)
        title = _TITLE.search(script.read_text(encoding="utf-8"))
        assert title is not None, f"{script.name} has no title"
        rows.append(f"## [{title[1]}]({script.stem}.md)\n\n![{title[1]}]({figures[0].name})\n")
    shared = (GALLERY / "common.py").read_text(encoding="utf-8")
    (folder / "common.md").write_text(
        f"# What the scripts share\n\n```python\n{shared.strip()}\n```\n", encoding="utf-8"
    )
    data = (GALLERY / "data" / "README.md").read_text(encoding="utf-8")
    (folder / "data.md").write_text(data, encoding="utf-8")
    listed = "\n".join([s.stem for s in SCRIPTS] + ["common", "data"])
    introduction = (HERE / "gallery.md").read_text(encoding="utf-8")
    toc = f"```{{toctree}}\n:hidden:\n\n{listed}\n```\n"
    (folder / "index.md").write_text("\n".join([introduction, *rows, toc]), encoding="utf-8")


def start_page() -> str:
    """Return the start page; a page of `docs` that none of its lists names comes to the end of "Use"."""
    text = (HERE / "index.md").read_text(encoding="utf-8")
    new = [p.stem for p in sorted((ROOT / "docs").glob("*.md")) if not re.search(rf"^{p.stem}$", text, re.MULTILINE)]
    before, use, after = text.partition(":caption: Use\n")
    pages, fence, rest = after.partition("```")
    return before + use + pages + "".join(f"{name}\n" for name in new) + fence + rest


def stage(source: Path, results: Path) -> None:
    """Write everything that Sphinx reads into the folder `source`."""
    sys.path.insert(0, str(HERE))
    import api

    shutil.rmtree(source, ignore_errors=True)
    (source / "api").mkdir(parents=True)
    for page in sorted((ROOT / "docs").glob("*.md")):
        (source / page.name).write_text(relinked(page.read_text(encoding="utf-8")), encoding="utf-8")
    for name in ("README", "CONTRIBUTING", "CHANGELOG"):
        text = relinked((ROOT / f"{name}.md").read_text(encoding="utf-8"))
        (source / f"{name.lower()}.md").write_text(text, encoding="utf-8")
    shutil.copytree(ROOT / "docs" / "images", source / "images")
    shutil.copy(HERE / "conf.py", source / "conf.py")
    (source / "index.md").write_text(start_page(), encoding="utf-8")
    for name, text in api.pages().items():
        (source / "api" / f"{name}.rst").write_text(text, encoding="utf-8")
    (source / "tutorials").mkdir()
    for notebook in NOTEBOOKS:
        shutil.copy(results / notebook.name, source / "tutorials" / notebook.name)
    stage_gallery(source, results)


def write_html(source: Path, out: Path) -> None:
    """Run Sphinx; a warning is an error, but all of them are shown."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-E", "-b", "html", str(source), str(out)]
    if subprocess.run(command, check=False).returncode:
        raise SystemExit(f"Sphinx has warnings or errors, see above; the pages are in {source}")


def main() -> None:
    """Run, stage and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "site", help="folder of the site")
    parser.add_argument(
        "--results", type=Path, default=ROOT / "out" / "gallery", help="folder of figures and notebooks"
    )
    parser.add_argument("--keep", action="store_true", help="run only the scripts and notebooks that have changed")
    options = parser.parse_args()
    run_all(options.results, options.keep)
    source = options.out.parent / f"{options.out.name}-source"
    stage(source, options.results)
    write_html(source, options.out)
    print(f"the site is {options.out / 'index.html'}")


if __name__ == "__main__":
    main()
