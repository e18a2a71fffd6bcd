"""Servers that never stop answering: commands end, and nothing is lost."""

from __future__ import annotations

import gzip
import itertools
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import requests

from dcs_tracking import Archive
from dcs_tracking.store.client import within
from dcs_tracking.store.limits import AnswerLimits
from tests.faults.processes import end, start_dcs
from tests.servers import serving
from tests.tracking.cells import recorded

_ZEROS = 300 * gzip.compress(bytes(2**20))
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def _drip(write: Callable[[bytes], Any], parts: bytes) -> None:
    for k in range(10**6):
        write(parts[k % len(parts) : k % len(parts) + 1])
        time.sleep(0.3)


def _endless(write: Callable[[bytes], Any]) -> None:
    while True:
        write(b"0" * 2**16)


ILLNESSES: dict[str, Callable[[Callable[[bytes], Any]], Any]] = {
    "drips its head": lambda write: [write(_HEAD + b"X: "), _drip(write, b"a")],
    "drips its body": lambda write: (
        [write(_HEAD + b"Content-Length: 999999\r\n\r\n[")] + [_drip(write, b" ")]
    ),
    "is endless": lambda write: [write(_HEAD + b"\r\n"), _endless(write)],
    "compresses zeros": lambda write: [
        write(_HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(_ZEROS)),
        write(_ZEROS),
    ],
}


def ill(illness: str, *, after: int) -> AbstractContextManager[str]:
    """Run a server that gives some good answers, and then bad ones only."""
    asked = itertools.count()

    def answer(handler: BaseHTTPRequestHandler, sent: bytes) -> None:
        with suppress(OSError):
            if next(asked) < after:
                handler.wfile.write(_HEAD + b"Content-Length: 2\r\n\r\n{}")
            else:
                ILLNESSES[illness](handler.wfile.write)

    return serving(answer)


@pytest.mark.slow
def test_sick_servers_end_nothing_but_the_recording(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    recorded(output, 1, 2)
    started = {}
    # All at the same time: they wait most of it.
    with ExitStack() as servers:
        for illness, after in [("drips its head", 0), *((each, 2) for each in ILLNESSES)]:
            folder = shutil.copytree(output, tmp_path / f"{illness} after {after}")
            address = servers.enter_context(ill(illness, after=after))
            started[folder] = start_dcs("sync", "--output", folder, "--tracking-uri", address)
        for folder, process in started.items():
            code, out, err = end(process)
            assert code in (2, 3), (folder, out, err)
            assert "Traceback" not in out + err, folder
            assert len(Archive(folder).load(["cell0001", "cell0002"])) == 2


def test_no_answer_fills_the_memory() -> None:
    """It comes at once, so that nothing but the limit of its size ends it."""
    with ill("compresses zeros", after=0) as address, pytest.raises(requests.RequestException):
        requests.get(address, auth=AnswerLimits().get_auth(), timeout=60)


def test_no_answer_takes_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "0.1")
    with ill("drips its body", after=0) as address, pytest.raises(requests.RequestException):
        within(30, lambda: requests.get(address, auth=AnswerLimits().get_auth(), timeout=60))
