"""Records the cells of a sweep without ever holding up the computing.

`Recorder.record` returns as soon as the record is on the disk; a background thread, the only
writer of the sweep, sends it to MLflow. The outbox is the queue: in memory there are only keys.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from dcs.errors import ConfigError, InvalidInputError, TrackingError
from tracking._runs import SweepRuns
from tracking.destinations import Destination, DestinationInfo
from tracking.outbox import Outbox
from tracking.records import KEY_PATTERN, CellRecord, plain
from tracking.reports import RecorderReport, SweepStatus, check_trials
from tracking.stores import (
    StoreUnavailable,
    artifact_location,
    load_client_class,
    one_line,
    open_client,
    quietly,
    redact,
    resolve_tracking_uri,
    stored_uri,
)

__all__ = ["Recorder"]

_log = logging.getLogger(__name__)
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 60.0


class Recorder:
    """Records a sweep: its parent run, a run per cell, a run per trial.

    The parent run is found again when the same sweep is recorded again. Use it as a context
    manager, or call `finish` or `close`: no run is then left RUNNING.

    Parameters
    ----------
    tracking_uri : str, optional
        Any MLflow store but a folder of files; by default the SQLite file ``mlflow.db`` in
        `output`, with the artifacts beside it.
    output : path-like
        The folder of the sweep's results; holds the outbox.
    experiment : str
        Name of the MLflow experiment, which is the name of the sweep.
    sweep_key : str
        What tells this sweep from another one of the same name. Should not change with what does
        not change the results, such as the number of workers.
    sweep_params : mapping, optional
        Parameters of the parent run. Those that it already has are left as they are.
    run_name : str, optional
        Name of the parent run; the experiment's by default.
    source : str
        What MLflow shows as the source of the runs, for example ``dcs sweep``.
    trials : {"all", "none"} or int
        Which trials get a run of their own; a number means that many of the best. The table of
        all trials is an artifact of the cell in any case.
    trace_points : int
        At most so many points of an annealing trace become step metrics.
    warn : callable, optional
        Called with one line, from the writing thread, when the store stops answering; by default
        it is logged.

    Raises
    ------
    dcs.errors.ConfigError
        When the store or an option is not allowed.
    dcs.errors.TrackingError
        When another process records the same sweep.
    """

    def __init__(
        self,
        tracking_uri: str | None = None,
        *,
        output: Path | str,
        experiment: str,
        sweep_key: str,
        sweep_params: Mapping[str, Any] | None = None,
        run_name: str | None = None,
        source: str = "dcs",
        trials: str | int = "all",
        trace_points: int = 100,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        uri = resolve_tracking_uri(tracking_uri, output)
        if not experiment.strip():
            raise ConfigError("the name of the experiment is empty")
        if not KEY_PATTERN.fullmatch(sweep_key):
            raise InvalidInputError(
                f"sweep key {sweep_key!r} is not allowed: letters, digits, '.', '_' and '-', at "
                "most 128"
            )
        if trace_points < 0:
            raise ConfigError(f"tracking.trace_points is {trace_points}; 0 or more is needed")
        info = DestinationInfo(
            tracking_uri=stored_uri(uri, output),
            experiment=experiment,
            sweep_key=sweep_key,
            sweep_params=plain(dict(sweep_params or {}), "sweep_params"),
            run_name=run_name,
            source=source,
            trials=check_trials(trials),
            trace_points=trace_points,
        )
        outbox = Outbox(output)
        self._start(uri, outbox, outbox.destination(info), warn, None)

    @classmethod
    def resume(
        cls,
        uri: str,
        outbox: Outbox,
        destination: Destination,
        *,
        progress: Callable[[], None] | None = None,
    ) -> Recorder:
        """Return a recorder that sends what is pending at a known destination."""
        recorder = cls.__new__(cls)
        recorder._start(uri, outbox, destination, None, progress)
        return recorder

    def _start(
        self,
        uri: str,
        outbox: Outbox,
        destination: Destination,
        warn: Callable[[str], None] | None,
        progress: Callable[[], None] | None,
    ) -> None:
        self.tracking_uri = uri
        self.outbox = outbox
        self._destination = destination
        self._warn = warn or _log.warning
        self._progress = progress
        # Imported here and not by the thread, where it would race with the imports of others.
        load_client_class()
        destination.acquire()
        destination.save(status=None, ended=False, moved=False)
        self._todo: dict[str, None] = dict.fromkeys(destination.pending())
        self._wake = threading.Condition()
        self._files = threading.RLock()
        self._held = threading.local()
        self._closed = False
        self._stop_status: SweepStatus | None = None
        self._stop_at: float | None = None
        self._runs: SweepRuns | None = None
        self._recorded = 0
        self._rejected: dict[str, str] = {}
        self._damaged: dict[str, str] = {}
        self._trouble: str | None = None
        self._warned = False
        self._ended = False
        self._report: RecorderReport | None = None
        self._thread = threading.Thread(target=self._run, name="dcs-recorder", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def record(self, cell: CellRecord) -> None:
        """Keep a finished cell and have it recorded; returns once it is safe on the disk.

        May be called from any thread, and for cells of an earlier run of the sweep, which are
        not written again.

        Raises
        ------
        dcs.errors.TrackingError
            When the recorder is closed or the disk takes no more.
        """
        if self._closed:
            raise TrackingError(f"cell {cell.key}: the recorder of this sweep is closed")
        with self._holding():
            with self._files:
                self.outbox.write(cell)
                new = self._destination.queue(cell.key, cell.digest)
            if new:
                with self._wake:
                    self._todo[cell.key] = None
                    self._wake.notify()

    def finish(
        self, status: SweepStatus = "FINISHED", *, timeout: float | None = None
    ) -> RecorderReport:
        """Record everything, write the tables of the sweep, and end its run.

        Does not wait for a store that does not answer: what is not recorded stays in the outbox.

        Parameters
        ----------
        status : {"FINISHED", "FAILED", "KILLED"}
            How the sweep ended.
        timeout : float, optional
            Stop recording cells after so many seconds; by default as long as it takes.

        Returns
        -------
        RecorderReport
            What was recorded and what is pending.
        """
        try:
            return self._end(status, timeout)
        except BaseException:
            # Ctrl-C while waiting: leave no run behind that seems to run.
            self.close()
            raise

    def close(self, status: SweepStatus = "KILLED", *, timeout: float = 10.0) -> RecorderReport:
        """End the sweep soon; does nothing after `finish`. Safe in a signal handler."""
        return self._end(status, timeout)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self.close("FAILED" if issubclass(kind, Exception) else "KILLED")

    def _end(self, status: SweepStatus, timeout: float | None) -> RecorderReport:
        if self._report is not None:
            return self._report
        self._closed = True
        until = None if timeout is None else time.monotonic() + timeout
        interrupted = getattr(self._held, "depth", 0) > 0
        with self._holding(), self._wake:
            # The later call is the more urgent one: Ctrl-C while `finish` still records.
            self._stop_status = status
            self._stop_at = until
            self._wake.notify()
        if interrupted:
            # A signal handler on top of `record`, whose locks the writing thread may need: it
            # cannot be waited for here, but by the next call, at the latest when Python exits.
            return self._make_report(status)
        # A request under way is not interrupted, but it is not waited for beyond its timeout.
        self._thread.join(None if timeout is None else timeout + 10.0)
        if self._report is None:
            self._report = self._make_report(status)
            if not self._thread.is_alive():
                self._destination.release()
            atexit.unregister(self.close)
        return self._report

    @contextmanager
    def _holding(self) -> Iterator[None]:
        """Mark that this thread holds locks, which a signal handler must not wait upon."""
        self._held.depth = getattr(self._held, "depth", 0) + 1
        try:
            yield
        finally:
            self._held.depth -= 1

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                while (key := self._next()) is not None:
                    self._write(key)
                    pause, self._trouble = _FIRST_PAUSE, None
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
            with self._files:
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
            self._rejected[key] = f"{type(error).__name__}: {one_line(error)}"
        else:
            self._rejected.pop(key, None)
            self._destination.mark(key, digest, run_id=run_id, parent=parent_id)
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

    def _remember_end(self) -> None:
        try:
            self._destination.save(status=self._stop_status)
        except OSError as error:
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

    def _make_report(self, status: SweepStatus) -> RecorderReport:
        runs = self._runs
        pending = self._destination.pending(runs.parent_id if runs else None)
        uri, name = redact(self.tracking_uri), self._destination.info.experiment
        message = f"{self._recorded} cells recorded in experiment {name!r} of {uri}"
        if pending or not self._ended:
            reason = self._trouble or next(iter(self._rejected.values()), None)
            reason = reason or next(iter(self._damaged.values()), "out of time")
            message += (
                f"; {len(pending)} pending ({reason}): "
                f"`dcs sync --output {self.outbox.output}` records them"
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
