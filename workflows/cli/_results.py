"""The table at the end: methods against accuracy, COBias and class accuracies."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

from rich.table import Table

from dcs.methods import get_method
from tracking import CellRecord
from workflows.cli._console import new_table

__all__ = ["results_table"]

#: Room taken by everything but the class columns.
_OTHER_COLUMNS = 46


def results_table(records: Sequence[CellRecord], *, width: int) -> Table:
    """Return accuracy, COBias and class accuracies by method, averaged over seeds.

    Parameters
    ----------
    records : sequence of CellRecord
        Finished cells of one model and task, in the order of the rows wanted.
    width : int
        Characters there are. Where the classes do not fit, the weakest one stands for them.
    """
    groups: dict[tuple[object, str], list[CellRecord]] = {}
    for record in records:
        identity = record.identity
        groups.setdefault((identity["shots"], identity["method"]), []).append(record)
    with_shots = any(shots is not None for shots, _ in groups)
    classes = [str(name) for name in records[0].class_accuracies["class"]]
    fits = _OTHER_COLUMNS + sum(max(len(name), 3) + 2 for name in classes) <= width

    table = new_table(
        *(["shots"] if with_shots else []),
        "method ",
        "accuracy ↑",
        "COBias ↓",
        *(classes if fits else ["weakest class ", ""]),
    )
    previous: object = None
    for (shots, method), group in groups.items():
        if shots != previous and table.row_count:
            table.add_section()
        columns = zip(*(record.class_accuracies["after"] for record in group), strict=True)
        means = [_mean(column) for column in columns]
        table.add_row(
            *([str(shots)] if with_shots else []),
            get_method(method).title,
            _spread([record.metrics["test/accuracy"] for record in group]),
            _spread([record.metrics["test/cobias"] for record in group]),
            *(map(_percent, means) if fits else _weakest(classes, means)),
            style="bold" if get_method(method).searches else "",
        )
        previous = shots
    return table


def _weakest(classes: Sequence[str], means: Sequence[float | None]) -> tuple[str, str]:
    known = [(mean, name) for mean, name in zip(means, classes, strict=True) if mean is not None]
    mean, name = min(known)
    return name, _percent(mean)


def _spread(values: Sequence[float]) -> str:
    mean = f"{100 * fmean(values):.1f}"
    return mean if len(values) < 2 else f"{mean} ± {100 * stdev(values):.1f}"


def _mean(values: Sequence[float | None]) -> float | None:
    # A class without rows has no accuracy.
    known = [value for value in values if value is not None and value == value]
    return fmean(known) if known else None


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}"
