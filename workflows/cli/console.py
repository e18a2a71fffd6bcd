"""What people see while a command works, when it is done, and when it fails or is stopped."""

from __future__ import annotations

import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from traceback import format_exception
from types import FrameType
from typing import Any, cast

import typer
from rich import box, progress
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from dcs.errors import ConfigError, DCSError, escaped, redact, show

#: A file or a pipe has no width of its own: wide enough for a table of ten classes.
_PIPE_WIDTH = 130


class _Console(Console):
    """Shows names that come from files as they are, but for what could move the cursor."""

    def render_str(self, text: str, **options: Any) -> Text:
        visible = "\n".join(escaped(line) for line in text.split("\n"))
        return super().render_str(visible, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        # Lines are left whole, for people to copy; tables are laid out in the width there is.
        super().print(
            *objects, soft_wrap=not any(isinstance(each, Table) for each in objects), **options
        )


console = _Console(highlight=False, markup=False, emoji=False)
if not console.is_terminal:
    console.width = _PIPE_WIDTH


def new_table(*columns: str, dense: bool = False) -> Table:
    """Return an empty table in the one style; columns ending in a space are aligned left."""
    padding = (0, 1, 0, 0) if dense else (0, 1)
    table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, padding=padding)
    for name in columns:
        table.add_column(name.rstrip(), justify="left" if name.endswith(" ") else "right")
    return table


def column_tables(
    corner: str,
    rows: Sequence[str],
    columns: Mapping[str, Sequence[str]],
    *,
    width: int,
    ruled: int = 0,
) -> Iterator[Table]:
    """Lay columns out by their heads, as many on each table as fit; rule off the first rows."""
    widest = max(
        len(line) for head, texts in columns.items() for line in (*head.split("\n"), *texts)
    )
    number = max(1, (width - max(map(len, rows)) - 1) // (widest + 2))
    heads = list(columns)
    for start in range(0, len(heads), number):
        some = heads[start : start + number]
        table = new_table(corner, *some, dense=True)
        for i, name in enumerate(rows):
            table.add_row(name, *(columns[head][i] for head in some), end_section=i + 1 == ruled)
        yield table


def width_of(table: Table) -> int:
    """Return how many characters wide a table is where nothing is folded."""
    return Measurement.get(console, console.options.update(width=10_000), table).maximum


def duration(seconds: float) -> str:
    """Return a length of time for people: ``45 s``, ``12 min``, ``3.5 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def parse_duration(text: str) -> float:
    """Return the seconds of a length of time such as ``90s``, ``45m``, ``2h``, ``1d12h``.

    Raises
    ------
    ConfigError
        It is none.
    """
    units = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
    parts = re.findall(r"(\d+(?:\.\d+)?)([dhms])", text)
    seconds = sum(float(number) * units[unit] for number, unit in parts)
    if "".join(map("".join, parts)) != text or not seconds:
        raise ConfigError(f"{show(text)} is no length of time; write 90s, 45m, 2h or 1h30m")
    return seconds


def bars(*columns: progress.ProgressColumn) -> progress.Progress:
    """Return a display of bars, each with what it is of and these columns."""
    what = progress.TextColumn("{task.description}", markup=False)
    bar = progress.BarColumn(bar_width=28)
    return progress.Progress(progress.SpinnerColumn(), what, bar, *columns, console=console)


@contextmanager
def progress_bar(description: str, total: float = 1.0) -> Iterator[Callable[..., None]]:
    """Show one bar; what is given takes the amount `completed`, or to `advance` by."""
    counts = [progress.MofNCompleteColumn()] if total > 1.0 else []
    with bars(*counts, progress.TimeElapsedColumn(), progress.TimeRemainingColumn()) as shown:
        task = shown.add_task(description, total=total)
        yield partial(shown.update, task)
        shown.update(task, completed=total)


#: User-correctable errors: bad input, a full or read-only disk, too little memory. The rest is
#: a bug and shows its traceback.
USER_ERRORS = (DCSError, OSError, MemoryError)

#: A mistyped command or option. Typer has it of its own or of Click, by its version.
USAGE_ERROR = cast(type[Exception], typer.BadParameter.__base__)


class Stop:
    """Takes SIGINT and SIGTERM: a command ends in order, its runs marked as killed.

    Ray passes an interrupt of its waits on as a bare KeyboardInterrupt, so the signal has to be
    kept beside it for the exit code.

    Attributes
    ----------
    number : int or None
        The signal, once it has come.
    """

    def __init__(self) -> None:
        self.number: int | None = None

    def listen(self) -> None:
        """Take the signals; to be called again after Ray has taken them."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        raise KeyboardInterrupt


#: Signals belong to the process, and so does what is remembered of them.
STOP = Stop()


def explained(error: BaseException) -> str:
    """Return the one line for an error: printable, without secrets, and not endless."""
    if isinstance(error, MemoryError):
        return "out of memory; use fewer rows, or a machine with more memory"
    if isinstance(error, OSError) and not isinstance(error, DCSError) and error.filename:
        # A temporary sibling stands for the file that was to be written.
        return _one_line(f"{os.fsdecode(error.filename2 or error.filename)}: {error.strerror}")
    return _one_line(str(error) or type(error).__name__)


def usage_line(error: Exception) -> str | None:
    """Return what was mistyped and which help to read; None if that has been printed."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return None
    # Not annotated as what it is: see USAGE_ERROR.
    context, said = getattr(error, "ctx", None), getattr(error, "format_message", error.__str__)()
    command = context.command_path if context is not None else "dcs"
    return f"{_one_line(said).rstrip('.')}; see {command} --help"


def _one_line(text: str) -> str:
    line = redact(escaped(" ".join(text.split())))
    return line if len(line) <= 2000 else f"{line[:2000]}..."


def prepare_output() -> None:
    """Have warnings and tracebacks shown without secrets, and names of any bytes escaped."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if callable(reconfigure):
            reconfigure(errors="backslashreplace")
    sys.excepthook = lambda *error: sys.stderr.write(redact("".join(format_exception(*error))))
    warnings.formatwarning = lambda message, *about: f"dcs: warning: {redact(escaped(message))}\n"
