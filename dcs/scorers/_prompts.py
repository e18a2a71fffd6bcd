"""From texts to tokens: the prompts and label words of one call, checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dcs.errors import ScoringError
from dcs.scorers.label_tokens import LabelRule, read_label_words

__all__ = ["TokenizedPrompts", "tokenize"]


@dataclass(frozen=True, slots=True)
class TokenizedPrompts:
    """What a model is given.

    Attributes
    ----------
    prompts : list of lists of int
        The tokens of each prompt.
    token_ids : tuple of tuples of int
        Those of each label word; see :func:`dcs.scorers.label_tokens.label_token_ids`.
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
        As for :meth:`dcs.scorers.Scorer.score`.
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
