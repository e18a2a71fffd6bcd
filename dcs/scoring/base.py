"""What engines that read class probabilities off a language model share.

The protocol, what all of them check, and how label words are read. The class probability of the
paper is read at one position: the next-token softmax after the answer prefix. A label word of
several tokens takes the mean of their probabilities at that same position, as the published code
does; then the classes are normalised. Two other rules can be chosen: the first token alone, and
the joint probability of the whole word.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dcs.data.checks import softmax
from dcs.errors import ScoringError

SCORING_VERSION = 1
"""Raised when the engines here read other numbers off the same model: old ones are not reused."""

Progress = Callable[[int], None]
"""Called with the number of queries just finished."""

LabelRule = Literal["auto", "mean", "first", "joint"]
"""How a label word of several tokens is read: the mean of their probabilities at the answer slot
(as published), its first token alone, or the probability of the whole word. ``auto`` is the mean
where the words' first tokens differ, and the whole word where they do not."""


@runtime_checkable
class Scorer(Protocol):
    """A loaded language model that gives the class probabilities of prompts.

    Attributes
    ----------
    name, version : str
        The engine, and the versions of the software that decide its numbers.
    model, revision : str
        The model as it was named, and the exact version of its weights.
    settings : mapping of str to str
        What else decides the numbers: precision, how label words are read.

    A class may also say: ``packages``, names of the installed packages whose versions decide its
    numbers; ``served``, that a server has its models, so that it is given a name and not a
    :class:`~dcs.scoring.ModelReference`; and have a method ``report()`` that gives lines to be
    printed at the end.
    """

    name: str
    version: str
    model: str
    revision: str
    settings: Mapping[str, str]

    def score(
        self,
        prefix: str,
        queries: Sequence[str],
        label_words: Sequence[str],
        *,
        progress: Progress | None = None,
    ) -> NDArray[np.float64]:
        """Return the class probabilities of the prompts ``prefix + query``.

        Parameters
        ----------
        prefix : str
            What all prompts begin with: instruction and demonstrations. May be empty.
        queries : sequence of str, length M
            The rest of each prompt, which ends where the label word is to follow.
        label_words : sequence of str, length N
            The answer of each class, without its leading space.
        progress : callable, optional
            Called with the number of queries just finished.

        Returns
        -------
        float64 array [M, N]
            Rows sum to 1. Row i does not depend on the other queries (to 1e-5).

        Raises
        ------
        ScoringError
            If label words cannot be told apart, a prompt is too long, or the model gives
            values that are not finite.
        """

    def close(self) -> None:
        """Free the model's memory. The scorer cannot be used afterwards."""


class Engine(ABC):
    """A scorer of this package: checks what all of them check, and can be closed once."""

    model: str
    tokens_read = 0
    """Tokens of all prompts so far, where the engine knows them."""
    _closed = False

    def score(
        self,
        prefix: str,
        queries: Sequence[str],
        label_words: Sequence[str],
        *,
        progress: Progress | None = None,
    ) -> NDArray[np.float64]:
        """Return the class probabilities of the prompts ``prefix + query``.

        See :meth:`dcs.scoring.Scorer.score`.
        """
        if self._closed:
            raise ScoringError(f"model {self.model!r} has been closed; load it again")
        if len(queries) == 0:
            return np.zeros((0, len(label_words)))
        prompts = [prefix + query for query in queries]
        return self._score(prompts, label_words, progress or (lambda count: None))

    def close(self) -> None:
        """Free the model's memory. The scorer cannot be used afterwards."""
        if not self._closed:
            self._closed = True
            self._free()

    @abstractmethod
    def _score(
        self, prompts: list[str], label_words: Sequence[str], progress: Progress
    ) -> NDArray[np.float64]:
        """Score one prompt or more."""

    def _free(self) -> None:  # noqa: B027
        """Let go of the model, where one is held."""


class TokenEngine(Engine):
    """An engine that runs a model here, and so works on tokens."""

    _tokenizer: Any
    _label_rule: LabelRule
    _limit: int | None
    """Most tokens of a prompt and what follows it."""

    def _score(
        self, prompts: list[str], label_words: Sequence[str], progress: Progress
    ) -> NDArray[np.float64]:
        tokenizer = Tokenizer(
            lambda text: self._encode([text])[0],
            lambda token: str(self._tokenizer.decode([token])),
        )
        token_ids, rule = read_label_words(tokenizer, prompts[0], label_words, self._label_rule)
        # Tokenised whole, so that the tokens do not depend on where prefix and query meet.
        tokens = self._encode(prompts)
        self.tokens_read += sum(map(len, tokens))
        # Of a word that is read whole, all tokens but the last are run too.
        self._check_lengths(tokens, max(map(len, token_ids)) - 1 if rule == "joint" else 0)
        if rule == "joint":
            return softmax(_finite(self._word_scores(tokens, token_ids, progress)))
        wanted = sorted({*sum(token_ids, ())})
        return class_probabilities(self._next_scores(tokens, wanted, progress), token_ids)

    def _check_lengths(self, tokens: list[list[int]], word: int) -> None:
        for row, ids in enumerate(tokens):
            if not ids:
                raise ScoringError(f"query {row}: its prompt is empty")
            if self._limit is not None and len(ids) + word > self._limit:
                more = f", and {word} more with a label word" if word else ""
                raise ScoringError(
                    f"query {row}: its prompt has {len(ids)} tokens{more}; model {self.model!r} "
                    f"reads at most {self._limit}; use fewer shots or shorter texts"
                )

    def _encode(self, texts: list[str]) -> list[list[int]]:
        """Return the token ids of texts, each with one start token if the model wants it."""
        ids: list[list[int]] = self._tokenizer(texts, verbose=False)["input_ids"]
        return ids

    @abstractmethod
    def _next_scores(
        self, prompts: list[list[int]], wanted: list[int], progress: Progress
    ) -> NDArray[np.float64]:
        """Return logits of some tokens after each prompt [M, K], up to a constant per row."""

    @abstractmethod
    def _word_scores(
        self, prompts: list[list[int]], words: Sequence[tuple[int, ...]], progress: Progress
    ) -> NDArray[np.float64]:
        """Return the log-probabilities of whole words after each prompt [M, N]."""


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


def read_label_words(
    tokenizer: Tokenizer, prompt: str, label_words: Sequence[str], rule: LabelRule
) -> tuple[tuple[tuple[int, ...], ...], LabelRule]:
    """Find the tokens of every label word as they follow a prompt, and settle ``auto``.

    Parameters
    ----------
    tokenizer : Tokenizer
        That of the model.
    prompt : str
        A prompt, which ends where the label word is to follow.
    label_words : sequence of str
        The answer of each class.
    rule : {"auto", "mean", "first", "joint"}
        How the tokens will be read.

    Returns
    -------
    token_ids : tuple of tuples of int
        The token ids of each label word, the first one first: the different ones (mean), the
        first alone, or all in order (joint).
    rule : {"mean", "first", "joint"}
        The rule that was followed.

    Raises
    ------
    ScoringError
        If two label words begin with the same token, or have the same tokens: the model's
        answer to one is then its answer to the other. By the rule ``joint``, if the tokens of
        one begin those of another, which could then never win.
    """
    if rule == "auto":
        try:
            return read_label_words(tokenizer, prompt, label_words, "mean")
        except ScoringError:
            rule = "joint"
    encode, base = tokenizer.encode, tokenizer.encode(prompt)
    space = "" if prompt[-1:].isspace() else " "
    found = []
    for word in label_words:
        joined = encode(f"{prompt}{space}{word.strip()}")
        if joined[: len(base)] == base and len(joined) > len(base):
            tokens = joined[len(base) :]
        else:
            # The tokenizer merges across the boundary: take the word by itself.
            tokens = [i for i in encode(f"{space}{word.strip()}") if i not in encode("")]
        if not tokens:
            raise ScoringError(
                f"label word {word!r} has no token in this model's tokenizer; choose another word"
            )
        found.append(tuple(tokens if rule == "joint" else dict.fromkeys(tokens)))
    for pair in combinations(zip(label_words, found, strict=True), 2):
        (_, ids), (_, other) = pair
        if _collide(ids, other, rule):
            words = " and ".join(
                f"{word!r} ({', '.join(repr(tokenizer.describe(token)) for token in tokens)})"
                for word, tokens in pair
            )
            raise ScoringError(
                f"label words {words} have colliding tokens in this model's tokenizer, so it "
                "cannot tell them apart; choose words with different first tokens"
            )
    return tuple(ids[:1] for ids in found) if rule == "first" else tuple(found), rule


def _collide(ids: tuple[int, ...], other: tuple[int, ...], rule: LabelRule) -> bool:
    if rule == "joint":
        return all(a == b for a, b in zip(ids, other, strict=False))
    # Pieces further on may be shared: at the answer slot they carry next to nothing.
    return ids[0] == other[0] or (rule == "mean" and set(ids) == set(other))


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
    values = _finite(logits)
    columns = {token: column for column, token in enumerate(sorted({*sum(token_ids, ())}))}
    # The softmax's own normaliser is one factor per row, which the normalisation over classes
    # cancels: subtracting the largest logit is enough, and cannot underflow for the winner.
    weights = np.exp(values - values.max(axis=1, keepdims=True))
    means = np.stack(
        [weights[:, [columns[t] for t in ids]].mean(axis=1) for ids in token_ids], axis=1
    )
    return np.asarray(means / means.sum(axis=1, keepdims=True), dtype=np.float64)


def _finite(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    values = np.asarray(logits, dtype=np.float64)
    if not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0]
        raise ScoringError(
            f"query {row}: the model gives {values[row, column]} for a label token; "
            "try another precision or device"
        )
    return values
