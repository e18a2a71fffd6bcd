"""What `dcs sweep --dry-run` says: the cells, what of them is done, how long the rest takes."""

from __future__ import annotations

import os
from pathlib import Path

from rich.table import Table

from workflows.cells import TableRequest
from workflows.cli._console import console, new_table
from workflows.cli._scoring import announce_sweep
from workflows.config.axes import GRID
from workflows.config.sweep import SweepConfig
from workflows.estimate import GUESSED_GPU, Estimate, estimate
from workflows.plan import (
    Count,
    PlannedCell,
    SweepPlan,
    by_axis,
    counted,
    plan_sweep,
    planned_cells,
)

__all__ = ["headline", "show_plan"]

#: Most lines of the table of tables; a sweep with more tables is shown by less of their names.
_MOST_LINES = 24
_COLUMNS = ("model", "task", "shots", "seed")
_LEFT = ("model", "task")


def show_plan(config: SweepConfig, *, output: Path, retry_failed: bool) -> None:
    """Print the cells of a sweep: what is finished, what is missing, how long that may take."""
    with console.status("looking at what is there already"):
        plan = plan_sweep(config, output, retry_failed=retry_failed)
        cells = list(planned_cells(plan))
    shown = _columns_shown(plan)
    console.print(_tables(plan, cells, shown))
    axes = by_axis(plan, cells)
    other = {axis: counts for axis, counts in axes.items() if axis not in GRID[:shown]}
    if other:
        console.print(_axes(other))
    console.print(headline(plan))
    announce_sweep(plan, yes=True)
    console.print(to_do(estimate(plan)), soft_wrap=True)


def headline(plan: SweepPlan) -> str:
    """Return how large a sweep is and how much of it is done, on one line."""
    failed = f", {plan.n_failed} failed" if plan.n_failed else ""
    return (
        f"[bold]{plan.config.name}[/bold]: {_some(plan.n_tables, 'table')}, "
        f"{_some(plan.n_cells, 'cell')}; {_some(len(plan.ended) - plan.n_failed, 'cell')} "
        f"finished earlier{failed}"
    )


def to_do(rest: Estimate) -> str:
    """Return what is left and how long it may take."""
    if not rest.tables and not rest.cells:
        return "to do: nothing"
    parts = []
    if rest.tables:
        parts.append(f"{_some(rest.tables, 'table')} to score ({_scoring(rest)})")
    if rest.cells:
        about = "about " if rest.cells_guessed else ""
        cpus = os.cpu_count() or 1
        here = f", {_duration(rest.cell_seconds / cpus)} on {cpus} CPUs" if cpus > 1 else ""
        hours = f"{about}{_duration(rest.cell_seconds)} of one CPU{here}"
        parts.append(f"{_some(rest.cells, 'cell')} to compute ({hours})")
    guessed = rest.scoring_guessed or rest.cells_guessed
    note = "; guesses until the first of a kind is done" if guessed else ""
    return f"to do: {', '.join(parts)}{note}"


def _scoring(rest: Estimate) -> str:
    if rest.scoring_seconds is None or rest.gpu_seconds is None:
        return "how long shows once the first of each model is done"
    if rest.scoring_guessed:
        return f"about {rest.gpu_seconds / 3600:,.1f} GPU hours of an {GUESSED_GPU}"
    gpus = f", {rest.gpu_seconds / 3600:,.1f} GPU hours" if rest.gpu_seconds else ""
    return f"{_duration(rest.scoring_seconds)} of one worker{gpus}"


def _some(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def _columns_shown(plan: SweepPlan) -> int:
    """Return by how much of their names the tables can be told apart in so many lines."""
    requests = [request for key in plan.requests for request in plan.requests_of(key)]
    for shown in range(len(_COLUMNS), 1, -1):
        if len({_place(request, shown) for request in requests}) <= _MOST_LINES:
            return shown
    return 1


def _tables(plan: SweepPlan, cells: list[PlannedCell], shown: int) -> Table:
    """Return the tables and their cells, told apart by the first columns."""
    names = [f"{name} " if name in _LEFT else name for name in _COLUMNS[:shown]]
    table = new_table(*names, "tables", "scored", "cells", "finished", "failed", "to do")
    counts = counted((_place(cell.request, shown), cell) for cell in cells)
    totals: dict[tuple[str, ...], list[bool]] = {}
    for key, request in plan.requests.items():
        totals.setdefault(_place(request, shown), []).append(key in plan.cells)
    for place, count in counts.items():
        # None where all its requests are answered by tables of others.
        scored = totals.get(place, [])
        table.add_row(*place, f"{len(scored):,}", f"{sum(scored):,}", *_figures(count))
    return table


def _place(request: TableRequest, shown: int) -> tuple[str, ...]:
    return tuple(str(getattr(request, name)) for name in _COLUMNS[:shown])


def _axes(axes: dict[str, dict[str, Count]]) -> Table:
    """Return the cells by the values of every axis."""
    table = new_table("axis ", "value ", "cells", "finished", "failed", "to do")
    for axis, counts in axes.items():
        if table.row_count:
            table.add_section()
        for i, (value, count) in enumerate(list(counts.items())[:_MOST_LINES]):
            table.add_row("" if i else axis, value, *_figures(count))
        if len(counts) > _MOST_LINES:
            table.add_row("", f"and {len(counts) - _MOST_LINES:,} more")
    return table


def _figures(count: Count) -> tuple[str, ...]:
    return tuple(f"{n:,}" for n in (count.cells, count.finished, count.failed, count.to_do))
