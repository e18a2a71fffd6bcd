"""Responses of model servers: chats with log-probabilities, and the endpoint ``/classify``."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dcs.data.columns import Reading, cells_of
from dcs.data.forms.base import Form, Rows, natural, parsed, parsed_cells, with_found, with_scores
from dcs.data.labels import as_text, fold
from dcs.errors import TableError, quoted

if TYPE_CHECKING:
    import pandas as pd


#: The bytes that byte-level tokenizers write as each character: a space is ``Ġ``.
_PRINTED = (*range(33, 127), *range(161, 173), *range(174, 256))
_ALPHABET = {chr(byte): byte for byte in _PRINTED} | {
    chr(256 + k): byte for k, byte in enumerate(sorted({*range(256)} - {*_PRINTED}))
}

#: A token that is part of a character: ``<0xE6>``, or ``bytes:\\xe6\\x82`` in OpenAI's API.
_BYTES = re.compile(
    r"<0x(?P<one>[0-9A-F]{2})>|(?:bytes:)?(?P<blank> ?)(?P<more>(\\x[0-9a-f]{2})+)"
)


def texts_of(tokens: Sequence[str], label_words: Sequence[str]) -> list[str]:
    """Return the texts of the tokens at one position of an answer.

    Tokens may be written as in the vocabulary (``▁Yes``, ``ĠYes``, ``<0x59>``).
    """
    texts = [_unescaped(found) if (found := _BYTES.fullmatch(t)) else t for t in tokens]
    # A mark in a label word is a letter of it.
    if not any("▁" in word for word in label_words):
        texts = [text.replace("▁", " ") for text in texts]
    decoded = [_from_pieces(text) for text in texts]
    # Of bytes that spell no letter, such as those of "é", none is printable.
    spelled = [not text.isascii() and text.isprintable() for text in decoded]
    marked = any(
        text[:1] == "Ġ" or (letters and text != piece)
        for text, piece, letters in zip(texts, decoded, spelled, strict=True)
    )
    plain = any(text[:1].isspace() for text in texts) or any("Ġ" in word for word in label_words)
    return decoded if marked and not plain else texts


def _unescaped(match: re.Match[str]) -> str:
    """Return a token of bytes as text."""
    digits = match["one"] or match["more"].replace("\\x", "")
    return (match["blank"] or "") + bytes.fromhex(digits).decode("utf-8", "surrogateescape")


def _from_pieces(text: str) -> str:
    """Return the text of a token of a byte-level vocabulary; other texts are unchanged."""
    try:
        return bytes(_ALPHABET[character] for character in text).decode("utf-8", "surrogateescape")
    except KeyError:
        return text


def plain_of(classes: Sequence[str]) -> Callable[[Any], str]:
    """Return how tokens and classes are compared: in any case, if classes stay different."""
    return fold if len({*map(fold, classes)}) == len(classes) else as_text


def likely_tokens(response: Any, classes: Sequence[str]) -> list[tuple[str, dict[str, float]]]:
    """Return each token of an answer with the probabilities of those that were likely there.

    Probabilities of tokens that are the same text are summed. An answer that failed, or
    without log-probabilities, has no tokens.
    """
    found, plain = [], plain_of(classes)
    try:
        for place in _places(response):
            top = place["top_logprobs"]
            texts = texts_of([place["token"], *(each["token"] for each in top)], classes)
            masses: dict[str, float] = {}
            for text, each in zip(map(plain, texts[1:]), top, strict=True):
                masses[text] = masses.get(text, 0.0) + math.exp(each["logprob"])
            found.append((plain(texts[0]), masses))
    except (LookupError, TypeError, ValueError, OverflowError):
        return []
    return found


def _places(response: Any) -> list[Any]:
    """Return the tokens of the first answer in a response, wherever its API has them."""
    inner: list[Any] = response if isinstance(response, list) else []
    if isinstance(response, Mapping):
        inner, top = [*response.values()], response.get("top_logprobs")
        if isinstance(top, list) and isinstance(response.get("tokens"), list):  # completions
            likely = ([{"token": t, "logprob": v} for t, v in each.items()] for each in top)
            pairs = zip(response["tokens"], likely, strict=True)
            return [{"token": token, "top_logprobs": each} for token, each in pairs]
    elif inner and all(isinstance(each, Mapping) and "top_logprobs" in each for each in inner):
        return inner
    return next(filter(None, map(_places, inner)), [])


def class_masses(masses: Mapping[str, float], classes: Sequence[str]) -> dict[str, float]:
    """Return the probability of each class as a token; nothing if all are zero."""
    plain = plain_of(classes)
    found = {name: masses.get(plain(name), 0.0) for name in classes}
    return found if sum(found.values()) > 0.0 else {}


_KEYS: Final = ("response", "body", "choices", "output")


def _logged(frame: pd.DataFrame) -> str | None:
    """Return the column of responses, those with log-probabilities first."""
    there = [key for key in _KEYS if key in frame]
    for sign in ("logprob", "choices"):
        for key in there:
            if any(sign in str(cell) for cell in frame[key][:20]):
                return key
    return None


def _chat_rows(frame: pd.DataFrame, given: Reading) -> Rows:
    name, classes = _logged(frame), given.classes or ()
    answers = [likely_tokens(parsed(cell), classes) for cell in cells_of(frame[name])]
    # Some servers answer with a blank or a quotation mark first.
    first = [
        next((masses for token, masses in answer if re.search(r"\w", token)), {})
        for answer in answers
    ]
    if not any(first):
        raise TableError(
            "no log-probabilities; request them with logprobs=true and top_logprobs=20"
        )
    scores = [class_masses(masses, classes) for masses in first]
    if not any(scores):
        top = Counter(max(each, key=lambda token: each[token]) for each in first if each)
        likely = sorted((text for text, _ in top.most_common(12)), key=natural)
        raise TableError(
            f"the most likely tokens are {quoted(likely, 12)}; name those that are classes with "
            f"--read classes={','.join(likely)}"
        )
    rest = frame.drop(columns=[n for n in (*_KEYS, "error") if n in frame])
    return with_found(rest, scores, {"id": "custom_id"} if "custom_id" in frame else {})


CHAT = Form("answers of a chat model", lambda frame, given: _logged(frame) is not None, _chat_rows)


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
            "label is not the most probable class of every row; if it holds the labels, add "
            "--read label=label --read classes=A,B,..."
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
    lambda frame, given: (
        {"label", "probs", "num_classes"} <= {*frame.columns}
        and given.label != "label"
        and bool(frame["label"].notna().any())
    ),
    _classify_rows,
)
