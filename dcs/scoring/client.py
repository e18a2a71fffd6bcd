"""Requests to servers with an OpenAI-compatible API: limits, errors, and no secrets."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from dcs.errors import ScoringError, named, show
from dcs.scoring.base import Engine
from dcs.scoring.chat import NO_THINKING

if TYPE_CHECKING:
    import ssl

    import httpx2
    from openai import AsyncOpenAI

T = TypeVar("T")

_MAX_RESPONSE_BYTES = 2**24  # the most probable 2,000 tokens take 0.1 MB

_ATTEMPTS_OF_A_PROMPT = 4  # number of `timeout`s after which a request is given up

#: Statuses that are not the fault of a prompt: key, address, limits, maintenance.
_SERVER_FAULTS = (*range(300, 400), 401, 402, 403, 404, 405, 407, 429, 503)

#: Raised when a response has another structure, is nested too deeply, or has too large numbers.
UNREADABLE = (AttributeError, LookupError, TypeError, ValueError, OverflowError, RecursionError)


class PromptError(ScoringError):
    """The answer to one prompt cannot be used; others may be."""


class ServedEngine(Engine):
    """Base class of engines whose models are hosted by a server; the subclass sets its fields.

    Attributes
    ----------
    base_url : str
        Address of the server as it may be shown.
    """

    served = True
    base_url: str
    _limit_name = "max_tokens"

    async def _post(
        self, client: AsyncOpenAI, prompt: Any, *, limit: int = 1, **options: Any
    ) -> Any:
        """Send a request for `limit` tokens after one prompt, in text or messages, or after texts.

        Unless the options say otherwise, the most probable tokens are asked for.
        """
        import openai

        chat = isinstance(prompt, list) and isinstance(prompt[0], dict)
        body = {"model": self.model, "messages" if chat else "prompt": prompt}
        body |= {"temperature": 0} | options
        if chat and "return_token_ids" in body:
            # Such servers pass this to the chat template.
            body["chat_template_kwargs"] = NO_THINKING
        path = "/chat/completions" if chat else "/completions"
        # Some servers call the limit otherwise. Concurrent requests learn it at the same time.
        other = "max_completion_tokens"
        for name in (self._limit_name, other):
            limited = body | {name: limit}
            try:
                # Retries and waits included: a server that drips would take one for each of them.
                async with asyncio.timeout(_ATTEMPTS_OF_A_PROMPT * self._asked.timeout):
                    answer: Any = await client.post(path, cast_to=object, body=limited)
                self._limit_name = name
                break
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                if name == other or other not in str(error):
                    raise
        read = int((answer.get("usage") or {}).get("prompt_tokens") or 0)
        if read < 0:
            raise ValueError("negative number of tokens")
        self.tokens_read += read
        return answer

    def _connected(self) -> AsyncOpenAI:
        """Return a client, to be closed at the end of a block."""
        import openai

        # They log the URL of every request, with a path that may contain a key.
        for name in ("httpx2", "openai._base_client"):
            logging.getLogger(name).setLevel(logging.WARNING)
        return openai.AsyncOpenAI(
            base_url=self._asked.base_url,
            api_key=self._key or "none",
            timeout=self._asked.timeout,
            max_retries=self._asked.retries,
            http_client=openai.DefaultAsyncHttpxClient(
                # A redirect would send the prompts, and possibly the key, to another server.
                follow_redirects=False,
                verify=_certificates(),
                headers={"Accept-Encoding": "identity"},
                event_hooks={"response": [self._limit_response]},
            ),
        )

    @property
    def _key(self) -> str:
        return os.environ.get(self._asked.key_variable, "").strip()

    async def _limit_response(self, response: httpx2.Response) -> None:
        """Read a response of limited size."""
        # A small compressed response may decompress to a very large one.
        if (encoding := response.headers.get("content-encoding", "identity")) != "identity":
            raise ScoringError(
                f"{self.base_url} compresses its responses ({show(encoding, 20)}) despite "
                "Accept-Encoding: identity; use a server that respects the header"
            )
        import httpx2

        content = bytearray()
        async with aclosing(cast("httpx2.AsyncByteStream", response.stream)) as stream:
            async for part in stream:
                content += part
                if len(content) > _MAX_RESPONSE_BYTES:
                    raise ScoringError(
                        f"{self.base_url} returned more than {_MAX_RESPONSE_BYTES >> 20} MiB for "
                        "one prompt; check that base_url is a model server"
                    )
        response.stream = httpx2.ByteStream(bytes(content))

    def _ask(self, question: Callable[[AsyncOpenAI], Awaitable[T]]) -> T:
        """Return what the server says to a question."""

        async def ask() -> T:
            async with self._connected() as client:
                with self._converted():
                    return await question(client)

        return run(ask())

    @contextmanager
    def _converted(self) -> Iterator[None]:
        """Convert errors of the client and unreadable responses to a ScoringError."""
        import openai

        try:
            yield
        except (openai.APIError, TimeoutError) as error:
            raise self._convert_error(error) from None
        except UNREADABLE:
            raise PromptError(
                f"{self.base_url} returns no usable log-probabilities or answers for model "
                f"{self.model!r} with api={self._asked.api}; use another api or server, or sample "
                "answers by votes=20"
            ) from None

    def _convert_error(self, error: Exception) -> ScoringError:
        if isinstance(error.__cause__, ScoringError):
            # The client may wrap the error of the hook.
            return error.__cause__
        status = getattr(error, "status_code", None)
        if status in (401, 403):
            # Omit the response: servers repeat parts of the key in it.
            return ScoringError(
                f"{self.base_url} rejected the API key (status {status}); set the environment "
                f"variable {self._asked.key_variable} on the machine that sends the requests"
            )
        what = "does not respond" if status is None else f"returned status {status}"
        cause = named(error)
        path = self._asked.base_url.removeprefix(self.base_url)
        for secret in (self._key, path, *(part for part in path.split("/") if len(part) > 3)):
            cause = cause.replace(secret, "***") if secret else cause
        advice = ""
        if status in (404, 405):
            other = "chat" if self._asked.api == "completions" else "completions"
            advice = (
                f"; check the name of the model, or set api={other} (--set scoring.api={other}) "
                "if the server offers only that"
            )
        kind = ScoringError if status in _SERVER_FAULTS else PromptError
        return kind(f"{self.base_url} {what} ({cause}){advice}")


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Return the certificates to trust: reading them takes longer than many a request."""
    import httpx2

    return httpx2.create_ssl_context()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    # A notebook already runs an event loop, which must not be blocked.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
