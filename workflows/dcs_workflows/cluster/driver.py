"""The driver loop of a sweep on Ray: actors score prompts, tasks compute cells."""

from __future__ import annotations

import math
import signal
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

import ray
from ray.exceptions import OutOfMemoryError, RayError, RayTaskError, WorkerCrashedError

from dcs.errors import ScoringError, last_line
from dcs.selection.methods import get_method
from dcs_tracking import Archive, CellRecord
from dcs_tracking.records import now_ms
from dcs_workflows.cluster.connect import ClusterWatch, Placement, check_processes, gone, place
from dcs_workflows.cluster.pool import ScoringPool, check_alive
from dcs_workflows.parallel import one_thread
from dcs_workflows.plan import (
    Budget,
    BudgetSpentError,
    Cell,
    Progress,
    SweepPlan,
    counted,
    sharing,
)
from dcs_workflows.sources.joint import Rows
from dcs_workflows.study.cell import compute_cell, failed_record
from dcs_workflows.study.storage import Studies, StudyStorageError
from dcs_workflows.study.study import Setup

T = TypeVar("T")
R = TypeVar("R")

#: Maximum number of retries of a cell, or a trial, whose worker died (out of memory, lost node).
_RETRIES = 3
#: Maximum number of tasks ahead of the next result, as a multiple of the running tasks. Without a
#: limit a slow first item would keep all other results in memory.
_AHEAD = 4
#: Ray errors that a cell may cause itself; all others are attributed to the cluster.
_CELL_ERRORS = (OutOfMemoryError, RayTaskError, WorkerCrashedError)
#: Timeout of a wait for results, after which the cluster is checked again: Ray ends this process
#: silently soon after a node's daemon has died.
_WAIT_SECONDS = 0.25
#: Cells submitted to Ray per CPU: enough to keep it busy, few enough to stop quickly.
_IN_FLIGHT_PER_CPU = 3
#: Delay before a cell is retried after its study storage failed.
_STORAGE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class RayMapper:
    """Compute items as Ray tasks, from a driver or from inside another task.

    A task that waits for others releases its CPU to Ray, so that cells with parallel trials cannot
    block each other.

    Attributes
    ----------
    width : int
        Maximum number of parallel tasks; with 1, items are computed in the calling process.
    options : dict
        Ray options of each task, for example where it may run.
    """

    width: int
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(
        self,
        function: Callable[[T], R],
        items: Iterable[T],
        /,
        *,
        ahead: int | None = None,
    ) -> Iterator[R]:
        """Yield ``function(item)`` for every item; see :data:`dcs.selection.fitting.Mapper`.

        The function and the tables that it holds are put into Ray's object store once.
        """
        if self.width == 1:
            yield from map(function, items)
            return
        limit = _AHEAD * self.width if ahead is None else ahead
        shared = ray.put(function)
        task: Any = ray.remote(max_retries=_RETRIES)(_apply).options(**self.options)
        source = iter(items)
        # None is queued: a task that starts while it is cancelled might go on.
        running: set[Any] = set()
        taken: deque[Any] = deque()
        try:
            while True:
                while taken and taken[0] not in running:
                    yield ray.get(taken.popleft())
                for item in islice(source, min(self.width - len(running), limit - len(taken))):
                    taken.append(task.remote(shared, item))
                    running.add(taken[-1])
                if not running:
                    return
                done, _ = ray.wait(list(running), num_returns=1)
                running.difference_update(done)
        except RayTaskError as error:
            # Raise the original error, as in this process.
            raise error.cause from error
        finally:
            # The caller stopped iterating, or an item failed: the other results are not needed.
            for reference in running:
                ray.cancel(reference, force=False)


def _apply(function: Callable[[T], R], item: T) -> R:
    """Run on a worker; Ray has replaced the reference of `function` by its value."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # Inherited from a background job of a script; Ray cancels tasks by this signal.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with one_thread():
        return function(item)


def look() -> Placement | None:
    """Return where work is scheduled on the joined cluster, or None if no node is alive."""
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    return place(nodes) if any(node["Alive"] for node in nodes) else None


class Driver:
    """Run the missing work of a plan on the Ray cluster that this process has joined.

    Parameters
    ----------
    plan : SweepPlan
        The plan.
    progress : Progress
        Progress of the sweep, initialised with the results of earlier runs.
    budget : Budget
        What the run may use.

    Raises
    ------
    DCSError
        If the cluster cannot run the work, or the study storage is unavailable.
    """

    def __init__(self, plan: SweepPlan, progress: Progress, budget: Budget) -> None:
        self._plan, self._progress, self._budget = plan, progress, budget
        # The limits that were reached.
        self._spent: set[str] = set()
        self._archive = Archive(plan.output)
        self._studies = Studies(plan.output.absolute(), plan.study_storage)
        self._studies.check(connect=True)
        self._watch = ClusterWatch(look)
        self._placement = self._watch.latest
        self._placement.check(plan.config.scoring if plan.missing_tables else None)
        self._pool = ScoringPool(plan, progress.work)
        self._cell_task = ray.remote(max_retries=_RETRIES)(run_cells)
        if plan.missing_tables and any(get_method(name).settings for name in plan.config.methods):
            # At the same time as the models are loaded.
            ray.remote(_compile).options(**self._placement.cells | {"num_cpus": 0}).remote()

        # Keys of the tables that are complete.
        self._ready = set(plan.cells)
        # Cells that share a search and are to be computed, by table after table, and the rows of
        # the last table that cells were submitted of.
        self._waiting: deque[tuple[str, tuple[Cell, ...]]] = deque()
        self._rows: tuple[str, Any] = ("", None)
        # Cells being computed, when they were submitted and their width, by their reference.
        self._tuning: dict[Any, tuple[tuple[Cell, ...], int, int]] = {}
        for key, cells in plan.missing_cells.items():
            self._enqueue(key, cells)

    def run(self) -> Generator[CellRecord, None, None]:
        """Yield the record of every missing cell when it completes.

        Raises
        ------
        ScoringError
            If tables could not be scored; raised after all other work is done.
        BudgetSpentError
            If work is left because the budget is spent; raised when all that was begun is done.
        DCSError or OSError
            If results cannot be written, for example because the disk is full.
        """
        try:
            with self._watch.watching():
                yield from self._work()
        except RayError as error:
            raise gone(last_line(error)) from error
        seen = self._progress
        if self._spent and (cells := seen.cells_total - seen.cells_done):
            tables = counted(seen.tables_total - seen.tables_done, "table")
            raise BudgetSpentError(
                f"the budget of {' and '.join(sorted(self._spent))} is spent; left: {tables} and "
                f"{counted(cells, 'cell')}; run the same command again to go on"
            )
        if self._pool.unscored:
            first, *others = self._pool.unscored
            more = f" (and {len(others)} more tables)" if others else ""
            raise ScoringError(
                f"{first}{more}; finished results are saved, run the command again to continue"
            ) from first.__cause__

    def _work(self) -> Iterator[CellRecord]:
        while True:
            self._spend()
            self._placement = self._watch.latest
            self._pool.fill(*self._placement.scoring(self._plan.config.scoring))
            self._start_tuning()
            self._progress.running = len(self._tuning)
            if not (self._pool.running or self._tuning):
                return
            for done in self._wait():
                if done in self._tuning:
                    yield from self._end_tuning(done, *self._tuning.pop(done)[:2])
                else:
                    yield from self._end_scoring(done)

    def _spend(self) -> None:
        """Begin nothing more for which the budget is spent."""
        if not (reached := self._budget.spent(self._progress)):
            return
        self._spent.add(reached)
        self._pool.stop()
        if reached == "hours":
            self._waiting.clear()

    def _wait(self) -> list[Any]:
        """Return completed work, or nothing after a timeout so that the cluster is checked."""
        running = [*self._pool.running, *self._tuning]
        # Fetching results would contact the node's daemon, which may be dead.
        ready, _ = ray.wait(running, num_returns=1, timeout=_WAIT_SECONDS, fetch_local=False)
        if ready:
            check_processes()
            # With thousands in flight a wait is expensive: take all that have completed.
            ready, _ = ray.wait(running, num_returns=len(running), timeout=0, fetch_local=False)
        return list(ready)

    def _end_scoring(self, done: Any) -> Iterator[CellRecord]:
        if (scored := self._pool.end(done)) is None:
            return
        self._ready.add(scored)
        for ready, cells in self._plan.cells_after(scored, self._ready).items():
            self._progress.tables_done += 1
            # Keys are known only now: an earlier run may have computed cells of the same table.
            finished = self._archive.finished([cell.key for cell in cells])
            self._enqueue(ready, [cell for cell in cells if cell.key not in finished])
            self._progress.cells_done += len(finished)
            yield from finished.values()

    def _enqueue(self, key: str, cells: Sequence[Cell]) -> None:
        self._waiting.extend((key, group) for group in sharing(cells))

    def _start_tuning(self) -> None:
        options = {"retry_exceptions": [StudyStorageError, RayError], **self._placement.cells}
        most = _IN_FLIGHT_PER_CPU * max(1, self._placement.cell_cpus)
        while self._waiting and len(self._tuning) < most:
            width = self._width(self._waiting[0][1][0])
            key, cells = self._waiting.popleft()
            if key != self._rows[0]:
                tables = self._plan.tables[key].read()
                # Ray silently ends a process that contacts a dead daemon.
                check_processes()
                # Not put by the actor, whose node may leave before the cells are computed.
                self._rows = key, ray.put(tables)
            name = f"run_cells {cells[0].label} {cells[0].key[:8]}"
            setup = Setup(
                sweep=self._plan.config.name,
                mapper=RayMapper(width, self._placement.cells),
                stored=self._studies.of,
                files=self._plan.files_of(key),
            )
            running = self._cell_task.options(name=name, **options).remote(
                cells, self._rows[1], setup
            )
            if not (self._tuning or self._progress.work["cells"]):
                self._progress.first_cell = time.monotonic()
            self._tuning[running] = cells, now_ms(), width

    def _width(self, cell: Cell) -> int:
        """Return the number of parallel tasks of a cell: its share of the CPUs without a cell.

        The last cells of a sweep share all CPUs: CPUs that other cells still hold become free
        while they run, and until then their tasks wait in Ray's queue.
        """
        if get_method(cell.method).settings is None:
            return 1
        free = self._placement.cell_cpus
        if actors := len(self._pool.actors):
            options, _ = self._placement.scoring(self._plan.config.scoring)
            scoring = actors * float(options["num_cpus"]) if self._placement.shared else 0.0
            free -= sum(width for _, _, width in self._tuning.values()) + math.ceil(scoring)
        return max(1, free // len(self._waiting))

    def _end_tuning(self, done: Any, cells: Sequence[Cell], began: int) -> Iterator[CellRecord]:
        try:
            records: list[CellRecord] = ray.get(done)
        except RayError as error:
            if not isinstance(error, RayTaskError):
                check_alive()
            if _is_cluster_error(error.cause if isinstance(error, RayTaskError) else error):
                # Lost in each of Ray's retries.
                raise
            about: Any = {"sweep": self._plan.config.name, "started_ms": began}
            records = [failed_record(cell, error, **about) for cell in cells]
        for record in records:
            self._progress.cells_done += 1
            self._progress.cells_failed += not record.finished
            self._progress.work.update(cells=1, trials=len(record.trials))
            yield record


def _compile() -> None:
    # Only workers load the compiler, which takes 60 MB.
    from dcs.search.annealing import compile_search

    compile_search()


def _is_cluster_error(error: BaseException | None) -> bool:
    return isinstance(error, RayError) and not isinstance(error, _CELL_ERRORS)


def run_cells(cells: tuple[Cell, ...], tables: dict[str, Rows], setup: Setup) -> list[CellRecord]:
    """Compute cells that share a search; errors are recorded, so that they stop no other cells.

    Parameters
    ----------
    cells : tuple of Cell
        The cells to compute.
    tables : dict of str to ProbabilityTable or TableEnsemble
        Tables by split.
    setup : Setup
        What they are computed with.

    Returns
    -------
    list of CellRecord
        Finished or failed, in the order of the cells.

    Raises
    ------
    StudyStorageError
        If the storage fails. Ray retries the cells, which resume their study.
    RayError
        If the cluster lost a task of a cell. Ray retries the cells.
    """
    records = list[CellRecord]()
    for cell in cells:
        started_ms = now_ms()
        try:
            records.append(compute_cell(cell, tables, setup=setup))
        except StudyStorageError:
            time.sleep(_STORAGE_SECONDS)
            raise
        except Exception as error:
            if _is_cluster_error(error):
                raise
            records.append(failed_record(cell, error, sweep=setup.sweep, started_ms=started_ms))
    return records
