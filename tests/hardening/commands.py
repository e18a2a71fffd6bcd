"""Running commands with a limit on time, and what must hold of every outcome."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from tests.workflows.conftest import Outcome, run_dcs

__all__ = ["Hung", "Outcome", "checked", "leftovers", "soon"]

_PATIENCE = 120


class Hung(BaseException):
    """Not an error of the block's own, which it might answer."""


@contextmanager
def soon(seconds: int = _PATIENCE) -> Iterator[None]:
    """Fail if the block hangs."""

    def late(number: int, frame: FrameType | None) -> None:
        raise Hung(f"still running after {seconds} s")

    earlier = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, earlier)


def checked(*arguments: object) -> Outcome:
    """Run a command; whatever it was given, it ends well or says on one line why not."""
    with soon():
        outcome = run_dcs(*arguments)
    assert outcome.code in (0, 1, 2), outcome
    for text in (outcome.out, outcome.err):
        assert "Traceback" not in text, outcome
        assert "\x1b[2J" not in text, outcome
    if "nan" not in arguments:
        assert not re.search(r"\bnan\b", outcome.out), outcome
    if outcome.code == 2:
        assert outcome.err.startswith("dcs: error: "), outcome
        assert outcome.err.count("\n") == 1, outcome
    return outcome


def leftovers(folder: Path) -> list[str]:
    """Return what an interrupted write would leave behind."""
    return [str(path) for path in folder.rglob("*") if path.suffix in (".part", ".tmp")]
