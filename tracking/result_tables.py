"""One table, laid out once: as Markdown, LaTeX, CSV, and as an MLflow table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dcs._files import atomic_write_text
from tracking.tables import markdown_table, to_mlflow_json

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ResultTable", "RowKind", "difference"]

RowKind = Literal["measured", "paper", "difference"]

#: A table of more columns is set to the width of the page.
_WIDE = 8

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "→": r"$\rightarrow$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "−": "$-$",
    "±": r"$\pm$",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultTable:
    """A finished table: numbers for programs, text for people.

    Attributes
    ----------
    name : str
        Stem of its files.
    title : str
        Its caption.
    frame : pandas.DataFrame
        The numbers, tidy, fractions and not percent; what CSV and MLflow get.
    columns : tuple of str
        Heads of the table for people.
    rows : tuple of tuple of str
        Its text, one entry per column.
    left : int
        So many leading columns hold names, the others figures.
    texts : tuple of int
        Columns after those that hold text too.
    kinds : tuple of {"measured", "paper", "difference"}
        What each row holds; all are measured if empty.
    sections : int
        A change in so many leading columns starts a new part of the table.
    note : str
        What has to be known to read it.
    """

    name: str
    title: str
    frame: pd.DataFrame
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int
    texts: tuple[int, ...] = ()
    kinds: tuple[RowKind, ...] = ()
    sections: int = 0
    note: str = ""

    def is_text(self, column: int) -> bool:
        """Whether a column holds text, and not figures."""
        return column < self.left or column in self.texts

    def to_markdown(self) -> str:
        """Return the table in Markdown, title and note included."""
        right = [i for i in range(len(self.columns)) if not self.is_text(i)]
        table = markdown_table(self.columns, [list(row) for row in self.rows], right=right)
        note = f"\n{self.note}\n" if self.note else ""
        return f"**{self.title}**\n\n{table}{note}"

    def kind(self, row: int) -> RowKind:
        """Return what a row holds."""
        return self.kinds[row] if self.kinds else "measured"

    def to_latex(self) -> str:
        """Return a ``table`` environment for the packages booktabs and, if wide, graphicx."""
        alignment = "".join("l" if self.is_text(i) else "r" for i in range(len(self.columns)))
        wide = len(self.columns) > _WIDE
        lines = [
            r"\begin{table}[ht]",
            r"\centering",
            *([r"\resizebox{\textwidth}{!}{%"] if wide else []),
            rf"\begin{{tabular}}{{@{{}}{alignment}@{{}}}}",
            r"\toprule",
            _latex_row(self.columns),
            r"\midrule",
            *self._latex_body(),
            r"\bottomrule",
            r"\end{tabular}" + ("}" if wide else ""),
            rf"\caption{{{_latex(f'{self.title}. {self.note}'.strip())}}}",
            rf"\label{{tab:{self.name}}}",
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"

    def _latex_body(self) -> list[str]:
        lines: list[str] = []
        previous: tuple[str, ...] | None = None
        for row in self.rows:
            section = row[: self.sections]
            if previous is not None and section != previous:
                lines.append(r"\midrule")
            lines.append(_latex_row(row))
            previous = section
        return lines

    def to_csv(self) -> str:
        """Return the tidy numbers as CSV."""
        text: str = self.frame.to_csv(index=False, lineterminator="\n")
        return text

    def to_mlflow_json(self) -> str:
        """Return the tidy numbers in the form that `mlflow.load_table` reads."""
        return to_mlflow_json(self.frame)

    def contents(self) -> dict[str, str]:
        """Return every form of the table by file name."""
        return {
            f"{self.name}.md": self.to_markdown(),
            f"{self.name}.tex": self.to_latex(),
            f"{self.name}.csv": self.to_csv(),
            f"{self.name}.json": self.to_mlflow_json(),
        }

    def write(self, folder: Path | str) -> list[Path]:
        """Write every form of the table into `folder`, and return the files."""
        paths = []
        for name, text in self.contents().items():
            paths.append(Path(folder) / name)
            atomic_write_text(paths[-1], text)
        return paths


def difference(ours: float, theirs: float, *, digits: int = 1) -> str:
    """Return ours minus theirs with its sign, a true minus."""
    return f"{ours - theirs:+.{digits}f}".replace("-", "−")


def _latex(text: str) -> str:
    return re.sub(r"[\\&%$#_{}~^→×·−±]", lambda match: _LATEX[match.group()], text)


def _latex_row(cells: tuple[str, ...]) -> str:
    return " & ".join(_latex(cell) for cell in cells) + r" \\"
