"""The paper's tables from cell records, with its own numbers beside ours where both exist."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from tracking import paper
from tracking._readings import (
    finished_cells,
    mean_and_deviation,
    method_title,
    objective_name,
    other_axes,
    percent,
    place,
)
from tracking.paper import BIOMEDICAL, GENERAL, PaperResult, paper_task, task_title
from tracking.records import CellRecord
from tracking.result_tables import ResultTable

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ablation_table", "main_results"]

_MEASURES = ("accuracy", "cobias")
_HEADS = {"accuracy": "Acc", "cobias": "COBias"}
_PAPER_NOTE = (
    "Rows marked 'paper' are the published figures, 'difference' is ours minus theirs, in points."
)


def main_results(records: Iterable[CellRecord], *, paper_too: bool = True) -> ResultTable:
    """Return accuracy and COBias per task with averages (paper, main results).

    Parameters
    ----------
    records : iterable of CellRecord
        Cells of any models, tasks, shots, methods and seeds; failed ones are left out, and so
        are those of an ablation.
    paper_too : bool
        Add the paper's figures and the differences for the cells that exist in both.

    Returns
    -------
    ResultTable
        A row per model, shots and method (and any other setting in which cells differ); in
        percent, mean and standard deviation over seeds.
        An average is the mean of task means, over the tasks that there are.
    """
    cells = [cell for cell in finished_cells(records) if objective_name(cell) == "full"]
    tasks = _tasks(cells)
    averages = _averages(tasks)
    axes = other_axes(cells)

    def row_of(cell: CellRecord) -> str:
        settings = [f"{name} {cell.identity.get(name)}" for name in axes]
        return ", ".join([str(cell.identity.get("method")), *settings])

    def row_title(row: str) -> str:
        method, _, settings = row.partition(", ")
        return ", ".join(filter(None, (method_title(method), settings)))

    return _grid(
        cells,
        averages + tasks,
        by="method",
        row_of=row_of,
        row_title=row_title,
        published=(
            lambda model, shots, method, task: paper.paper_result(
                model=model, shots=shots, method=method, task=task
            )
        )
        if paper_too
        else None,
        name="main_results",
        title="Main results: accuracy and COBias on the test rows, %",
        note="Mean ± standard deviation over seeds.",
    )


def ablation_table(records: Iterable[CellRecord], *, paper_too: bool = True) -> ResultTable:
    """Return accuracy and COBias of DCS by the terms of its objective (paper, ablations).

    The objective of a cell is ``objective`` in its identity: a name, or the weights
    ``error_weight``, ``beta`` and ``tau``; without one it is the full objective.
    """
    cells = [cell for cell in finished_cells(records) if cell.identity.get("method") == "dcs"]
    names = list(dict.fromkeys(objective_name(cell) for cell in cells))
    names.sort(key=lambda name: name != "full")
    prompts = list(dict.fromkeys(place(cell, "model", "shots") for cell in cells))
    cells.sort(
        key=lambda c: (prompts.index(place(c, "model", "shots")), names.index(objective_name(c)))
    )
    return _grid(
        cells,
        _tasks(cells),
        by="objective",
        row_of=objective_name,
        row_title=_objective_title,
        published=(
            lambda model, shots, objective, task: paper.paper_ablation(
                model=model, shots=shots, objective=objective, task=task
            )
        )
        if paper_too
        else None,
        name="objective_ablation",
        title="Ablation of the objective: DCS on the test rows, %",
        note="Mean ± standard deviation over seeds.",
    )


def _grid(
    cells: Sequence[CellRecord],
    columns: Sequence[str],
    *,
    by: str,
    row_of: Callable[[CellRecord], str],
    row_title: Callable[[str], str],
    published: Callable[[Any, Any, str, str], PaperResult | None] | None,
    name: str,
    title: str,
    note: str,
) -> ResultTable:
    rows: list[tuple[str, ...]] = []
    tidy: list[tuple[Any, ...]] = []
    any_published = False
    for (model, shots), same_prompt in _grouped(cells, lambda c: place(c, "model", "shots")):
        for row, group in _grouped(same_prompt, row_of):
            figures = _figures(group, columns)
            head = (str(model), _text(shots))
            entries = _row(figures, columns)
            rows.append((*head, row_title(row), *entries))
            theirs: dict[str, PaperResult | None] = {
                task: published(model, shots, row, task) if published else None
                for task in columns
                if task in figures
            }
            # An average over some of the tasks only is not the one that the paper prints.
            missing = [t for t in (*GENERAL, *BIOMEDICAL) if t not in map(paper_task, figures)]
            for task in theirs:
                if task.startswith("average_") and set(missing) & set(_members(task)):
                    theirs[task] = None
            if any(theirs.values()):
                any_published = True
                rows.append((*head, f"{row_title(row)}, paper", *_paper_row(theirs, columns)))
                rows.append((*head, "difference", *_differences(figures, theirs, columns)))
            for task, values in figures.items():
                own = theirs.get(task)
                tidy.append(
                    (
                        *(model, shots, row, task, values["seeds"]),
                        *(values[f"{m}_{kind}"] for m in _MEASURES for kind in ("mean", "std")),
                        *(math.nan if own is None else getattr(own, m) for m in _MEASURES),
                    )
                )
    heads = [f"{_HEADS[m]} {_column_title(task)}" for m in _MEASURES for task in columns]
    stats = [f"{m}_{kind}" for m in _MEASURES for kind in ("mean", "std")]
    names = ["model", "shots", by, "task", "seeds", *stats, "paper_accuracy", "paper_cobias"]
    frame = _frame(tidy, names)
    if any_published:
        for measure in _MEASURES:
            frame[f"{measure}_difference"] = frame[f"{measure}_mean"] - frame[f"paper_{measure}"]
        note = f"{note} {_PAPER_NOTE}"
    else:
        frame = frame.drop(columns=["paper_accuracy", "paper_cobias"])
    return ResultTable(
        name=name,
        title=title,
        frame=frame,
        columns=("model", "shots", by, *heads),
        rows=tuple(rows),
        left=3,
        note=note,
    )


def _figures(group: Sequence[CellRecord], columns: Sequence[str]) -> dict[str, dict[str, float]]:
    by_task: dict[str, dict[str, float]] = {}
    for task, cells in _grouped(group, lambda cell: str(cell.identity.get("task"))):
        accuracies = [c.metrics["test/accuracy"] for c in cells if "test/accuracy" in c.metrics]
        biases = [c.metrics["test/cobias"] for c in cells if "test/cobias" in c.metrics]
        if not accuracies:
            continue
        accuracy, cobias = mean_and_deviation(accuracies), mean_and_deviation(biases)
        by_task[task] = _values(len(cells), accuracy, cobias)
    averages: dict[str, dict[str, float]] = {}
    for column in columns:
        if column.startswith("average_"):
            members = [v for task, v in by_task.items() if _belongs(task, column)]
            # An average over other tasks than in the row above it would mislead.
            wanted = [c for c in columns if not c.startswith("average_") and _belongs(c, column)]
            if members and len(members) == len(wanted):
                means = [fmean(v[f"{m}_mean"] for v in members) for m in _MEASURES]
                averages[column] = _values(
                    min(int(v["seeds"]) for v in members),
                    (means[0], math.nan),
                    (means[1], math.nan),
                )
    return averages | by_task


def _values(
    seeds: int, accuracy: tuple[float, float], cobias: tuple[float, float]
) -> dict[str, float]:
    return {
        "seeds": seeds,
        "accuracy_mean": accuracy[0],
        "accuracy_std": accuracy[1],
        "cobias_mean": cobias[0],
        "cobias_std": cobias[1],
    }


def _row(figures: Mapping[str, Mapping[str, float]], columns: Sequence[str]) -> list[str]:
    return [
        percent(figures[task][f"{m}_mean"], figures[task][f"{m}_std"]) if task in figures else ""
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
    figures: Mapping[str, Mapping[str, float]],
    theirs: Mapping[str, PaperResult | None],
    columns: Sequence[str],
) -> list[str]:
    return [
        ""
        if own is None
        else f"{100 * (figures[task][f'{m}_mean'] - getattr(own, m)):+.1f}".replace("-", "−")
        for m in _MEASURES
        for task, own in ((task, theirs.get(task)) for task in columns)
    ]


def _tasks(cells: Iterable[CellRecord]) -> list[str]:
    """Return the tasks in the paper's order, those that it does not have after them."""
    names = list(dict.fromkeys(str(cell.identity.get("task")) for cell in cells))
    order = (*GENERAL, *BIOMEDICAL)

    def rank(name: str) -> int:
        known = paper_task(name)
        return len(order) if known is None else order.index(known)

    return sorted(names, key=rank)


def _averages(tasks: Sequence[str]) -> list[str]:
    columns = ["average_all", "average_general", "average_biomedical"]
    return [c for c in columns if sum(_belongs(task, c) for task in tasks) > 1]


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


def _objective_title(name: str) -> str:
    if name == "full":
        return "full objective"
    terms = {"err": "Z_err", "cobias": "Z_cobias", "pmi": "Z_pmi"}
    return " + ".join(terms.get(part, part) for part in name.split("+"))


def _grouped(
    cells: Iterable[CellRecord], key: Callable[[CellRecord], Any]
) -> list[tuple[Any, list[CellRecord]]]:
    groups: dict[Any, list[CellRecord]] = {}
    for cell in cells:
        groups.setdefault(key(cell), []).append(cell)
    return list(groups.items())


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _frame(rows: list[tuple[Any, ...]], columns: Sequence[str]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(rows, columns=list(columns))
