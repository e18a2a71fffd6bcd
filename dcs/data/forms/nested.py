"""Cells that are lists or objects: labels with scores, or numbers.

Labels with scores are the output of pipelines of Transformers, of zero-shot classification and of
Argilla; lists or objects of numbers are columns of JSON or Parquet, or their text in CSV.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from dcs.data.columns import Reading, cells_of, is_label
from dcs.data.forms.base import (
    Form,
    Rows,
    is_number,
    label_columns,
    parsed_cells,
    structured,
    with_scores,
)
from dcs.data.labels import as_text
from dcs.errors import TableError, quoted, show

if TYPE_CHECKING:
    import pandas as pd

_LABEL: Final = ("label", "class", "name")
_SCORE: Final = ("score", "probability", "prob", "confidence", "logprob")


def _pairs(cell: Any) -> list[tuple[str, Any]]:
    """Return the labels and scores of a cell; empty if it is something else."""
    if isinstance(cell, list) and len(cell) == 1 and isinstance(cell[0], list):
        (cell,) = cell  # of a pipeline that was given a list of one text
    labels: Any = None
    scores: Any = None
    if isinstance(cell, dict):
        labels, scores = cell.get("labels"), cell.get("scores")
    elif isinstance(cell, list | tuple) and all(isinstance(each, dict) for each in cell):
        labels, scores = (
            [next((each[key] for key in keys if key in each), None) for each in cell]
            for keys in (_LABEL, _SCORE)
        )
    if not (isinstance(labels, list | tuple) and isinstance(scores, list | tuple)):
        return []
    if len(labels) != len(scores) or None in labels or not all(map(is_number, scores)):
        return []
    return [*zip(map(as_text, labels), scores, strict=True)]


def _scored(frame: pd.DataFrame) -> tuple[list[str], list[list[tuple[str, Any]]]]:
    """Return the columns that hold labels with scores, and the pairs of each row."""
    columns: dict[tuple[str, ...], list[Any]] = {}
    for name in structured(frame):
        columns[(name,)] = parsed_cells(frame, name)
    both = ("labels",), ("scores",)
    if {*both} <= columns.keys():
        cells = zip(*(columns[name] for name in both), strict=True)
        columns["labels", "scores"] = [{"labels": a, "scores": b} for a, b in cells]
    for names, found in columns.items():
        pairs = [_pairs(cell) for cell in found]
        filled = zip(pairs, found, strict=True)
        if any(pairs) and all(each or cell is None for each, cell in filled):
            return [*names], pairs
    return [], []


def _score_rows(frame: pd.DataFrame, given: Reading) -> Rows:
    columns, pairs = _scored(frame)
    for row, each in enumerate(pairs):
        if len(dict(each)) < len(each):
            raise TableError(f"row {row}: a label has two scores: {show([k for k, _ in each])}")
    scores, rest = [dict(each) for each in pairs], frame.drop(columns=columns)
    classes = sorted({name for row in scores for name in row})
    short = [row for row, each in enumerate(scores) if each and len(each) < len(classes)]
    if len(short) > len(scores) / 2:
        raise TableError(
            f"row {short[0]} has scores of {len(scores[short[0]])} of {len(classes)} classes; run "
            "the pipeline with top_k=None"
        )
    numbered = all(re.fullmatch(r"LABEL_\d+", name) for name in classes)
    if numbered and given.classes and {*given.classes} != {*classes}:
        names = {f"LABEL_{k}": name for k, name in enumerate(given.classes)}
        scores = [{names.get(k, k): v for k, v in row.items()} for row in scores]
    elif numbered:
        for name in label_columns(rest):
            texts = [text for text in map(as_text, cells_of(rest[name])) if text]
            if texts and not any(re.fullmatch(r"(LABEL_)?[\d.]+", text) for text in texts):
                raise TableError(
                    f"classes are {quoted(classes)} and labels names such as {show(texts[0])}; "
                    "name the classes in the order of the model's id2label with --read "
                    "classes=A,B,..."
                )
    return Rows(with_scores(rest, scores))


SCORES = Form("labels with scores", lambda frame, given: bool(_scored(frame)[0]), _score_rows)


def _inner(cell: Any) -> dict[str, Any]:
    """Return numbers by their key or place; empty if the cell is something else."""
    pairs = [*enumerate(cell)] if isinstance(cell, list | tuple) else []
    pairs = [*cell.items()] if isinstance(cell, dict) else pairs
    numbers = all(each is None or is_number(each) for _, each in pairs)
    return {str(key): each for key, each in pairs} if numbers else {}


def _number_columns(frame: pd.DataFrame, given: Reading) -> dict[str, list[dict[str, Any]]]:
    """Return the columns whose cells are lists or objects of numbers; a label is neither."""
    found = {}
    for name in (n for n in structured(frame) if n != given.label and not is_label(n)):
        cells = parsed_cells(frame, name)
        rows = [_inner(cell) for cell in cells]
        if any(rows) and all(row or cell is None for row, cell in zip(rows, cells, strict=True)):
            found[name] = rows
    return found


def _number_rows(frame: pd.DataFrame, given: Reading) -> Rows:
    import pandas as pd

    parts = {name: frame[[name]] for name in frame.columns}
    for name, rows in _number_columns(frame, given).items():
        keys = list(dict.fromkeys(key for row in rows for key in row))
        short = [k for k, row in enumerate(rows) if row and len(row) < len(keys)]
        if short and keys == [str(k) for k in range(len(keys))]:
            raise TableError(
                f"row {short[0]}, column {show(name)}: {len(rows[short[0]])} numbers, others have "
                f"{len(keys)}; give one per class in every row"
            )
        added = {f"{name}.{key}": [row.get(key) for row in rows] for key in keys}
        parts[name] = pd.DataFrame(added, index=frame.index, dtype=object)
    return Rows(pd.concat([*parts.values()], axis=1))


NUMBERS = Form(
    "lists or objects of numbers",
    lambda frame, given: bool(_number_columns(frame, given)),
    _number_rows,
)
