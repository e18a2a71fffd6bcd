"""Reads the texts of tasks: local files of several forms, or a dataset of the hub."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from dcs.errors import ConfigError
from dcs.io import existing_file, parse_json
from dcs.messages import escaped, hub_advice, named, reason, show
from dcs.prompting.task_files import FileLocation, HubLocation, TaskFile, TextLocation
from dcs.prompting.tasks import SPLITS, Example, Split
from dcs.seeds import derive_generator

__all__ = ["read_examples"]

_KEY = "@key"  # a JSON object's own name for a row


def read_examples(file: TaskFile, split: Split, *, data: str | None = None) -> tuple[Example, ...]:
    """Return the texts of a split.

    Parameters
    ----------
    file : TaskFile
        The task.
    split : {"optimization", "test"}
        The split.
    data : str, optional
        Folder that holds the files, or a folder of the task's name with them; without it, the
        texts come from the hub.

    Raises
    ------
    ConfigError
        If the texts are not there, or a row is malformed; names file, row, key and value.
    """
    if data is None:
        return _read(file, split, None, None)
    stamps = [_path(file, name, data).stat() for name in SPLITS]
    # Files that have changed since are read again.
    return _read(file, split, data, tuple((stamp.st_mtime_ns, stamp.st_size) for stamp in stamps))


@lru_cache(maxsize=32)
def _read(file: TaskFile, split: Split, data: str | None, stamp: object) -> tuple[Example, ...]:
    place: TextLocation
    if data is not None and file.files is not None:
        path = _path(file, split, data)
        where, place, rows = escaped(path), file.files, _file_rows(file.files, path)
    elif data is None and file.hub is not None:
        where, place = f"{file.hub.dataset} ({getattr(file.hub, split)})", file.hub
        rows = _hub_rows(file, file.hub, split)
    else:
        raise ConfigError(_how_to_get(file, data))
    examples = []
    for row, values in enumerate(rows):
        try:
            examples.append(_example(file, place, f"{file.name}-{split}", row, values))
        except ValueError as error:
            raise ConfigError(f"{where}: row {row}: {error}") from None
    if not examples:
        raise ConfigError(f"{where}: holds no texts")
    if file.disjoint and split == "optimization":
        shown = {example.text for example in _read(file, "test", data, stamp)}
        examples = [example for example in examples if example.text not in shown]
    size = file.sizes.get(split, len(examples))
    if size < len(examples):
        rng = derive_generator(file.seed, "texts", file.name, split)
        kept = np.sort(rng.permutation(len(examples))[:size])
        examples = [examples[int(row)] for row in kept]
    seen: set[str] = set()
    for example in examples:
        if example.id in seen:
            raise ConfigError(f"{where}: id {example.id!r} occurs more than once")
        seen.add(example.id)
    return tuple(examples)


def _example(file: TaskFile, place: TextLocation, prefix: str, row: int, values: Any) -> Example:
    """Make an example of a row; a ValueError says what is wrong with it."""
    if not isinstance(values, Mapping):
        raise ValueError(f"is {show(values)}, not an object")
    fields = {}
    for name, key in place.fields.items():
        value = _value(values, key)
        if isinstance(value, list) and all(isinstance(part, str) for part in value):
            value = " ".join(value)
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"key {key!r} is {show(value)}; a text is needed")
        for old, new in file.replace:
            value = value.replace(old, new)
        fields[name] = value.strip()
    plain = file.input_prefix  # which stands before the text, so that the text is the field alone
    text = next(iter(fields.values())) if plain else file.input_template.format_map(fields)
    own = _value(values, place.id) if place.id else values.get(_KEY, f"{row:05d}")
    return Example(f"{prefix}-{own}", text, _label(file, place, _value(values, place.label)))


def _value(values: Mapping[str, Any], key: str) -> Any:
    found: Any = values
    for part in key.split("."):
        if not isinstance(found, Mapping) or part not in found:
            raise ValueError(f"has no key {key!r}; it has {', '.join(map(str, values))}")
        found = found[part]
    return found


def _label(file: TaskFile, place: TextLocation, raw: Any) -> int:
    """Return the class that a label stands for: by `labels`, or by its name or number."""
    labels = place.labels or file.labels
    names = labels or tuple((name,) for name in file.classes)
    numbers = () if labels else tuple((index,) for index in range(len(file.classes)))
    for allowed in (names, numbers):
        for index, entry in enumerate(allowed):
            if not isinstance(raw, bool) and str(raw) in map(str, entry):
                return index
    raise ValueError(f"label {show(raw)} is none of {', '.join(str(e[0]) for e in names)}")


def _path(file: TaskFile, split: Split, data: str) -> Path:
    if file.files is not None:
        for folder in (Path(data) / file.name, Path(data)):
            path = folder / str(getattr(file.files, split))
            if path.is_file():
                return path
    raise ConfigError(_how_to_get(file, data))


def _how_to_get(file: TaskFile, data: str | None) -> str:
    ways = []
    if file.files is not None:
        folder = Path(data or "DIR") / file.name
        names = f"{folder / file.files.optimization} and {folder / file.files.test}"
        told = f"there are no {names}" if data else f"give --data DIR with {names}"
        ways.append(f"{told}: {file.obtain}" if file.obtain else told)
    if file.hub is not None and data is None:
        ways.append(f"pip install datasets, to fetch {file.hub.dataset} from the hub")
    elif file.hub is not None and file.files is None:
        ways.append(f"they come from the hub ({file.hub.dataset}): no --data")
    return f"task {file.name!r} comes without its texts: {'; or '.join(ways)}"


def _file_rows(place: FileLocation, path: Path) -> Iterable[Any]:
    source = existing_file(path, error=ConfigError)
    try:
        text = source.read_bytes().decode(place.encoding).removeprefix("\ufeff")
        if place.format == "csv":
            return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
    except (OSError, UnicodeError, LookupError, MemoryError, csv.Error) as error:
        raise ConfigError(
            f"{escaped(path)}: cannot be read as {place.format} in {show(place.encoding)}: "
            f"{reason(error)}; the task's keys files.format and files.encoding name others"
        ) from None
    if place.format == "json":
        content = parse_json(text, source=escaped(path), error=ConfigError, finite=False)
        if isinstance(content, dict):
            content = [
                {_KEY: key, **value} if isinstance(value, dict) else value
                for key, value in content.items()
            ]
        if not isinstance(content, list):
            raise ConfigError(f"{escaped(path)}: holds neither a list nor an object of rows")
        return content
    # Only line feeds end a row: a text may hold other separators that splitlines() heeds.
    lines = [line.rstrip("\r") for line in text.split("\n")]
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if place.format == "lines":
        parts = [line.partition(" ") for _, line in numbered]
        return [{"label": head.partition(":")[0], "text": rest} for head, _, rest in parts]
    return [
        parse_json(line, source=f"{escaped(path)}: line {number}", error=ConfigError, finite=False)
        for number, line in numbered
    ]


def _hub_rows(file: TaskFile, place: HubLocation, split: Split) -> Iterable[Any]:
    try:
        import datasets
    except ImportError:
        raise ConfigError(_how_to_get(file, None)) from None
    name, revision = getattr(place, split), place.revision or None
    try:
        table = datasets.load_dataset(
            place.dataset, place.config or None, split=name, revision=revision
        )
    except Exception as error:
        # The library and the network below it raise errors of many unrelated classes.
        raise ConfigError(
            f"task {file.name!r}: dataset {place.dataset!r} ({name}) cannot be loaded "
            f"({named(error)}); {hub_advice(error)}, or give --data DIR"
        ) from error
    rows: Iterable[Any] = table
    return rows
