"""Label words: their tokens after a prompt, and their probabilities.

The class probability of the paper is read at one position: the next-token softmax after the answer
prefix. A label word of several tokens takes the mean of their probabilities at that same position,
as in the published code; the classes are then normalised. Two other rules are available: the first
token alone, and the joint probability of the whole word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from dcs.errors import ScoringError
from dcs.prompting.tasks import AnswerPrefix, PromptPrefix
from dcs.scoring.chat import ChatTemplate, PromptStyle

LabelRule = Literal["auto", "mean", "first", "joint"]
"""How a label word of several tokens is scored: the mean of their probabilities at the answer
position (as published), the first token alone, or the probability of the whole word. ``auto`` uses
the mean if the first tokens of the words differ, and the whole word otherwise."""


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """The tokenizer of a model, and the chat template with which it renders prompts, if any.

    Attributes
    ----------
    encode : callable
        Returns the token ids of texts, including the special tokens before a prompt.
    describe : callable
        Returns the text of a token, for messages.
    template : ChatTemplate or None
        Renders prompts as a chat; None if they are plain text.
    appended : int
        Number of special tokens that the tokenizer appends to a text, which `encode` drops.
    """

    encode: Callable[[Sequence[str]], list[list[int]]]
    describe: Callable[[int], str]
    template: ChatTemplate | None = None
    appended: int = 0

    @classmethod
    def of(
        cls,
        tokenizer: Any,
        model: str,
        *,
        prompt: PromptStyle,
        answer_prefix: AnswerPrefix,
        thinking: bool = False,
    ) -> Self:
        """Return the functions of a Transformers tokenizer.

        Raises
        ------
        ScoringError
            If `prompt` is ``chat`` and the tokenizer has no chat template.
        """
        template = None
        if prompt != "completion" and getattr(tokenizer, "chat_template", None):
            template = ChatTemplate(
                tokenizer, model, answer_prefix=answer_prefix, thinking=thinking
            )
        elif prompt == "chat":
            raise ScoringError(
                f"model {model!r} has no chat template; use prompt=completion, or a model trained "
                "for chat"
            )
        # A chat template writes the special tokens itself.
        options = {"verbose": False, "add_special_tokens": template is None}

        def encode(texts: Sequence[str]) -> list[list[int]]:
            return [ids[: len(ids) - appended] for ids in tokenizer(texts, **options)["input_ids"]]

        appended = 0
        if template is None:
            # An end of text, for example, after which no model would answer.
            (whole,), (bare,) = (
                encode(["a"]),
                tokenizer(["a"], add_special_tokens=False)["input_ids"],
            )
            appended = whole[::-1].index(bare[-1]) if bare and bare[-1] in whole else 0
        return cls(encode, lambda token: str(tokenizer.decode([token])), template, appended)

    @property
    def settings(self) -> dict[str, str]:
        """What determines the text of prompts."""
        if self.template is None:
            dropped = {"appended tokens": "dropped"} if self.appended else {}
            return {"prompt": "completion", **dropped}
        return {
            "prompt": f"chat {self.template.digest}",
            "answer_prefix": self.template.answer_prefix,
        }

    def render(self, prefix: str | PromptPrefix, queries: Sequence[str]) -> tuple[list[str], str]:
        """Return the exact text of one or more prompts, and the space before the answer, if any.

        Raises
        ------
        ScoringError
            If the chat template cannot render the prompt.
        """
        if self.template is not None:
            return self.template.render(prefix, queries)
        texts = [f"{prefix}{query}" for query in queries]
        return texts, "" if texts[0][-1:].isspace() else " "


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
    base, bare, *whole = tokenizer.encode([prompt, "", *(prompt + word for word in label_words)])
    found = []
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

        NaN in rows with a value that is NaN or infinite; -inf is a probability of zero, if
        another is not.
    """
    values = usable_scores(logits)
    columns = {token: column for column, token in enumerate(sorted({*sum(token_ids, ())}))}
    # The normaliser of the softmax is one factor per row, which the normalisation over classes
    # cancels. Subtracting the largest logit suffices, and the winner cannot underflow.
    weights = np.exp(values - values.max(axis=1, keepdims=True))
    means = np.stack(
        [weights[:, [columns[t] for t in ids]].mean(axis=1) for ids in token_ids], axis=1
    )
    return np.asarray(means / means.sum(axis=1, keepdims=True), dtype=np.float64)


UNUSABLE = "the model returned no finite values for label tokens; try another precision or device"


def usable_scores(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the values as float64, NaN in the rows that have no softmax."""
    values = np.array(logits, dtype=np.float64)
    wrong = ~(values < np.inf).all(axis=1) | (values == -np.inf).all(axis=1)
    values[wrong] = np.nan
    return values
