"""One table, laid out once: as Markdown, LaTeX, CSV, and as an MLflow table."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dcs.evaluation.formatting import chance
from dcs.io import atomic_write_text
from tracking.records import CellRecord, TrialRecord
from tracking.results.frames import (
    P_VALUES,
    Axis,
    Estimate,
    axes_of,
    class_intervals,
    notes_of,
    setting,
)
from tracking.schema import flatten

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "ResultTable",
    "RowKind",
    "class_accuracy_table",
    "difference",
    "leaderboard",
    "leaderboard_markdown",
    "scheme_table",
    "to_markdown",
]


_GROUP = ("model", "task", "shots", "method")

_CELL = ("model", "task", "shots", "seed", "method")

_SETTING = "setting"

_MEASURES = ("accuracy", "cobias")

MEASURE_COLUMNS = tuple(
    f"{name}_{figure}" for name in _MEASURES for figure in ("mean", "std", "low", "high", "p")
)

LEADERBOARD_COLUMNS = (*_GROUP, _SETTING, "seeds", *MEASURE_COLUMNS)

CLASS_COLUMNS = (*_CELL, _SETTING, "class", "before", "after", "after_low", "after_high", "change")

CORRECTION_NUMBERS = ("value", "a", "b", "c")

CORRECTION_COLUMNS = ("class", "kind", *CORRECTION_NUMBERS, "name")

SCHEME_COLUMNS = (*_CELL, _SETTING, *CORRECTION_COLUMNS)


def leaderboard(records: Iterable[CellRecord]) -> pd.DataFrame:
    """Return accuracy and COBias on the test split per model, task, shots and method.

    Parameters
    ----------
    records : iterable of CellRecord
        Cells; failed ones and those without test metrics are left out.

    Returns
    -------
    pandas.DataFrame
        Columns ``model``, ``task``, ``shots``, ``method``, ``setting`` (what cells of a method
        have differently, in words; mostly nothing), ``seeds`` (number of cells),
        ``accuracy_mean``, ``accuracy_std``, ``accuracy_low``, ``accuracy_high``,
        ``accuracy_p``, and the same of ``cobias``; fractions, not percent. The standard
        deviation is the sample's (``n - 1``), NaN for one seed; the ends of the 95 % interval
        and the chance of no difference to ICL on the same rows are of one seed, NaN for
        several. Rows come in the order in which the groups first appear.
    """
    cells = list(records)
    axes = axes_of(cells)
    groups: dict[tuple[Any, ...], list[CellRecord]] = defaultdict(list)
    for record in cells:
        if record.finished and "test/accuracy" in record.metrics:
            place = (*(record.identity.get(name) for name in _GROUP), setting(record, axes))
            groups[place].append(record)
    # Methods in the order in which they came, but a task's rows together.
    order: dict[tuple[Any, ...], int] = {}
    for place in groups:
        order.setdefault(place[:3], len(order))
    rows = []
    for place in sorted(groups, key=lambda place: order[place[:3]]):
        figures = (astuple(Estimate.of(groups[place], f"test/{name}")) for name in _MEASURES)
        rows.append((*place, len(groups[place]), *chain.from_iterable(figures)))
    return frame_of(rows, LEADERBOARD_COLUMNS)


def class_accuracy_table(records: Iterable[CellRecord]) -> pd.DataFrame:
    """Return each class's test accuracy before and after correction, one row per cell and class.

    Parameters
    ----------
    records : iterable of CellRecord
        Cells.

    Returns
    -------
    pandas.DataFrame
        Columns ``model``, ``task``, ``shots``, ``seed``, ``method``, ``setting``, ``class``,
        ``before``, ``after``, ``after_low``, ``after_high`` (95 % interval), ``change``; NaN for
        a class without rows.
    """
    cells = list(records)
    axes = axes_of(cells)
    rows = []
    for record in cells:
        columns = record.class_accuracies
        figures = zip(
            columns.get("class", []),
            columns.get("before", []),
            class_intervals(record),
            strict=True,
        )
        for name, known, after in figures:
            before = math.nan if known is None else known
            interval = (after.low, after.high)
            change = after.mean - before
            rows.append((*_place(record, axes), name, before, after.mean, *interval, change))
    return frame_of(rows, CLASS_COLUMNS)


def scheme_table(records: Iterable[CellRecord]) -> pd.DataFrame:
    """Return the chosen corrections, one row per cell and class.

    Parameters
    ----------
    records : iterable of CellRecord
        Cells.

    Returns
    -------
    pandas.DataFrame
        Columns ``model``, ``task``, ``shots``, ``seed``, ``method``, ``setting``, ``class``,
        ``kind`` (``weight`` or ``membership``), ``value`` (of a weight), ``a``, ``b``, ``c`` and
        ``name`` (of a membership function).
    """
    cells = list(records)
    axes = axes_of(cells)
    rows = [
        (*_place(record, axes), *(correction.get(name) for name in CORRECTION_COLUMNS))
        for record in cells
        if record.scheme is not None
        for correction in record.scheme.get("corrections", [])
    ]
    frame = frame_of(rows, SCHEME_COLUMNS)
    return frame.astype(dict.fromkeys(CORRECTION_NUMBERS, "float64"))


def leaderboard_markdown(records: Iterable[CellRecord]) -> str:
    """Return the leaderboard in percent, as a Markdown table and a line that explains it.

    Several seeds have ``mean ± deviation``, one has ``figure [95 % interval]`` and p-values.

    Parameters
    ----------
    records : iterable of CellRecord
        Cells.

    Returns
    -------
    str
        The table; one line where no cell is finished.
    """
    frame = leaderboard(records)
    if frame.empty:
        return "No finished cells.\n"
    left = [*_GROUP, *([_SETTING] if frame[_SETTING].any() else []), "seeds"]
    tested = bool(frame["accuracy_p"].notna().any())
    heads = ["accuracy %", "COBias %"]
    if tested:
        heads = [heads[0], "p", heads[1], "p"]
    rows, shown = [], []
    for row in frame.to_dict("records"):
        cells = [str(row[name]) for name in left]
        for name in _MEASURES:
            figures = (row[column] for column in MEASURE_COLUMNS if column.startswith(name))
            estimate = Estimate(*figures)
            shown.append(estimate)
            cells += [estimate.percent(), *([chance(estimate.p)] if tested else [])]
        rows.append(cells)
    right = range(len(left) - 1, len(left) + len(heads))
    note = notes_of(shown, tested=P_VALUES)
    table = markdown_table((*left, *heads), rows, right=right)
    return f"{table}\n{note}\n" if note else table


def to_markdown(frame: pd.DataFrame, *, digits: int = 3) -> str:
    """Return any table as Markdown: floats with `digits` places, nothing for NaN and None.

    Parameters
    ----------
    frame : pandas.DataFrame
        The table.
    digits : int
        Places after the point.

    Returns
    -------
    str
        Lines of equal width.
    """
    names = [str(name) for name in frame.columns]
    rows = [
        [_text(value, digits) for value in row] for row in frame.itertuples(index=False, name=None)
    ]
    right = [i for i, kind in enumerate(frame.dtypes) if kind.kind in "iuf"]
    return markdown_table(names, rows, right=right)


def to_mlflow_json(frame: pd.DataFrame) -> str:
    """Return a table in the form that `mlflow.load_table` reads.

    `MlflowClient.log_table` reads a table back and appends to it; a file of the same form
    replaces it instead, so that a sweep recorded again has each row once.
    """
    return columns_json({str(name): frame[name].tolist() for name in frame.columns})


def columns_json(columns: Mapping[str, Sequence[Any]]) -> str:
    """Return columns of equal length in the form that `mlflow.load_table` reads."""
    rows = [[_json_value(value) for value in row] for row in zip(*columns.values(), strict=True)]
    return json.dumps({"columns": list(columns), "data": rows}, allow_nan=False)


def trial_columns(trials: Sequence[TrialRecord]) -> dict[str, list[Any]]:
    """Return the trials of a cell as columns: ``params.<name>`` and ``metrics.<name>`` too."""
    rows = [
        {
            "trial": trial.number,
            "state": trial.state,
            "value": trial.value,
            "seconds": trial.seconds,
            **flatten({"params": trial.params, "metrics": trial.metrics}),
        }
        for trial in trials
    ]
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _place(record: CellRecord, axes: Sequence[Axis]) -> tuple[Any, ...]:
    return (*(record.identity.get(name) for name in _CELL), setting(record, axes))


def frame_of(rows: Sequence[tuple[Any, ...]], columns: Iterable[str]) -> pd.DataFrame:
    """Return rows as a frame that has its columns also when it has no rows."""
    import pandas as pd

    return pd.DataFrame(rows, columns=list(columns))


def markdown_table(
    names: Sequence[str], rows: list[list[str]], *, right: Iterable[int] = ()
) -> str:
    """Return rows of text as an aligned Markdown table; columns `right` are figures."""
    cells = [
        [cell.replace("|", "\\|").replace("\n", " ") for cell in row]
        for row in [list(names), *rows]
    ]
    widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(names))]
    to_right = set(right)
    lines = [
        "| "
        + " | ".join(
            cell.rjust(width) if i in to_right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        + " |"
        for row in cells
    ]
    rule = "|".join(
        "-" * (width + 1) + ":" if i in to_right else "-" * (width + 2)
        for i, width in enumerate(widths)
    )
    lines.insert(1, f"|{rule}|")
    return "\n".join(lines) + "\n"


def _text(value: Any, digits: int) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)


def _json_value(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
