"""Forms of rows: how each is recognised, and how it becomes a column per class.

A file gives a frame with one row per record (:mod:`dcs.data.files`). The first form that
recognises it (:data:`dcs.data.reader.FORMS`) turns it into a column per class, which
:mod:`dcs.data.columns` reads; a frame that no form recognises has them already.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dcs.data.columns import PREFIX, Reading, cells_of, is_label, names_predictions
from dcs.data.labels import as_text, comparable
from dcs.errors import TableError, quoted, show

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows with a column per class.

    Attributes
    ----------
    frame : DataFrame
        The columns; those that the form does not need are kept.
    told : mapping of str to object
        Fields of :class:`dcs.data.columns.Reading` that the form determines.
    remark : str
        What was left out or assumed, in a few words.
    """

    frame: pd.DataFrame
    told: Mapping[str, Any] = field(default_factory=dict)
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Form:
    """A form of rows that programs write.

    Attributes
    ----------
    name : str
        What the rows are called in messages.
    sniff : callable
        Returns what shows that a frame, one row per record of the file, has this form, such as the
        names of columns; something false if nothing does.
    rows : callable
        Returns the rows of a frame, given what `sniff` found, or raises a
        :class:`dcs.errors.TableError` whose message the names of file and form precede.
    """

    name: str
    sniff: Callable[[pd.DataFrame, Reading], Any]
    rows: Callable[[pd.DataFrame, Reading, Any], Rows]


_NUMPY: Final = re.compile(r"np\.(?:float|int)\d+\(([^()]*)\)")


def parsed(cell: Any) -> Any:
    """Return a cell that is a list or an object, or the text of one, as plain Python."""
    if isinstance(cell, np.ndarray):
        return cell.tolist()
    if not isinstance(cell, str) or cell.strip()[:1] not in ("[", "{"):
        return None if cell == "" else cell
    text = _NUMPY.sub(r"\1", cell.strip())
    if re.fullmatch(r"\[[\d\s.e+-]*\]", text):
        text = re.sub(r"(?<=[\d.])\s+(?=[\d.-])", ",", text)  # as NumPy prints arrays
    text = re.sub(r"(?<=[\[ ,:])(?:nan|null)(?=[\], }])", "None", text)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return cell


def parsed_cells(frame: pd.DataFrame, name: str) -> list[Any]:
    """Return the cells of a column as plain Python, None for missing ones."""
    cells = cells_of(frame[name])
    return [*map(parsed, cells)] if frame[name].dtype.kind == "O" else cells


def structured(frame: pd.DataFrame) -> list[str]:
    """Return the columns whose first cell that is not empty is a list or an object."""
    found, kinds = [], str | list | dict | np.ndarray
    for name in frame.columns:
        filled = (cell for cell in frame[name] if isinstance(cell, kinds) and len(cell))
        if frame[name].dtype.kind == "O" and isinstance(parsed(next(filled, None)), list | dict):
            found.append(name)
    return found


def is_number(cell: Any) -> bool:
    """Whether a cell is a number."""
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def natural(name: str) -> list[Any]:
    """Return a key that sorts numbers in names by their value."""
    parts = re.split(r"(\d+)", name)
    return [int(part) if part.isdigit() else part for part in parts]


def with_scores(
    frame: pd.DataFrame, scores: Sequence[Mapping[str, Any]], classes: Sequence[str] = ()
) -> pd.DataFrame:
    """Return a frame with a column per class; by default, of all that have a score."""
    import pandas as pd

    names = classes or sorted(dict.fromkeys(name for row in scores for name in row), key=natural)
    columns = {PREFIX + name: [row.get(name) for row in scores] for name in names}
    added = pd.DataFrame(columns, index=frame.index, dtype=object)
    return pd.concat([frame, added], axis=1)


def with_found(
    frame: pd.DataFrame, scores: Sequence[Mapping[str, Any]], told: Mapping[str, Any]
) -> Rows:
    """Return the rows that have scores, and a remark on the others."""
    kept = [row for row, each in enumerate(scores) if each]
    lost = [row for row, each in enumerate(scores) if not each]
    remark = f"{len(lost):,} failed rows are left out, the first is {lost[0]}" if lost else ""
    rest = frame.iloc[kept].reset_index(drop=True)
    rows = with_scores(rest, [scores[row] for row in kept], [*scores[kept[0]]])
    return Rows(rows, {**told, "values": "scores", "columns": None}, remark)


def label_of(frame: pd.DataFrame, given: Reading, but: Sequence[str | None]) -> str | None:
    """Return the label column: the given one, or the first that is named as one."""
    return given.label if given.label in frame else next(iter(label_columns(frame, but)), None)


def label_columns(frame: pd.DataFrame, but: Sequence[str | None] = ()) -> list[str]:
    """Return the columns that are named as labels, and are not named as predictions."""
    named = [name for name in frame.columns if is_label(name) and not names_predictions(name)]
    return [name for name in named if name not in but]


def with_votes(
    frame: pd.DataFrame, answers: Sequence[Sequence[Any]], label: str | None, given: Reading
) -> Rows:
    """Return a frame with the number of answers by class, which labels or the reading name.

    Raises
    ------
    TableError
        If no classes are given, and an answer is not one of the labels.
    """
    labels = [] if label is None else [*map(as_text, cells_of(frame[label]))]
    classes = given.classes or tuple(sorted({*labels} - {""}, key=natural))
    known = {comparable(name): name for name in classes}
    counts = [dict.fromkeys(classes, 0) for _ in answers]
    odd: list[str] = []
    for row, several in enumerate(answers):
        for answer in filter(None, map(as_text, several)):
            if name := known.get(comparable(answer)):
                counts[row][name] += 1
            else:
                odd.append(answer)
    if odd and given.classes is None:
        raise TableError(
            f"answers {quoted([*dict.fromkeys(odd)], 4)} are no labels ({quoted(classes)}); "
            f"name all classes with --read classes={','.join(classes)}; others are no votes"
        )
    if len(known) < max(2, len(classes)):
        raise TableError(f"must have two different classes, got {show(list(classes))}")
    remark = f"{len(odd):,} answers name no class" if odd else ""
    told = {"values": "votes", "classes": classes, "columns": None}
    return Rows(with_scores(frame, counts, classes), told, remark)
