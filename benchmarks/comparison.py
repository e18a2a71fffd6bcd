"""Comparison of the front of DCS with other methods, and transfer of schemes between tables.

    python -m benchmarks.comparison fronts|transfer SWEEP [--runs dcs-runs]

A method gives one point of accuracy and COBias, DCS a whole front: the COBias of the front is
compared at the accuracy of each other method. Transfer evaluates the scheme of every table on the
test rows of the others, which it reads from the output folder of the runs.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from benchmarks.findings import sweep_records
from dcs.data.table import ProbabilityTable
from dcs.evaluation.metrics import ClassificationMetrics
from dcs.evaluation.uncertainty import percent
from dcs.io import content_key
from dcs.schemes.scheme import CorrectionScheme
from dcs.selection.front import pareto_front
from tracking import CellRecord
from tracking.results import frames
from tracking.results.formats import ResultTable
from workflows.reproduce import stored_tables

_VERDICTS: Final = ("lower", "within one error", "higher", "out of reach")
#: Figures that differ by less than half a tenth of a point are considered equal.
_ROUNDING: Final = 0.0005
_TRANSFER_NOTE: Final = (
    "Rows are the tables that schemes were fitted on, columns the tables that they are evaluated "
    "on: accuracy / COBias of the same test rows. Uncorrected has no scheme. A dash: the tables "
    "have different test rows."
)


def front_comparison(records: Iterable[CellRecord]) -> ResultTable | None:
    """Return a row per other method, if cells have a front of DCS with test metrics."""
    cells = frames.finished_cells(records)
    frame = frames.by_source(frames.cells_frame(cells)).dropna(subset="test/accuracy")
    named = [frames.name_of(row, "method", "setting") for row in frame.to_dict("records")]
    frame = frame.assign(method=named)
    fronts: dict[tuple[object, ...], list[frames.Point]] = {}
    for cell in cells:
        reached = [
            frames.Point(trial.metrics["test/accuracy"], trial.metrics["test/cobias"])
            for trial in cell.trials
            if "test/accuracy" in trial.metrics and cell.identity.get("method") == "dcs"
        ]
        if reached:
            # The front starts with the most accurate point; np.interp needs increasing accuracy.
            fronts.setdefault(_get_source_and_seed(cell), list(pareto_front(reached))[::-1])
    names = frame.set_index("key")[["source", "method"]]
    rows = []
    for cell in cells:
        front = fronts.get(_get_source_and_seed(cell), [])
        if not front or cell.identity.get("method") == "dcs" or cell.key not in names.index:
            continue
        accuracy = cell.metrics["test/accuracy"]
        at = np.interp(accuracy, [p.accuracy for p in front], [p.cobias for p in front])
        gap = float(at) - cell.metrics["test/cobias"]
        rows.append((*names.loc[cell.key], gap, max(0.0, accuracy - front[-1].accuracy)))
    if not rows:
        return None
    tidy = pd.DataFrame(rows, columns=["source", "method", "gap", "beyond"])
    groups = tidy.groupby(["source", "method"], sort=False)
    means, errors = groups.mean(), groups.sem().fillna(0.0).clip(lower=_ROUNDING)
    verdicts = pd.Series("within one error", index=means.index)
    verdicts[means["gap"] <= 0.0] = "lower"
    verdicts[means["gap"] > errors["gap"]] = "higher"
    verdicts[means["beyond"] > errors["beyond"]] = "out of reach"
    counts = verdicts.groupby("method", sort=False).value_counts().unstack(fill_value=0)
    counts = counts.reindex(tidy["method"].unique(), columns=[*_VERDICTS], fill_value=0)
    counts.loc["all"] = counts.sum()
    counts = counts.rename_axis(index="method", columns=None).reset_index()
    return ResultTable(
        name="front_comparison",
        title="COBias of the front of DCS at the accuracy of other methods, sources",
        frame=counts,
        text=counts.astype(str),
        words=("method",),
        about=(
            "Per seed the front is interpolated at the other method's accuracy; errors are "
            "standard errors over seeds. Out of reach: no point is as accurate."
        ),
    )


def _get_source_and_seed(cell: CellRecord) -> tuple[object, ...]:
    """Return the source and the seed of a cell."""
    return tuple(map(cell.identity.get, ("model", "task", "shots", "seed")))


def transfer_tables(
    records: Iterable[CellRecord], tests: Mapping[str, ProbabilityTable]
) -> list[ResultTable]:
    """Return evaluations of each table's scheme on the other tables, one per task and method.

    Parameters
    ----------
    records : iterable of CellRecord
        Cells; those of ensembles are left out.
    tests : mapping of str to ProbabilityTable
        Test rows by cell key; cells without an entry are left out.

    Returns
    -------
    list of ResultTable
        Only for tasks and methods with at least two tables.
    """
    groups: dict[str, list[CellRecord]] = {}
    for record in frames.finished_cells(records):
        if frames.has_chosen(record) and record.key in tests:
            # Cells of one group differ only in their tables.
            own = {"model", "shots", "seed", "optimization_digest", "test_digest"}
            shared = {k: v for k, v in record.identity.items() if k not in own}
            groups.setdefault(content_key(shared), []).append(record)
    several = [group for group in groups.values() if len(group) > 1]
    return [_build_transfer_table(group, tests, number) for number, group in enumerate(several, 1)]


def _build_transfer_table(
    group: Sequence[CellRecord], tests: Mapping[str, ProbabilityTable], number: int
) -> ResultTable:
    names = [frames.name_of(record.identity, "model", "shots", "seed") for record in group]
    count = Counter(names)
    names = [
        name if count[name] == 1 else f"{name}, cell {record.key[:8]}"
        for name, record in zip(names, group, strict=True)
    ]
    schemes = [CorrectionScheme.from_dict(record.scheme) for record in group]
    rows: list[dict[str, Any]] = []
    for other, judged_on in zip(group, names, strict=True):
        test = tests[other.key].only_labelled()
        plain = CorrectionScheme.identity(test.classes)
        rows.append({"fitted on": "uncorrected", "judged on": judged_on, **_score(plain, test)})
        for record, scheme, fitted_on in zip(group, schemes, names, strict=True):
            own = tests[record.key]
            # The test rows of another split may be among the rows that the scheme was fitted on.
            same_rows = {*own.ids} == {*tests[other.key].ids} and {*own.classes} == {*test.classes}
            figures = _score(scheme.for_classes(test.classes), test) if same_rows else {}
            rows.append({"fitted on": fitted_on, "judged on": judged_on, **figures})
    frame = pd.DataFrame(rows, columns=["fitted on", "judged on", "accuracy", "cobias"])
    about = frames.name_of(group[0].identity, "task", "method")
    pairs = list(map(_format_pair, frame["accuracy"], frame["cobias"]))
    text = frame.assign(text=pairs).pivot(index="fitted on", columns="judged on", values="text")
    text = text.reindex(["uncorrected", *names], columns=names)
    text = text.rename_axis(columns=None).reset_index()
    return ResultTable(
        name=f"transfer_{number}",
        title=f"{about}: schemes on tables they were not fitted on, accuracy / COBias in %",
        frame=frame,
        text=text,
        words=("fitted on",),
        about=_TRANSFER_NOTE,
    )


def _score(scheme: CorrectionScheme, test: ProbabilityTable) -> dict[str, float]:
    found = ClassificationMetrics.from_predictions(
        test.labels, scheme.predict(test.probs), test.n_classes
    )
    return {"accuracy": found.accuracy, "cobias": found.cobias}


def _format_pair(accuracy: float, cobias: float) -> str:
    return f"{percent(accuracy)} / {percent(cobias)}" if accuracy == accuracy else "-"


def _read_test_rows(records: Sequence[CellRecord], runs: Path) -> dict[str, ProbabilityTable]:
    """Return the stored test rows of cells that have a single table, by cell key."""
    known: dict[str, Any] = {}
    for record in records:
        digest = record.identity["test_digest"]
        if record.finished and digest not in known:
            known[digest] = (stored_tables(record, runs) or {}).get("test")
    found = {record.key: known.get(record.identity["test_digest"]) for record in records}
    return {key: test for key, test in found.items() if isinstance(test, ProbabilityTable)}


def main() -> None:
    """Print the tables of a sweep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", choices=("fronts", "transfer"))
    parser.add_argument("sweep", help="name of the sweep")
    parser.add_argument("--runs", type=Path, default=Path("dcs-runs"))
    given = parser.parse_args()
    records = sweep_records(given.runs, given.sweep)
    if given.which == "transfer":
        tables = transfer_tables(records, _read_test_rows(records, given.runs))
    else:
        tables = [table for table in [front_comparison(records)] if table is not None]
    if not tables:
        parser.exit(1, f"{given.sweep}: no cells for {given.which}\n")
    for table in tables:
        print(table.to_markdown())


if __name__ == "__main__":
    main()
