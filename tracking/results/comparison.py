"""Two cells side by side."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from typing import Any

from dcs.evaluation.formatting import chance
from dcs.schemes.scheme import CorrectionScheme
from tracking.records import CellRecord
from tracking.results.frames import Estimate, annealing_seconds, class_intervals
from tracking.schema import flatten

__all__ = ["ComparedRow", "Comparison", "compare_records"]

#: What less is better of.
_LESS = ("cobias", "seconds")

_DIGEST = re.compile("[0-9a-f]{40,}")


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """One value of both cells.

    Attributes
    ----------
    name, first, second : str
        What it is, and its values.
    difference : str
        Second minus first; empty for words.
    better : bool or None
        Whether the second is better; None where neither is, or it cannot be said.
    """

    name: str
    first: str
    second: str
    difference: str = ""
    better: bool | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two cells side by side.

    Attributes
    ----------
    settings, results, classes, schemes : tuple of ComparedRow
        Identity and parameters that differ; metrics; class accuracies after correction;
        corrections in words.
    """

    settings: tuple[ComparedRow, ...]
    results: tuple[ComparedRow, ...]
    classes: tuple[ComparedRow, ...]
    schemes: tuple[ComparedRow, ...]


def compare_records(first: CellRecord, second: CellRecord) -> Comparison:
    """Compare two cells, of any models, tasks and methods."""
    return Comparison(
        tuple(_settings(first, second)),
        tuple(_results(first, second)),
        tuple(_classes(first, second)),
        tuple(_schemes(first, second)),
    )


def _settings(first: CellRecord, second: CellRecord) -> list[ComparedRow]:
    ours, theirs = (flatten({**cell.identity, **cell.params}) for cell in (first, second))
    rows = []
    for name in dict.fromkeys([*ours, *theirs]):
        if ours.get(name) != theirs.get(name):
            rows.append(ComparedRow(name, _value(ours.get(name)), _value(theirs.get(name))))
    return rows


def _results(first: CellRecord, second: CellRecord) -> list[ComparedRow]:
    names = dict.fromkeys([*first.metrics, *second.metrics])
    order = ("test/", "uncorrected/", "dev/", "opt/")
    ranked = sorted(
        names, key=lambda name: next((i for i, p in enumerate(order) if name.startswith(p)), 9)
    )
    about = {f"{name}_{more}" for name in names for more in ("low", "high", "p")}
    rows = []
    for name in ranked:
        if name not in about:
            row = _figure(name, first.metrics.get(name), second.metrics.get(name))
            both = Estimate.of([first], name), Estimate.of([second], name)
            rows.append(_with_intervals(row, both))
            if any(each.p == each.p for each in both):
                first_p, second_p = (chance(each.p) for each in both)
                rows.append(ComparedRow(f"{name}, p against ICL", first_p, second_p))
    seconds = annealing_seconds(first), annealing_seconds(second)
    if "opt/seconds" not in names and any(value is not None for value in seconds):
        rows.append(_figure("annealing seconds", *seconds))
    return rows


def _with_intervals(row: ComparedRow, both: tuple[Estimate, Estimate]) -> ComparedRow:
    """Put the 95 % intervals of a share behind it, where they are known."""
    first, second = (
        each.percent(padded=True) if each.is_single else text
        for each, text in zip(both, (row.first, row.second), strict=True)
    )
    return replace(row, first=first, second=second)


def _classes(first: CellRecord, second: CellRecord) -> list[ComparedRow]:
    ours, theirs = (_by_class(cell) for cell in (first, second))
    none = Estimate(math.nan)
    rows = []
    for name in dict.fromkeys([*ours, *theirs]):
        both = ours.get(name, none), theirs.get(name, none)
        means = (None if math.isnan(each.mean) else each.mean for each in both)
        rows.append(_with_intervals(_figure(name, *means, percent=True), both))
    return rows


def _schemes(first: CellRecord, second: CellRecord) -> list[ComparedRow]:
    ours, theirs = _words(first), _words(second)
    return [
        ComparedRow(name, ours.get(name, ""), theirs.get(name, ""))
        for name in dict.fromkeys([*ours, *theirs])
    ]


def _by_class(cell: CellRecord) -> dict[str, Estimate]:
    names = map(str, cell.class_accuracies.get("class", []))
    return dict(zip(names, class_intervals(cell), strict=True))


def _words(cell: CellRecord) -> dict[str, str]:
    if cell.scheme is None:
        return {}
    scheme = CorrectionScheme.from_dict(cell.scheme, source=f"cell {cell.key}")
    first = {"calibration": scheme.calibration.name} if scheme.calibration else {}
    return first | {
        name: correction.effect
        for name, correction in zip(scheme.classes, scheme.corrections, strict=True)
    }


def _figure(
    name: str, first: float | None, second: float | None, *, percent: bool = False
) -> ComparedRow:
    is_share = percent or name.endswith(("accuracy", "cobias"))
    scale, digits = (100.0, 1) if is_share else (1.0, 4)
    if not is_share and all(v is None or float(v).is_integer() for v in (first, second)):
        digits = 0  # a count
    ours, theirs = ("" if v is None else _number(scale * v, digits) for v in (first, second))
    label = f"{name}, %" if is_share and not percent else name
    if first is None or second is None:
        return ComparedRow(label, ours, theirs)
    gap = scale * (second - first)
    better = None
    if round(gap, digits) != 0 and (is_share or name.endswith((*_LESS, "score"))):
        better = (gap < 0) == name.endswith(_LESS)
    return ComparedRow(label, ours, theirs, _number(gap, digits, sign="+"), better)


def _number(value: float, digits: int, sign: str = "") -> str:
    if sign and round(value, digits) == 0:
        return "="
    text = f"{value:{sign},.{digits}f}"
    return text.replace("-", "−") if sign else text


def _value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = value if isinstance(value, str) else json.dumps(value)
    if _DIGEST.fullmatch(text):
        return text[:12]
    return text if len(text) <= 40 else f"{text[:39]}…"
