"""Console output: tables, progress bars, error messages, and handling of stop signals."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from errno import ENOSPC
from functools import partial
from traceback import extract_tb, walk_stack
from types import FrameType
from typing import Any, cast

import typer
from rich import box, progress
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dcs.errors import DCSError, escaped, redact, redact_output

#: Width for files and pipes, in which no table is wrapped.
_PIPE_WIDTH = 1000
#: Interval between attempts to stop a command where an exception would be discarded.
_AGAIN_SECONDS = 0.05

#: Functions that discard exceptions: finalizers, and what starts a process, with hooks of others.
_DISCARDING = {"__del__", "_execute_child"}


class _Console(Console):
    """Console that prints text verbatim, except for escaped control characters."""

    #: When the command began.
    started = 0.0

    def render_str(self, text: str, **options: Any) -> Text:
        visible = "\n".join(escaped(line) for line in text.split("\n"))
        return super().render_str(visible, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        # Lines are not wrapped, so that they can be copied; tables are fitted to the width.
        super().print(
            *objects, soft_wrap=not any(isinstance(each, Table) for each in objects), **options
        )

    def on_broken_pipe(self) -> None:
        # The reader has seen enough, such as `head`; the work goes on, and is written to disk.
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


console = _Console(highlight=False, markup=False, emoji=False)
if not console.is_terminal:
    console.width = _PIPE_WIDTH


def warn(line: str) -> None:
    """Print a warning, with --quiet and --json too."""
    typer.secho(line, fg="yellow", err=True)


def conclude(
    summary: Mapping[str, Any],
    *,
    failed: object = None,
    pending: object = None,
    stopped: object = None,
) -> None:
    """Print the summary if stdout is kept for it, and exit.

    The code is 1 if cells failed, 4 if work is left, 3 if some are not recorded.
    """
    code = 1 if failed else 4 if stopped else 3 if pending else 0
    if console.stderr:
        seconds = round(time.perf_counter() - console.started, 3)
        typer.echo(json.dumps({**summary, "seconds": seconds, "exit_code": code}, default=str))
    if code:
        raise typer.Exit(code)


def new_table(*columns: str, dense: bool = False) -> Table:
    """Return an empty table; columns whose name ends with a space are left-aligned."""
    padding = (0, 1, 0, 0) if dense else (0, 1)
    table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, padding=padding)
    for name in columns:
        table.add_column(name.rstrip(), justify="left" if name.endswith(" ") else "right")
    return table


def duration(seconds: float) -> str:
    """Return a human-readable duration: ``45 s``, ``12 min``, ``3.5 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


@contextmanager
def progress_bar(description: str, total: float = 1.0) -> Iterator[Callable[..., None]]:
    """Show one bar; the yielded function updates it by `completed=` or `advance=`."""
    text = progress.TextColumn("{task.description}", markup=False)
    times = progress.TimeElapsedColumn(), progress.TimeRemainingColumn()
    with progress.Progress(text, progress.BarColumn(), *times, console=console) as shown:
        task = shown.add_task(description, total=total)
        yield partial(shown.update, task)
        shown.update(task, completed=total)


#: User-correctable errors: bad input, a full or read-only disk, too little memory. Any other
#: exception is a bug and shows its traceback.
USER_ERRORS = (DCSError, OSError, MemoryError)

#: An invalid command or option. Depending on its version, Typer defines this or uses Click's.
USAGE_ERROR = cast(type[Exception], typer.BadParameter.__base__)


class Stop:
    """Handler of SIGINT, SIGTERM and SIGHUP: a command ends in order, its runs marked as killed.

    Ray re-raises an interrupt of its waits as a bare KeyboardInterrupt, so the signal number has
    to be stored separately for the exit code.

    Attributes
    ----------
    number : int or None
        Number of the received signal, if any.
    """

    number: int | None = None

    def listen(self) -> None:
        """Install the handlers; call again after Ray, which installs its own."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGALRM:
            self.number = number
        if any(map(_discards, walk_stack(frame))):
            # The command would go on, and other threads wait for a lock: try again later.
            signal.signal(signal.SIGALRM, self._on_signal)
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
            return
        raise KeyboardInterrupt


def _discards(place: tuple[FrameType, int]) -> bool:
    """Return whether a frame discards exceptions; some modules do while they are imported."""
    code = place[0].f_code
    return code.co_filename.startswith("<frozen importlib") or code.co_name in _DISCARDING


#: One instance, since signal handlers are per process.
STOP = Stop()


def explained(error: BaseException) -> str:
    """Return a one-line message for an error: printable, redacted and limited in length."""
    if isinstance(error, MemoryError):
        return "out of memory; use fewer rows, or a machine with more memory"
    if isinstance(error, OSError) and not isinstance(error, DCSError):
        if error.filename:
            more = "; make room and run the same command again" if error.errno == ENOSPC else ""
            return _one_line(f"{os.fsdecode(error.filename)}: {error.strerror}{more}")
        # Of a socket, or of a folder that was deleted: what it is, only the place tells.
        where = extract_tb(error.__traceback__)[-1]
        return _one_line(f"{error} (in {where.name}, {where.filename}:{where.lineno})")
    return _one_line(str(error) or type(error).__name__)


def usage_line(error: Exception) -> str | None:
    """Return the message of a usage error; None if the help has been printed instead."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return None
    # These attributes are not known statically: see USAGE_ERROR.
    context, text = getattr(error, "ctx", None), getattr(error, "format_message", error.__str__)()
    command = context.command_path if context is not None else "dcs"
    return f"{_one_line(text).rstrip('.')}; see {command} --help"


def _one_line(text: str) -> str:
    line = redact(escaped(" ".join(text.split())))
    return line if len(line) <= 2000 else f"{line[:2000]}..."


def prepare_output() -> None:
    """Redact warnings and tracebacks, and escape text that the streams cannot encode."""
    console.stderr, console.quiet, console.started = False, False, time.perf_counter()
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if callable(reconfigure):
            reconfigure(errors="backslashreplace")
    redact_output()
