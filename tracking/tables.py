"""Tables made from cell records: pure functions, used by the console and by MLflow alike."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from itertools import chain
from typing import TYPE_CHECKING, Any

from dcs._shown import chance
from tracking._settings import Axis, axes_of, setting
from tracking.estimates import P_VALUES, Estimate, class_intervals, notes_of
from tracking.records import CellRecord, TrialRecord
from tracking.schema import flatten

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "class_accuracy_table",
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
