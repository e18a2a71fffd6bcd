"""Comparison of two cells and of two sweeps."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from dcs.errors import InvalidInputError, quoted
from dcs.evaluation.splits import compare_over_splits
from dcs.evaluation.uncertainty import chance, percent
from dcs.schemes.scheme import CorrectionScheme
from tracking import schema
from tracking.records import CellRecord
from tracking.results.cells import (
    MEASURES,
    SOURCE,
    Cells,
    Estimate,
    groups_of,
    method_title,
    text_of,
)
from tracking.results.formats import ResultTable, filled, points
from tracking.results.paper import task_title

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
            words["tables"] = f"{combined}{quoted(scheme.inputs)}"
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


def compare_sweeps(first: Cells, second: Cells) -> ResultTable:
    """Compare two sweeps over the cells that both have: second minus first.

    Cells are paired by model, task, shots, seed and method, at the main values of all settings.

    Returns
    -------
    ResultTable
        A row per source and method: means over the paired cells, and the mean change. For several
        seeds, with the p-value of the corrected resampled t-test of Nadeau and Bengio.

    Raises
    ------
    InvalidInputError
        Raised if the sweeps have no cell in common.
    """
    import pandas as pd

    by = [*SOURCE, "method"]
    wanted = [*by, "seed", *(f"test/{m}" for m in MEASURES)]
    frames = [sweep.main.judged[[*wanted, "rows", "test_rows"]] for sweep in (first, second)]
    for frame in frames:
        # Merged as text: a number of shots may be a number in one sweep and a text in the other.
        frame[[*by, "seed"]] = frame[[*by, "seed"]].map(text_of)
    both = frames[0].merge(frames[1], on=[*by, "seed"], suffixes=("", "_second"))
    if both.empty:
        raise InvalidInputError("the sweeps have no cell of the same source, seed and method")
    numbers, texts = [], []
    for where, group in groups_of(both, by):
        row: dict[Any, Any] = {**where, "cells": len(group)}
        text = {
            **where,
            "task": task_title(where["task"]),
            "method": method_title(where["method"]),
        }
        text["cells"] = str(len(group))
        for measure, head in {"accuracy": "accuracy", "cobias": "COBias"}.items():
            old, new = group[f"test/{measure}"], group[f"test/{measure}_second"]
            ratio = float((group["test_rows"] / group["rows"]).mean())
            found = compare_over_splits(new - old, test_ratio=ratio if ratio > 0.0 else 1.0)
            row |= {f"{measure}_first": old.mean(), f"{measure}_second": new.mean()}
            row |= {f"{measure}_change": found.mean, f"{measure}_p": found.p}
            text[head] = f"{percent(old.mean())} → {percent(new.mean())}"
            text[f"Δ {head}"] = points(found.mean)
            text[f"p {head}"] = chance(found.p)
        numbers.append(row)
        texts.append(text)
    return ResultTable(
        name="comparison",
        title="Change from the first sweep to the second, % of test rows",
        frame=pd.DataFrame(numbers),
        text=filled(pd.DataFrame(texts)),
        words=tuple(by),
        about="p: corrected resampled t-test over seeds (Nadeau and Bengio).",
    )
