"""The table at the end: methods against accuracy, COBias and class accuracies."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

from rich.table import Table

from dcs.methods import get_method
from tracking import CellRecord

__all__ = ["results_table"]


def results_table(records: Sequence[CellRecord], *, title: str) -> Table:
    """Return accuracy, COBias and class accuracies by method, averaged over seeds.

    Parameters
    ----------
    records : sequence of CellRecord
        Finished cells of one model and task, in the order of the rows wanted.
    title : str
        The heading.
    """
    groups: dict[tuple[object, str], list[CellRecord]] = {}
    for record in records:
        identity = record.identity
        groups.setdefault((identity["shots"], identity["method"]), []).append(record)
    many_shots = len({shots for shots, _ in groups}) > 1 or all(s is not None for s, _ in groups)

    table = Table(title=title, title_justify="left", title_style="bold", header_style="dim")
    if many_shots:
        table.add_column("shots", justify="right")
    table.add_column("method")
    table.add_column("accuracy ↑", justify="right")
    table.add_column("COBias ↓", justify="right")
    for name in records[0].class_accuracies["class"]:
        table.add_column(str(name), justify="right", style="dim")
    previous: object = None
    for (shots, method), group in groups.items():
        if shots != previous and table.row_count:
            table.add_section()
        cells = [str(shots)] if many_shots else []
        cells += [
            get_method(method).title,
            _spread([record.metrics["test/accuracy"] for record in group]),
            _spread([record.metrics["test/cobias"] for record in group]),
        ]
        columns = zip(*(record.class_accuracies["after"] for record in group), strict=True)
        cells += [_mean(column) for column in columns]
        table.add_row(*cells, style="bold" if get_method(method).searches else "")
        previous = shots
    return table


def _spread(values: Sequence[float]) -> str:
    mean = f"{100 * fmean(values):.1f}"
    return mean if len(values) < 2 else f"{mean} ± {100 * stdev(values):.1f}"


def _mean(values: Sequence[float | None]) -> str:
    # A class without rows has no accuracy.
    known = [value for value in values if value is not None and value == value]
    return f"{100 * fmean(known):.0f}" if known else "-"
