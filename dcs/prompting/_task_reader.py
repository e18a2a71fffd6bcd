"""Checks the YAML file of a task, key by key."""

from __future__ import annotations

import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast, get_args

from dcs._messages import show, suggest
from dcs.errors import ConfigError
from dcs.prompting.descriptions import FileFormat, TaskFile, TextLocation
from dcs.prompting.tasks import SPLITS

__all__ = ["TaskReader"]

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


class TaskReader:
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
