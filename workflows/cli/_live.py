"""A sweep as it runs: bars and rates on a terminal, a line now and then in a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from tracking import CellRecord
from workflows.cli._console import console

__all__ = ["SweepView", "sweep_view"]

#: In a file nobody watches; often enough to see that it goes on.
_LINE_SECONDS = 30.0


class SweepView:
    """Keeps count of a sweep and has it shown.

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
        self.cells_running = 0
        self.computed_cells = self.trials = self.moves = 0
        self.machines_text = ""
        self._show = show
        self._clock = clock
        self._started = clock()

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
        self.computed_cells += 1
        self.trials += len(record.trials)
        self.moves += int(
            sum(trial.metrics.get("opt/evaluations", 0.0) for trial in record.trials)
            or record.metrics.get("opt/evaluations", 0.0)
        )

    def machines(
        self, *, running: int, cpus_used: float, cpus: float, gpus_used: float, gpus: float
    ) -> None:
        """Show how many cells are handed out and how much of the cluster is at work."""
        self.cells_running = running
        self.machines_text = f"CPUs {cpus_used:.0f}/{cpus:.0f}"
        if gpus:
            self.machines_text += f" · GPUs {gpus_used:.0f}/{gpus:.0f}"
        self._show(self)

    @property
    def left_seconds(self) -> float | None:
        """Seconds that the other cells take if they are like the ones so far."""
        if not self.computed_cells:
            return None
        rest = self.cells_total - self.cells_done
        return (self._clock() - self._started) / self.computed_cells * rest

    @property
    def rates(self) -> str:
        """Work per second, time left, and machines, on one line."""
        seconds = max(1e-9, self._clock() - self._started)
        parts = [f"{self.cells_running} running"]
        if self.trials:
            parts.append(f"{self.trials / seconds:.1f} trials/s")
        if self.moves:
            parts.append(f"{_short(self.moves / seconds)} moves/s")
        if self.left_seconds is not None:
            parts.append(f"{_clock_text(self.left_seconds)} left")
        return " · ".join([*parts, *([self.machines_text] if self.machines_text else [])])

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
    """Show a sweep while the block runs."""
    if not console.is_terminal:
        yield SweepView(_line_writer())
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as progress:
        tables = progress.add_task("scoring prompts", total=None, note="")
        cells = progress.add_task("tuning cells", total=None, note="")

        def show(view: SweepView) -> None:
            progress.update(tables, completed=view.tables_done, total=view.tables_total)
            failed = f"[red]{view.cells_failed} failed[/red] · " if view.cells_failed else ""
            progress.update(
                cells,
                completed=view.cells_done,
                total=view.cells_total,
                note=failed + view.rates if view.cells_done < view.cells_total else failed,
            )

        yield SweepView(show)


def _line_writer(clock: Callable[[], float] = time.monotonic) -> Callable[[SweepView], None]:
    due = clock() + _LINE_SECONDS

    def show(view: SweepView) -> None:
        nonlocal due
        if clock() >= due:
            due = clock() + _LINE_SECONDS
            console.print(view.line, soft_wrap=True, highlight=False)

    return show


def _short(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.0f} "


def _clock_text(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
