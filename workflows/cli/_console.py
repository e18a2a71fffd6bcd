"""What people see while a command works and when it is done."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.errors import MarkupError
from rich.markup import escape
from rich.markup import render as render_markup
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.status import Status
from rich.table import Table

__all__ = ["console", "count_bar", "marked", "new_table", "share_bar"]

#: A file or a pipe has no width of its own: wide enough for a table of ten classes.
_PIPE_WIDTH = 130

#: The markup that our own lines use. Names of files, tasks and classes hold brackets too.
_OTHER_BRACKET = re.compile(r"(?<!\\)\[(?!/?(?:bold|dim|red|green|yellow)\])")


def marked(text: str) -> str:
    """Return a line for the terminal in which only our own few styles count as markup.

    Whatever else stands in brackets is shown as it is, and control characters, which could move
    the cursor or hide what comes next, are shown escaped.
    """
    visible = _visible(text)
    line = _OTHER_BRACKET.sub(r"\\[", visible)
    try:
        render_markup(line)
    except MarkupError:
        return escape(visible)
    return line


def _visible(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        repr(c)[1:-1] if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t" else c
        for c in text
    )


class _Console(Console):
    """Shows names that come from files without taking them for markup."""

    def print(self, *objects: Any, markup: bool | None = None, **options: Any) -> None:
        clean = _visible if markup is False else marked
        shown = [clean(item) if isinstance(item, str) else item for item in objects]
        super().print(*shown, markup=markup, **options)

    def status(self, status: Any, **options: Any) -> Status:
        return super().status(marked(status) if isinstance(status, str) else status, **options)


class _Table(Table):
    """A table whose cells are handled as the lines of the console are."""

    def add_column(self, header: Any = "", *rest: Any, **options: Any) -> None:
        super().add_column(marked(header) if isinstance(header, str) else header, *rest, **options)

    def add_row(self, *cells: Any, **options: Any) -> None:
        shown = [marked(cell) if isinstance(cell, str) else cell for cell in cells]
        super().add_row(*shown, **options)


console: Console = _Console()
if not console.is_terminal:
    console = _Console(width=_PIPE_WIDTH)


def new_table(*columns: str) -> Table:
    """Return an empty table in the one style; columns ending in a space are aligned left."""
    table = _Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False)
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
        bar = progress.add_task(marked(description), total=1.0)
        yield lambda share: progress.update(bar, completed=share)
        progress.update(bar, completed=1.0)


@contextmanager
def count_bar(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show one bar of `total` pieces of work; call what is given with the number just done."""
    with _bars() as progress:
        bar = progress.add_task(marked(description), total=total)
        yield lambda number: progress.advance(bar, number)
