"""Conversion of a result table to Markdown, CSV, LaTeX and an MLflow table."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from dcs.io import atomic_write_text

if TYPE_CHECKING:
    import pandas as pd

RowKind = Literal["measured", "paper"]

_PAPER_NOTE: Final = (
    "Rows marked 'paper' are the published metrics of schemes chosen by accuracy on development "
    "rows; uncorrected is called ICL there."
)

#: Which of the values of a column is the best, by the first word of its head.
_BEST: Final[dict[str, Any]] = {"Acc": "max", "COBias": "min"}

#: Prefixes that a spreadsheet interprets as a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultTable:
    """A result table: numbers for programs and text for display.

    Attributes
    ----------
    name : str
        Stem of the file names.
    title : str
        Caption.
    frame : pandas.DataFrame
        The numbers in tidy form, as fractions; exported to CSV and MLflow.
    text : pandas.DataFrame
        The displayed table: all values are text, columns have their display names.
    words : tuple of str
        Columns that hold text; the others hold numbers.
    kinds : tuple of {"measured", "paper"}
        Kind of each row; all rows are measured by default.
    about : str
        Explanation of the measured numbers.
    """

    name: str
    title: str
    frame: pd.DataFrame
    text: pd.DataFrame
    words: tuple[str, ...]
    kinds: tuple[RowKind, ...] = ()
    about: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """Column heads of the displayed table."""
        return tuple(self.text.columns)

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """Rows of the displayed table, one text per column."""
        return tuple(self.text.itertuples(index=False, name=None))

    @property
    def note(self) -> str:
        """Explanation of the table, including published rows."""
        return " ".join(filter(None, [self.about, _PAPER_NOTE if "paper" in self.kinds else ""]))

    def to_markdown(self) -> str:
        """Return the table in Markdown, including title and note."""
        note = f"\n{self.note}\n" if self.note else ""
        return f"**{self.title}**\n\n{to_markdown(self.text, words=self.words)}{note}"

    def to_csv(self) -> str:
        """Return the tidy numbers as CSV, with text escaped that spreadsheets run as formulas."""
        text: str = self.frame.map(_escape_formula).to_csv(index=False, lineterminator="\n")
        return text

    def to_latex(self) -> str:
        """Return the displayed table in LaTeX, for the package booktabs.

        The best accuracy and the least COBias of each model and number of shots are bold.
        """
        import pandas as pd

        bold = pd.DataFrame("", index=self.text.index, columns=self.text.columns)
        own = self.text[[kind != "paper" for kind in self.kinds or ("",) * len(self.text)]]
        names = [name for name in ("model", "shots") if name in own]
        same = own[names].agg(tuple, axis=1) if names else pd.Series("", index=own.index)
        for name in self.text.columns:
            if (best := _BEST.get(str(name).split()[0])) is not None:
                shown = own[name].str.extract(r"^([\d.]+)")[0].astype(float)
                reached = shown == shown.groupby(same).transform(best)
                bold.loc[reached.index[reached], name] = "textbf: --rwrap;"
        style = self.text.style.hide(axis="index").apply(lambda _: bold, axis=None)
        style.format(_mathematical, escape="latex").format_index(escape="latex", axis="columns")
        caption = re.sub(r"([&%$#_{}])", r"\\\1", f"{self.title}. {self.note}".strip())
        text: str = style.to_latex(
            hrules=True,
            column_format="".join("l" if n in self.words else "r" for n in self.text.columns),
            caption=_mathematical(caption),
            label=f"tab:{self.name}",
            position_float="centering",
        )
        return text

    def contents(self) -> dict[str, str]:
        """Return the table in every format by file name."""
        return {
            f"{self.name}.md": self.to_markdown(),
            f"{self.name}.csv": self.to_csv(),
            f"{self.name}.json": to_mlflow_json(self.frame),
            f"{self.name}.tex": self.to_latex(),
        }

    def write(self, folder: Path | str) -> None:
        """Write the table in every format to `folder`."""
        for name, text in self.contents().items():
            atomic_write_text(Path(folder) / name, text)


def filled(text: pd.DataFrame) -> pd.DataFrame:
    """Return a frame of text without the columns that are empty in all rows."""
    return text.loc[:, (text != "").any()] if len(text) else text


def points(gap: float, deviation: float = math.nan) -> str:
    """Format a difference of fractions in percentage points, with its sign; empty for NaN."""
    text = "" if math.isnan(gap) else f"{100 * gap:+.1f}".replace("-", "−")
    return text if math.isnan(deviation) else f"{text} ± {100 * deviation:.1f}"


def to_markdown(text: pd.DataFrame, *, words: Sequence[str]) -> str:
    """Return a frame of text as a Markdown table with lines of equal width.

    Parameters
    ----------
    text : pandas.DataFrame
        All values are text.
    words : sequence of str
        Columns aligned to the left; the others are aligned to the right.
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


def _mathematical(text: object) -> str:
    """Replace the signs that LaTeX has in formulas only."""
    return str(text).replace("±", r"$\pm$").replace("−", "$-$")


def to_mlflow_json(frame: pd.DataFrame) -> str:
    """Return a table in the format of `mlflow.load_table`.

    `MlflowClient.log_table` appends to an existing table; a file in the same format replaces it,
    so that a sweep recorded twice has each row once.
    """
    # Fifteen is the maximum that pandas supports.
    text: str = frame.to_json(orient="split", index=False, double_precision=15)
    return text


def _escape_formula(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
