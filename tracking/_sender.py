"""The background thread of a recorder: the only writer of its sweep.

It takes keys, reads the records from the outbox, and survives a store that goes away: the outbox
is the queue, in memory there are only keys.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from dcs._messages import named, one_line
from dcs.errors import TrackingError
from tracking._painter import Painter, is_drawn
from tracking._runs import SweepRuns
from tracking.destinations import Destination
from tracking.outbox import Outbox
from tracking.records import CellRecord
from tracking.reports import RecorderReport, SweepStatus
from tracking.stores import (
    StoreUnavailable,
    artifact_location,
    open_client,
    quietly,
    redact,
)

_log = logging.getLogger("tracking")
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 60.0
DRAWING_SECONDS = 20.0


class Sender:
    """Sends the records of one destination, and ends its sweep.

    Parameters
    ----------
    uri : str
        The store.
    outbox : Outbox
        Where the records are.
    destination : Destination
        Which of them have arrived; must be acquired.
    warn : callable, optional
        Called with one line, once, when the store cannot be used.
    progress : callable, optional
        Called after each recorded cell.
    drawing_seconds : float
        For how long figures of cells are drawn after the end of the sweep. Before, they are drawn
        whenever there is nothing to send.
    """

    def __init__(
        self,
        uri: str,
        outbox: Outbox,
        destination: Destination,
        *,
        warn: Callable[[str], None] | None,
        progress: Callable[[], None] | None,
        drawing_seconds: float = DRAWING_SECONDS,
    ) -> None:
        self.tracking_uri = uri
        self.outbox = outbox
        # Held while a record is written and noted, so that file and note are of one mind.
        self.files = threading.RLock()
        self._destination = destination
        self._warn = warn or _log.warning
        self._progress = progress
        self._todo: dict[str, None] = dict.fromkeys(destination.pending())
        self._wake = threading.Condition()
        self._stop_status: SweepStatus | None = None
        self._stop_at: float | None = None
        self._runs: SweepRuns | None = None
        self._recorded = 0
        self._rejected: dict[str, str] = {}
        self._damaged: dict[str, str] = {}
        self._trouble: str | None = None
        self._painter = Painter(outbox)
        self._drawing_seconds = drawing_seconds
        self._given_up: set[str] = set()
        self._warned = False
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="dcs-recorder", daemon=True)
        self._thread.start()

    def send(self, key: str) -> None:
        """Have the record of a cell sent when its turn comes."""
        with self._wake:
            self._todo[key] = None
            self._wake.notify()

    def stop(self, status: SweepStatus, timeout: float | None) -> None:
        """End the sweep once all is sent, or after `timeout` seconds; does not wait."""
        with self._wake:
            # The later call is the more urgent one: Ctrl-C while the end is waited for.
            self._stop_status = status
            self._stop_at = None if timeout is None else time.monotonic() + timeout
            self._wake.notify()

    def join(self, timeout: float | None) -> bool:
        """Wait for the end; False if it has not come in time."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._painter.close()

    def _work(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                while (key := self._next()) is not None:
                    self._write(key)
                    pause, self._trouble = _FIRST_PAUSE, None
                    self._draw_while_idle()
                self._conclude()
                return
            except StoreUnavailable as error:
                self._say_unavailable(error)
            except Exception as error:
                # Whatever goes wrong here must not take the sweep with it.
                _log.debug("recording failed", exc_info=True)
                self._say_unavailable(error)
            if self._stop_status is not None:
                self._remember_end()
                return
            self._rest(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _next(self) -> str | None:
        """Wait for the next key; "" asks to open the store, None to conclude."""
        with self._wake:
            while True:
                if self._runs is None and self._stop_status is None:
                    return ""
                late = self._stop_at is not None and time.monotonic() > self._stop_at
                if self._todo and not late:
                    key = next(iter(self._todo))
                    del self._todo[key]
                    return key
                if self._stop_status is not None:
                    return None
                self._wake.wait()

    def _draw_while_idle(self) -> None:
        while self._runs is not None:
            with self._wake:
                if self._todo or self._stop_status is not None:
                    return
            if not self._draw_one(self._runs):
                return

    def _rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        with self._wake:
            while self._stop_status is None and (left := until - time.monotonic()) > 0:
                self._wake.wait(left)

    def _open(self) -> SweepRuns:
        if self._runs is None:
            uri, info = self.tracking_uri, self._destination.info
            client = open_client(uri)
            location = artifact_location(uri, self.outbox.output, info.experiment)
            try:
                with quietly():
                    self._runs = SweepRuns(client, info, location=location)
            except StoreUnavailable:
                raise
            except Exception as error:
                raise StoreUnavailable(one_line(error)) from error
            # Marks from a store that has since been deleted are void. What was refused before is
            # not tried again by this recorder.
            given_up = self._rejected.keys() | self._damaged.keys()
            pending = self._destination.pending(self._runs.parent_id)
            with self._wake:
                self._todo |= {key: None for key in pending if key not in given_up}
        return self._runs

    def _write(self, key: str) -> None:
        if not key:
            self._open()
            return
        try:
            with self.files:
                record = self.outbox.read(key)
                digest = record.digest
                # A driver that died may have replaced the file and not said so.
                self._destination.queue(key, digest)
        except TrackingError as error:
            self._damaged[key] = str(error)
            return
        try:
            run_id, parent_id = self._attempt(record, digest)
        except StoreUnavailable:
            with self._wake:
                self._todo[key] = None
            raise
        except Exception as error:
            _log.debug("cell %s was not taken", key, exc_info=True)
            self._rejected[key] = named(error)
        else:
            self._rejected.pop(key, None)
            to_draw = self._destination.info.figures and is_drawn(record)
            self._destination.mark(key, digest, run_id=run_id, parent=parent_id, drawn=not to_draw)
            self._recorded += 1
            if self._progress is not None:
                self._progress()
        with self._wake:
            # Opening the store may have put the key back; a newer record of it must stay.
            if self._destination.digest(key) == digest:
                self._todo.pop(key, None)

    def _attempt(self, record: CellRecord, digest: str) -> tuple[str, str]:
        """Write a cell, a second time if the store fails but still answers.

        A store that does not answer raises StoreUnavailable; any other error is the record's.
        """
        runs = self._open()
        try:
            with quietly():
                return runs.write_cell(record, digest), runs.parent_id
        except Exception:
            _log.debug("cell %s: first attempt failed", record.key, exc_info=True)
        self._runs = None
        runs = self._open()
        try:
            with quietly():
                return runs.write_cell(record, digest), runs.parent_id
        except Exception:
            self._runs = None
            runs = self._open()
            with quietly():
                runs.forget_cell(record.key)
            raise

    def _conclude(self) -> None:
        runs = self._open()
        self._trouble = None
        self._remember_end()
        contents = self.outbox.load(self._destination.keys, slim=True)
        with quietly():
            try:
                runs.write_summary(contents.records.values())
            except Exception as error:
                # The tables can be made again; a run that seems to run for ever is worse.
                _log.debug("the tables of the sweep were not taken", exc_info=True)
                self._trouble = one_line(error)
            runs.end(self._stop_status or "KILLED")
        self._ended = self._trouble is None
        if self._ended:
            self._destination.save(ended=True)
        # Last, so that nothing is missing but figures if this is the time to be killed.
        self._draw_the_rest(runs, contents.records)

    def _draw_one(self, runs: SweepRuns) -> bool:
        """Draw a cell that has been recorded; False if there is none left."""
        if not self._destination.info.figures:
            return False
        undrawn = self._destination.undrawn()
        key = next((key for key in undrawn if key not in self._given_up), None)
        if key is None:
            return False
        figures = self._painter.cell(key)
        if figures is None:
            self._given_up.add(key)
            return True
        try:
            with quietly():
                runs.write_figures(figures, run_id=undrawn[key])
            self._destination.mark_drawn(key, self._destination.digest(key) or "")
        except Exception as error:
            # The figures can be drawn again; the cell itself is recorded.
            self._given_up.add(key)
            _log.debug("the figures of %s were not taken (%s)", key, one_line(error))
        return True

    def _draw_the_rest(self, runs: SweepRuns, keys: Iterable[str]) -> None:
        """Draw the sweep and, for a while, the cells that are left; not for who is in a hurry."""
        if self._stop_at is not None or not self._destination.info.figures:
            return
        until = time.monotonic() + self._drawing_seconds
        try:
            if not self._destination.is_pictured(runs.parent_id):
                figures = self._painter.sweep(keys)
                with quietly():
                    runs.write_figures(figures or {})
                if figures is not None:
                    self._destination.mark_pictured(runs.parent_id)
        except Exception as error:
            # Without its pictures the sweep is recorded all the same.
            _log.warning("the figures of the sweep were not taken (%s)", one_line(error))
        while self._stop_at is None and time.monotonic() < until and self._draw_one(runs):
            continue

    def _remember_end(self) -> None:
        try:
            self._destination.save(status=self._stop_status)
        except TrackingError as error:
            self._trouble = one_line(error)  # A sweep without a known end counts as killed.

    def _say_unavailable(self, error: Exception) -> None:
        self._runs = None
        self._trouble = one_line(error)
        if not self._warned:
            self._warned = True
            self._warn(
                f"tracking store {redact(self.tracking_uri)} cannot be used ({self._trouble}); "
                f"results are kept in {self.outbox.output} and recorded when it can"
            )

    def report(self, status: SweepStatus) -> RecorderReport:
        """Return what has become of the records so far."""
        runs = self._runs
        pending = self._destination.pending(runs.parent_id if runs else None)
        uri, name = redact(self.tracking_uri), self._destination.info.experiment
        idle = not self._recorded and not pending
        new = "nothing new to record" if idle else f"{self._recorded} cells recorded"
        message = f"{new} in experiment {name!r} of {uri}"
        if pending or not self._ended:
            reason = self._trouble or next(iter(self._rejected.values()), None)
            reason = reason or next(iter(self._damaged.values()), "out of time")
            message += (
                f"; {len(pending)} pending ({reason}): "
                f"`dcs sync --output {self.outbox.output}` records them"
            )
        elif self._destination.info.figures and (left := len(self._destination.undrawn())):
            message += (
                f"; cells without figures: {left}, `dcs sync --output {self.outbox.output}` "
                "draws them"
            )
        return RecorderReport(
            tracking_uri=uri,
            experiment=name,
            experiment_id=runs.experiment_id if runs else None,
            parent_run_id=runs.parent_id if runs else None,
            recorded=self._recorded,
            pending=len(pending),
            rejected=dict(self._rejected),
            damaged=tuple(self._damaged.values()),
            status=status,
            ended=self._ended,
            message=message,
        )
