"""Two classes in one column: the probability of one of them, or a prediction's confidence."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from dcs.data.columns import Reading, cells_of, has_class_columns, names_predictions, to_number
from dcs.data.forms.base import Form, Rows, label_columns, natural, with_scores
from dcs.data.labels import TELLING, as_text, comparable
from dcs.errors import TableError, quoted, show

if TYPE_CHECKING:
    import pandas as pd

_WORD: Final = "p|probs?|proba|probability|score|confidence|conf"
_BEFORE: Final = re.compile(rf"(?:{_WORD})[ _:.-](.+)", re.I)
_AFTER: Final = re.compile(rf"(.+)[ _:.-](?:{_WORD})", re.I)
_SCORE: Final = re.compile(rf"{_WORD}|{_BEFORE.pattern}|{_AFTER.pattern}", re.I)


def _columns(frame: pd.DataFrame, given: Reading) -> tuple[str, str | None, str | None] | None:
    """Return the columns of the values, of a prediction they are the confidence of, of labels."""
    chosen = given.columns if given.columns and len(given.columns) == 1 else None
    scores = [n for n in frame.columns if (n in chosen if chosen else _SCORE.fullmatch(n))]
    if len(scores) != 1 or not to_number(frame[scores[0]]).plausible:
        return None
    guesses = [n for n in frame.columns if names_predictions(n) and n not in scores]
    labels = [given.label] if given.label in frame else label_columns(frame, scores)
    if "label" in labels and len(labels) > 1 and not guesses:
        # Of a pipeline that returns the first label only: {"label": ..., "score": ...}.
        guesses, labels = ["label"], [name for name in labels if name != "label"]
    guess, label = next(iter(guesses), None), next(iter(labels), None)
    two = len(_classes(frame, given, guess, label)) == 2
    return (scores[0], guess, label) if two or guess else None


def _classes(frame: pd.DataFrame, given: Reading, *columns: str | None) -> tuple[str, ...]:
    """Return the given classes, or those that columns name, in order."""
    texts = {as_text(cell) for name in columns if name for cell in cells_of(frame[name])}
    return given.classes or tuple(sorted(texts - {""}, key=natural))


def _rows(frame: pd.DataFrame, given: Reading) -> Rows:
    score, guess, label = _columns(frame, given) or ("", None, None)
    values, classes = to_number(frame[score]).values, _classes(frame, given, guess, label)
    if wrong := [k for k, value in enumerate(values) if not 0.0 <= value <= 1.0]:
        shown = show(frame[score].iloc[wrong[0]])
        raise TableError(f"row {wrong[0]}: {score} is {shown}; must be a probability")
    if len(classes) != 2:
        raise TableError(
            f"{score} is the confidence of {guess}, one of {quoted(classes, 4)}: values "
            "of the other classes are unknown; give a column per class"
        )
    if comparable(classes[0]) == comparable(classes[1]):
        raise TableError(f"classes {quoted(classes)} differ in case only; rename one")
    second, remark = np.ones(len(values), dtype=bool), ""
    if guess is None:
        place = _place(score, classes, given)
        second[:] = place == 1
        remark = f"{show(score)} is the probability of {show(classes[place])}"
        truth = [] if label is None else [comparable(cell) for cell in cells_of(frame[label])]
        first, other = (
            values[[cell == comparable(c) for cell in truth]] if truth else values[:0]
            for c in classes
        )
        high = first if place == 1 else other
        low = other if place == 1 else first
        lower = min(high.size, low.size) >= TELLING and low.mean() < high.mean()
        if not given.classes and (lower or (len(values) >= TELLING and values.min() >= 0.5)):
            raise TableError(
                f"{score} may be the confidence of a prediction, or of another class: it is never "
                f"below 0.5, or lower for {show(classes[place])}; add the column predicted, or "
                f"{_ways(classes)}"
            )
    else:
        keys = [*map(comparable, classes)]
        cells = [comparable(cell) for cell in cells_of(frame[guess])]
        if odd := [k for k, cell in enumerate(cells) if cell not in keys]:
            raise TableError(f"row {odd[0]}: {guess} must be one of {quoted(classes)}")
        second = np.array([cell == keys[1] for cell in cells])
        remark = f"{show(score)} is the confidence of {show(guess)}"
    values = np.where(second, values, 1.0 - values)
    scores = [dict(zip(classes, (1.0 - value, value), strict=True)) for value in values.tolist()]
    rest = frame.drop(columns=score).rename(
        columns={"label": "predicted"} if guess == "label" else {}
    )
    told = {"columns": None, "classes": classes} | ({"label": label} if label and guess else {})
    return Rows(with_scores(rest, scores, classes), told, remark)


def _ways(classes: tuple[str, ...]) -> str:
    both = (",".join(classes), ",".join(classes[::-1]))
    return (
        f"name the class of the probability as the second: --read classes={both[0]} or "
        f"classes={both[1]}"
    )


def _place(score: str, classes: tuple[str, ...], given: Reading) -> int:
    """Return which class a column is the probability of."""
    keys = [*map(comparable, classes)]
    found = [pattern.fullmatch(score) for pattern in (_BEFORE, _AFTER)]
    named = {keys.index(name) for m in found if m and (name := comparable(m[1])) in keys}
    # The classes of earlier rows are given too, so that the name of the column goes first.
    if len(named) != 1 and (given.classes or (not named and keys in ([0, 1], [-1, 1]))):
        return 1
    if len(named) != 1:
        raise TableError(
            f"{score} is the probability of one of {quoted(classes)}; {_ways(classes)}"
        )
    return named.pop()


def _sniff(frame: pd.DataFrame, given: Reading) -> bool:
    plain = given.model_copy(update={"columns": None})
    return _columns(frame, given) is not None and not has_class_columns(frame, plain)


FORM = Form("one column for two classes", _sniff, _rows)
