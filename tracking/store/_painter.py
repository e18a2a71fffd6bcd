"""Draws the figures of runs in a process of its own, behind all other work.

Drawing takes longer than all else in recording, and Python would let it hold up the threads of a
sweep's driver. The process has a low priority, ends with its parent, and may fail or hang: then
there is no figure.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tracking import schema
from tracking.archive import Archive
from tracking.records import CellRecord
from tracking.results.frames import has_chosen

__all__ = ["Painter", "is_drawn"]

_log = logging.getLogger("tracking")
#: After so many seconds without an answer a drawing is given up.
_PATIENCE = 60.0
_NICENESS = 10


def is_drawn(record: CellRecord) -> bool:
    """Whether a cell has something to draw: a scheme that was chosen, or a search."""
    return record.finished and (bool(record.trace) or has_chosen(record))


class Painter:
    """Draws what is in an archive; started when first asked.

    Parameters
    ----------
    archive : Archive
        Where the records are.
    """

    def __init__(self, archive: Archive) -> None:
        self._output = archive.output
        self._process: subprocess.Popen[bytes] | None = None
        self._failed = False

    def cell(self, key: str) -> dict[str, bytes] | None:
        """Return the figures of a cell by file name, or None while nothing can be drawn."""
        return self._draw({"cell": key})

    def sweep(self, keys: Iterable[str]) -> dict[str, bytes] | None:
        """Return the figures of all cells together by file name, or None."""
        return self._draw({"sweep": list(keys)})

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _draw(self, order: dict[str, Any]) -> dict[str, bytes] | None:
        if self._failed:
            return None
        with tempfile.TemporaryDirectory(prefix="dcs-") as folder:
            try:
                answer = self._ask(order | {"output": str(self._output), "folder": folder})
            except (OSError, ValueError, TimeoutError) as error:
                self.close()
                self._failed = True
                _log.warning("figures are no longer drawn (%s); dcs report draws them", error)
                return None
            if answer.get("error"):
                _log.warning("figures were not drawn (%s)", answer["error"])
            return {
                path.relative_to(folder).as_posix(): path.read_bytes()
                for path in sorted(Path(folder).rglob("*"))
                if path.is_file()
            }

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        if self._process is None:
            self._process = _start()
        given, taken = self._process.stdin, self._process.stdout
        if given is None or taken is None:
            raise OSError("the drawing process has no pipes")
        given.write(json.dumps(order).encode() + b"\n")
        given.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(taken, selectors.EVENT_READ)
            if not selector.select(_PATIENCE):
                raise TimeoutError(f"nothing drawn in {_PATIENCE:.0f} s")
        line = taken.readline()
        if not line:
            raise OSError("the drawing process ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _start() -> subprocess.Popen[bytes]:
    # This package, and no folder of the same name where the sweep happens to be started.
    places = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    settings = {
        "PYTHONPATH": os.pathsep.join(filter(None, places)),
        "MPLBACKEND": "Agg",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "tracking.store._painter"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | settings,
        # Ctrl-C is for the sweep, which ends this process by closing its pipe.
        start_new_session=True,
    )


def _paint(order: dict[str, Any]) -> None:
    """Carry out one order: write the figures into its folder."""
    from tracking.results.figures import overview_figures, save_figure, scheme_figure, trace_figure

    archive, folder = Archive(order["output"]), Path(order["folder"]) / schema.FIGURES_FOLDER
    if "sweep" in order:
        records = archive.load(order["sweep"]).records.values()
        for name, (_, figure) in overview_figures(records).items():
            save_figure(figure, folder, name)
        return
    record = archive.read(order["cell"])
    if has_chosen(record):
        save_figure(scheme_figure(record), folder, "scheme")
    if record.trace:
        save_figure(trace_figure(record), folder, "annealing")


def _orders() -> Iterator[dict[str, Any]]:
    for line in sys.stdin.buffer:
        yield json.loads(line)


def _serve() -> None:
    """Carry out orders until the pipe is closed."""
    os.nice(_NICENESS)
    # What a library prints must not be taken for an answer.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for order in _orders():
        answer = {}
        try:
            _paint(order)
        except Exception as error:
            answer["error"] = f"{type(error).__name__}: {error}"
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    _serve()
