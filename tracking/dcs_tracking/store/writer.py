"""Writing of recorded cells to a tracking store, by background threads."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path
from queue import Empty, SimpleQueue

from dcs.errors import DCSError, one_line
from dcs_tracking.archive import Archive, Sweep
from dcs_tracking.environment import import_folders
from dcs_tracking.results.cells import Cells
from dcs_tracking.results.figures import figure_files, overview_figures
from dcs_tracking.store import client
from dcs_tracking.store.runs import KnownRuns, SweepRuns

_log = logging.getLogger("dcs_tracking")

#: Seconds between two attempts to reach an unavailable store: while cells are computed, and after.
_RETRY_SECONDS = 15.0
_RETRY_SECONDS_AT_END = 2.0

#: Seconds that a store that has answered is waited for when only recording is left. A server takes
#: less to be started again.
_AWAY_SECONDS = 60.0

#: Times the timeout of a request without progress after which a store is given up: a server may
#: send the head of an answer letter by letter.
_PATIENCE = 30

#: Number of cells that may fail at the same time by themselves. Of more, the cause is elsewhere,
#: such as a full disk, which is waited for like a store that is away.
_MOST_FAILURES = 3

#: Number of threads that write cells, most of the time waiting for responses of the store. SQLite
#: allows one writer.
_THREADS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderReport:
    """Summary of a recording.

    Attributes
    ----------
    recorded : int
        Number of cells written to the store by this recorder.
    pending : int
        Number of cells on disk that are not known to be in the store.
    message : str
        One line for the user; if cells are pending or the end of the sweep is not recorded, with
        the reason and the command that records them.
    complete : bool
        Whether all cells and the end of the sweep are in the store.
    address : str or None
        URL of the sweep's run in the MLflow UI; None while the store is unavailable.
    """

    recorded: int
    pending: int
    complete: bool
    message: str
    address: str | None = None


class Writer:
    """Writes the cells of a sweep to a store until it ends, by threads of this process.

    Parameters
    ----------
    tracking_uri : str
        The store, with its password.
    archive : Archive
        Has the records.
    sweep : Sweep
        The sweep, of which the cells that it has now are written first.
    warn : callable
        Called with one line when the store becomes unavailable.
    threads : int, optional
        Number of threads that write cells; by default one for SQLite, several for other stores.
    recheck : bool
        Whether to list all runs of the store, also if every cell is noted as recorded.
    recorded : int
        Number of cells that were written before.
    """

    def __init__(
        self,
        tracking_uri: str,
        archive: Archive,
        sweep: Sweep,
        *,
        warn: Callable[[str], None],
        threads: int | None = None,
        recheck: bool = False,
        recorded: int = 0,
    ) -> None:
        self._uri, self._archive, self._sweep = tracking_uri, archive, sweep
        self._recorded = recorded
        self._stage = "cells"
        self._warn: Callable[[str], None] | None = warn
        self._threads = threads or (1 if tracking_uri.startswith("sqlite") else _THREADS)
        self._recheck = recheck
        # Keys to send. Other threads and signal handlers add keys through the reentrant queue.
        self._unsent = dict.fromkeys(archive.keys(sweep.sweep_key))
        self._queue: SimpleQueue[str | None] = SimpleQueue()
        self._count_lock = threading.Lock()
        self._failures: dict[str, str] = {}
        self._n_removed = 0
        self._error: str | None = None
        self._runs: SweepRuns | None = None
        self._known = KnownRuns()
        # Since when the store, which has answered before, is unavailable; -inf while it is not.
        self._away = -math.inf
        # Until when cells are written; None until the sweep ends.
        self._deadline: float | None = None
        self._ended = False
        self._progress = time.monotonic()
        # An import in the writing thread would race with imports of other threads.
        client.load_client_class()
        self._thread = threading.Thread(target=self._run, name="dcs-writer", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it writes."""
        return self._thread.is_alive()

    @property
    def progress(self) -> tuple[int, int, str]:
        """Numbers of cells that were recorded and are to be processed, and what is written now."""
        return self._recorded, len(self._unsent) + self._queue.qsize(), self._stage

    def put(self, key: str) -> None:
        """Schedule the writing of a cell that is on disk."""
        self._queue.put(key)

    def end(self, sweep: Sweep, seconds: float) -> RecorderReport:
        """Write what is left, for some seconds at most, then the end of the sweep.

        Parameters
        ----------
        sweep : Sweep
            The sweep, with its final status.
        seconds : float
            May be infinite: then also its figures are written. A later call takes precedence.
        """
        self._sweep, self._deadline = sweep, time.monotonic() + seconds
        self._queue.put(None)
        # A pending request cannot be interrupted; do not wait for it longer than its timeout.
        until, self._progress = time.monotonic() + seconds + 10.0, time.monotonic()
        patience = _PATIENCE * client.timeout() if client.has_server(self._uri) else math.inf
        while self.alive and time.monotonic() < until:
            self._thread.join(0.1)
            if time.monotonic() > self._progress + patience:
                self._error = f"no answer was complete within {patience:.0f} s"
                self._save_sweep()
                break
        return self._summarize()

    def _run(self) -> None:
        # Its threads are daemons: a request that is never answered must not keep the process. They
        # stay, because each keeps the memory of the largest answer that it has read.
        with ThreadPool(self._threads) as pool:
            while True:
                try:
                    self._open()
                    while self._wait_for_work():
                        self._send(pool)
                    self._end_sweep()
                    return
                except Exception as error:
                    # A failure of the recording must not stop the sweep.
                    _log_failure("recording failed", error)
                    self._report_unavailable(error)
                if self._deadline is None:
                    self._drain_queue(_RETRY_SECONDS)
                elif time.monotonic() < min(self._deadline, self._away + _AWAY_SECONDS):
                    time.sleep(_RETRY_SECONDS_AT_END)
                else:
                    self._drain_queue(0.0)
                    self._save_sweep()
                    return

    def _drain_queue(self, seconds: float) -> None:
        """Move keys out of the queue for some seconds, or until the sweep ends."""
        until = time.monotonic() + seconds
        with suppress(Empty):
            while True:
                wait = max(0.0, until - time.monotonic()) if self._deadline is None else 0.0
                if (key := self._queue.get(timeout=wait)) is not None:
                    self._unsent[key] = None

    def _wait_for_work(self) -> bool:
        """Wait for cells to send; return False if none are left or the time is up."""
        self._drain_queue(0.0)
        while not self._unsent and self._deadline is None:
            if (key := self._queue.get()) is not None:
                self._unsent[key] = None
        return bool(self._unsent) and not self._is_time_up

    @property
    def _is_time_up(self) -> bool:
        return self._deadline is not None and time.monotonic() > self._deadline

    def _open(self) -> SweepRuns:
        if self._runs is None:
            store = client.open_client(self._uri)
            self._runs = SweepRuns(
                store, self._sweep, self._archive, recheck=self._recheck, known=self._known
            )
            self._known = self._runs.known
            self._error = None
        return self._runs

    def _send(self, pool: ThreadPool) -> None:
        """Write the pending cells to the store, until some have failed."""
        runs = self._open()
        failed: dict[str, Exception] = {}

        def write(key: str) -> None:
            if len(failed) > _MOST_FAILURES or self._is_time_up:
                return
            try:
                self._send_one(runs, key)
            except Exception as error:
                failed[key] = error
                self._known.doubtful.add(key)

        pool.map(write, [*self._unsent], chunksize=1)
        for key, error in failed.items():
            _log_failure(f"cell {key} could not be recorded", error)
            # Raises if the store is unavailable; otherwise the record failed.
            runs.look_up(key)
            self._unsent[key] = self._unsent.pop(key)  # after the others
            # Skip a cell after its second failure.
            if key in self._failures and len(failed) <= _MOST_FAILURES:
                runs.forget_cell(key)
                self._mark_processed(key)
            self._failures[key] = client.reason_of(error)
        if len(failed) > _MOST_FAILURES:
            raise failed.popitem()[1]
        if failed:
            # Two drivers of a sweep that replace the runs of each other must not stay in step.
            time.sleep(random.uniform(0.0, _RETRY_SECONDS_AT_END))

    def _send_one(self, runs: SweepRuns, key: str) -> None:
        """Write a cell to the store unless the store has its record already."""
        digest = self._archive.digest(key)
        if digest is None:
            self._mark_processed(key)
            return
        # The file may be damaged, so an existing run is only replaced once the record was read.
        run_id = there = runs.reconcile(key, digest)
        if run_id is None:
            run_id = runs.write_cell(self._archive.read(key))
        runs.note(key, run_id, digest)
        # An attempt that failed without a response may still have been successful.
        failed = self._failures.pop(key, None)
        self._mark_processed(key, written=there is None or failed is not None)

    def _mark_processed(self, key: str, *, written: bool = False) -> None:
        self._progress, self._away = time.monotonic(), -math.inf
        with self._count_lock:
            self._recorded += written
            self._unsent.pop(key, None)

    def _end_sweep(self) -> None:
        runs = self._open()
        status, wholly = self._sweep.status or "KILLED", self._deadline == math.inf
        self._save_sweep()
        removed = [runs.remove_cell(key) for key in self._archive.left_out(self._sweep)]
        self._n_removed += sum(removed)
        if runs.status == status and not any(removed):
            self._ended = True
            return
        self._stage = "tables"
        self._progress = math.inf  # nothing is asked of the store
        keys = self._archive.keys(self._sweep.sweep_key)
        records = self._archive.load(keys, summaries=True).values()
        cells = Cells.of(records)
        steps: list[Callable[[], object]] = [
            partial(runs.write_scorings, self._sweep.scorings),
            runs.remove_doubles,
            partial(runs.write_summary, cells, sum(not each.finished for each in records)),
            partial(runs.write_models, cells),
        ]
        # Figures take long, so they are skipped by `close`; `dcs report` can draw them.
        if wholly and self._sweep.figures != "none":
            steps.append(partial(self._write_figures, runs, cells))
        try:
            for step in steps:
                self._attempt(step, again=wholly)
        except Exception as error:
            # Do not leave the run RUNNING. Since this status differs from the one on disk, the
            # next `sync` writes the tables.
            _log_failure("the tables of the sweep could not be written", error)
            self._error = client.reason_of(error)
            runs.end("KILLED")
            return
        runs.end(status)
        self._ended = True

    def _attempt(self, step: Callable[[], object], *, again: bool) -> None:
        """Write a part of the end of a sweep, which replaces what was written of it."""
        self._progress = time.monotonic()
        try:
            step()
        except Exception as error:
            if not again:
                raise
            # A server may have been restarted.
            _log_failure("a second attempt follows", error)
            time.sleep(_RETRY_SECONDS_AT_END)
            self._attempt(step, again=False)

    def _write_figures(self, runs: SweepRuns, cells: Cells) -> None:
        self._stage = "figures"
        self._progress = math.inf  # nothing is asked of the store
        files = figure_files(overview_figures(cells))
        self._progress = time.monotonic()
        runs.write_figures(files)

    def _save_sweep(self) -> None:
        try:
            self._archive.save_sweep(self._sweep)
        except OSError as error:
            self._error = one_line(error)  # A sweep without a status counts as KILLED.

    def _report_unavailable(self, error: Exception) -> None:
        if self._runs is not None and self._away == -math.inf:
            self._away = time.monotonic()
        self._runs = None
        self._error = client.reason_of(error)
        if self._warn is not None:
            warn, self._warn = self._warn, None
            uri = client.redact_uri(self._uri)
            warn(
                f"tracking store {uri} cannot be used ({self._error}); "
                f"results are saved in {self._archive.output} and recorded once it is available"
            )

    def _summarize(self) -> RecorderReport:
        """Return a summary of the recording so far."""
        pending = {*self._unsent, *self._failures}
        uri, name = client.redact_uri(self._uri), self._sweep.experiment
        message = f"{self._recorded} cells recorded in experiment {name!r} of {uri}"
        if self._n_removed:
            message += f"; {self._n_removed} cells of its earlier tables are left out"
        if pending or not self._ended:
            reason = next(filter(None, [self._error, *self._failures.values()]), "out of time")
            command = f"`dcs sync --output {self._archive.output}`"
            message += f"; {len(pending)} pending ({reason}): {command} records them"
        runs = self._runs
        return RecorderReport(
            address=client.run_link(self._uri, runs.info) if runs else None,
            recorded=self._recorded,
            pending=len(pending),
            complete=self._ended and not pending,
            message=message,
        )


def _log_failure(what: str, error: Exception) -> None:
    """Log a failure; one that this package raised without meaning to is a bug, and is shown."""
    raised = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    own = any(raised.is_relative_to(folder) for folder in import_folders())
    bug = own and not isinstance(error, DCSError | OSError)
    _log.log(logging.ERROR if bug else logging.DEBUG, what, exc_info=error)
