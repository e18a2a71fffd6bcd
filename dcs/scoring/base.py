"""Common parts of the engines that compute class probabilities with a language model.

Contains the protocol, shared validation, and the rules for label words. The class probability of
the paper is read at one position: the next-token softmax after the answer prefix. A label word of
several tokens takes the mean of their probabilities at that same position, as in the published
code; the classes are then normalised. Two other rules are available: the first token alone, and
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
from dcs.prompting import AnswerPrefix, PromptPrefix
from dcs.scoring.chat import ChatTemplate, PromptStyle, find_template

SCORING_VERSION = 1
"""Increment when the engines return different numbers for the same model, to invalidate caches."""

Progress = Callable[[int], None]
"""Callback that receives the number of queries just finished."""

LabelRule = Literal["auto", "mean", "first", "joint"]
"""How a label word of several tokens is scored: the mean of their probabilities at the answer
position (as published), the first token alone, or the probability of the whole word. ``auto`` uses
the mean if the first tokens of the words differ, and the whole word otherwise."""


@runtime_checkable
class Scorer(Protocol):
    """A loaded language model that computes the class probabilities of prompts.

    Attributes
    ----------
    name, version : str
        The engine, and the versions of the software that determine its numbers.
    model, revision : str
        The model name as specified, and the exact version of its weights.
    settings : mapping of str to str
        Other settings that determine the numbers, e.g. the precision and the label rule;
        ``prompt`` is ``completion`` (assumed if it is missing), or begins with ``chat``.

    A class may also define ``packages``, the names of the installed packages whose versions
    determine its numbers; ``served``, which is true if a server hosts its models, so that it
    receives a name instead of a :class:`~dcs.scoring.ModelReference`; ``votes``, the number of
    answers sampled for each prompt, in which case ``score`` returns the number of votes for each
    class; and a method ``report()`` that returns lines to print at the end.
    """

    name: str
    version: str
    model: str
    revision: str
    settings: Mapping[str, str]

    def score(
        self,
        prefix: str | PromptPrefix,
        queries: Sequence[str],
        label_words: Sequence[str],
        *,
        progress: Progress | None = None,
    ) -> NDArray[np.float64]:
        """Return the class probabilities of prompts.

        A prompt is the text ``f"{prefix}{query}"``, or the chat messages
        ``dcs.prompting.chat_messages(prefix, query)``.

        Parameters
        ----------
        prefix : PromptPrefix or str
            Common beginning of all prompts: instruction and demonstrations. May be empty.
        queries : sequence of str, length M
            The rest of each prompt, up to where the label word follows.
        label_words : sequence of str, length N
            The answer of each class, without a leading space.
        progress : callable, optional
            Called with the number of queries just finished.

        Returns
        -------
        float64 array [M, N]
            Rows sum to 1. Row i does not depend on the other queries (to 1e-5).

        Raises
        ------
        ScoringError
            If label words cannot be distinguished, a prompt is too long, or the model returns
            values that are not finite.
        """

    def close(self) -> None:
        """Free the model's memory. The scorer cannot be used afterwards."""


class Engine(ABC):
    """Base class of the built-in scorers, with shared checks and an idempotent ``close``."""

    model: str
    tokens_read = 0
    """Number of prompt tokens processed so far, if known to the engine."""
    _closed = False

    def score(
        self,
        prefix: str | PromptPrefix,
        queries: Sequence[str],
        label_words: Sequence[str],
        *,
        progress: Progress | None = None,
    ) -> NDArray[np.float64]:
        """Return the class probabilities of prompts; see :meth:`dcs.scoring.Scorer.score`."""
        if self._closed:
            raise ScoringError(f"model {self.model!r} has been closed; load it again")
        if len(queries) == 0:
            return np.zeros((0, len(label_words)))
        return self._score(prefix, queries, label_words, progress or (lambda count: None))

    def close(self) -> None:
        """Free the model's memory. The scorer cannot be used afterwards."""
        if not self._closed:
            self._closed = True
            self._free()

    @abstractmethod
    def _score(
        self,
        prefix: str | PromptPrefix,
        queries: Sequence[str],
        label_words: Sequence[str],
        progress: Progress,
    ) -> NDArray[np.float64]:
        """Return the class probabilities of one or more prompts [M, N]."""

    def _free(self) -> None:  # noqa: B027
        """Release the model, if the engine holds one."""


class TokenEngine(Engine):
    """Base class of engines that run the model in this process and operate on token ids."""

    _tokenizer: Any
    _label_rule: LabelRule
    _limit: int | None
    """Maximum number of tokens of a prompt and its continuation; None if unknown."""
    _template: ChatTemplate | None
    """Renders the prompts; None for plain text."""

    def _use_tokenizer(
        self, tokenizer: Any, prompt: PromptStyle, answer_prefix: AnswerPrefix
    ) -> dict[str, str]:
        """Set the tokenizer and the chat template; return the settings that describe them."""
        self._tokenizer = tokenizer
        self._template = find_template(
            tokenizer, self.model, prompt=prompt, answer_prefix=answer_prefix
        )
        if self._template is None:
            return {"prompt": "completion"}
        return {"prompt": f"chat {self._template.digest}", "answer_prefix": answer_prefix}

    def render(self, prefix: str | PromptPrefix, queries: Sequence[str]) -> tuple[list[str], str]:
        """Return the exact text of one or more prompts, and what separates it from the answer."""
        if self._template is not None:
            return self._template.render(prefix, queries)
        texts = [f"{prefix}{query}" for query in queries]
        return texts, "" if texts[0][-1:].isspace() else " "

    def _score(
        self,
        prefix: str | PromptPrefix,
        queries: Sequence[str],
        label_words: Sequence[str],
        progress: Progress,
    ) -> NDArray[np.float64]:
        prompts, space = self.render(prefix, queries)
        tokenizer = Tokenizer(
            lambda text: self._encode([text])[0],
            lambda token: str(self._tokenizer.decode([token])),
        )
        words = [space + word.strip() for word in label_words]
        token_ids, rule = read_label_words(tokenizer, prompts[0], words, self._label_rule)
        # Tokenise whole prompts, so that tokens do not depend on where the prefix ends.
        tokens = self._encode(prompts)
        self.tokens_read += sum(map(len, tokens))
        # The joint rule also runs all tokens of the word except the last.
        self._check_lengths(tokens, max(map(len, token_ids)) - 1 if rule == "joint" else 0)
        if rule == "joint":
            return softmax(_check_finite(self._word_scores(tokens, token_ids, progress)))
        wanted = sorted({*sum(token_ids, ())})
        return class_probabilities(self._next_scores(tokens, wanted, progress), token_ids)

    def _check_lengths(self, tokens: list[list[int]], word: int) -> None:
        for row, ids in enumerate(tokens):
            if not ids:
                raise ScoringError(f"query {row}: its prompt is empty")
            if self._limit is not None and len(ids) + word > self._limit:
                more = f" plus {word} of a label word" if word else ""
                raise ScoringError(
                    f"query {row}: its prompt has {len(ids)} tokens{more}; the context of model "
                    f"{self.model!r} is limited to {self._limit}; use fewer shots or shorter texts"
                )

    def _encode(self, texts: list[str]) -> list[list[int]]:
        """Return the token ids of texts, each with one start token if the model requires it."""
        # A chat template writes the special tokens itself.
        special = self._template is None
        ids: list[list[int]] = self._tokenizer(texts, verbose=False, add_special_tokens=special)[
            "input_ids"
        ]
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
    """The functions of a model's tokenizer that label words require.

    Attributes
    ----------
    encode : callable
        Returns the token ids of a text, including the special tokens of a prompt.
    describe : callable
        Returns the text of a token, for messages.
    """

    encode: Callable[[str], list[int]]
    describe: Callable[[int], str]


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
        If two label words begin with the same token or have the same set of tokens, so that the
        model's answers to them cannot be distinguished. With the rule ``joint``, if the tokens
        of one word are a prefix of those of another, which could then never win.
    """
    if rule == "auto":
        try:
            return read_label_words(tokenizer, prompt, label_words, "mean")
        except ScoringError:
            rule = "joint"
    encode, base = tokenizer.encode, tokenizer.encode(prompt)
    found = []
    for word in label_words:
        joined = encode(prompt + word)
        if joined[: len(base)] == base and len(joined) > len(base):
            tokens = joined[len(base) :]
        else:
            # The tokenizer merges across the boundary: encode the word alone.
            tokens = [i for i in encode(word) if i not in encode("")]
        if not tokens:
            raise ScoringError(
                f"label word {word.strip()!r} has no token in the model's tokenizer; choose "
                "another word"
            )
        found.append(tuple(tokens if rule == "joint" else dict.fromkeys(tokens)))
    for pair in combinations(zip(label_words, found, strict=True), 2):
        (_, ids), (_, other) = pair
        if _collide(ids, other, rule):
            words = " and ".join(
                f"{word.strip()!r} ({', '.join(map(repr, map(tokenizer.describe, tokens)))})"
                for word, tokens in pair
            )
            raise ScoringError(
                f"label words {words} have colliding tokens and cannot be distinguished by this "
                "model; choose words with different first tokens"
            )
    return tuple(ids[:1] for ids in found) if rule == "first" else tuple(found), rule


def _collide(ids: tuple[int, ...], other: tuple[int, ...], rule: LabelRule) -> bool:
    if rule == "joint":
        return all(a == b for a, b in zip(ids, other, strict=False))
    # Later tokens may be shared: their probability at the answer position is negligible.
    return ids[0] == other[0] or (rule == "mean" and set(ids) == set(other))


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

    Raises
    ------
    ScoringError
        If a value is not finite.
    """
    values = _check_finite(logits)
    columns = {token: column for column, token in enumerate(sorted({*sum(token_ids, ())}))}
    # The normaliser of the softmax is one factor per row, which the normalisation over classes
    # cancels. Subtracting the largest logit suffices, and the winner cannot underflow.
    weights = np.exp(values - values.max(axis=1, keepdims=True))
    means = np.stack(
        [weights[:, [columns[t] for t in ids]].mean(axis=1) for ids in token_ids], axis=1
    )
    return np.asarray(means / means.sum(axis=1, keepdims=True), dtype=np.float64)


def _check_finite(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    values = np.asarray(logits, dtype=np.float64)
    if not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0]
        raise ScoringError(
            f"query {row}: the model returned {values[row, column]} for a label token; "
            "try another precision or device"
        )
    return values
