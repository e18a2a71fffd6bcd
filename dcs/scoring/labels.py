"""Label words: their tokens after a prompt, and class probabilities from those of tokens.

The class probability of the paper is read at one position: the next-token softmax after the answer
prefix. A label word of several tokens takes the mean of their probabilities at that same position,
as in the published code; the classes are then normalised. Two other rules are available: the first
token alone, and the joint probability of the whole word. Where a server returns only the most
probable tokens, the labels are found among them; :mod:`dcs.data.answers` reads sampled texts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dcs.data.forms.logs import texts_of
from dcs.data.labels import plain_of
from dcs.errors import ScoringError, quoted
from dcs.scoring.chat import Tokenizer

#: How a label word of several tokens is scored: the mean of their probabilities at the answer
#: position (as published), the first token alone, or the probability of the whole word. ``auto``
#: uses the mean if the first token of each word is in no other, and the whole word otherwise.
LabelRule = Literal["auto", "mean", "first", "joint"]


def read_label_words(
    tokenizer: Tokenizer, prompt: str, label_words: Sequence[str], rule: LabelRule
) -> tuple[tuple[tuple[int, ...], ...], LabelRule]:
    """Return the tokens of each label word as they follow a prompt, and resolve ``auto``.

    Parameters
    ----------
    tokenizer : Tokenizer
        The tokenizer of the model.
    prompt : str
        A prompt, up to where the label word follows.
    label_words : sequence of str
        The answer of each class, with the space between it and the prompt, if any.
    rule : {"auto", "mean", "first", "joint"}
        How the tokens are scored.

    Returns
    -------
    token_ids : tuple of tuples of int
        The token ids of each label word in order: the distinct ones (mean), the first alone
        (first), or all of them (joint).
    rule : {"mean", "first", "joint"}
        The rule that was applied.

    Raises
    ------
    ScoringError
        If two label words begin with the same token, so that the model's answers to them cannot
        be distinguished. With the rule ``mean``, if the first token of one word is any of another,
        whose mean would be mostly that of the first. With the rule ``joint``, if the tokens of one
        word are a prefix of those of another, which could then never win.
    """
    if rule == "auto":
        try:
            return read_label_words(tokenizer, prompt, label_words, "mean")
        except ScoringError:
            rule = "joint"
    base, bare, *whole = tokenizer.encode([prompt, "", *(prompt + word for word in label_words)])
    found, number = [], 1 if rule == "first" else None
    for word, joined in zip(label_words, whole, strict=True):
        if joined[: len(base)] == base and len(joined) > len(base):
            tokens = joined[len(base) :]
        else:
            # The tokenizer merges across the boundary: encode the word alone.
            tokens = [token for token in tokenizer.encode([word])[0] if token not in bare]
        if not tokens:
            raise ScoringError(
                f"label word {word.strip()!r} has no token in the model's tokenizer; choose "
                "another word"
            )
        found.append(tuple(tokens if rule == "joint" else dict.fromkeys(tokens[:number])))
    for pair in combinations(zip(label_words, found, strict=True), 2):
        (_, ids), (_, other) = pair
        if _collide(ids, other, rule):
            words = " and ".join(
                f"{word.strip()!r} ({', '.join(map(repr, map(tokenizer.describe, tokens)))})"
                for word, tokens in pair
            )
            raise ScoringError(
                f"label words {words} have colliding tokens and cannot be distinguished by this "
                "model; choose words with different first tokens that are in no other word"
            )
    return tuple(found), rule


def _collide(ids: tuple[int, ...], other: tuple[int, ...], rule: LabelRule) -> bool:
    if rule == "joint":
        return all(a == b for a, b in zip(ids, other, strict=False))
    # Other tokens may be shared: their probability at the answer position is negligible.
    return ids[0] in other or other[0] in ids


def class_probabilities(
    logits: NDArray[np.floating], token_ids: Sequence[tuple[int, ...]]
) -> NDArray[np.float64]:
    """Convert next-token logits (or log-probabilities) to class probabilities.

    Parameters
    ----------
    logits : float array [M, K]
        Values of the tokens ``sorted(set of all token ids)`` at the answer position, in that
        order. The result is invariant to a constant added to a row.
    token_ids : sequence of N tuples of int
        The tokens of each label word.

    Returns
    -------
    float64 array [M, N]
        Mean probability of each label word's tokens, normalised over the classes.

        NaN in rows with a value that is NaN or infinite; -inf is a probability of zero, if
        another is not.
    """
    values = np.array(logits, dtype=np.float64)
    # These rows have no softmax.
    wrong = ~(values < np.inf).all(axis=1) | (values == -np.inf).all(axis=1)
    values[wrong] = np.nan
    columns = {token: column for column, token in enumerate(sorted({*sum(token_ids, ())}))}
    # The normaliser of the softmax is one factor per row, which the normalisation over classes
    # cancels. Subtracting the largest logit suffices, and the winner cannot underflow.
    weights = np.exp(values - values.max(axis=1, keepdims=True))
    own = [weights[:, [columns[t] for t in ids]].mean(axis=1) for ids in token_ids]
    means = np.stack(own, axis=1)
    return np.asarray(means / means.sum(axis=1, keepdims=True), dtype=np.float64)


UNUSABLE = "the model returned no finite values for label tokens; try another precision or device"


#: The tokens that a server returned, and their log-probabilities. A text may occur twice.
Shown = Sequence[tuple[str, float]]


def label_masses(shown: Shown, label_words: Sequence[str]) -> NDArray[np.float64]:
    """Return the probability of each label among the most probable tokens.

    A token belongs to the label word that it begins, if it begins no other. Equal texts, and
    variants with other blanks and case, are summed; of beginnings of different length, the most
    probable counts. Tokens may be written as in the vocabulary (``▁Yes``, ``ĠYes``, ``<0x59>``).

    Parameters
    ----------
    shown : sequence of (str, float)
        The returned tokens and their log-probabilities.
    label_words : sequence of str, length N
        The answer of each class.

    Returns
    -------
    float64 array [N]
        0 if no token of the label was returned.

    Raises
    ------
    ScoringError
        If a label word is a prefix of another, so that their tokens would be ambiguous, or if
        tokens that begin several words have more probability than the labels.
    """
    plain = plain_of(label_words)
    texts = texts_of([token for token, _ in shown], label_words)
    variants: Counter[bytes] = Counter()
    for text, (_, value) in zip(texts, shown, strict=True):
        variants[_encoded(plain(text))] += math.exp(value)  # type: ignore[assignment]
    spelled = [_encoded(plain(word)) for word in label_words]
    named = sorted(zip(spelled, label_words, strict=True))
    for (start, first), (other, second) in pairwise(named):
        if other.startswith(start):
            raise ScoringError(
                f"label words {first.strip()!r} and {second.strip()!r} collide: one is a prefix "
                "of the other; choose other words"
            )
    masses = np.zeros(len(spelled))
    common: Counter[tuple[int, ...]] = Counter()
    for start, mass in variants.items():
        owners = tuple(k for k, word in enumerate(spelled) if start and word.startswith(start))
        if len(owners) == 1:
            masses[owners[0]] = max(masses[owners[0]], mass)
        elif owners:
            common[owners] += mass
    # Below a hundredth, the model was not about to write a label.
    if common.total() > max(masses.sum(), 0.01):
        names = quoted([label_words[k].strip() for k in common.most_common(1)[0][0]])
        raise ScoringError(f"label words {names} collide: likely tokens begin all; choose others")
    return masses


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
