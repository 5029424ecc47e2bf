"""The page that shows the paper and the reproduction side by side, as one HTML file without external parts."""

import base64
import html
from pathlib import Path

from girsanov.paper.tables import Cell, Comparison

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid #ddd; padding: .3rem .7rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.paper { color: #777; font-size: 85%; } .far { background: #fdf0d8; } .failed { background: #fbdcdc; }
figure { margin: 1.5rem 0; } img { max-width: 100%; } figcaption { color: #555; font-size: 90%; }
"""


def write_page(folder: Path, comparisons: list[Comparison], figures: list[tuple[str, Path]], facts: list[str]) -> Path:
    """Write `index.html` and return its path.

    Args:
        folder: the folder to write to.
        comparisons: the tables.
        figures: caption and PNG file of each figure.
        facts: lines on the data and the settings, which come first.
    """
    parts = [f"<p>{html.escape(line)}</p>" for line in facts]
    parts += [_table(c) for c in comparisons]
    for caption, path in figures:
        image = base64.b64encode(path.read_bytes()).decode("ascii")
        text = html.escape(caption)
        source = f"data:image/png;base64,{image}"
        parts.append(f'<figure><img alt="{text}" src="{source}"><figcaption>{text}</figcaption></figure>')
    body = "\n".join(parts)
    path = folder / "index.html"
    path.write_text(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Reproduction</title><style>{_STYLE}</style>'
        "</head><body><h1>Variational Gaussian Process Diffusion Processes: paper and reproduction</h1>\n"
        f"{body}\n</body></html>\n",
        encoding="utf-8",
    )
    return path


def _table(comparison: Comparison) -> str:
    head = "".join(f"<th>{html.escape(c)}</th>" for c in comparison.columns)
    rows = []
    for label, row in comparison.rows.items():
        cells = "".join(_cell(row[c]) if c in row else "<td></td>" for c in comparison.columns)
        rows.append(f"<tr><td>{html.escape(label)}</td>{cells}</tr>")
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in comparison.notes)
    return (
        f"<h2>{html.escape(comparison.title)}</h2><table><tr><th></th>{head}</tr>{''.join(rows)}</table>"
        '<p class="paper">Below each value: the printed one and the difference in its standard deviations.</p>'
        + (f"<ul>{notes}</ul>" if notes else "")
    )


def _cell(cell: Cell) -> str:
    kind = "failed" if cell.failed else "far" if cell.note else ""
    below = ""
    if cell.paper is not None:
        apart = "" if cell.apart is None else f" ({cell.apart:+.2f} sd)"
        below = f'<br><span class="paper">{html.escape(cell.printed + apart)}</span>'
    return f'<td class="{kind}">{html.escape(str(cell))}{below}</td>'
