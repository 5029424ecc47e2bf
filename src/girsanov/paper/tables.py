"""Tables of a reproduction beside the paper's: mean and sd over the folds, their difference, and an explanation."""

import csv
import dataclasses
import io
from collections.abc import Iterator
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Cell:
    """One entry of a table.

    Attributes:
        mean, sd: mean and population standard deviation over the folds that did not fail.
        folds: number of these folds.
        failed: number of folds that failed.
        paper: the printed mean and standard deviation, or None.
        note: an explanation, if the two differ.
    """

    mean: float
    sd: float
    folds: int
    failed: int
    paper: tuple[float, float] | None
    note: str = ""

    @property
    def apart(self) -> float | None:
        """Difference of the means in units of the paper's standard deviation."""
        return None if self.paper is None or self.folds == 0 else (self.mean - self.paper[0]) / self.paper[1]

    def __str__(self) -> str:
        failed = f" ({self.failed} failed)" if self.failed else ""
        return "–" + failed if self.folds == 0 else f"{self.mean:.3f} ± {self.sd:.3f}{failed}"

    @property
    def printed(self) -> str:
        """The printed value as text."""
        return "–" if self.paper is None else f"{self.paper[0]:.3f} ± {self.paper[1]:.3f}"


def make_cell(values: list[dict[str, Any] | None], metric: str, paper: Any) -> Cell:
    """Make a cell from the results of its folds; None is a fold whose task failed."""
    numbers = np.array([v[metric] for v in values if v is not None and v.get(metric) is not None], dtype=float)
    failed = len(values) - len(numbers)
    mean, sd = (float(numbers.mean()), float(numbers.std())) if len(numbers) else (float("nan"), float("nan"))
    return Cell(mean, sd, len(numbers), failed, None if paper is None else (float(paper[0]), float(paper[1])))


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A table of cells.

    Attributes:
        name: name of the table, such as "table1".
        title: its title, with the unit of its numbers.
        rows: the cells, by the label of the row and the name of the column.
        remarks: sentences on whole rows; those on single cells are in the cells.
    """

    name: str
    title: str
    rows: dict[str, dict[str, Cell]]
    remarks: tuple[str, ...] = ()

    def cells(self) -> Iterator[tuple[str, str, Cell]]:
        """Yield the label, the column and the cell of every entry."""
        for label, row in self.rows.items():
            for column, cell in row.items():
                yield label, column, cell

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(dict.fromkeys(column for _, column, _ in self.cells()))

    @property
    def notes(self) -> list[str]:
        """All remarks and explanations."""
        of_cells = [f"{label}, {column}: {cell.note}" for label, column, cell in self.cells() if cell.note]
        return [*self.remarks, *of_cells]

    def csv(self) -> str:
        """Return the table as CSV, with a line for each cell."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        names = ("row", "column", "mean", "sd", "paper_mean", "paper_sd", "difference_in_paper_sd", "folds", "failed")
        writer.writerow([*names, "note"])
        for label, column, cell in self.cells():
            own = [f"{v:.6f}" if np.isfinite(v) else "" for v in (cell.mean, cell.sd)]
            paper = ["", ""] if cell.paper is None else list(cell.paper)
            apart = "" if cell.apart is None else f"{cell.apart:.4f}"
            writer.writerow([label, column, *own, *paper, apart, cell.folds, cell.failed, cell.note])
        return text.getvalue()

    def markdown(self) -> str:
        """Return the table and its notes as Markdown."""
        lines = [f"# {self.title}", "", "Ours, then the paper's (difference in its standard deviations).", ""]
        lines += ["| | " + " | ".join(self.columns) + " |", "| --- |" + " ---: |" * len(self.columns)]
        for label, row in self.rows.items():
            texts = [_both(row[c]) if c in row else "" for c in self.columns]
            lines.append(f"| {label} | " + " | ".join(texts) + " |")
        return "\n".join([*lines, "", *(f"- {note}" for note in self.notes)]).rstrip() + "\n"

    def latex(self) -> str:
        """Return the table as a LaTeX tabular."""
        lines = [r"\begin{tabular}{l" + "r" * len(self.columns) + "}", r"\toprule"]
        lines += ["& " + " & ".join(map(_tex, self.columns)) + r" \\", r"\midrule"]
        for label, row in self.rows.items():
            own = [_tex(str(row[c])) if c in row else "" for c in self.columns]
            lines.append(f"{_tex(label)} & " + " & ".join(own) + r" \\")
            if any(c.paper is not None for c in row.values()):
                paper = [_tex(row[c].printed) if c in row else "" for c in self.columns]
                lines.append(r"\quad printed & " + " & ".join(paper) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _both(cell: Cell) -> str:
    apart = "" if cell.apart is None else f" ({cell.apart:+.2f})"
    return str(cell) if cell.paper is None else f"{cell}<br>{cell.printed}{apart}"


def _tex(text: str) -> str:
    for old, new in (("_", r"\_"), ("±", r"$\pm$"), ("Δ", r"$\Delta$"), ("–", "--"), ("š", r"\v{s}"), ("%", r"\%")):
        text = text.replace(old, new)
    return text
