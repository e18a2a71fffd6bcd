"""The audit never says that all is well when nobody could know."""

from __future__ import annotations

import importlib.util
import io
import json
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def audit() -> ModuleType:
    path = Path(__file__).parents[2] / "scripts" / "audit.py"
    spec = importlib.util.spec_from_file_location("audit", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answer(monkeypatch: pytest.MonkeyPatch, packages: Any) -> None:
    serve(monkeypatch, b'{"info": {}, "vulnerabilities": []}')
    text = packages if isinstance(packages, str) else json.dumps({"dependencies": packages})
    done = subprocess.CompletedProcess([], 0, text, "")
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: done)


def serve(monkeypatch: pytest.MonkeyPatch, page: bytes | Exception) -> None:
    def urlopen(*arguments: object, **options: object) -> io.BytesIO:
        if isinstance(page, Exception):
            raise page
        return io.BytesIO(page)

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)


CLEAN = {"name": "a", "version": "1", "vulns": []}
UNKNOWN = {"name": "b", "skip_reason": "Dependency not found"}
HOLED = {"name": "c", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}


@pytest.mark.parametrize(
    ("packages", "code", "words"),
    [
        ([CLEAN, CLEAN, UNKNOWN], 0, "2 of 3 packages audited, 0 problems"),
        ([UNKNOWN, UNKNOWN, CLEAN], 3, "this says nothing"),
        ([HOLED, UNKNOWN], 1, "c 1: CVE-1, mended in 2"),
        ("connection refused", 3, "no answer"),
        ({"odd": 1}, 3, "no answer"),
    ],
)
def test_the_answer(
    packages: Any,
    code: int,
    words: str,
    audit: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer(monkeypatch, json.dumps(packages) if isinstance(packages, dict) else packages)
    assert audit.main([]) == code
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    "page",
    [
        b"<html>a mirror</html>",
        b'{"info": {}}',
        b"[]",
        b"404",
        urllib.error.HTTPError("u", 404, "Not Found", None, None),  # type: ignore[arg-type]
        urllib.error.URLError("no route"),
        TimeoutError(),
    ],
)
def test_a_service_out_of_reach_is_said_and_fails_nothing_that_does_not_need_it(
    page: bytes | Exception,
    audit: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    serve(monkeypatch, page)
    monkeypatch.setattr(subprocess, "run", None)
    assert audit.main(["constraints.txt"]) == 3
    assert audit.main(["--if-reachable", "constraints.txt"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("audit: not audited, this says nothing") for line in lines)


def test_a_problem_fails_also_where_the_service_need_not_be_there(
    audit: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, [HOLED])
    assert audit.main(["--if-reachable", "constraints.txt"]) == 1
    answer(monkeypatch, [CLEAN])
    assert audit.main(["--if-reachable", "constraints.txt"]) == 0


def test_an_accepted_problem_is_none(audit: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, [HOLED])
    monkeypatch.setitem(audit.ACCEPTED, "CVE-1", "needs a server that is not started here")
    assert audit.main([]) == 0
