"""The HTTP engine: any server that speaks the OpenAI protocol (hosted models, ``vllm serve``).

A server shows the log-probabilities of its most probable next tokens only, as texts. The token
of a class is the most probable one that begins its label word and no other label word. A class
whose token is not among those shown is missing; what happens then is a stated rule, and how
often it happened is counted for each class. Servers that echo a prompt with its
log-probabilities give the probability of the whole label word instead, by the rule ``joint``.
"""

from __future__ import annotations

import asyncio
import email.utils
import importlib
import json
import logging
import math
import os
import random
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from dcs.errors import ConfigError, MissingDependencyError, ScoringError
from dcs.messages import named, suggest
from dcs.numerics import softmax
from dcs.scoring.base import Progress
from dcs.scoring.engines import Engine
from dcs.scoring.label_words import LabelRule, check_label_rule, joint_probabilities
from dcs.scoring.models import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = [
    "CostEstimate",
    "MissingRule",
    "OpenAIScorer",
    "Server",
    "Session",
    "best_token",
    "error_message",
    "estimate_cost",
    "pause_asked",
    "refuse_prefixes",
    "require_aiohttp",
    "retry_after",
    "shown_tokens",
    "word_log_probability",
]


_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

#: How tokenizers write a space where a server shows their raw tokens.
_SPACES = str.maketrans({"\u2581": " ", "\u0120": " "})


def shown_tokens(answer: Any) -> dict[str, float]:
    """Return the next tokens that an answer shows, with their log-probabilities.

    Of either interface: completions show a mapping, chat shows entries.

    Raises
    ------
    ValueError
        If it shows none.
    """
    try:
        logprobs = answer["choices"][0]["logprobs"]
        if "top_logprobs" in logprobs:
            pairs = dict(logprobs["top_logprobs"][0]).items()
        else:
            entries = logprobs["content"][0]["top_logprobs"]
            pairs = {entry["token"]: entry["logprob"] for entry in entries}.items()
        return {str(token): float(value) for token, value in pairs}
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(str(error)) from None


def word_log_probability(answer: Any, prompt: str, word: str) -> float:
    """Return the log-probability of a label word at the end of an echoed prompt.

    Parameters
    ----------
    answer : object
        The answer to the prompt and the word, echoed with its log-probabilities, and at most one
        token more.
    prompt, word : str
        The prompt without the word, and the word.

    Raises
    ------
    ValueError
        If the answer does not show the prompt's log-probabilities, or its last tokens do not make
        up the word.
    """
    try:
        logprobs = answer["choices"][0]["logprobs"]
        tokens = [str(token).translate(_SPACES) for token in logprobs["tokens"]]
        values = logprobs["token_logprobs"]
        length = int((answer.get("usage") or {}).get("prompt_tokens", len(tokens) - 1))
    except (KeyError, IndexError, TypeError, AttributeError):
        raise ValueError("it shows no log-probabilities of the prompt") from None
    if not 1 < length <= len(tokens) == len(values):
        raise ValueError("it shows no log-probabilities of the prompt")
    wanted, text, start = word.strip(), "", length
    while text.strip() != wanted:
        start -= 1
        text = tokens[start] + text
        if start < 1 or len(text.strip()) > len(wanted) or not wanted.endswith(text.strip()):
            raise ValueError(f"the prompt ends with the tokens {tokens[start:length]}")
    if text[:1] != " " and not prompt[-1:].isspace() and not tokens[start - 1].strip(" "):
        start -= 1  # the space before the word is a token of its own
    found = [float("nan") if value is None else float(value) for value in values[start:length]]
    total = sum(found)
    if not math.isfinite(total):
        raise ValueError(f"the log-probabilities of the word are {found}")
    return total


def best_token(
    shown: Mapping[str, float], word: str, label_words: Sequence[str], spaced: bool
) -> float | None:
    """Return the largest log-probability of a token that begins this label word alone."""
    values = []
    for token, value in shown.items():
        bare = token.strip()
        if not bare or (spaced and token[:1] != " ") or not word.strip().startswith(bare):
            continue
        if sum(other.strip().startswith(bare) for other in label_words) == 1:
            values.append(value)
    return max(values, default=None)


def refuse_prefixes(label_words: Sequence[str]) -> None:
    """Refuse label words of which one begins another."""
    words = [word.strip() for word in label_words]
    for later, word in enumerate(words):
        for other in words[:later]:
            if word.startswith(other) or other.startswith(word):
                raise ScoringError(
                    f"label words {other!r} ({f' {other}'!r}) and {word!r} ({f' {word}'!r}) "
                    "collide: one begins the other, so that their tokens cannot be told apart; "
                    "choose other words"
                )


def error_message(text: str) -> str:
    """Return the message of an error reply in one line, cut to a readable length."""
    try:
        content = json.loads(text)
        text = str(content["error"]["message"])
    except (ValueError, TypeError, KeyError):
        pass  # not in the usual form: shown as it is
    return " ".join(text.split())[:300]


def pause_asked(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a server wants no requests for, if it says so.

    It may say so when it refuses (``Retry-After``, ``retry-after-ms``) or beforehand, when the
    last request or token that it allows is spent (``x-ratelimit-remaining-...: 0`` and
    ``x-ratelimit-reset-...``).
    """
    pauses = [retry_after(headers.get("Retry-After"))]
    milliseconds = headers.get("retry-after-ms", "")
    if milliseconds.replace(".", "", 1).isdigit():
        pauses.append(float(milliseconds) / 1000)
    for what in ("requests", "tokens"):
        if headers.get(f"x-ratelimit-remaining-{what}", "").strip() in ("0", "0.0"):
            parts = _DURATION.findall(headers.get(f"x-ratelimit-reset-{what}", ""))
            pauses.append(sum(float(number) * _SECONDS[unit] for number, unit in parts))
    return max((pause for pause in pauses if pause is not None), default=None)


def retry_after(value: str | None) -> float | None:
    """Return the seconds of a Retry-After header: a number, or a date."""
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        moment = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, moment.timestamp() - time.time())


_log = logging.getLogger(__name__)

FIRST_WAIT = 0.5  # seconds, doubled at each retry

_LONGEST_WAIT = 60.0

_LONG = 30.0  # seconds that a person wonders about

_RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})


@dataclass(slots=True)
class Server:
    """A server and how it is to be asked.

    Attributes
    ----------
    base_url : str
        Its address, with the version.
    concurrency : int
        Requests at a time.
    retries : int
        How often a request is repeated.
    timeout : float
        Seconds until a request counts as failed.
    key_variable : str
        Environment variable that holds the API key. It is read when a session opens, goes into
        the requests' header, and is kept nowhere.
    """

    base_url: str
    concurrency: int
    retries: int
    timeout: float
    key_variable: str
    _not_before: float = field(default=0.0, repr=False)

    @property
    def root(self) -> str:
        """The address without the version."""
        head, _, tail = self.base_url.rpartition("/")
        return head if tail.startswith("v") and tail[1:].isdigit() else self.base_url

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """Open connections, for as long as the context lasts."""
        aiohttp = require_aiohttp()
        key = os.environ.get(self.key_variable, "").strip()
        async with aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=aiohttp.ClientTimeout(total=self.timeout),
        ) as connections:
            yield Session(self, connections, key)

    async def wait(self) -> None:
        """Wait until the server takes requests again, as far as it has said."""
        while (pause := self._not_before - time.monotonic()) > 0:
            await asyncio.sleep(pause)

    def heed(self, headers: Mapping[str, str]) -> None:
        """Note when the server wants no requests; that holds for all, not for one alone."""
        pause = pause_asked(headers)
        if pause is not None:
            if pause > _LONG:
                _log.warning("%s wants no requests for %.0f s; waiting", self.base_url, pause)
            self._not_before = max(self._not_before, time.monotonic() + pause)


class Session:
    """Open connections to a server."""

    def __init__(self, server: Server, connections: Any, key: str) -> None:
        self._server, self._connections, self._key = server, connections, key

    async def ask(self, row: int, path: str, body: Mapping[str, Any]) -> Any:
        """Return the answer to a request about query `row`, after retries if need be.

        Raises
        ------
        ScoringError
            If the server refuses it, or fails as often as is allowed.
        """
        server, aiohttp = self._server, require_aiohttp()
        url, problem = f"{server.base_url}/{path}", ""
        for attempt in range(server.retries + 1):
            await server.wait()
            try:
                async with self._connections.post(url, json=body) as reply:
                    server.heed(reply.headers)
                    if reply.status == 200:
                        return await reply.json(content_type=None)
                    text = error_message(await reply.text(errors="replace"))
                    problem = self._refusal(row, reply.status, text)
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                problem = self._safe(named(error))
            if attempt < server.retries:
                longest = min(_LONGEST_WAIT, FIRST_WAIT * 2.0**attempt)
                await asyncio.sleep(longest * random.uniform(0.5, 1.0))
        raise ScoringError(
            f"query {row}: {server.base_url} failed {server.retries + 1} times, at last with "
            f"{problem}; check the server, or allow fewer requests at a time (concurrency "
            f"{server.concurrency})"
        )

    async def try_once(self, url: str, body: Mapping[str, Any]) -> Any:
        """Return the answer to a request that the server may not know, or None."""
        aiohttp = require_aiohttp()
        await self._server.wait()
        try:
            async with self._connections.post(url, json=body) as reply:
                return await reply.json(content_type=None) if reply.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return None

    def _refusal(self, row: int, status: int, text: str) -> str:
        """Return what went wrong, if it may pass; raise if it will not."""
        server = self._server
        if status in (401, 403):
            # Servers repeat parts of the key here.
            raise ScoringError(
                f"{server.base_url} refuses the API key (status {status}); set the environment "
                f"variable {server.key_variable} where the requests are sent from"
            )
        problem = self._safe(f"status {status}: {text}")
        if status not in _RETRIED:
            raise ScoringError(f"query {row}: {server.base_url} refuses it with {problem}")
        return problem

    def _safe(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


def require_aiohttp() -> Any:
    """Import aiohttp, or say how to install it."""
    try:
        return importlib.import_module("aiohttp")
    except ImportError as error:
        raise MissingDependencyError(
            f"aiohttp is not installed ({error}), which the openai engine needs; install it with: "
            "pip install aiohttp"
        ) from None


_CHARACTERS_PER_TOKEN = 4.0

_SAMPLE = 24  # prompts that are counted; the rest go by their length


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """What scoring will take.

    Attributes
    ----------
    requests : int
        Requests to be sent, retries aside.
    tokens : int
        Prompt tokens in all of them.
    basis : str
        How they were counted.
    """

    requests: int
    tokens: int
    basis: str


def estimate_cost(
    prompts: Sequence[str],
    *,
    server: Server,
    model: str,
    tokenizer: str | None,
    requests_per_prompt: int,
    run: Callable[[Coroutine[Any, Any, Any]], Any],
) -> CostEstimate:
    """Count requests and prompt tokens.

    Parameters
    ----------
    prompts : sequence of str
        What will be sent.
    server, model : Server, str
        Who is asked to count, if no tokenizer is named.
    tokenizer : str or None
        The model whose tokenizer counts.
    requests_per_prompt : int
        How often each prompt is sent.
    run : callable
        Runs a coroutine to its end.

    Raises
    ------
    ScoringError
        If the tokenizer cannot be loaded.
    """
    step = max(1, len(prompts) // _SAMPLE)
    sample = list(prompts[::step][:_SAMPLE])
    if tokenizer is not None:
        loaded = load_tokenizer(tokenizer)
        counted = [len(loaded(prompt)["input_ids"]) for prompt in sample]
        basis = f"counted by the tokenizer of {tokenizer}"
    else:
        counted = run(_ask_server(server, model, sample)) if sample else []
        basis = "counted by the server's tokenizer"
    per_character = 1.0 / _CHARACTERS_PER_TOKEN
    if counted:
        per_character = sum(counted) / sum(map(len, sample))
        if len(sample) < len(prompts):
            basis += f" on {len(sample)} of the prompts"
    else:
        basis = "at four characters a token, for want of a tokenizer"
    tokens = math.ceil(sum(map(len, prompts)) * per_character - 1e-6)
    return CostEstimate(len(prompts) * requests_per_prompt, tokens * requests_per_prompt, basis)


async def _ask_server(server: Server, model: str, sample: Sequence[str]) -> list[int]:
    counted = []
    async with server.session() as session:
        for prompt in sample:
            answer = await session.try_once(
                f"{server.root}/tokenize", {"model": model, "prompt": prompt}
            )
            count = answer.get("count") if isinstance(answer, dict) else None
            if not isinstance(count, int) or count < 1:
                return []
            counted.append(count)
    return counted


MissingRule = Literal["error", "bound", "zero"]

"""What to do about a label that the server does not show: stop; take the probability of the
least probable token it does show, which the label's cannot exceed; or take 0."""

Api = Literal["completions", "chat"]

_T = TypeVar("_T")


class OpenAIScorer(Engine):
    """Reads class probabilities off a served model.

    Parameters
    ----------
    model : str
        The name under which the server has the model.
    base_url : str
        Address of the server with its version, e.g. ``http://localhost:8000/v1``.
    api : {"completions", "chat"}
        Which interface: plain continuation, as the paper has it, or a chat message.
    label_rule : {"auto", "first", "joint"}
        ``first``, which is also ``auto``: the token that begins the label word. ``joint``: the
        whole word, by a request for each class; only with completions, of a server that echoes
        prompts with their log-probabilities (``vllm serve`` does, most hosted models do not).
        ``mean`` would take the probabilities of tokens that servers do not show.
    top_logprobs : int
        How many of the next tokens to ask for; servers allow 5 to 20.
    missing : {"error", "bound", "zero"}
        What to do about labels that are not among them; see :data:`MissingRule`.
    concurrency : int
        Requests at a time.
    retries : int
        How often a request is repeated after a failure that may pass: with growing waits, and
        never before the moment the server names.
    timeout : float
        Seconds until a request counts as failed.
    key_variable : str
        Environment variable that holds the API key, if the server wants one. The key goes into
        the requests' header and nowhere else.
    tokenizer : str, optional
        A model folder or hub id whose tokenizer counts prompt tokens for :meth:`estimate`; by
        default the server is asked to.
    revision : str, optional
        The exact version of the model, where it is known; a served model may change under its
        name.

    Raises
    ------
    ConfigError
        If an option is not allowed.
    MissingDependencyError
        If aiohttp is not installed.
    """

    name = "openai"
    version = "1"
    served = True

    def __init__(
        self,
        model: str,
        *,
        base_url: str = "https://api.openai.com/v1",
        api: Api = "completions",
        label_rule: LabelRule = "auto",
        top_logprobs: int = 20,
        missing: MissingRule = "error",
        concurrency: int = 8,
        retries: int = 6,
        timeout: float = 120.0,
        key_variable: str = "OPENAI_API_KEY",
        tokenizer: str | None = None,
        revision: str | None = None,
    ) -> None:
        for option, value, allowed in (
            ("api", api, get_args(Api)),
            ("missing", missing, get_args(MissingRule)),
        ):
            if value not in allowed:
                raise ConfigError(
                    f"{option} {value!r}{suggest(value, allowed)}: allowed are "
                    f"{', '.join(allowed)}"
                )
        _check_rule(label_rule, api)
        for option, number in (("top_logprobs", top_logprobs), ("concurrency", concurrency)):
            if number < 1:
                raise ConfigError(f"{option} {number}: allowed are 1 or more")
        if not base_url.startswith(("http://", "https://")) or "@" in base_url:
            raise ConfigError(
                f"base_url {base_url.rpartition('@')[2]!r}: allowed are http:// and https:// "
                "addresses without a password"
            )
        require_aiohttp()
        self.model = model
        self.base_url = base_url.rstrip("/")
        self.revision = revision or self.base_url
        self._rule = "joint" if label_rule == "joint" else "first"
        self.settings: Mapping[str, str] = {"api": api, "label_rule": self._rule}
        if self._rule == "first":
            self.settings |= {"top_logprobs": str(top_logprobs), "missing": missing}
        self._api, self._top, self._missing_rule = api, top_logprobs, missing
        self._server = Server(self.base_url, concurrency, retries, timeout, key_variable)
        self._tokenizer = tokenizer
        self.missing: Counter[str] = Counter()
        """How often each label word was missing from the tokens shown."""
        self.answered = 0
        """Prompts answered so far."""

    def estimate(
        self, prefix: str, queries: Sequence[str], label_words: Sequence[str]
    ) -> CostEstimate:
        """Say what :meth:`score` will take, before any prompt is scored.

        Tokens are counted by the tokenizer that was named, else by the server's own
        (``/tokenize`` of ``vllm serve``, which costs nothing), on a sample of the prompts; where
        there is neither, four characters are taken for a token. The estimate says which.
        """
        requests = len(label_words) if self._rule == "joint" else 1
        return estimate_cost(
            [prefix + query for query in queries],
            server=self._server,
            model=self.model,
            tokenizer=self._tokenizer,
            requests_per_prompt=requests,
            run=_run,
        )

    def report(self) -> list[str]:
        """Return a line for each label word that was missing from answers."""
        rule = {"bound": "took the least probability shown", "zero": "took 0"}
        return [
            f"label word {word!r} was missing from {count} of {self.answered} answers; "
            f"{rule.get(self._missing_rule, 'stopped')}"
            for word, count in self.missing.most_common()
        ]

    def _score(
        self, prompts: list[str], label_words: Sequence[str], progress: Progress
    ) -> NDArray[np.float64]:
        refuse_prefixes(label_words)
        read = self._whole_words if self._rule == "joint" else self._next_tokens

        async def one(session: Session, row: int) -> NDArray[np.float64]:
            return await read(session, row, prompts[row], label_words)

        return _run(self._all(len(prompts), one, progress))

    async def _all(
        self,
        count: int,
        one: Callable[[Session, int], Awaitable[NDArray[np.float64]]],
        progress: Progress,
    ) -> NDArray[np.float64]:
        found: dict[int, NDArray[np.float64]] = {}
        rows = iter(range(count))  # shared: each worker takes the next row

        async with self._server.session() as session:

            async def work() -> None:
                for row in rows:
                    found[row] = await one(session, row)
                    self.answered += 1
                    progress(1)

            workers = [
                asyncio.create_task(work()) for _ in range(min(self._server.concurrency, count))
            ]
            try:
                await asyncio.gather(*workers)
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)
        return np.stack([found[row] for row in range(count)])

    async def _next_tokens(
        self, session: Session, row: int, prompt: str, label_words: Sequence[str]
    ) -> NDArray[np.float64]:
        """Read the label words off the tokens that may follow a prompt."""
        common = {"model": self.model, "max_tokens": 1, "temperature": 0}
        if self._api == "completions":
            path, more = "completions", {"prompt": prompt, "logprobs": self._top}
        else:
            message = {"role": "user", "content": prompt}
            path = "chat/completions"
            more = {"messages": [message], "logprobs": True, "top_logprobs": self._top}
        answer = await session.ask(row, path, common | more)
        try:
            shown = shown_tokens(answer)
        except ValueError:
            raise ScoringError(
                f"query {row}: {self.base_url} gives no top log-probabilities for model "
                f"{self.model!r}; use a server and interface (api {self._api!r}) that does"
            ) from None
        return self._read(row, shown, prompt, label_words)

    async def _whole_words(
        self, session: Session, row: int, prompt: str, label_words: Sequence[str]
    ) -> NDArray[np.float64]:
        """Read each label word off the prompt continued by it."""
        logs = []
        for word in label_words:
            text = f"{prompt}{'' if prompt[-1:].isspace() else ' '}{word.strip()}"
            body = {"model": self.model, "prompt": text, "echo": True, "logprobs": 1}
            # Not every server takes 0 for the number of new tokens.
            answer = await session.ask(row, "completions", body | {"max_tokens": 1})
            try:
                logs.append(word_log_probability(answer, prompt, word))
            except ValueError as error:
                raise ScoringError(
                    f"query {row}: label word {word!r} cannot be read by the rule joint from "
                    f"{self.base_url}: {error}; use the rule first, or the engine transformers "
                    "or vllm"
                ) from None
        return np.asarray(joint_probabilities(np.array([logs]))[0], dtype=np.float64)

    def _read(
        self, row: int, shown: Mapping[str, float], prompt: str, label_words: Sequence[str]
    ) -> NDArray[np.float64]:
        spaced = self._api == "completions" and not prompt[-1:].isspace()
        found = [best_token(shown, word, label_words, spaced) for word in label_words]
        absent = [word for word, value in zip(label_words, found, strict=True) if value is None]
        self.missing.update(absent)
        if absent and self._missing_rule == "error":
            raise ScoringError(
                f"query {row}: label words {', '.join(map(repr, absent))} are not among the "
                f"{len(shown)} tokens that {self.base_url} shows; ask for more (top_logprobs), or "
                "choose a rule for missing labels: missing=bound or missing=zero"
            )
        if len(absent) == len(label_words):
            raise ScoringError(
                f"query {row}: none of the label words is among the {len(shown)} tokens that "
                f"{self.base_url} shows, the first {next(iter(shown), '')!r}; no rule can make "
                "probabilities of that"
            )
        least = min(shown.values()) if self._missing_rule == "bound" else -math.inf
        logs = np.array([least if value is None else value for value in found])
        if not np.isfinite(logs[np.array([value is not None for value in found])]).all():
            raise ScoringError(f"query {row}: {self.base_url} gives a log-probability of {logs}")
        return np.asarray(softmax(logs[None])[0], dtype=np.float64)


def _check_rule(rule: str, api: str) -> None:
    if rule == "mean":
        raise ConfigError(
            "label rule 'mean': servers do not show the tokens it needs; use first or joint, or "
            "the engine transformers or vllm"
        )
    check_label_rule(rule, ("auto", "first", "joint"))
    if rule == "joint" and api != "completions":
        raise ConfigError(
            f"label rule 'joint': api {api!r} shows no log-probabilities of a prompt; use the api "
            "completions, or the rule first"
        )


def _run(work: Coroutine[Any, Any, _T]) -> _T:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    # In a notebook a loop runs already, in which nothing may block.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
