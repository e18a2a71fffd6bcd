"""A writer in a process of its own, which the recorder of a sweep talks to in lines of JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

from dcs.errors import redact_output
from dcs_tracking.archive import Archive, Sweep
from dcs_tracking.store.writer import RecorderReport, Writer

#: Seconds between two reports of how far the writer is.
_TELL_SECONDS = 0.5

#: Seconds that the end of the process is waited for, longer than it was given for its work.
_LATE_SECONDS = 30.0


class WriterProcess:
    """Like `Writer`, in a process that loads MLflow in place of this one.

    It ends when this process ends, however that ends.

    Parameters
    ----------
    tracking_uri, archive, sweep, warn, **options
        See `Writer`.

    Attributes
    ----------
    progress : tuple of int, int and str
        See `Writer`; up to date within a second.

    Raises
    ------
    OSError
        Raised if no process can be started.
    """

    def __init__(
        self,
        tracking_uri: str,
        archive: Archive,
        sweep: Sweep,
        *,
        warn: Callable[[str], None],
        **options: Any,
    ) -> None:
        self.progress = (0, 0, "cells")
        self._warn = warn
        self._report: RecorderReport | None = None
        command = [sys.executable, "-c", f"from {__name__} import main; main()"]
        # Ctrl-C is for this process, which then asks the other to end.
        pipes: Any = {"stdin": PIPE, "stdout": PIPE, "text": True}
        self._process = Popen(command, start_new_session=True, **pipes)
        # Other users can read a command line, and the address may have a password.
        self.put([tracking_uri, str(archive.output), sweep.model_dump(mode="json"), options])
        self._listener = threading.Thread(target=self._listen, name="dcs-listener", daemon=True)
        self._listener.start()

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def end(self, sweep: Sweep, seconds: float) -> RecorderReport | None:
        """See `Writer.end`; None if the process has died before."""
        self.put([sweep.model_dump(mode="json"), seconds])
        self._listener.join(min(seconds + _LATE_SECONDS, threading.TIMEOUT_MAX))
        self._process.kill()
        self._listener.join()
        return self._report

    def put(self, message: object) -> None:
        """Schedule the writing of a cell that is on disk, by its key; or send another message."""
        # In ASCII, so that the locale does not matter. That the process has died is seen later:
        # its pipes are closed then.
        with suppress(OSError, ValueError):
            print(json.dumps(message), file=self._process.stdin, flush=True)

    def _listen(self) -> None:
        with suppress(OSError, ValueError), self._process as process:
            for line in process.stdout or ():
                news = json.loads(line)
                if isinstance(news, str):
                    self._warn(news)
                elif isinstance(news, list):
                    self.progress = (news[0], news[1], news[2])
                else:
                    self._report = RecorderReport(**news)


def main() -> None:
    """Write the cells that standard input names, until it ends."""
    from matplotlib import figure  # noqa: F401

    redact_output()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # The other process decides.
    answer, sys.stdout = sys.stdout, sys.stderr  # Libraries may print.
    one_line = threading.Lock()

    def tell(news: object) -> None:
        with one_line:
            print(json.dumps(news), file=answer, flush=True)

    def tell_progress() -> None:
        while True:
            tell(writer.progress)
            time.sleep(_TELL_SECONDS)

    def end(sweep: Any, seconds: float) -> None:
        try:
            tell(asdict(writer.end(Sweep(**sweep), seconds)))
        finally:
            os._exit(0)

    uri, output, sweep, options = json.loads(sys.stdin.readline())
    writer = Writer(uri, Archive(Path(output)), Sweep(**sweep), warn=tell, **options)
    threading.Thread(target=tell_progress, daemon=True).start()
    for line in sys.stdin:
        message = json.loads(line)
        if isinstance(message, str):
            writer.put(message)
        else:
            threading.Thread(target=end, args=message, daemon=True).start()
    os._exit(0)
