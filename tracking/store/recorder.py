"""Records sweeps: on disk first, and by threads in the background into a tracking store."""

from __future__ import annotations

import atexit
import itertools
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from dcs.errors import ConfigError, TrackingError, named, one_line
from dcs.io import validated
from tracking.records import Archive, CellRecord, ScoringRecord, Sweep, SweepStatus
from tracking.results.figures import figure_files, overview_figures
from tracking.store.client import (
    default_tracking_uri,
    load_client_class,
    open_client,
    open_store,
    redact,
    resolve_tracking_uri,
    run_link,
)
from tracking.store.runs import SweepRuns

_log = logging.getLogger("tracking")

#: Seconds until a store that was away is tried again.
_PAUSE = 15.0

#: Seconds after which no more cells are recorded where a sweep ends early.
_CLOSE_SECONDS = 10.0

#: How many cells are written at a time to a store that takes several, most of the time waiting for
#: its answers; SQLite has one writer.
_WRITERS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderReport:
    """What became of the records of a sweep.

    Attributes
    ----------
    recorded : int
        Cells written to the store by this recorder.
    pending : int
        Cells that are on disk and that the store is not known to have.
    message : str
        One line for people; says why something is pending, or why the store knows of no end, and
        the command that sends it.
    link : str or None
        The page of the sweep's run in MLflow; None while the store cannot be used.
    """

    recorded: int
    pending: int
    message: str
    link: str | None = None


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
        The folder of the sweep's results.
    warn : callable, optional
        Called with one line, from the writing thread, when the store stops answering; by default
        it is logged.
    progress : callable, optional
        Called after each cell that was looked at.
    writers : int, optional
        How many cells are written at a time; by default one to SQLite, several to other stores.
    **sweep
        The fields of a `tracking.records.Sweep`: ``experiment`` and ``sweep_key``, and by choice
        ``sweep_params``, ``run_name``, ``trials``, ``figures``.

    Attributes
    ----------
    recorded : int
        Cells that this recorder has written to the store so far.
    idle : bool
        Whether the store had everything already when the sweep ended.

    Raises
    ------
    dcs.errors.ConfigError
        The store or an option is not allowed.
    dcs.errors.TrackingError
        Another process records the same sweep from the same folder.
    """

    def __init__(
        self,
        tracking_uri: str | None = None,
        *,
        output: Path | str,
        warn: Callable[[str], None] = _log.warning,
        progress: Callable[[], None] = lambda: None,
        writers: int | None = None,
        **sweep: Any,
    ) -> None:
        self.tracking_uri = resolve_tracking_uri(tracking_uri, output)
        self.archive = Archive(output)
        default = self.tracking_uri == default_tracking_uri(output)
        values = {"tracking_uri": None if default else redact(self.tracking_uri), **sweep}
        self._sweep = validated(Sweep, values, source="tracking", error=ConfigError)
        # Imported here and not by the thread, where it would race with the imports of others.
        load_client_class()
        self.recorded = 0
        self.idle = False
        self._writers = writers or (1 if self.tracking_uri.startswith("sqlite") else _WRITERS)
        self._warn: Callable[[str], None] | None = warn
        self._progress = progress
        self._lock = self.archive.lock(self._sweep)
        self.archive.save_sweep(self._sweep)
        # What must be sent, and what other threads say of it: a signal handler may use the queue
        # at any moment.
        self._todo = dict.fromkeys(self.archive.keys(self._sweep.sweep_key))
        self._queue: SimpleQueue[str | None] = SimpleQueue()
        self._keys = set(self._todo)
        self._counting = threading.Lock()
        self._scorings = {scoring.key: scoring for scoring in self._sweep.scorings}
        self._problems: dict[str, str] = {}
        self._trouble: str | None = None
        self._stop: tuple[SweepStatus, float] | None = None
        self._runs: SweepRuns | None = None
        self._ended = False
        self._report: RecorderReport | None = None
        self._thread = threading.Thread(target=self._run, name="dcs-recorder", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def record(self, record: CellRecord, figures: Mapping[str, bytes] | None = None) -> None:
        """Keep a finished cell and have it recorded; returns once it is safe on the disk.

        May be called from any thread, and for cells of an earlier run of the sweep, which are
        not written again.

        Parameters
        ----------
        record : CellRecord
            What to keep.
        figures : mapping of str to bytes, optional
            Its figures, by artifact path.

        Raises
        ------
        dcs.errors.TrackingError
            The recorder is closed or the disk takes no more.
        """
        if self._stop is not None:
            raise TrackingError(f"cell {record.key}: the recorder of this sweep is closed")
        # A key without its record is no harm; a record without its key would not be sent.
        if record.key not in self._keys:
            self.archive.add(self._sweep.sweep_key, record.key)
            self._keys.add(record.key)
        self.archive.write(record, figures)
        self._queue.put(record.key)

    @property
    def pending(self) -> int:
        """Cells that the store is still to be asked for."""
        return len(self._todo) + self._queue.qsize()

    def scored(self, scoring: ScoringRecord) -> None:
        """Have a run tell how a table came about, once for each key; written with the tables.

        Parameters
        ----------
        scoring : ScoringRecord
            What to record; replaces what was recorded of the same key.
        """
        self._scorings[scoring.key] = scoring

    def finish(self, status: SweepStatus = "FINISHED") -> RecorderReport:
        """Record everything, write the tables and figures of the sweep, and end its run.

        Does not wait for a store that does not answer: `sync` sends what it misses.

        Parameters
        ----------
        status : {"FINISHED", "FAILED", "KILLED"}
            How the sweep ended.

        Returns
        -------
        RecorderReport
            What was recorded and what is pending.
        """
        try:
            return self._end(status, math.inf)
        except BaseException:
            # Ctrl-C while waiting: leave no run behind that seems to run.
            self.close()
            raise

    def close(self, status: SweepStatus = "KILLED") -> RecorderReport:
        """End the sweep soon; does nothing after `finish`. Safe in a signal handler.

        Parameters
        ----------
        status : {"FINISHED", "FAILED", "KILLED"}
            How the sweep ended.

        Returns
        -------
        RecorderReport
            What was recorded and what is pending.
        """
        return self._end(status, _CLOSE_SECONDS)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.finish()
        else:
            self.close("FAILED" if issubclass(kind, Exception) else "KILLED")

    def _end(self, status: SweepStatus, timeout: float) -> RecorderReport:
        if self._report is None:
            # The later call is the more urgent one: Ctrl-C while the end is waited for.
            self._stop = status, time.monotonic() + timeout
            self._queue.put(None)
            # A request under way is not interrupted, but not waited for beyond its timeout.
            self._thread.join(min(timeout + 10.0, threading.TIMEOUT_MAX))
            self._report = self._reported()
            if not self._thread.is_alive():
                self._lock.release()
            atexit.unregister(self.close)
        return self._report

    def _run(self) -> None:
        while True:
            try:
                self._open()
                while self._has_work():
                    self._send()
                self._conclude()
                return
            except Exception as error:
                # Whatever goes wrong here must not take the sweep with it.
                _log.debug("recording failed", exc_info=True)
                self._say_unavailable(error)
            if self._stop is not None:
                self._collect(0.0)
                self._remember_end(self._stop[0])
                return
            self._collect(_PAUSE)

    def _collect(self, seconds: float) -> None:
        """Take what arrives in the next seconds; a stop ends the wait."""
        until = time.monotonic() + seconds
        with suppress(Empty):
            while True:
                wait = max(0.0, until - time.monotonic()) if self._stop is None else 0.0
                if (key := self._queue.get(timeout=wait)) is not None:
                    self._todo[key] = None

    def _has_work(self) -> bool:
        """Wait for cells to send; False once there is nothing left or no time."""
        self._collect(0.0)
        while not self._todo and self._stop is None:
            if (key := self._queue.get()) is not None:
                self._todo[key] = None
        return bool(self._todo) and not self._is_late

    @property
    def _is_late(self) -> bool:
        return self._stop is not None and time.monotonic() > self._stop[1]

    def _open(self) -> SweepRuns:
        if self._runs is None:
            self._runs = SweepRuns(open_client(self.tracking_uri), self._sweep, self.archive)
            self._trouble = None
        return self._runs

    def _send(self) -> None:
        """Have the store hold the records that it is to get, up to the first that fails."""
        runs, left = self._open(), deque(self._todo)
        failed: dict[str, Exception] = {}

        def write() -> None:
            while left and not failed and not self._is_late:
                with suppress(IndexError):  # Another thread was faster.
                    key = left.popleft()
                    try:
                        self._send_one(runs, key)
                    except Exception as error:
                        failed[key] = error

        helpers = [
            threading.Thread(target=write, daemon=True)
            for _ in range(min(self._writers, len(left)) - 1)
        ]
        for helper in helpers:
            with suppress(RuntimeError):  # Python starts no threads once it ends.
                helper.start()
        write()
        for helper in helpers:
            if helper.is_alive():
                helper.join()
        for key, error in failed.items():
            _log.debug("cell %s was not taken", key, exc_info=error)
            # Opening it again tells whether the store is away or the record at fault.
            self._runs = None
            runs = self._open()
            if key in self._problems:  # The second attempt: the others go on without it.
                runs.forget_cell(key)
                self._done(key)
            self._problems[key] = named(error)

    def _send_one(self, runs: SweepRuns, key: str) -> None:
        """Have the store hold the record of a cell as it is on disk."""
        digest = self.archive.digest(key)
        # Before the record has been read, which may be damaged, no run is given up for it.
        written = digest is not None and runs.keep(key, digest, replace=False) is None
        if written:
            try:
                record = self.archive.read(key)
            except TrackingError as error:
                self._problems[key] = str(error)
                self._done(key)
                return
            runs.write_cell(record, self.archive.figures(key))
        # A failed attempt may have been taken all the same, its answer lost.
        written |= self._problems.pop(key, None) is not None
        self._done(key, written=written)

    def _done(self, key: str, *, written: bool = False) -> None:
        with self._counting:
            self.recorded += written
            self._todo.pop(key, None)
            self._progress()

    def _conclude(self) -> None:
        runs = self._open()
        status, deadline = self._stop or ("KILLED", 0.0)
        self._remember_end(status)
        if runs.status == status:
            self.idle = self._ended = True
            return
        keys = self.archive.keys(self._sweep.sweep_key)
        records = list(self.archive.load(keys).values())
        try:
            runs.write_scorings(self._sweep.scorings)
            runs.write_summary(records)
        except Exception as error:
            # A run that seems to run for ever is worse; that it ends otherwise than it is
            # known to makes the next `sync` write the tables.
            _log.debug("the tables of the sweep were not taken", exc_info=True)
            self._trouble = one_line(error)
            runs.end("KILLED")
            return
        runs.end(status)
        self._ended = True
        # Last, and not for who is in a hurry: `dcs report` can draw them again.
        if deadline == math.inf and self._sweep.figures == "all":
            try:
                runs.write_figures(figure_files(overview_figures(records)))
            except Exception as error:
                # Without its figures the sweep is recorded all the same.
                _log.warning("the figures of the sweep were not taken (%s)", one_line(error))

    def _remember_end(self, status: SweepStatus) -> None:
        scorings = tuple(self._scorings.copy().values())  # Another thread may go on adding.
        self._sweep = self._sweep.model_copy(update={"status": status, "scorings": scorings})
        try:
            self.archive.save_sweep(self._sweep)
        except TrackingError as error:
            self._trouble = one_line(error)  # A sweep without a known end counts as killed.

    def _say_unavailable(self, error: Exception) -> None:
        self._runs = None
        self._trouble = one_line(error)
        if self._warn is not None:
            warn, self._warn = self._warn, None
            warn(
                f"tracking store {redact(self.tracking_uri)} cannot be used ({self._trouble}); "
                f"results are kept in {self.archive.output} and recorded when it can"
            )

    def _reported(self) -> RecorderReport:
        """Return what has become of the records so far."""
        pending = {*self._todo, *self._problems}
        uri, name = redact(self.tracking_uri), self._sweep.experiment
        idle = not self.recorded and not pending
        new = "nothing new to record" if idle else f"{self.recorded} cells recorded"
        message = f"{new} in experiment {name!r} of {uri}"
        if pending or not self._ended:
            reason = next(filter(None, [self._trouble, *self._problems.values()]), "out of time")
            message += (
                f"; {len(pending)} pending ({reason}): "
                f"`dcs sync --output {self.archive.output}` records them"
            )
        runs = self._runs
        return RecorderReport(
            link=run_link(self.tracking_uri, runs.info) if runs else None,
            recorded=self.recorded,
            pending=len(pending),
            message=message,
        )


def sync(
    output: Path | str,
    *,
    tracking_uri: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[RecorderReport, ...]:
    """Upsert every finished cell of `output` into the stores of its sweeps.

    Each cell is recorded exactly once, however often this runs and wherever an earlier attempt
    stopped. A sweep whose driver died is ended as KILLED.

    Parameters
    ----------
    output : path-like
        The folder of a sweep's results.
    tracking_uri : str, optional
        Where to record instead, from now on: every sweep of the folder goes there. A store with a
        password needs this (or ``MLFLOW_TRACKING_URI``), since passwords are not kept on disk.
    progress : callable, optional
        Called with the number of cells that were looked at so far, and of all.

    Returns
    -------
    tuple of RecorderReport
        One for each sweep that there was something to do for.

    Raises
    ------
    dcs.errors.TrackingError
        `output` holds no results or lacks part of a sweep's list of cells, `tracking_uri` cannot
        be used, a sweep is being recorded at the moment, or its password is missing.
    """
    archive = Archive(output)
    there = {path.stem for path in archive.cells.glob("[!.]*.json")}
    sweeps = archive.sweeps()
    if not sweeps:
        raise TrackingError(f"{archive.output}: no sweep was recorded from here; check --output")
    lists = [archive.keys(sweep.sweep_key) for sweep in sweeps]
    if unlisted := archive.load(sorted(there.difference(*lists))):
        lost = next(iter(unlisted.values()))
        raise TrackingError(
            f"{archive.output / 'sweeps'}: no list of cells (*.cells) there has {lost.key} of "
            f"sweep {lost.sweep!r}, so one is damaged; run that sweep again, which lists them anew"
        )
    if tracking_uri is not None:
        open_store(tracking_uri, create=True)  # Before it is remembered: it may be mistyped.
    total = sum(map(len, lists))
    done = itertools.count(1)
    reports = []
    for sweep in sweeps:
        recorder = Recorder(
            tracking_uri or _store_of(sweep),
            output=output,
            progress=lambda: progress(next(done), total) if progress else None,
            **sweep.model_dump(exclude={"tracking_uri"}),
        )
        report = recorder.finish(sweep.status or "KILLED")
        if report.pending or not recorder.idle:
            reports.append(report)
    return tuple(reports)


def _store_of(sweep: Sweep) -> str | None:
    """Return the store of a sweep, whose password is in the environment."""
    stored = sweep.tracking_uri
    if stored is None or "***" not in stored:
        return stored
    secret = os.environ.get("MLFLOW_TRACKING_URI", "").rstrip("/")
    if redact(secret) == stored:
        return secret
    raise TrackingError(
        f"the password of {stored} is not kept on the disk; give the whole address with "
        "--tracking-uri or MLFLOW_TRACKING_URI"
    )
