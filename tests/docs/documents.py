"""The documents as data: their blocks of code, their headings, their links.

Before a block of code stand the comments that say how it is run; they do not show on the page:

    <!-- not run: REASON -->      it is not run, for this reason
    <!-- slow -->                 it is run with the slow tests
    <!-- given: NAME, ... -->     files or programs that it needs; see givens.py
    <!-- file: NAME -->           it is written to a file of this name
    <!-- where: WORD = TEXT -->   WORD stands for TEXT, which the shell expands; repeatable
    <!-- background: URL -->      it runs to the end of the document; URL answers once it is up
    <!-- output -->               each of its lines is in what the block before it printed
    <!-- source: FILE -->         it is a part of this file of the checkout

Shell and Python blocks are run in order, one folder per document; those of other languages are
not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

__all__ = ["ROOT", "RUN", "Block", "Document", "documents", "marker_names"]

ROOT = Path(__file__).parents[2]

RUN = ("sh", "python")
"""Languages of blocks that are run."""

_MARKERS = ("not run", "slow", "given", "file", "where", "background", "output", "source")
_COMMENT = re.compile(r"<!--\s*(.*?)\s*-->", flags=re.DOTALL)
_ANCHOR = re.compile(r"<a\s+(?:id|name)=[\"']([^\"']+)")


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code.

    Attributes
    ----------
    language : str
        What stands after the fence; empty for an indented block.
    code : str
        The code.
    line : int
        Line of the document on which it begins, from 1.
    markers : tuple of (str, str)
        The comments before it: name and what follows the colon.
    """

    language: str
    code: str
    line: int
    markers: tuple[tuple[str, str], ...] = ()

    def marked(self, name: str) -> list[str]:
        """Return what the comments of a name say; empty if there is none."""
        return [text for marker, text in self.markers if marker == name]


@dataclass(frozen=True, slots=True)
class Document:
    """One Markdown file.

    Attributes
    ----------
    path : pathlib.Path
        The file.
    blocks : tuple of Block
        Its code.
    anchors : frozenset of str
        What a link may name after ``#``.
    links : tuple of (str, int)
        Targets of links and pictures, and their lines.
    """

    path: Path
    blocks: tuple[Block, ...] = ()
    anchors: frozenset[str] = frozenset()
    links: tuple[tuple[str, int], ...] = field(default=())

    @property
    def name(self) -> str:
        """The file as seen from the root of the checkout."""
        return self.path.relative_to(ROOT).as_posix()


def documents() -> list[Document]:
    """Return the README and all of ``docs``, and what else people read at the root."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    others = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
    paths += [ROOT / name for name in others if (ROOT / name).exists()]
    return [_parse(path) for path in paths if "reference" not in path.parts[:-1]]


def marker_names() -> tuple[str, ...]:
    """Return the words that a comment before a block may begin with."""
    return _MARKERS


@cache
def _parse(path: Path) -> Document:
    tokens = MarkdownIt("commonmark").enable("table").parse(path.read_text(encoding="utf-8"))
    blocks: list[Block] = []
    markers: list[tuple[str, str]] = []
    anchors: dict[str, int] = {}
    links: list[tuple[str, int]] = []
    line = 1
    for i, token in enumerate(tokens):
        line = token.map[0] + 1 if token.map else line
        if token.type == "html_block":
            markers += map(_marker, _COMMENT.findall(token.content))
            for anchor in _ANCHOR.findall(token.content):
                anchors[anchor] = 1
        elif token.type in ("fence", "code_block"):
            blocks.append(Block(token.info.strip(), token.content, line, tuple(markers)))
            markers = []
        elif token.type == "inline":
            markers = []
            links += [(target, line) for target in _targets(token)]
            if tokens[i - 1].type == "heading_open":
                _add_anchor(anchors, _text(token))
    return Document(path, tuple(blocks), frozenset(anchors), tuple(links))


def _marker(comment: str) -> tuple[str, str]:
    name, _, text = comment.partition(":")
    return " ".join(name.split()), " ".join(text.split())


def _targets(token: Token) -> Iterator[str]:
    for child in token.children or ():
        target = child.attrs.get("href" if child.type == "link_open" else "src")
        if child.type in ("link_open", "image") and isinstance(target, str):
            yield target


def _text(token: Token) -> str:
    return "".join(c.content for c in token.children or () if c.type in ("text", "code_inline"))


def _add_anchor(anchors: dict[str, int], heading: str) -> None:
    """Name a heading as GitHub does: lower case, blanks to hyphens, numbered when repeated."""
    slug = re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
    seen = anchors.get(slug, 0)
    anchors[slug] = seen + 1
    if seen:
        anchors[f"{slug}-{seen}"] = 1
