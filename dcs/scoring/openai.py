"""The HTTP engine, for servers with an OpenAI-compatible API (hosted models, ``vllm serve``).

What a server can do is found out by asking it once. Some return the log-probabilities of exactly
the tokens asked for (``vllm serve``): these are scored as by an engine that runs in this process.
Others return the most probable next tokens, as text; the labels among them are read as
:mod:`dcs.scoring.labels` describes. A server without log-probabilities answers several times.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, PlainSerializer

from dcs.data.answers import ANSWER_READING, count_votes, mean_distribution, parse_vote
from dcs.data.forms.logs import fill_missing
from dcs.errors import ScoringError, origin, plain_address, served_revision, show
from dcs.io import Strict, content_key
from dcs.prompting.tasks import PromptPrefix, chat_messages
from dcs.scoring.base import Advance, Prompts, RenderedPrompt, Scores
from dcs.scoring.chat import Tokenizer
from dcs.scoring.client import UNREADABLE, PromptError, ServedEngine, run
from dcs.scoring.labels import UNUSABLE, Shown, class_probabilities, label_masses, read_label_words
from dcs.scoring.models import require

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_ROUNDING = 1e-3  # by which servers' log-probabilities may exceed 0, and their sum exceed 1

_TOKENS_OF_A_REQUEST = 20  # most tokens whose log-probabilities a server returns by default

#: Numbers of most probable tokens that servers return, of which the first accepted one is used.
_TOPS = (20, 5)

#: Prompts of which most may not be answered without a label.
_FIRST_PROMPTS = 20

#: Prompts that fail one after another, after which the server is asked whether it answers any.
_FAILURES = 4


#: Returns the class probabilities of a prompt, and its answer if that names no label.
_Reader = Callable[["AsyncOpenAI", RenderedPrompt], Awaitable[tuple[NDArray[np.float64], str]]]


# JSON is what is recorded: without the path, which may contain a key.
_BaseUrl = Annotated[str, AfterValidator(plain_address), PlainSerializer(origin, when_used="json")]


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

    base_url: _BaseUrl = "https://api.openai.com/v1"
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
        Number of responses from which each label word was missing, of all with the demonstrations
        and label words of the last prompts.
    counts : collections.Counter
        Of the same, numbers of prompts that were ``answered``, of sampled answers that were
        ``parsed`` as they name a label, and of ``unlabelled`` prompts, whose answer had no label.

    Raises
    ------
    InvalidInputError
        If an option is invalid.
    """

    name = "openai"
    version = "3"
    options = OpenAIOptions
    indecisive = frozenset({"concurrency", "retries", "timeout", "key_variable"})

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__(**options)
        asked = self._asked
        require("openai")
        self.model = model
        self.revision, self.base_url = served_revision(asked.base_url, asked.revision)
        self.votes = asked.votes or (None if asked.answer is None else 1)
        self.missing, self.counts = Counter[str](), Counter[str]()
        self._told = defaultdict[Any, Any](lambda: (Counter(), Counter()))
        self._samples = self.votes or 1
        self._chat = asked.api == "chat"

    @cached_property
    def _top(self) -> int | None:
        """Number of most probable tokens that the server returns, None if any ones."""
        return self._asked.top_logprobs or self._ask(self._find_log_probabilities)

    @cached_property
    def settings(self) -> Mapping[str, str]:  # type: ignore[override]
        """Settings that determine the numbers; asks the server what it can do."""
        asked = self._asked
        settings = {"api": asked.api, "prompt": "chat" if self._chat else "completion"}
        if self.votes is not None:
            sampled = {"temperature": asked.temperature, "max_tokens": asked.max_tokens}
            sampled["reading"] = ANSWER_READING
            read = {"answer": asked.answer, "answers": self.votes}
            sampled |= {"votes": self.votes} if asked.answer is None else read
            return settings | {name: str(value) for name, value in sampled.items()}
        if self._top is None:
            exact = {"log-probabilities": "exact", "label_rule": "auto"}
            return settings | exact | self._rendering()
        top = {"label_rule": "first", "log-probabilities": f"top {self._top}", "missing": "spread"}
        return settings | top

    def report(self) -> list[str]:
        """Return lines on labels missing from responses, and on answers that name none."""
        own = self.counts
        lines = [
            f"label word {word!r} was missing from {count} of {own['answered']} responses; used a "
            "share of the rest"
            for word, count in self.missing.most_common()
        ]
        if self.votes is not None:
            what = "state a distribution" if self._asked.answer else "name one label"
            sampled = self.votes * own["answered"]
            lines.append(f"{own['parsed']} of {sampled} sampled answers {what}")
        if own["unlabelled"]:
            lines.append(
                f"{own['unlabelled']} of {own['answered']} prompts were answered without any "
                "label; their class probabilities are equal"
            )
        return lines

    def _score(self, prompts: Prompts, progress: Advance) -> Scores:
        prefix, queries, label_words = prompts
        self.missing, self.counts = self._told[str(prefix), *label_words]
        sent = [self._render(prefix, query) for query in queries]
        read: _Reader
        if self.votes is not None:
            read = partial(self._read_votes, label_words)
        elif self._top is not None:
            label_masses([], label_words)  # They may collide whatever a server returns.
            read = partial(self._read_top, label_words)
        else:
            # Only what precedes a word matters; the server may refuse a long prompt.
            shortest = min(sent, key=lambda prompt: len(str(prompt)))
            words = self._ask(partial(self._label_tokens, label_words, shortest))
            read = partial(self._read_exact, words)
        scores = np.full((len(sent), len(label_words)), np.nan)
        return scores, run(self._read_all(read, sent, scores, progress))

    def _render(self, prefix: str | PromptPrefix, query: str) -> RenderedPrompt:
        return chat_messages(prefix, query) if self._chat else f"{prefix}{query}"

    async def _read_all(
        self,
        read: _Reader,
        prompts: Sequence[RenderedPrompt],
        scores: NDArray[np.float64],
        progress: Advance,
    ) -> dict[int, str]:
        """Fill in the scores of prompts, and return why some have none, by row."""
        reasons: dict[int, str] = {}
        silent: dict[int, str] = {}  # answers without any label
        rows = iter(range(len(prompts)))  # shared by all workers
        in_a_row = 0
        async with self._connected() as client:

            async def work() -> None:
                nonlocal in_a_row
                for row in rows:
                    try:
                        with self._converted():
                            scores[row], answer = await read(client, prompts[row])
                    except PromptError as error:
                        reasons[row] = str(error)
                        in_a_row += 1
                        if in_a_row % _FAILURES == 0 and not await self._answers(read, client):
                            raise ScoringError(f"query {row}: {error}") from None
                    except ScoringError as error:
                        raise ScoringError(f"query {row}: {error}") from None
                    else:
                        in_a_row = 0
                        if answer:
                            silent[row] = answer
                    progress(1)

            workers = min(self._asked.concurrency, len(prompts))
            await asyncio.gather(*(work() for _ in range(workers)))
        lost = self._lost(silent, len(prompts) - len(reasons))
        scores[[*lost]] = np.nan
        return reasons | lost

    def _lost(self, silent: Mapping[int, str], answered: int) -> dict[int, str]:
        """Count answered prompts, some without a label; return those that are lost, and why.

        All are lost that state no distribution. If most name no label, they are lost too, which is
        an error if there are enough prompts to tell.
        """
        self.counts["answered"] += answered
        if self._asked.answer is not None:
            what = "its answer states no share of each label, such as A: 70 %, B: 30 %"
            return {row: f"{what}: {show(text)}" for row, text in silent.items()}
        if 2 * len(silent) <= answered:
            self.counts["unlabelled"] += len(silent)
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

    async def _answers(self, read: _Reader, client: AsyncOpenAI) -> bool:
        """Whether the server answers a prompt that any should answer."""
        with suppress(ScoringError), self._converted():
            await read(client, self._render("", "A"))
            return True
        return False

    def _rendering(self) -> dict[str, str]:
        """Return a hash of the tokens of a chat, if the server returns them."""
        if not self._chat or self.votes is not None or self._top is not None:
            return {}
        (tokens,) = self._ask(partial(self._encode, self._render("", "A")))
        return {"rendering": content_key({"tokens": tokens})}

    async def _find_log_probabilities(self, client: AsyncOpenAI) -> int | None:
        import openai

        prompt = self._render("", "A")
        # A server rejects or ignores what it does not know.
        refusals = (openai.BadRequestError, openai.NotFoundError, openai.UnprocessableEntityError)
        with suppress(*refusals, *UNREADABLE):
            await self._token_logs([0, 1], client, prompt)
            return None
        most, fewer = _TOPS
        with suppress(*refusals, *UNREADABLE):
            await self._top_tokens(most, client, prompt)
            return most
        await self._top_tokens(fewer, client, prompt)
        return fewer

    async def _read_top(
        self, label_words: Sequence[str], client: AsyncOpenAI, prompt: RenderedPrompt
    ) -> tuple[NDArray[np.float64], str]:
        """Return class probabilities [N] from the most probable tokens; if empty, the first."""
        shown = await self._top_tokens(self._top or 1, client, prompt)
        try:
            masses, first = label_masses(shown, label_words), next(iter(shown), ("", 0.0))[0]
        except ScoringError as error:
            raise PromptError(str(error)) from None
        absent = [word for word, mass in zip(label_words, masses, strict=True) if not mass]
        filled = fill_missing(masses, [math.exp(value) for _, value in shown])
        if len(absent) == len(label_words):
            return filled, first or "nothing"
        self.missing.update(absent)
        return filled, ""

    async def _top_tokens(self, top: int, client: AsyncOpenAI, prompt: RenderedPrompt) -> Shown:
        """Return the most probable next tokens of a prompt and their log-probabilities."""
        options = {"logprobs": True, "top_logprobs": top} if self._chat else {"logprobs": top}
        return await self._first_tokens(client, prompt, **options)

    async def _token_logs(
        self, wanted: Sequence[int], client: AsyncOpenAI, prompt: RenderedPrompt
    ) -> dict[int, float]:
        """Return the log-probabilities of some tokens after a prompt."""
        found: dict[int, float] = {}
        for start in range(0, len(wanted), _TOKENS_OF_A_REQUEST):
            some = list(wanted[start : start + _TOKENS_OF_A_REQUEST])
            options = {"logprob_token_ids": some, "return_tokens_as_token_ids": True}
            options |= {"logprobs": True if self._chat else 1, "return_token_ids": True}
            shown = dict(await self._first_tokens(client, prompt, **options))
            found |= {token: shown[f"token_id:{token}"] for token in some}
        return found

    async def _first_tokens(
        self, client: AsyncOpenAI, prompt: RenderedPrompt, **options: Any
    ) -> Shown:
        """Return the tokens of a response at its first position, and their log-probabilities."""
        (choice,) = (await self._post(client, prompt, **options))["choices"]
        logs = choice["logprobs"]
        if self._chat and "top_logprobs" not in logs:
            entries = logs["content"][0]["top_logprobs"]
            shown = [(_text(entry), float(entry["logprob"])) for entry in entries]
        else:
            shown = [(text, float(value)) for text, value in logs["top_logprobs"][0].items()]
        values = [value for _, value in shown]
        # -inf can be true, NaN cannot.
        wrong = [value for value in values if not value <= _ROUNDING]
        # A vLLM server may return -9999 alone while others ask for those of given tokens.
        if wrong or not 0.0 < sum(map(math.exp, values)) <= 1 + _ROUNDING:
            raise PromptError(
                "the server returned values that are no log-probabilities "
                f"({[*wrong, *values][0]:g}); use another api or server"
            )
        return shown

    async def _read_votes(
        self, label_words: Sequence[str], client: AsyncOpenAI, prompt: RenderedPrompt
    ) -> tuple[NDArray[np.float64], str]:
        """Return the votes for each class [N]; if there are none, the first answer."""
        import openai

        asked, texts = self._asked, list[str]()
        options: dict[str, Any] = {"temperature": asked.temperature, "limit": asked.max_tokens}
        if not self._chat and asked.answer is None:
            options["stop"] = "\n"
        most = self._samples
        while missing := (self.votes or 1) - len(texts):
            number = min(most, missing)
            try:
                answer = await self._post(client, prompt, n=number, **options)
            except (openai.BadRequestError, openai.UnprocessableEntityError):
                # Some servers return one sample at a time; or the prompt is at fault.
                if number == 1:
                    raise
                most = 1
                continue
            self._samples = most
            choices = answer["choices"][:missing]
            if not choices:
                raise ValueError("no answer")
            for c in choices:
                said = str((c["message"]["content"] if "message" in c else c["text"]) or "")
                cut = c.get("finish_reason") == "length"
                lost = cut and parse_vote(said, label_words, cut=True) is None
                texts.append("" if lost else said)
        if asked.answer is None:
            read = count_votes(texts, label_words)
            self.counts["parsed"] += int(read.sum())
        else:
            read, stated = mean_distribution(texts, label_words)
            self.counts["parsed"] += stated
        nothing = f"nothing in {asked.max_tokens} tokens"
        return read, "" if (read > 0).any() else texts[0] or nothing

    async def _read_exact(
        self, words: Sequence[tuple[int, ...]], client: AsyncOpenAI, prompt: RenderedPrompt
    ) -> tuple[NDArray[np.float64], str]:
        """Return class probabilities [N] from the log-probabilities of the label tokens."""
        wanted = sorted({*sum(words, ())})
        logs = await self._token_logs(wanted, client, prompt)
        (row,) = class_probabilities(np.array([[logs[token] for token in wanted]]), words)
        if np.isnan(row).any():
            raise PromptError(UNUSABLE)
        return row, ""

    async def _encode(self, prompt: Any, client: AsyncOpenAI, **options: Any) -> list[list[int]]:
        """Return the tokens of a prompt, or of each of several texts."""
        answer = await self._post(client, prompt, return_token_ids=True, **options)
        if "prompt_token_ids" in answer:
            return [answer["prompt_token_ids"]]
        choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
        return [choice["prompt_token_ids"] for choice in choices]

    async def _label_tokens(
        self, label_words: Sequence[str], prompt: RenderedPrompt, client: AsyncOpenAI
    ) -> tuple[tuple[int, ...], ...]:
        """Return the tokens of each label word as they follow a prompt."""
        # Only their tokens are read, so that an empty text stands for the prompt of a chat.
        start = prompt if isinstance(prompt, str) else "\0"
        space = " " if isinstance(prompt, str) and not prompt[-1:].isspace() else ""
        words = [space + word.strip() for word in label_words]
        whole = [start, *(start + word for word in words)]
        if isinstance(prompt, str):
            found = await self._encode(whole, client)
        else:
            found = await self._encode(prompt, client)
            for word in words:
                turns = [*prompt, {"role": "assistant", "content": word}]
                options = {"continue_final_message": True, "add_generation_prompt": False}
                found += await self._encode(turns, client, **options)
        alone = await self._encode(words, client, add_special_tokens=False)
        last = found[0][-1]
        if all(ids[-1] == last for ids in found) and any(ids[-1] != last for ids in alone):
            raise ScoringError(
                f"{self.base_url} appends token {last} to every prompt, after which the model "
                "would not answer; use api=chat, or load the model by engine=transformers or vllm"
            )
        known = dict(zip([*whole, *words], [*found, *alone], strict=True))
        tokenizer = Tokenizer(lambda texts: [known.get(text, []) for text in texts], str)
        return read_label_words(tokenizer, start, words, "mean")[0]


def _text(entry: Any) -> str:
    """Return the text of a token; its bytes tell the parts of a character apart."""
    token, spelled = str(entry["token"]), entry.get("bytes")
    if isinstance(spelled, list) and spelled:
        return bytes(spelled).decode("utf-8", "surrogateescape")
    return token
