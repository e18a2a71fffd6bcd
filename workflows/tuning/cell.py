"""Computing a cell: tuned on the optimization rows, judged on the test rows, recorded."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from dcs.data.splits import stratified_choice
from dcs.data.table import ProbabilityTable
from dcs.errors import redact
from dcs.evaluation.drift import summarized
from dcs.evaluation.metrics import FIGURES, ClassificationMetrics, confusion_matrix
from dcs.evaluation.uncertainty import bootstrap_intervals, compare_predictions
from dcs.schemes.scheme import CorrectionScheme
from dcs.seeds import derive_seed
from dcs.selection.ensemble import TableEnsemble, combine, inputs_of, mean_of
from dcs.selection.front import FittedScheme
from dcs.selection.methods import get_method
from tracking import CellRecord, TrialRecord, collect_provenance, trace_rows
from tracking.results.figures import class_histograms
from workflows.config.tuner import StudyStorage
from workflows.parallel import Mapper, in_process, one_thread
from workflows.plan import UNFITTED, Cell
from workflows.tables import Rows
from workflows.tuning.cross_validation import cross_validated_scheme
from workflows.tuning.study import study_scheme
from workflows.tuning.trials import Fitted, StoredStudy, Tuning, fitted_at_once, unheard


@one_thread()
def compute_cell(
    cell: Cell,
    optimization: Rows,
    test: Rows,
    *,
    sweep: str,
    progress: Callable[[float], None] = unheard,
    mapper: Mapper = in_process,
    storage: StudyStorage | None = None,
    known: dict[Any, Any] | None = None,
) -> CellRecord:
    """Tune one cell and judge the chosen scheme on the test rows.

    Parameters
    ----------
    cell : Cell
        What to compute.
    optimization, test : ProbabilityTable or TableEnsemble
        The tables whose digests the cell names. The test table is read after the choice.
    sweep : str
        The sweep the record is filed under.
    progress : callable, optional
        Called with the share of the work done, 0..1.
    mapper : Mapper
        Where trials are computed; the result is the same everywhere.
    storage : StudyStorage, optional
        Where the cell's study is kept, and found again by a later run; by default in memory.
    known : dict, optional
        Give the same one, empty at first, to cells that share a search; see
        :func:`workflows.plan.sharing`.

    Returns
    -------
    CellRecord
        With status FINISHED; errors propagate.
    """
    started_ms = _now_ms()
    optimization = optimization_rows(optimization, cell)
    first = reference = None
    if not isinstance(optimization, TableEnsemble):
        rows = optimization
    else:
        first = mean_of(optimization)
        rows = optimization.combined(first)
        reference = rows.probs.argmax(axis=1).astype(np.int64)
        if cell.method not in UNFITTED:
            first, rows = combine(optimization, seed=derive_seed(cell.seed, "combination"))
    method, known = get_method(cell.method), {} if known is None else known
    if cell.tuner is None:
        fitted = fitted_at_once(rows, method, cell.seed, known)
    else:
        tune = study_scheme if cell.tuner.protocol == "study" else cross_validated_scheme
        notes = {"cell": cell.label, "sweep": sweep}
        fitted = tune(
            Tuning(
                table=rows,
                method=method,
                settings=cell.tuner,
                seed=cell.seed,
                progress=progress,
                mapper=mapper,
                stored=None if storage is None else StoredStudy(storage, cell.key, notes),
                known=known,
                reference=reference,
            )
        )
    scheme, judged = fitted.scheme, test
    if first is not None and isinstance(test, TableEnsemble):
        scheme = replace(scheme, combination=first.combination, inputs=first.inputs)
        judged = test.combined(first)
    scheme = _with_origin(scheme, cell.method, optimization)
    metrics, class_accuracies = _judged(test, scheme)
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
        class_accuracies=class_accuracies,
        trials=_with_test(fitted, judged),
        trace=trace_rows(fitted.annealing.trace) if fitted.annealing else (),
        histograms=class_histograms(rows, fitted.scheme),
        importances=fitted.importances,
        front=None if fitted.front is None else fitted.front.to_dict(),
        status="FINISHED",
        error=None,
        started_ms=started_ms,
        finished_ms=_now_ms(),
        provenance=collect_provenance(tables=_sources(optimization, test), seeds=_seeds(cell)),
    )


def optimization_rows(table: Rows, cell: Cell) -> Rows:
    """Return the rows of the optimization table that a cell uses.

    All, or a seeded choice of labelled rows, the others without their labels where they stay.
    """
    size, labelled = cell.optimization_size, np.flatnonzero(table.labelled)
    if size is None or size >= labelled.size:
        return table
    seed = derive_seed(cell.seed, "optimization size")
    chosen = labelled[stratified_choice(table.labels[labelled], size, seed=seed)]
    if cell.tuner is None or not cell.tuner.keep_unlabelled:
        return table.subset(chosen)
    labels = np.full(table.n_rows, -1)
    labels[chosen] = table.labels[chosen]
    if isinstance(table, TableEnsemble):
        return replace(table, tables=tuple(replace(t, labels=labels) for t in table.tables))
    return replace(table, labels=labels)


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


#: Classes whose confusion matrix is kept with a cell.
_MOST_COUNTED: Final = 50


def _judged(test: Rows, scheme: CorrectionScheme) -> tuple[dict[str, float], dict[str, list[Any]]]:
    """Return the test figures with 95 % intervals and p-values, and those of the classes.

    Only labelled rows are judged; where there are none, so are the figures.
    """
    if not test.labelled.any():
        return {}, {}
    test = test.only_labelled()
    before_it = CorrectionScheme.identity(test.classes)
    if isinstance(test, TableEnsemble):
        before_it = mean_of(test)
    first, second = (each.predict(inputs_of(each, test)) for each in (before_it, scheme))
    before = ClassificationMetrics.from_predictions(test.labels, first, test.n_classes)
    figures = bootstrap_intervals(confusion_matrix(test.labels, second, test.n_classes))
    change = compare_predictions(test.labels, first, second, test.n_classes)
    metrics = {"test/accuracy_p": change.accuracy_p, "test/cobias_p": change.cobias_p}
    for name in FIGURES:
        interval = getattr(figures, name)
        metrics |= {
            f"test/{name}": interval.estimate,
            f"test/{name}_low": interval.low,
            f"test/{name}_high": interval.high,
            f"uncorrected/test/{name}": getattr(before, name),
        }
    columns: dict[str, list[Any]] = {
        "class": list(test.classes),
        "before": list(before.class_accuracies),
        "after": [each.estimate for each in figures.class_accuracies],
        "after_low": [each.low for each in figures.class_accuracies],
        "after_high": [each.high for each in figures.class_accuracies],
    }
    # More classes make a picture that nobody can read.
    if test.n_classes <= _MOST_COUNTED:
        for name, labels in (("counts_before", first), ("counts_after", second)):
            columns[name] = confusion_matrix(test.labels, labels, test.n_classes).tolist()
    return metrics, columns


def _with_test(fitted: Fitted, test: Rows) -> tuple[TrialRecord, ...]:
    """Return the trials, those that are points of the front with their figures on the test rows.

    The choice is made by now: they are for figures that set a whole front beside other methods.
    """
    if fitted.front is None or not test.labelled.any():
        return fitted.trials
    test = test.only_labelled()
    points = fitted.front.points
    records = list(fitted.trials)
    for i, point in enumerate(points, len(records) - len(points)):
        judged = ClassificationMetrics.from_predictions(
            test.labels, point.scheme.predict(test.probs), test.n_classes
        )
        metrics = {"test/accuracy": judged.accuracy, "test/cobias": judged.cobias}
        records[i] = replace(records[i], metrics={**records[i].metrics, **metrics})
    return tuple(records)


def refitted(record: CellRecord, tables: Sequence[ProbabilityTable]) -> CorrectionScheme:
    """Fit what a cell chose on all rows of some tables, such as those it was tuned and judged on.

    Nothing is chosen anew. No rows are left to judge the scheme on: what is known of it are the
    figures of the cell.

    Parameters
    ----------
    record : CellRecord
        A finished cell of a method fitted at once or chosen by cross-validation.
    tables : sequence of ProbabilityTable
        With the classes of the scheme.
    """
    probs = np.concatenate([table.probs for table in tables])
    labels = np.concatenate([table.labels for table in tables])
    old, seed = CorrectionScheme.from_dict(record.scheme), record.identity["seed"]
    if record.front is None:
        method = get_method(record.identity["method"])
        scheme = method.fit(probs, labels, classes=old.classes, seed=seed)
    else:
        scheme = FittedScheme.from_dict(record.front).refit(probs, labels, seed=seed)
    return replace(scheme, provenance={**old.provenance, "fitted_on": _about(tables)})


def _about(tables: Sequence[Rows]) -> dict[str, Any]:
    """Return what a scheme says of the rows that it was fitted on."""
    return {
        "digests": [table.digest for table in tables],
        "number": sum(table.n_rows for table in tables),
        "sample": [row for table in tables for row in table.sample],
    }


def _with_origin(scheme: CorrectionScheme, method: str, table: Rows) -> CorrectionScheme:
    """Note in a scheme its method, which rows it was fitted on, and what they are like."""
    about: dict[str, Any] = {"method": method, **scheme.provenance, "fitted_on": _about([table])}
    if isinstance(table, TableEnsemble):
        tables = dict(zip(table.names, table.tables, strict=True))
        about["tables"] = {name: each.provenance.to_dict() for name, each in tables.items()}
    else:
        tables = {"": table}
    about["reference"] = {name: summarized(each).model_dump() for name, each in tables.items()}
    return replace(scheme, provenance=about)


def _sources(optimization: Rows, test: Rows) -> dict[str, Any]:
    return {
        "optimization": optimization.provenance.to_dict()
        | {"rows": optimization.n_rows, "labelled": int(optimization.labelled.sum())},
        "test": test.provenance.to_dict() | {"rows": test.n_rows},
    }


def _seeds(cell: Cell) -> dict[str, int]:
    return {"root": cell.seed} | {
        stream: derive_seed(cell.seed, stream) for stream in ("split", "sampler", "anneal")
    }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
