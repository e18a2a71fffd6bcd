"""The HTTP engine, for servers with an OpenAI-compatible API (hosted models, ``vllm serve``).

A server returns the log-probabilities of only the most probable next tokens, as strings. The
token of a class is the most probable one that is a prefix of its label word and of no other label
word. A class without a returned token is missing; a user-specified rule handles missing classes,
and they are counted per class.
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
from dcs.errors import ScoringError, check_choice, named, origin, plain_address, show
from dcs.prompting import AnswerPrefix, PromptPrefix, chat_messages
from dcs.scoring.base import Engine, Progress
from dcs.scoring.chat import PromptStyle
from dcs.scoring.labels import LabelRule

if TYPE_CHECKING:
    from openai import AsyncOpenAI

Api = Literal["completions", "chat"]

Prompt = str | list[dict[str, str]]
"""A text, or chat messages."""

MissingRule = Literal["error", "bound", "zero"]
"""How to handle a label that the server does not return: raise an error; use the probability of
the least probable returned token, which is an upper bound; or use 0."""

_log = logging.getLogger(__name__)

_MAX_RESPONSE_BYTES = 2**24  # the most probable 2,000 tokens take 0.1 MB

_ATTEMPTS_OF_A_PROMPT = 4  # number of `timeout`s after which a prompt is given up

_ROUNDING = 1e-3  # by which servers' log-probabilities may exceed 0, and their sum exceed 1

_WARNING_INTERVAL = 10.0  # seconds between two warnings about a busy server

#: Raised when a response has another structure, is nested too deeply, or has too large numbers.
_UNREADABLE = (AttributeError, LookupError, TypeError, ValueError, OverflowError, RecursionError)


class OpenAIScorer(Engine):
    """Compute class probabilities with a served model.

    Parameters
    ----------
    model : str
        The name of the model on the server.
    base_url : str
        URL of the server including the API version, e.g. ``http://localhost:8000/v1``.
    api : {"completions", "chat"}
        Which API to use: plain completion, as in the paper, or chat.
    prompt : {"auto", "completion", "chat"}
        For ``api="chat"``: one message with the whole text (``completion``), or the instruction
        and the demonstrations as messages (``chat``, also ``auto``).
    answer_prefix : {"user", "none"}
        Place of the answer prefix in a chat; see :data:`dcs.prompting.AnswerPrefix`.
    label_rule : {"auto", "first"}
        Both use the token that begins the label word: servers return no others.
    top_logprobs : int
        Number of most probable tokens to request; servers allow 5 to 20.
    missing : {"error", "bound", "zero"}
        How to handle labels that are not among them; see :data:`MissingRule`.
    concurrency : int
        Maximum number of concurrent requests.
    retries : int
        Maximum number of retries after a transient failure, with exponential backoff or the
        delay requested by the server (``Retry-After``), up to two minutes each. The reason is
        logged.
    timeout : float
        Seconds until a request counts as failed; a prompt, with its retries and waits, is given
        up after four times as long.
    key_variable : str
        Environment variable with the API key, if the server requires one. The key is only sent
        in the header of the requests.
    revision : str, optional
        The exact version of the model, if known; a served model may change without a change of
        name.

    Raises
    ------
    InvalidInputError
        If an option is invalid.
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
        prompt: PromptStyle = "auto",
        answer_prefix: AnswerPrefix = "user",
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
        check_choice("prompt", prompt, get_args(PromptStyle)[: 3 if api == "chat" else 2])
        check_choice("answer_prefix", answer_prefix, ("user", "none"))
        check_choice("missing", missing, get_args(MissingRule))
        check_choice("label_rule", label_rule, ("auto", "first"))
        whole_number(top_logprobs, "top_logprobs", least=1)
        whole_number(concurrency, "concurrency", least=1)
        self.model = model
        self._address = plain_address(base_url)
        # Only this is recorded and shown: the path may contain a key.
        self.base_url = origin(self._address)
        self.revision = revision or self.base_url
        self.settings: dict[str, str] = {
            "api": api,
            "label_rule": "first",
            "top_logprobs": str(top_logprobs),
            "missing": missing,
            "prompt": "chat" if api == "chat" and prompt != "completion" else "completion",
        }
        if self.settings["prompt"] == "chat":
            self.settings["answer_prefix"] = answer_prefix
        self.missing: Counter[str] = Counter()
        """Number of responses from which each label word was missing."""
        self.answered = 0
        """Number of prompts scored so far."""
        self.refused = 0
        """Number of requests rejected by a busy or failing server so far."""
        self._last_warning = -math.inf
        self._answer_prefix = answer_prefix
        self._api, self._top, self._missing_rule = api, top_logprobs, missing
        self._concurrency, self._retries, self._timeout = concurrency, retries, timeout
        # Retries and waits included: a server that drips would take `timeout` for each of them.
        self._time_limit = _ATTEMPTS_OF_A_PROMPT * timeout
        self._key_variable = key_variable

    def report(self) -> list[str]:
        """Return one line per missing label word, and one if the server rejected requests."""
        rule = {"bound": "used the lowest returned probability", "zero": "used 0"}
        lines = [
            f"label word {word!r} was missing from {count} of {self.answered} responses; "
            f"{rule.get(self._missing_rule, 'stopped')}"
            for word, count in self.missing.most_common()
        ]
        if self.refused:
            lines.append(f"{self.base_url} rejected {self.refused} requests temporarily")
        return lines

    def _score(
        self,
        prefix: str | PromptPrefix,
        queries: Sequence[str],
        label_words: Sequence[str],
        progress: Progress,
    ) -> NDArray[np.float64]:
        prompts = [self._render(prefix, query) for query in queries]
        _check_prefixes(label_words)
        work = self._score_all(prompts, label_words, progress)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(work)
        # A notebook already runs an event loop, which must not be blocked.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, work).result()

    def _render(self, prefix: str | PromptPrefix, query: str) -> Prompt:
        if self.settings["prompt"] == "chat":
            return chat_messages(prefix, query, answer_prefix=self._answer_prefix)
        text = f"{prefix}{query}"
        return [{"role": "user", "content": text}] if self._api == "chat" else text

    async def _score_all(
        self, prompts: list[Prompt], label_words: Sequence[str], progress: Progress
    ) -> NDArray[np.float64]:
        import openai

        key = os.environ.get(self._key_variable, "").strip()
        probs = np.empty((len(prompts), len(label_words)))
        rows = iter(range(len(prompts)))  # shared by all workers
        async with openai.AsyncOpenAI(
            base_url=self._address,
            api_key=key or "none",
            timeout=self._timeout,
            max_retries=self._retries,
            http_client=openai.DefaultAsyncHttpxClient(
                # A redirect would send the prompts, and possibly the key, to another server.
                follow_redirects=False,
                headers={"Accept-Encoding": "identity"},
                event_hooks={"response": [self._limit_response]},
            ),
        ) as client:

            async def work() -> None:
                for row in rows:
                    try:
                        async with asyncio.timeout(self._time_limit):
                            shown = await self._next_tokens(client, prompts[row])
                    except (openai.APIError, TimeoutError) as error:
                        raise self._convert_error(row, error, key) from None
                    except _UNREADABLE:
                        raise ScoringError(
                            f"query {row}: {self.base_url} returns no top log-probabilities for "
                            f"model {self.model!r} with api={self._api!r}; use another api or "
                            "server"
                        ) from None
                    probs[row] = self._to_probs(row, shown, prompts[row], label_words)
                    self.answered += 1
                    progress(1)

            await asyncio.gather(*(work() for _ in range(min(self._concurrency, len(prompts)))))
        return probs

    async def _next_tokens(self, client: AsyncOpenAI, prompt: Prompt) -> dict[str, float]:
        """Request the most probable next tokens of a prompt and their log-probabilities."""
        body: dict[str, Any] = {"model": self.model, "max_tokens": 1, "temperature": 0}
        if self._api == "completions":
            path = "/completions"
            body |= {"prompt": prompt, "logprobs": self._top}
        else:
            path = "/chat/completions"
            body |= {"messages": prompt, "logprobs": True, "top_logprobs": self._top}
        answer: Any = await client.post(path, cast_to=object, body=body)
        read = int((answer.get("usage") or {}).get("prompt_tokens") or 0)
        (choice,) = answer["choices"]
        if read < 0:
            raise ValueError("negative number of tokens")
        self.tokens_read += read
        shown = choice["logprobs"]
        if self._api == "completions":
            return {token: float(value) for token, value in shown["top_logprobs"][0].items()}
        entries = shown["content"][0]["top_logprobs"]
        return {entry["token"]: float(entry["logprob"]) for entry in entries}

    async def _limit_response(self, response: httpx2.Response) -> None:
        """Limit the size of a response, and warn if the server rejects the request temporarily."""
        # A small compressed response may decompress to a very large one.
        if (encoding := response.headers.get("content-encoding", "identity")) != "identity":
            raise ScoringError(
                f"{self.base_url} compresses its responses ({show(encoding, 20)}) despite "
                "Accept-Encoding: identity; use a server that respects the header"
            )
        response.stream = _LimitedStream(response.stream, self.base_url, self._timeout)
        if response.status_code in (408, 409, 429) or response.status_code >= 500:
            self.refused += 1
            if time.monotonic() - self._last_warning > _WARNING_INTERVAL:
                self._last_warning = time.monotonic()
                asked = response.headers.get("retry-after")
                _log.warning(
                    "%s returned status %d%s; retrying at most %d times per prompt",
                    self.base_url,
                    response.status_code,
                    f" (Retry-After: {show(asked, 40)})" if asked else "",
                    self._retries,
                )

    def _convert_error(self, row: int, error: Exception, key: str) -> ScoringError:
        if isinstance(error.__cause__, ScoringError):
            # The client may wrap the error of the hook.
            return error.__cause__
        status = getattr(error, "status_code", None)
        if status in (401, 403):
            # Omit the response: servers repeat parts of the key in it.
            return ScoringError(
                f"{self.base_url} rejected the API key (status {status}); set the environment "
                f"variable {self._key_variable} on the machine that sends the requests"
            )
        what = "does not respond" if status is None else f"returned status {status}"
        cause = named(error)
        return ScoringError(
            f"query {row}: {self.base_url} {what} ({cause.replace(key, '***') if key else cause})"
        )

    def _to_probs(
        self, row: int, shown: Mapping[str, float], prompt: Prompt, label_words: Sequence[str]
    ) -> NDArray[np.float64]:
        """Convert the returned tokens to class probabilities [N]."""
        most = max(shown.values(), default=0.0)
        if not most <= _ROUNDING or sum(map(math.exp, shown.values())) > 1 + _ROUNDING:
            raise ScoringError(
                f"query {row}: {self.base_url} returned values that are no log-probabilities (up "
                f"to {most:g}); use another api or server"
            )
        spaced = isinstance(prompt, str) and not prompt[-1:].isspace()
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
            raise ScoringError(f"query {row}: {self.base_url} returned log-probabilities {logs}")
        return np.asarray(softmax(logs[None])[0], dtype=np.float64)


class _LimitedStream(httpx2.AsyncByteStream):
    """The body of a response, with limits on its size and duration."""

    def __init__(self, body: Any, address: str, seconds: float) -> None:
        self._body, self._address = body, address
        self._deadline = time.monotonic() + seconds

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._body:
            size += len(part)
            if size > _MAX_RESPONSE_BYTES:
                raise ScoringError(
                    f"{self._address} returned more than {_MAX_RESPONSE_BYTES >> 20} MiB for one "
                    "prompt; check that base_url is a model server"
                )
            if time.monotonic() > self._deadline:
                raise httpx2.ReadTimeout("response not finished in time")
            yield part

    async def aclose(self) -> None:
        await self._body.aclose()


def best_token(
    shown: Mapping[str, float], word: str, label_words: Sequence[str], spaced: bool
) -> float | None:
    """Return the largest log-probability of the tokens that are a prefix of this word only."""
    values = []
    for token, value in shown.items():
        bare = token.strip()
        if not bare or (spaced and token[:1] != " ") or not word.strip().startswith(bare):
            continue
        if sum(other.strip().startswith(bare) for other in label_words) == 1:
            values.append(value)
    return max(values, default=None)


def _check_prefixes(label_words: Sequence[str]) -> None:
    """Check that no label word is a prefix of another: their tokens would be ambiguous."""
    for first, second in combinations([word.strip() for word in label_words], 2):
        if first.startswith(second) or second.startswith(first):
            raise ScoringError(
                f"label words {first!r} and {second!r} collide: one is a prefix of the other; "
                "choose other words"
            )
