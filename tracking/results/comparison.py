"""Two cells side by side."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from dcs.schemes.scheme import CorrectionScheme
from tracking.records import CellRecord
from tracking.results.frames import Estimate, classes_frame
from tracking.results.tables import difference
from tracking.schema import flatten, shorten

__all__ = ["ComparedRow", "compare_records"]

_LONGEST = 40
_SHARES = ("accuracy", "cobias")
_INTERVALS = ("_low", "_high")


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """One value of both cells, and second minus first where that says something."""

    name: str
    first: str
    second: str
    difference: str = ""


def compare_records(first: CellRecord, second: CellRecord) -> dict[str, list[ComparedRow]]:
    """Compare two cells, of any models, tasks and methods.

    Returns
    -------
    dict of str to list of ComparedRow
        By title: settings that differ, results, class accuracies, other figures, schemes in
        words; without the parts that have nothing to show.
    """
    settings = _texts(_settings(first), _settings(second))
    parts = {
        "Settings that differ": [row for row in settings if row.first != row.second],
        "Results, %": _shares(_results(first), _results(second)),
        "Class accuracies, % of test rows": _shares(_classes(first), _classes(second)),
        "Other figures": _texts(_others(first), _others(second)),
        "Schemes": _texts(_words(first), _words(second)),
    }
    return {title: rows for title, rows in parts.items() if rows}


def _settings(cell: CellRecord) -> dict[str, str]:
    flat = flatten({**cell.identity, **cell.params})
    texts = {name: v if isinstance(v, str) else json.dumps(v) for name, v in flat.items()}
    # Digests are told apart by how they begin.
    return {
        name: text[:12] if name.endswith("digest") else shorten(text, _LONGEST)
        for name, text in texts.items()
    }


def _results(cell: CellRecord) -> dict[str, Estimate]:
    own = cell.metrics
    return {
        name: Estimate(own[name], math.nan, *(own.get(name + end, math.nan) for end in _INTERVALS))
        for name in own
        if name.endswith(_SHARES)
    }


def _others(cell: CellRecord) -> dict[str, str]:
    known = (*_SHARES, *_INTERVALS)
    return {name: f"{v:,.6g}" for name, v in cell.metrics.items() if not name.endswith(known)}


def _classes(cell: CellRecord) -> dict[str, Estimate]:
    rows = classes_frame([cell]).to_dict("records")
    return {str(row["class"]): Estimate.of_class(row) for row in rows}


def _words(cell: CellRecord) -> dict[str, str]:
    if cell.scheme is None:
        return {}
    scheme = CorrectionScheme.from_dict(cell.scheme, source=f"cell {cell.key}")
    calibration = {"calibration": scheme.calibration.name} if scheme.calibration else {}
    effects = [correction.effect for correction in scheme.corrections]
    return calibration | dict(zip(scheme.classes, effects, strict=True))


def _texts(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[ComparedRow]:
    names = dict.fromkeys([*ours, *theirs])
    return [ComparedRow(name, ours.get(name, ""), theirs.get(name, "")) for name in names]


def _shares(ours: Mapping[str, Estimate], theirs: Mapping[str, Estimate]) -> list[ComparedRow]:
    rows = []
    for name in dict.fromkeys([*ours, *theirs]):
        first, second = (own.get(name, Estimate(math.nan)) for own in (ours, theirs))
        gap = difference(100 * second.mean, 100 * first.mean)
        texts = first.percent(padded=True), second.percent(padded=True)
        rows.append(ComparedRow(name, *texts, gap))
    return rows
