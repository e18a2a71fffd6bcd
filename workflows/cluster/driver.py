"""The loop that keeps a Ray cluster busy with a sweep: actors score, tasks anneal."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import ray
from ray.exceptions import (
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)
from ray.util.metrics import Counter as RayCounter
from ray.util.metrics import Gauge

from dcs.errors import DCSError, ScoringError, last_line
from dcs.search.annealing import anneal
from dcs.search.schedule import Schedule
from tracking import Archive, CellRecord
from tracking.results.figures import cell_figures
from workflows.cluster.connect import (
    ClusterError,
    ClusterWatch,
    OutOfTimeError,
    check_alive,
    check_processes,
    gone,
    look,
)
from workflows.cluster.placement import Placement
from workflows.cluster.scoring import ScoringActor
from workflows.config.tuner import StudyStorage, StudyStorageError
from workflows.parallel import Heartbeat, Mapper, RayMapper, StoppedWorkers
from workflows.plan import Cell, Progress, SweepPlan, sharing
from workflows.tables import ProbabilityStore, Rows, TableRequest
from workflows.tuning.cell import compute_cell, failed_record

_log = logging.getLogger(__name__)

#: Files of figures, by artifact path.
Figures: TypeAlias = dict[str, bytes]

#: A worker that dies (out of memory, a lost node) is tried again so often.
_RETRIES = 3
#: What of Ray's errors a cell may be at fault for, again and again; for the others the cluster is.
_OWN = (OutOfMemoryError, RayTaskError, WorkerCrashedError)
#: Workers that are started ahead of the first table.
_WARM_WORKERS = 64
#: How long a wait for results lasts before the cluster is looked at again: Ray ends this process
#: soon after a node's daemon has died, without a word.
_WAIT_SECONDS = 0.25
#: A storage that fails is given so long to come back before the cell is tried again.
_STORAGE_SECONDS = 10.0


#: What a sweep shows on Ray's dashboard and to Prometheus, each under ``dcs_<name>``.
_COUNTERS: Final = {
    "cells": "Cells that were computed",
    "failed": "Those of them that failed",
    "trials": "Trials of their studies",
    "moves": "Candidate solutions that their searches judged",
    "prompts": "Prompts of the tables that were scored",
    "tokens": "Tokens of those that a model was asked",
}
_GAUGES: Final = {
    "recorded": "Cells that were written to MLflow",
    "pending": "Cells that are on disk and wait for it",
}


class Meters:
    """The counters and gauges of a sweep; without Ray they rest.

    Parameters
    ----------
    sweep : str
        Name of the sweep, their tag.
    """

    def __init__(self, sweep: str) -> None:
        tags = ("sweep",)
        self._counters = {n: RayCounter(f"dcs_{n}", text, tags) for n, text in _COUNTERS.items()}
        self._gauges = {n: Gauge(f"dcs_{n}", text, tags) for n, text in _GAUGES.items()}
        for meter in (*self._counters.values(), *self._gauges.values()):
            meter.set_default_tags({"sweep": sweep})

    def count(self, **amounts: float) -> None:
        """Add to counters."""
        for name, amount in amounts.items():
            if amount > 0:  # Ray counts nothing else.
                self._counters[name].inc(amount)

    def show(self, **values: float) -> None:
        """Set gauges."""
        for name, value in values.items():
            self._gauges[name].set(value)


@dataclass(frozen=True, slots=True)
class _Scoring:
    """A table that an actor is at work on."""

    actor: Any
    key: str
    request: TableRequest
    tables: Any


@dataclass(slots=True)
class _Waiting:
    """Cells of one table that have not been handed out, together if they share a search.

    With the last of them the table is let go.
    """

    key: str
    cells: deque[tuple[Cell, ...]]
    tables: Any = None


@dataclass(frozen=True, slots=True)
class _Tuning:
    """Cells that are handed out together."""

    cells: tuple[Cell, ...]
    key: str
    started_ms: int
    width: int


class Driver:
    """Does the missing work of a plan on the Ray cluster that this process is connected to.

    Parameters
    ----------
    plan : SweepPlan
        What is missing.
    progress : Progress
        Told how far the sweep is; has to say what there was at the start.
    until : float, optional
        When to stop, by :func:`time.monotonic`.

    Attributes
    ----------
    meters : Meters
        What Ray shows of the sweep.

    Raises
    ------
    DCSError
        The cluster can do none of it, or the studies' storage cannot be used.
    """

    def __init__(self, plan: SweepPlan, progress: Progress, *, until: float | None = None) -> None:
        self._plan, self._progress = plan, progress
        self._until = math.inf if until is None else until
        self.meters = Meters(plan.config.name)
        self._archive = Archive(plan.output)
        self._store = ProbabilityStore.under(plan.output)
        self._storage = StudyStorage.chosen(plan.config.optuna_storage)
        if self._storage is not None:
            self._storage.check()
        self._watch = ClusterWatch(look)
        self._look = self._watch.latest
        self._stopped = StoppedWorkers()
        self._placement.check(plan.config.scoring if plan.missing_tables else None)
        self._actor_class = ray.remote(max_restarts=_RETRIES, max_task_retries=_RETRIES)(
            ScoringActor
        )
        self._cell_task = ray.remote(max_retries=_RETRIES)(run_cells)

        # Tables to be scored, those at work by the reference of their result, and those given up.
        self._requests = deque(plan.missing_tables.items())
        self._scoring: dict[Any, _Scoring] = {}
        self._unscored: list[ScoringError] = []
        self._idle: dict[str, list[Any]] = {}
        # Tables whose cells are known, and ensembles.
        self._ready = set(plan.cells)
        # Cells likewise.
        self._waiting: deque[_Waiting] = deque()
        self._tuning: dict[Any, _Tuning] = {}
        self._attempts: Counter[str] = Counter()
        for key, cells in plan.missing_cells.items():
            self._enqueue(key, cells)

    def run(self) -> Iterator[tuple[CellRecord, Figures]]:
        """Yield the record and the figures of every missing cell as it ends.

        Raises
        ------
        ScoringError
            A table cannot be scored, said once all else is done: its cells cannot be computed.
        OutOfTimeError
            There was more to do.
        DCSError
            The results cannot be kept, for example on a full disk.
        """
        try:
            with self._watch.watching(), self._stopped.watching():
                yield from self._work()
        except RayError as error:
            raise gone(last_line(error)) from error
        if self._unscored:
            first, *others = self._unscored
            more = f" (and {len(others)} more tables)" if others else ""
            raise ScoringError(
                f"{first}{more}; what is finished is kept, run the same command again to go on"
            ) from first.__cause__

    def _work(self) -> Iterator[tuple[CellRecord, Figures]]:
        self._report()
        self._warm_up()
        while True:
            self._start_scoring()
            self._start_tuning()
            if not (self._scoring or self._tuning):
                return
            if time.monotonic() >= self._until:
                self._stop()
            for done in self._wait():
                if done in self._scoring:
                    yield from self._end_scoring(done, self._scoring.pop(done))
                else:
                    yield from self._end_tuning(done, self._tuning.pop(done))
            self._report()

    def _stop(self) -> None:
        for running in self._tuning:
            ray.cancel(running)
        raise OutOfTimeError(
            f"the time budget is used up with {self._progress.cells_done:,} of "
            f"{self._plan.n_cells:,} cells done; run the same command again to go on"
        )

    @property
    def _placement(self) -> Placement:
        return self._look.placement

    def _wait(self) -> list[Any]:
        """Return what has ended, after a while nothing, so that the cluster is looked at again."""
        running = [*self._scoring, *self._tuning]
        seconds = max(0.0, min(_WAIT_SECONDS, self._until - time.monotonic()))
        # To fetch results is to talk to the node's daemon, which may be dead.
        ready, _ = ray.wait(running, num_returns=1, timeout=seconds, fetch_local=False)
        if ready:
            check_processes()
            # With thousands in flight a wait is dear: take all that are done by now.
            ready, _ = ray.wait(running, num_returns=len(running), timeout=0, fetch_local=False)
        return list(ready)

    def _report(self) -> None:
        while self._stopped.ended:
            warnings.warn(self._stopped.ended.popleft(), stacklevel=2)
        self._look, progress = self._watch.latest, self._progress
        missing = len(self._requests) + len(self._scoring) + len(self._unscored)
        progress.tables_done = self._plan.n_tables - missing
        progress.running, progress.machines = len(self._tuning), self._look.machines
        progress.show(progress)

    def _count(self, **amounts: float) -> None:
        self.meters.count(**amounts)
        self._progress.work.update(amounts)

    def _warm_up(self) -> None:
        """Start workers on the CPUs that have nothing to do until the first table is there."""
        if self._waiting or not self._requests:
            return
        free = self._placement.cell_cpus_now
        if self._placement.shared:
            options, slots = self._placement.scoring(self._plan.config.scoring)
            free -= math.ceil(min(slots, len(self._requests)) * options["num_cpus"])
        task = ray.remote(max_retries=0)(warm_up).options(**self._placement.cells)
        for _ in range(min(free, _WARM_WORKERS)):
            task.remote()

    def _start_scoring(self) -> None:
        options, slots = self._placement.scoring(self._plan.config.scoring)
        while self._requests and len(self._scoring) < slots:
            key, request = self._requests.popleft()
            actor = self._actor_of(request.model, options)
            tables, note = actor.generate.options(num_returns=2).remote(
                request, key, self._plan.texts.get(key)
            )
            self._scoring[note] = _Scoring(actor, key, request, tables)
        # An actor without work gives its GPU back: dropping the last handle ends it.
        wanted = {request.model for _, request in self._requests}
        self._idle = {model: actors for model, actors in self._idle.items() if model in wanted}

    def _actor_of(self, model: str, options: dict[str, Any]) -> Any:
        if self._idle.get(model):
            return self._idle[model].pop()
        self._idle.clear()
        return self._actor_class.options(**options).remote(
            model,
            self._store.root,
            options["num_gpus"],
            self._plan.config.scoring,
            self._stopped.heartbeat,
        )

    def _end_scoring(self, done: Any, ended: _Scoring) -> Iterator[tuple[CellRecord, Figures]]:
        key, request = ended.key, ended.request
        try:
            note = ray.get(done)
            if self._store.digests(key) is None:
                # The actor's disk is not ours: keep what it made here too.
                self._store.keep(key, ray.get(ended.tables), note)
        except RayError as error:
            if not isinstance(error, RayTaskError):
                check_alive()
            if isinstance(error, RayTaskError):
                # The actor holds its model still, or says of every table why it has none.
                self._idle.setdefault(request.model, []).append(ended.actor)
                self._give_up(request, error.cause, error)
            elif isinstance(error, RayActorError) and "creation task" in str(error):
                # The model cannot be loaded: no other table of it can be scored.
                self._give_up(request, error, error)
                others = (item for item in self._requests if item[1].model != request.model)
                self._requests = deque(others)
            else:
                # Its node went away; Ray has tried the actor's own restarts.
                self._attempts[key] += 1
                if self._attempts[key] < _RETRIES:
                    self._requests.append((key, request))
                else:
                    self._give_up(request, error, error)
            return
        self._idle.setdefault(request.model, []).append(ended.actor)
        self._count(prompts=note.rows, tokens=note.tokens)
        for ready, cells in self._plan.cells_after(key).items():
            if ready in self._ready:
                continue
            self._ready.add(ready)
            # Only now are the keys known: the same numbers may have been worked on before.
            finished = self._archive.finished([cell.key for cell in cells])
            self._enqueue(ready, [cell for cell in cells if cell.key not in finished])
            for record in finished.values():
                self._progress.cells_done += 1
                yield record, {}

    def _give_up(
        self, request: TableRequest, cause: BaseException | None, error: RayError
    ) -> None:
        """Leave a table out, and say so in the end."""
        if isinstance(cause, OSError):
            # A full disk and the like meet the others too: stop, and keep what there is.
            raise DCSError(
                f"{cause.filename or self._store.root}: the scored table cannot be written "
                f"({cause.strerror or cause}); make room and run the same command again"
            ) from error
        reason = str(cause) if isinstance(cause, DCSError) else last_line(error)
        wrapped = ScoringError(f"scoring {request.label} failed: {' '.join(reason.split())}")
        # Its frames hold a handle of the actor, which would keep CPU and GPU to the end.
        wrapped.__cause__ = error.with_traceback(None)
        self._unscored.append(wrapped)

    def _enqueue(self, key: str, cells: Sequence[Cell]) -> None:
        if cells:
            self._waiting.append(_Waiting(key, deque(sharing(cells))))

    def _start_tuning(self) -> None:
        task = self._cell_task.options(
            retry_exceptions=[StudyStorageError], **self._placement.cells
        )
        while self._waiting and len(self._tuning) < self._placement.cells_in_flight:
            waiting = self._waiting[0]
            if waiting.tables is None:
                tables = self._plan.read(waiting.key)
                # Ray ends a process without a word that talks to a daemon which is dead.
                check_processes()
                # Put here and not by the actor, whose node may leave before the cells are done.
                waiting.tables = ray.put(tables)
            width = self._width(waiting.cells[0][0])
            cells = waiting.cells.popleft()
            heartbeat = self._stopped.heartbeat
            running = task.remote(
                heartbeat,
                run_cell,
                cells,
                waiting.tables,
                self._plan.config.name,
                RayMapper(width, self._placement.cells, heartbeat),
                self._storage,
                self._plan.config.tracking.figures == "all",
            )
            self._tuning[running] = _Tuning(cells, waiting.key, time.time_ns() // 1_000_000, width)
            if not waiting.cells:
                self._waiting.popleft()

    def _width(self, cell: Cell) -> int:
        """Return how many parts of a cell run at once: its share of the CPUs without a cell.

        The last cells of a sweep share all CPUs: those that others still hold come free while
        they run, and until then their parts wait in Ray's queue.
        """
        if cell.tuner is None:
            return 1
        free = self._placement.cell_cpus
        if self._requests or self._scoring:
            free -= sum(tuning.width for tuning in self._tuning.values())
            if self._placement.shared:
                free -= len(self._scoring)
        share = free // sum(len(waiting.cells) for waiting in self._waiting)
        if cell.tuner.protocol == "study":
            share = min(share, cell.tuner.window, cell.tuner.trials or 1)
        return max(1, share)

    def _end_tuning(self, done: Any, ended: _Tuning) -> Iterator[tuple[CellRecord, Figures]]:
        records: list[tuple[CellRecord, Figures]]
        try:
            records = ray.get(done)
        except RayError as error:
            if not isinstance(error, RayTaskError):
                check_alive()
            if _of_the_cluster(error.cause if isinstance(error, RayTaskError) else error):
                self._tune_again(ended, error)
                return
            name, started_ms = self._plan.config.name, ended.started_ms
            records = [
                (failed_record(cell, error, sweep=name, started_ms=started_ms), {})
                for cell in ended.cells
            ]
        for record, figures in records:
            if not self._progress.work["cells"]:
                self._progress.first_computed = time.monotonic()
            failed, trials = not record.finished, len(record.trials)
            self._progress.cells_done += 1
            self._progress.cells_failed += failed
            self._count(cells=1, failed=failed, trials=trials, moves=record.moves)
            yield record, figures

    def _tune_again(self, ended: _Tuning, error: RayError) -> None:
        first = ended.cells[0]
        self._attempts[first.key] += 1
        if self._attempts[first.key] > _RETRIES:
            raise ClusterError(
                f"{first.label}: the cluster loses it again and again ({last_line(error)}); "
                "what is finished is kept, run the same command again to go on"
            ) from error
        self._enqueue(ended.key, ended.cells)


def _of_the_cluster(error: BaseException | None) -> bool:
    return isinstance(error, RayError) and not isinstance(error, _OWN)


def run_cells(
    heartbeat: Heartbeat | None,
    run: Callable[..., tuple[CellRecord, Figures]],
    cells: tuple[Cell, ...],
    *more: Any,
) -> list[tuple[CellRecord, Figures]]:
    """Compute cells that share a search, each as `run` does with the other arguments."""
    if heartbeat is not None:
        heartbeat.keep()
    known: dict[Any, Any] = {}
    return [run(cell, *more, known) for cell in cells]


def run_cell(
    cell: Cell,
    tables: dict[str, Rows],
    sweep: str,
    mapper: Mapper,
    storage: StudyStorage | None,
    drawn: bool,
    known: dict[Any, Any] | None = None,
) -> tuple[CellRecord, Figures]:
    """Compute a cell; an error becomes a record, so that it stops no other cell.

    Parameters
    ----------
    cell : Cell
        What to compute.
    tables : dict of str to ProbabilityTable or TableEnsemble
        By split.
    sweep : str
        The sweep the record is filed under.
    mapper : Mapper
        Where trials are computed.
    storage : StudyStorage or None
        Where the cell's study is kept.
    drawn : bool
        Whether its figures are drawn.
    known : dict, optional
        As of :func:`compute_cell`.

    Returns
    -------
    record : CellRecord
        Finished or failed.
    figures : dict of str to bytes
        Files by artifact path.

    Raises
    ------
    StudyStorageError
        The storage fails. Ray tries the cell again, which goes on where it was.
    RayError
        The cluster has lost a part of the cell, which is tried again too.
    """
    started_ms = time.time_ns() // 1_000_000
    try:
        record = compute_cell(
            cell,
            tables["optimization"],
            tables["test"],
            sweep=sweep,
            mapper=mapper,
            storage=storage,
            known=known,
        )
    except StudyStorageError:
        time.sleep(_STORAGE_SECONDS)
        raise
    except Exception as error:
        if _of_the_cluster(error):
            raise
        return failed_record(cell, error, sweep=sweep, started_ms=started_ms), {}
    return record, _figures(record) if drawn else {}


def _figures(record: CellRecord) -> Figures:
    """Draw a cell; a search is not lost for its pictures, which `dcs report` draws again."""
    try:
        return cell_figures(record)
    except Exception:
        _log.exception("the figures of cell %s were not drawn", record.key)
        return {}


def warm_up() -> None:
    """Load what a cell takes: the imports of this module, and compiled code."""
    table = np.full((4, 2), 0.5)
    anneal(table, np.array([0, 1, 0, 1]), schedule=Schedule(budget=100), classes=("a", "b"))
