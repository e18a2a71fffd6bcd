"""Which tokens stand for a label word at the answer slot, and what a row of logits says of them.

The class probability of the paper is read at one position: the next-token softmax after the
answer prefix. A label word of several tokens takes the mean of their probabilities at that same
position; then the classes are normalised (paper, section on in-context learning).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from dcs.errors import ScoringError

__all__ = ["class_probabilities", "label_token_ids"]


def label_token_ids(
    prompt: str,
    label_words: Sequence[str],
    *,
    encode: Callable[[str], list[int]],
    describe: Callable[[int], str],
) -> tuple[tuple[int, ...], ...]:
    """Find the tokens of every label word as they follow a prompt.

    Parameters
    ----------
    prompt : str
        A prompt, which ends where the label word is to follow.
    label_words : sequence of str
        The answer of each class.
    encode : callable
        Gives the token ids of a text, with the special tokens of a prompt.
    describe : callable
        Gives the text of a token, for messages.

    Returns
    -------
    tuple of tuples of int
        The different token ids of each label word, the first one first.

    Raises
    ------
    ScoringError
        If two label words begin with the same token, or have the same tokens: the model's
        answer to one is then its answer to the other.
    """
    base = encode(prompt)
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
        found.append(tuple(dict.fromkeys(ids)))
    _refuse_collisions(label_words, found, describe)
    return tuple(found)


def _refuse_collisions(
    label_words: Sequence[str],
    token_ids: Sequence[tuple[int, ...]],
    describe: Callable[[int], str],
) -> None:
    for later, ids in enumerate(token_ids):
        for earlier in range(later):
            # Pieces further on may be shared: at the answer slot they carry next to nothing.
            if ids[0] == token_ids[earlier][0] or set(ids) == set(token_ids[earlier]):
                first, second = (
                    f"{label_words[i]!r} ({', '.join(repr(describe(t)) for t in token_ids[i])})"
                    for i in (earlier, later)
                )
                raise ScoringError(
                    f"label words {first} and {second} have colliding tokens in this model's "
                    "tokenizer, so it cannot tell them apart; choose words with different "
                    "first tokens"
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
    columns = {token: column for column, token in enumerate(sorted({*sum(token_ids, ())}))}
    values = np.asarray(logits, dtype=np.float64)
    if not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0]
        raise ScoringError(
            f"query {row}: the model gives {values[row, column]} for a label token; "
            "try another precision or device"
        )
    # The softmax's own normaliser is one factor per row, which the normalisation over classes
    # cancels: subtracting the largest logit is enough, and cannot underflow for the winner.
    weights = np.exp(values - values.max(axis=1, keepdims=True))
    means = np.stack(
        [weights[:, [columns[t] for t in ids]].mean(axis=1) for ids in token_ids], axis=1
    )
    return np.asarray(means / means.sum(axis=1, keepdims=True), dtype=np.float64)
