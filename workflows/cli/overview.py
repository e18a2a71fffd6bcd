"""What people see of a sweep: before it, what there is to do; after it, what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

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
from tracking.results.settings import axes_of, objective_label
from workflows.cli.console import console, duration, new_table
from workflows.cli.scoring import announce
from workflows.config.sweep import SweepConfig
from workflows.estimate import estimate
from workflows.plan import SweepPlan, plan_sweep

__all__ = ["headline", "results_table", "show_plan", "show_results"]

#: Room taken by everything but the class columns.
_OTHER_COLUMNS = 58

#: Columns of cells by how far they are.
_STATES = ("cells", "finished", "failed", "to do")


def headline(plan: SweepPlan) -> str:
    """Return how large a sweep is and how much of it is done, on one line."""
    failed = f", {plan.n_failed} failed" if plan.n_failed else ""
    return (
        f"{plan.config.name}: {_some(plan.n_tables, 'table')}, "
        f"{_some(plan.n_cells, 'cell')}; {_some(len(plan.ended) - plan.n_failed, 'cell')} "
        f"finished earlier{failed}"
    )


def show_plan(config: SweepConfig, *, output: Path, retry_failed: bool) -> None:
    """Print the cells of a sweep: what is finished, what is missing, how long that may take."""
    with console.status("looking at what is there already"):
        plan = plan_sweep(config, output, retry_failed=retry_failed)
    variants = plan.variants
    tables: dict[tuple[str, str], Counter[str]] = {}
    for key, requests in plan.requests.items():
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
    announce(plan.missing_tables.values(), yes=True)
    console.print(_to_do(plan))


def _states(cells: int, finished: int, failed: int) -> list[str]:
    return [f"{n:,}" for n in (cells, finished, failed, cells - finished - failed)]


def _to_do(plan: SweepPlan) -> str:
    rest = estimate(plan)
    gpus = f", {rest.gpu_seconds / 3600:,.1f} GPU hours" if rest.gpu_seconds else ""
    parts = []
    if rest.tables:
        took = _took(rest.scoring_seconds, "worker")
        parts.append(f"{_some(rest.tables, 'table')} to score ({took}{gpus})")
    if rest.cells:
        took = _took(rest.cell_seconds, "CPU")
        parts.append(f"{_some(rest.cells, 'cell')} to compute ({took})")
    return f"to do: {', '.join(parts) or 'nothing'}"


def _took(seconds: float | None, worker: str) -> str:
    if seconds is None:
        return "how long shows once the first are done"
    return f"{duration(seconds)} of one {worker}"


def _some(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def show_results(records: Sequence[CellRecord], picture: Path) -> None:
    """Print the tables of a sweep, by task, and what failed; draw the class accuracies of DCS."""
    finished = [record for record in records if record.finished]
    for (model, task), group in groupby(sorted(finished, key=_group), key=_group):
        cells = list(group)
        several = len({record.identity["seed"] for record in cells}) > 1
        figures = "mean ± sd over seeds" if several else "[95 % interval], p against ICL"
        console.print()
        console.print(f"{task} ({model}): % of test rows, {figures}", style="bold")
        console.print(results_table(cells, width=console.width), soft_wrap=False)
    for record in records:
        if not record.finished:
            reason = last_line(record.error or "")
            console.print(f"failed {_cell_name(record)}: {reason}", style="red")
    if len(finished) < len(records):
        console.print("add --retry-failed to compute the failed cells again")
    console.print()
    if any(record.identity["method"] == "dcs" for record in finished):
        atomic_write_bytes(picture, figure_bytes(class_accuracy_figure(finished), "png"))
        console.print(f"class accuracies before and after drawn in {picture}")


def _group(record: CellRecord) -> tuple[str, str]:
    return record.identity["model"], record.identity["task"]


def _cell_name(record: CellRecord) -> str:
    who, objective = record.identity, objective_label(record)
    searched = "" if objective in (None, "full") else f" objective {objective}"
    return f"{who['method']} {who['task']} {who['shots']}-shot{searched} seed {who['seed']}"


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
    room = width - _OTHER_COLUMNS - 14 * tested - sum(len(axis.title) + 2 for axis in axes)
    fits = sum(max(3, len(name)) + 2 for name in classes) <= room
    p = ["p"] if tested else []
    table = new_table(
        *(["shots"] if with_shots else []),
        *("method ", *(axis.title for axis in axes), "accuracy ↑", *p, "COBias ↓", *p),
        *(classes if fits else ["weakest class ", ""]),
    )
    previous: object = None
    for row, (_, group) in zip(rows.to_dict("records"), grouped(frame, by)[1], strict=True):
        method = get_method(row["method"])
        if row["shots"] != previous and table.row_count:
            table.add_section()
        previous = row["shots"]
        cells = [str(row["shots"])] if with_shots else []
        cells += [method.title, *(row[axis.name] for axis in axes)]
        for each in (Estimate.of(row, measure) for measure in MEASURES):
            cells += [each.percent(padded=True), *([chance(each.p)] if tested else [])]
        own = accuracies[accuracies["key"].isin(group["key"])]
        # A class without rows has no accuracy.
        means = own.groupby("class", sort=False)["after"].mean()
        shown = {name: percent(mean, digits=0) or "-" for name, mean in means.items()}
        cells += shown.values() if fits else [str(means.idxmin()), shown[means.idxmin()]]
        table.add_row(*cells, style="bold" if method.searches else "")
    return table
