"""A sweep from its plan to the records of all its cells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracking import CellRecord, Recorder
from workflows.plan import SweepPlan
from workflows.tables import ProbabilityStore

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
    store = ProbabilityStore.under(plan.output)
    order = (
        cell.key
        for key in plan.requests
        for cell in plan.cells.get(key) or plan.cells_on(key, store.digests(key) or {})
    )
    return [records[key] for key in dict.fromkeys(order)]
