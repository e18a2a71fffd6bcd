"""What every form of rows is: how it is recognised, and how it becomes a column per class."""

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
        Whether a frame, one row per record of the file, has this form.
    rows : callable
        Returns the rows of a frame of this form, given the reading and the name of the source.
    """

    name: str
    sniff: Callable[[pd.DataFrame, Reading], bool]
    rows: Callable[[pd.DataFrame, Reading, str], Rows]


_NUMPY: Final = re.compile(r"np\.(?:float|int)\d+\(([^()]*)\)")


def parsed(cell: Any) -> Any:
    """Return a cell that is a list or an object, or the text of one, as plain Python."""
    if isinstance(cell, np.ndarray):
        return cell.tolist()
    if not isinstance(cell, str) or cell.strip()[:1] not in ("[", "{"):
        return cell
    text = _NUMPY.sub(r"\1", cell.strip())
    if re.fullmatch(r"\[[\d\s.e+-]*\]", text) and not re.search(r"\d,", text):
        text = re.sub(r"(?<=[\d.])\s+(?=[\d.-])", ",", text)  # as NumPy prints arrays
    text = re.sub(r"(?<=[\[ ,:])(?:nan|null)(?=[\], }])", "None", text)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return cell


def parsed_cells(frame: pd.DataFrame, name: str) -> list[Any]:
    """Return the cells of a column as plain Python, None for missing ones."""
    column = frame[name]
    if not (column.dtype == object or str(column.dtype).startswith(("str", "string", "large"))):
        return cells_of(column)
    return [None if cell == "" else cell for cell in map(parsed, cells_of(column))]


def is_number(cell: Any) -> bool:
    """Whether a cell is a number."""
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def natural(name: str) -> list[Any]:
    """Return a key that sorts numbers in names by their value."""
    parts = re.split(r"(\d+)", name)
    return [int(part) if part.isdigit() else part for part in parts]


def with_scores(
    frame: pd.DataFrame,
    scores: Sequence[Mapping[str, Any]],
    drop: Sequence[str],
    classes: Sequence[str] | None = None,
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Return a frame with a column per class in place of others, and the classes."""
    import pandas as pd

    names = tuple(
        classes or sorted(dict.fromkeys(name for row in scores for name in row), key=natural)
    )
    columns = {PREFIX + name: [row.get(name) for row in scores] for name in names}
    rest = frame.drop(columns=[*drop])
    return pd.concat([rest, pd.DataFrame(columns, index=frame.index, dtype=object)], axis=1), names


def label_columns(frame: pd.DataFrame, but: Sequence[str] = ()) -> list[str]:
    """Return the columns that are named as labels, and are not named as predictions."""
    named = [n for n in map(str, frame.columns) if is_label(n) and not names_predictions(n)]
    return [name for name in named if name not in but]


def as_votes(
    answers: Sequence[Sequence[Any]],
    labels: Sequence[Any],
    given: Sequence[str] | None,
    source: str,
    form: str,
) -> tuple[list[dict[str, int]], tuple[str, ...], str]:
    """Return the numbers of answers by class of every row, the classes, and a remark.

    Raises
    ------
    TableError
        If no classes are given, and an answer is not one of the labels.
    """
    texts = [as_text(each) for each in labels]
    classes = tuple(given or sorted({text for text in texts if text}, key=natural))
    known = {comparable(name): name for name in classes}
    counts = [dict.fromkeys(classes, 0) for _ in answers]
    lost, odd = 0, dict[str, None]()
    for row, several in enumerate(answers):
        for answer in several:
            name = known.get(comparable(answer))
            if name is not None:
                counts[row][name] += 1
            elif as_text(answer):
                odd.setdefault(as_text(answer))
                lost += 1
    if odd and given is None:
        found = [*dict.fromkeys([*classes, *odd])]
        raise TableError(
            f"{source}: {form}: answers {quoted([*odd], 4)} are none of the labels "
            f"{quoted(classes, 4)}; specify the classes with --read classes="
            f"{','.join(found[:12])} (other answers are no votes)"
        )
    if len(known) < max(2, len(classes)):
        raise TableError(f"{source}: {form}: must have two classes, got {show(list(classes))}")
    return counts, classes, f"{lost:,} answers name no class" if lost else ""
