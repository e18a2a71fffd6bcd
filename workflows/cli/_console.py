"""What people see while a command works and when it is done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

__all__ = ["SweepBars", "console", "sweep_bars", "trial_bar"]

console = Console()


def _bars() -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=32),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
    )


@dataclass(frozen=True, slots=True)
class SweepBars:
    """Two bars: tables scored, cells tuned."""

    progress: Progress
    table_bar: TaskID
    cell_bar: TaskID

    def tables(self, done: int, total: int) -> None:
        """Show that `done` of `total` tables are there."""
        self.progress.update(self.table_bar, completed=done, total=total)

    def cells(self, done: int, total: int, failed: int) -> None:
        """Show that `done` of `total` cells have ended."""
        note = f" [red]({failed} failed)[/red]" if failed else ""
        self.progress.update(
            self.cell_bar, completed=done, total=total, description=f"tuning cells{note}"
        )


@contextmanager
def sweep_bars() -> Iterator[SweepBars]:
    """Show the bars of a sweep while the block runs."""
    with _bars() as progress:
        yield SweepBars(
            progress,
            table_bar=progress.add_task("scoring prompts", total=None),
            cell_bar=progress.add_task("tuning cells", total=None),
        )


@contextmanager
def trial_bar(description: str, total: int) -> Iterator[Progress]:
    """Show one bar; ``progress.advance(progress.task_ids[0])`` moves it."""
    with _bars() as progress:
        progress.add_task(description, total=total)
        yield progress
