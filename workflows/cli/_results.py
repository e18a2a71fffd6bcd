"""The table at the end: methods against accuracy, COBias and class accuracies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.table import Table

from dcs.evaluation.formatting import chance
from dcs.selection.methods import get_method
from tracking import CellRecord
from tracking.results.frames import Estimate, class_intervals, mean_and_deviation
from workflows.cells import Cell, Variant
from workflows.cli._console import new_table
from workflows.config.axes import ABLATED
from workflows.plan import differing_settings

__all__ = ["results_table"]

#: The settings in which cells of one method may differ.
_AXES = ("objectives", *ABLATED, "optimization_sizes")

#: Room taken by everything but the class columns.
_OTHER_COLUMNS = 58


def results_table(records: Sequence[CellRecord], *, width: int) -> Table:
    """Return accuracy, COBias and class accuracies by method.

    Cells that differ in a setting, as those of an ablation do, have rows of their own and a
    column for each such setting. Several seeds are averaged; a single one is shown with its 95 %
    interval and the p-values of a paired test against ICL.

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
    figures = {key: _Figures.of(group) for key, group in groups.items()}
    with_shots = any(shots is not None for shots, _ in groups)
    tested = any(each.p == each.p for own in figures.values() for each in own.measures)
    classes = [str(name) for name in records[0].class_accuracies["class"]]
    room = width - _OTHER_COLUMNS - 14 * tested - sum(len(_axis_title(axis)) + 2 for axis in axes)
    # As much of the classes as there is room for.
    columns = {key: own.class_texts(intervals=True) for key, own in figures.items()}
    if not _fits(classes, columns.values(), room):
        columns = {key: own.class_texts(intervals=False) for key, own in figures.items()}
    fits = _fits(classes, columns.values(), room)

    measures = [[title, *(["p"] if tested else [])] for title in ("accuracy ↑", "COBias ↓")]
    table = new_table(
        *(["shots"] if with_shots else []),
        "method ",
        *map(_axis_title, axes),
        *measures[0],
        *measures[1],
        *(classes if fits else ["weakest class ", ""]),
    )
    previous: object = None
    for (shots, variant), own in figures.items():
        method = get_method(variant.method)
        if shots != previous and table.row_count:
            table.add_section()
        table.add_row(
            *([str(shots)] if with_shots else []),
            method.title,
            *(settings[variant].get(axis, "") for axis in axes),
            *(
                text
                for each in own.measures
                for text in (each.percent(padded=True), *([chance(each.p)] if tested else []))
            ),
            *(columns[shots, variant] if fits else own.weakest(classes)),
            style="bold" if method.searches else "",
        )
        previous = shots
    return table


@dataclass(frozen=True, slots=True)
class _Figures:
    """What a row of the table shows: accuracy and COBias, then the class accuracies."""

    measures: tuple[Estimate, Estimate]
    classes: tuple[Estimate, ...]

    @classmethod
    def of(cls, group: Sequence[CellRecord]) -> _Figures:
        accuracy, cobias = (Estimate.of(group, f"test/{name}") for name in ("accuracy", "cobias"))
        by_seed = [class_intervals(record) for record in group]
        classes = by_seed[0]
        if len(by_seed) > 1:
            classes = [Estimate(_mean(seeds)) for seeds in zip(*by_seed, strict=True)]
        return cls((accuracy, cobias), tuple(classes))

    def class_texts(self, *, intervals: bool) -> list[str]:
        shown = self.classes if intervals else [Estimate(each.mean) for each in self.classes]
        return [each.percent(digits=0, padded=True) or "-" for each in shown]

    def weakest(self, names: Sequence[str]) -> tuple[str, str]:
        # A class without rows has no accuracy.
        known = [pair for pair in zip(self.classes, names, strict=True) if pair[0].mean >= 0]
        figure, name = min(known, key=lambda pair: pair[0].mean)
        return name, figure.percent(digits=0, padded=True)


def _fits(names: Sequence[str], rows: Iterable[Sequence[str]], room: int) -> bool:
    columns = zip(names, *rows, strict=True)
    return sum(max(3, *map(len, texts)) + 2 for texts in columns) <= room


def _axis_title(axis: str) -> str:
    names = {"objectives": "objective", "optimization_sizes": "rows"}
    return names.get(axis, axis.replace("_", " "))


def _mean(estimates: Iterable[Estimate]) -> float:
    # A class without rows has no accuracy.
    return mean_and_deviation([each.mean for each in estimates if each.mean == each.mean])[0]
