"""Tasks described by a YAML file: the paper's seven, and a user's own."""

from __future__ import annotations

import string
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveInt,
    StrictBool,
    field_validator,
    model_validator,
)

from dcs.errors import ConfigError
from dcs.io import read_yaml
from dcs.messages import escaped
from dcs.prompting.tasks import Split
from dcs.validation import Strict, validated

__all__ = [
    "DESCRIBED",
    "FileLocation",
    "HubLocation",
    "TaskFile",
    "TextLocation",
    "described_task_path",
    "read_task_file",
]

DESCRIBED = ("agnews", "dbpedia", "sst5", "trec", "rte", "ddi", "pubmedqa")
"""Names of the tasks of the paper, which come without their texts."""

_FOLDER = Path(__file__).parents[1] / "assets" / "tasks"


def _as_list(entry: Any) -> Any:
    return entry if isinstance(entry, list) else [entry]


Labels = tuple[Annotated[tuple[str | int, ...], BeforeValidator(_as_list)], ...]


class TextLocation(Strict):
    """Where the texts of a task are, and under which names.

    Attributes
    ----------
    optimization, test : str
        File of each split in the task's folder, or split of the hub dataset.
    fields : dict of str to str
        Field of the template, and where a row holds it; ``a.b`` is b within a.
    label : str
        Where a row holds its label.
    labels : tuple of tuple
        What stands for each class there; empty: class names, or numbers from 0.
    id : str
        Where a row holds its name; empty: rows are numbered.
    """

    optimization: str
    test: str
    fields: dict[str, str]
    label: str
    labels: Labels = ()
    id: str = ""


class FileLocation(TextLocation):
    """Local files of one form and encoding."""

    format: Literal["jsonl", "json", "csv", "lines"] = "jsonl"
    encoding: str = "utf-8"

    @field_validator("optimization", "test")
    @classmethod
    def _is_inside(cls, name: str) -> str:
        # A stranger's task must not send others' files away.
        if PurePath(name).is_absolute() or ".." in PurePath(name).parts:
            raise ValueError("name a file in the task's folder, and give the folder with --data")
        return name


class HubLocation(TextLocation):
    """A dataset of the hub, perhaps one of its configurations and at a revision."""

    dataset: str
    config: str = ""
    revision: str = ""


class TaskFile(Strict):
    """A task as its YAML file describes it.

    Attributes
    ----------
    name, title, instruction : str
        As in :class:`dcs.prompting.Task`.
    classes, label_words : tuple of str
        As in :class:`dcs.prompting.Task`; the words are the classes, if left out.
    template : str
        A query, with ``{field}`` where a field of the text goes; its last line is the answer
        prefix.
    labels : tuple of tuple
        As in :class:`TextLocation`, where that has none.
    replace : tuple of (str, str)
        Replacements in every field, in order.
    sizes : dict of str to int
        At most so many texts of each split, drawn with `seed`; a split left out is taken whole.
    seed : int
        Seed of that draw.
    disjoint : bool
        Whether optimization texts that are also test texts are left out.
    obtain : str
        How to get the files, for messages.
    files, hub : TextLocation or None
        Local files and a dataset of the hub; one of them at least.
    """

    name: str
    title: str = ""
    classes: tuple[str, ...]
    label_words: tuple[str, ...] = ()
    labels: Labels = ()
    instruction: str = ""
    template: str
    replace: tuple[tuple[Annotated[str, Field(min_length=1)], str], ...] = ()
    sizes: dict[Split, PositiveInt] = Field(default_factory=dict)
    seed: NonNegativeInt = 0
    disjoint: StrictBool = False
    obtain: str = ""
    files: FileLocation | None = None
    hub: HubLocation | None = None

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    @property
    def input_template(self) -> str:
        """The template up to its last line."""
        return self.template.rpartition("\n")[0]

    @property
    def answer_prefix(self) -> str:
        """The last line of the template."""
        return self.template.rpartition("\n")[2]

    @property
    def input_prefix(self) -> str:
        """What stands before the text, if the text has one field at the end; else nothing."""
        head, brace, tail = self.input_template.partition("{")
        plain = brace and tail.endswith("}") and "{" not in tail
        return head.rstrip(" ") if plain and "\n" not in head and head.endswith(" ") else ""

    @field_validator("template")
    @classmethod
    def _has_fields_and_an_answer(cls, template: str) -> str:
        parts = [part[1:] for part in string.Formatter().parse(template) if part[1] is not None]
        plain = (not form and not how and str(name).isidentifier() for name, form, how in parts)
        if not parts or not all(plain):
            raise ValueError("{field} must stand for the text, and nothing more in the braces")
        last = template.rpartition("\n")[2]
        if "\n" not in template or "{" in last or not last.strip():
            raise ValueError("its last line must be the answer prefix, without fields")
        return template

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.files is None and self.hub is None:
            raise ValueError("give key 'files' or 'hub': where the texts are")
        fields = {name for _, name, _, _ in string.Formatter().parse(self.template) if name}
        lists = {"labels": self.labels}
        for key, place in (("files", self.files), ("hub", self.hub)):
            if place is not None:
                lists[f"{key}.labels"] = place.labels
                if set(place.fields) != fields:
                    raise ValueError(
                        f"key '{key}.fields' has {', '.join(place.fields)}; the template's "
                        f"fields are {', '.join(sorted(fields))}"
                    )
        for key, labels in lists.items():
            if labels and len(labels) != len(self.classes):
                raise ValueError(
                    f"key {key!r} has {len(labels)} entries for {len(self.classes)} classes"
                )
        return self


def described_task_path(name: str) -> Path:
    """Return the file of one of the tasks of the paper."""
    return _FOLDER / f"{name}.yaml"


def read_task_file(path: Path) -> TaskFile:
    """Read and check a description.

    Raises
    ------
    ConfigError
        One line: file, key, value and what is allowed.
    """
    try:
        stamp = path.stat().st_mtime_ns
    except (OSError, ValueError):
        raise ConfigError(f"{escaped(path)}: no such task file") from None
    return _parse(path, stamp)


@lru_cache(maxsize=32)
def _parse(path: Path, stamp: int) -> TaskFile:
    values = read_yaml(path, error=ConfigError)
    return validated(TaskFile, values, source=escaped(path), error=ConfigError)
