"""Responses of model servers: chats with log-probabilities, and the endpoint ``/classify``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dcs.data.columns import Reading, cells_of
from dcs.data.forms.base import Form, Rows, natural, parsed, parsed_cells, with_scores
from dcs.data.labels import as_text, fold
from dcs.errors import TableError, quoted

if TYPE_CHECKING:
    import pandas as pd

_KEYS: Final = ("response", "body", "choices")


def plain_of(classes: Sequence[str]) -> Callable[[Any], str]:
    """Return how tokens and classes are compared: in any case, if classes stay different."""
    return fold if len({*map(fold, classes)}) == len(classes) else as_text


def likely_tokens(
    response: Any, plain: Callable[[Any], str]
) -> list[tuple[str, dict[str, float]]]:
    """Return each token of an answer with the probabilities of those that were likely there.

    Probabilities of tokens that are the same text are summed. An answer that failed, or
    without log-probabilities, has no tokens.
    """
    for key in _KEYS:
        response = response.get(key, response) if isinstance(response, Mapping) else response
    found = []
    try:
        for place in response[0]["logprobs"]["content"]:
            masses: dict[str, float] = {}
            for each in place["top_logprobs"]:
                text, mass = plain(each["token"]), math.exp(each["logprob"])
                masses[text] = masses.get(text, 0.0) + mass
            found.append((plain(place["token"]), masses))
    except (LookupError, TypeError, ValueError, OverflowError):
        return []
    return found


def class_masses(masses: Mapping[str, float], classes: Sequence[str]) -> dict[str, float]:
    """Return the probability of each class as a token; nothing if all are zero."""
    plain = plain_of(classes)
    found = {name: masses.get(plain(name), 0.0) for name in classes}
    return found if sum(found.values()) > 0.0 else {}


def _is_chat(frame: pd.DataFrame, given: Reading) -> bool:
    return (
        any("choices" in str(cell) for key in _KEYS if key in frame for cell in frame[key][:20])
        or "choices" in frame
        and "object" in frame
    )


def _chat_rows(frame: pd.DataFrame, given: Reading) -> Rows:
    name = next(key for key in _KEYS if key in frame)
    plain = plain_of(given.classes or ())
    answers = [likely_tokens({name: parsed(cell)}, plain) for cell in cells_of(frame[name])]
    # Some servers answer with a blank first.
    first = [next((masses for token, masses in answer if token), {}) for answer in answers]
    if not any(first):
        raise TableError(
            "no log-probabilities; request them with logprobs=true and top_logprobs=20"
        )
    top = Counter(max(each, key=lambda token: each[token]) for each in first if each)
    likely = sorted((text for text, _ in top.most_common(12)), key=natural)
    scores = [class_masses(masses, given.classes or ()) for masses in first]
    kept = [row for row, each in enumerate(scores) if each]
    if not kept:
        raise TableError(
            f"the most likely tokens are {quoted(likely, 12)}; name those that are classes with "
            f"--read classes={','.join(likely)}"
        )
    lost = [row for row, each in enumerate(scores) if not each]
    remark = f"{len(lost):,} failed rows are left out, the first is {lost[0]}" if lost else ""
    drop = [n for n in ("response", "error", "choices", "body") if n in frame]
    rest = frame.iloc[kept].reset_index(drop=True).drop(columns=drop)
    told = {"values": "scores", "columns": None}
    if "custom_id" in frame:
        told["id"] = "custom_id"
    return Rows(
        with_scores(rest, [scores[row] for row in kept], given.classes or ()), told, remark
    )


CHAT = Form("answers of a chat model", _is_chat, _chat_rows)


def _classify_rows(frame: pd.DataFrame, given: Reading) -> Rows:
    values = [cell if isinstance(cell, list) else [] for cell in parsed_cells(frame, "probs")]
    size = max(map(len, values))
    if wrong := [k for k, row in enumerate(values) if len(row) != size or None in row]:
        raise TableError(f"row {wrong[0]}: {len(values[wrong[0]])} probs, others have {size}")
    top = np.array(values, dtype=np.float64).argmax(axis=1).tolist()
    labels = [*map(as_text, frame["label"])]
    predicted = dict(zip(top, labels, strict=True))
    if len({*zip(top, labels, strict=True)}) > len({*predicted.values()}):
        raise TableError(
            "label is not the most probable class of every row; rename the column to gold if it "
            "holds the labels, and name the classes with --read classes=A,B,..."
        )
    classes = given.classes or tuple(predicted.get(k, "") for k in range(size))
    if "" in classes or len(classes) != size:
        raise TableError(
            f"only {quoted([*predicted.values()])} of {size} classes are predicted; name all in "
            "the order of the model with --read classes=A,B,..."
        )
    scores = [dict(zip(classes, row, strict=True)) for row in values]
    rest = frame.drop(columns="probs").rename(columns={"label": "predicted"})
    return Rows(with_scores(rest, scores, classes), {}, "label is the prediction")


CLASSIFY = Form(
    "rows of /classify of vLLM or SGLang",
    lambda frame, given: {"label", "probs", "num_classes"} <= {*frame.columns},
    _classify_rows,
)
