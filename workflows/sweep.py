"""A sweep: which work there is, and doing it on Ray with every result recorded once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tracking import CellRecord, Outbox, Recorder
from workflows.cells import Cell, TableRequest, cells_of, content_key, table_requests
from workflows.config import SweepConfig
from workflows.generate import request_key
from workflows.stores import ProbabilityStore

__all__ = ["Progress", "SweepPlan", "plan_sweep", "run_sweep", "sweep_key"]


class Progress(Protocol):
    """What a sweep tells about itself while it runs."""

    def tables(self, done: int, total: int) -> None:
        """`done` of `total` tables are there."""

    def cells(self, done: int, total: int, failed: int) -> None:
        """`done` of `total` cells have ended, of which `failed` raised."""


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """What a sweep consists of and what is still to do.

    Attributes
    ----------
    config : SweepConfig
        The sweep.
    output : pathlib.Path
        The folder that everything is written to.
    missing_tables : dict of str to TableRequest
        Requests not yet scored, by key.
    missing_cells : dict of str to list of Cell
        Cells not yet computed whose tables are there, by the table's key.
    finished : dict of str to CellRecord
        Cells computed earlier, by key.
    """

    config: SweepConfig
    output: Path
    missing_tables: dict[str, TableRequest]
    missing_cells: dict[str, list[Cell]]
    finished: dict[str, CellRecord]

    @property
    def has_work(self) -> bool:
        """Whether anything has to be computed."""
        return bool(self.missing_tables or self.missing_cells)

    @property
    def n_tables(self) -> int:
        """Number of tables in the sweep."""
        return len(table_requests(self.config))

    @property
    def n_cells(self) -> int:
        """Number of cells in the sweep."""
        return self.n_tables * len(self.config.methods)


def sweep_key(config: SweepConfig) -> str:
    """Return the key under which reruns of a sweep find its parent run again."""
    return content_key(config.model_dump(mode="json", exclude={"tracked_trials"}))


def plan_sweep(config: SweepConfig, output: Path) -> SweepPlan:
    """Compare a sweep with what is on disk.

    Parameters
    ----------
    config : SweepConfig
        The sweep.
    output : pathlib.Path
        The folder of earlier work, or a new one.

    Returns
    -------
    SweepPlan
        Nothing is computed or written yet.
    """
    store = ProbabilityStore.under(output)
    outbox = Outbox(output)
    missing_tables: dict[str, TableRequest] = {}
    missing_cells: dict[str, list[Cell]] = {}
    finished: dict[str, CellRecord] = {}
    for request in table_requests(config):
        key = request_key(request)
        tables = store.read(key)
        if tables is None:
            missing_tables[key] = request
            continue
        digests = {split: table.digest for split, table in tables.items()}
        cells = cells_of(request, config, digests)
        done = outbox.finished([cell.key for cell in cells])
        finished |= done
        remaining = [cell for cell in cells if cell.key not in done]
        if remaining:
            missing_cells[key] = remaining
    return SweepPlan(
        config=config,
        output=output,
        missing_tables=missing_tables,
        missing_cells=missing_cells,
        finished=finished,
    )


def run_sweep(plan: SweepPlan, recorder: Recorder, progress: Progress) -> list[CellRecord]:
    """Do what a plan says is missing. Ray must be running if the plan has work.

    Parameters
    ----------
    plan : SweepPlan
        From :func:`plan_sweep`.
    recorder : Recorder
        Takes every record, those of earlier runs too, so that its tables are complete.
    progress : Progress
        Told of every table and cell.

    Returns
    -------
    list of CellRecord
        All cells of the sweep, in the order of the configuration.
    """
    records = {**plan.finished}
    for record in plan.finished.values():
        recorder.record(record)
    progress.cells(len(records), plan.n_cells, 0)
    if plan.has_work:
        # Ray takes a second to import, and a finished sweep does not need it.
        from workflows.driver import Driver

        for record in Driver(plan, progress).run():
            recorder.record(record)
            records[record.key] = record
    return sorted(records.values(), key=_position(plan.config))


def _position(config: SweepConfig) -> Callable[[CellRecord], tuple[int, ...]]:
    """Order records as the configuration does, whatever order they ended in."""
    axes = (
        ("model", config.models),
        ("task", config.tasks),
        ("shots", config.shots),
        ("seed", config.seeds),
        ("method", config.methods),
    )

    def position(record: CellRecord) -> tuple[int, ...]:
        return tuple(values.index(record.identity[name]) for name, values in axes)

    return position
