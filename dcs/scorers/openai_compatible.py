"""The HTTP engine: any server that speaks the OpenAI protocol (hosted models, ``vllm serve``).

A server shows the log-probabilities of its most probable next tokens only, as texts. The token
of a class is the most probable one that begins its label word and no other label word. A class
whose token is not among those shown is missing; what happens then is a stated rule, and how
often it happened is counted for each class. Servers that echo a prompt with its
log-probabilities give the probability of the whole label word instead, by the rule ``joint``.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from dcs._messages import suggest
from dcs._numerics import softmax
from dcs.errors import ConfigError, ScoringError
from dcs.scorers._engines import Engine
from dcs.scorers._estimates import CostEstimate, estimate_cost
from dcs.scorers._http import Server, Session, require_aiohttp
from dcs.scorers._replies import (
    best_token,
    refuse_prefixes,
    shown_tokens,
    word_log_probability,
)
from dcs.scorers.base import Progress
from dcs.scorers.label_tokens import LabelRule, check_label_rule, joint_probabilities

__all__ = ["CostEstimate", "MissingRule", "OpenAIScorer"]

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
