"""The page that shows the paper and the reproduction side by side, as one HTML file without external parts."""

import html
from pathlib import Path

from girsanov.page.parts import Html, document, paragraph, picture, section, table, write
from girsanov.paper.tables import Cell, Comparison

_TITLE = "Variational Gaussian Process Diffusion Processes: paper and reproduction"


def write_page(folder: Path, comparisons: list[Comparison], figures: list[tuple[str, Path]], facts: list[str]) -> Path:
    """Write `index.html` and return its path.

    Args:
        folder: the folder to write to.
        comparisons: the tables.
        figures: caption and PNG file of each figure.
        facts: lines on the data and the settings, which come first.
    """
    body: list[str] = [paragraph(line) for line in facts[1:]]
    body += [_table(c) for c in comparisons]
    if figures:
        body.append(section("Figures", *(picture(caption, path) for caption, path in figures)))
    page = document(_TITLE, facts[0] if facts else "", body, charts=False, wide=True)
    return write(folder / "index.html", page)


def _table(comparison: Comparison) -> Html:
    rows, classes = [], {}
    for i, (label, row) in enumerate(comparison.rows.items()):
        cells = [row.get(column) for column in comparison.columns]
        rows.append([label, *("" if cell is None else _cell(cell) for cell in cells)])
        classes |= {(i, j): _kind(cell) for j, cell in enumerate(cells, 1) if cell is not None}
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in comparison.notes)
    return section(
        comparison.title,
        table(["", *comparison.columns], rows, "compact", classes),
        paragraph("Below each value: the printed one and the difference in its standard deviations.", "paper"),
        f"<ul>{notes}</ul>" if notes else "",
    )


def _kind(cell: Cell) -> str:
    return "failed" if cell.failed else "far" if cell.note else ""


def _cell(cell: Cell) -> Html:
    below = ""
    if cell.paper is not None:
        apart = "" if cell.apart is None else f" ({cell.apart:+.2f} sd)"
        below = f'<br><span class="paper">{html.escape(cell.printed + apart)}</span>'
    return Html(html.escape(str(cell)) + below)
