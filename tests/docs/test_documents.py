"""What the documents show works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from . import givens
from .documents import ROOT, RUN, Block, Document, documents, marker_names
from .runner import Session

_DOCUMENTS = {document.name: document for document in documents()}
#: Languages of blocks that show something and are not run.
_SHOWN = ("text", "json", "yaml", "toml", "csv", "math")


def _is_run(block: Block) -> bool:
    if block.marked("not run") or block.marked("source"):
        return False
    return block.language in RUN or bool(block.marked("file"))


def _runs(slow: bool) -> list[str]:
    return [
        name
        for name, document in _DOCUMENTS.items()
        if any(_is_run(block) and bool(block.marked("slow")) == slow for block in document.blocks)
    ]


@pytest.mark.parametrize("name", _runs(slow=False))
def test_the_quick_commands_work(name: str, tmp_path: Path) -> None:
    _run(_DOCUMENTS[name], tmp_path, slow_too=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", _runs(slow=True))
def test_all_commands_work(name: str, tmp_path: Path) -> None:
    _run(_DOCUMENTS[name], tmp_path, slow_too=True)


def _run(document: Document, folder: Path, *, slow_too: bool) -> None:
    printed: str | None = None
    with Session(document, folder) as session:
        for block in document.blocks:
            is_now = slow_too or not block.marked("slow")
            if _is_run(block):
                printed = session.run(block) if is_now else None
            elif block.marked("output") and printed is not None:
                there = {" ".join(line.split()) for line in printed.splitlines()}
                shown = [" ".join(line.split()) for line in block.code.splitlines()]
                missing = [line for line in shown if line not in there | {"", "..."}]
                assert not missing, f"{document.name}:{block.line}: not printed: {missing}"


@pytest.mark.parametrize("name", _DOCUMENTS)
def test_every_block_says_what_it_is(name: str) -> None:
    for block in _DOCUMENTS[name].blocks:
        place = f"{name}:{block.line}"
        assert block.language in (*RUN, *_SHOWN), f"{place}: fence it, with its language"
        for marker, text in block.markers:
            assert marker in marker_names(), f"{place}: unknown comment {marker!r}"
            assert text or marker in ("slow", "output"), f"{place}: {marker}: what?"
        for file in block.marked("source"):
            text = (ROOT / file).read_text(encoding="utf-8")
            assert block.code.strip() in text, f"{place}: not a part of {file}"
        for text in block.marked("given"):
            unknown = {given.strip() for given in text.split(",")} - {*givens.names()}
            assert not unknown, f"{place}: nothing prepares {unknown}"


@pytest.mark.parametrize("name", _DOCUMENTS)
def test_what_is_not_run_has_a_reason(name: str) -> None:
    for block in _DOCUMENTS[name].blocks:
        for reason in block.marked("not run"):
            # Said where a failure can be looked up: pytest -rA -k reason
            print(f"{name}:{block.line} is not run: {reason}")
            assert len(reason.split()) >= 3, f"{name}:{block.line}: {reason!r} is no reason"


def test_ci_runs_the_two_commands_of_the_readme() -> None:
    # The one exclusion that the tests cannot make good themselves.
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    readme = _DOCUMENTS["README.md"]
    made = [
        line.split("#")[0].strip()
        for block in readme.blocks
        for line in block.code.splitlines()
        if line.startswith("make ")
    ]
    assert len(made) >= 2
    assert [command for command in made if not re.search(rf"^{command}$", ci, re.MULTILINE)] == []


def test_the_figures_of_the_readme_are_those_of_the_results() -> None:
    results = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    lines = [line for line in results.splitlines() if line.startswith("|")]
    mean = next(
        i for i, line in enumerate(lines) if line.startswith("| mean of accuracy − COBias")
    )
    head = next(line for line in reversed(lines[:mean]) if line.startswith("| table |"))
    figures = dict(zip(_entries(head), _entries(lines[mean]), strict=True))
    methods = ("icl", "batch", "logistic-balanced", "published", "dcs")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = next(
        line for line in readme.splitlines() if re.fullmatch(r"\|( \**[\d.]+\** \|)+", line)
    )
    assert [entry.strip("*") for entry in _entries(shown)] == [figures[name] for name in methods]


def _entries(row: str) -> list[str]:
    return [entry.strip() for entry in row.strip().strip("|").split("|")]
