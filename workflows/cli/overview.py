"""What people see of a sweep: before it, what there is to do; after it, what came of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.table import Table

from dcs.evaluation.formatting import chance
from dcs.io import atomic_path
from dcs.messages import last_line
from dcs.selection.methods import get_method
from tracking import CellRecord
from tracking.results.figures import class_accuracy_figure
from tracking.results.frames import Estimate, class_intervals, mean_and_deviation
from workflows.cells import Cell, TableRequest, Variant
from workflows.cli.console import console, duration, new_table
from workflows.cli.scoring import announce
from workflows.config.axes import ABLATED, GRID
from workflows.config.sweep import SweepConfig
from workflows.config.tuner import objective_label
from workflows.estimate import estimate
from workflows.plan import (
    Count,
    SweepPlan,
    by_axis,
    counted,
    differing_settings,
    plan_sweep,
    planned_cells,
)

__all__ = ["headline", "results_table", "show_plan", "show_results"]

#: Most lines of the table of tables; a sweep with more tables is shown by less of their names.
_MOST_LINES = 24
_COLUMNS = ("model", "task", "shots", "seed")

#: The settings in which cells of one method may differ.
_AXES = ("objectives", *ABLATED, "optimization_sizes")

#: Room taken by everything but the class columns.
_OTHER_COLUMNS = 58

#: The method whose class accuracies are drawn.
_DRAWN = "dcs"


def headline(plan: SweepPlan) -> str:
    """Return how large a sweep is and how much of it is done, on one line."""
    failed = f", {plan.n_failed} failed" if plan.n_failed else ""
    return (
        f"[bold]{plan.config.name}[/bold]: {_some(plan.n_tables, 'table')}, "
        f"{_some(plan.n_cells, 'cell')}; {_some(len(plan.ended) - plan.n_failed, 'cell')} "
        f"finished earlier{failed}"
    )


def show_plan(config: SweepConfig, *, output: Path, retry_failed: bool) -> None:
    """Print the cells of a sweep: what is finished, what is missing, how long that may take."""
    with console.status("looking at what is there already"):
        plan = plan_sweep(config, output, retry_failed=retry_failed)
        cells = list(planned_cells(plan))
    # By as much of their names as tables can be told apart in so many lines.
    names = [_names(request) for key in plan.requests for request in plan.requests_of(key)]
    shown = next(
        (
            n
            for n in range(len(_COLUMNS), 1, -1)
            if len({name[:n] for name in names}) <= _MOST_LINES
        ),
        1,
    )
    scored: dict[tuple[str, ...], list[bool]] = {}
    for key, request in plan.requests.items():
        scored.setdefault(_names(request)[:shown], []).append(key in plan.cells)
    heads = ("model ", "task ", "shots", "seed")[:shown]
    table = new_table(*heads, "tables", "scored", "cells", "finished", "failed", "to do")
    for name, count in counted((_names(cell.request)[:shown], cell) for cell in cells).items():
        # None where all its requests are answered by tables of others.
        own = scored.get(name, [])
        table.add_row(*name, f"{len(own):,}", f"{sum(own):,}", *_figures(count))
    console.print(table)
    axes = by_axis(plan, cells)
    other = {axis: counts for axis, counts in axes.items() if axis not in GRID[:shown]}
    if other:
        console.print(_axes_table(other))
    console.print(headline(plan))
    announce(plan.missing_tables.values(), yes=True)
    console.print(_to_do(plan))


def _names(request: TableRequest) -> tuple[str, ...]:
    return tuple(str(getattr(request, name)) for name in _COLUMNS)


def _axes_table(axes: Mapping[str, Mapping[str, Count]]) -> Table:
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


def _to_do(plan: SweepPlan) -> str:
    rest = estimate(plan)
    unknown = "how long shows once the first are done"
    parts = []
    if rest.tables:
        took = unknown
        if rest.scoring_seconds is not None:
            gpus = f", {rest.gpu_seconds / 3600:,.1f} GPU hours" if rest.gpu_seconds else ""
            took = f"{duration(rest.scoring_seconds)} of one worker{gpus}"
        parts.append(f"{_some(rest.tables, 'table')} to score ({took})")
    if rest.cells:
        took = unknown
        if rest.cell_seconds is not None:
            cpus = os.cpu_count() or 1
            here = f", {duration(rest.cell_seconds / cpus)} on {cpus} CPUs" if cpus > 1 else ""
            took = f"{duration(rest.cell_seconds)} of one CPU{here}"
        parts.append(f"{_some(rest.cells, 'cell')} to compute ({took})")
    return f"to do: {', '.join(parts) or 'nothing'}"


def _some(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def show_results(name: str, records: Sequence[CellRecord], *, output: Path) -> None:
    """Print the tables of a sweep, by task, and what failed; draw the class accuracies."""
    finished = [record for record in records if record.finished]
    for (model, task), group in groupby(sorted(finished, key=_group), key=_group):
        cells = list(group)
        several = len({record.identity["seed"] for record in cells}) > 1
        figures = "mean ± sd over seeds" if several else "[95 % interval], p against ICL"
        console.print()
        console.print(f"[bold]{task}[/bold] ({model}): % of test rows, {figures}")
        console.print(results_table(cells, width=console.width))
    for record in records:
        if not record.finished:
            reason = last_line(record.error or "")
            console.print(f"[red]failed[/red] {_cell_name(record.identity)}: {reason}")
    if len(finished) < len(records):
        console.print("add [bold]--retry-failed[/bold] to compute the failed cells again")
    console.print()
    if any(record.identity["method"] == _DRAWN for record in finished):
        picture = output / "figures" / f"{name}.png"
        with atomic_path(picture) as temporary:
            class_accuracy_figure(finished, method=_DRAWN).savefig(temporary, format="png")
        console.print(f"class accuracies before and after drawn in {picture}")


def _group(record: CellRecord) -> tuple[str, str]:
    return record.identity["model"], record.identity["task"]


def _cell_name(identity: Mapping[str, Any]) -> str:
    """Return the name of a cell; that of a poisoned one may hold settings that are not allowed."""
    name = f"{identity['method']} {identity['task']} {identity['shots']}-shot"
    tuner = identity.get("tuner") or {}
    if tuner.get("objective", "full") != "full":
        name += f" objective {objective_label(tuner['objective'])}"
    for setting in ("weight_scale", "memberships"):
        if tuner.get(setting) is not None:
            name += f" {setting} {tuner[setting]}"
    if identity.get("optimization_size") is not None:
        name += f" {identity['optimization_size']} rows"
    return f"{name} seed {identity['seed']}"


def results_table(records: Sequence[CellRecord], *, width: int) -> Table:
    """Return accuracy, COBias and class accuracies by method.

    Cells that differ in a setting, as those of an ablation do, have rows of their own and a
    column for each such setting. Several seeds are averaged; a single one is shown with its 95 %
    interval and the p-values of a paired test against ICL.

    Parameters
    ----------
    records : sequence of CellRecord
        Finished cells of one model and task, in the order of the rows wanted.
    width : int
        Characters there are. Where the classes do not fit, the weakest one stands for them.
    """
    variants = [Variant.of(Cell.from_identity(record.identity)) for record in records]
    settings = differing_settings(variants)
    axes = [axis for axis in _AXES if any(axis in own for own in settings.values())]
    groups: dict[tuple[object, Variant], list[CellRecord]] = {}
    for record, variant in zip(records, variants, strict=True):
        groups.setdefault((record.identity["shots"], variant), []).append(record)
    figures = {key: _Figures.of(group) for key, group in groups.items()}
    with_shots = any(shots is not None for shots, _ in groups)
    tested = any(each.p == each.p for own in figures.values() for each in own.measures)
    classes = [str(name) for name in records[0].class_accuracies["class"]]
    room = width - _OTHER_COLUMNS - 14 * tested - sum(len(_axis_title(axis)) + 2 for axis in axes)
    # As much of the classes as there is room for.
    columns = {key: own.class_texts(intervals=True) for key, own in figures.items()}
    if not _fits(classes, columns.values(), room):
        columns = {key: own.class_texts(intervals=False) for key, own in figures.items()}
    fits = _fits(classes, columns.values(), room)

    measures = [[title, *(["p"] if tested else [])] for title in ("accuracy ↑", "COBias ↓")]
    table = new_table(
        *(["shots"] if with_shots else []),
        "method ",
        *map(_axis_title, axes),
        *measures[0],
        *measures[1],
        *(classes if fits else ["weakest class ", ""]),
    )
    previous: object = None
    for (shots, variant), own in figures.items():
        method = get_method(variant.method)
        if shots != previous and table.row_count:
            table.add_section()
        table.add_row(
            *([str(shots)] if with_shots else []),
            method.title,
            *(settings[variant].get(axis, "") for axis in axes),
            *(
                text
                for each in own.measures
                for text in (each.percent(padded=True), *([chance(each.p)] if tested else []))
            ),
            *(columns[shots, variant] if fits else own.weakest(classes)),
            style="bold" if method.searches else "",
        )
        previous = shots
    return table


@dataclass(frozen=True, slots=True)
class _Figures:
    """What a row of the table shows: accuracy and COBias, then the class accuracies."""

    measures: tuple[Estimate, Estimate]
    classes: tuple[Estimate, ...]

    @classmethod
    def of(cls, group: Sequence[CellRecord]) -> _Figures:
        accuracy, cobias = (Estimate.of(group, f"test/{name}") for name in ("accuracy", "cobias"))
        by_seed = [class_intervals(record) for record in group]
        classes = by_seed[0]
        if len(by_seed) > 1:
            classes = [Estimate(_mean(seeds)) for seeds in zip(*by_seed, strict=True)]
        return cls((accuracy, cobias), tuple(classes))

    def class_texts(self, *, intervals: bool) -> list[str]:
        shown = self.classes if intervals else [Estimate(each.mean) for each in self.classes]
        return [each.percent(digits=0, padded=True) or "-" for each in shown]

    def weakest(self, names: Sequence[str]) -> tuple[str, str]:
        # A class without rows has no accuracy.
        known = [pair for pair in zip(self.classes, names, strict=True) if pair[0].mean >= 0]
        figure, name = min(known, key=lambda pair: pair[0].mean)
        return name, figure.percent(digits=0, padded=True)


def _fits(names: Sequence[str], rows: Iterable[Sequence[str]], room: int) -> bool:
    columns = zip(names, *rows, strict=True)
    return sum(max(3, *map(len, texts)) + 2 for texts in columns) <= room


def _axis_title(axis: str) -> str:
    names = {"objectives": "objective", "optimization_sizes": "rows"}
    return names.get(axis, axis.replace("_", " "))


def _mean(estimates: Iterable[Estimate]) -> float:
    # A class without rows has no accuracy.
    return mean_and_deviation([each.mean for each in estimates if each.mean == each.mean])[0]
