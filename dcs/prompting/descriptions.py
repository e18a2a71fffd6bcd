"""What the YAML file of a task says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["FileFormat", "TaskFile", "TextLocation"]

FileFormat = Literal["jsonl", "json", "csv", "lines"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLocation:
    """Where the texts of a task are, and under which names.

    Parameters
    ----------
    optimization, test : str
        File of each split in the task's folder, or split of the hub dataset.
    fields : tuple of (str, str)
        Field of the template, and where a row holds it; ``a.b`` is b within a.
    label : str
        Where a row holds its label.
    labels : tuple of tuple
        What stands for each class there; empty: class names, or numbers from 0.
    id : str
        Where a row holds its name; empty: rows are numbered.
    format, encoding : str
        Form of local files.
    dataset, config, revision : str
        A dataset of the hub.
    """

    optimization: str
    test: str
    fields: tuple[tuple[str, str], ...]
    label: str
    labels: tuple[tuple[str | int, ...], ...] = ()
    id: str = ""
    format: FileFormat = "jsonl"
    encoding: str = "utf-8"
    dataset: str = ""
    config: str = ""
    revision: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFile:
    """A task as its YAML file describes it.

    Parameters
    ----------
    path : str
        The file, for messages.
    name, title, instruction : str
        As in :class:`dcs.prompting.Task`.
    classes, label_words : tuple of str
        As in :class:`dcs.prompting.Task`.
    template : str
        A query, with ``{field}`` where a field of the text goes; its last line is the answer
        prefix.
    replace : tuple of (str, str)
        Replacements in every field, in order.
    sizes : tuple of (str, int)
        At most so many texts of each split, drawn with `seed`; a split left out is taken whole.
    seed : int
        Seed of that draw.
    disjoint : bool
        Whether optimization texts that are also test texts are left out.
    obtain : str
        How to get the files, for messages.
    files, hub : TextLocation or None
        Local files and a dataset of the hub.
    """

    path: str
    name: str
    title: str
    classes: tuple[str, ...]
    label_words: tuple[str, ...]
    instruction: str
    template: str
    replace: tuple[tuple[str, str], ...] = ()
    sizes: tuple[tuple[str, int], ...] = ()
    seed: int = 0
    disjoint: bool = False
    obtain: str = ""
    files: TextLocation | None = None
    hub: TextLocation | None = None

    @property
    def input_template(self) -> str:
        """The template up to its last line."""
        return self.template.rpartition("\n")[0]

    @property
    def input_prefix(self) -> str:
        """What stands before the text, if the text has one field at the end; else nothing."""
        head, brace, tail = self.input_template.partition("{")
        plain = brace and tail.endswith("}") and "{" not in tail
        return head.rstrip(" ") if plain and "\n" not in head and head.endswith(" ") else ""
