"""SIGTERM ends a command as Ctrl-C does: in order, with its runs marked as killed."""

from __future__ import annotations

import signal
from types import FrameType

__all__ = ["STOP", "Stop"]


class Stop:
    """Remembers which signal asked for the end.

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
        """Take SIGINT and SIGTERM; to be called again after Ray has taken them."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        raise KeyboardInterrupt


#: Signals belong to the process, and so does what is remembered of them.
STOP = Stop()
