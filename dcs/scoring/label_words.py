"""Which tokens stand for a label word at the answer slot, and what a row of logits says of them.

The class probability of the paper is read at one position: the next-token softmax after the
answer prefix. A label word of several tokens takes the mean of their probabilities at that same
position, as the published code does; then the classes are normalised. Two other rules can be
chosen: the first token alone, and the joint probability of the whole word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dcs.data.checks import softmax
from dcs.errors import ScoringError

LabelRule = Literal["auto", "mean", "first", "joint"]
"""How a label word of several tokens is read: the mean of their probabilities at the answer slot
(as published), its first token alone, or the probability of the whole word. ``auto`` is the mean
where the words' first tokens differ, and the whole word where they do not."""


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """What is needed of a model's tokenizer.

    Attributes
    ----------
    encode : callable
        Gives the token ids of a text, with the special tokens of a prompt.
    describe : callable
        Gives the text of a token, for messages.
    """

    encode: Callable[[str], list[int]]
    describe: Callable[[int], str]


def label_token_ids(
    tokenizer: Tokenizer, prompt: str, label_words: Sequence[str], rule: LabelRule
) -> tuple[tuple[int, ...], ...]:
    """Find the tokens of every label word as they follow a prompt.

    Parameters
    ----------
    tokenizer : Tokenizer
        That of the model.
    prompt : str
        A prompt, which ends where the label word is to follow.
    label_words : sequence of str
        The answer of each class.
    rule : {"mean", "first", "joint"}
        How the tokens will be read.

    Returns
    -------
    tuple of tuples of int
        The token ids of each label word, the first one first: the different ones (mean), the
        first alone, or all in order (joint).

    Raises
    ------
    ScoringError
        If two label words begin with the same token, or have the same tokens: the model's
        answer to one is then its answer to the other. By the rule ``joint``, if the tokens of
        one begin those of another, which could then never win.
    """
    encode, base = tokenizer.encode, tokenizer.encode(prompt)
    space = "" if prompt[-1:].isspace() else " "
    found = []
    for word in label_words:
        joined = encode(f"{prompt}{space}{word.strip()}")
        if joined[: len(base)] == base and len(joined) > len(base):
            ids = joined[len(base) :]
        else:
            # The tokenizer merges across the boundary: take the word by itself.
            ids = [i for i in encode(f"{space}{word.strip()}") if i not in encode("")]
        if not ids:
            raise ScoringError(
                f"label word {word!r} has no token in this model's tokenizer; choose another word"
            )
        found.append(tuple(ids) if rule == "joint" else tuple(dict.fromkeys(ids)))
    _refuse_collisions(label_words, found, tokenizer, rule)
    return tuple(ids[:1] for ids in found) if rule == "first" else tuple(found)


def read_label_words(
    tokenizer: Tokenizer, prompt: str, label_words: Sequence[str], rule: LabelRule
) -> tuple[tuple[tuple[int, ...], ...], LabelRule]:
    """Find the tokens of the label words as :func:`label_token_ids` does, and settle ``auto``.

    Returns
    -------
    token ids, rule
        As :func:`label_token_ids`, and the rule that was followed.
    """
    if rule == "auto":
        try:
            return label_token_ids(tokenizer, prompt, label_words, "mean"), "mean"
        except ScoringError:
            rule = "joint"
    return label_token_ids(tokenizer, prompt, label_words, rule), rule


def _refuse_collisions(
    label_words: Sequence[str],
    token_ids: Sequence[tuple[int, ...]],
    tokenizer: Tokenizer,
    rule: LabelRule,
) -> None:
    words = zip(label_words, token_ids, strict=True)
    for (word, ids), (other_word, other) in combinations(words, 2):
        # Pieces further on may be shared: at the answer slot they carry next to nothing.
        collide = ids[0] == other[0] or (rule == "mean" and set(ids) == set(other))
        if rule == "joint":
            collide = all(a == b for a, b in zip(ids, other, strict=False))
        if collide:
            first, second = (
                f"{name!r} ({', '.join(repr(tokenizer.describe(token)) for token in tokens)})"
                for name, tokens in ((word, ids), (other_word, other))
            )
            raise ScoringError(
                f"label words {first} and {second} have colliding tokens in this model's "
                "tokenizer, so it cannot tell them apart; choose words with different "
                + ("tokens" if rule == "joint" else "first tokens")
            )


def class_probabilities(
    logits: NDArray[np.floating], token_ids: Sequence[tuple[int, ...]]
) -> NDArray[np.float64]:
    """Turn next-token logits (or log-probabilities) into class probabilities.

    Parameters
    ----------
    logits : float array [M, K]
        Values at the answer slot of the tokens ``sorted(set of all token ids)``, in that order.
        A constant added to a row changes nothing.
    token_ids : sequence of N tuples of int
        The tokens of each label word.

    Returns
    -------
    float64 array [M, N]
        Mean probability of each label word's tokens, normalised over the classes.

    Raises
    ------
    ScoringError
        If a value is not finite.
    """
    _check_finite(logits)
    columns = {token: column for column, token in enumerate(sorted({*sum(token_ids, ())}))}
    values = np.asarray(logits, dtype=np.float64)
    # The softmax's own normaliser is one factor per row, which the normalisation over classes
    # cancels: subtracting the largest logit is enough, and cannot underflow for the winner.
    weights = np.exp(values - values.max(axis=1, keepdims=True))
    means = np.stack(
        [weights[:, [columns[t] for t in ids]].mean(axis=1) for ids in token_ids], axis=1
    )
    return np.asarray(means / means.sum(axis=1, keepdims=True), dtype=np.float64)


def joint_probabilities(log_joint: NDArray[np.floating]) -> NDArray[np.float64]:
    """Turn the log-probabilities of whole label words [M, N] into class probabilities.

    Raises
    ------
    ScoringError
        If a value is not finite.
    """
    _check_finite(log_joint)
    return softmax(np.asarray(log_joint, dtype=np.float64))


def _check_finite(logits: NDArray[np.floating]) -> None:
    values = np.asarray(logits)
    if not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0]
        raise ScoringError(
            f"query {row}: the model gives {values[row, column]} for a label token; "
            "try another precision or device"
        )
