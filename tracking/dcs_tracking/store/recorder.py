"""Recording of sweeps: on disk first, then in a tracking store."""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from dcs.errors import ConfigError, TrackingError
from dcs.io import validated
from dcs_tracking.archive import Archive, Sweep
from dcs_tracking.records import CellRecord, ScoringRecord, SweepStatus
from dcs_tracking.store import client
from dcs_tracking.store.process import WriterProcess
from dcs_tracking.store.writer import RecorderReport, Writer

_log = logging.getLogger("dcs_tracking")

#: Seconds after which no more cells are recorded if a sweep ends early.
_CLOSE_SECONDS = 10.0


class Recorder(AbstractContextManager["Recorder"]):
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
    process : bool
        Whether a process of its own writes to the store, so that this one does not load MLflow;
        not if it has.
    recheck : bool
        Whether to list all runs of the store, also if every cell is noted as recorded.
    **sweep
        Fields of `dcs_tracking.records.Sweep`: ``experiment`` and ``sweep_key`` are required,
        ``sweep_params``, ``run_name``, ``trials`` and ``figures`` are optional.

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
        process: bool = False,
        recheck: bool = False,
        **sweep: Any,
    ) -> None:
        self.tracking_uri = client.resolve_tracking_uri(tracking_uri, output)
        self.archive = Archive(output)
        store = client.store_name(self.tracking_uri, output)
        values = {"tracking_uri": None if store == client.DEFAULT else store, **sweep}
        self._sweep = validated(Sweep, values, source="tracking", error=ConfigError)
        self.sweep_key = self._sweep.sweep_key
        self._options: Any = {"warn": warn, "threads": writers, "recheck": recheck}
        self._lock = self.archive.lock(self._sweep)
        self.archive.save_sweep(self._sweep)
        self._keys = {*self.archive.keys(self._sweep.sweep_key)}
        self._scorings = {scoring.key: scoring for scoring in self._sweep.scorings}
        self._closed = False
        self._report: RecorderReport | None = None
        self._writer = self._start(apart=process and "mlflow" not in sys.modules)

    @property
    def progress(self) -> tuple[int, int, str]:
        """Number of cells recorded so far and number of those to be processed, and the stage.

        The stage is what is being written: ``cells``, ``tables`` or ``figures``.
        """
        return self._writer.progress

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
        self.known(record.key)

    def known(self, key: str) -> None:
        """Schedule the recording of a cell that is on disk, as of an earlier run of the sweep."""
        self._list(key)
        if not self._writer.alive:  # It finds the cells before this one by itself.
            self._writer = self._start(recorded=self.progress[0])
        self._writer.put(key)

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

    def _list(self, key: str) -> None:
        if self._closed:
            raise TrackingError(f"cell {key}: the recorder of this sweep is closed")
        # A key without a record is ignored, but a record without its key would not be sent.
        if key not in self._keys:
            self.archive.add(self._sweep.sweep_key, key)
            self._keys.add(key)

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
            return self._end(status, math.inf)
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
        return self._end(status, _CLOSE_SECONDS)

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.finish()
        else:
            self.close("FAILED" if issubclass(kind, Exception) else "KILLED")

    def _start(self, *, apart: bool = False, recorded: int = 0) -> Writer | WriterProcess:
        about = self.tracking_uri, self.archive, self._sweep
        if apart:
            with suppress(OSError):  # Such as a limit of processes.
                return WriterProcess(*about, **self._options)
        return Writer(*about, recorded=recorded, **self._options)

    def _end(self, status: SweepStatus, seconds: float) -> RecorderReport:
        self._closed = True
        if self._report is not None:
            return self._report
        scorings = tuple(self._scorings.copy().values())  # Other threads may be adding.
        self._sweep = self._sweep.model_copy(update={"status": status, "scorings": scorings})
        while (report := self._writer.end(self._sweep, seconds)) is None:
            self._writer = self._start(recorded=self.progress[0])
        self._report = report
        if not self._writer.alive:
            self._lock.release()
        return report


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
