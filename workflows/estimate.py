"""How long the rest of a sweep may take, judged by what of it has been done."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from dcs.io import content_key
from tracking import CellRecord
from workflows.cells import Cell, TableRequest, Variant
from workflows.plan import SweepPlan
from workflows.tables import ProbabilityStore

__all__ = ["Estimate", "estimate"]

#: What two pieces of work may have in common, the most telling first.
Likeness = list[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a sweep still has to do.

    Attributes
    ----------
    tables, cells : int
        To be scored, and to be computed.
    scoring_seconds, gpu_seconds, cell_seconds : float or None
        Of one worker after the other, of its GPUs, and of one CPU; None where nothing like it
        has been done yet.
    """

    tables: int
    cells: int
    scoring_seconds: float | None
    gpu_seconds: float | None
    cell_seconds: float | None


def estimate(plan: SweepPlan) -> Estimate:
    """Judge the missing tables by scored ones of their model, missing cells by finished ones.

    Parameters
    ----------
    plan : SweepPlan
        What is there and what is missing.
    """
    scorings, gpus, cells = _Means(), _Means(), _Means()
    store = ProbabilityStore.under(plan.output)
    for key in plan.cells:
        if scoring := store.scoring(key):
            table = _of_table(plan.requests[key][0])
            scorings.add(table, scoring.seconds)
            gpus.add(table, scoring.seconds * scoring.gpus)
    for record in plan.ended.values():
        if record.finished:
            cell = Cell.from_identity(record.identity)
            cells.add(_of_cell(cell.task, Variant.of(cell)), _cpu_seconds(record))
    tables = [_of_table(request) for request in plan.missing_tables.values()]
    rest = [
        _of_cell(cell.task, Variant.of(cell))
        for some in plan.missing_cells.values()
        for cell in some
    ]
    rest += [
        _of_cell(request.task, variant)
        for key in plan.missing_tables
        for request in plan.requests[key]
        for variant in plan.variants
    ]
    return Estimate(
        len(tables), len(rest), scorings.total(tables), gpus.total(tables), cells.total(rest)
    )


class _Means:
    """Mean costs of what was done, by every likeness."""

    def __init__(self) -> None:
        self._costs: dict[tuple[str, ...], list[float]] = defaultdict(list)

    def add(self, likeness: Likeness, cost: float) -> None:
        for place in likeness:
            self._costs[place].append(cost)

    def total(self, pieces: Iterable[Likeness]) -> float | None:
        known = [
            next((fmean(self._costs[place]) for place in piece if place in self._costs), None)
            for piece in pieces
        ]
        costs = [cost for cost in known if cost is not None]
        return sum(costs) if len(costs) == len(known) else None


def _of_table(request: TableRequest) -> Likeness:
    model, task, shots = request.model, request.task, str(request.shots)
    return [(model, task, shots), (model, task), (model,)]


def _of_cell(task: str, variant: Variant) -> Likeness:
    own = content_key(variant.identity)
    return [(own, task), (own,), (variant.method,), ()]


def _cpu_seconds(record: CellRecord) -> float:
    # Trials of one cell may have run side by side.
    elapsed = (record.finished_ms - record.started_ms) / 1000
    return max(elapsed, sum(trial.seconds for trial in record.trials))
