"""Two cells side by side."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from dcs.schemes.scheme import CorrectionScheme
from tracking.records import CellRecord
from tracking.results.frames import Estimate, classes_frame, is_missing
from tracking.results.tables import difference
from tracking.schema import flatten, shorten

__all__ = ["ComparedRow", "compare_records"]

_LONGEST = 40
#: What less is better of.
_LESS = ("cobias", "seconds")
_SHARES = ("accuracy", "cobias")
_INTERVALS = ("_low", "_high")


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


def compare_records(first: CellRecord, second: CellRecord) -> dict[str, list[ComparedRow]]:
    """Compare two cells, of any models, tasks and methods.

    Returns
    -------
    dict of str to list of ComparedRow
        By title: settings that differ, results, class accuracies, schemes in words; without the
        parts that have nothing to show.
    """
    settings = _texts(_settings(first), _settings(second))
    parts = {
        "Settings that differ": [row for row in settings if row.first != row.second],
        "Results": _figures(_results(first), _results(second)),
        "Class accuracies, % of test rows": _figures(
            _classes(first), _classes(second), shares=True
        ),
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
    order = ("test/", "uncorrected/", "dev/", "opt/")
    names = sorted(
        (name for name in own if not name.endswith(_INTERVALS)),
        key=lambda name: next((i for i, p in enumerate(order) if name.startswith(p)), len(order)),
    )
    ends = {name: [own.get(name + end, math.nan) for end in _INTERVALS] for name in names}
    return {name: Estimate(own[name], low=ends[name][0], high=ends[name][1]) for name in names}


def _classes(cell: CellRecord) -> dict[str, Estimate]:
    rows = classes_frame([cell]).to_dict("records")
    return {str(row["class"]): Estimate.of_class(row) for row in rows}


def _words(cell: CellRecord) -> dict[str, str]:
    if cell.scheme is None:
        return {}
    scheme = CorrectionScheme.from_dict(cell.scheme, source=f"cell {cell.key}")
    effects = {
        name: correction.effect
        for name, correction in zip(scheme.classes, scheme.corrections, strict=True)
    }
    return ({"calibration": scheme.calibration.name} if scheme.calibration else {}) | effects


def _texts(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[ComparedRow]:
    names = dict.fromkeys([*ours, *theirs])
    return [ComparedRow(name, ours.get(name, ""), theirs.get(name, "")) for name in names]


def _figures(
    ours: Mapping[str, Estimate], theirs: Mapping[str, Estimate], *, shares: bool = False
) -> list[ComparedRow]:
    rows = []
    for name in dict.fromkeys([*ours, *theirs]):
        both = [own.get(name, Estimate(math.nan)) for own in (ours, theirs)]
        gap = both[1].mean - both[0].mean
        is_share = shares or name.endswith(_SHARES)
        if is_share:
            first, second = (each.percent(padded=True) for each in both)
            change = difference(100 * both[1].mean, 100 * both[0].mean)
        else:
            # A count has no places.
            digits = 0 if all(float(e.mean).is_integer() for e in both if e.mean == e.mean) else 4
            first, second = ("" if is_missing(e.mean) else f"{e.mean:,.{digits}f}" for e in both)
            change = "" if is_missing(gap) else f"{gap:+,.{digits}f}".replace("-", "−")
        better = None
        if change.strip("+−0.") == "":
            change = change and "="
        elif is_share or name.endswith((*_LESS, "score")):
            better = (gap < 0) == name.endswith(_LESS)
        label = f"{name}, %" if is_share and not shares else name
        rows.append(ComparedRow(label, first, second, change, better))
    return rows
