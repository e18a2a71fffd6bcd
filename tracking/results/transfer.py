"""Schemes judged on other tables than their own: other prompts, demonstrations or models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from dcs.data.table import ProbabilityTable
from dcs.evaluation.metrics import ClassificationMetrics
from dcs.io import content_key
from dcs.schemes.scheme import CorrectionScheme
from tracking.records import CellRecord
from tracking.results import frames
from tracking.results.formats import KINDS, ResultTable

_SOURCE: Final = ("model", "shots", "seed")
_NOTE: Final = (
    "A row is the table that a scheme was fitted on, a column the table that it is judged on: "
    "accuracy / COBias of the same test rows. Uncorrected has no scheme. A dash where the tables "
    "have other test rows."
)


def transfer_tables(
    records: Iterable[CellRecord], tests: Mapping[str, ProbabilityTable]
) -> list[ResultTable]:
    """Return how the schemes of tables do on each other, a table for each task and method.

    Parameters
    ----------
    records : iterable of CellRecord
        Cells. Those of several tables at once are left out.
    tests : mapping of str to ProbabilityTable
        The test rows, by the key of the cell.

    Returns
    -------
    list of ResultTable
        Of those tasks and methods that have two tables or more.
    """
    groups: dict[str, list[CellRecord]] = {}
    for record in frames.finished_cells(records):
        if frames.has_chosen(record) and record.key in tests:
            # All but the table: task, method and settings.
            own = {"model", "shots", "seed", "optimization_digest", "test_digest"}
            alike = {k: v for k, v in record.identity.items() if k not in own}
            groups.setdefault(content_key(alike), []).append(record)
    several = [group for group in groups.values() if len(group) > 1]
    return [_transfer(group, tests, number) for number, group in enumerate(several, 1)]


def _transfer(
    group: list[CellRecord], tests: Mapping[str, ProbabilityTable], number: int
) -> ResultTable:
    import pandas as pd

    names = {record.key: frames.name_of(record.identity, *_SOURCE) for record in group}
    plain = {record.key: CorrectionScheme.identity(tests[record.key].classes) for record in group}
    rows: list[dict[str, Any]] = []
    for other in group:
        test = tests[other.key].only_labelled()
        rows.append({"fitted on": "uncorrected", **_judged(plain[other.key], test)})
        for record in group:
            scheme, own = CorrectionScheme.from_dict(record.scheme), tests[record.key]
            row: dict[str, Any] = {"fitted on": names[record.key]}
            # Elsewhere the rows judged may be among those fitted on.
            if {*own.ids} == {*tests[other.key].ids} and {*own.classes} == {*test.classes}:
                row |= _judged(scheme.for_classes(test.classes), test)
            rows.append(row)
        for row in rows[-len(group) - 1 :]:
            row["judged on"] = names[other.key]
    frame = pd.DataFrame(rows, columns=["fitted on", "judged on", "accuracy", "cobias"])
    pairs = [
        f"{100 * accuracy:.1f} / {100 * bias:.1f}" if accuracy == accuracy else "-"
        for accuracy, bias in zip(frame["accuracy"], frame["cobias"], strict=True)
    ]
    text = frame.assign(pair=pairs).pivot(index="fitted on", columns="judged on", values="pair")
    text = text.loc[["uncorrected", *names.values()], [*names.values()]].reset_index()
    text.columns.name = None
    about = frames.name_of(group[0].identity, "task", "method")
    return ResultTable(
        name=f"transfer_{number}",
        title=f"{about}: schemes on tables they were not fitted on, accuracy / COBias in %",
        frame=frame,
        text=text,
        words=("fitted on",),
        kinds=(KINDS[0],) * len(text),
        about=_NOTE,
    )


def _judged(scheme: CorrectionScheme, test: ProbabilityTable) -> dict[str, float]:
    found = ClassificationMetrics.from_predictions(
        test.labels, scheme.predict(test.probs), test.n_classes
    )
    return {"accuracy": found.accuracy, "cobias": found.cobias}
