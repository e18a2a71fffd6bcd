"""The work of one cell: tune on optimization rows, read the test rows once, record the result."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import Any

from dcs._redaction import redact
from dcs.methods import get_method
from dcs.metrics import confusion_matrix
from dcs.probabilities import ProbabilityTable
from dcs.scheme import CorrectionScheme
from dcs.seeds import derive_seed
from dcs.splits import stratified_choice
from dcs.uncertainty import bootstrap_intervals, compare_predictions
from tracking import CellRecord, collect_provenance, trace_rows
from tracking.histograms import class_histograms
from workflows.cells import Cell
from workflows.front import run_front
from workflows.judging import Fitted, judge
from workflows.mapping import Mapper, in_process
from workflows.studies import Ledger
from workflows.threads import one_thread
from workflows.tune import run_study

__all__ = ["compute_cell", "failed_record"]


@one_thread()
def compute_cell(
    cell: Cell,
    optimization: ProbabilityTable,
    test: ProbabilityTable,
    *,
    sweep: str,
    progress: Callable[[float], None] | None = None,
    mapper: Mapper = in_process,
    ledger: Ledger | None = None,
) -> CellRecord:
    """Tune one cell and judge the chosen scheme on the test rows.

    Parameters
    ----------
    cell : Cell
        What to compute.
    optimization, test : ProbabilityTable
        The tables whose digests the cell names. The test table is read after the choice.
    sweep : str
        The sweep the record is filed under.
    progress : callable, optional
        Called with the share of the work done, 0..1.
    mapper : Mapper
        Where trials are computed; the result is the same everywhere.
    ledger : Ledger, optional
        Where trials are written down, and found again by a later run.

    Returns
    -------
    CellRecord
        With status FINISHED; errors propagate.
    """
    started_ms = _now_ms()
    optimization = _sized(optimization, cell)
    fitted = _fit(cell, optimization, progress, mapper, ledger)
    scheme = fitted.scheme
    uncorrected = CorrectionScheme.identity(test.classes)
    before, after = judge(uncorrected, test), judge(scheme, test)
    sure, ends = _uncertainty(test, uncorrected, scheme)
    metrics = {
        "test/accuracy": after.accuracy,
        "test/cobias": after.cobias,
        "uncorrected/test/accuracy": before.accuracy,
        "uncorrected/test/cobias": before.cobias,
        **{f"test/{name}": value for name, value in sure.items()},
    }
    params: dict[str, Any] = {}
    if fitted.best is not None:
        metrics |= fitted.best.metrics
        params = {**fitted.best.params, "best_trial": fitted.best.number}
    if fitted.annealing is not None:
        metrics["opt/evaluations"] = float(fitted.annealing.evaluations)
        metrics["opt/seconds"] = fitted.annealing.seconds
    return CellRecord(
        key=cell.key,
        sweep=sweep,
        identity=cell.identity,
        params=params,
        metrics=metrics,
        scheme=scheme.to_dict(),
        class_accuracies={
            "class": list(test.classes),
            "before": list(before.class_accuracies),
            "after": list(after.class_accuracies),
            **ends,
        },
        trials=fitted.trials,
        trace=trace_rows(fitted.annealing.trace) if fitted.annealing else (),
        histograms=class_histograms(optimization, scheme),
        status="FINISHED",
        error=None,
        started_ms=started_ms,
        finished_ms=_now_ms(),
        provenance=collect_provenance(tables=_sources(optimization, test), seeds=_seeds(cell)),
    )


def _sized(table: ProbabilityTable, cell: Cell) -> ProbabilityTable:
    """Return the optimization rows that a cell may use."""
    if cell.optimization_size is None or cell.optimization_size >= table.n_rows:
        return table
    rows = stratified_choice(
        table.labels, cell.optimization_size, seed=derive_seed(cell.seed, "optimization size")
    )
    return table.subset(rows)


def _fit(
    cell: Cell,
    table: ProbabilityTable,
    progress: Callable[[float], None] | None,
    mapper: Mapper,
    ledger: Ledger | None,
) -> Fitted:
    method = get_method(cell.method)
    if cell.tuner is None:
        scheme = method.fit(table.probs, table.labels, classes=table.classes, seed=cell.seed)
        return Fitted(scheme)
    run = run_front if cell.tuner.protocol == "front" else run_study
    return run(
        table,
        method,
        settings=cell.tuner,
        seed=cell.seed,
        progress=progress,
        mapper=mapper,
        ledger=ledger,
    )


def failed_record(cell: Cell, error: BaseException, *, sweep: str, started_ms: int) -> CellRecord:
    """Return the record of a cell that raised, with its traceback.

    Parameters
    ----------
    cell : Cell
        The cell.
    error : BaseException
        What it raised.
    sweep : str
        The sweep the record is filed under.
    started_ms : int
        When it started, in milliseconds since 1970.

    Returns
    -------
    CellRecord
        With status FAILED.
    """
    return CellRecord(
        key=cell.key,
        sweep=sweep,
        identity=cell.identity,
        params={},
        metrics={},
        scheme=None,
        class_accuracies={},
        status="FAILED",
        error=redact("".join(traceback.format_exception(error))),
        started_ms=started_ms,
        finished_ms=_now_ms(),
        provenance=collect_provenance(seeds=_seeds(cell)),
    )


def _uncertainty(
    test: ProbabilityTable, before: CorrectionScheme, after: CorrectionScheme
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Return 95 % intervals of the test figures and how likely chance is; those of the classes."""
    first, second = (scheme.predict(test.probs) for scheme in (before, after))
    figures = bootstrap_intervals(confusion_matrix(test.labels, second, test.n_classes))
    change = compare_predictions(test.labels, first, second, test.n_classes)
    return {
        "accuracy_low": figures.accuracy.low,
        "accuracy_high": figures.accuracy.high,
        "accuracy_p": change.accuracy_p,
        "cobias_low": figures.cobias.low,
        "cobias_high": figures.cobias.high,
        "cobias_p": change.cobias_p,
    }, {
        "after_low": [each.low for each in figures.class_accuracies],
        "after_high": [each.high for each in figures.class_accuracies],
    }


def _sources(optimization: ProbabilityTable, test: ProbabilityTable) -> dict[str, Any]:
    return {
        "optimization": optimization.provenance.to_dict() | {"rows": optimization.n_rows},
        "test": test.provenance.to_dict() | {"rows": test.n_rows},
    }


def _seeds(cell: Cell) -> dict[str, int]:
    return {"root": cell.seed} | {
        stream: derive_seed(cell.seed, stream) for stream in ("split", "sampler", "anneal")
    }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
