"""The driver loop of a sweep on Ray: actors score prompts, tasks compute cells."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import ray
from ray.exceptions import (
    OutOfMemoryError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)
from ray.util.metrics import Counter as RayCounter
from ray.util.metrics import Gauge

from dcs.errors import ScoringError, last_line
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
from workflows.cluster.pool import ScoringPool
from workflows.parallel import Mapper, RayMapper
from workflows.plan import Cell, Progress, SweepPlan, sharing
from workflows.study.cell import compute_cell, failed_record
from workflows.study.study import StudyStorageError, open_storage
from workflows.tables import ProbabilityStore, Rows

_log = logging.getLogger(__name__)

#: Files of figures, by artifact path.
Figures: TypeAlias = dict[str, bytes]

#: Maximum number of retries after a worker died (out of memory, lost node).
_RETRIES = 3
#: Ray errors that a cell may cause itself; all others are attributed to the cluster.
_CELL_ERRORS = (OutOfMemoryError, RayTaskError, WorkerCrashedError)
#: Maximum number of workers that are started before the first table is scored.
_WARM_WORKERS = 64
#: Timeout of a wait for results, after which the cluster is checked again: Ray ends this process
#: silently soon after a node's daemon has died.
_WAIT_SECONDS = 0.25
#: Delay before a cell is retried after its study storage failed.
_STORAGE_SECONDS = 10.0


#: Metrics of a sweep on Ray's dashboard and in Prometheus, each named ``dcs_<name>``.
_COUNTERS: Final = {
    "cells": "Number of computed cells",
    "failed": "Number of computed cells that failed",
    "trials": "Number of trials of their studies",
    "moves": "Number of candidate solutions evaluated by their searches",
    "prompts": "Number of prompts of the scored tables",
    "tokens": "Number of tokens of the prompts that were sent to a model",
}
_GAUGES: Final = {
    "recorded": "Number of cells written to MLflow",
    "pending": "Number of cells on disk that are not yet written to MLflow",
}


class Meters:
    """Counters and gauges of a sweep; without Ray they have no effect.

    Parameters
    ----------
    sweep : str
        Name of the sweep, with which all are tagged.
    """

    def __init__(self, sweep: str) -> None:
        tags = ("sweep",)
        self._counters = {n: RayCounter(f"dcs_{n}", text, tags) for n, text in _COUNTERS.items()}
        self._gauges = {n: Gauge(f"dcs_{n}", text, tags) for n, text in _GAUGES.items()}
        for meter in (*self._counters.values(), *self._gauges.values()):
            meter.set_default_tags({"sweep": sweep})

    def count(self, **amounts: float) -> None:
        """Increment counters."""
        for name, amount in amounts.items():
            if amount > 0:  # Ray refuses other increments.
                self._counters[name].inc(amount)

    def show(self, **values: float) -> None:
        """Set gauges."""
        for name, value in values.items():
            self._gauges[name].set(value)


@dataclass(slots=True)
class _PendingCells:
    """Cells of one table that are not yet submitted, grouped if they share a search.

    The table is released when the last group has been submitted.
    """

    key: str
    cells: deque[tuple[Cell, ...]]
    tables: Any = None


@dataclass(frozen=True, slots=True)
class _Tuning:
    """Cells that are submitted together."""

    cells: tuple[Cell, ...]
    key: str
    started_ms: int
    width: int


class Driver:
    """Run the missing work of a plan on the Ray cluster that this process has joined.

    Parameters
    ----------
    plan : SweepPlan
        The plan.
    progress : Progress
        Progress of the sweep, initialised with the results of earlier runs.
    until : float, optional
        Deadline on the clock of :func:`time.monotonic`.

    Attributes
    ----------
    meters : Meters
        Metrics of the sweep in Ray.

    Raises
    ------
    DCSError
        If the cluster cannot run the work, or the study storage is unavailable.
    """

    def __init__(self, plan: SweepPlan, progress: Progress, *, until: float | None = None) -> None:
        self._plan, self._progress = plan, progress
        self._until = math.inf if until is None else until
        self.meters = Meters(plan.config.name)
        self._archive = Archive(plan.output)
        self._storage = plan.study_storage
        open_storage(self._storage)
        self._watch = ClusterWatch(look)
        self._look = self._watch.latest
        self._placement.check(plan.config.scoring if plan.missing_tables else None)
        self._pool = ScoringPool(
            plan.missing_tables,
            texts=plan.texts,
            store=ProbabilityStore.under(plan.output),
            settings=plan.config.scoring,
        )
        self._cell_task = ray.remote(max_retries=_RETRIES)(run_cells)

        # Keys of the tables and ensembles whose cells are known.
        self._ready = set(plan.cells)
        # Cells to compute, and cells being computed by the reference of their result.
        self._waiting: deque[_PendingCells] = deque()
        self._tuning: dict[Any, _Tuning] = {}
        self._attempts: Counter[str] = Counter()
        for key, cells in plan.missing_cells.items():
            self._enqueue(key, cells)

    def run(self) -> Iterator[tuple[CellRecord, Figures]]:
        """Yield the record and the figures of every missing cell when it completes.

        Raises
        ------
        ScoringError
            If tables could not be scored; raised after all other work is done.
        OutOfTimeError
            If the deadline passed before all work was done.
        DCSError
            If results cannot be written, for example because the disk is full.
        """
        try:
            with self._watch.watching():
                yield from self._work()
        except RayError as error:
            raise gone(last_line(error)) from error
        if self._pool.unscored:
            first, *others = self._pool.unscored
            more = f" (and {len(others)} more tables)" if others else ""
            raise ScoringError(
                f"{first}{more}; finished results are saved, run the command again to continue"
            ) from first.__cause__

    def _work(self) -> Iterator[tuple[CellRecord, Figures]]:
        self._update_progress()
        self._start_scoring()
        self._warm_up()
        while True:
            self._start_tuning()
            if not (self._pool.references or self._tuning):
                return
            if time.monotonic() >= self._until:
                self._stop()
            for done in self._wait():
                if done in self._tuning:
                    yield from self._end_tuning(done, self._tuning.pop(done))
                else:
                    yield from self._end_scoring(done)
            self._start_scoring()
            for late in self._overdue():
                # Kills the worker, which may hang in compiled code or be stopped.
                ray.cancel(late, force=True)
                yield from self._end_late(self._tuning.pop(late))
            self._update_progress()

    def _overdue(self) -> list[Any]:
        """Return the cells that have exceeded the time limit of the sweep."""
        limit = self._plan.config.cell_time_limit
        if limit is None:
            return []
        oldest = time.time_ns() // 1_000_000 - round(1000 * limit)
        return [key for key, tuning in self._tuning.items() if tuning.started_ms < oldest]

    def _end_late(self, ended: _Tuning) -> Iterator[tuple[CellRecord, Figures]]:
        limit, name = self._plan.config.cell_time_limit, self._plan.config.name
        error = OutOfTimeError(f"the cell did not end within cell_time_limit {limit:g} s")
        for cell in ended.cells:
            self._progress.cells_done += 1
            self._progress.cells_failed += 1
            self._count(cells=1, failed=1)
            yield failed_record(cell, error, sweep=name, started_ms=ended.started_ms), {}

    def _stop(self) -> None:
        for running in self._tuning:
            ray.cancel(running)
        raise OutOfTimeError(
            f"the time budget is exhausted with {self._progress.cells_done:,} of "
            f"{self._plan.n_cells:,} cells done; run the same command again to continue"
        )

    @property
    def _placement(self) -> Placement:
        return self._look.placement

    def _wait(self) -> list[Any]:
        """Return completed work, or nothing after a timeout so that the cluster is checked."""
        running = [*self._pool.references, *self._tuning]
        seconds = max(0.0, min(_WAIT_SECONDS, self._until - time.monotonic()))
        # Fetching results would contact the node's daemon, which may be dead.
        ready, _ = ray.wait(running, num_returns=1, timeout=seconds, fetch_local=False)
        if ready:
            check_processes()
            # With thousands in flight a wait is expensive: take all that have completed.
            ready, _ = ray.wait(running, num_returns=len(running), timeout=0, fetch_local=False)
        return list(ready)

    def _update_progress(self) -> None:
        self._look, progress = self._watch.latest, self._progress
        progress.tables_done = self._plan.n_tables - self._pool.n_missing
        progress.running, progress.machines = len(self._tuning), self._look.machines
        progress.show(progress)

    def _count(self, **amounts: float) -> None:
        self.meters.count(**amounts)
        self._progress.work.update(amounts)

    def _warm_up(self) -> None:
        """Start workers on the CPUs that are idle until the first table is scored."""
        if self._waiting or not self._pool.n_actors:
            return
        task = ray.remote(max_retries=0)(warm_up).options(**self._placement.cells)
        for _ in range(min(self._placement.cell_cpus_now - self._scoring_cpus, _WARM_WORKERS)):
            task.remote()

    @property
    def _scoring_cpus(self) -> int:
        """Number of CPUs that scoring takes from the cells."""
        if not self._placement.shared:
            return 0
        options, _ = self._placement.scoring(self._plan.config.scoring)
        return math.ceil(self._pool.n_actors * float(options["num_cpus"]))

    def _start_scoring(self) -> None:
        self._pool.fill(*self._placement.scoring(self._plan.config.scoring))

    def _end_scoring(self, done: Any) -> Iterator[tuple[CellRecord, Figures]]:
        prompts, tokens, scored = self._pool.end(done)
        self._count(prompts=prompts, tokens=tokens)
        if scored is None:
            return
        for ready, cells in self._plan.cells_after(scored).items():
            if ready in self._ready:
                continue
            self._ready.add(ready)
            # Keys are known only now: an earlier run may have computed cells of the same table.
            finished = self._archive.finished([cell.key for cell in cells])
            self._enqueue(ready, [cell for cell in cells if cell.key not in finished])
            for record in finished.values():
                self._progress.cells_done += 1
                yield record, {}

    def _enqueue(self, key: str, cells: Sequence[Cell]) -> None:
        if cells:
            self._waiting.append(_PendingCells(key, deque(sharing(cells))))

    def _start_tuning(self) -> None:
        task = self._cell_task.options(
            retry_exceptions=[StudyStorageError], **self._placement.cells
        )
        while self._waiting and len(self._tuning) < self._placement.cells_in_flight:
            waiting = self._waiting[0]
            if waiting.tables is None:
                tables = self._plan.read(waiting.key)
                # Ray silently ends a process that contacts a dead daemon.
                check_processes()
                # Not put by the actor, whose node may leave before the cells are computed.
                waiting.tables = ray.put(tables)
            width = self._width(waiting.cells[0][0])
            cells = waiting.cells.popleft()
            running = task.remote(
                run_cell,
                cells,
                waiting.tables,
                self._plan.config.name,
                RayMapper(width, self._placement.cells),
                self._storage,
                self._plan.config.tracking.figures == "all",
            )
            self._tuning[running] = _Tuning(cells, waiting.key, time.time_ns() // 1_000_000, width)
            if not waiting.cells:
                self._waiting.popleft()

    def _width(self, cell: Cell) -> int:
        """Return the number of parallel tasks of a cell: its share of the CPUs without a cell.

        The last cells of a sweep share all CPUs: CPUs that other cells still hold become free
        while they run, and until then their tasks wait in Ray's queue.
        """
        if cell.tuner is None:
            return 1
        free = self._placement.cell_cpus
        if self._pool.n_actors:
            free -= sum(tuning.width for tuning in self._tuning.values()) + self._scoring_cpus
        share = free // sum(len(waiting.cells) for waiting in self._waiting)
        return max(1, share)

    def _end_tuning(self, done: Any, ended: _Tuning) -> Iterator[tuple[CellRecord, Figures]]:
        records: list[tuple[CellRecord, Figures]]
        try:
            records = ray.get(done)
        except RayError as error:
            if not isinstance(error, RayTaskError):
                check_alive()
            if _is_cluster_error(error.cause if isinstance(error, RayTaskError) else error):
                self._retry_tuning(ended, error)
                return
            name, started_ms = self._plan.config.name, ended.started_ms
            records = [
                (failed_record(cell, error, sweep=name, started_ms=started_ms), {})
                for cell in ended.cells
            ]
        for record, figures in records:
            failed, trials = not record.finished, len(record.trials)
            self._progress.cells_done += 1
            self._progress.cells_failed += failed
            self._count(cells=1, failed=failed, trials=trials, moves=record.moves)
            yield self._plan.located(ended.key, record), figures

    def _retry_tuning(self, ended: _Tuning, error: RayError) -> None:
        first = ended.cells[0]
        self._attempts[first.key] += 1
        if self._attempts[first.key] > _RETRIES:
            raise ClusterError(
                f"{first.label}: lost by the cluster {_RETRIES + 1} times ({last_line(error)}); "
                "finished results are saved, run the same command again to continue"
            ) from error
        self._enqueue(ended.key, ended.cells)


def _is_cluster_error(error: BaseException | None) -> bool:
    return isinstance(error, RayError) and not isinstance(error, _CELL_ERRORS)


def run_cells(
    run: Callable[..., tuple[CellRecord, Figures]],
    cells: tuple[Cell, ...],
    *more: Any,
) -> list[tuple[CellRecord, Figures]]:
    """Compute cells that share a search by calling `run` on each with the other arguments."""
    known: dict[Any, Any] = {}
    return [run(cell, *more, known) for cell in cells]


def run_cell(
    cell: Cell,
    tables: dict[str, Rows],
    sweep: str,
    mapper: Mapper,
    storage: str | None,
    drawn: bool,
    known: dict[Any, Any] | None = None,
) -> tuple[CellRecord, Figures]:
    """Compute a cell; errors are recorded, so that they do not stop other cells.

    Parameters
    ----------
    cell : Cell
        The cell to compute.
    tables : dict of str to ProbabilityTable or TableEnsemble
        Tables by split.
    sweep : str
        Name of the sweep that the record belongs to.
    mapper : Mapper
        Runs the trials.
    storage : str or None
        Storage of the cell's study.
    drawn : bool
        Whether to draw the figures of the cell.
    known : dict, optional
        See :func:`compute_cell`.

    Returns
    -------
    record : CellRecord
        Finished or failed.
    figures : dict of str to bytes
        Files by artifact path.

    Raises
    ------
    StudyStorageError
        If the storage fails. Ray retries the cell, which resumes its study.
    RayError
        If the cluster lost a task of the cell; the driver retries the cell.
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
        if _is_cluster_error(error):
            raise
        return failed_record(cell, error, sweep=sweep, started_ms=started_ms), {}
    return record, cell_figures(record) if drawn else {}


def warm_up() -> None:
    """Load the imports of this module and the compiled code that cells need."""
    table = np.full((4, 2), 0.5)
    anneal(table, np.array([0, 1, 0, 1]), schedule=Schedule(budget=100), classes=("a", "b"))
