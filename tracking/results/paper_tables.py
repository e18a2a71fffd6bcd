"""The paper's tables of results from cell records, with its own numbers beside ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tracking.records import CellRecord
from tracking.results import paper
from tracking.results.frames import (
    OBJECTIVE,
    Axis,
    axes_of,
    finished_cells,
    main_cells,
    method_title,
    objective_label,
    objective_terms,
    objective_title,
    place,
)
from tracking.results.paper import PaperResult
from tracking.results.tables import ResultTable
from tracking.results.task_grid import Row, averages_of, task_grid, tasks_of

__all__ = ["ablation_table", "ablation_tables", "main_results"]


def main_results(records: Iterable[CellRecord], *, paper_too: bool = True) -> ResultTable:
    """Return accuracy and COBias per task with averages (paper, main results).

    Parameters
    ----------
    records : iterable of CellRecord
        Cells of any models, tasks, shots, methods and seeds; failed ones are left out, and so
        are those that an ablation only compares with: see `ablation_tables`.
    paper_too : bool
        Add the paper's figures and the differences for the cells that exist in both.

    Returns
    -------
    ResultTable
        A row per model, shots and method; in percent, mean and standard deviation over seeds.
        An average is the mean of task means, over the tasks that there are.
    """
    cells = finished_cells(records)
    axes = axes_of(cells)
    cells = main_cells(cells, axes=axes)
    tasks = tasks_of(cells)
    fair = _like_the_papers(cells)

    def published(model: Any, shots: Any, row: Row, task: str) -> PaperResult | None:
        (method,) = row.values
        if method not in fair:
            return None
        return paper.paper_result(model=model, shots=shots, method=method, task=task)

    def row_of(cell: CellRecord) -> Row:
        method = str(cell.identity.get("method"))
        return Row((method,), (method_title(method),))

    return task_grid(
        cells,
        averages_of(tasks) + tasks,
        by=("method",),
        row_of=row_of,
        published=published if paper_too else None,
        name="main_results",
        title="Main results: accuracy and COBias on the test rows, %",
        note=_of_many(axes),
    )


def ablation_table(records: Iterable[CellRecord], *, paper_too: bool = True) -> ResultTable:
    """Return accuracy and COBias of DCS by the terms of its objective (paper, ablations).

    The objective of a cell is ``objective`` of the tuner in its identity: ``full``, ``err``,
    ``err+pmi``, ``err+cobias``, or the weights ``beta`` and ``tau``; without one it is the full
    objective.
    """
    cells = main_cells(finished_cells(records), but=(OBJECTIVE,))
    cells = [cell for cell in cells if cell.identity.get("method") == "dcs"]
    axis = next((axis for axis in axes_of(cells) if axis.name == OBJECTIVE), None)
    order = axis.values if axis else tuple(dict.fromkeys(map(objective_label, cells)))

    def published(model: Any, shots: Any, row: Row, task: str) -> PaperResult | None:
        terms = objective_terms(row.values[0])
        return paper.paper_ablation(model=model, shots=shots, objective=terms, task=task)

    def row_of(cell: CellRecord) -> Row:
        label = objective_label(cell) or "full"
        return Row((label,), (objective_title(label),))

    return task_grid(
        _by_prompt(cells, lambda cell: order.index(objective_label(cell))),
        tasks_of(cells),
        by=(OBJECTIVE,),
        row_of=row_of,
        published=published if paper_too else None,
        name="objective_ablation",
        title="Ablation of the objective: DCS on the test rows, %",
    )


def ablation_tables(records: Iterable[CellRecord], *, paper_too: bool = True) -> list[ResultTable]:
    """Return a table for each setting in which cells of a method differ.

    Parameters
    ----------
    records : iterable of CellRecord
        Cells. In each table the other settings are those of the main results.
    paper_too : bool
        Add the paper's figures for the cells that exist in both: DCS with another objective.

    Returns
    -------
    list of ResultTable
        ``objective_ablation`` first; empty if all cells have the same settings.
    """
    cells = finished_cells(records)
    tables = []
    for axis in axes_of(cells):
        if axis.name == OBJECTIVE and "dcs" in axis.methods:
            tables.append(ablation_table(cells, paper_too=paper_too))
        if axis.name != OBJECTIVE or axis.methods != ("dcs",):
            tables.append(_axis_table(cells, axis))
    return tables


def _axis_table(records: Sequence[CellRecord], axis: Axis) -> ResultTable:
    cells = [cell for cell in main_cells(records, but=(axis.name,)) if axis.varies(cell)]
    tasks = tasks_of(cells)
    methods, values = list(axis.methods), axis.in_order

    def row_of(cell: CellRecord) -> Row:
        method, value = str(cell.identity.get("method")), axis.value(cell)
        return Row((method, value), (method_title(method), axis.short(value)))

    def position(cell: CellRecord) -> tuple[int, int]:
        return methods.index(str(cell.identity.get("method"))), values.index(axis.value(cell))

    return task_grid(
        _by_prompt(cells, position),
        averages_of(tasks) + tasks,
        by=("method", axis.name),
        row_of=row_of,
        published=None,
        name=f"{axis.name}_by_method" if axis.name == OBJECTIVE else f"{axis.name}_ablation",
        title=f"Ablation by {axis.title}: accuracy and COBias on the test rows, %",
    )


def _by_prompt(cells: Sequence[CellRecord], position: Any) -> list[CellRecord]:
    prompts = list(dict.fromkeys(place(cell, "model", "shots") for cell in cells))
    return sorted(
        cells, key=lambda cell: (prompts.index(place(cell, "model", "shots")), position(cell))
    )


def _like_the_papers(cells: Iterable[CellRecord]) -> set[str]:
    """Return the methods whose cells had all terms of the objective, as the paper's have."""
    other = {
        str(cell.identity.get("method"))
        for cell in cells
        if objective_terms(objective_label(cell)) != "full"
    }
    return {str(cell.identity.get("method")) for cell in cells} - other


def _of_many(axes: Sequence[Axis]) -> str:
    if not axes:
        return ""
    chosen = ", ".join(axis.words(axis.main) for axis in axes)
    return f"Of the settings tried: {chosen}; the others are in the tables of ablations."
