"""Replays what a tracking store has missed."""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, cast

from dcs.errors import ConfigError, InvalidInputError, TrackingError
from dcs.messages import named, one_line, suggest
from tracking.archive import Archive
from tracking.records import KEY_PATTERN, CellRecord, plain
from tracking.store._painter import Painter, is_drawn
from tracking.store.client import (
    StoreUnavailable,
    artifact_location,
    load_client_class,
    open_client,
    quietly,
    redact,
    resolve_tracking_uri,
    stored_uri,
)
from tracking.store.destinations import Destination, DestinationInfo
from tracking.store.runs import SweepRuns

__all__ = ["Recorder", "RecorderReport", "SweepStatus", "check_figures", "parse_trials", "sync"]


SweepStatus = Literal["FINISHED", "FAILED", "KILLED"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderReport:
    """What became of the records of a sweep.

    Attributes
    ----------
    tracking_uri, experiment : str
        Where they go; without a password.
    experiment_id, parent_run_id : str or None
        None when the store was never reached.
    recorded : int
        Cells written to the store by this recorder.
    pending : int
        Cells that are only in the archive.
    rejected : mapping of str to str
        Those of them that the store answered but did not take: key and reason.
    damaged : tuple of str
        Archive files that cannot be read, one line each.
    status : {"FINISHED", "FAILED", "KILLED"}
        End of the sweep.
    ended : bool
        Whether the store knows of the end.
    message : str
        One line for people, with the command that replays what is pending.
    """

    tracking_uri: str
    experiment: str
    experiment_id: str | None
    parent_run_id: str | None
    recorded: int
    pending: int
    rejected: Mapping[str, str]
    damaged: tuple[str, ...]
    status: str
    ended: bool
    message: str


def parse_trials(text: str | int) -> str | int:
    """Read the option of which trials get runs: ``all``, ``none``, ``best:K`` or ``K``.

    Parameters
    ----------
    text : str or int
        What was typed.

    Returns
    -------
    str or int
        ``all``, ``none``, or a number of trials.

    Raises
    ------
    dcs.errors.ConfigError
        For anything else.
    """
    number = str(text).removeprefix("best:")
    if number.isascii() and number.isdigit():
        return int(number)
    if text in ("all", "none"):
        return text
    hint = suggest(text, ["all", "none"])
    raise ConfigError(f"tracking.trials is {text!r}{hint}; allowed: all, none, best:K")


def check_figures(figures: str) -> str:
    """Return the option of which figures are drawn, or refuse it."""
    if figures in ("all", "none"):
        return figures
    raise ConfigError(
        f"tracking.figures is {figures!r}{suggest(figures, ['all', 'none'])}; allowed: all, none"
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
    archive : Archive
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
        archive: Archive,
        destination: Destination,
        *,
        warn: Callable[[str], None] | None,
        progress: Callable[[], None] | None,
        drawing_seconds: float = DRAWING_SECONDS,
    ) -> None:
        self.tracking_uri = uri
        self.archive = archive
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
        self._painter = Painter(archive)
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
            location = artifact_location(uri, self.archive.output, info.experiment)
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
                record = self.archive.read(key)
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
        contents = self.archive.load(self._destination.keys, slim=True)
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
                f"results are kept in {self.archive.output} and recorded when it can"
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
                f"`dcs sync --output {self.archive.output}` records them"
            )
        elif self._destination.info.figures and (left := len(self._destination.undrawn())):
            message += (
                f"; cells without figures: {left}, `dcs sync --output {self.archive.output}` "
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
        The folder of the sweep's results; holds the archive.
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
        archive = Archive(output)
        self._start(uri, archive, archive.destination(info), warn, None)

    @classmethod
    def resume(
        cls,
        uri: str,
        archive: Archive,
        destination: Destination,
        *,
        progress: Callable[[], None] | None = None,
    ) -> Recorder:
        """Return a recorder that sends what is pending at a known destination.

        Parameters
        ----------
        uri : str
            The store, with its password if it has one.
        archive : Archive
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
        recorder._start(uri, archive, destination, None, progress, drawing_seconds=math.inf)
        return recorder

    def _start(
        self,
        uri: str,
        archive: Archive,
        destination: Destination,
        warn: Callable[[str], None] | None,
        progress: Callable[[], None] | None,
        *,
        drawing_seconds: float = DRAWING_SECONDS,
    ) -> None:
        self.tracking_uri = uri
        self.archive = archive
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
            archive,
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
                self.archive.write(cell)
                new = self._destination.queue(cell.key, cell.digest)
            if new:
                self._sender.send(cell.key)

    def finish(
        self, status: SweepStatus = "FINISHED", *, timeout: float | None = None
    ) -> RecorderReport:
        """Record everything, write the tables of the sweep, and end its run.

        Does not wait for a store that does not answer: what is not recorded stays in the archive.

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


def sync(
    output: Path | str,
    *,
    tracking_uri: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[RecorderReport, ...]:
    """Record everything in the archive of `output` that its store does not have yet.

    Each cell is recorded exactly once, however often this runs and wherever an earlier attempt
    stopped. A sweep whose driver died is ended as KILLED.

    Parameters
    ----------
    output : path-like
        The folder of a sweep's results.
    tracking_uri : str, optional
        Where to record instead: every sweep of the folder goes there, whatever its store has.
        A store with a password needs this (or ``MLFLOW_TRACKING_URI``), since passwords are not
        kept on the disk.
    progress : callable, optional
        Called with the cells recorded so far and their number.

    Returns
    -------
    tuple of RecorderReport
        One for each sweep that there was something to do for.

    Raises
    ------
    dcs.errors.TrackingError
        When `output` holds no results, a sweep is being recorded at the moment, or its password
        is missing.
    """
    archive = Archive(output)
    known = [d for d in archive.destinations() if not d.info.moved]
    if not known:
        raise TrackingError(f"{archive.output}: no sweep was recorded from here; check --output")
    if tracking_uri is None:
        work = [(_store_of(d, archive), d) for d in known if _is_unfinished(d)]
    else:
        uri = resolve_tracking_uri(tracking_uri, output)
        work = [(uri, _moved(d, uri, archive)) for d in known]
        work = [(uri, d) for uri, d in work if _is_unfinished(d)]
    total = sum(len(d.pending()) for _, d in work)
    done = 0

    def one_more() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, max(done, total))

    reports = []
    for uri, destination in work:
        status = cast(SweepStatus, destination.info.status or "KILLED")
        recorder = Recorder.resume(uri, archive, destination, progress=one_more)
        reports.append(recorder.finish(status))
    return tuple(reports)


def _is_unfinished(destination: Destination) -> bool:
    undrawn = destination.info.figures and destination.undrawn()
    return bool(destination.pending() or not destination.info.ended or undrawn)


def _store_of(destination: Destination, archive: Archive) -> str:
    stored = destination.info.tracking_uri
    if stored is None or "***" not in stored:
        return resolve_tracking_uri(stored, archive.output)
    given = os.environ.get("MLFLOW_TRACKING_URI", "")
    if given and redact(resolve_tracking_uri(given, archive.output)) == stored:
        return resolve_tracking_uri(given, archive.output)
    raise TrackingError(
        f"the password of {stored} is not kept on the disk; give the whole address with "
        "--tracking-uri or MLFLOW_TRACKING_URI"
    )


def _moved(destination: Destination, uri: str, archive: Archive) -> Destination:
    """Return the destination of the same sweep in another store, with all cells queued."""
    place = stored_uri(uri, archive.output)
    if place == destination.info.tracking_uri:
        return destination
    info = destination.info
    with destination:
        # Waiting for a store that was given up would never end.
        if destination.pending() or not info.ended:
            destination.save(moved=True)
    moved = archive.destination(info.moved_to(place))
    with moved:
        moved.save()
        for key in destination.keys:
            moved.queue(key, destination.digest(key) or "")
    return moved
