"""The loop that keeps a Ray cluster busy with a sweep: actors score, tasks anneal."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from dcs.errors import DCSError
from dcs.probabilities import ProbabilityTable
from tracking import CellRecord, Outbox
from workflows.cells import Cell, TableRequest, cells_of
from workflows.compute import compute_cell, failed_record
from workflows.generate import ScoringActor
from workflows.stores import ProbabilityStore
from workflows.sweep import Progress, SweepPlan

__all__ = ["Driver"]

#: Cells handed to Ray per CPU: enough to keep it busy, little enough to stop soon.
_IN_FLIGHT_PER_CPU = 3
#: A worker that dies (out of memory, a lost node) is tried again so often.
_RETRIES = 3


@dataclass(frozen=True, slots=True)
class _Scoring:
    actor: Any
    key: str
    request: TableRequest
    tables: Any


@dataclass(frozen=True, slots=True)
class _Tuning:
    cell: Cell
    started_ms: int


def _run_cell(cell: Cell, tables: dict[str, ProbabilityTable], sweep: str) -> CellRecord:
    """Compute a cell on a worker; an error becomes a record, so that it stops no other cell."""
    started_ms = time.time_ns() // 1_000_000
    try:
        return compute_cell(cell, tables["optimization"], tables["test"], sweep=sweep)
    except Exception as error:
        return failed_record(cell, error, sweep=sweep, started_ms=started_ms)


class Driver:
    """Does the missing work of a plan on the Ray cluster that this process is connected to.

    Parameters
    ----------
    plan : SweepPlan
        What is missing.
    progress : Progress
        Told of every table and cell.
    """

    def __init__(self, plan: SweepPlan, progress: Progress) -> None:
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        cpus = max(1, int(resources.get("CPU", 1)))
        gpus = int(resources.get("GPU", 0))
        self._plan = plan
        self._progress = progress
        self._outbox = Outbox(plan.output)
        self._store = ProbabilityStore.under(plan.output)
        # Without GPUs half of the CPUs score, so that annealing can start beside them.
        self._actor_slots = gpus or max(1, cpus // 2)
        self._cell_slots = _IN_FLIGHT_PER_CPU * cpus
        self._gpus_each = 1 if gpus else 0
        self._actor_class = ray.remote(
            num_cpus=1, num_gpus=self._gpus_each, max_restarts=_RETRIES, max_task_retries=_RETRIES
        )(ScoringActor)
        self._cell_task = ray.remote(num_cpus=1, max_retries=_RETRIES)(_run_cell)

        self._requests = deque(plan.missing_tables.items())
        self._idle: dict[str, list[Any]] = {}
        self._scoring: dict[Any, _Scoring] = {}
        self._tables: dict[str, Any] = {}
        self._waiting: deque[tuple[Cell, str]] = deque()
        self._cells_left: Counter[str] = Counter()
        for key, cells in plan.missing_cells.items():
            self._enqueue(key, cells)
        self._tuning: dict[Any, _Tuning] = {}
        self._cells_ended = len(plan.ended)
        self._cells_failed = plan.n_failed

    def run(self) -> Iterator[CellRecord]:
        """Yield the record of every missing cell as it ends.

        Raises
        ------
        DCSError
            A model cannot be scored: then none of its cells can be.
        """
        self._report()
        while True:
            self._start_scoring()
            self._start_tuning()
            running = [*self._scoring, *self._tuning]
            if not running:
                return
            (ready,), _ = ray.wait(running, num_returns=1)
            if ready in self._scoring:
                yield from self._end_scoring(ready)
            else:
                yield self._end_tuning(ready)
            self._report()

    def _start_scoring(self) -> None:
        while self._requests and len(self._scoring) < self._actor_slots:
            key, request = self._requests.popleft()
            actor = self._take_actor(request.model)
            tables, digests = actor.generate.options(num_returns=2).remote(request, key)
            self._scoring[digests] = _Scoring(actor, key, request, tables)
        # An actor without work gives its GPU back: dropping the last handle ends it.
        wanted = {request.model for _, request in self._requests}
        self._idle = {model: actors for model, actors in self._idle.items() if model in wanted}

    def _take_actor(self, model: str) -> Any:
        if self._idle.get(model):
            return self._idle[model].pop()
        self._idle.clear()
        return self._actor_class.remote(model, self._store.root, self._gpus_each)

    def _end_scoring(self, digests: Any) -> Iterator[CellRecord]:
        scoring = self._scoring.pop(digests)
        try:
            values = ray.get(digests)
        except RayTaskError as error:
            if isinstance(error.cause, DCSError):
                raise error.cause from None
            raise
        except RayError as error:
            raise DCSError(
                f"scoring {scoring.request.label} ended {_RETRIES + 1} times before it was done: "
                f"{_one_line(error)}; what is finished is kept, run the same command again"
            ) from error
        self._idle.setdefault(scoring.request.model, []).append(scoring.actor)
        cells = cells_of(scoring.request, self._plan.config, values)
        # Only now are the keys known: the same numbers may have been worked on before.
        finished = self._outbox.finished([cell.key for cell in cells])
        self._tables[scoring.key] = scoring.tables
        self._enqueue(scoring.key, [cell for cell in cells if cell.key not in finished])
        for record in finished.values():
            self._cells_ended += 1
            yield record

    def _enqueue(self, key: str, cells: list[Cell]) -> None:
        self._waiting.extend((cell, key) for cell in cells)
        self._cells_left[key] += len(cells)

    def _start_tuning(self) -> None:
        while self._waiting and len(self._tuning) < self._cell_slots:
            cell, key = self._waiting.popleft()
            task = self._cell_task.remote(cell, self._table_of(key), self._plan.config.name)
            self._tuning[task] = _Tuning(cell, time.time_ns() // 1_000_000)
            self._cells_left[key] -= 1
            if not self._cells_left[key]:
                # The tasks hold references of their own: the tables are freed after the last.
                del self._tables[key]

    def _table_of(self, key: str) -> Any:
        if key not in self._tables:
            self._tables[key] = ray.put(self._store.read(key))
        return self._tables[key]

    def _end_tuning(self, task: Any) -> CellRecord:
        tuning = self._tuning.pop(task)
        try:
            record: CellRecord = ray.get(task)
        except RayError as error:
            record = failed_record(
                tuning.cell, error, sweep=self._plan.config.name, started_ms=tuning.started_ms
            )
        self._count(record)
        return record

    def _count(self, record: CellRecord) -> None:
        self._cells_ended += 1
        self._cells_failed += not record.finished

    def _report(self) -> None:
        missing = len(self._requests) + len(self._scoring)
        self._progress.tables(self._plan.n_tables - missing, self._plan.n_tables)
        self._progress.cells(self._cells_ended, self._plan.n_cells, self._cells_failed)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
