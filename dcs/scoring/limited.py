"""Responses of limited size: apart from the client, since httpx2 may not be installed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2

from dcs.errors import ScoringError

_MAX_RESPONSE_BYTES = 2**24  # the most probable 2,000 tokens take 0.1 MB


class LimitedStream(httpx2.AsyncByteStream):
    """The body of a response, with a limit on its size."""

    def __init__(self, body: Any, address: str) -> None:
        self._body, self._address = body, address

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._body:
            size += len(part)
            if size > _MAX_RESPONSE_BYTES:
                raise ScoringError(
                    f"{self._address} returned more than {_MAX_RESPONSE_BYTES >> 20} MiB for one "
                    "prompt; check that base_url is a model server"
                )
            yield part

    async def aclose(self) -> None:
        """Close the body."""
        await self._body.aclose()
