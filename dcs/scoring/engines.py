"""What the engines of this package share: the way from prompts to class probabilities."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcs.errors import ScoringError
from dcs.scoring.base import Progress
from dcs.scoring.label_words import (
    LabelRule,
    class_probabilities,
    joint_probabilities,
    read_label_words,
)

__all__ = ["Engine", "TokenEngine", "TokenizedPrompts", "tokenize"]


@dataclass(frozen=True, slots=True)
class TokenizedPrompts:
    """What a model is given.

    Attributes
    ----------
    prompts : list of lists of int
        The tokens of each prompt.
    token_ids : tuple of tuples of int
        Those of each label word; see :func:`dcs.scoring.label_words.label_token_ids`.
    rule : str
        How they are to be read: the rule ``auto`` is settled.
    """

    prompts: list[list[int]]
    token_ids: tuple[tuple[int, ...], ...]
    rule: LabelRule

    @property
    def wanted(self) -> list[int]:
        """The different tokens of all label words, in ascending order."""
        return sorted({*sum(self.token_ids, ())})


def tokenize(
    prompts: list[str],
    label_words: Sequence[str],
    *,
    encode: Callable[[list[str]], list[list[int]]],
    describe: Callable[[int], str],
    rule: LabelRule,
    model: str,
    limit: int | None,
) -> TokenizedPrompts:
    """Turn prompts and label words into tokens.

    Prompts are tokenised whole, so that the tokens do not depend on where prefix and query meet.

    Parameters
    ----------
    prompts : list of str
        At least one.
    label_words : sequence of str
        As for :meth:`dcs.scoring.Scorer.score`.
    encode : callable
        Gives the token ids of texts, each with one start token if the model wants it.
    describe : callable
        Gives the text of a token, for messages.
    rule : {"auto", "mean", "first", "joint"}
        How label words are read.
    model : str
        Its name, for messages.
    limit : int or None
        Most tokens that the model reads.

    Raises
    ------
    ScoringError
        If label words collide, or a prompt is empty or too long.
    """
    token_ids, settled = read_label_words(
        prompts[0],
        label_words,
        encode=lambda text: encode([text])[0],
        describe=describe,
        rule=rule,
    )
    tokens = encode(prompts)
    # Of a word that is read whole, all tokens but the last are run too.
    word = max(map(len, token_ids)) - 1 if settled == "joint" else 0
    for row, ids in enumerate(tokens):
        if not ids:
            raise ScoringError(f"query {row}: its prompt is empty")
        if limit is not None and len(ids) + word > limit:
            more = f", and {word} more with a label word" if word else ""
            raise ScoringError(
                f"query {row}: its prompt has {len(ids)} tokens{more}; model {model!r} reads at "
                f"most {limit}; use fewer shots or shorter texts"
            )
    return TokenizedPrompts(tokens, token_ids, settled)


class Engine(ABC):
    """A scorer that can be closed."""

    model: str
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
        """End the use of the scorer."""
        self._closed = True

    @abstractmethod
    def _score(
        self, prompts: list[str], label_words: Sequence[str], progress: Progress
    ) -> NDArray[np.float64]:
        """Score one prompt or more."""


class TokenEngine(Engine):
    """An engine that runs a model here, and so works on tokens."""

    _tokenizer: Any
    _label_rule: LabelRule
    _limit: int | None
    """Most tokens of a prompt and what follows it."""

    def _score(
        self, prompts: list[str], label_words: Sequence[str], progress: Progress
    ) -> NDArray[np.float64]:
        tokens = tokenize(
            prompts,
            label_words,
            encode=self._encode,
            describe=lambda token: str(self._tokenizer.decode([token])),
            rule=self._label_rule,
            model=self.model,
            limit=self._limit,
        )
        values = self._read(tokens, progress)
        if tokens.rule == "joint":
            return joint_probabilities(values)
        return class_probabilities(values, tokens.token_ids)

    def close(self) -> None:
        """Free the model's memory. The scorer cannot be used afterwards."""
        if not self._closed:
            super().close()
            self._free()

    @abstractmethod
    def _free(self) -> None:
        """Let go of the model."""

    @abstractmethod
    def _encode(self, texts: list[str]) -> list[list[int]]:
        """Return the token ids of texts, each with one start token if the model wants it."""

    @abstractmethod
    def _read(self, tokens: TokenizedPrompts, progress: Progress) -> NDArray[np.float64]:
        """Return what follows each prompt, up to a constant per row.

        By the rule ``joint`` the log-probabilities of the label words, else the logits of the
        tokens ``tokens.wanted``.
        """
