"""What of a sweep is done and what is left, counted by what the cells have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from workflows.axes import ABLATED, GRID, value_label
from workflows.cells import Cell, TableRequest, Variant
from workflows.sweep import SweepPlan

__all__ = ["Count", "PlannedCell", "by_axis", "counted", "differing_settings", "planned_cells"]

State = Literal["finished", "failed", "to do"]
K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class PlannedCell:
    """A cell of a sweep, whose table may not be there yet.

    Attributes
    ----------
    request : TableRequest
        Its table.
    variant : Variant
        What it is among the cells of that table.
    state : "finished", "failed" or "to do"
        How far it is. A failed one that is to be retried is to do.
    scored : bool
        Whether the table is there.
    """

    request: TableRequest
    variant: Variant
    state: State
    scored: bool


@dataclass(slots=True)
class Count:
    """How many cells there are, and how far they are."""

    cells: int = 0
    finished: int = 0
    failed: int = 0

    @property
    def to_do(self) -> int:
        """Number of cells that are to be computed."""
        return self.cells - self.finished - self.failed


def planned_cells(plan: SweepPlan) -> Iterator[PlannedCell]:
    """Yield every cell of a sweep in the order of the configuration."""
    variants = plan.variants
    for key in plan.requests:
        cells: list[Cell] | None = plan.cells.get(key)
        pairs = [(request, variant) for request in plan.requests_of(key) for variant in variants]
        for i, (request, variant) in enumerate(pairs):
            record = plan.ended.get(cells[i].key) if cells else None
            state: State = "to do" if record is None else "finished"
            if record is not None and not record.finished:
                state = "failed"
            yield PlannedCell(request, variant, state, cells is not None)


def counted(cells: Iterable[tuple[K, PlannedCell]]) -> dict[K, Count]:
    """Count cells by what stands before them, in the order in which that comes first."""
    counts: dict[K, Count] = {}
    for key, cell in cells:
        count = counts.setdefault(key, Count())
        count.cells += 1
        count.finished += cell.state == "finished"
        count.failed += cell.state == "failed"
    return counts


def differing_settings(variants: Iterable[Variant]) -> dict[Variant, dict[str, str]]:
    """Return for each variant in what it differs from others of its method.

    Returns
    -------
    dict of Variant to dict
        By axis, named as ``--only`` does, its value as people write it. An axis that does not
        touch a method is not there.
    """
    values = {variant: _values(variant) for variant in variants}
    seen: dict[tuple[str, str], set[str]] = {}
    for variant, own in values.items():
        for axis, value in own.items():
            seen.setdefault((variant.method, axis), set()).add(value)
    return {
        variant: {
            axis: value for axis, value in own.items() if len(seen[variant.method, axis]) > 1
        }
        for variant, own in values.items()
    }


def _values(variant: Variant) -> dict[str, str]:
    values: dict[str, Any] = {}
    if variant.tuner is not None:
        values["objectives"] = variant.tuner.objective
        values |= {name: getattr(variant.tuner, name) for name in ABLATED}
    values["optimization_sizes"] = variant.optimization_size
    return {axis: value_label(axis, value) for axis, value in values.items()}


def by_axis(plan: SweepPlan, cells: Iterable[PlannedCell]) -> dict[str, dict[str, Count]]:
    """Count the cells of a sweep by the values of each axis that has several, outermost first.

    Cells that an axis does not touch are not counted for it.
    """
    there = list(cells)
    settings = differing_settings(plan.variants)
    result: dict[str, dict[str, Count]] = {}
    for axis, values in plan.config.axis_values.items():
        if len(values) < 2:
            continue
        labelled = ((_label(cell, axis, settings[cell.variant]), cell) for cell in there)
        counts = counted((label, cell) for label, cell in labelled if label is not None)
        order = [value_label(axis, value) for value in values]
        result[axis] = {label: counts[label] for label in order if label in counts}
    return result


def _label(cell: PlannedCell, axis: str, settings: dict[str, str]) -> str | None:
    """Return a cell's value of an axis, None if the axis does not touch it."""
    if axis == "methods":
        return cell.variant.method
    if axis in GRID:
        return str(getattr(cell.request, axis if axis == "shots" else axis.removesuffix("s")))
    return settings.get(axis)
