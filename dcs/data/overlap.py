"""Rows that are in both the fitted and the test rows of given tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from dcs.data.reader import Source
from dcs.errors import TableError, show

#: Share of test rows among the fitted ones up to which they are chance, such as "thank you".
_CHANCE: Final = 0.01

_ADVICE: Final = "give other rows, or remove the test rows to have some held out"

#: Mean length, in characters, from which a column of different strings is the text of the rows.
_TEXT_LENGTH: Final = 12


def refuse_shared_rows(fitted: Source, test: Source, name: str) -> str:
    """Refuse test rows that are among the fitted ones: all rows, or their texts or ids.

    Parameters
    ----------
    fitted, test : Source
        The rows; different files.
    name : str
        Name of the test rows in messages.

    Returns
    -------
    str
        A remark on rows that coincide only in a few texts; often empty.

    Raises
    ------
    TableError
        If they are the same rows, ids are the same, unless they are row numbers, or texts.
    """
    first, second = fitted.table, test.table
    if np.array_equal(first.probs, second.probs) and np.array_equal(first.labels, second.labels):
        raise TableError(f"{name}: these are the rows to be fitted; {_ADVICE}")
    if not (_are_numbers(first.ids) or _are_numbers(second.ids)):
        refuse_shared_texts(first.ids, second.ids, name, what="ids", chance=0.0)
    columns = {*fitted.frame.columns} & {*test.frame.columns}
    shared = (
        refuse_shared_texts(map(str, fitted.frame[each]), [*map(str, test.frame[each])], name)
        for each in columns
        if _is_text(fitted, each) and _is_text(test, each)
    )
    return next(filter(None, shared), "")


def refuse_shared_texts(
    fitted: Iterable[str],
    test: Sequence[str],
    name: str,
    *,
    advice: str = _ADVICE,
    what: str = "texts",
    chance: float = _CHANCE,
) -> str:
    """Refuse test texts that are among the fitted ones; return a remark on a few.

    Raises
    ------
    TableError
        If more than 1 % of the test texts are.
    """
    known = {text.strip() for text in fitted}
    shared = [text for text in test if text.strip() in known]
    found = f"{name}: {len(shared)} of {len(test)} {what} are among the rows to be fitted"
    if len(shared) > chance * len(test):
        raise TableError(f"{found}, such as {show(shared[0], 40)}; {advice}")
    return found if shared else ""


def _are_numbers(ids: Sequence[str]) -> bool:
    """Whether ids only number the rows."""
    numbers = {int(each) for each in ids} if all(map(str.isdecimal, ids)) else {2}
    return len(numbers) == max(numbers) - min(numbers) + 1 and min(numbers) <= 1


def _is_text(source: Source, name: str) -> bool:
    """Whether a column holds the texts of rows: strings that are long and mostly different."""
    others = (*(source.reading.columns or ()), source.reading.label, source.reading.id)
    cells = [each for each in source.frame[name].tolist() if isinstance(each, str) and each]
    long = sum(map(len, cells)) > _TEXT_LENGTH * len(cells)
    return name not in others and 2 * len({*cells}) > len(source.frame) and long
