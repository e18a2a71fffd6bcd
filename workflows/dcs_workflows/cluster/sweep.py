"""Run a sweep: from its plan to the records of all its cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any

from dcs.prompting.tasks import SPLITS
from dcs_tracking import CellRecord, Recorder, ScoringRecord
from dcs_tracking.schema import without_rows
from dcs_workflows.plan import ORIGINS, Budget, Progress, SweepPlan, cells_of, sharing
from dcs_workflows.sources.scored import StoredTables


def run_sweep(
    plan: SweepPlan,
    recorder: Recorder,
    progress: Progress,
    budget: Budget | None = None,
) -> list[CellRecord]:
    """Run the missing work of a plan. Ray must be running if the plan has work.

    Parameters
    ----------
    plan : SweepPlan
        Plan from :func:`plan_sweep`.
    recorder : Recorder
        Receives every record, including those of earlier runs, so that its tables are complete.
    progress : Progress
        Progress of the sweep, updated.
    budget : Budget, optional
        What the run may use; by default unlimited.

    Returns
    -------
    list of CellRecord
        Summaries of all cells of the sweep, in the order of the configuration; the full records
        are on disk.

    Raises
    ------
    DCSError
        If a table cannot be scored, or the budget is spent. Computed cells are recorded.
    """
    progress.tables_done, progress.tables_total = len(plan.cells), len(plan.sources)
    progress.cells_done, progress.cells_total = len(plan.ended), plan.n_cells
    progress.cells_failed = plan.n_failed
    ended: Iterable[CellRecord] = ()
    with ExitStack() as stack:
        if plan.has_work:
            from dcs_workflows.cluster.driver import Driver  # imports Ray, which is slow to load

            # Closed here if recording fails: when the process exits, Ray's classes are gone.
            driver = Driver(plan, progress, budget or Budget())
            ended = stack.enter_context(closing(driver.run()))
        try:
            return _record_all(plan, recorder, ended)
        finally:
            for scoring in _scoring_records(plan):
                recorder.scored(scoring)


def _scoring_records(plan: SweepPlan) -> Iterator[ScoringRecord]:
    """Yield the scoring records of all existing tables of a sweep."""
    engine = {"engine": plan.config.scoring.engine}
    for key, tables in plan.tables.items():
        # Others are user-specified, not scored by this sweep, or are made of several.
        if isinstance(tables, StoredTables) and (note := tables.scoring) is not None:
            first = plan.sources[key][0]
            yield ScoringRecord(
                key=key,
                identity={name: getattr(first, name) for name in ORIGINS.values()},
                params={**engine, **note.scorer, "digests": note.digests},
                metrics=note.metrics,
                started_ms=note.finished_ms - round(1000 * note.seconds),
                finished_ms=note.finished_ms,
            )


def run_here(
    plan: SweepPlan, recorder: Recorder, progress: Callable[[float], None]
) -> list[CellRecord]:
    """Run the missing work of a plan over existing tables in this process, without Ray.

    Parameters
    ----------
    plan : SweepPlan
        Plan from :func:`plan_sweep`.
    recorder : Recorder
        See :func:`run_sweep`.
    progress : callable
        Called with the completed fraction of the current cell, 0..1.

    Returns
    -------
    list of CellRecord
        See :func:`run_sweep`.

    Raises
    ------
    DCSError
        If a cell cannot be computed.
    """
    return _record_all(plan, recorder, _run_in_process(plan, progress))


def _run_in_process(plan: SweepPlan, progress: Callable[[float], None]) -> Iterator[CellRecord]:
    from joblib import cpu_count  # type: ignore[import-untyped]

    from dcs.selection.fitting import Threads
    from dcs_workflows.study.cell import compute_cell
    from dcs_workflows.study.storage import Studies
    from dcs_workflows.study.study import Setup

    studies = Studies(plan.output.absolute(), plan.study_storage)
    about: Any = {"progress": progress, "mapper": Threads(cpu_count()), "stored": studies.of}
    for key, cells in plan.missing_cells.items():
        tables = plan.tables[key].read()
        for group in sharing(cells):
            setup = Setup(sweep=plan.config.name, files=plan.files_of(key), **about)
            for cell in group:
                yield compute_cell(cell, tables, setup=setup)


def _record_all(
    plan: SweepPlan, recorder: Recorder, ended: Iterable[CellRecord]
) -> list[CellRecord]:
    """Record all cells of a plan and return their summaries in configuration order."""
    # At once: no mean of a run that is stopped may have their cells.
    known = [cell.key for cells in plan.cells.values() for cell in cells]
    part = plan.part or bool(plan.missing_tables)
    recorder.leave_out(_replaced(plan, recorder, known, part=part))
    for key in plan.ended:
        recorder.known(key)
    for record in ended:
        # Not kept: the memory of this process must not grow with the number of cells.
        recorder.record(record)
    # Of all tables, which exist now.
    tables = (plan.cells.get(key) or plan.cells_on(key) for key in plan.sources)
    keys = list(dict.fromkeys(cell.key for cells in tables for cell in cells))
    recorder.leave_out(_replaced(plan, recorder, keys, part=plan.part))
    recorder.archive.index()
    new = recorder.archive.load((key for key in keys if key not in plan.ended), summaries=True)
    found = {**plan.ended, **new}
    # Of a record that was lost, reading says why.
    return [found.get(key) or recorder.archive.read(key) for key in keys]


def _replaced(
    plan: SweepPlan, recorder: Recorder, keys: Sequence[str], *, part: bool
) -> list[str]:
    """Return the cells of earlier runs of a sweep that are none of these.

    If they are a part of a sweep, those that differ from cells of the plan in their rows only.
    """
    planned = {*keys}
    old = [key for key in recorder.archive.keys(recorder.sweep_key) if key not in planned]
    if not old or not part:
        return old
    sources = [source for own in plan.sources.values() for source in own]
    unknown = cells_of(sources, plan.variants, dict.fromkeys(SPLITS, ""))
    now = {without_rows(cell.identity) for cell in unknown}
    records = recorder.archive.load(old, summaries=True)
    return [key for key, record in records.items() if without_rows(record.identity) in now]
