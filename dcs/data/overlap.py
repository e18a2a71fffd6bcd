"""Rows that are in both the fitted and the test rows of given tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from dcs.data.reader import Source
from dcs.data.splits import copied_rows
from dcs.data.table import ProbabilityTable
from dcs.errors import TableError, show

#: Share of test texts among the fitted ones up to which they are chance, such as "thank you".
_CHANCE: Final = 0.01

_ADVICE: Final = "give other rows, or remove the test rows to have some held out"

#: Mean length, in characters, from which a column of different strings is the text of the rows.
_TEXT_LENGTH: Final = 12


def refuse_shared_rows(fitted: Source, test: Source, name: str) -> str:
    """Refuse test rows that are among the fitted ones by id or text.

    Parameters
    ----------
    fitted, test : Source
        The rows; different files.
    name : str
        Name of the test rows in messages.

    Returns
    -------
    str
        A remark on rows that coincide only in a few texts or in their values; often empty.

    Raises
    ------
    TableError
        If ids are the same, unless they are row numbers, or texts, or all rows.
    """
    first, second = fitted.table, test.table
    same = first.probs.shape == second.probs.shape and bool((first.probs == second.probs).all())
    if same and (first.labels == second.labels).all():
        raise TableError(f"{name}: these are the rows to be fitted; {_ADVICE}")
    if not (_are_numbers(first.ids) or _are_numbers(second.ids)):
        known = set(first.ids)
        _refuse([each for each in second.ids if each in known], second.n_rows, "ids", name)
    for column in set(_texts(fitted)) & set(_texts(test)):
        remark = refuse_shared_texts(
            map(str, fitted.frame[column]), [*map(str, test.frame[column])], name
        )
        if remark:
            return remark
    known_rows = set(_row_values(first))
    shared = sum(each in known_rows for each in _row_values(second)) if known_rows else 0
    if not shared:
        return ""
    return (
        f"{name}: {shared} of {second.n_rows} rows have the probabilities and label of a fitted "
        "row; if they are the same rows, the evaluation is optimistic"
    )


def refuse_shared_texts(
    fitted: Iterable[str], test: Sequence[str], name: str, *, advice: str = _ADVICE
) -> str:
    """Refuse test texts that are among the fitted ones; return a remark on a few.

    Raises
    ------
    TableError
        If more than 1 % of the test texts are.
    """
    known = {text.strip() for text in fitted}
    shared = [text for text in test if text.strip() in known]
    if len(shared) > _CHANCE * len(test):
        _refuse(shared, len(test), "texts", name, advice)
    return f"{name}: {len(shared)} of {len(test)} texts are fitted too" if shared else ""


def _refuse(
    shared: Sequence[str], n_rows: int, what: str, name: str, advice: str = _ADVICE
) -> None:
    if shared:
        raise TableError(
            f"{name}: {len(shared)} of {n_rows} {what} are among the rows to be fitted, such as "
            f"{show(shared[0], 40)}; {advice}"
        )


def _are_numbers(ids: Sequence[str]) -> bool:
    """Return whether ids only number the rows."""
    if not all(each.isdecimal() for each in ids):
        return False
    numbers = {int(each) for each in ids}
    return len(numbers) == max(numbers) - min(numbers) + 1 and min(numbers) <= 1


def _texts(source: Source) -> list[str]:
    """Return the columns of texts: strings that are long and mostly different."""
    frame, reading = source.frame, source.reading
    others = {*(reading.columns or ()), reading.label, reading.id}
    found = []
    for name in frame.columns:
        if name in others or len(frame) == 0:
            continue
        cells = [each for each in frame[name].tolist() if isinstance(each, str) and each]
        lengths = sum(map(len, cells))
        if 2 * len(set(cells)) > len(frame) and lengths > _TEXT_LENGTH * len(cells):
            found.append(name)
    return found


def _row_values(table: ProbabilityTable) -> list[tuple[bytes, int]]:
    """Return probabilities and label of every labelled row; none if they are too coarse."""
    if (
        len(np.unique(copied_rows(table.probs)))
        == table.n_rows
        > len(np.unique(table.probs, axis=0))
    ):
        return []
    pairs = zip(table.probs, table.labels.tolist(), strict=True)
    return [(row.tobytes(), label) for row, label in pairs if label >= 0]
