"""Compute a cell: tune on the optimization rows, evaluate on the test rows, record."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dcs.data.splits import stratified_choice
from dcs.data.table import ProbabilityTable
from dcs.errors import redact
from dcs.evaluation.drift import describe_rows
from dcs.evaluation.metrics import METRICS, ClassificationMetrics, count_confusion
from dcs.evaluation.uncertainty import compare_predictions, design_effect, metric_intervals
from dcs.methods.calibrations import Labels
from dcs.schemes.scheme import CorrectionScheme
from dcs.seeds import derive_seed
from dcs.selection.ensemble import TableEnsemble, combine, inputs_of, mean_of
from dcs.selection.front import FittedScheme
from dcs.selection.methods import get_method
from dcs_tracking import CellRecord, collect_provenance
from dcs_tracking.records import now_ms
from dcs_workflows.parallel import one_thread
from dcs_workflows.plan import Cell
from dcs_workflows.sources.joint import Rows
from dcs_workflows.study.study import Setup, study_scheme


@one_thread()
def compute_cell(cell: Cell, tables: Mapping[str, Rows], *, setup: Setup) -> CellRecord:
    """Tune one cell and evaluate the selected scheme on the test rows.

    Parameters
    ----------
    cell : Cell
        The cell to compute.
    tables : mapping of str to ProbabilityTable or TableEnsemble
        Tables by split, with the digests of the cell. The test table is used only after selection.
    setup : Setup
        What cells are computed with.

    Returns
    -------
    CellRecord
        Record with status FINISHED; errors propagate.
    """
    started_ms, clock = now_ms(), time.perf_counter()
    optimization, test = optimization_rows(tables["optimization"], cell), tables["test"]
    first = reference = None
    if not isinstance(optimization, TableEnsemble):
        rows = optimization
    else:
        first = mean_of(optimization)
        rows = optimization.combined(first)
        reference = rows.probs.argmax(axis=1).astype(np.int64)
        if get_method(cell.method).needs != "nothing":
            first, rows = combine(optimization, seed=derive_seed(cell.seed, "combination"))
    fitted = study_scheme(cell, rows, setup=setup, reference=reference)
    scheme, front = fitted.scheme, fitted.front
    if isinstance(optimization, TableEnsemble) and front and front.preference.guarded:
        # Nothing is proven of a combination that is not corrected.
        first = mean_of(optimization) if front.chosen is front.plain else first
    if first is not None and isinstance(test, TableEnsemble):
        scheme = replace(scheme, combination=first.combination, inputs=first.inputs)
    judged = predictions(test, scheme)
    effect = design_effect(optimization.copies)
    kept = {"held_out": {**evidence(front, *judged, test.n_classes), "effect": effect}}
    if isinstance(optimization, ProbabilityTable):
        # Of all rows, since those with labels may be few, or chosen.
        predicted = scheme.predict(optimization.probs)
        kept["reference"] = describe_rows(optimization.probs, predicted, optimization.copies)
    scheme = _add_provenance(scheme, cell, optimization, **kept)
    metrics, class_accuracies = _score(*judged, test)
    metrics |= fitted.metrics
    about = _describe(optimization, test, setup.files)
    return CellRecord(
        key=cell.key,
        sweep=setup.sweep,
        identity=cell.identity,
        params=dict(fitted.params),
        metrics=metrics,
        scheme=scheme.to_dict(),
        class_accuracies=class_accuracies,
        trials=fitted.trials,
        front=None if front is None else front.to_dict(),
        started_ms=started_ms,
        finished_ms=started_ms + round(1000 * (time.perf_counter() - clock)),
        provenance=collect_provenance(tables=about, seeds=_seeds(cell)),
    )


def optimization_rows(table: Rows, cell: Cell) -> Rows:
    """Return the rows of the optimization table that a cell uses.

    All rows, or a seeded sample of labelled rows.
    """
    size, labelled = cell.optimization_size, np.flatnonzero(table.labelled)
    if size is None or size >= labelled.size:
        return table
    seed = derive_seed(cell.seed, "optimization size")
    return table.subset(labelled[stratified_choice(table.labels[labelled], size, seed=seed)])


def failed_record(cell: Cell, error: BaseException, *, sweep: str, started_ms: int) -> CellRecord:
    """Return the record of a cell that raised, with its traceback.

    Parameters
    ----------
    cell : Cell
        The failed cell.
    error : BaseException
        The exception.
    sweep : str
        Name of the sweep that the record belongs to.
    started_ms : int
        Start time in milliseconds since 1970.

    Returns
    -------
    CellRecord
        Record with status FAILED.
    """
    return CellRecord(
        key=cell.key,
        sweep=sweep,
        identity=cell.identity,
        status="FAILED",
        error=redact("".join(traceback.format_exception(error))),
        started_ms=started_ms,
        finished_ms=max(started_ms, now_ms()),  # The clock may have been set back.
        provenance=collect_provenance(seeds=_seeds(cell)),
    )


def evidence(
    front: FittedScheme | None, labels: Labels, before: Labels, after: Labels, n_classes: int
) -> dict[str, Any]:
    """Return what all held-out rows show of a scheme, to be kept with it.

    Parameters
    ----------
    front : FittedScheme or None
        The front of which the scheme is the chosen point, with its cross-validated predictions.
    labels, before, after : array of int, shape [M]
        True classes of further rows, and their uncorrected and corrected predictions.
    n_classes : int
        Number of classes N.

    Returns
    -------
    dict
        ``confusion`` (row = true class), ``gained`` and ``lost``, the numbers of rows that only
        the scheme or only the uncorrected probabilities have right, and ``margin``, the promised
        limit of the loss of accuracy in points, if there is one.
    """
    confusion = count_confusion(labels, after, n_classes)
    gained = int(((after == labels) & (before != labels)).sum())
    lost = int(((after != labels) & (before == labels)).sum())
    promise: dict[str, Any] = {}
    if front is not None:
        point, plain = front.chosen, front.plain
        confusion += np.array(point.confusion)
        gained, lost = gained + point.change.gained, lost + point.change.lost
        if front.preference.guarded and point is not plain:
            promise["margin"] = front.preference.margin_of(point, plain)
    return {"confusion": confusion.tolist(), "gained": gained, "lost": lost, **promise}


def predictions(test: Rows | None, scheme: CorrectionScheme) -> tuple[Labels, Labels, Labels]:
    """Return the labels of the labelled rows, and uncorrected and corrected predictions."""
    if test is None or not test.labelled.any():
        none = np.zeros(0, np.int64)
        return none, none, none
    test = test.only_labelled()
    uncorrected = CorrectionScheme.identity(test.classes)
    if isinstance(test, TableEnsemble):
        uncorrected = mean_of(test)
    first, second = (each.predict(inputs_of(each, test)) for each in (uncorrected, scheme))
    return test.labels, first, second


def _score(
    labels: Labels, first: Labels, second: Labels, test: Rows
) -> tuple[dict[str, float], dict[str, list[Any]]]:
    """Return the metrics of predictions with 95 % intervals and p-values, and those per class.

    Without labelled rows, both results are empty.
    """
    if not labels.size:
        return {}, {}
    n_classes, copies = test.n_classes, test.only_labelled().copies
    before, after = (count_confusion(labels, each, n_classes) for each in (first, second))
    uncorrected = ClassificationMetrics.from_confusion(before)
    figures = metric_intervals(after, effect=design_effect(copies))
    change = compare_predictions(labels, first, second, n_classes, groups=copies)
    metrics = {f"test/{name}_p": found.p for name, found in change.items()}
    for name in METRICS:
        interval = figures.metrics[name]
        metrics |= {
            f"test/{name}": interval.estimate,
            f"test/{name}_low": interval.low,
            f"test/{name}_high": interval.high,
            f"uncorrected/test/{name}": getattr(uncorrected, name),
        }
    columns: dict[str, list[Any]] = {
        "class": list(test.classes),
        "before": list(uncorrected.class_accuracies),
        "after": [each.estimate for each in figures.class_accuracies],
        "after_low": [each.low for each in figures.class_accuracies],
        "after_high": [each.high for each in figures.class_accuracies],
    }
    return metrics, columns


def _add_provenance(
    scheme: CorrectionScheme, cell: Cell, table: Rows, **kept: Any
) -> CorrectionScheme:
    """Add the cell, its method and the fitted rows to the provenance of a scheme."""
    origin = {"method": cell.method, **scheme.provenance, "cell": cell.key, **kept}
    sample = [*table.sample]
    origin["fitted_on"] = {"digests": [table.digest], "number": table.n_rows, "sample": sample}
    return read_as(replace(scheme, provenance=origin), table)


def read_as(scheme: CorrectionScheme, table: Rows) -> CorrectionScheme:
    """Return a scheme that reads, or scores, other rows as those of a table were."""
    noted: dict[str, Any] = table.provenance.to_dict()
    if isinstance(table, TableEnsemble):
        tables = zip(table.names, table.tables, strict=True)
        own = {"tables": {name: each.provenance.to_dict() for name, each in tables}}
    else:
        own = {"reading": noted["reading"]} if "reading" in noted else {}
        own |= {"table": noted} if "prompt" in noted else {}
    replaced = ("tables", "reading", "table")
    others = {k: v for k, v in scheme.provenance.items() if k not in replaced}
    return replace(scheme, provenance=others | own)


def _describe(optimization: Rows, test: Rows, files: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for split, rows in {"optimization": optimization, "test": test}.items():
        # The scheme has the prompt.
        found[split] = replace(rows.provenance, prompt=None).to_dict() | {"rows": rows.n_rows}
        found[split] |= {"file": files[split]} if files else {}
    found["optimization"]["labelled"] = int(optimization.labelled.sum())
    if isinstance(optimization, TableEnsemble):
        found["optimization"]["tables"] = len(optimization.tables)
    return found


def _seeds(cell: Cell) -> dict[str, int]:
    streams = ("split", "sampler", "anneal")
    return {"root": cell.seed} | {each: derive_seed(cell.seed, each) for each in streams}
