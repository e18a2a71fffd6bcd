"""The protocol of the engines that compute class probabilities, and their common parts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dcs.errors import ConfigError, ScoringError
from dcs.io import Strict, validated
from dcs.prompting.tasks import PromptPrefix
from dcs.scoring.chat import PromptStyle, Tokenizer
from dcs.scoring.labels import UNUSABLE, LabelRule, class_probabilities, read_label_words

#: Increment when the engines return different numbers for the same model, to invalidate caches.
SCORING_VERSION = 2

#: A prompt as it is sent to a model: a text, or the messages of a chat.
RenderedPrompt = str | list[dict[str, str]]


class Prompts(NamedTuple):
    """Arguments of :meth:`Scorer.score`: M prompts with the same prefix and label words."""

    prefix: str | PromptPrefix
    queries: Sequence[str]
    label_words: Sequence[str]


#: Callback that receives the number of queries just finished.
Advance = Callable[[int], None]


#: Class probabilities [M, N], and by row why those that are NaN could not be computed.
Scores = tuple[NDArray[np.float64], dict[int, str]]


class RowsError(ScoringError):
    """Some prompts could not be scored, although the model works; the others were.

    Parameters
    ----------
    probs : float64 array [M, N]
        The class probabilities of all prompts; NaN for those that could not be scored.
    reasons : mapping of int to str
        Why, by the row of the prompt.
    """

    def __init__(self, probs: NDArray[np.float64], reasons: Mapping[int, str]) -> None:
        self.probs, self.reasons = probs, dict(sorted(reasons.items()))
        (row, reason), *others = self.reasons.items()
        more = f" (and {len(others)} more prompts)" if others else ""
        super().__init__(f"query {row}: {reason}{more}")


def scored_rows(probs: NDArray[np.float64], reasons: Mapping[int, str]) -> NDArray[np.float64]:
    """Return the probabilities if all rows were scored; otherwise raise RowsError."""
    if reasons:
        raise RowsError(probs, reasons)
    return probs


class LocalOptions(Strict):
    """Options of the engines that run the model themselves.

    Attributes
    ----------
    label_rule : "auto", "mean", "first" or "joint"
        How label words of several tokens are scored; see :data:`dcs.scoring.labels.LabelRule`.
    prompt : "auto", "completion" or "chat"
        Plain text, or chat messages by the chat template of the model; ``auto`` is ``chat`` if
        the model has a template. See :data:`dcs.scoring.chat.PromptStyle`.
    dtype : "bfloat16", "float16", "float32" or None
        Precision; by default bfloat16 on a GPU and float32 on a CPU.
    """

    label_rule: LabelRule = "auto"
    prompt: PromptStyle = "auto"
    dtype: Literal["bfloat16", "float16", "float32"] | None = None


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
        ``prompt`` is ``completion`` (assumed if it is missing), or begins with ``chat``. With
        ``votes``, the number of answers sampled for each prompt, `score` returns the number of
        votes for each class.

    A class may also define the attributes of :class:`Engine`, and a method ``report()``, which
    returns lines to print at the end.
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
        progress: Advance | None = None,
    ) -> NDArray[np.float64]:
        """Return the class probabilities of prompts.

        A prompt is the text ``f"{prefix}{query}"``, or the chat messages
        ``dcs.prompting.tasks.chat_messages(prefix, query)``.

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
            If label words cannot be distinguished, or the model cannot be used.
        RowsError
            If single prompts cannot be scored, for example because they are too long; contains
            the probabilities of the others.
        """

    def close(self) -> None:
        """Free the model's memory. The scorer cannot be used afterwards."""


def score_rows(scorer: Scorer, prompts: Prompts, progress: Advance | None = None) -> Scores:
    """Return the scores of prompts, and why some have none; see :meth:`Scorer.score`.

    Raises
    ------
    ScoringError
        If an engine returns something else than a row for each prompt.
    """
    try:
        probs, reasons = scorer.score(*prompts, progress=progress), {}
    except RowsError as error:
        probs, reasons = error.probs, error.reasons
    wanted = (len(prompts.queries), len(prompts.label_words))
    if type(probs) is not np.ndarray or probs.shape != wanted:
        found = f"{type(probs).__name__} of shape {getattr(probs, 'shape', 'unknown')}"
        raise ScoringError(f"engine {scorer.name!r} returned {found}; must be an array {wanted}")
    return probs, reasons


class Engine(Scorer):
    """Base class of the built-in scorers, with shared checks and an idempotent ``close``.

    Scorers need not derive from it. The attributes up to `gpu_option` of their class are read, if
    they have them; here are the defaults.

    Parameters
    ----------
    **options
        Options of the engine; see its class of `options`.

    Attributes
    ----------
    version : str
        Of the engine itself, if its class has one.
    packages : tuple of str
        Names of the installed packages whose versions determine the numbers.
    served : bool
        Whether a server hosts the models, so that the engine receives a name.
    options : type of Strict
        Names, types and defaults of the options: the keyword arguments of the constructor.
    indecisive : frozenset of str
        Options that affect placement and speed only, and no number.
    gpu_option : str or None
        The option with the number of GPUs that an actor reserves, 1 if it is not set; None if a
        model uses one GPU or none.
    tokens_read : int
        Number so far of prompt tokens, if known to the engine.
    """

    version: str = ""
    packages: ClassVar[tuple[str, ...]] = ()
    served: ClassVar[bool] = False
    options: ClassVar[type[Strict]] = Strict
    indecisive: ClassVar[frozenset[str]] = frozenset()
    gpu_option: ClassVar[str | None] = None

    tokens_read = 0
    _closed = False

    def __init__(self, **options: Any) -> None:
        source = f"engine {self.name}"
        self._asked: Any = validated(self.options, options, source=source, error=ConfigError)

    def score(
        self,
        prefix: str | PromptPrefix,
        queries: Sequence[str],
        label_words: Sequence[str],
        *,
        progress: Advance | None = None,
    ) -> NDArray[np.float64]:
        """Return the class probabilities of prompts; see :meth:`dcs.scoring.Scorer.score`."""
        if self._closed:
            raise ScoringError(f"model {self.model!r} has been closed; load it again")
        if len(queries) == 0:
            return np.zeros((0, len(label_words)))
        prompts, settings = Prompts(prefix, queries, label_words), self.settings
        scored = self._score(prompts, progress or (lambda count: None))
        if not self._rendering().items() <= settings.items():
            raise ScoringError(
                f"model {self.model!r}: its chat template renders another prompt than when the "
                "model was loaded, for example the date; run the same command again, or use "
                "prompt=completion"
            )
        return scored_rows(*scored)

    def _rendering(self) -> Mapping[str, str]:
        """Return the settings of how prompts are rendered now; checked after every call."""
        return {}

    def close(self) -> None:
        """Free the model's memory. The scorer cannot be used afterwards."""
        if not self._closed:
            self._closed = True
            self._free()

    @abstractmethod
    def _score(self, prompts: Prompts, progress: Advance) -> Scores:
        """Return the class probabilities of one or more prompts, and why rows of NaN failed."""

    def _free(self) -> None:  # noqa: B027
        """Release the model, if the engine holds one."""


class TokenEngine(Engine):
    """Base class of engines that run the model in this process and operate on token ids."""

    _tokenizer: Tokenizer
    #: Maximum number of tokens of a prompt and its continuation; None if unknown.
    _limit: int | None

    def _use_tokenizer(self, tokenizer: Any, **settings: str) -> None:
        """Set the tokenizer, and all settings that determine the numbers."""
        self._tokenizer = Tokenizer.of(tokenizer, self.model, self._asked.prompt)
        # The sum of log-probabilities has had a name, by which scored prompts are found.
        rules = {"label_rule": self._asked.label_rule, "joint": "sum"}
        self.settings = {**settings, **rules, **self._rendering()}

    def _rendering(self) -> Mapping[str, str]:
        return self._tokenizer.settings

    def _score(self, prompts: Prompts, progress: Advance) -> Scores:
        prefix, queries, label_words = prompts
        texts, space = self._tokenizer.render(prefix, queries)
        words = [space + word.strip() for word in label_words]
        rule = self._asked.label_rule
        token_ids, rule = read_label_words(self._tokenizer, texts[0], words, rule)
        # The joint rule also runs all tokens of the word except the last.
        more = max(map(len, token_ids)) - 1 if rule == "joint" else 0
        # Tokenise whole prompts, so that tokens do not depend on where the prefix ends.
        tokens = self._tokenizer.encode(texts)
        reasons = self._unfit(tokens, more)
        probs = np.full((len(texts), len(label_words)), np.nan)
        rows = [row for row in range(len(texts)) if row not in reasons]
        fitting = [tokens[row] for row in rows]
        self.tokens_read += sum(map(len, fitting))
        if rows and rule == "joint":
            scores = self._word_scores(fitting, token_ids)
            probs[rows] = class_probabilities(scores, [(word,) for word in range(len(words))])
        elif rows:
            wanted = sorted({*sum(token_ids, ())})
            probs[rows] = class_probabilities(self._next_scores(fitting, wanted), token_ids)
        progress(len(texts))
        wrong = (row for row in rows if np.isnan(probs[row]).any())
        return probs, reasons | dict.fromkeys(wrong, UNUSABLE)

    def _unfit(self, tokens: list[list[int]], word: int) -> dict[int, str]:
        """Return why prompts cannot be run, by row."""
        reasons, more = {}, f" plus {word} of a label word" if word else ""
        for row, ids in enumerate(tokens):
            if not ids:
                reasons[row] = "its prompt is empty"
            elif self._limit is not None and len(ids) + word > self._limit:
                reasons[row] = (
                    f"its prompt has {len(ids)} tokens{more}; the context of model "
                    f"{self.model!r} is limited to {self._limit}; use fewer shots or shorter texts"
                )
        return reasons

    def _word_scores(
        self, prompts: list[list[int]], words: Sequence[tuple[int, ...]]
    ) -> NDArray[np.float64]:
        """Return the log-probabilities of whole words after each prompt [M, N].

        Those of the tokens of a word, each after the preceding ones, are summed: a prompt is run
        once with each beginning of a word.
        """
        heads = sorted({word[:length] for word in words for length in range(len(word))})
        wanted = sorted({*sum(words, ())})
        # The continuations of one prompt follow each other, while an engine has it cached.
        longer = [[*prompt, *head] for prompt in prompts for head in heads]
        logs = self._next_scores(longer, wanted, normalised=True)
        logs = logs.reshape(len(prompts), len(heads), len(wanted))
        scores = np.zeros((len(prompts), len(words)))
        for column, word in enumerate(words):
            for length, token in enumerate(word):
                scores[:, column] += logs[:, heads.index(word[:length]), wanted.index(token)]
        return scores

    @abstractmethod
    def _next_scores(
        self, prompts: list[list[int]], wanted: list[int], *, normalised: bool = False
    ) -> NDArray[np.float64]:
        """Return log-probabilities of some tokens after each prompt [M, K].

        Unless `normalised`, a constant may be added to each row.
        """
