"""Requests to a model server: retries with growing waits, its rate limits, a key kept secret."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import random
import time
from collections.abc import Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dcs._messages import named
from dcs.errors import MissingDependencyError, ScoringError
from dcs.scorers._replies import error_message, pause_asked

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["Server", "Session", "require_aiohttp"]

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
