"""What the command line says when something goes wrong: one line that can be shown to anyone."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from types import TracebackType
from typing import cast

import typer

from dcs.errors import DCSError
from dcs.messages import escaped, redact

__all__ = [
    "MENDABLE",
    "USAGE_ERROR",
    "explained",
    "forget_output",
    "plain_warning",
    "print_anything",
    "show_traceback",
    "show_usage_error",
]

#: What a user can mend: bad input, a full or read-only disk, too little memory. The rest is a bug
#: and shows its traceback.
MENDABLE = (DCSError, OSError, MemoryError)

#: A mistyped command or option. Typer has it of its own or of Click, by its version.
USAGE_ERROR = cast(type[Exception], typer.BadParameter.__base__)

_LONGEST = 2000
_ADVICE = {
    errno.ENOSPC: "make room and run the same command again",
    errno.EDQUOT: "make room and run the same command again",
    errno.EFBIG: "the limit on file sizes is too low for it (ulimit -f)",
    errno.EROFS: "choose another folder",
    errno.ENOTDIR: "a part of that path is a file; choose another folder",
    errno.EACCES: "choose another folder, or ask for the right to use this one",
    errno.EPERM: "choose another folder, or ask for the right to use this one",
    errno.ELOOP: "a symbolic link leads to itself; remove it",
    errno.EMFILE: "too many files are open (ulimit -n)",
    errno.ENAMETOOLONG: "choose a shorter name",
}


def explained(error: BaseException) -> str:
    """Return the one line for an error: printable, without secrets, and not endless."""
    if isinstance(error, MemoryError):
        text = "out of memory; use fewer rows, or a machine with more memory"
    elif isinstance(error, OSError) and not isinstance(error, DCSError):
        places = [os.fsdecode(name) for name in (error.filename, error.filename2) if name]
        # A temporary sibling stands for the file that was to be written.
        place = places[-1] if places else ""
        advice = _ADVICE.get(error.errno or 0, "")
        text = ": ".join(part for part in (place, error.strerror or str(error)) if part)
        text = "; ".join(part for part in (text or type(error).__name__, advice) if part)
    else:
        text = str(error)
    return _cut(redact(escaped(" ".join(text.split()))))


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def show_usage_error(error: Exception) -> None:
    """Print on one line what was mistyped, and which help to read.

    A group of commands without one has printed its help already.
    """
    if type(error).__name__ == "NoArgsIsHelpError":
        return
    # Not annotated as what it is: see USAGE_ERROR.
    context, said = getattr(error, "ctx", None), getattr(error, "format_message", error.__str__)()
    command = context.command_path if context is not None else "dcs"
    # Typer has Pydantic check what an option may be, which puts these words in front.
    said = said.replace("Value error, ", "")
    line = redact(escaped(" ".join(said.split())).rstrip("."))
    typer.echo(f"dcs: error: {_cut(line)}; see {command} --help", err=True)


def show_traceback(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print a traceback as Python does, without the secrets that its messages may quote."""
    sys.stderr.write(redact("".join(traceback.format_exception(kind, error, trace))))


def plain_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """Return a warning as a person reads it: without the line of code that gave it."""
    return f"dcs: warning: {redact(escaped(message))}\n"


def print_anything() -> None:
    """Have the terminal show, escaped, what its encoding cannot: file names are any bytes."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if callable(reconfigure):
            reconfigure(errors="backslashreplace")


def forget_output() -> None:
    """Drop what standard output cannot take, so that Python does not fail on it once more."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
