"""The HTTP engine, for servers with an OpenAI-compatible API (hosted models, ``vllm serve``).

What a server can do is found out by asking it once. Some return the log-probabilities of exactly
the tokens asked for (``vllm serve``): these are scored as by an engine that runs in this process.
Others return the most probable next tokens, as text; the labels among them are read as
:mod:`dcs.scoring.labels` describes. A server without log-probabilities answers several times.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import combinations
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, PlainSerializer

from dcs.data.answers import (
    ANSWER_READING,
    NO_DISTRIBUTION,
    count_votes,
    mean_distribution,
)
from dcs.data.forms.logs import fill_missing
from dcs.errors import ScoringError, origin, plain_address, served_revision, show
from dcs.io import Strict, content_key
from dcs.prompting.tasks import PromptPrefix, chat_messages
from dcs.scoring.base import Progress, Prompt, Prompts, Scores
from dcs.scoring.chat import ANSWER_PREFIX, Tokenizer
from dcs.scoring.client import UNREADABLE, PromptError, ServedEngine, run
from dcs.scoring.labels import (
    UNUSABLE,
    Shown,
    class_probabilities,
    label_masses,
    read_label_words,
)
from dcs.scoring.models import require

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_ROUNDING = 1e-3  # by which servers' log-probabilities may exceed 0, and their sum exceed 1

_TOKENS_OF_A_REQUEST = 20  # most tokens whose log-probabilities a server returns by default

#: Numbers of most probable tokens that servers return, of which the first accepted one is used;
#: None if they return any tokens.
_TOPS = (None, 20, 5)

#: Prompts of which most may not be answered without a label.
_FIRST_PROMPTS = 20

#: Prompts that fail one after another, after which the server is asked whether it answers any.
_FAILURES = 4


class OpenAIOptions(Strict):
    """Options of the engine ``openai``.

    Attributes
    ----------
    base_url : str
        URL of the server including the API version, e.g. ``http://localhost:8000/v1``.
    api : {"completions", "chat"}
        Which API to use: plain completion, as in the paper, or chat, with the instruction and
        the demonstrations as messages.
    top_logprobs : int or None
        Number of most probable tokens to request. By default the server is asked for exactly the
        label tokens, and for 20 or 5 if it does not support that.
    votes : int or None
        Number of answers to sample for each prompt instead of reading log-probabilities; the
        result is the number of answers that name each label.
    temperature : float
        Temperature of the samples.
    max_tokens : int
        Maximum number of tokens of a sample, including a thought.
    answer : "distribution" or None
        What sampled answers say: a share of each label instead of one label.
    concurrency : int
        Maximum number of concurrent requests.
    retries : int
        Maximum number of retries after a transient failure, with exponential backoff or the
        delay requested by the server (``Retry-After``), up to two minutes each.
    timeout : float
        Seconds until an attempt counts as failed; a request, with its retries and waits, is given
        up after four times as long.
    revision : str or None
        The exact version of the model, if known; a served model may change without a change of
        name. Required if the path of `base_url` is more than an API version.
    key_variable : str
        Environment variable with the API key, if the server requires one. The key is only sent
        in the header of the requests.
    """

    # JSON is what is recorded: without the path, which may contain a key.
    base_url: Annotated[
        str, AfterValidator(plain_address), PlainSerializer(origin, when_used="json")
    ] = "https://api.openai.com/v1"
    api: Literal["completions", "chat"] = "completions"
    top_logprobs: int | None = Field(default=None, ge=1)
    votes: int | None = Field(default=None, ge=1, le=1000)
    temperature: float = Field(default=1.0, ge=0.0)
    max_tokens: int = Field(default=1024, ge=1)
    answer: Literal["distribution"] | None = None
    concurrency: int = Field(default=8, ge=1)
    retries: int = Field(default=6, ge=0)
    timeout: float = Field(default=60.0, gt=0.0)
    revision: str | None = None
    key_variable: str = "OPENAI_API_KEY"


class OpenAIScorer(ServedEngine):
    """Compute class probabilities with a served model.

    Parameters
    ----------
    model : str
        The name of the model on the server.
    **options
        See :class:`OpenAIOptions`. Label words of several tokens are read by the rule ``mean`` if
        the server returns the log-probabilities of given tokens, and otherwise by ``first``.

    Attributes
    ----------
    votes : int or None
        Number of answers to sample for each prompt; None reads log-probabilities instead.
    missing : collections.Counter
        Number of responses from which each label word was missing.
    answered, parsed, unlabelled : int
        Numbers so far of prompts that were answered, of sampled answers that name a label, and of
        prompts whose answer contained no label.

    Raises
    ------
    InvalidInputError
        If an option is invalid.
    """

    name = "openai"
    version = "3"
    options = OpenAIOptions
    indecisive = frozenset({"concurrency", "retries", "timeout", "key_variable"})

    answered = parsed = unlabelled = 0

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__(**options)
        asked = self._asked
        require("openai")
        self.model = model
        self.revision, self.base_url = served_revision(asked.base_url, asked.revision)
        self.votes = asked.votes or (None if asked.answer is None else 1)
        self.missing: Counter[str] = Counter()
        self._samples, self._top = self.votes or 1, asked.top_logprobs
        self._chat = asked.api == "chat"

    @cached_property
    def settings(self) -> Mapping[str, str]:
        """Settings that determine the numbers; asks the server what it can do."""
        asked = self._asked
        settings = {"api": asked.api, "prompt": "chat" if self._chat else "completion"}
        if self._chat:
            settings["answer_prefix"] = ANSWER_PREFIX
        if self.votes is not None:
            sampled = {"temperature": asked.temperature, "max_tokens": asked.max_tokens}
            sampled["reading"] = ANSWER_READING
            read = {"answer": asked.answer, "answers": self.votes}
            sampled |= {"votes": self.votes} if asked.answer is None else read
            return settings | {name: str(value) for name, value in sampled.items()}
        if self._top is None:
            self._top = run(self._find_log_probabilities())
        if self._top is None:
            self._rendered = self._rendering()
            rendered = {"rendering": self._rendered} if self._chat else {}
            return settings | {"log-probabilities": "exact", "label_rule": "auto"} | rendered
        return settings | {
            "label_rule": "first",
            "log-probabilities": f"top {self._top}",
            "missing": "spread",
        }

    def report(self) -> list[str]:
        """Return lines on labels missing from responses, and on answers that name none."""
        lines = [
            f"label word {word!r} was missing from {count} of {self.answered} responses; used a "
            "share of the rest"
            for word, count in self.missing.most_common()
        ]
        if self.votes is not None:
            number = self.votes * self.answered
            what = "state a distribution" if self._asked.answer else "name one label"
            lines.append(f"{self.parsed} of {number} sampled answers {what}")
        if self.unlabelled:
            lines.append(
                f"{self.unlabelled} of {self.answered} prompts were answered without any label; "
                "their class probabilities are equal"
            )
        return lines

    def _score(self, prompts: Prompts, progress: Progress) -> Scores:
        prefix, queries, label_words = prompts
        if "log-probabilities" in self.settings and self._top is not None:
            _check_prefixes(label_words)
        sent = [self._render(prefix, query) for query in queries]
        return run(self._score_all(sent, label_words, progress))

    def _render(self, prefix: str | PromptPrefix, query: str) -> Prompt:
        return chat_messages(prefix, query) if self._chat else f"{prefix}{query}"

    async def _score_all(
        self, prompts: list[Prompt], label_words: Sequence[str], progress: Progress
    ) -> Scores:
        scores = np.full((len(prompts), len(label_words)), np.nan)
        reasons: dict[int, str] = {}
        silent: dict[int, str] = {}  # answers without any label
        rows = iter(range(len(prompts)))  # shared by all workers
        in_a_row = 0
        async with self._connected() as client:
            read: Callable[[Prompt], Awaitable[tuple[NDArray[np.float64], str]]]
            if self.votes is not None:
                read = partial(self._read_votes, client, label_words)
            elif self._top is not None:
                read = partial(self._read_top, client, label_words)
            else:
                with self._converted("label words"):
                    # Only what precedes a word matters; the server may refuse a long prompt.
                    shortest = min(prompts, key=lambda prompt: len(str(prompt)))
                    words = await self._label_tokens(client, shortest, label_words)
                read = partial(self._read_exact, client, words)

            async def work() -> None:
                nonlocal in_a_row
                for row in rows:
                    try:
                        with self._converted(f"query {row}"):
                            scores[row], answer = await read(prompts[row])
                    except PromptError as error:
                        reasons[row] = str(error).removeprefix(f"query {row}: ")
                        in_a_row += 1
                        if in_a_row % _FAILURES == 0:
                            await self._answer_anything(read, error)
                    else:
                        in_a_row = 0
                        if answer:
                            silent[row] = answer
                    progress(1)

            workers = min(self._asked.concurrency, len(prompts))
            await asyncio.gather(*(work() for _ in range(workers)))
        lost = self._lost(silent, len(prompts) - len(reasons))
        scores[[*lost]] = np.nan
        return scores, reasons | lost

    def _lost(self, silent: Mapping[int, str], answered: int) -> dict[int, str]:
        """Count answered prompts, some without a label; return those that are lost, and why.

        All are lost that state no distribution. If most name no label, they are lost too, which is
        an error if there are enough prompts to tell.
        """
        self.answered += answered
        if self._asked.answer is not None:
            return {row: f"{NO_DISTRIBUTION}: {show(text)}" for row, text in silent.items()}
        if 2 * len(silent) <= answered:
            self.unlabelled += len(silent)
            return {}
        reasons = {
            row: f"no label word is in the answer {show(text)}; see the prompt with `dcs tasks "
            "show`, or use the other api or label words that the model answers with"
            for row, text in silent.items()
        }
        if answered >= _FIRST_PROMPTS:
            row, why = next(iter(reasons.items()))
            raise ScoringError(f"query {row}: {why}, as in {len(silent)} of {answered} answers")
        return reasons

    async def _answer_anything(
        self, read: Callable[[Prompt], Awaitable[object]], failure: ScoringError
    ) -> None:
        """Send a prompt that the server should answer; raise the failure of others if not."""
        try:
            with self._converted("short prompt"):
                await read(self._render("", "A"))
        except ScoringError:
            raise ScoringError(str(failure)) from None

    def _rendering(self) -> str:
        """Return a hash of the tokens of a chat, if the server returns them."""
        if self._top is not None or self.votes is not None or not self._chat:
            return ""

        async def ask() -> list[int]:
            async with self._connected() as client:
                with self._converted("chat template"):
                    return (await self._encode(client, self._render("", "A")))[0]

        return content_key({"tokens": run(ask())})

    async def _find_log_probabilities(self) -> int | None:
        """Return the number of most probable tokens that the server returns, None if any ones."""
        import openai

        prompt = self._render("", "A")
        # A server rejects or ignores what it does not know.
        refusals = (openai.BadRequestError, openai.NotFoundError, openai.UnprocessableEntityError)
        async with self._connected() as client:
            with self._converted("first request"):
                for top in _TOPS:
                    try:
                        if top is None:
                            await self._token_logs(client, prompt, [0, 1])
                        else:
                            await self._top_tokens(client, prompt, top)
                        break
                    except (*refusals, *UNREADABLE):
                        if top == _TOPS[-1]:
                            raise
        return top

    async def _read_top(
        self, client: AsyncOpenAI, label_words: Sequence[str], prompt: Prompt
    ) -> tuple[NDArray[np.float64], str]:
        """Return class probabilities [N] from the most probable tokens; if empty, the first."""
        shown = await self._top_tokens(client, prompt, self._top or 1)
        masses, first = label_masses(shown, label_words), next(iter(shown), ("", 0.0))[0]
        absent = [word for word, mass in zip(label_words, masses, strict=True) if not mass]
        filled = fill_missing(masses, [math.exp(value) for _, value in shown])
        if len(absent) == len(label_words):
            return filled, first or "nothing"
        self.missing.update(absent)
        return filled, ""

    async def _top_tokens(self, client: AsyncOpenAI, prompt: Prompt, top: int) -> Shown:
        """Request the most probable next tokens of a prompt and their log-probabilities."""
        body: dict[str, Any] = {"max_tokens": 1, "temperature": 0, "logprobs": top}
        if self._chat:
            body |= {"logprobs": True, "top_logprobs": top}
        (choice,) = (await self._post(client, body, prompt))["choices"]
        return _checked_logs(self._returned(choice))

    def _returned(self, choice: Any) -> Shown:
        """Return the tokens of a response at the first position, and their log-probabilities."""
        shown = choice["logprobs"]
        if not self._chat or "top_logprobs" in shown:
            return [(token, float(value)) for token, value in shown["top_logprobs"][0].items()]
        entries = shown["content"][0]["top_logprobs"]
        return [(_text(entry), float(entry["logprob"])) for entry in entries]

    async def _read_votes(
        self, client: AsyncOpenAI, label_words: Sequence[str], prompt: Prompt
    ) -> tuple[NDArray[np.float64], str]:
        """Return the votes for each class [N]; if there are none, the first answer."""
        import openai

        texts: list[str] = []
        wanted = self.votes or 1
        while len(texts) < wanted:
            body: dict[str, Any] = {
                "temperature": self._asked.temperature,
                "max_tokens": self._asked.max_tokens,
                "n": min(self._samples, wanted - len(texts)),
            }
            if not self._chat and self._asked.answer is None:
                body["stop"] = "\n"
            try:
                answer = await self._post(client, body, prompt)
            except openai.BadRequestError:
                # Some servers return one sample at a time.
                if body["n"] == 1:
                    raise
                self._samples = 1
                continue
            choices = answer["choices"]
            texts += [
                str((c["message"]["content"] if "message" in c else c["text"]) or "")
                for c in choices[: wanted - len(texts)]
            ]
            if not choices:
                raise ValueError("no answer")
        if self._asked.answer is None:
            read = count_votes(texts, label_words)
            self.parsed += int(read.sum())
        else:
            read, stated = mean_distribution(texts, label_words)
            self.parsed += stated
        return read, "" if (read > 0).any() else texts[0] or "nothing"

    async def _read_exact(
        self, client: AsyncOpenAI, words: tuple[tuple[int, ...], ...], prompt: Prompt
    ) -> tuple[NDArray[np.float64], str]:
        """Return class probabilities [N] from the log-probabilities of the label tokens."""
        wanted = sorted({*sum(words, ())})
        logs = await self._token_logs(client, prompt, wanted)
        (row,) = class_probabilities(np.array([[logs[token] for token in wanted]]), words)
        if np.isnan(row).any():
            raise PromptError(UNUSABLE)
        return row, ""

    async def _token_logs(
        self, client: AsyncOpenAI, prompt: Prompt, wanted: Sequence[int]
    ) -> dict[int, float]:
        """Return the log-probabilities of some tokens after a prompt."""
        found: dict[int, float] = {}
        for start in range(0, len(wanted), _TOKENS_OF_A_REQUEST):
            some = list(wanted[start : start + _TOKENS_OF_A_REQUEST])
            body = {
                **_ONE_TOKEN,
                "logprobs": 1 if isinstance(prompt, str) else True,
                "logprob_token_ids": some,
                "return_tokens_as_token_ids": True,
            }
            (choice,) = (await self._post(client, body, prompt))["choices"]
            shown = dict(_checked_logs(self._returned(choice)))
            found |= {token: shown[f"token_id:{token}"] for token in some}
        return found

    async def _encode(self, client: AsyncOpenAI, prompt: Any, **options: Any) -> list[list[int]]:
        """Return the tokens of a prompt, or of each of several texts."""
        answer = await self._post(client, {**_ONE_TOKEN, **options}, prompt)
        if "prompt_token_ids" in answer:
            return [answer["prompt_token_ids"]]
        choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
        return [choice["prompt_token_ids"] for choice in choices]

    async def _label_tokens(
        self, client: AsyncOpenAI, prompt: Prompt, label_words: Sequence[str]
    ) -> tuple[tuple[int, ...], ...]:
        """Return the tokens of each label word as they follow a prompt."""
        space = " " if isinstance(prompt, str) and not prompt[-1:].isspace() else ""
        words = [space + word.strip() for word in label_words]

        if isinstance(prompt, str):
            found = await self._encode(client, [prompt, *(prompt + word for word in words)])
        else:
            found = await self._encode(client, prompt)
            for word in words:
                turns = [*prompt, {"role": "assistant", "content": word}]
                options = {"continue_final_message": True, "add_generation_prompt": False}
                found += await self._encode(client, turns, **options)
        alone = await self._encode(client, words, add_special_tokens=False)
        # Only their tokens are read, so that an empty text stands for the prompt of a chat.
        start = prompt if isinstance(prompt, str) else "\0"
        known = dict(zip([start, *(start + word for word in words)], found, strict=True))
        known |= dict(zip(words, alone, strict=True))
        last = found[0][-1]
        if all(ids[-1] == last for ids in found) and any(ids[-1] != last for ids in alone):
            raise ScoringError(
                f"{self.base_url} appends token {last} to every prompt, after which the model "
                "would not answer; use api=chat, or load the model by engine=transformers or vllm"
            )
        tokenizer = Tokenizer(lambda texts: [known.get(text, []) for text in texts], str)
        return read_label_words(tokenizer, start, words, "mean")[0]


#: The body of a request that reads one position, for servers that return token ids.
_ONE_TOKEN: Mapping[str, Any] = {"max_tokens": 1, "temperature": 0, "return_token_ids": True}


def _text(entry: Any) -> str:
    """Return the text of a token; its bytes tell the parts of a character apart."""
    token, spelled = str(entry["token"]), entry.get("bytes")
    if isinstance(spelled, list) and spelled:
        return bytes(spelled).decode("utf-8", "surrogateescape")
    return token


def _checked_logs(shown: Shown) -> Shown:
    """Return log-probabilities that can be true: -inf can, NaN cannot."""
    values = [value for _, value in shown]
    wrong = [value for value in values if not value <= _ROUNDING]
    # A vLLM server may return -9999 alone while others ask for the log-probabilities of tokens.
    if wrong or not 0.0 < sum(map(math.exp, values)) <= 1 + _ROUNDING:
        raise PromptError(
            f"the server returned values that are no log-probabilities ({[*wrong, *values][0]:g})"
            "; use another api or server"
        )
    return shown


def _check_prefixes(label_words: Sequence[str]) -> None:
    """Check that no label word is a prefix of another: their tokens would be ambiguous."""
    for first, second in combinations([word.strip() for word in label_words], 2):
        if first.startswith(second) or second.startswith(first):
            raise ScoringError(
                f"label words {first!r} and {second!r} collide: one is a prefix of the other; "
                "choose other words"
            )
