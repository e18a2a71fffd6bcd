"""Locks on stores that are not local: a claim is an object that only one process can create.

The holder of a claim rewrites it every few seconds. One that has not changed for a while has lost
its holder; whoever waits then creates the next of its generation, which again only one can. Time
is measured by the waiting process alone, so that clocks need not agree.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from dcs.errors import DCSError

__all__ = ["CLAIM", "Claims"]

_log = logging.getLogger(__name__)

CLAIM = ".claim"
BEAT = 10.0  # seconds between the signs of life of a holder
LEASE = 45.0  # seconds without any, after which a holder counts as gone
_POLL = 0.5

_now = time.monotonic


class Objects(Protocol):
    """What claims need of a store."""

    url: str

    def read(self, name: str) -> bytes | None:
        """Return an object, or None if there is none of that name."""

    def create(self, name: str, data: bytes) -> bool:
        """Write a new object; return False if there is one. NotImplementedError if it cannot."""

    def put(self, name: str, data: bytes) -> None:
        """Write an object."""

    def delete(self, name: str) -> None:
        """Remove an object, if it is there."""


class Claims:
    """The claims of one process on a store.

    Parameters
    ----------
    objects : Objects
        The store.
    """

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._works: bool | None = None
        self._seen: dict[str, tuple[bytes, float]] = {}

    @contextmanager
    def hold(self, name: str, *, wait: bool) -> Iterator[bool]:
        """Give whether this process alone now holds `name`; see the module.

        Where objects cannot be created exclusively, every process holds it, with a warning.
        """
        if not self._exclusive():
            yield True
            return
        generation = self._take(name)
        while generation is None:
            if not wait:
                yield False
                return
            time.sleep(_POLL)
            generation = self._take(name)
        ended = threading.Event()
        path = _path(name, generation)
        beats = threading.Thread(target=self._beat, args=(path, ended), daemon=True)
        beats.start()
        try:
            yield True
        finally:
            ended.set()
            beats.join()
            self._release(name, generation)

    def _take(self, name: str) -> int | None:
        """Claim a name that nobody holds; return the generation of the claim."""
        stale: dict[str, bytes] = {}
        while True:
            path = _path(name, len(stale))
            content = self._objects.read(path)
            if content is None:
                break
            known, since = self._seen.setdefault(path, (content, _now()))
            if content != known:
                self._seen[path] = (content, _now())
                return None
            if _now() - since < LEASE:
                return None
            stale[path] = content
        if not self._objects.create(path, _token()):
            return None
        if any(self._objects.read(below) != content for below, content in stale.items()):
            # An heir released them while we looked: whoever comes now begins anew.
            self._objects.delete(path)
            return None
        return len(stale)

    def _release(self, name: str, generation: int) -> None:
        if self._objects.read(_path(name, generation + 1)) is not None:
            return  # it was taken over from us, and whoever did that removes it
        # Our own last: who finds it gone finds that those before have gone too.
        for number in range(generation + 1):
            self._seen.pop(_path(name, number), None)
            self._objects.delete(_path(name, number))

    def _beat(self, path: str, ended: threading.Event) -> None:
        while not ended.wait(BEAT):
            try:
                self._objects.put(path, _token())
            except DCSError as error:
                # The next beat may get through, and work that is done twice is no harm.
                _log.warning("%s", error)

    def _exclusive(self) -> bool:
        """Return whether of two objects of one name only the first can be created."""
        if self._works is None:
            probe = f"probes/{uuid.uuid4().hex}{CLAIM}"
            try:
                first, second = (self._objects.create(probe, _token()) for _ in range(2))
                self._works = first and not second
            except NotImplementedError:
                self._works = False
            self._objects.delete(probe)
            if not self._works:
                _log.warning(
                    "store %s cannot create objects exclusively: processes at once may score the "
                    "same prompts, with equal results",
                    self._objects.url,
                )
        return self._works


def _token() -> bytes:
    return uuid.uuid4().bytes


def _path(name: str, generation: int) -> str:
    return f"{name}.{generation}{CLAIM}"
