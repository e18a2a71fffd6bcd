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
from dcs.data.forms.base import Form, Rows, label_columns, structured, with_scores, with_votes
from dcs.data.labels import as_text
from dcs.errors import TableError, show

if TYPE_CHECKING:
    import pandas as pd

_CLASS: Final = re.compile(r"class(_name)?|category|label(_name)?|option|choice|candidate", re.I)
_VALUE: Final = re.compile(r"p|probs?|proba|probability|score|value|log_?prob|confidence", re.I)
_ANSWER: Final = re.compile(r"answer|response|vote|choice|completion|parsed(_answer)?", re.I)


def _constant(frame: pd.DataFrame, key: str, name: str) -> bool:
    """Whether a column has one value per id."""
    return bool(frame.groupby(key, sort=False)[name].nunique(dropna=False).max() == 1)


def _columns(frame: pd.DataFrame, given: Reading) -> tuple[str, str, str | None] | None:
    """Return the columns of ids, of classes or answers, and of probabilities, if any."""
    nested = structured(frame)
    ids = [n for n in frame.columns if is_id(n) and n not in nested]
    texts = [n for n in frame.columns if n.lower() in ("text", "document") and n not in nested]
    keys = [n for n in ids or texts if 1 < frame[n].nunique() < len(frame)]
    if not keys:
        return None
    values = [n for n in frame.columns if _VALUE.fullmatch(n) and to_number(frame[n]).plausible]
    named = _CLASS if values else _ANSWER
    found = [n for n in frame.columns if n not in keys and named.fullmatch(n)]
    if not values:
        found += [n for n in frame.columns if names_predictions(n) and n not in found]
        known = [n for n in found if given.classes or label_columns(frame, [n])]
        found = known[:1]
    found = [n for n in found if not values or not frame.duplicated([keys[0], n]).any()]
    found = [n for n in found if not values or not _constant(frame, keys[0], n)]
    if len(found) != 1 or len(values) > 1:
        return None
    return keys[0], found[0], next(iter(values), None)


def _rows(frame: pd.DataFrame, given: Reading) -> Rows:
    key, name, value = _columns(frame, given) or ("", "", None)
    groups: dict[Any, list[int]] = {}
    for row, cell in enumerate(cells_of(frame[key])):
        groups.setdefault(cell, []).append(row)
    kept = [n for n in frame.columns if n not in (name, value) and _constant(frame, key, n)]
    labels = [n for n in label_columns(frame, (name, key)) if n not in kept]
    if labels:
        raise TableError(f"rows of one {key} have different values of {show(labels[0])}")
    first = frame.iloc[[rows[0] for rows in groups.values()]].reset_index(drop=True)
    first = first[[key, *[n for n in kept if n != key]]]
    cells = [as_text(cell) for cell in cells_of(frame[name])]
    if value is None:
        labels = [given.label] if given.label in kept else label_columns(frame, (name, key))
        answers = [[cells[row] for row in rows] for rows in groups.values()]
        found = with_votes(first, answers, next(iter(labels), None), given)
        return Rows(found.frame, {"id": key, **found.told}, found.remark)
    numbers = cells_of(frame[value])
    scores = [{cells[row]: numbers[row] for row in rows} for rows in groups.values()]
    size = len({*cells})
    if short := [k for k, row in enumerate(scores) if len(row) < size]:
        raise TableError(
            f"{key} {show(first[key].iloc[short[0]])} has {len(scores[short[0]])} classes, others "
            f"have {size}; give one row per class"
        )
    return Rows(with_scores(first, scores), {"id": key})


def _sniff(frame: pd.DataFrame, given: Reading) -> bool:
    return _columns(frame, given) is not None and not has_class_columns(frame, given)


FORM = Form("several rows per text", _sniff, _rows)
