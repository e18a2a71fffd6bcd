"""What people see of a sweep: before it, what there is to do; after it, what came of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean

from rich.table import Table

from dcs.evaluation.formatting import chance, percent
from dcs.io import atomic_write_bytes
from dcs.messages import last_line
from dcs.selection.methods import get_method
from tracking import CellRecord
from tracking.results.figures import class_accuracy_figure, figure_bytes
from tracking.results.frames import (
    MEASURES,
    Estimate,
    cells_frame,
    classes_frame,
    estimates,
    grouped,
)
from tracking.results.settings import axes_of
from tracking.store.runs import cell_name
from workflows.cli.console import column_tables, console, duration, new_table, width_of
from workflows.cli.scoring import announce
from workflows.plan import SweepPlan
from workflows.tables import ProbabilityStore

__all__ = ["Work", "headline", "rest_of", "results_tables", "show_plan", "show_results"]

#: Columns of cells by how far they are.
_STATES = ("cells", "finished", "failed", "to do")


@dataclass(frozen=True, slots=True)
class Work:
    """What a sweep still has to do.

    Attributes
    ----------
    tables, cells : int
        To be scored, and to be computed.
    scoring_seconds, gpu_seconds, cell_seconds : float
        Of one worker after the other, of its GPUs, and of one CPU; NaN where nothing like it has
        been done yet.
    """

    tables: int
    cells: int
    scoring_seconds: float
    gpu_seconds: float
    cell_seconds: float


def rest_of(plan: SweepPlan) -> Work:
    """Judge missing tables by scored ones of their model, cells by those of their method."""
    store = ProbabilityStore.under(plan.output)
    scored = [(plan.sources[key][0].model, store.scoring(key)) for key in plan.cells]
    finished = [r for r in plan.ended.values() if r.finished]
    tables = Counter(request.model for request in plan.missing_tables.values())
    cells = Counter(cell.method for some in plan.missing_cells.values() for cell in some)
    unknown = sum(len(some) for key, some in plan.sources.items() if key not in plan.cells)
    for variant in plan.variants:
        cells[variant.method] += unknown
    return Work(
        tables.total(),
        cells.total(),
        _cost(tables, [(model, one.seconds) for model, one in scored if one]),
        _cost(tables, [(model, one.seconds * one.gpus) for model, one in scored if one]),
        _cost(cells, [(r.identity["method"], _cpu_seconds(r)) for r in finished]),
    )


def _cost(missing: Counter[str], done: list[tuple[str, float]]) -> float:
    """Return the cost of what is missing, each the mean of what is done of its kind, or of all."""
    of = {kind: [cost for k, cost in done if k == kind] for kind in missing}
    every = [cost for _, cost in done] or [math.nan]
    return sum(number * fmean(of[kind] or every) for kind, number in missing.items())


def _cpu_seconds(record: CellRecord) -> float:
    # Trials of one cell may have run side by side.
    elapsed = (record.finished_ms - record.started_ms) / 1000
    return max(elapsed, sum(trial.seconds for trial in record.trials))


def headline(plan: SweepPlan) -> str:
    """Return how large a sweep is and how much of it is done, on one line."""
    failed = f", {plan.n_failed} failed" if plan.n_failed else ""
    return (
        f"{plan.config.name}: {_some(plan.n_tables, 'table')}, "
        f"{_some(plan.n_cells, 'cell')}; {_some(len(plan.ended) - plan.n_failed, 'cell')} "
        f"finished earlier{failed}"
    )


def show_plan(plan: SweepPlan) -> None:
    """Print the cells of a sweep: what is finished, what is missing, how long that may take."""
    variants = plan.variants
    tables: dict[tuple[str, str], Counter[str]] = {}
    for key, requests in plan.sources.items():
        for request in requests:
            count = tables.setdefault((request.model, request.task), Counter())
            count["tables"] += request is requests[0]
            count["scored"] += request is requests[0] and key in plan.cells
            count["cells"] += len(variants)
    ended = Counter((*_group(record), record.finished) for record in plan.ended.values())
    shown = new_table("model ", "task ", "tables", "scored", *_STATES)
    for names, count in tables.items():
        states = _states(count["cells"], ended[*names, True], ended[*names, False])
        shown.add_row(*names, f"{count['tables']:,}", f"{count['scored']:,}", *states)
    console.print(shown, soft_wrap=False)
    of_method = Counter((r.identity["method"], r.finished) for r in plan.ended.values())
    shown = new_table("method ", *_STATES)
    for method, number in Counter(variant.method for variant in variants).items():
        cells = number * plan.n_cells // len(variants)
        shown.add_row(method, *_states(cells, of_method[method, True], of_method[method, False]))
    console.print(shown, soft_wrap=False)
    console.print(headline(plan))
    missing = plan.missing_tables.values()
    announce((each for each in missing if each.task not in plan.without_texts), yes=True)
    rest = rest_of(plan)
    gpus = f", {rest.gpu_seconds / 3600:,.1f} GPU hours" if rest.gpu_seconds > 0 else ""
    parts = []
    if rest.tables:
        took = _took(rest.scoring_seconds, "worker")
        parts.append(f"{_some(rest.tables, 'table')} to score ({took}{gpus})")
    if rest.cells:
        took = _took(rest.cell_seconds, "CPU")
        parts.append(f"{_some(rest.cells, 'cell')} to compute ({took})")
    console.print(f"to do: {', '.join(parts) or 'nothing'}")


def _states(cells: int, finished: int, failed: int) -> list[str]:
    return [f"{n:,}" for n in (cells, finished, failed, cells - finished - failed)]


def _took(seconds: float, worker: str) -> str:
    if math.isnan(seconds):
        return "how long shows once the first are done"
    return f"{duration(seconds)} of one {worker}"


def _some(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def show_results(records: Sequence[CellRecord], picture: Path) -> None:
    """Print the tables of a sweep, by task, and what failed; draw the class accuracies of DCS."""
    finished = [record for record in records if record.finished]
    for (model, _), group in groupby(sorted(finished, key=_group), key=_group):
        cells = list(group)
        several = len({record.identity["seed"] for record in cells}) > 1
        figures = "mean ± sd over seeds" if several else "[95 % interval], p against uncorrected"
        console.print()
        task = cells[0].who["task"]
        console.print(f"{task} ({model}): % of test rows, {figures}", style="bold")
        for table in results_tables(cells, width=console.width):
            console.print(table, soft_wrap=False)
    for record in records:
        if not record.finished:
            reason = last_line(record.error or "")
            console.print(f"failed {cell_name(record)}: {reason}", style="red")
    if len(finished) < len(records):
        console.print("add --retry-failed to compute the failed cells again")
    console.print()
    if any(record.identity["method"] == "dcs" for record in finished):
        atomic_write_bytes(picture, figure_bytes(class_accuracy_figure(finished), "png"))
        console.print(f"class accuracies before and after drawn in {picture}")


def _group(record: CellRecord) -> tuple[str, str]:
    return record.identity["model"], record.identity["task"]


def results_tables(records: Sequence[CellRecord], *, width: int) -> list[Table]:
    """Return accuracy, COBias and class accuracies by method, on as many tables as it takes.

    Cells that differ in a setting, as those of an ablation do, have rows of their own and a
    column for each such setting. Several seeds are averaged; a single one is shown with its 95 %
    interval and the p-values of a paired test against uncorrected.

    Parameters
    ----------
    records : sequence of CellRecord
        Finished cells of one model and task, in the order of the rows wanted.
    width : int
        Characters there are. Where the classes do not fit beside the rest they are the rows of
        tables of their own.
    """
    axes = axes_of(records)
    frame = cells_frame(records)
    for axis in axes:
        pairs = zip(frame["method"], frame[axis.name], strict=True)
        frame[axis.name] = [axis.short(v) if m in axis.methods else "" for m, v in pairs]
    by = ["shots", "method", *(axis.name for axis in axes)]
    rows = estimates(frame, by)
    with_shots = bool(rows["shots"].notna().any())
    tested = bool(rows["accuracy_p"].notna().any())
    accuracies = classes_frame(records)
    classes = [str(name) for name in accuracies["class"].unique()]
    p = ["p"] if tested else []
    head = [
        *(["shots"] if with_shots else []),
        *("method ", *(axis.title for axis in axes), "accuracy ↑", *p, "COBias ↓", *p),
    ]
    narrow, wide = new_table(*head), new_table(*head, *classes)
    previous: object = None
    columns: dict[str, list[str]] = {}
    for row, (_, group) in zip(rows.to_dict("records"), grouped(frame, by)[1], strict=True):
        method = get_method(row["method"])
        cells = [str(row["shots"])] if with_shots else []
        cells += [method.title, *(row[axis.name] for axis in axes)]
        own = accuracies[accuracies["key"].isin(group["key"])]
        # A class without rows has no accuracy.
        shares = own.groupby("class", sort=False)["after"].mean().reindex(classes)
        texts = [percent(each, digits=0) or "-" for each in shares]
        shots = [f"{row['shots']}-shot"] if with_shots else []
        columns["\n".join([*shots, *cells[len(shots) :]])] = texts
        for each in (Estimate.of(row, measure) for measure in MEASURES):
            cells += [each.percent(padded=True), *([chance(each.p)] if tested else [])]
        for table, more in ((narrow, []), (wide, texts)):
            if row["shots"] != previous and table.row_count:
                table.add_section()
            table.add_row(*cells, *more, style="bold" if method.searches else "")
        previous = row["shots"]
    if width_of(wide) <= width:
        return [wide]
    return [narrow, *column_tables("class ", classes, columns, width=width)]
