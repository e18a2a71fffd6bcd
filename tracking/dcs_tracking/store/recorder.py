"""Recording of sweeps: on disk first, then by background threads in a tracking store."""

from __future__ import annotations

import json
import logging
import math
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path
from queue import Empty, SimpleQueue
from subprocess import PIPE, Popen
from typing import Any

from dcs.errors import ConfigError, DCSError, TrackingError, one_line, redact_output
from dcs.io import validated
from dcs_tracking.archive import Archive, Sweep
from dcs_tracking.environment import import_folders
from dcs_tracking.records import CellRecord, ScoringRecord, SweepStatus
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

#: Seconds after which no more cells are recorded if a sweep ends early.
_CLOSE_SECONDS = 10.0

#: Times the timeout of a request without progress after which a store is given up: a server may
#: send the head of an answer letter by letter.
_PATIENCE = 30

#: Number of threads that write cells, most of the time waiting for responses of the store. SQLite
#: allows one writer.
_WRITERS = 4


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


class Recorder:
    """Records a sweep: its parent run, and a run per cell.

    Recording a sweep again reuses its parent run. Use the recorder as a context manager, or call
    `finish` or `close`, so that no run is left RUNNING.

    Parameters
    ----------
    tracking_uri : str, optional
        Any MLflow store except a folder of files; by default the SQLite file ``mlflow.db`` in
        `output`, with the artifacts next to it.
    output : path-like
        Output folder of the sweep.
    warn : callable, optional
        Called with one line, from the writing thread, when the store becomes unavailable; by
        default the line is logged.
    writers : int, optional
        Number of threads that write cells; by default one for SQLite, several for other stores.
    at_end : bool
        Whether the store is only written to by `finish`, so that results can be shown before; by
        a process of its own, which loads MLflow until then, unless this one has.
    recheck : bool
        Whether to list all runs of the store, also if every cell is noted as recorded.
    **sweep
        Fields of `dcs_tracking.records.Sweep`: ``experiment`` and ``sweep_key`` are required,
        ``sweep_params``, ``run_name``, ``trials`` and ``figures`` are optional.

    Attributes
    ----------
    recorded : int
        Number of cells written to the store by this recorder so far.
    stage : {"cells", "tables", "figures"}
        What is being written.

    Raises
    ------
    dcs.errors.ConfigError
        Raised if the store or an option is invalid.
    dcs.errors.TrackingError
        Raised if another process records the same sweep from the same folder.
    """

    def __init__(
        self,
        tracking_uri: str | None = None,
        *,
        output: Path | str,
        warn: Callable[[str], None] = _log.warning,
        writers: int | None = None,
        at_end: bool = False,
        recheck: bool = False,
        **sweep: Any,
    ) -> None:
        self.tracking_uri = client.resolve_tracking_uri(tracking_uri, output)
        self.archive = Archive(output)
        store = client.store_name(self.tracking_uri, output)
        values = {"tracking_uri": None if store == client.DEFAULT else store, **sweep}
        self._sweep = validated(Sweep, values, source="tracking", error=ConfigError)
        self.recorded = 0
        self.stage = "cells"
        self._writers = writers or (1 if self.tracking_uri.startswith("sqlite") else _WRITERS)
        self._warn: Callable[[str], None] | None = warn
        self._lock = self.archive.lock(self._sweep)
        self.archive.save_sweep(self._sweep)
        # Keys to send. Other threads and signal handlers add keys through the reentrant queue.
        self._unsent = dict.fromkeys(self.archive.keys(self._sweep.sweep_key))
        self._queue: SimpleQueue[str | None] = SimpleQueue()
        self._keys = set(self._unsent)
        self._count_lock = threading.Lock()
        self._recheck = recheck
        self._scorings = {scoring.key: scoring for scoring in self._sweep.scorings}
        self._failures: dict[str, str] = {}
        self._n_left_out = 0
        self._error: str | None = None
        self._stop: tuple[SweepStatus, float] | None = None
        self._runs: SweepRuns | None = None
        self._known = KnownRuns()
        # Since when the store, which has answered before, is unavailable.
        self._away: float | None = None
        self._ended = False
        self._report: RecorderReport | None = None
        self._progress = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="dcs-recorder", daemon=True)
        self._process: Any = None
        if not at_end:
            self._start()
        elif "mlflow" not in sys.modules:
            command = [sys.executable, "-c", f"from {__name__} import main; main()"]
            # Ctrl-C is for this process, which then ends the other.
            options: Any = {"stdin": PIPE, "stdout": PIPE, "text": True, "start_new_session": True}
            own = {"tracking_uri": self.tracking_uri, "output": str(self.archive.output)}
            with suppress(OSError):  # Such as a limit of processes; this one records then.
                self._process = Popen(command, **options)
                # Other users can read a command line, and the address may have a password.
                print(json.dumps(own), file=self._process.stdin, flush=True)

    def _start(self) -> None:
        # An import in the writing thread would race with imports of other threads.
        client.load_client_class()
        self._thread.start()

    def record(self, record: CellRecord) -> None:
        """Save a finished cell and schedule its recording; returns once it is on disk.

        May be called from any thread.

        Parameters
        ----------
        record : CellRecord
            Record of the cell.

        Raises
        ------
        dcs.errors.TrackingError
            Raised if the recorder is closed.
        OSError
            Raised if the file cannot be written.
        """
        self._list(record.key)
        self.archive.write(record)
        self._queue.put(record.key)

    def known(self, key: str) -> None:
        """Schedule the recording of a cell that is on disk, as of an earlier run of the sweep."""
        self._list(key)
        self._queue.put(key)

    def leave_out(self, keys: Iterable[str]) -> None:
        """Let the sweep have these cells no longer; their runs are deleted when it ends.

        Parameters
        ----------
        keys : iterable of str
            Cells of an earlier run of the sweep, whose records stay on disk.
        """
        for key in keys:
            self.archive.leave_out(self._sweep.sweep_key, key)
            self._keys.discard(key)
            self._n_left_out += 1

    @property
    def sweep_key(self) -> str:
        """The key of the sweep."""
        return self._sweep.sweep_key

    def _list(self, key: str) -> None:
        if self._stop is not None:
            raise TrackingError(f"cell {key}: the recorder of this sweep is closed")
        # A key without a record is ignored, but a record without its key would not be sent.
        if key not in self._keys:
            self.archive.add(self._sweep.sweep_key, key)
            self._keys.add(key)

    @property
    def pending(self) -> int:
        """Number of cells that are not yet processed."""
        return len(self._unsent) + self._queue.qsize()

    def scored(self, scoring: ScoringRecord) -> None:
        """Add the record of a scored table, whose run is written when the sweep ends.

        Parameters
        ----------
        scoring : ScoringRecord
            Record of the table; replaces an earlier one with the same key.
        """
        self._scorings[scoring.key] = scoring

    def finish(self, status: SweepStatus = "FINISHED") -> RecorderReport:
        """Record all cells, write the tables and figures of the sweep, and end its run.

        Waits a minute at most for a store that has answered before, and for no other: `sync`
        records the missing cells later.

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
            return self._stop_thread(status, math.inf)
        except BaseException:
            # Ctrl-C while waiting must not leave the run RUNNING.
            self.close()
            raise

    def close(self, status: SweepStatus = "KILLED") -> RecorderReport:
        """End the sweep within seconds; does nothing after `finish`. Safe in a signal handler.

        Parameters
        ----------
        status : {"FINISHED", "FAILED", "KILLED"}
            How the sweep ended.

        Returns
        -------
        RecorderReport
            What was recorded and what is pending.
        """
        return self._stop_thread(status, _CLOSE_SECONDS)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.finish()
        else:
            self.close("FAILED" if issubclass(kind, Exception) else "KILLED")

    def _ask(self, process: Any, status: SweepStatus) -> None:
        """Let another process record the sweep; if it has died, this one does."""
        self._save_status(status)
        self._lock.release()
        sweep = self._sweep.model_dump(mode="json", exclude={"tracking_uri"})
        try:
            with suppress(OSError), process, ExitStack() as stack:
                stack.callback(process.kill)
                # In ASCII, so that the locale does not matter.
                print(json.dumps(sweep), file=process.stdin, flush=True)
                if answer := process.stdout.readline():
                    self._report = RecorderReport(**json.loads(answer))
        finally:
            if self._report is None:
                self._lock = self.archive.lock(self._sweep)

    def _stop_thread(self, status: SweepStatus, seconds: float) -> RecorderReport:
        process, self._process = self._process, None
        if process is not None:
            self._ask(process, status)
        if self._report is None:
            if self._thread.ident is None:
                self._start()
            # A later call takes precedence: Ctrl-C while `finish` waits.
            self._stop = status, time.monotonic() + seconds
            self._queue.put(None)
            # A pending request cannot be interrupted; do not wait for it longer than its timeout.
            until, self._progress = time.monotonic() + seconds + 10.0, time.monotonic()
            is_server = client.has_server(self.tracking_uri)
            patience = _PATIENCE * client.timeout() if is_server else math.inf
            while self._thread.is_alive() and time.monotonic() < until:
                self._thread.join(0.1)
                if time.monotonic() > self._progress + patience:
                    self._error = f"no answer was complete within {patience:.0f} s"
                    self._save_status(status)
                    break
            self._report = self._summarize()
            if not self._thread.is_alive():
                self._lock.release()
        return self._report

    def _run(self) -> None:
        # Its threads are daemons: a request that is never answered must not keep the process. They
        # stay, because each keeps the memory of the largest answer that it has read.
        with ThreadPool(self._writers) as pool:
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
                if self._stop is None:
                    self._drain_queue(_RETRY_SECONDS)
                elif self._may_return and not self._is_time_up:
                    time.sleep(_RETRY_SECONDS_AT_END)
                else:
                    self._drain_queue(0.0)
                    self._save_status(self._stop[0])
                    return

    def _drain_queue(self, seconds: float) -> None:
        """Move keys out of the queue for some seconds, or until the sweep ends."""
        until = time.monotonic() + seconds
        with suppress(Empty):
            while True:
                wait = max(0.0, until - time.monotonic()) if self._stop is None else 0.0
                if (key := self._queue.get(timeout=wait)) is not None:
                    self._unsent[key] = None

    def _wait_for_work(self) -> bool:
        """Wait for cells to send; return False if none are left or the time is up."""
        self._drain_queue(0.0)
        while not self._unsent and self._stop is None:
            if (key := self._queue.get()) is not None:
                self._unsent[key] = None
        return bool(self._unsent) and not self._is_time_up

    @property
    def _is_time_up(self) -> bool:
        return self._stop is not None and time.monotonic() > self._stop[1]

    @property
    def _may_return(self) -> bool:
        return self._away is not None and time.monotonic() < self._away + _AWAY_SECONDS

    def _open(self) -> SweepRuns:
        if self._runs is None:
            store = client.open_client(self.tracking_uri)
            about: Any = {"recheck": self._recheck, "known": self._known}
            self._runs = SweepRuns(store, self._sweep, self.archive, **about)
            self._known = self._runs.known
            self._error = None
        return self._runs

    def _send(self, pool: ThreadPool) -> None:
        """Write the pending cells to the store, up to the first failure."""
        runs = self._open()
        failed: dict[str, Exception] = {}

        def write(key: str) -> None:
            if failed or self._is_time_up:
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
            if key in self._failures:  # Skip a cell after its second failure.
                runs.forget_cell(key)
                self._mark_processed(key)
            self._failures[key] = client.reason_of(error)
        if failed:
            # Two drivers of a sweep that replace the runs of each other must not stay in step.
            time.sleep(random.uniform(0.0, _RETRY_SECONDS_AT_END))

    def _send_one(self, runs: SweepRuns, key: str) -> None:
        """Write a cell to the store unless the store has its record already."""
        digest = self.archive.digest(key)
        if digest is None:
            self._mark_processed(key)
            return
        # The file may be damaged, so an existing run is only replaced once the record was read.
        run_id = there = runs.reconcile(key, digest)
        if run_id is None:
            run_id = runs.write_cell(self.archive.read(key))
        runs.note(key, run_id, digest)
        # An attempt that failed without a response may still have been successful.
        failed = self._failures.pop(key, None)
        self._mark_processed(key, written=there is None or failed is not None)

    def _mark_processed(self, key: str, *, written: bool = False) -> None:
        self._progress, self._away = time.monotonic(), None
        with self._count_lock:
            self.recorded += written
            self._unsent.pop(key, None)

    def _end_sweep(self) -> None:
        runs = self._open()
        status, deadline = self._stop or ("KILLED", 0.0)
        self._save_status(status)
        removed = [runs.remove_cell(key) for key in self.archive.left_out(self._sweep)]
        if runs.status == status and not any(removed):
            self._ended = True
            return
        self.stage = "tables"
        self._progress = math.inf  # nothing is asked of the store
        records = self.archive.load(self.archive.keys(self.sweep_key), summaries=True).values()
        cells = Cells.of(records)
        steps: list[Callable[[], object]] = [
            partial(runs.write_scorings, self._sweep.scorings),
            runs.remove_doubles,
            partial(runs.write_summary, cells, sum(not each.finished for each in records)),
            partial(runs.write_models, cells),
        ]
        # Figures take long, so they are skipped by `close`; `dcs report` can draw them.
        if deadline == math.inf and self._sweep.figures != "none":
            steps.append(partial(self._write_figures, runs, cells))
        try:
            for step in steps:
                self._attempt(step, again=deadline == math.inf)
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
        self.stage = "figures"
        self._progress = math.inf  # nothing is asked of the store
        files = figure_files(overview_figures(cells))
        self._progress = time.monotonic()
        runs.write_figures(files)

    def _save_status(self, status: SweepStatus) -> None:
        scorings = tuple(self._scorings.copy().values())  # Other threads may be adding.
        self._sweep = self._sweep.model_copy(update={"status": status, "scorings": scorings})
        try:
            self.archive.save_sweep(self._sweep)
        except OSError as error:
            self._error = one_line(error)  # A sweep without a status counts as KILLED.

    def _report_unavailable(self, error: Exception) -> None:
        if self._runs is not None and self._away is None:
            self._away = time.monotonic()
        self._runs = None
        self._error = client.reason_of(error)
        if self._warn is not None:
            warn, self._warn = self._warn, None
            uri = client.redact_uri(self.tracking_uri)
            warn(
                f"tracking store {uri} cannot be used ({self._error}); "
                f"results are saved in {self.archive.output} and recorded once it is available"
            )

    def _summarize(self) -> RecorderReport:
        """Return a summary of the recording so far."""
        pending = {*self._unsent, *self._failures}
        uri, name = client.redact_uri(self.tracking_uri), self._sweep.experiment
        message = f"{self.recorded} cells recorded in experiment {name!r} of {uri}"
        if self._n_left_out:
            message += f"; {self._n_left_out} cells of its earlier tables are left out"
        if pending or not self._ended:
            reason = next(filter(None, [self._error, *self._failures.values()]), "out of time")
            command = f"`dcs sync --output {self.archive.output}`"
            message += f"; {len(pending)} pending ({reason}): {command} records them"
        runs = self._runs
        return RecorderReport(
            address=client.run_link(self.tracking_uri, runs.info) if runs else None,
            recorded=self.recorded,
            pending=len(pending),
            complete=self._ended and not pending,
            message=message,
        )


def main() -> None:
    """Load MLflow and create its store, then record the sweep that standard input describes."""
    from matplotlib import figure  # noqa: F401

    redact_output()
    answer, sys.stdout = sys.stdout, sys.stderr  # Libraries may print.
    store = json.loads(sys.stdin.readline())
    with suppress(TrackingError):  # The recorder says it.
        client.open_client(store["tracking_uri"], create=True)
    if asked := sys.stdin.readline():
        sweep = json.loads(asked)
        with suppress(TrackingError, OSError):  # The other process will meet and show it.
            recorder = Recorder(**store, **sweep)
            end = recorder.finish if sweep["status"] == "FINISHED" else recorder.close
            print(json.dumps(asdict(end(sweep["status"]))), file=answer, flush=True)


def _log_failure(what: str, error: Exception) -> None:
    """Log a failure; one that this package raised without meaning to is a bug, and is shown."""
    raised = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    own = any(raised.is_relative_to(folder) for folder in import_folders())
    bug = own and not isinstance(error, DCSError | OSError)
    _log.log(logging.ERROR if bug else logging.DEBUG, what, exc_info=error)


def sync(output: Path | str, *, tracking_uri: str | None = None) -> tuple[RecorderReport, ...]:
    """Upsert every finished cell of `output` into the stores of its sweeps.

    Each cell is recorded exactly once, regardless of the number of calls and of interrupted
    attempts. A sweep whose driver died is ended as KILLED.

    Parameters
    ----------
    output : path-like
        Output folder of a sweep.
    tracking_uri : str, optional
        Store to use for all sweeps of the folder from now on. Required (here or in
        ``MLFLOW_TRACKING_URI``) for a store with a password, which is not saved on disk.

    Returns
    -------
    tuple of RecorderReport
        One for each sweep of which cells were recorded or are pending.

    Raises
    ------
    dcs.errors.TrackingError
        Raised if `output` has no results, `tracking_uri` cannot be used, a sweep is being
        recorded by another process, or its password is missing.
    """
    archive = Archive(output)
    sweeps = archive.sweeps()
    if not sweeps:
        raise TrackingError(f"{archive.output}: contains no sweep; check --output")
    if tracking_uri is not None:
        client.open_store(tracking_uri, create=True)  # Check the URI before it is saved.
    reports = []
    for sweep in sweeps:
        uri = tracking_uri or _resolve_store(sweep)
        fields = sweep.model_dump(exclude={"tracking_uri"})
        recorder = Recorder(uri, output=output, recheck=True, **fields)
        report = recorder.finish(sweep.status or "KILLED")
        if report.recorded or not report.complete:
            reports.append(report)
    return tuple(reports)


def _resolve_store(sweep: Sweep) -> str | None:
    """Return the tracking URI of a sweep, with the password from the environment."""
    stored = sweep.tracking_uri
    if stored is not None and (file := client.sqlite_path(stored)) and not file.parent.exists():
        # It would be created again, if the folder was moved.
        raise TrackingError(
            f"{stored}: the folder of this store does not exist any more; give another with "
            "--tracking-uri"
        )
    if stored is None or "***" not in stored:
        return stored
    secret = os.environ.get("MLFLOW_TRACKING_URI", "").rstrip("/")
    if client.redact_uri(secret) == stored:
        return secret
    raise TrackingError(
        f"the password of {stored} is not saved on disk; give the full URI with --tracking-uri or "
        "MLFLOW_TRACKING_URI"
    )
