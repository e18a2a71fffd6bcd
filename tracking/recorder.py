"""Records the cells of a sweep without ever holding up the computing.

`Recorder.record` returns as soon as the record is on the disk; a background thread, the only
writer of the sweep, sends it to MLflow. The outbox is the queue: in memory there are only keys.
"""

from __future__ import annotations

import atexit
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from dcs.errors import ConfigError, InvalidInputError, TrackingError
from tracking._plain import plain
from tracking._sender import DRAWING_SECONDS, Sender
from tracking.destinations import Destination, DestinationInfo
from tracking.outbox import Outbox
from tracking.records import KEY_PATTERN, CellRecord
from tracking.reports import RecorderReport, SweepStatus, check_figures, parse_trials
from tracking.stores import load_client_class, resolve_tracking_uri, stored_uri

__all__ = ["Recorder"]


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
    figures : {"all", "none"}
        Whether figures are drawn, in a process of their own: the scheme and the annealing run of
        each cell while there is nothing to send, and at the end those of the sweep and, for 20
        seconds, of the cells that are left. `tracking.sync` draws what is then missing.
    warn : callable, optional
        Called with one line, from the writing thread, when the store stops answering; by default
        it is logged.

    Raises
    ------
    dcs.errors.ConfigError
        When the store or an option is not allowed.
    dcs.errors.InvalidInputError
        When the sweep's key cannot name a file.
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
        figures: Literal["all", "none"] = "all",
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
            trials=parse_trials(trials),
            trace_points=trace_points,
            figures=check_figures(figures) == "all",
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
        """Return a recorder that sends what is pending at a known destination.

        Parameters
        ----------
        uri : str
            The store, with its password if it has one.
        outbox : Outbox
            Where the records are.
        destination : Destination
            Where they are to go.
        progress : callable, optional
            Called after each recorded cell.

        Returns
        -------
        Recorder
            At work already.
        """
        recorder = cls.__new__(cls)
        recorder._start(uri, outbox, destination, None, progress, drawing_seconds=math.inf)
        return recorder

    def _start(
        self,
        uri: str,
        outbox: Outbox,
        destination: Destination,
        warn: Callable[[str], None] | None,
        progress: Callable[[], None] | None,
        *,
        drawing_seconds: float = DRAWING_SECONDS,
    ) -> None:
        self.tracking_uri = uri
        self.outbox = outbox
        self._destination = destination
        self._held = threading.local()
        self._closed = False
        self._report: RecorderReport | None = None
        # Imported here and not by the thread, where it would race with the imports of others.
        load_client_class()
        destination.acquire()
        try:
            destination.save(status=None, ended=False, moved=False)
        except TrackingError:
            destination.release()
            raise
        self._sender = Sender(
            uri,
            outbox,
            destination,
            warn=warn,
            progress=progress,
            drawing_seconds=drawing_seconds,
        )
        atexit.register(self.close)

    def record(self, cell: CellRecord) -> None:
        """Keep a finished cell and have it recorded; returns once it is safe on the disk.

        May be called from any thread, and for cells of an earlier run of the sweep, which are
        not written again.

        Parameters
        ----------
        cell : CellRecord
            What to keep.

        Raises
        ------
        dcs.errors.TrackingError
            When the recorder is closed or the disk takes no more.
        """
        if self._closed:
            raise TrackingError(f"cell {cell.key}: the recorder of this sweep is closed")
        with self._holding():
            with self._sender.files:
                self.outbox.write(cell)
                new = self._destination.queue(cell.key, cell.digest)
            if new:
                self._sender.send(cell.key)

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
        """End the sweep soon; does nothing after `finish`. Safe in a signal handler.

        Parameters
        ----------
        status : {"FINISHED", "FAILED", "KILLED"}
            How the sweep ended.
        timeout : float
            Stop recording cells after so many seconds.

        Returns
        -------
        RecorderReport
            What was recorded and what is pending.
        """
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
        interrupted = getattr(self._held, "depth", 0) > 0
        with self._holding():
            self._sender.stop(status, timeout)
        if interrupted:
            # A signal handler on top of `record`, whose locks the sender may need: it cannot be
            # waited for here, but by the next call, at the latest when Python exits.
            return self._sender.report(status)
        # A request under way is not interrupted, but it is not waited for beyond its timeout.
        gone = self._sender.join(None if timeout is None else timeout + 10.0)
        if self._report is None:
            self._report = self._sender.report(status)
            if gone:
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
