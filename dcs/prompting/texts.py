"""Reads the texts of tasks: local files of several forms, or a dataset of the hub."""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from dcs.errors import ConfigError
from dcs.io import existing_file, hub_advice, memory_bound, parse_json
from dcs.messages import escaped, named, reason, show
from dcs.prompting.task_files import TaskFile, TextLocation
from dcs.prompting.tasks import Example, Split
from dcs.seeds import derive_generator

__all__ = ["read_examples"]

#: Replacements that feed each other double a text each time.
_LONGEST = 10_000_000
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
        Folder that holds the files, or a folder of the task's name with them.

    Raises
    ------
    ConfigError
        If the texts are not there, or a row is malformed; names file, row, key and value.
    """
    place = file.files if data is not None else file.hub
    if place is None or (data is None and not _has_datasets()):
        raise ConfigError(_how_to_get(file, data))
    stamp: object = None
    if data is not None:
        stamp = tuple(_stamp(_path(file, place, name, data)) for name in ("optimization", "test"))
    return _read(file, place, split, data, stamp)


@lru_cache(maxsize=32)
def _read(
    file: TaskFile, place: TextLocation, split: Split, data: str | None, stamp: object
) -> tuple[Example, ...]:
    name = getattr(place, split)
    if data is None:
        where, rows = f"{place.dataset} ({name})", _hub_rows(file, place, name)
    else:
        path = _path(file, place, split, data)
        where, rows = str(path), _file_rows(place, path)
    examples = [_example(file, place, split, where, row, values) for row, values in rows]
    if not examples:
        raise ConfigError(f"{where}: holds no texts")
    if file.disjoint and split == "optimization":
        shown = {example.text for example in read_examples(file, "test", data=data)}
        examples = [example for example in examples if example.text not in shown]
    examples = _sample(file, split, examples)
    seen: set[str] = set()
    for example in examples:
        if example.id in seen:
            raise ConfigError(f"{where}: id {example.id!r} occurs more than once")
        seen.add(example.id)
    return tuple(examples)


def _sample(file: TaskFile, split: Split, examples: list[Example]) -> list[Example]:
    size = dict(file.sizes).get(split, len(examples))
    if len(examples) <= size:
        return examples
    rng = derive_generator(file.seed, "texts", file.name, split)
    kept = np.sort(rng.permutation(len(examples))[:size])
    return [examples[int(row)] for row in kept]


def _example(
    file: TaskFile,
    place: TextLocation,
    split: Split,
    where: str,
    row: int,
    values: Mapping[str, Any],
) -> Example:
    def fail(message: str) -> ConfigError:
        return ConfigError(f"{where}: row {row}: {message}")

    def get(key: str) -> Any:
        found: Any = values
        for part in key.split("."):
            if not isinstance(found, Mapping) or part not in found:
                raise fail(f"has no key {key!r}; it has {', '.join(map(str, values))}")
            found = found[part]
        return found

    fields = {}
    for name, key in place.fields:
        value = get(key)
        if isinstance(value, list) and all(isinstance(part, str) for part in value):
            value = " ".join(value)
        if not isinstance(value, str) or not value.strip():
            raise fail(f"key {key!r} is {show(value)}; a text is needed")
        for old, new in file.replace:
            if len(value) + value.count(old) * (len(new) - len(old)) > _LONGEST:
                raise fail(f"key {key!r} is longer than {_LONGEST} characters after {old!r}")
            value = value.replace(old, new)
        fields[name] = value.strip()
    raw = get(place.label)
    label = _label(file, place, raw)
    if label is None:
        names = [entry[0] for entry in place.labels] or list(file.classes)
        raise fail(f"label {show(raw)} is none of {', '.join(map(str, names))}")
    text = (
        next(iter(fields.values()))
        if file.input_prefix
        else file.input_template.format_map(fields)
    )
    name = str(get(place.id)) if place.id else str(values.get(_KEY, f"{row:05d}"))
    return Example(id=f"{file.name}-{split}-{name}", text=text, label=label)


def _label(file: TaskFile, place: TextLocation, raw: Any) -> int | None:
    if isinstance(raw, bool):
        return None
    for index, names in enumerate(place.labels):
        if raw in names or str(raw) in map(str, names):
            return index
    if place.labels:
        return None
    if raw in file.classes:
        return file.classes.index(raw)
    text = str(raw)
    if text.isascii() and text.isdigit() and int(text) < len(file.classes):
        return int(text)
    return None


def _path(file: TaskFile, place: TextLocation, split: str, data: str) -> Path:
    name = str(getattr(place, split))
    for folder in (Path(data) / file.name, Path(data)):
        if (folder / name).is_file():
            return folder / name
    raise ConfigError(_how_to_get(file, data))


def _stamp(path: Path) -> tuple[str, int, int]:
    state = path.stat()
    return str(path), state.st_mtime_ns, state.st_size


def _how_to_get(file: TaskFile, data: str | None) -> str:
    ways = []
    if file.files is not None:
        folder = Path(data) / file.name if data is not None else Path("DIR") / file.name
        names = f"{folder / file.files.optimization} and {folder / file.files.test}"
        ways.append(
            (f"there are no {names}" if data is not None else f"give --data DIR with {names}")
            + (f": {file.obtain}" if file.obtain else "")
        )
    if file.hub is not None and data is None:
        ways.append(f"pip install datasets, to fetch {file.hub.dataset} from the hub")
    elif data is not None and file.files is None:
        ways.append(f"its texts come from the hub ({getattr(file.hub, 'dataset', '')}): no --data")
    return f"task {file.name!r} comes without its texts: {'; or '.join(ways)}"


def _file_rows(place: TextLocation, path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    text = _text(path, place.encoding)
    if place.format == "csv":
        try:
            yield from enumerate(csv.DictReader(text.splitlines(keepends=True), strict=True))
        except csv.Error as error:
            raise ConfigError(f"{escaped(path)}: cannot be read as CSV: {error}") from None
        return
    if place.format == "json":
        content = _json(text, path, None)
        if isinstance(content, dict):
            content = [
                {_KEY: key, **value} if isinstance(value, dict) else value
                for key, value in content.items()
            ]
        if not isinstance(content, list):
            raise ConfigError(f"{path}: holds neither a list nor an object of rows")
        rows = content
    else:
        # Only line feeds end a row: a text may hold other separators that splitlines() heeds.
        lines = [line.rstrip("\r") for line in text.split("\n")]
        numbered = [(number, line) for number, line in enumerate(lines) if line.strip()]
        if place.format == "lines":
            for row, (_, line) in enumerate(numbered):
                label, _, rest = line.partition(" ")
                yield row, {"label": label.partition(":")[0], "text": rest}
            return
        rows = [_json(line, path, number) for number, line in numbered]
    for row, values in enumerate(rows):
        if not isinstance(values, dict):
            raise ConfigError(f"{path}: row {row}: is {show(values)}, not an object")
        yield row, values


def _text(path: Path, encoding: str) -> str:
    source = existing_file(path, error=ConfigError)
    size, bound = source.stat().st_size, memory_bound() // 4
    if size > bound:
        raise ConfigError(
            f"{escaped(path)}: {size / 2**30:.1f} GiB of text; at most {bound / 2**30:.1f} GiB "
            "are read on this machine; keep to a sample of it"
        )
    try:
        return source.read_bytes().decode(encoding).removeprefix("\ufeff")
    except (OSError, UnicodeError, LookupError) as error:
        raise ConfigError(
            f"{escaped(path)}: cannot be read as {show(encoding)}: {reason(error)}; the task's "
            "key files.encoding names another"
        ) from None


def _json(text: str, path: Path, line: int | None) -> Any:
    source = escaped(path) if line is None else f"{escaped(path)}: line {line + 1}"
    return parse_json(text, source=source, error=ConfigError, finite=False)


def _has_datasets() -> bool:
    return importlib.util.find_spec("datasets") is not None


def _hub_rows(
    file: TaskFile, place: TextLocation, split: str
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    datasets = importlib.import_module("datasets")
    try:
        table = datasets.load_dataset(
            place.dataset, place.config or None, split=split, revision=place.revision or None
        )
    except Exception as error:
        # The library and the network below it raise errors of many unrelated classes.
        raise ConfigError(
            f"task {file.name!r}: dataset {place.dataset!r} ({split}) cannot be loaded "
            f"({named(error)}); {hub_advice(error)}, or give --data DIR"
        ) from error
    yield from enumerate(table)
