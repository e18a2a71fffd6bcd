"""What every engine that reads class probabilities off a language model can do, and shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dcs.errors import ScoringError
from dcs.scoring.label_words import (
    LabelRule,
    Tokenizer,
    class_probabilities,
    joint_probabilities,
    read_label_words,
)

SCORING_VERSION = 1
"""Raised when the engines here read other numbers off the same model: old ones are not reused."""

Progress = Callable[[int], None]
"""Called with the number of queries just finished."""


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
        if not queries:
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
            return joint_probabilities(self._word_scores(tokens, token_ids, progress))
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
