"""One table, laid out once: as Markdown, LaTeX, CSV, and as an MLflow table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dcs._files import atomic_write_text
from tracking.tables import markdown_table, to_mlflow_json

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ResultTable"]

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

    def to_latex(self) -> str:
        """Return a ``table`` environment for a document that loads the booktabs package."""
        alignment = "".join("l" if self.is_text(i) else "r" for i in range(len(self.columns)))
        lines = [
            r"\begin{table}[ht]",
            r"\centering",
            rf"\begin{{tabular}}{{@{{}}{alignment}@{{}}}}",
            r"\toprule",
            _latex_row(self.columns),
            r"\midrule",
            *(_latex_row(row) for row in self.rows),
            r"\bottomrule",
            r"\end{tabular}",
            rf"\caption{{{_latex(f'{self.title}. {self.note}'.strip())}}}",
            rf"\label{{tab:{self.name}}}",
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"

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


def _latex(text: str) -> str:
    return re.sub(r"[\\&%$#_{}~^→×·−±]", lambda match: _LATEX[match.group()], text)


def _latex_row(cells: tuple[str, ...]) -> str:
    return " & ".join(_latex(cell) for cell in cells) + r" \\"
