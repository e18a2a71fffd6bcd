"""A column per run with its answer: repeated runs of a model are votes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from dcs.data.columns import Reading, cells_of, has_class_columns, to_number
from dcs.data.forms.base import Form, Rows, label_columns, with_votes

if TYPE_CHECKING:
    import pandas as pd

_RUN: Final = re.compile(
    r"(\w*(?:run|answer|vote|pred|prediction|response|sample|seed|draw|output))[ _.-]?\d+", re.I
)


def _runs(frame: pd.DataFrame, given: Reading) -> list[str]:
    """Return the columns of answers: of one name with numbers, and not fractions."""
    groups: dict[str, list[str]] = {}
    for name in frame.columns:
        if match := _RUN.fullmatch(name):
            groups.setdefault(match[1], []).append(name)
    found = [names for names in groups.values() if len(names) > 1]
    if len(found) != 1 or not (given.classes or label_columns(frame, found[0])):
        return []
    numbers = [to_number(frame[name]) for name in found[0]]
    counts = re.search("vote|pred|output", found[0][0], re.I) and all(n.plausible for n in numbers)
    fractions = any(n.plausible and (n.values % 1 > 0).any() for n in numbers)
    return [] if counts or fractions else found[0]


def _rows(frame: pd.DataFrame, given: Reading) -> Rows:
    runs = _runs(frame, given)
    labels = [given.label] if given.label in frame else label_columns(frame, runs)
    answers = [*zip(*(cells_of(frame[name]) for name in runs), strict=True)]
    return with_votes(frame.drop(columns=runs), answers, next(iter(labels), None), given)


def _sniff(frame: pd.DataFrame, given: Reading) -> bool:
    runs = _runs(frame, given)
    return bool(runs) and not has_class_columns(frame.drop(columns=runs), given)


FORM = Form("a column per run", _sniff, _rows)
