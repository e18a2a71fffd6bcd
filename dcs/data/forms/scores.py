"""Lists of labels with scores: pipelines of Transformers, zero-shot classification, Argilla."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from dcs.data.columns import Reading, cells_of
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
    labels: Any
    scores: Any
    if isinstance(cell, dict):
        labels, scores = cell.get("labels"), cell.get("scores")
    elif isinstance(cell, list | tuple) and all(isinstance(each, dict) for each in cell):
        labels = [next((each[k] for k in _LABEL if k in each), None) for each in cell]
        scores = [next((each[k] for k in _SCORE if k in each), None) for each in cell]
    else:
        return []
    lists = isinstance(labels, list | tuple) and isinstance(scores, list | tuple)
    if (
        not lists
        or len(labels) != len(scores)
        or None in labels
        or not all(map(is_number, scores))
    ):
        return []
    return [*zip(map(as_text, labels), scores, strict=True)]


def _found(frame: pd.DataFrame) -> tuple[list[str], list[list[tuple[str, Any]]]]:
    """Return the columns that hold labels with scores, and the pairs of each row."""
    columns = {name: parsed_cells(frame, name) for name in structured(frame)}
    keys = [(name,) for name in columns]
    if {"labels", "scores"} <= columns.keys():
        both = zip(columns["labels"], columns["scores"], strict=True)
        columns[""] = [{"labels": labels, "scores": scores} for labels, scores in both]
        keys.append(("",))
    for (name,) in keys:
        pairs = [_pairs(cell) for cell in columns[name]]
        filled = zip(pairs, columns[name], strict=True)
        if any(pairs) and all(each or cell is None for each, cell in filled):
            return [name] if name else ["labels", "scores"], pairs
    return [], []


def _rows(frame: pd.DataFrame, given: Reading) -> Rows:
    columns, pairs = _found(frame)
    for row, each in enumerate(pairs):
        if len(dict(each)) < len(each):
            raise TableError(f"row {row}: a label has two scores: {show([k for k, _ in each])}")
    scores, rest = [dict(each) for each in pairs], frame.drop(columns=columns)
    classes = sorted({name for row in scores for name in row})
    if not all(re.fullmatch(r"LABEL_\d+", name) for name in classes):
        return Rows(with_scores(rest, scores))
    if given.classes and {*given.classes} != {*classes}:
        names = {f"LABEL_{k}": name for k, name in enumerate(given.classes)}
        return Rows(
            with_scores(rest, [{names.get(k, k): v for k, v in s.items()} for s in scores])
        )
    for name in label_columns(rest):
        texts = [text for text in map(as_text, cells_of(rest[name])) if text]
        if texts and not any(re.fullmatch(r"(LABEL_)?[\d.]+", text) for text in texts):
            raise TableError(
                f"classes are {quoted(classes)} and labels names such as {show(texts[0])}; name "
                "the classes in the order of the model's id2label with --read classes=A,B,..."
            )
    return Rows(with_scores(rest, scores))


FORM = Form("labels with scores", lambda frame, given: bool(_found(frame)[0]), _rows)
