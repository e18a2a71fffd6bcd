"""The HTTP engine: any server that speaks the OpenAI protocol (hosted models, ``vllm serve``).

A server shows the log-probabilities of its most probable next tokens only, as texts. The token
of a class is the most probable one that begins its label word and no other label word. A class
whose token is not among those shown is missing; what happens then is a stated rule, and how
often it happened is counted for each class.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal, get_args

import httpx2
import numpy as np
from numpy.typing import NDArray

from dcs.data.checks import softmax, whole_number
from dcs.errors import ScoringError, check_choice, named, plain_address, show
from dcs.scoring.base import Engine, LabelRule, Progress

if TYPE_CHECKING:
    from openai import AsyncOpenAI

Api = Literal["completions", "chat"]

MissingRule = Literal["error", "bound", "zero"]
"""What to do about a label that the server does not show: stop; take the probability of the
least probable token it does show, which the label's cannot exceed; or take 0."""

_log = logging.getLogger(__name__)

_ANSWER_BYTES = 2**24  # the most probable 2,000 tokens take 0.1 MB

_LONGEST_WAIT = 120.0  # seconds for which the openai package heeds a server's Retry-After

_SAID_EVERY = 10.0  # seconds between two lines about a busy server

#: What answers of another form, too deep or with numbers too large raise when they are read.
_UNREADABLE = (AttributeError, LookupError, TypeError, ValueError, OverflowError, RecursionError)


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
    label_rule : {"auto", "first"}
        Both are the token that begins the label word: servers show no others.
    top_logprobs : int
        How many of the next tokens to ask for; servers allow 5 to 20.
    missing : {"error", "bound", "zero"}
        What to do about labels that are not among them; see :data:`MissingRule`.
    concurrency : int
        Requests at a time.
    retries : int
        How often a request is repeated after a failure that may pass: with growing waits, or
        after as long as the server says (``Retry-After``), up to two minutes each. A log line
        says what is waited for.
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
    InvalidInputError
        If an option is not allowed.
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
        revision: str | None = None,
    ) -> None:
        check_choice("api", api, get_args(Api))
        check_choice("missing", missing, get_args(MissingRule))
        check_choice("label_rule", label_rule, ("auto", "first"))
        whole_number(top_logprobs, "top_logprobs", least=1)
        whole_number(concurrency, "concurrency", least=1)
        self.model = model
        self.base_url = plain_address(base_url)
        self.revision = revision or self.base_url
        self.settings: Mapping[str, str] = {
            "api": api,
            "label_rule": "first",
            "top_logprobs": str(top_logprobs),
            "missing": missing,
        }
        self.missing: Counter[str] = Counter()
        """How often each label word was missing from the tokens shown."""
        self.answered = 0
        """Prompts answered so far."""
        self.refused = 0
        """Requests that the server put off so far."""
        self._said = -math.inf
        self._api, self._top, self._missing_rule = api, top_logprobs, missing
        self._concurrency, self._retries, self._timeout = concurrency, retries, timeout
        # Of a server whose answers do not even begin to end.
        self._longest = (retries + 1) * (timeout + _LONGEST_WAIT)
        self._key_variable = key_variable

    def report(self) -> list[str]:
        """Return a line for each label word that was missing, and for a server that was busy."""
        rule = {"bound": "took the least probability shown", "zero": "took 0"}
        lines = [
            f"label word {word!r} was missing from {count} of {self.answered} answers; "
            f"{rule.get(self._missing_rule, 'stopped')}"
            for word, count in self.missing.most_common()
        ]
        if self.refused:
            lines.append(f"{self.base_url} put {self.refused} requests off")
        return lines

    def _score(
        self, prompts: list[str], label_words: Sequence[str], progress: Progress
    ) -> NDArray[np.float64]:
        _refuse_prefixes(label_words)
        work = self._ask_all(prompts, label_words, progress)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(work)
        # In a notebook a loop runs already, in which nothing may block.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, work).result()

    async def _ask_all(
        self, prompts: list[str], label_words: Sequence[str], progress: Progress
    ) -> NDArray[np.float64]:
        import openai

        key = os.environ.get(self._key_variable, "").strip()
        probs = np.empty((len(prompts), len(label_words)))
        rows = iter(range(len(prompts)))  # shared: each worker takes the next row
        async with openai.AsyncOpenAI(
            base_url=self.base_url,
            api_key=key or "none",
            timeout=self._timeout,
            max_retries=self._retries,
            http_client=openai.DefaultAsyncHttpxClient(
                # A redirect would take the prompts, and perhaps the key, to another server.
                follow_redirects=False,
                headers={"Accept-Encoding": "identity"},
                event_hooks={"response": [self._bound]},
            ),
        ) as client:

            async def work() -> None:
                for row in rows:
                    try:
                        async with asyncio.timeout(self._longest):
                            shown = await self._next_tokens(client, prompts[row])
                    except (openai.APIError, TimeoutError) as error:
                        raise self._failure(row, error, key) from None
                    except _UNREADABLE:
                        raise ScoringError(
                            f"query {row}: {self.base_url} gives no top log-probabilities for "
                            f"model {self.model!r}; use a server and interface (api "
                            f"{self._api!r}) that does"
                        ) from None
                    probs[row] = self._read(row, shown, prompts[row], label_words)
                    self.answered += 1
                    progress(1)

            await asyncio.gather(*(work() for _ in range(min(self._concurrency, len(prompts)))))
        return probs

    async def _next_tokens(self, client: AsyncOpenAI, prompt: str) -> dict[str, float]:
        """Return the tokens that may follow a prompt, with their log-probabilities."""
        body: dict[str, Any] = {"model": self.model, "max_tokens": 1, "temperature": 0}
        if self._api == "completions":
            path = "/completions"
            body |= {"prompt": prompt, "logprobs": self._top}
        else:
            path = "/chat/completions"
            body |= {"messages": [{"role": "user", "content": prompt}]}
            body |= {"logprobs": True, "top_logprobs": self._top}
        answer: Any = await client.post(path, cast_to=object, body=body)
        self.tokens_read += int((answer.get("usage") or {}).get("prompt_tokens") or 0)
        shown = answer["choices"][0]["logprobs"]
        if self._api == "completions":
            return {token: float(value) for token, value in shown["top_logprobs"][0].items()}
        entries = shown["content"][0]["top_logprobs"]
        return {entry["token"]: float(entry["logprob"]) for entry in entries}

    async def _bound(self, response: httpx2.Response) -> None:
        """Bound what is read of an answer, and say when the server puts a request off."""
        # A little that is packed may become much.
        if (encoding := response.headers.get("content-encoding", "identity")) != "identity":
            raise ScoringError(
                f"{self.base_url} packs its answers ({show(encoding, 20)}), which it was not "
                "asked to; use a server that heeds Accept-Encoding"
            )
        response.stream = _Bounded(response.stream, self.base_url, self._timeout)
        if response.status_code in (408, 409, 429) or response.status_code >= 500:
            self.refused += 1
            if time.monotonic() - self._said > _SAID_EVERY:
                self._said = time.monotonic()
                asked = response.headers.get("retry-after")
                _log.warning(
                    "%s answers with status %d%s; asking again, at most %d times a prompt",
                    self.base_url,
                    response.status_code,
                    f" (Retry-After: {show(asked, 40)})" if asked else "",
                    self._retries,
                )

    def _failure(self, row: int, error: Exception, key: str) -> ScoringError:
        if isinstance(error.__cause__, ScoringError):
            # The client may wrap what the hook raises.
            return error.__cause__
        status = getattr(error, "status_code", None)
        if status in (401, 403):
            # Servers repeat parts of the key here.
            return ScoringError(
                f"{self.base_url} refuses the API key (status {status}); set the environment "
                f"variable {self._key_variable} where the requests are sent from"
            )
        what = "does not answer" if status is None else f"refuses it with status {status}"
        said = named(error)
        return ScoringError(
            f"query {row}: {self.base_url} {what} ({said.replace(key, '***') if key else said})"
        )

    def _read(
        self, row: int, shown: Mapping[str, float], prompt: str, label_words: Sequence[str]
    ) -> NDArray[np.float64]:
        """Turn the tokens shown into class probabilities [N]."""
        spaced = self._api == "completions" and not prompt[-1:].isspace()
        found = [best_token(shown, word, label_words, spaced) for word in label_words]
        absent = [word for word, value in zip(label_words, found, strict=True) if value is None]
        self.missing.update(absent)
        if absent and (self._missing_rule == "error" or len(absent) == len(label_words)):
            rules = ", or set missing=bound or missing=zero"
            raise ScoringError(
                f"query {row}: label words {', '.join(map(repr, absent))} are not among the "
                f"{len(shown)} tokens returned by {self.base_url}, the first "
                f"{next(iter(shown), '')!r}; increase top_logprobs"
                f"{'' if len(absent) == len(label_words) else rules}"
            )
        least = min(shown.values()) if self._missing_rule == "bound" else -math.inf
        logs = np.array([least if value is None else value for value in found])
        if not np.isfinite([value for value in found if value is not None]).all():
            raise ScoringError(f"query {row}: {self.base_url} gives a log-probability of {logs}")
        return np.asarray(softmax(logs[None])[0], dtype=np.float64)


class _Bounded(httpx2.AsyncByteStream):
    """The body of an answer, read only as far and as long as answers are."""

    def __init__(self, body: Any, address: str, seconds: float) -> None:
        self._body, self._address = body, address
        self._until = time.monotonic() + seconds

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._body:
            size += len(part)
            if size > _ANSWER_BYTES:
                raise ScoringError(
                    f"{self._address} answers one prompt with more than {_ANSWER_BYTES >> 20} "
                    "MiB; is it a model server?"
                )
            if time.monotonic() > self._until:
                raise httpx2.ReadTimeout("the answer does not end")
            yield part

    async def aclose(self) -> None:
        await self._body.aclose()


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


def _refuse_prefixes(label_words: Sequence[str]) -> None:
    """Refuse label words of which one begins another: their tokens cannot be told apart."""
    for first, second in combinations([word.strip() for word in label_words], 2):
        if first.startswith(second) or second.startswith(first):
            raise ScoringError(
                f"label words {first!r} and {second!r} collide: one begins the other; choose "
                "other words"
            )
