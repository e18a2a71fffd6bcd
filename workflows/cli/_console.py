"""What people see while a command works and when it is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

__all__ = ["console", "new_table", "share_bar", "trial_bar"]

#: A file or a pipe has no width of its own: wide enough for a table of ten classes.
_PIPE_WIDTH = 130

console = Console()
if not console.is_terminal:
    console = Console(width=_PIPE_WIDTH)


def new_table(*columns: str) -> Table:
    """Return an empty table in the one style; columns ending in a space are aligned left."""
    table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False)
    for name in columns:
        table.add_column(name.rstrip(), justify="left" if name.endswith(" ") else "right")
    return table


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


@contextmanager
def share_bar(description: str) -> Iterator[Callable[[float], None]]:
    """Show one bar of work of unknown units; call what is given with the share done, 0..1."""
    columns = [column for column in _bars().columns if not isinstance(column, MofNCompleteColumn)]
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(description, total=1.0)
        yield lambda share: progress.update(bar, completed=share)
        progress.update(bar, completed=1.0)


@contextmanager
def trial_bar(description: str, total: int) -> Iterator[Progress]:
    """Show one bar; ``progress.advance(progress.task_ids[0])`` moves it."""
    with _bars() as progress:
        progress.add_task(description, total=total)
        yield progress
