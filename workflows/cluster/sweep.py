"""A sweep from its plan to the records of all its cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dcs.io import content_key
from tracking import CellRecord, Recorder
from workflows.cells import Variant, variants_of
from workflows.config.sweep import SweepConfig
from workflows.plan import SweepPlan

if TYPE_CHECKING:
    from workflows.cluster.driver import SweepProgress

__all__ = ["run_sweep"]


def run_sweep(plan: SweepPlan, recorder: Recorder, progress: SweepProgress) -> list[CellRecord]:
    """Do what a plan says is missing. Ray must be running if the plan has work.

    Parameters
    ----------
    plan : SweepPlan
        From :func:`plan_sweep`.
    recorder : Recorder
        Takes every record, those of earlier runs too, so that its tables are complete.
    progress : SweepProgress
        Told of every table and cell.

    Returns
    -------
    list of CellRecord
        All cells of the sweep, in the order of the configuration.

    Raises
    ------
    DCSError
        A model cannot be scored. What has been computed is recorded.
    """
    records = {**plan.ended}
    for record in plan.ended.values():
        recorder.record(record)
    progress.tables(len(plan.cells), plan.n_tables)
    progress.cells(len(records), plan.n_cells, plan.n_failed)
    if plan.has_work:
        from workflows.cluster.driver import Driver  # and Ray, which takes its time to load

        for record, figures in Driver(plan, progress).run():
            recorder.record(record, figures)
            records[record.key] = record
    return sorted(records.values(), key=_position(plan.config))


def _position(config: SweepConfig) -> Callable[[CellRecord], tuple[int, ...]]:
    """Order records as the configuration does, whatever order they ended in."""
    axes = (
        ("model", config.models),
        ("task", config.tasks),
        ("shots", config.shots),
        ("seed", config.seeds),
    )
    variants = {
        content_key(variant.identity): rank for rank, variant in enumerate(variants_of(config))
    }

    def position(record: CellRecord) -> tuple[int, ...]:
        place = [values.index(record.identity[name]) for name, values in axes]
        own = {name: record.identity.get(name) for name in Variant.__slots__}
        return *place, variants[content_key(own)]

    return position
