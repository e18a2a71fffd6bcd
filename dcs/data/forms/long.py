"""A row per text and class with its probability, or per text and repeated answer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from dcs.data.columns import (
    Reading,
    cells_of,
    has_class_columns,
    is_id,
    names_predictions,
    to_number,
)
from dcs.data.forms.base import Form, Rows, as_votes, label_columns, with_scores
from dcs.data.labels import as_text
from dcs.errors import TableError, show

if TYPE_CHECKING:
    import pandas as pd

_CLASS: Final = re.compile(r"class(_name)?|category|label(_name)?|option|choice|candidate", re.I)
_VALUE: Final = re.compile(r"p|probs?|proba|probability|score|value|log_?prob|confidence", re.I)
_ANSWER: Final = re.compile(r"answer|response|vote|choice|completion|parsed(_answer)?", re.I)
_NUMBER: Final = re.compile(r"epoch|run|repeat|sample|seed|trial|attempt|draw|index", re.I)


def _repeated_id(frame: pd.DataFrame) -> str | None:
    """Return the only column of ids that repeat."""
    named = [
        n for n in frame.columns if is_id(n) or re.fullmatch(r"text|item|doc(ument)?", n, re.I)
    ]
    named = [n for n in named if not _NUMBER.fullmatch(n) and 1 < frame[n].nunique() < len(frame)]
    ids = [name for name in named if is_id(name)] or named
    return ids[0] if ids else None


def _columns(frame: pd.DataFrame) -> tuple[str, str, str | None] | None:
    """Return the columns of ids, of classes or answers, and of probabilities, if any."""
    key = _repeated_id(frame)
    if key is None:
        return None
    values = [n for n in frame.columns if _VALUE.fullmatch(n) and to_number(frame[n]).plausible]
    for name in frame.columns if len(values) == 1 else ():
        several = _CLASS.fullmatch(name) and name != values[0] and not _constant(frame, key, name)
        if several and not frame.duplicated([key, name]).any():
            return key, name, values[0]
    answers = [n for n in frame.columns if _ANSWER.fullmatch(n) or names_predictions(n)]
    answers = [n for n in answers if n != key and not values]
    if len(answers) == 1 and [
        n for n in label_columns(frame, answers) if _constant(frame, key, n)
    ]:
        return key, answers[0], None
    return None


def _constant(frame: pd.DataFrame, key: str, name: str) -> bool:
    """Whether a column has one value per id."""
    return bool(frame.groupby(key, sort=False)[name].nunique(dropna=False).max() == 1)


def _rows(frame: pd.DataFrame, given: Reading, source: str) -> Rows:
    key, name, value = _columns(frame) or ("", "", None)
    groups: dict[Any, list[int]] = {}
    for row, cell in enumerate(cells_of(frame[key])):
        groups.setdefault(cell, []).append(row)
    kept = [n for n in frame.columns if n != key and n not in (name, value)]
    kept = [n for n in kept if _constant(frame, key, n)]
    differ = [n for n in label_columns(frame, (name,)) if n not in kept]
    if differ:
        raise TableError(
            f"{source}: {FORM.name}: column {show(differ[0])} has several values for one "
            f"{key}; rows with the same {key} must have the same label"
        )
    first = frame.iloc[[rows[0] for rows in groups.values()]][[key, *kept]].reset_index(drop=True)
    cells = [as_text(cell) for cell in cells_of(frame[name])]
    told = {"id": key} if given.id is None else {}
    if value is not None:
        numbers = cells_of(frame[value])
        scores = [{cells[row]: numbers[row] for row in rows} for rows in groups.values()]
        table, classes = with_scores(first, scores, ())
        for row, each in enumerate(scores):
            if missing := [one for one in classes if one not in each]:
                raise TableError(
                    f"{source}: {FORM.name}: {key} {show(first[key].iloc[row])} has no row for "
                    f"the class {show(missing[0])}; give one row per class"
                )
        return Rows(table, told)
    labels = [n for n in label_columns(frame, (name,)) if n in kept]
    truth = given.label if given.label in kept else labels[0]
    answers = [[cells[row] for row in rows] for rows in groups.values()]
    counts, classes, remark = as_votes(
        answers, cells_of(first[truth]), given.classes, source, FORM.name
    )
    table, _ = with_scores(first, counts, (), classes)
    return Rows(table, told | {"values": "votes"}, remark)


def _sniff(frame: pd.DataFrame, given: Reading) -> bool:
    return _columns(frame) is not None and not has_class_columns(frame, given)


FORM = Form("several rows per text", _sniff, _rows)
