"""Lists of labels with scores: pipelines of Transformers, zero-shot classification, Argilla."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from dcs.data.columns import Reading, cells_of
from dcs.data.forms.base import Form, Rows, is_number, label_columns, parsed_cells, with_scores
from dcs.data.labels import as_text
from dcs.errors import TableError, quoted, show

if TYPE_CHECKING:
    import pandas as pd

_LABEL: Final = ("label", "class", "name")
_SCORE: Final = ("score", "probability", "prob", "confidence", "logprob")
_NUMBERED: Final = re.compile(r"LABEL_\d+")


def _pairs(cell: Any) -> list[tuple[str, Any]] | None:
    """Return the labels and scores of a cell, None if it is something else."""
    if isinstance(cell, dict) and isinstance(cell.get("labels"), list | tuple):
        labels, scores = cell["labels"], cell.get("scores")
        return _zipped(labels, scores)
    if not isinstance(cell, list | tuple) or not all(isinstance(each, dict) for each in cell):
        return None
    found = []
    for each in cell:
        name = next((key for key in _LABEL if key in each), None)
        score = next((key for key in _SCORE if key in each), None)
        if name is None or score is None or not is_number(each[score]):
            return None
        found.append((as_text(each[name]), each[score]))
    return found or None


def _zipped(labels: Any, scores: Any) -> list[tuple[str, Any]] | None:
    """Return pairs of a list of labels and a list of as many numbers."""
    lists = isinstance(labels, list | tuple) and isinstance(scores, list | tuple)
    if not lists or not labels or len(labels) != len(scores) or not all(map(is_number, scores)):
        return None
    return [(as_text(label), score) for label, score in zip(labels, scores, strict=True)]


def _found(frame: pd.DataFrame) -> tuple[tuple[str, ...], list[list[tuple[str, Any]] | None]]:
    """Return the columns that hold labels with scores, and the pairs of each row."""
    columns: dict[str, list[Any]] = {}
    for name in frame.columns:
        columns[name] = parsed_cells(frame, name)
        pairs = [_pairs(cell) for cell in columns[name]]
        if any(pairs) and all(p or c is None for p, c in zip(pairs, columns[name], strict=True)):
            return (name,), pairs
    if {"labels", "scores"} <= columns.keys():
        pairs = [_zipped(*each) for each in zip(columns["labels"], columns["scores"], strict=True)]
        if all(pairs):
            return ("labels", "scores"), pairs
    return (), []


def _rows(frame: pd.DataFrame, given: Reading, source: str) -> Rows:
    columns, pairs = _found(frame)
    for row, each in enumerate(pairs):
        if each and len(dict(each)) < len(each):
            raise TableError(
                f"{source}: row {row}, column {columns[0]!r}: a label is listed twice in "
                f"{show([label for label, _ in each])}; give one score per class"
            )
    table, classes = with_scores(frame, [dict(each or ()) for each in pairs], columns)
    if not all(map(_NUMBERED.fullmatch, classes)):
        return Rows(table)
    names = given.classes
    if names is not None and len(names) == len(classes) and {*names} != {*classes}:
        renamed = {f"p:{old}": f"p:{new}" for old, new in zip(classes, names, strict=True)}
        return Rows(table.rename(columns=renamed))
    for name in label_columns(table):
        texts = [text for text in map(as_text, cells_of(table[name])) if text]
        if texts and not any(re.fullmatch(r"(?:LABEL_)?\d+", text) for text in texts):
            raise TableError(
                f"{source}: classes are {quoted(classes)} and labels names such as "
                f"{show(texts[0])}; specify the names in the order of the model's id2label with "
                "--read classes=A,B,..."
            )
    return Rows(table)


FORM = Form("labels with scores", lambda frame, given: bool(_found(frame)[0]), _rows)
