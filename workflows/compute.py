"""The work of one cell: tune on optimization rows, read the test rows once, record the result."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import Any

from dcs.methods import get_method
from dcs.metrics import ClassificationMetrics
from dcs.probabilities import ProbabilityTable
from dcs.scheme import CorrectionScheme
from dcs.seeds import derive_seed
from tracking import CellRecord, TrialRecord, collect_provenance, trace_rows
from workflows.cells import Cell
from workflows.tune import StudyResult, run_study

__all__ = ["compute_cell", "failed_record"]


def compute_cell(
    cell: Cell,
    optimization: ProbabilityTable,
    test: ProbabilityTable,
    *,
    sweep: str,
    on_trial: Callable[[TrialRecord], None] | None = None,
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
    on_trial : callable, optional
        Called after each trial.

    Returns
    -------
    CellRecord
        With status FINISHED; errors propagate.
    """
    started_ms = _now_ms()
    method = get_method(cell.method)
    study: StudyResult | None = None
    if cell.tuner is None:
        scheme = CorrectionScheme.identity(optimization.classes)
    else:
        study = run_study(
            optimization, method, settings=cell.tuner, seed=cell.seed, on_trial=on_trial
        )
        scheme = study.scheme

    before = _judge(test.probs.argmax(axis=1), test)
    after = _judge(scheme.predict(test.probs), test)
    metrics = {
        "test/accuracy": after.accuracy,
        "test/cobias": after.cobias,
        "uncorrected/test/accuracy": before.accuracy,
        "uncorrected/test/cobias": before.cobias,
    }
    params: dict[str, Any] = {}
    if study is not None:
        metrics |= study.best.metrics
        metrics |= {"opt/evaluations": float(study.annealing.evaluations)}
        params = {**study.best.params, "best_trial": study.best.number}
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
        },
        trials=study.trials if study else (),
        trace=trace_rows(study.annealing.trace) if study else (),
        status="FINISHED",
        error=None,
        started_ms=started_ms,
        finished_ms=_now_ms(),
        provenance=collect_provenance(tables=_sources(optimization, test), seeds=_seeds(cell)),
    )


def failed_record(cell: Cell, error: BaseException, *, sweep: str, started_ms: int) -> CellRecord:
    """Return the record of a cell that raised, with its traceback."""
    return CellRecord(
        key=cell.key,
        sweep=sweep,
        identity=cell.identity,
        params={},
        metrics={},
        scheme=None,
        class_accuracies={},
        status="FAILED",
        error="".join(traceback.format_exception(error)),
        started_ms=started_ms,
        finished_ms=_now_ms(),
        provenance=collect_provenance(),
    )


def _judge(predictions: Any, table: ProbabilityTable) -> ClassificationMetrics:
    return ClassificationMetrics.from_predictions(table.labels, predictions, table.n_classes)


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
