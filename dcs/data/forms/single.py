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

_SCORE: Final = re.compile(
    r"p|probs?|proba|probability|score|confidence|conf|certainty"
    r"|(p|prob|proba|probability|score)[ _:.-](?P<after>.+)|(?P<before>.+)"
    r"[ _:.-](p|prob|proba|probability|score)"
    r"|y[ _](score|prob|proba)",
    re.I,
)


def _columns(frame: pd.DataFrame, given: Reading) -> tuple[str, str | None, str | None] | None:
    """Return the columns of the values, of a prediction they are the confidence of, of labels."""
    chosen = given.columns if given.columns and len(given.columns) == 1 else None
    scores = [n for n in frame.columns if (n in chosen if chosen else _SCORE.fullmatch(n))]
    scores = [n for n in scores if to_number(frame[n]).plausible]
    if len(scores) != 1:
        return None
    numbers = to_number(frame[scores[0]]).values
    if not ((numbers >= 0.0) & (numbers <= 1.0) | np.isnan(numbers)).all():
        return None
    predicted = [n for n in frame.columns if names_predictions(n) and n not in scores]
    labels = label_columns(frame, [*scores, *predicted])
    truth = given.label if given.label in frame else next(iter(labels), None)
    if truth is None and predicted and "label" in frame:
        truth = "label"
    if given.label is None and len(labels) > 1 and "label" in labels and not predicted:
        # Of a pipeline that returns the first label only: {"label": ..., "score": ...}.
        predicted, truth = ["label"], next(n for n in labels if n != "label")
    classes = _classes(frame, given, [*predicted[:1], *([truth] if truth else [])])
    if len(classes) != 2 and not predicted:
        return None
    return scores[0], next(iter(predicted), None), truth


def _classes(frame: pd.DataFrame, given: Reading, columns: list[str]) -> tuple[str, ...]:
    """Return the given classes, or those that columns name, in order."""
    if given.classes:
        return given.classes
    texts = {text: None for name in columns for text in map(as_text, cells_of(frame[name]))}
    return tuple(sorted((text for text in texts if text), key=natural))


def _rows(frame: pd.DataFrame, given: Reading, source: str) -> Rows:
    score, predicted, truth = _columns(frame, given) or ("", None, None)
    values = to_number(frame[score]).values
    columns = [name for name in (predicted, truth) if name is not None]
    classes = _classes(frame, given, columns)
    if missing := [k for k, value in enumerate(values) if value != value]:
        raise TableError(
            f"{source}: row {missing[0]}: column {show(score)} is empty; drop the row"
        )
    if len(classes) != 2:
        raise TableError(
            f"{source}: column {show(score)} is the confidence of the prediction "
            f"{show(predicted)}, one of {len(classes)} classes {quoted(classes, 4)}: the "
            "probabilities of the others are unknown; give a column per class"
        )
    if predicted is not None:
        keys = [comparable(name) for name in classes]
        cells = [comparable(cell) for cell in cells_of(frame[predicted])]
        if odd := [k for k, cell in enumerate(cells) if cell not in keys]:
            raise TableError(
                f"{source}: row {odd[0]}: prediction is {show(frame[predicted].iloc[odd[0]])}; "
                f"must be one of {quoted(classes)}"
            )
        second = np.array([cell == keys[1] for cell in cells])
        values = np.where(second, values, 1.0 - values)
        remark = f"{show(score)} is the confidence of {show(predicted)}"
    else:
        positive = _positive(score, classes, given, source)
        if positive == 0:
            values = 1.0 - values
        if given.columns is None and given.classes is None:
            _check(values, frame[truth] if truth else None, classes, score, source)
        remark = f"{show(score)} is the probability of {show(classes[positive])}"
    scores = [dict(zip(classes, (1.0 - value, value), strict=True)) for value in values.tolist()]
    table, _ = with_scores(frame, scores, [score], classes)
    if predicted == "label":
        table = table.rename(columns={"label": "predicted"})
    told = {"columns": None, "classes": classes}
    return Rows(table, told | ({"label": truth} if truth and predicted else {}), remark)


def _positive(score: str, classes: tuple[str, ...], given: Reading, source: str) -> int:
    """Return which class a column is the probability of."""
    if given.classes:
        return 1
    match = _SCORE.fullmatch(score)
    named = match and (match["after"] or match["before"])
    keys = [comparable(name) for name in classes]
    if named and comparable(named) in keys:
        return keys.index(comparable(named))
    if keys in ([comparable(0), comparable(1)], [comparable(-1), comparable(1)]):
        return 1
    raise TableError(
        f"{source}: column {show(score)} is the probability of one of {quoted(classes)}; specify "
        f"which by its place, the second: --read classes={','.join(classes)} or "
        f"classes={','.join(classes[::-1])}"
    )


def _check(
    values: np.ndarray, labels: pd.Series | None, classes: tuple[str, ...], score: str, source: str
) -> None:
    """Refuse values that seem to be the confidence of a prediction, or of the other class."""
    if len(values) >= TELLING and values.min() >= 0.5:
        raise TableError(
            f"{source}: no value of column {show(score)} is below 0.5: it may be the confidence "
            "of a prediction; add a column predicted with the class, or specify --read "
            f"classes={','.join(classes)} if it is the probability of {show(classes[1])}"
        )
    known = [] if labels is None else [*map(comparable, cells_of(labels))]
    second = np.array([cell == comparable(classes[1]) for cell in known], dtype=bool)
    first = np.array([cell == comparable(classes[0]) for cell in known], dtype=bool)
    if first.sum() >= TELLING and second.sum() >= TELLING:
        from scipy.stats import mannwhitneyu

        if mannwhitneyu(values[second], values[first], alternative="less").pvalue < 1e-3:
            raise TableError(
                f"{source}: column {show(score)} is lower where the label is {show(classes[1])}: "
                f"of which class is it the probability; specify it as the second: --read "
                f"classes={','.join(classes)} or classes={','.join(classes[::-1])}"
            )


def _sniff(frame: pd.DataFrame, given: Reading) -> bool:
    plain = given.model_copy(update={"columns": None})
    return _columns(frame, given) is not None and not has_class_columns(frame, plain)


FORM = Form("one column for two classes", _sniff, _rows)
