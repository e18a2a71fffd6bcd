"""Tasks described by a YAML file: the paper's seven, and a user's own."""

from __future__ import annotations

import os
import string
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, cast, get_args

from dcs.errors import ConfigError
from dcs.io import read_yaml
from dcs.messages import escaped, show, suggest
from dcs.prompting.tasks import SPLITS, Split, Task

__all__ = [
    "FileFormat",
    "TaskFile",
    "TextLocation",
    "described_task_names",
    "load_task",
    "read_task_file",
]


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


_REQUIRED = ("name", "classes", "template")

_LOCATION_KEYS = ("optimization", "test", "fields", "label", "labels", "id")

_KEYS: dict[str, tuple[str, ...]] = {
    "": (
        *("name", "title", "classes", "label_words", "labels", "instruction", "template"),
        *("replace", "sizes", "seed", "disjoint", "obtain", "files", "hub"),
    ),
    "files": ("format", "encoding", *_LOCATION_KEYS),
    "hub": ("dataset", "config", "revision", *_LOCATION_KEYS),
    "sizes": SPLITS,
}


class _TaskReader:
    """Checks the content of one file; every error begins with its path."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fail(self, key: str, message: str) -> ConfigError:
        return ConfigError(f"{self.path}: key {key!r}: {message}")

    def task(self, content: Any) -> TaskFile:
        values = self.mapping("", content)
        for key in _REQUIRED:
            if key not in values:
                raise self.fail(key, "is missing")
        classes = self.strings("classes", values["classes"])
        labels = self.labels("labels", values.get("labels"), classes)
        template = self.string("template", values["template"])
        fields = self.fields(template)
        places = {
            key: None
            if values.get(key) is None
            else self.location(key, values[key], fields, classes, labels)
            for key in ("files", "hub")
        }
        if not any(places.values()):
            raise ConfigError(f"{self.path}: give key 'files' or 'hub': where the texts are")
        words = values.get("label_words")
        return TaskFile(
            path=str(self.path),
            name=self.string("name", values["name"]),
            title=self.string("title", values.get("title", values["name"])),
            classes=classes,
            label_words=classes if words is None else self.strings("label_words", words),
            instruction=self.string("instruction", values.get("instruction", "")),
            template=template,
            replace=self.replacements(values.get("replace", [])),
            sizes=tuple(
                (split, self.whole(f"sizes.{split}", size, least=1))
                for split, size in self.mapping("sizes", values.get("sizes", {})).items()
            ),
            seed=self.whole("seed", values.get("seed", 0), least=0),
            disjoint=self.flag("disjoint", values.get("disjoint", False)),
            obtain=self.string("obtain", values.get("obtain", "")),
            files=places["files"],
            hub=places["hub"],
        )

    def location(
        self,
        key: str,
        content: Any,
        fields: tuple[str, ...],
        classes: tuple[str, ...],
        labels: tuple[tuple[str | int, ...], ...],
    ) -> TextLocation:
        values = self.mapping(key, content)
        needed = ["optimization", "test", "label", "fields"] + ["dataset"] * (key == "hub")
        for name in needed:
            if name not in values:
                raise self.fail(f"{key}.{name}", "is missing")
        places = values["fields"]
        if not isinstance(places, dict) or set(places) != set(fields):
            raise self.fail(
                f"{key}.fields",
                f"is {show(places)}; the template's fields are {', '.join(fields)}",
            )
        form = values.get("format", "jsonl")
        if form not in get_args(FileFormat):
            allowed = get_args(FileFormat)
            raise self.fail(
                f"{key}.format", f"is {show(form)}{suggest(form, allowed)}; {', '.join(allowed)}"
            )
        for split in SPLITS if key == "files" else ():
            self.inside(f"files.{split}", values[split])
        own = self.labels(f"{key}.labels", values.get("labels"), classes)
        plain = {
            name: self.string(f"{key}.{name}", values[name])
            for name in ("label", "id", "encoding", "dataset", "config", "revision", *SPLITS)
            if name in values
        }
        return TextLocation(
            fields=tuple((f, self.string(f"{key}.fields.{f}", places[f])) for f in fields),
            labels=own or labels,
            format=cast(FileFormat, form),
            **plain,
        )

    def mapping(self, key: str, content: Any) -> Mapping[str, Any]:
        if not isinstance(content, dict):
            where = f"key {key!r}" if key else "content"
            raise ConfigError(f"{self.path}: {where} is {show(content)}, not a mapping of keys")
        for name in content:
            if name not in _KEYS[key]:
                full = f"{key}.{name}" if key else str(name)
                raise ConfigError(
                    f"{self.path}: unknown key {full!r}{suggest(name, _KEYS[key])}; "
                    f"allowed: {', '.join(_KEYS[key])}"
                )
        return content

    def string(self, key: str, value: Any) -> str:
        if not isinstance(value, str):
            raise self.fail(key, f"is {show(value)}, not text; put it in quotation marks")
        return value

    def inside(self, key: str, value: Any) -> None:
        """Refuse a file outside of the folder: a stranger's task must not send others away."""
        place = Path(self.string(key, value))
        if place.is_absolute() or ".." in place.parts:
            raise self.fail(
                key,
                f"is {show(value)}, outside of the task's folder; name a file within it, and "
                "give the folder with --data DIR",
            )

    def strings(self, key: str, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not value:
            raise self.fail(key, f"is {show(value)}, not a list of texts")
        return tuple(self.string(key, entry) for entry in value)

    def whole(self, key: str, value: Any, *, least: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.fail(key, f"is {show(value)}; a whole number from {least} is needed")
        return value

    def flag(self, key: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise self.fail(key, f"is {show(value)}; allowed: true, false")
        return value

    def labels(
        self, key: str, value: Any, classes: tuple[str, ...]
    ) -> tuple[tuple[str | int, ...], ...]:
        if value is None:
            return ()
        if not isinstance(value, list) or len(value) != len(classes):
            raise self.fail(key, f"is {show(value)}; one entry for each of {len(classes)} classes")
        entries = [entry if isinstance(entry, list) else [entry] for entry in value]
        for entry in sum(entries, []):
            if not isinstance(entry, (str, int)) or isinstance(entry, bool):
                raise self.fail(key, f"holds {show(entry)}; texts and whole numbers are allowed")
        return tuple(tuple(entry) for entry in entries)

    def replacements(self, value: Any) -> tuple[tuple[str, str], ...]:
        if not isinstance(value, list):
            raise self.fail("replace", f"is {show(value)}, not a list of [old, new]")
        for pair in value:
            if not isinstance(pair, list) or len(pair) != 2 or not pair[0]:
                raise self.fail("replace", f"holds {show(pair)}; [old, new] is needed")
        return tuple((self.string("replace", a), self.string("replace", b)) for a, b in value)

    def fields(self, template: str) -> tuple[str, ...]:
        try:
            parts = list(string.Formatter().parse(template))
        except ValueError as error:
            raise self.fail("template", f"is {show(template)}: {error}") from None
        names = [name for _, name, _, _ in parts if name is not None]
        if any(form or conversion for _, _, form, conversion in parts):
            # "{text:>9999999999}" would fill the memory with spaces.
            raise self.fail(
                "template", f"is {show(template)}; a field is its name in braces, nothing more"
            )
        last = template.rpartition("\n")[2]
        if not names or not all(name.isidentifier() for name in names):
            raise self.fail("template", f"is {show(template)}; {{field}} must stand for the text")
        if "\n" not in template or "{" in last or not last.strip():
            raise self.fail(
                "template",
                f"is {show(template)}; its last line must be the answer prefix, without fields",
            )
        return tuple(dict.fromkeys(names))


_FOLDER = Path(__file__).parents[1] / "assets" / "tasks"

_ORDER = ("agnews", "dbpedia", "sst5", "trec", "rte", "ddi", "pubmedqa")


@dataclass(frozen=True, slots=True)
class _Source:
    """Gives the texts; kept as values alone, so that a task can be sent to other processes."""

    file: TaskFile
    data: str | None = None

    def __call__(self, split: Split) -> tuple[Any, ...]:
        from dcs.prompting.texts import read_examples

        return read_examples(self.file, split, data=self.data)


def described_task_names() -> tuple[str, ...]:
    """Return the names of the tasks that come as a description without texts."""
    return _ORDER


def load_task(name: str, data: str | os.PathLike[str] | None = None) -> Task:
    """Return a task that a YAML file describes.

    Parameters
    ----------
    name : str
        One of :func:`described_task_names`, or the path of a YAML file.
    data : path-like, optional
        Folder that holds the files of the task, in itself or in a folder of the task's name.
        Without it, texts come from beside a user's own YAML file, or from the hub.

    Raises
    ------
    ConfigError
        If the file is not there, or a key or value in it is not allowed.
    """
    path = _FOLDER / f"{name}.yaml" if name in _ORDER else Path(name)
    file = read_task_file(path)
    if data is None and name not in _ORDER and file.files is not None and file.hub is None:
        data = path.parent
    try:
        return Task(
            name=file.name,
            title=file.title,
            classes=file.classes,
            label_words=file.label_words,
            instruction=file.instruction,
            input_prefix=file.input_prefix,
            answer_prefix=file.template.rpartition("\n")[2],
            template=file.template,
            sizes=file.sizes,
            source=_Source(file, None if data is None else os.fspath(Path(data).absolute())),
        )
    except ConfigError as error:
        raise ConfigError(f"{escaped(path)}: {error}") from None


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
    return _TaskReader(path).task(read_yaml(path, error=ConfigError))
