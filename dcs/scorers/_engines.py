"""What the engines of this package share: the way from prompts to class probabilities."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcs.errors import ScoringError
from dcs.scorers._prompts import TokenizedPrompts, tokenize
from dcs.scorers.base import Progress
from dcs.scorers.label_tokens import LabelRule, class_probabilities, joint_probabilities

__all__ = ["Engine", "TokenEngine"]


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

        See :meth:`dcs.scorers.Scorer.score`.
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
