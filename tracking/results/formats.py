"""A finished table in every form: Markdown, LaTeX, CSV, and as an MLflow table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from dcs.io import atomic_write_text

if TYPE_CHECKING:
    import pandas as pd

RowKind = Literal["measured", "paper", "difference"]
KINDS: Final[tuple[RowKind, ...]] = ("measured", "paper", "difference")

_PAPER_NOTE: Final = (
    "Rows marked 'paper' are the published figures, 'difference' is ours minus theirs, in points; "
    "uncorrected is called ICL there."
)
_DAGGER_NOTE: Final = "† The paper chose its schemes by accuracy on development rows, ours not."

#: A table of more columns is set to the width of the page.
_MAX_UNSCALED_COLUMNS = 8
#: What a spreadsheet takes for the beginning of a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "→": r"$\rightarrow$",
        "×": r"$\times$",
        "·": r"$\cdot$",
        "−": "$-$",
        "≤": r"$\leq$",
        "↑": r"$\uparrow$",
        "↓": r"$\downarrow$",
        "Δ": r"$\Delta$",
        "†": r"$\dagger$",
        "±": r"$\pm$",
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
        # The default font encoding of LaTeX prints other characters in their places.
        **{sign: f"${sign}$" for sign in "<>|"},
    }
)


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
    text : pandas.DataFrame
        The table for people, all text, under the heads that people see.
    words : tuple of str
        The columns that hold words; the others hold figures.
    kinds : tuple of {"measured", "paper", "difference"}
        What each row holds; all rows what was measured, if it is not given.
    sections : int
        A change in so many leading columns starts a new part of the table.
    about : str
        What has to be known to read what was measured.
    """

    name: str
    title: str
    frame: pd.DataFrame
    text: pd.DataFrame
    words: tuple[str, ...]
    kinds: tuple[RowKind, ...] = ()
    sections: int = 0
    about: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """Heads of the table for people."""
        return tuple(self.text.columns)

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """Its text, one entry per column."""
        return tuple(self.text.itertuples(index=False, name=None))

    @property
    def note(self) -> str:
        """What has to be known to read it."""
        marked = any("†" in text for row in self.rows for text in row)
        notes = [self.about]
        notes += [_PAPER_NOTE] if "difference" in self.kinds else []
        notes += [_DAGGER_NOTE] if marked else []
        return " ".join(filter(None, notes))

    def to_markdown(self) -> str:
        """Return the table in Markdown, title and note included."""
        note = f"\n{self.note}\n" if self.note else ""
        return f"**{self.title}**\n\n{to_markdown(self.text, words=self.words)}{note}"

    def to_latex(self) -> str:
        """Return a ``table`` environment for the packages booktabs and, if wide, graphicx."""
        style = self.text.style.hide(axis="index").format(_escape).format_index(_escape, axis=1)
        lines = style.to_latex(
            column_format="@{}" + "".join("rl"[name in self.words] for name in self.text) + "@{}",
            caption=_escape(f"{self.title}. {self.note}".strip()),
            label=f"tab:{self.name}",
            position="ht",
            position_float="centering",
            hrules=True,
        ).splitlines()
        sections = self.text.iloc[:, : self.sections]
        starts = (sections != sections.shift()).any(axis=1).to_numpy().nonzero()[0]
        body = lines.index(r"\midrule") + 1
        for start in reversed(starts[1:]):
            lines.insert(body + start, r"\midrule")
        latex = "\n".join(lines) + "\n"
        if self.text.shape[1] > _MAX_UNSCALED_COLUMNS:
            latex = latex.replace(
                r"\begin{tabular}", "\\resizebox{\\textwidth}{!}{%\n\\begin{tabular}"
            )
            latex = latex.replace(r"\end{tabular}", r"\end{tabular}}")
        return latex

    def to_csv(self) -> str:
        """Return the tidy numbers as CSV, in which a spreadsheet finds no formulas."""
        text: str = self.frame.map(_escape_formula).to_csv(index=False, lineterminator="\n")
        return text

    def contents(self) -> dict[str, str]:
        """Return every form of the table by file name."""
        return {
            f"{self.name}.md": self.to_markdown(),
            f"{self.name}.tex": self.to_latex(),
            f"{self.name}.csv": self.to_csv(),
            f"{self.name}.json": to_mlflow_json(self.frame),
        }

    def write(self, folder: Path | str) -> list[Path]:
        """Write every form of the table into `folder`, and return the files."""
        paths = []
        for name, text in self.contents().items():
            paths.append(Path(folder) / name)
            atomic_write_text(paths[-1], text)
        return paths


def filled(text: pd.DataFrame) -> pd.DataFrame:
    """Return a frame of text without the columns that are empty in all of its rows."""
    return text.loc[:, (text != "").any()] if len(text) else text


def difference(gap: float, deviation: float = math.nan, *, digits: int = 1) -> str:
    """Return a change with its sign, a true minus; nothing where it is not known."""
    text = "" if math.isnan(gap) else f"{gap:+.{digits}f}".replace("-", "−")
    return text if math.isnan(deviation) else f"{text} ± {deviation:.{digits}f}"


def points(gap: float, deviation: float = math.nan) -> str:
    """Return a `difference` of fractions in points."""
    return difference(100 * gap, 100 * deviation)


def to_markdown(text: pd.DataFrame, *, words: Sequence[str]) -> str:
    """Return a frame of text as a Markdown table with lines of equal width.

    Parameters
    ----------
    text : pandas.DataFrame
        All values are text.
    words : sequence of str
        The columns that are set to the left; those of figures are set to the right.
    """
    columns = []
    for name, column in text.items():
        cells = [str(cell).replace("|", "\\|").replace("\n", " ") for cell in (name, *column)]
        width = max(3, *map(len, cells))
        left = name in words
        cells = [cell.ljust(width) if left else cell.rjust(width) for cell in cells]
        rule = "-" * (width + 2) if left else "-" * (width + 1) + ":"
        columns.append([f" {cells[0]} ", rule, *(f" {cell} " for cell in cells[1:])])
    return "".join(f"|{'|'.join(row)}|\n" for row in zip(*columns, strict=True))


def to_mlflow_json(frame: pd.DataFrame) -> str:
    """Return a table in the form that `mlflow.load_table` reads.

    `MlflowClient.log_table` reads a table back and appends to it; a file of the same form
    replaces it instead, so that a sweep recorded again has each row once.
    """
    # Fifteen digits are the most that pandas writes.
    text: str = frame.to_json(orient="split", index=False, double_precision=15)
    return text


def _escape_formula(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _escape(text: object) -> str:
    return str(text).translate(_LATEX)
