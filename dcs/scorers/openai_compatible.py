"""The HTTP engine: any server that speaks the OpenAI protocol (hosted models, ``vllm serve``).

A server shows the log-probabilities of its most probable next tokens only, as texts. The token
of a class is the most probable one that begins its label word and no other label word. A class
whose token is not among those shown is missing; what happens then is a stated rule, and how
often it happened is counted for each class.
"""

from __future__ import annotations

import asyncio
import importlib
import math
import os
import random
import time
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dcs._files import suggest
from dcs.errors import ConfigError, MissingDependencyError, ScoringError
from dcs.scorers._replies import best_token, error_message, refuse_prefixes, retry_after
from dcs.scorers.base import Progress

__all__ = ["CostEstimate", "MissingRule", "OpenAIScorer"]

MissingRule = Literal["error", "bound", "zero"]
"""What to do about a label that the server does not show: stop; take the probability of the
least probable token it does show, which the label's cannot exceed; or take 0."""

Api = Literal["completions", "chat"]

_RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_FIRST_WAIT = 0.5  # seconds, doubled at each retry
_LONGEST_WAIT = 60.0
_CHARACTERS_PER_TOKEN = 4.0


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """What scoring will take.

    Attributes
    ----------
    requests : int
        Requests to be sent, retries aside.
    tokens : int
        Prompt tokens, at four characters each.
    """

    requests: int
    tokens: int


class OpenAIScorer:
    """Reads class probabilities off a served model.

    Parameters
    ----------
    model : str
        The name under which the server has the model.
    base_url : str
        Address of the server with its version, e.g. ``http://localhost:8000/v1``.
    api : {"completions", "chat"}
        Which interface: plain continuation, as the paper has it, or a chat message.
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

    def __init__(
        self,
        model: str,
        *,
        base_url: str = "https://api.openai.com/v1",
        api: Api = "completions",
        top_logprobs: int = 20,
        missing: MissingRule = "error",
        concurrency: int = 8,
        retries: int = 6,
        timeout: float = 120.0,
        key_variable: str = "OPENAI_API_KEY",
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
        for option, number in (("top_logprobs", top_logprobs), ("concurrency", concurrency)):
            if number < 1:
                raise ConfigError(f"{option} {number}: allowed are 1 or more")
        if not base_url.startswith(("http://", "https://")) or "@" in base_url:
            raise ConfigError(
                f"base_url {base_url.rpartition('@')[2]!r}: allowed are http:// and https:// "
                "addresses without a password"
            )
        self._aiohttp = _require_aiohttp()
        self.model = model
        self.base_url = base_url.rstrip("/")
        self.revision = revision or self.base_url
        self.settings: Mapping[str, str] = {
            "api": api,
            "top_logprobs": str(top_logprobs),
            "missing": missing,
        }
        self._api, self._top, self._missing_rule = api, top_logprobs, missing
        self._concurrency, self._retries, self._timeout = concurrency, retries, timeout
        self._key_variable = key_variable
        self._closed = False
        self._not_before = 0.0
        self.missing: Counter[str] = Counter()
        """How often each label word was missing from the tokens shown."""
        self.answered = 0
        """Prompts answered so far."""

    def estimate(
        self, prefix: str, queries: Sequence[str], label_words: Sequence[str]
    ) -> CostEstimate:
        """Say what :meth:`score` will take, without sending anything."""
        characters = sum(len(prefix) + len(query) for query in queries)
        return CostEstimate(len(queries), math.ceil(characters / _CHARACTERS_PER_TOKEN))

    def report(self) -> list[str]:
        """Return a line for each label word that was missing from answers."""
        rule = {"bound": "took the least probability shown", "zero": "took 0"}
        return [
            f"label word {word!r} was missing from {count} of {self.answered} answers; "
            f"{rule.get(self._missing_rule, 'stopped')}"
            for word, count in self.missing.most_common()
        ]

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
        refuse_prefixes(label_words)
        if not queries:
            return np.zeros((0, len(label_words)))
        return _run(self._score(prefix, queries, label_words, progress))

    def close(self) -> None:
        """End the use of the scorer."""
        self._closed = True

    async def _score(
        self,
        prefix: str,
        queries: Sequence[str],
        label_words: Sequence[str],
        progress: Progress | None,
    ) -> NDArray[np.float64]:
        probs = np.zeros((len(queries), len(label_words)))
        rows = iter(range(len(queries)))  # shared: each worker takes the next row
        key = os.environ.get(self._key_variable, "").strip()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        timeout = self._aiohttp.ClientTimeout(total=self._timeout)

        async with self._aiohttp.ClientSession(headers=headers, timeout=timeout) as session:

            async def work() -> None:
                for row in rows:
                    prompt = prefix + queries[row]
                    answer = await self._ask(session, row, prompt, key)
                    shown = self._shown(row, answer)
                    probs[row] = self._read(row, shown, prompt, label_words)
                    self.answered += 1
                    if progress is not None:
                        progress(1)

            workers = [
                asyncio.create_task(work()) for _ in range(min(self._concurrency, len(queries)))
            ]
            try:
                await asyncio.gather(*workers)
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)
        return probs

    def _body(self, prompt: str) -> tuple[str, dict[str, Any]]:
        common = {"model": self.model, "max_tokens": 1, "temperature": 0}
        if self._api == "completions":
            return "completions", common | {"prompt": prompt, "logprobs": self._top}
        message = {"role": "user", "content": prompt}
        more = {"messages": [message], "logprobs": True, "top_logprobs": self._top}
        return "chat/completions", common | more

    async def _ask(self, session: Any, row: int, prompt: str, key: str) -> Any:
        path, body = self._body(prompt)
        problem = ""
        for attempt in range(self._retries + 1):
            pause = self._not_before - time.monotonic()
            if pause > 0:
                await asyncio.sleep(pause)
            try:
                async with session.post(f"{self.base_url}/{path}", json=body) as reply:
                    if reply.status == 200:
                        return await reply.json(content_type=None)
                    text = error_message(await reply.text(errors="replace"))
                    if reply.status in (401, 403):
                        # Servers repeat parts of the key here.
                        raise ScoringError(
                            f"{self.base_url} refuses the API key (status {reply.status}); set "
                            f"the environment variable {self._key_variable}"
                        )
                    text = text.replace(key, "***") if key else text
                    problem = f"status {reply.status}: {text}"
                    if reply.status not in _RETRIED:
                        raise ScoringError(
                            f"query {row}: {self.base_url} refuses it with {problem}"
                        )
                    wait = retry_after(reply.headers.get("Retry-After"))
                    if wait is not None:
                        # The limit holds for all requests, not for this one alone.
                        self._not_before = max(self._not_before, time.monotonic() + wait)
            except (self._aiohttp.ClientError, TimeoutError, ValueError) as error:
                problem = f"{type(error).__name__}: {error}".rstrip(": ")
                problem = problem.replace(key, "***") if key else problem
            if attempt < self._retries:
                longest = min(_LONGEST_WAIT, _FIRST_WAIT * 2.0**attempt)
                await asyncio.sleep(longest * random.uniform(0.5, 1.0))
        raise ScoringError(
            f"query {row}: {self.base_url} failed {self._retries + 1} times, at last with "
            f"{problem}; check the server, or allow fewer requests at a time (concurrency "
            f"{self._concurrency})"
        )

    def _shown(self, row: int, answer: Any) -> dict[str, float]:
        """Return the tokens shown with their log-probabilities."""
        try:
            logprobs = answer["choices"][0]["logprobs"]
            if self._api == "completions":
                shown = dict(logprobs["top_logprobs"][0])
            else:
                shown = {
                    entry["token"]: entry["logprob"]
                    for entry in logprobs["content"][0]["top_logprobs"]
                }
            return {str(token): float(value) for token, value in shown.items()}
        except (KeyError, IndexError, TypeError, ValueError):
            raise ScoringError(
                f"query {row}: {self.base_url} gives no top log-probabilities for model "
                f"{self.model!r}; use a server and interface (api {self._api!r}) that does"
            ) from None

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
        weights = np.exp(logs - logs.max())
        return np.asarray(weights / weights.sum(), dtype=np.float64)


def _run(work: Coroutine[Any, Any, NDArray[np.float64]]) -> NDArray[np.float64]:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    # In a notebook a loop runs already, in which nothing may block.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def _require_aiohttp() -> Any:
    try:
        return importlib.import_module("aiohttp")
    except ImportError as error:
        raise MissingDependencyError(
            f"aiohttp is not installed ({error}), which the openai engine needs; install it with: "
            "pip install aiohttp"
        ) from None
