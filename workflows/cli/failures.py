"""How a command ends: one line that can be shown to anyone, in order also when it is stopped."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from traceback import format_exception
from types import FrameType
from typing import cast

import typer

from dcs.errors import DCSError
from dcs.messages import escaped, redact

#: User-correctable errors: bad input, a full or read-only disk, too little memory. The rest is
#: a bug and shows its traceback.
USER_ERRORS = (DCSError, OSError, MemoryError)

#: A mistyped command or option. Typer has it of its own or of Click, by its version.
USAGE_ERROR = cast(type[Exception], typer.BadParameter.__base__)

_LONGEST = 2000


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
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def prepare_output() -> None:
    """Have warnings and tracebacks shown without secrets, and names of any bytes escaped."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if callable(reconfigure):
            reconfigure(errors="backslashreplace")
    sys.excepthook = lambda *error: sys.stderr.write(redact("".join(format_exception(*error))))
    warnings.formatwarning = lambda message, *about: f"dcs: warning: {redact(escaped(message))}\n"
