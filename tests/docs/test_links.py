"""Links lead somewhere, and every document can be reached from the README."""

from __future__ import annotations

import re
from urllib.parse import unquote

import pytest

from .documents import ROOT, Document, documents

#: Tags of runs, which look like names in the code.
_TAGS = re.findall(r"`(dcs\.\w+)`", (ROOT / "docs" / "tracking.md").read_text(encoding="utf-8"))
_DOCUMENTS = {document.path: document for document in documents()}


def _local(document: Document) -> list[tuple[str, str, int]]:
    """Return file and anchor of the links that stay in the checkout."""
    found = []
    for target, line in document.links:
        if re.match(r"[a-z][a-z+.-]*:", target):
            continue
        file, _, anchor = unquote(target).partition("#")
        found.append((file, anchor, line))
    return found


@pytest.mark.parametrize("document", _DOCUMENTS.values(), ids=lambda document: document.name)
def test_links_lead_somewhere(document: Document) -> None:
    for file, anchor, line in _local(document):
        place = f"{document.name}:{line}"
        path = (document.path.parent / file).resolve() if file else document.path
        assert path.exists(), f"{place}: there is no {file}"
        assert ROOT in path.parents, f"{place}: {file} is outside of the checkout"
        if anchor and path in _DOCUMENTS:
            assert anchor in _DOCUMENTS[path].anchors, f"{place}: {file} has no #{anchor}"


@pytest.mark.parametrize("document", _DOCUMENTS.values(), ids=lambda document: document.name)
def test_web_addresses_are_whole(document: Document) -> None:
    for target, line in document.links:
        if target.startswith("http"):
            assert re.fullmatch(r"https?://[\w.-]+(:\d+)?(/\S*)?", target), (
                f"{document.name}:{line}: {target}"
            )


def test_every_document_can_be_reached_from_the_readme() -> None:
    reached = {ROOT / "README.md"}
    todo = [ROOT / "README.md"]
    while todo:
        document = _DOCUMENTS[todo.pop()]
        for file, _, _ in _local(document):
            path = (document.path.parent / file).resolve()
            if path not in reached:
                reached.add(path)
                todo += [path] if path in _DOCUMENTS else []
    everything = {*_DOCUMENTS, *(ROOT / "docs").glob("*.ipynb")}
    assert sorted(path.name for path in everything - reached) == []


def test_the_index_names_every_page() -> None:
    index = _DOCUMENTS[ROOT / "docs" / "index.md"]
    named = {(index.path.parent / file).resolve() for file, _, _ in _local(index)}
    pages = {path for path in _DOCUMENTS if path.parent == index.path.parent} - {index.path}
    assert sorted(path.name for path in pages - named) == []
