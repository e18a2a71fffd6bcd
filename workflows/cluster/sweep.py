"""A sweep from its plan to the records of all its cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tracking import CellRecord, Recorder, ScoringRecord
from workflows.plan import Progress, SweepPlan, sharing
from workflows.tables import ProbabilityStore, TableRequest

if TYPE_CHECKING:
    from workflows.cluster.driver import Figures


def run_sweep(
    plan: SweepPlan,
    recorder: Recorder,
    progress: Progress,
    *,
    until: float | None = None,
) -> list[CellRecord]:
    """Do what a plan says is missing. Ray must be running if the plan has work.

    Parameters
    ----------
    plan : SweepPlan
        From :func:`plan_sweep`.
    recorder : Recorder
        Takes every record, those of earlier runs too, so that its tables are complete.
    progress : Progress
        Told how far it is.
    until : float, optional
        When to stop, by :func:`time.monotonic`.

    Returns
    -------
    list of CellRecord
        The summaries of all cells of the sweep, in the order of the configuration; whole they
        are on the disk.

    Raises
    ------
    DCSError
        A model cannot be scored. What has been computed is recorded.
    OutOfTimeError
        There was more to do.
    """
    progress.tables_done, progress.tables_total = len(plan.cells), plan.n_tables
    progress.cells_done, progress.cells_total = len(plan.ended), plan.n_cells
    progress.cells_failed = plan.n_failed
    progress.show(progress)
    ended = _driven(plan, recorder, progress, until) if plan.has_work else ()
    try:
        return _recorded(plan, recorder, ended)
    finally:
        for scoring in _scorings(plan):
            recorder.scored(scoring)


def _driven(
    plan: SweepPlan, recorder: Recorder, progress: Progress, until: float | None
) -> Iterator[tuple[CellRecord, Figures]]:
    from workflows.cluster.driver import Driver  # and Ray, which takes its time to load

    driver = Driver(plan, progress, until=until)
    for ended in driver.run():
        yield ended
        driver.meters.show(recorded=recorder.recorded, pending=recorder.pending)


def _scorings(plan: SweepPlan) -> Iterator[ScoringRecord]:
    """Yield how the tables of a sweep that are there came about."""
    store = ProbabilityStore.under(plan.output)
    for key, (first, *_) in plan.sources.items():
        if not isinstance(first, TableRequest):
            continue  # Somebody else scored it.
        note = store.scoring(key)
        if note is not None:
            yield ScoringRecord(
                key=key,
                identity={
                    name: getattr(first, name) for name in ("model", "task", "shots", "seed")
                },
                params={"engine": first.scoring.engine, **note.scorer, "digests": note.digests},
                metrics=note.metrics,
                started_ms=note.finished_ms - round(1000 * note.seconds),
                finished_ms=note.finished_ms,
            )


def run_here(
    plan: SweepPlan, recorder: Recorder, progress: Callable[[float], None]
) -> list[CellRecord]:
    """Do what a plan over given tables says is missing in this process, without Ray.

    Parameters
    ----------
    plan : SweepPlan
        From :func:`plan_sweep`.
    recorder : Recorder
        As in :func:`run_sweep`.
    progress : callable
        Called with the share done of the cell at work, 0..1.

    Returns
    -------
    list of CellRecord
        As of :func:`run_sweep`.

    Raises
    ------
    DCSError
        A cell cannot be computed.
    """
    return _recorded(plan, recorder, _computed_here(plan, progress))


def _computed_here(
    plan: SweepPlan, progress: Callable[[float], None]
) -> Iterator[tuple[CellRecord, Figures]]:
    from joblib import cpu_count  # type: ignore[import-untyped]

    from dcs.selection.cross_validation import Threads
    from tracking.results.figures import cell_figures
    from workflows.config.tuner import StudyStorage
    from workflows.tuning.cell import compute_cell

    storage = StudyStorage.chosen(plan.config.optuna_storage)
    if storage is not None:
        storage.check()
    mapper = Threads(cpu_count())
    drawn = plan.config.tracking.figures == "all"
    for key, cells in plan.missing_cells.items():
        tables = plan.read(key)
        for group in sharing(cells):
            known: dict[Any, Any] = {}
            for cell in group:
                record = compute_cell(
                    cell,
                    tables["optimization"],
                    tables["test"],
                    sweep=plan.config.name,
                    progress=progress,
                    mapper=mapper,
                    storage=storage,
                    known=known,
                )
                yield record, cell_figures(record) if drawn else {}


def _recorded(
    plan: SweepPlan, recorder: Recorder, ended: Iterable[tuple[CellRecord, Figures]]
) -> list[CellRecord]:
    """Record all cells of a plan, and return them as the configuration orders them."""
    for key, record in plan.ended.items():
        recorder.record(record)
        plan.ended[key] = record.summary
    records = {**plan.ended}
    for record, figures in ended:
        recorder.record(record, figures)
        records[record.key] = record.summary
    order = (
        cell.key
        for key in plan.sources
        for cell in plan.cells.get(key) or plan.cells_on(key, plan.digests(key) or {})
    )
    return [records[key] for key in dict.fromkeys(order)]
