"""A column per run with its answer: repeated runs of a model are votes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dcs.data.columns import Reading, cells_of, to_number
from dcs.data.forms.base import Form, Rows, as_votes, label_columns, with_scores

if TYPE_CHECKING:
    import pandas as pd


def _runs(frame: pd.DataFrame) -> list[str]:
    """Return the columns of answers: of one name with numbers, and not numbers themselves."""
    groups: dict[str, list[str]] = {}
    for name in frame.columns:
        if match := re.fullmatch(
            r"(.*?(?:run|answer|vote|pred|response|sample|seed|draw|output)\w*?)[ _.-]?\d+",
            name,
            re.I,
        ):
            groups.setdefault(match[1], []).append(name)
    found = [names for names in groups.values() if len(names) > 1]
    if len(found) != 1:
        return []
    cells = [cell for name in found[0] for cell in cells_of(frame[name]) if cell is not None]
    if not all(isinstance(cell, str | int) for cell in cells):
        return []
    fractions = any(
        ((number := to_number(frame[name])).plausible and (number.values % 1 != 0).any())
        for name in found[0]
    )
    return [] if fractions else found[0]


def _sniff(frame: pd.DataFrame, given: Reading) -> bool:
    runs = _runs(frame)
    return len(runs) > 1 and bool(given.classes or label_columns(frame, runs))


def _rows(frame: pd.DataFrame, given: Reading, source: str) -> Rows:
    runs = _runs(frame)
    labels = label_columns(frame, runs)
    truth = given.label if given.label in frame else next(iter(labels), None)
    answers = list(zip(*(cells_of(frame[name]) for name in runs), strict=True))
    told = [] if truth is None else cells_of(frame[truth])
    counts, classes, remark = as_votes(answers, told, given.classes, source, FORM.name)
    table, _ = with_scores(frame, counts, (), classes)
    return Rows(table, {"values": "votes"}, remark)


FORM = Form("a column per run", _sniff, _rows)
