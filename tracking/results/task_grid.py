"""Tables with a column per task: measured rows, the paper's below them, and the difference."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from statistics import fmean
from typing import Any

from dcs.evaluation.formatting import percent
from tracking.records import CellRecord
from tracking.results.frames import Estimate, notes_of, place, text
from tracking.results.paper import BIOMEDICAL, GENERAL, PaperResult, paper_task, task_title
from tracking.results.tables import MEASURE_COLUMNS, ResultTable, RowKind, difference, frame_of

__all__ = ["PAPER_NOTE", "Row", "averages_of", "task_grid", "tasks_of"]

PAPER_NOTE = (
    "Rows marked 'paper' are the published figures, 'difference' is ours minus theirs, in points."
)
_MEASURES = ("accuracy", "cobias")
_HEADS = {"accuracy": "Acc", "cobias": "COBias"}


@dataclass(frozen=True, slots=True)
class Row:
    """What a row of the table is about, besides model and shots.

    Attributes
    ----------
    values : tuple
        For programs: one per column that the rows differ by.
    titles : tuple of str
        For people.
    """

    values: tuple[Any, ...]
    titles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Figures:
    """What one row of the table says of one task, or of an average over tasks."""

    seeds: int
    accuracy: Estimate
    cobias: Estimate

    def of(self, measure: str) -> Estimate:
        return self.accuracy if measure == "accuracy" else self.cobias


def task_grid(
    cells: Sequence[CellRecord],
    columns: Sequence[str],
    *,
    by: Sequence[str],
    row_of: Callable[[CellRecord], Row],
    published: Callable[[Any, Any, Row, str], PaperResult | None] | None,
    name: str,
    title: str,
    note: str = "",
) -> ResultTable:
    """Lay out accuracy and COBias: a row per model, shots and `row_of`, a column per task.

    Parameters
    ----------
    cells : sequence of CellRecord
        In the order of the rows.
    columns : sequence of str
        Tasks, and ``average_all``, ``average_general``, ``average_biomedical``.
    by : sequence of str
        Names of what rows differ by.
    row_of : callable
        Gives the row of a cell.
    published : callable or None
        Gives the paper's figures for model, shots, row and column, or None.
    name, title, note : str
        As in `ResultTable`.
    """
    rows: list[tuple[str, ...]] = []
    kinds: list[RowKind] = []
    tidy: list[tuple[Any, ...]] = []
    shown: list[Estimate] = []
    for (model, shots), same_prompt in _grouped(cells, lambda c: place(c, "model", "shots")):
        for row, group in _grouped(same_prompt, row_of):
            figures = _figures(group, columns)
            head = (str(model), text(shots))
            rows.append((*head, *row.titles, *_row(figures, columns)))
            kinds.append("measured")
            paper = partial(published, model, shots, row) if published else None
            theirs = _published(paper, figures)
            if any(theirs.values()):
                *others, last = row.titles
                rows.append((*head, *others, f"{last}, paper", *_paper_row(theirs, columns)))
                below = (*head, *others, "difference")
                rows.append((*below, *_differences(figures, theirs, columns)))
                kinds += ["paper", "difference"]
            for task, values in figures.items():
                shown += [values.accuracy, values.cobias]
                own = theirs.get(task)
                tidy.append(
                    (
                        *(model, shots, *row.values, task, values.seeds),
                        *(value for m in _MEASURES for value in astuple(values.of(m))),
                        *(math.nan if own is None else getattr(own, m) for m in _MEASURES),
                    )
                )
    heads = [f"{_HEADS[m]} {_column_title(task)}" for m in _MEASURES for task in columns]
    names = ["model", "shots", *by, "task", "seeds", *MEASURE_COLUMNS]
    frame = frame_of(tidy, [*names, *(f"paper_{m}" for m in _MEASURES)])
    notes = [notes_of(shown), note]
    if "paper" in kinds:
        for measure in _MEASURES:
            frame[f"{measure}_difference"] = frame[f"{measure}_mean"] - frame[f"paper_{measure}"]
        notes.append(PAPER_NOTE)
    else:
        frame = frame.drop(columns=["paper_accuracy", "paper_cobias"])
    return ResultTable(
        name=name,
        title=title,
        frame=frame,
        columns=("model", "shots", *(label.replace("_", " ") for label in by), *heads),
        rows=tuple(rows),
        kinds=tuple(kinds),
        left=2 + len(by),
        sections=2,
        note=" ".join(filter(None, notes)),
    )


def tasks_of(cells: Iterable[CellRecord]) -> list[str]:
    """Return the tasks in the paper's order, those that it does not have after them."""
    names = list(dict.fromkeys(str(cell.identity.get("task")) for cell in cells))
    order = (*GENERAL, *BIOMEDICAL)

    def rank(name: str) -> int:
        known = paper_task(name)
        return len(order) if known is None else order.index(known)

    return sorted(names, key=rank)


def averages_of(tasks: Sequence[str]) -> list[str]:
    """Return the averages that say more than a single task does."""
    columns = ["average_all", "average_general", "average_biomedical"]
    return [c for c in columns if sum(_belongs(task, c) for task in tasks) > 1]


def _figures(group: Sequence[CellRecord], columns: Sequence[str]) -> dict[str, _Figures]:
    by_task = {
        task: _Figures(len(cells), *(Estimate.of(cells, f"test/{m}") for m in _MEASURES))
        for task, cells in _grouped(group, lambda cell: str(cell.identity.get("task")))
        if any("test/accuracy" in cell.metrics for cell in cells)
    }
    averages: dict[str, _Figures] = {}
    for column in columns:
        if column.startswith("average_"):
            members = [v for task, v in by_task.items() if _belongs(task, column)]
            # An average over other tasks than in the row above it would mislead.
            wanted = [c for c in columns if not c.startswith("average_") and _belongs(c, column)]
            if members and len(members) == len(wanted):
                means = (Estimate(fmean(v.of(m).mean for v in members)) for m in _MEASURES)
                averages[column] = _Figures(min(v.seeds for v in members), *means)
    return averages | by_task


def _published(
    paper: Callable[[str], PaperResult | None] | None, figures: Iterable[str]
) -> dict[str, PaperResult | None]:
    """Return what the paper has of the tasks and averages of a row; None where it has nothing."""
    tasks = list(figures)
    # An average over some of the tasks only is not the one that the paper prints.
    missing = {*GENERAL, *BIOMEDICAL} - set(map(paper_task, tasks))
    return {
        task: None
        if paper is None or (task.startswith("average_") and missing & set(_members(task)))
        else paper(task)
        for task in tasks
    }


def _row(figures: Mapping[str, _Figures], columns: Sequence[str]) -> list[str]:
    return [
        figures[task].of(m).marked() if task in figures else ""
        for m in _MEASURES
        for task in columns
    ]


def _paper_row(theirs: Mapping[str, PaperResult | None], columns: Sequence[str]) -> list[str]:
    return [
        "" if own is None else percent(getattr(own, m), getattr(own, f"{m}_std"))
        for m in _MEASURES
        for own in (theirs.get(task) for task in columns)
    ]


def _differences(
    figures: Mapping[str, _Figures],
    theirs: Mapping[str, PaperResult | None],
    columns: Sequence[str],
) -> list[str]:
    return [
        "" if own is None else difference(100 * figures[task].of(m).mean, 100 * getattr(own, m))
        for m in _MEASURES
        for task, own in ((task, theirs.get(task)) for task in columns)
    ]


def _members(average: str) -> tuple[str, ...]:
    return {"average_general": GENERAL, "average_biomedical": BIOMEDICAL}.get(
        average, (*GENERAL, *BIOMEDICAL)
    )


def _belongs(task: str, average: str) -> bool:
    return average == "average_all" or paper_task(task) in _members(average)


def _column_title(task: str) -> str:
    titles = {
        "average_all": "all",
        "average_general": "general",
        "average_biomedical": "biomedical",
    }
    return titles.get(task) or task_title(task)


def _grouped(
    cells: Iterable[CellRecord], key: Callable[[CellRecord], Any]
) -> list[tuple[Any, list[CellRecord]]]:
    groups: dict[Any, list[CellRecord]] = {}
    for cell in cells:
        groups.setdefault(key(cell), []).append(cell)
    return list(groups.items())
