"""What people see of a sweep: what there is to do, how far it is, and what came of it."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

from rich import progress
from rich.table import Table

from dcs.errors import last_line
from dcs.evaluation.uncertainty import chance, percent
from dcs.io import atomic_write_bytes
from dcs.selection.methods import get_method
from tracking import CellRecord
from tracking.results.figures import class_accuracy_figure
from tracking.results.frames import (
    MEASURES,
    Estimate,
    cells_frame,
    classes_frame,
    estimates,
    grouped,
)
from tracking.results.settings import axes_of
from tracking.results.style import figure_bytes
from tracking.store.runs import cell_name
from workflows.cli.console import bars, column_tables, console, duration, new_table, width_of
from workflows.cli.scoring import announce
from workflows.plan import SweepPlan, rest_of
from workflows.tables import Scoring

#: How often a sweep tells how far it is in a file, which nobody watches.
_LINE_SECONDS = 30.0

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


def show_plan(plan: SweepPlan) -> None:
    """Print the cells of a sweep: what is finished, what is missing, how long that may take."""
    variants = plan.variants
    keys: dict[tuple[str, str], list[str]] = {}
    for key, (source, *_) in plan.sources.items():
        keys.setdefault((source.model, source.task), []).append(key)
    ended = Counter((*_group(record), record.finished) for record in plan.ended.values())
    shown = new_table("model ", "task ", "tables", "scored", *_STATES)
    for names, own in keys.items():
        cells = sum(len(plan.sources[key]) for key in own) * len(variants)
        scored = sum(key in plan.cells for key in own)
        states = _states(cells, ended[*names, True], ended[*names, False])
        shown.add_row(*names, f"{len(own):,}", f"{scored:,}", *states)
    console.print(shown)
    of_method = Counter((r.identity["method"], r.finished) for r in plan.ended.values())
    shown = new_table("method ", *_STATES)
    for method, number in Counter(variant.method for variant in variants).items():
        cells = number * plan.n_cells // len(variants)
        shown.add_row(method, *_states(cells, of_method[method, True], of_method[method, False]))
    console.print(shown)
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
        console.print(*results_tables(cells, width=console.width))
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
    table = new_table(*head, *classes)
    previous: object = None
    columns: dict[str, list[str]] = {}
    for row, (_, group) in zip(rows.to_dict("records"), grouped(frame, by)[1], strict=True):
        method = get_method(row["method"])
        names = [method.title, *(row[axis.name] for axis in axes)]
        own = accuracies[accuracies["key"].isin(group["key"])]
        # A class without rows has no accuracy.
        shares = own.groupby("class", sort=False)["after"].mean().reindex(classes)
        texts = [percent(each, digits=0) or "-" for each in shares]
        shots = [str(row["shots"])] if with_shots else []
        columns["\n".join([*(f"{each}-shot" for each in shots), *names])] = texts
        figures = []
        for each in (Estimate.of(row, measure) for measure in MEASURES):
            figures += [each.percent(padded=True), *([chance(each.p)] if tested else [])]
        if row["shots"] != previous and table.row_count:
            table.add_section()
        style = "bold" if method.searches else ""
        table.add_row(*shots, *names, *figures, *texts, style=style)
        previous = row["shots"]
    if width_of(table) <= width:
        return [table]
    del table.columns[len(head) :]
    return [table, *column_tables("class ", classes, columns, width=width)]


class SweepView:
    """Keeps count of a sweep, which tells it how far it is, and has it shown.

    Parameters
    ----------
    show : callable
        Called with this view after every change.
    clock : callable
        Seconds that only go up.
    """

    def __init__(
        self, show: Callable[[SweepView], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.tables_done = self.tables_total = 0
        self.cells_done = self.cells_total = self.cells_failed = 0
        self._computed, self._running, self._machines = 0, 0, ""
        self._work: Counter[str] = Counter()
        self._show, self._clock, self._started = show, clock, clock()

    def tables(self, done: int, total: int) -> None:
        """Show that `done` of `total` tables are there."""
        self.tables_done, self.tables_total = done, total
        self._show(self)

    def cells(self, done: int, total: int, failed: int) -> None:
        """Show that `done` of `total` cells have ended."""
        self.cells_done, self.cells_total, self.cells_failed = done, total, failed
        self._show(self)

    def computed(self, record: CellRecord) -> None:
        """Count what went into a cell."""
        self._computed += 1
        self._work.update(trials=len(record.trials), moves=record.moves)

    def scored(self, scoring: Scoring) -> None:
        """Count the prompts of a pair of tables."""
        self._work.update(prompts=scoring.rows)

    def machines(
        self, *, running: int, cpus_used: float, cpus: float, gpus_used: float, gpus: float
    ) -> None:
        """Show how many cells are handed out and how much of the cluster is at work."""
        self._running = running
        self._machines = f"CPUs {cpus_used:.0f}/{cpus:.0f}"
        if gpus:
            self._machines += f" · GPUs {gpus_used:.0f}/{gpus:.0f}"
        self._show(self)

    @property
    def rates(self) -> str:
        """Work per second, time left if the rest is like what was done, and machines."""
        seconds = max(1e-9, self._clock() - self._started)
        parts = [f"{self._running} running"]
        parts += [f"{n / seconds:,.1f} {unit}/s" for unit, n in self._work.items() if n]
        if self._computed:
            rest = self.cells_total - self.cells_done
            parts.append(f"{duration(seconds / self._computed * rest)} left")
        return " · ".join([*parts, *filter(None, [self._machines])])

    @property
    def line(self) -> str:
        """All of it on one line."""
        failed = f", {self.cells_failed} failed" if self.cells_failed else ""
        return (
            f"tables {self.tables_done}/{self.tables_total}, "
            f"cells {self.cells_done}/{self.cells_total}{failed}: {self.rates}"
        )


@contextmanager
def sweep_view() -> Iterator[SweepView]:
    """Show a sweep while the block runs: bars on a terminal, a line now and then in a file."""
    if not console.is_terminal:
        due = time.monotonic() + _LINE_SECONDS

        def show_line(view: SweepView) -> None:
            nonlocal due
            if time.monotonic() >= due:
                due = time.monotonic() + _LINE_SECONDS
                console.print(view.line)

        yield SweepView(show_line)
        return
    note = progress.TextColumn("{task.fields[note]}")
    with bars(progress.MofNCompleteColumn(), progress.TimeElapsedColumn(), note) as shown:
        tables = shown.add_task("scoring prompts", total=None, note="")
        cells = shown.add_task("tuning cells", total=None, note="")

        def show_bars(view: SweepView) -> None:
            shown.update(tables, completed=view.tables_done, total=view.tables_total)
            failed = f"{view.cells_failed} failed · " if view.cells_failed else ""
            note = failed + (view.rates if view.cells_done < view.cells_total else "")
            shown.update(cells, completed=view.cells_done, total=view.cells_total, note=note)

        yield SweepView(show_bars)
