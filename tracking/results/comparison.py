"""Comparison of two cells."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Final

from dcs.errors import listing
from dcs.evaluation.uncertainty import percent
from dcs.schemes.scheme import CorrectionScheme
from tracking import schema
from tracking.records import CellRecord
from tracking.results.cells import MEASURES, Cells, Estimate

_DIFFERENCES: Final = "Settings that differ"


def compare_records(
    first: CellRecord, second: CellRecord
) -> dict[str, list[tuple[str, str, str]]]:
    """Compare two cells, of any models, tasks and methods.

    Returns
    -------
    dict of str to list of tuple of str
        Names and values of both cells by section title: settings that differ, results, class
        accuracies and descriptions of the schemes; empty sections are left out.
    """
    compared = {}
    theirs = _describe_cell(second)
    for title, ours in _describe_cell(first).items():
        names = dict.fromkeys([*ours, *theirs[title]])
        compared[title] = [(n, ours.get(n, ""), theirs[title].get(n, "")) for n in names]
    compared[_DIFFERENCES] = [row for row in compared[_DIFFERENCES] if row[1] != row[2]]
    return {title: rows for title, rows in compared.items() if rows}


def _describe_cell(cell: CellRecord) -> dict[str, Mapping[str, str]]:
    """Return the values of a cell to compare, by section title and name."""
    flat = schema.flatten({**cell.identity, "method": cell.who["method"], **cell.params})
    texts = {name: v if isinstance(v, str) else json.dumps(v) for name, v in flat.items()}
    own = cell.metrics
    words: dict[str, str] = {}
    if cell.scheme is not None:
        scheme = CorrectionScheme.from_dict(cell.scheme, source=f"cell {cell.key}")
        if scheme.inputs:
            combined = f"{scheme.combination.name} of " if scheme.combination else ""
            words["tables"] = f"{combined}{listing(scheme.inputs)}"
        if scheme.calibration:
            words["calibration"] = scheme.calibration.name
        effects = [correction.effect for correction in scheme.corrections]
        words |= dict(zip(scheme.classes, effects, strict=True))
    return {
        # The first characters identify a digest.
        _DIFFERENCES: {
            name: text[:12] if name.endswith("digest") else text for name, text in texts.items()
        },
        "Results, %": {
            name: percent(
                own[name],
                interval=(own.get(f"{name}_low", math.nan), own.get(f"{name}_high", math.nan)),
                padded=True,
            )
            for name in own
            if name.endswith(MEASURES)
        },
        "Class accuracies, % of test rows": {
            str(row["class"]): Estimate.of_class(row).percent(padded=True)
            for row in Cells.of([cell]).classes.to_dict("records")
        },
        "Schemes": words,
    }
