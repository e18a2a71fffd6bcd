"""The loop that keeps a Ray cluster busy with a sweep: actors score, tasks anneal."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import ray
from ray.exceptions import ObjectLostError, RayActorError, RayError, RayTaskError

from dcs.errors import DCSError, ScoringError
from dcs.messages import last_line
from tracking import Archive, CellRecord
from workflows.cells import Cell, TableRequest
from workflows.cluster.parallel import ray_mapper
from workflows.cluster.placement import Placement, actor_pool, check_gpus, place
from workflows.cluster.scoring import ScoringActor
from workflows.cluster.workers import Figures, run_cell, warm_up
from workflows.config.storage import StudyStorage, StudyStorageError
from workflows.plan import SweepPlan
from workflows.tables import ProbabilityStore
from workflows.tuning.cell import failed_record

__all__ = ["Driver", "Silent", "SweepProgress"]

#: A worker that dies (out of memory, a lost node) is tried again so often.
_RETRIES = 3
#: Workers that are started ahead of the first table.
_WARM_WORKERS = 64
#: How often the cluster is looked at again: nodes come and go.
_LOOK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class _Scoring:
    actor: Any
    key: str
    request: TableRequest
    tables: Any


@dataclass(frozen=True, slots=True)
class _Tuning:
    cell: Cell
    key: str
    started_ms: int
    width: int


class SweepProgress(Protocol):
    """What a sweep tells about itself while it runs."""

    def tables(self, done: int, total: int) -> None:
        """`done` of `total` tables are there.

        Parameters
        ----------
        done, total : int
            Tables.
        """

    def cells(self, done: int, total: int, failed: int) -> None:
        """`done` of `total` cells have ended, of which `failed` raised.

        Parameters
        ----------
        done, total, failed : int
            Cells.
        """

    def computed(self, record: CellRecord) -> None:
        """Take note of a cell that was computed just now.

        Parameters
        ----------
        record : CellRecord
            Its record.
        """

    def machines(
        self, *, running: int, cpus_used: float, cpus: float, gpus_used: float, gpus: float
    ) -> None:
        """Take note of how many cells are handed out and how much of the cluster is at work.

        Parameters
        ----------
        running : int
            Cells handed out.
        cpus_used, cpus, gpus_used, gpus : float
            What is at work, and what there is.
        """


class Silent(SweepProgress):
    """Progress that nobody watches."""


class Driver:
    """Does the missing work of a plan on the Ray cluster that this process is connected to.

    Parameters
    ----------
    plan : SweepPlan
        What is missing.
    progress : SweepProgress
        Told of every table and cell.
    """

    def __init__(self, plan: SweepPlan, progress: SweepProgress) -> None:
        self._plan = plan
        self._progress = progress
        self._archive = Archive(plan.output)
        self._store = ProbabilityStore.under(plan.output)
        self._storage = StudyStorage.chosen(plan.config.optuna_storage)
        if self._storage is not None:
            self._storage.check()
        self._placement = _look()
        if plan.missing_tables:
            check_gpus(plan.config.scoring, self._placement)
        self._looked = time.monotonic()
        self._actor_class = ray.remote(max_restarts=_RETRIES, max_task_retries=_RETRIES)(
            ScoringActor
        )
        self._cell_task = ray.remote(max_retries=_RETRIES)(run_cell)

        self._requests = deque(plan.missing_tables.items())
        self._idle: dict[str, list[Any]] = {}
        self._scoring: dict[Any, _Scoring] = {}
        self._attempts: Counter[str] = Counter()
        self._unscored: list[ScoringError] = []
        self._tables: dict[str, Any] = {}
        self._waiting: deque[tuple[Cell, str]] = deque()
        self._cells_left: Counter[str] = Counter()
        for key, cells in plan.missing_cells.items():
            self._enqueue(key, cells)
        self._tuning: dict[Any, _Tuning] = {}
        self._cells_ended = len(plan.ended)
        self._cells_failed = plan.n_failed

    def run(self) -> Iterator[tuple[CellRecord, Figures]]:
        """Yield the record and the figures of every missing cell as it ends.

        Raises
        ------
        ScoringError
            A table cannot be scored, said once all else is done: its cells cannot be computed.
        DCSError
            The results cannot be kept, for example on a full disk.
        """
        self._report()
        self._warm_up()
        while True:
            self._start_scoring()
            self._start_tuning()
            running = [*self._scoring, *self._tuning]
            if not running:
                break
            ready, _ = ray.wait(running, num_returns=1, timeout=_LOOK_SECONDS)
            if ready:
                # With thousands in flight a wait is dear: take all that are done by now.
                ready, _ = ray.wait(running, num_returns=len(running), timeout=0)
            for done in ready:
                if done in self._scoring:
                    yield from self._end_scoring(done)
                else:
                    yield from self._end_tuning(done)
            if time.monotonic() - self._looked > _LOOK_SECONDS:
                self._placement, self._looked = _look(), time.monotonic()
                self._report_machines()
            self._report()
        if self._unscored:
            raise _summary(self._unscored)

    def _warm_up(self) -> None:
        """Start workers on the CPUs that have nothing to do until the first table is there."""
        if self._waiting or not self._requests:
            return
        free = self._placement.cell_cpus_now
        if self._placement.shared:
            actors = min(self._placement.actor_slots, len(self._requests))
            free -= math.ceil(actors * self._placement.actors["num_cpus"])
        task = ray.remote(max_retries=0)(warm_up).options(**self._placement.cells)
        for _ in range(min(free, _WARM_WORKERS)):
            task.remote()

    def _start_scoring(self) -> None:
        _, slots = actor_pool(self._plan.config.scoring, self._placement)
        while self._requests and len(self._scoring) < slots:
            key, request = self._requests.popleft()
            actor = self._take_actor(request.model)
            tables, scoring = actor.generate.options(num_returns=2).remote(
                request, key, self._plan.texts.get(key)
            )
            self._scoring[scoring] = _Scoring(actor, key, request, tables)
        # An actor without work gives its GPU back: dropping the last handle ends it.
        wanted = {request.model for _, request in self._requests}
        self._idle = {model: actors for model, actors in self._idle.items() if model in wanted}

    def _take_actor(self, model: str) -> Any:
        if self._idle.get(model):
            return self._idle[model].pop()
        self._idle.clear()
        scoring = self._plan.config.scoring
        options, _ = actor_pool(scoring, self._placement)
        return self._actor_class.options(**options).remote(
            model, self._store.root, options["num_gpus"], scoring
        )

    def _end_scoring(self, done: Any) -> Iterator[tuple[CellRecord, Figures]]:
        scoring = self._scoring.pop(done)
        request = scoring.request
        try:
            note = ray.get(done)
            if self._store.digests(scoring.key) is None:
                # The actor's disk is not ours: keep what it made here too.
                self._store.keep(scoring.key, ray.get(scoring.tables), note)
        except RayTaskError as error:
            # The table is at fault and not the actor, which holds its model still.
            self._idle.setdefault(request.model, []).append(scoring.actor)
            self._give_up(request, error.cause, error)
            return
        except RayActorError as error:
            if _creation_failed(error):
                self._give_up(request, error, error)
            else:
                self._score_again(scoring, error)
            return
        except RayError as error:
            self._score_again(scoring, error)
            return
        self._idle.setdefault(request.model, []).append(scoring.actor)
        cells = self._plan.cells_on(scoring.key, note.digests)
        # Only now are the keys known: the same numbers may have been worked on before.
        finished = self._archive.finished([cell.key for cell in cells])
        self._enqueue(scoring.key, [cell for cell in cells if cell.key not in finished])
        for record in finished.values():
            self._cells_ended += 1
            yield record, {}

    def _score_again(self, scoring: _Scoring, error: RayError) -> None:
        """Put a request back whose node went away; Ray has tried the actor's own restarts."""
        self._attempts[scoring.key] += 1
        if self._attempts[scoring.key] < _RETRIES:
            self._requests.append((scoring.key, scoring.request))
        else:
            self._give_up(scoring.request, error, error)

    def _give_up(
        self, request: TableRequest, cause: BaseException | None, error: RayError
    ) -> None:
        """Leave a table out; every table of a model that cannot be loaded."""
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
        if _creation_failed(error):
            alike = [key for key, other in self._requests if other.model == request.model]
            self._requests = deque(item for item in self._requests if item[0] not in alike)

    def _enqueue(self, key: str, cells: list[Cell]) -> None:
        self._waiting.extend((cell, key) for cell in cells)
        self._cells_left[key] += len(cells)

    def _start_tuning(self) -> None:
        task = self._cell_task.options(
            retry_exceptions=[StudyStorageError], **self._placement.cells
        )
        while self._waiting and len(self._tuning) < self._placement.cells_in_flight:
            width = self._width(self._waiting[0][0])
            cell, key = self._waiting.popleft()
            running = task.remote(
                cell,
                self._table_of(key),
                self._plan.config.name,
                ray_mapper(width=width, options=self._placement.cells),
                self._storage,
                self._plan.config.tracking.figures == "all",
            )
            self._tuning[running] = _Tuning(cell, key, time.time_ns() // 1_000_000, width)
            self._cells_left[key] -= 1
            if not self._cells_left[key]:
                # The tasks hold references of their own: the tables are freed after the last.
                del self._tables[key]

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
        share = free // len(self._waiting)
        if cell.tuner.protocol == "study":
            share = min(share, cell.tuner.window, cell.tuner.trials or 1)
        return max(1, share)

    def _table_of(self, key: str) -> Any:
        # Put by the driver and not by the actor, whose node may leave before the cells are done.
        if key not in self._tables:
            self._tables[key] = ray.put(self._store.read(key))
        return self._tables[key]

    def _end_tuning(self, done: Any) -> Iterator[tuple[CellRecord, Figures]]:
        tuning = self._tuning.pop(done)
        record: CellRecord
        figures: Figures = {}
        try:
            record, figures = ray.get(done)
        except RayError as error:
            if _input_lost(error) and self._attempts[tuning.cell.key] < _RETRIES:
                self._attempts[tuning.cell.key] += 1
                self._tables.pop(tuning.key, None)
                self._enqueue(tuning.key, [tuning.cell])
                return
            record = failed_record(
                tuning.cell, error, sweep=self._plan.config.name, started_ms=tuning.started_ms
            )
        self._cells_ended += 1
        self._cells_failed += not record.finished
        self._progress.computed(record)
        yield record, figures

    def _report(self) -> None:
        missing = len(self._requests) + len(self._scoring) + len(self._unscored)
        self._progress.tables(self._plan.n_tables - missing, self._plan.n_tables)
        self._progress.cells(self._cells_ended, self._plan.n_cells, self._cells_failed)

    def _report_machines(self) -> None:
        there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
        cpus, gpus = there.get("CPU", 0.0), there.get("GPU", 0.0)
        self._progress.machines(
            running=len(self._tuning),
            cpus_used=cpus - free.get("CPU", 0.0),
            cpus=cpus,
            gpus_used=gpus - free.get("GPU", 0.0),
            gpus=gpus,
        )


def _look() -> Placement:
    return place(ray.nodes())  # type: ignore[no-untyped-call]


def _input_lost(error: RayError) -> bool:
    cause = error.cause if isinstance(error, RayTaskError) else error
    return isinstance(cause, ObjectLostError)


def _creation_failed(error: RayError) -> bool:
    return isinstance(error, RayActorError) and "creation task" in str(error)


def _summary(errors: list[ScoringError]) -> ScoringError:
    more = f" (and {len(errors) - 1} more tables)" if len(errors) > 1 else ""
    error = ScoringError(
        f"{errors[0]}{more}; what is finished is kept, run the same command again to go on"
    )
    error.__cause__ = errors[0].__cause__
    return error
