"""The table at the end: methods against accuracy, COBias and class accuracies."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

from rich.table import Table

from dcs.methods import get_method
from tracking import CellRecord
from workflows.axes import ABLATED
from workflows.cells import Cell, Variant
from workflows.cli._console import new_table
from workflows.overview import differing_settings

__all__ = ["results_table"]

#: The settings in which cells of one method may differ.
_AXES = ("objectives", *ABLATED, "optimization_sizes")

#: Room taken by everything but the class columns.
_OTHER_COLUMNS = 58


def results_table(records: Sequence[CellRecord], *, width: int) -> Table:
    """Return accuracy, COBias and class accuracies by method.

    Cells that differ in a setting, as those of an ablation do, have rows of their own and a
    column for each such setting. Several seeds are averaged; a single one is shown with its 95 %
    interval.

    Parameters
    ----------
    records : sequence of CellRecord
        Finished cells of one model and task, in the order of the rows wanted.
    width : int
        Characters there are. Where the classes do not fit, the weakest one stands for them.
    """
    variants = [Variant.of(Cell.from_identity(record.identity)) for record in records]
    settings = differing_settings(variants)
    axes = [axis for axis in _AXES if any(axis in own for own in settings.values())]
    groups: dict[tuple[object, Variant], list[CellRecord]] = {}
    for record, variant in zip(records, variants, strict=True):
        groups.setdefault((record.identity["shots"], variant), []).append(record)
    with_shots = any(shots is not None for shots, _ in groups)
    classes = [str(name) for name in records[0].class_accuracies["class"]]
    taken = _OTHER_COLUMNS + sum(len(_axis_title(axis)) + 2 for axis in axes)
    fits = taken + sum(max(len(name), 3) + 2 for name in classes) <= width

    table = new_table(
        *(["shots"] if with_shots else []),
        "method ",
        *map(_axis_title, axes),
        "accuracy ↑",
        "COBias ↓",
        *(classes if fits else ["weakest class ", ""]),
    )
    previous: object = None
    for (shots, variant), group in groups.items():
        method = get_method(variant.method)
        if shots != previous and table.row_count:
            table.add_section()
        columns = zip(*(record.class_accuracies["after"] for record in group), strict=True)
        means = [_mean(column) for column in columns]
        table.add_row(
            *([str(shots)] if with_shots else []),
            method.title,
            *(settings[variant].get(axis, "") for axis in axes),
            _figure(group, "test/accuracy"),
            _figure(group, "test/cobias"),
            *(map(_percent, means) if fits else _weakest(classes, means)),
            style="bold" if method.searches else "",
        )
        previous = shots
    return table


def _axis_title(axis: str) -> str:
    names = {"objectives": "objective", "optimization_sizes": "rows"}
    return names.get(axis, axis.replace("_", " "))


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
