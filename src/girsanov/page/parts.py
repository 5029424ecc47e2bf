"""Parts of a page as HTML. Texts are escaped here, and nowhere else: a function takes text, unless it says HTML."""

import base64
import functools
import gzip
import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from girsanov._core.extras import check_extra

_DIGITS = 6  # of the numbers of a chart


class Html(str):
    """HTML that is finished: a function that takes text takes it as it is."""


class Chart(NamedTuple):
    """A chart: its traces and its layout, as plotly.js takes them, and what it shows."""

    data: list[dict[str, Any]]
    layout: dict[str, Any]
    caption: str


def escaped(value: Any) -> Html:
    """Return a value as HTML text."""
    return value if isinstance(value, Html) else Html(html.escape(str(value)))


def paragraph(text: Any, kind: str = "") -> Html:
    """Return a paragraph."""
    return Html(f"<p{_of(kind)}>{escaped(text)}</p>")


def missing(text: str) -> Html:
    """Return a sentence on a piece that is not there."""
    return paragraph(text, "missing")


def code(text: str) -> Html:
    """Return lines of code."""
    return Html(f"<pre><code>{html.escape(text)}</code></pre>")


def section(title: str, *parts: str) -> Html:
    """Return a section of finished HTML parts."""
    anchor = "".join(c if c.isalnum() else "-" for c in title.lower())
    return Html(f'<section id="{anchor}"><h2>{html.escape(title)}</h2>\n' + "\n".join(parts) + "</section>")


def verdict(kind: str, title: str, sentences: Sequence[str]) -> Html:
    """Return a verdict of the kind "good", "warn" or "bad"."""
    below = "".join(paragraph(s) for s in sentences if s)
    return Html(f'<div class="verdict {kind}"><strong>{html.escape(title)}</strong>{below}</div>')


def facts(values: Mapping[str, Any]) -> Html:
    """Return a few numbers with their names."""
    items = "".join(f"<li><b>{escaped(v)}</b><span>{html.escape(k)}</span></li>" for k, v in values.items())
    return Html(f'<ul class="facts">{items}</ul>')


def table(head: Sequence[Any], rows: Sequence[Sequence[Any]], kind: str = "", classes: Any = None) -> Html:
    """Return a table, in a box that scrolls by itself where it is too wide for the screen.

    Args:
        head: the first row; empty for none.
        rows: the others.
        kind: class of the table: "texts" aligns all cells to the left, "compact" is small.
        classes: by (row, column), classes of single cells.
    """
    top = "".join(f"<th>{escaped(h)}</th>" for h in head)
    body, kinds = "", classes or {}
    for i, row in enumerate(rows):
        cells = (f"<td{_of(kinds.get((i, j), ''))}>{escaped(c)}</td>" for j, c in enumerate(row))
        body += f"<tr>{''.join(cells)}</tr>"
    first = f"<thead><tr>{top}</tr></thead>" if head else ""
    return Html(f'<div class="scroll"><table{_of(kind)}>{first}<tbody>{body}</tbody></table></div>')


def chart(shown: Chart) -> Html:
    """Return a chart with its caption."""
    described = embedded({"data": shown.data, "layout": shown.layout})
    caption, height = html.escape(shown.caption), int(shown.layout["height"])
    return Html(
        f'<figure><div class="chart" role="img" aria-label="{caption}" style="height:{height}px"></div>'
        f'<script type="application/json">{described}</script><figcaption>{caption}</figcaption></figure>'
    )


def picture(caption: str, path: Path) -> Html:
    """Return a PNG file as part of the page."""
    image, text = base64.b64encode(path.read_bytes()).decode("ascii"), html.escape(caption)
    source = f"data:image/png;base64,{image}"
    return Html(f'<figure><img alt="{text}" src="{source}"><figcaption>{text}</figcaption></figure>')


def embedded(value: Any) -> str:
    """Return a value as JSON that cannot end the script element around it."""
    text = json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e").replace("\u2028", "\\u2028")


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: numbers with a few digits, dates as text, and None for what is not finite."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.datetime64):
        return [str(v) for v in value.astype("datetime64[ms]")]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if np.isfinite(value) else None
    return value


def document(title: str, below: str, body: Sequence[str], *, charts: bool, wide: bool = False) -> str:
    """Return a page that needs no other file.

    Args:
        title: the title.
        below: a line under it.
        body: the sections, as HTML.
        charts: whether the page has charts; their script is then part of it.
        wide: whether the page has wide tables.
    """
    assets = files("girsanov.page") / "assets"
    style, script = ((assets / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    packed = f'<script type="application/octet-stream" id="charts">{_packed_script()}</script>\n' if charts else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">\n'
        f"<title>{html.escape(title)}</title>"
        f"<style>{style}</style></head>\n<body{_of('wide' if wide else '')}>\n"
        f'<header><div><h1>{html.escape(title)}</h1><p class="soft">{escaped(below)}</p></div>'
        '<button id="theme" type="button">Dark</button></header>\n'
        "<main>\n" + "\n".join(body) + f"\n</main>\n{packed}<script>{script}</script></body></html>\n"
    )


@functools.cache
def _packed_script() -> str:
    """Return the script of plotly.js, compressed."""
    check_extra("plotly", "a report page")
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode("utf-8"), 9, mtime=0)).decode("ascii")


def write(path: Path, text: str) -> Path:
    """Write a page in one step, so that there is never half of one; return its path."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
    return path


def _of(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
