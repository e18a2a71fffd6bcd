"""What the documents show works as it stands there, and their links lead somewhere."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest

from .givens import record_quickstart
from .runner import ROOT, Session, blocks_of, documents

_RUN = [name for name in documents() if any(block.runs for block in blocks_of(name))]


@pytest.mark.slow
@pytest.mark.parametrize("name", _RUN)
def test_what_is_shown_works(name: str, tmp_path: Path, empty_store: Path) -> None:
    printed, blocks = "", blocks_of(name)
    with Session(tmp_path, empty_store) as session:
        for block, after in zip(blocks, [*blocks[1:], None], strict=True):
            if block.runs:
                shown = after is not None and bool(after.marked("output"))
                printed = session.run(block, shown=shown)
            elif block.marked("output"):
                there = {" ".join(line.split()) for line in printed.splitlines()}
                expected = {" ".join(line.split()) for line in block.code.splitlines()}
                assert expected - there <= {"", "..."}, f"{name}:{block.line}"


@pytest.mark.parametrize("name", documents())
def test_code_that_is_shown_is_that_of_the_checkout(name: str) -> None:
    for block in blocks_of(name):
        for file in block.marked("source"):
            source = (ROOT / file).read_text(encoding="utf-8")
            assert block.code.strip() in source, f"{name}:{block.line}"


@pytest.mark.parametrize("name", documents())
def test_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", (ROOT / name).read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = unquote(target).partition("#")
        path = ((ROOT / name).parent / file) if file else ROOT / name
        assert path.exists(), target
        assert not anchor or anchor in _anchors(path), target


def _anchors(path: Path) -> set[str]:
    text = path.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", each.lower()).strip().replace(" ", "-") for each in headings}
    return slugs | set(re.findall(r"<a id=\"([^\"]+)\"", text))


def test_the_threat_model_names_tests_that_exist() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert named
    for path, test in named:
        assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8"), test


def test_the_notebook_runs(output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record_quickstart(output.rename(tmp_path / "dcs-runs"))
    monkeypatch.chdir(tmp_path)
    images: list[bytes] = []
    # Matplotlib looks at the version.
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(version_info=(9, 0, 0)))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(Image=images.append))
    notebook = json.loads((ROOT / "docs" / "example.ipynb").read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"], "an output is missing"
            exec("".join(cell["source"]), names)
    assert names["table"].rows
    assert images and all(image.startswith(b"\x89PNG") for image in images)
