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
_OTHER_COLUMNS = 58


def results_table(records: Sequence[CellRecord], *, width: int) -> Table:
    """Return accuracy, COBias and class accuracies by method.

    Several seeds are averaged; a single one is shown with its 95 % interval.

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
            _figure(group, "test/accuracy"),
            _figure(group, "test/cobias"),
            *(map(_percent, means) if fits else _weakest(classes, means)),
            style="bold" if get_method(method).searches else "",
        )
        previous = shots
    return table


def _weakest(classes: Sequence[str], means: Sequence[float | None]) -> tuple[str, str]:
    known = [(mean, name) for mean, name in zip(means, classes, strict=True) if mean is not None]
    mean, name = min(known)
    return name, _percent(mean)


def _figure(group: Sequence[CellRecord], name: str) -> str:
    """Return mean ± standard deviation over seeds, or one figure with its 95 % interval."""
    values = [100 * record.metrics[name] for record in group]
    if len(values) > 1:
        return f"{fmean(values):.1f} ± {stdev(values):.1f}"
    low, high = (100 * group[0].metrics[f"{name}_{end}"] for end in ("low", "high"))
    # A space before one digit keeps the brackets in line.
    return f"{values[0]:.1f} [{low:4.1f}, {high:4.1f}]"


def _mean(values: Sequence[float | None]) -> float | None:
    # A class without rows has no accuracy.
    known = [value for value in values if value is not None and value == value]
    return fmean(known) if known else None


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}"
