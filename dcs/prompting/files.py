"""Packaged and user-defined tasks described by YAML files, and the loading of their texts."""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from dcs.data.files import TEXT_BYTES, split_rows
from dcs.data.labels import as_text, by_number, fold
from dcs.data.reader import refuse_shared_texts
from dcs.data.splits import stratified_split
from dcs.data.table import open_parquet
from dcs.errors import HUB_ADVICE, ConfigError, escaped, quoted, show, unknown
from dcs.io import parse_json, parse_json_lines, read_text, read_yaml, readable, validated
from dcs.prompting.tasks import SPLITS, Example, FileLocation, HubLocation, Split, Task, TaskFile
from dcs.seeds import derive_generator

_FOLDER: Final = Path(__file__).parents[1] / "assets" / "tasks"

#: Files of the tasks with packaged texts, by name.
PACKAGED: Final = {name: _FOLDER / f"{name}.yaml" for name in ("helpdesk", "reviews")}

_OF_PAPER: Final = ("agnews", "dbpedia", "sst5", "trec", "rte", "ddi", "pubmedqa")

#: Files of the tasks of the paper, which are packaged without texts, by name.
DESCRIBED: Final = {name: _FOLDER / f"{name}.yaml" for name in _OF_PAPER}

_YAML: Final = (".yaml", ".yml")

_KEY: Final = "@key"  # key of a row in a JSON object of rows

_TOKEN: Final = re.compile(r"@\w+\$|\w+|[^\w\s]")


def tokenized(text: str) -> str:
    """Separate words and punctuation by single spaces, also within ``0.5`` and ``co-use``.

    A mark such as ``@drug$`` is one token.
    """
    return " ".join(_TOKEN.findall(text))


#: Functions for the values of `Prompt.clean`.
_CLEANERS: Final = {"tokenized": tokenized, "lower-cased": str.lower}


def get_task(name: str, data: str | os.PathLike[str] | None = None) -> Task:
    """Return a task.

    Parameters
    ----------
    name : str
        A built-in task, one of the seven tasks of the paper, or the path of a task YAML file; an
        optional prompt variant follows an ``@``: ``trec@published``.
    data : path-like, optional
        Folder with the texts of a described task, directly or in a subfolder named after the
        task. By default, texts are read from the folder of a user-defined YAML file, or from the
        hub. Ignored for built-in tasks.

    Raises
    ------
    ConfigError
        If the task or variant does not exist, or its file is malformed. Errors in the texts are
        only raised when the texts are requested.
    """
    known = PACKAGED | DESCRIBED
    base, variant = name, ""
    if "@" in base and not base.endswith(_YAML):
        base, _, variant = base.rpartition("@")
    if base not in known and not base.endswith(_YAML):
        raise unknown("task", name, known, ", or the path of a task YAML")
    path = known.get(base, Path(base))
    file = read_task_file(path)
    if base not in DESCRIBED and file.hub is None and (data is None or base in PACKAGED):
        data = path.parent  # The texts are in the folder of the task file.
    prompt = file.variant(variant) if variant else file
    folder = None if data is None else os.path.abspath(data)
    examples = partial(read_examples, prompt, data=folder)
    return Task(name="@".join(filter(None, (file.name, variant))), file=prompt, examples=examples)


def described_task(described: Mapping[str, Any], *, source: str) -> Task:
    """Return a task without texts from its :attr:`TaskFile.described`.

    Raises
    ------
    ConfigError
        If the values are not those of a task; names `source` and the key.
    """
    file = validated(TaskFile, dict(described), source=source, error=ConfigError)
    return Task(name=file.name, file=file, examples=lambda split: ())


def read_task_file(path: Path) -> TaskFile:
    """Read and validate a task file.

    Raises
    ------
    ConfigError
        If the file is malformed; names file, key, value and what is allowed.
    """
    values = read_yaml(path, error=ConfigError)
    return validated(TaskFile, values, source=escaped(path), error=ConfigError)


def read_examples(file: TaskFile, split: Split, *, data: str | None = None) -> tuple[Example, ...]:
    """Return the texts of a split.

    Parameters
    ----------
    file : TaskFile
        The task.
    split : {"optimization", "test"}
        The split.
    data : str, optional
        Folder with the files, directly or in a subfolder named after the task; by default, the
        texts are loaded from the hub.

    Raises
    ------
    ConfigError
        If the texts do not exist, or a row is malformed; names file, row, key and value.
    """
    if data is None:
        return _load(file, split, None, None)
    parts = SPLITS if file.files is None else file.files.parts
    stamps = [_find_file(file, part, data).stat() for part in parts]
    # Cached by modification time and size, so that changed files are read again.
    return _load(file, split, data, tuple((stamp.st_mtime_ns, stamp.st_size) for stamp in stamps))


@lru_cache(maxsize=32)
def _load(file: TaskFile, split: Split, data: str | None, stamp: object) -> tuple[Example, ...]:
    place = file.hub if data is None else file.files
    if place is None:
        raise ConfigError(_missing_texts(file, data))
    if place.train:
        examples = _part(_read(file, place, "train", data), split, file.seed, place.held_out)
    else:
        examples = _read(file, place, split, data)
    if file.disjoint is not False and split == "optimization":
        test = [example.text for example in _load(file, "test", data, stamp)]
        if file.disjoint:
            shown = {*map(fold, test)}
            examples = [each for each in examples if fold(each.text) not in shown]
        else:
            fitted = [example.text for example in examples]
            advice = "disjoint: true in the task excludes them, disjoint: false keeps them"
            refuse_shared_texts(fitted, test, f"task {file.name!r}", advice=advice)
    size = file.sizes.get(split, len(examples))
    if size < len(examples):
        rng = derive_generator(file.seed, "texts", file.name, split)
        kept = np.sort(rng.permutation(len(examples))[:size])
        examples = [examples[int(row)] for row in kept]
    return tuple(examples)


def _part(examples: list[Example], split: Split, seed: int, held_out: float) -> list[Example]:
    """Return a split of divided texts, stratified by class; equal texts stay together."""
    first: dict[str, Example] = {}
    for example in examples:
        first.setdefault(example.text, example)
    shares = {"optimization": 1 - held_out, "test": held_out}
    # Unlabelled texts are for fitting, unless there are no others.
    divided = [each for each in first.values() if each.label >= 0] or [*first.values()]
    labels = [max(example.label, 0) for example in divided]
    held = {divided[row].text for row in stratified_split(labels, shares, seed=seed)["test"]}
    return [each for each in examples if (each.text in held) == (split == "test")]


def _read(
    file: TaskFile, place: FileLocation | HubLocation, part: str, data: str | None
) -> list[Example]:
    """Read the texts of one file or hub split."""
    if isinstance(place, FileLocation):
        path = _find_file(file, part, str(data))
        where, rows = escaped(path), _read_file_rows(place, path)
    else:
        where = f"{place.dataset} ({getattr(place, part)})"
        rows = _load_hub_rows(file, place, part)
    known, examples, given, unnamed = _label_indices(file, place), [], dict[str, int](), []
    for row, values in enumerate(rows):
        try:
            if not isinstance(values, Mapping):
                raise ValueError(f"expected an object, got {show(values)}")
            text, raw = _compose(file, place.fields, values), _raw_label(values, place.label)
            own = _get(values, place.id) if place.id else values.get(_KEY, f"{row:05d}")
            label = _find_label(known, raw)
        except ValueError as error:
            raise ConfigError(f"{where}: row {row}: {error}") from None
        examples.append(Example(f"{file.name}-{part}-{own}", text, label))
        given[as_text(raw)] = label
        if raw is None:
            unnamed.append(values)
    if not (place.labels or file.labels):
        _check_labels(file, where, given)
    texts = {place.id, _KEY, *place.fields.values()}
    for key in unnamed[0] if unnamed else ():
        if key not in texts and {str(values.get(key)) for values in unnamed} <= known.keys():
            fault = f"{where}: rows without the label {place.label!r} have labels in {key!r}"
            other = f"give these rows {place.label}: null"
            raise ConfigError(f"{fault}; name this in the key label of the task, or {other}")
    if not examples:
        raise ConfigError(f"{where}: contains no texts")
    (name, count), *_ = Counter(example.id for example in examples).most_common(1)
    if count > 1:
        raise ConfigError(f"{where}: id {name!r} occurs more than once")
    return examples


def _check_labels(file: TaskFile, where: str, given: dict[str, int]) -> None:
    """Refuse labels of a file, as texts with their class indices, that can be read otherwise."""
    size, labels = len(file.classes), sorted({*given} - {""})
    positions = {str(k): k for k in range(-1, size)}
    if positions.keys() & {*file.classes}:
        return
    places = {positions[label] for label in labels if label in positions}
    named, top = len(places) < len(labels), max(places, default=-1)
    own = by_number(labels, file.classes)
    numbers = own is not None and own.tolist() != [given[label] for label in labels]
    minus = places == {-1, 1} or (-1 in places and top == size - 2)
    doubts = {
        "are all of them names of classes, or positions": named and top >= 0,
        "are they positions, or the numbers in the names (yes, positive: 1)": numbers,
        "is -1 a class, or a text without a label": minus,
        "do they count from 1, or has class 0 no text": top > 1 and places == {*range(1, size)},
    }
    if doubt := next((doubt for doubt, holds in doubts.items() if holds), ""):
        raise ConfigError(f"{where}: labels {quoted(labels)}: {doubt}; answer in the key labels")


def _raw_label(values: Mapping[str, Any], key: str) -> Any:
    """Return the label of a row as it is written, None if there is none."""
    with suppress(ValueError):
        return _get(values, key)
    return None


def _compose(file: TaskFile, keys: Mapping[str, str], values: Mapping[str, Any]) -> str:
    """Return the text of a row, of which `keys` are those of the fields."""
    fields = {name: _format_field(file, values, key) for name, key in keys.items()}
    plain = file.input_prefix  # rendered by the prompt, so that the text is the field only
    return next(iter(fields.values())) if plain else file.input_template.format_map(fields)


def row_text(file: TaskFile, row: str | Mapping[str, Any]) -> str:
    """Return the text of a row whose fields have the keys of the task's texts, or their own names.

    A string is the value of the only field.

    Raises
    ------
    ValueError
        If a field is missing or is not a text.
    """
    places = [place.fields for place in (file.files, file.hub) if place is not None]
    names = {name: name for name in places[0]}
    if not isinstance(row, str | Mapping):
        raise ValueError(f"must be a text, or an object of fields, got {show(row)}")
    if isinstance(row, str):
        row = dict.fromkeys(names, row) if len(names) == 1 else {}
    if None in row:
        raise ValueError("has more cells than columns; put texts with separators into quotes")
    for keys in (*places, names):
        if {key.partition(".")[0] for key in keys.values()} <= row.keys():
            return _compose(file, keys, row)
    return _compose(file, places[0], row)


def read_texts(path: Path, *, text: str | None = None) -> list[Any]:
    """Return the rows of a file of texts; `text` is its content if it comes from a pipe.

    Parameters
    ----------
    path : path-like
        CSV or TSV with column names, JSON lines, JSON or Parquet; a pipe is CSV or JSON lines.

    Raises
    ------
    ConfigError
        If the file cannot be read, or has no rows.
    """
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        with open_parquet(path) as file:
            _refuse_twice(file.schema_arrow.names, escaped(path))
            rows: list[Any] = file.read().to_pylist()
    else:
        kind = suffix[1:] if suffix in (".tsv", ".jsonl", ".json") else "csv"
        if text is None:
            text = read_text(path, error=ConfigError, limit=TEXT_BYTES)
        elif text.lstrip()[:1] == "{":
            kind = "jsonl"
        rows = [*_parse_rows(text, kind, escaped(path))]
    if not rows:
        raise ConfigError(f"{escaped(path)}: contains no texts")
    return rows


def _format_field(file: TaskFile, values: Mapping[str, Any], key: str) -> str:
    """Return a field of a row as text for the prompt."""
    value = _get(values, key)
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        value = file.join.join(value)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"key {key!r}: expected a non-empty text, got {show(value)}")
    for old, new in file.replace:
        value = value.replace(old, new)
    for name in file.clean:
        value = _CLEANERS[name](value)
    if not value.strip():
        raise ValueError(f"key {key!r}: nothing is left of the text after replace and clean")
    return value.strip()


def _get(values: Mapping[str, Any], key: str) -> Any:
    found: Any = values
    for part in key.split("."):
        if not isinstance(found, Mapping) or part not in found:
            raise ValueError(f"key {key!r} is missing; found {', '.join(map(str, values))}")
        found = found[part]
    return found


def _label_indices(file: TaskFile, place: FileLocation | HubLocation) -> dict[str, int]:
    """Return the class index of each label: of `labels`, or class names and numbers."""
    given = place.labels or file.labels
    labels = given or tuple((name,) for name in file.classes)
    known = {str(value): index for index, entry in enumerate(labels) for value in entry}
    numbers = {str(index): index for index in range(len(labels))}
    # Names that are numbers leave none for positions.
    return known if given or numbers.keys() & known.keys() else numbers | known


def _find_label(known: Mapping[str, int], raw: Any) -> int:
    """Return the class index of a label; -1 if there is none."""
    if not isinstance(raw, bool) and str(raw) in known:
        return known[str(raw)]
    # Datasets on the hub have -1.
    if raw is None or raw != raw or str(raw).strip() in ("", "-1"):
        return -1
    kind = " (a boolean; write it as text)" if isinstance(raw, bool) else ""
    allowed = ", ".join({index: label for label, index in known.items()}.values())
    raise ValueError(f"label {show(raw)}{kind} must be one of {allowed}")


def _find_file(file: TaskFile, part: str, data: str) -> Path:
    name = str(getattr(file.files, part, ""))
    paths = [folder / name for folder in (Path(data) / file.name, Path(data))]
    found = {each.resolve(): each for each in paths if each.is_file()}
    if not found:
        raise ConfigError(_missing_texts(file, data))
    path, *others = found.values()
    if others:
        raise ConfigError(f"{escaped(path)}, {escaped(others[0])}: both exist; keep one of them")
    # A third-party task must not send unrelated local files to a model server.
    if not path.resolve().is_relative_to(Path(data).resolve()):
        advice = "copy it to that folder, or give another with --data"
        raise ConfigError(f"{escaped(path)}: is a file outside of {escaped(data)}; {advice}")
    return path


def _missing_texts(file: TaskFile, data: str | None) -> str:
    ways = []
    if file.files is not None:
        folder = Path(data or "DIR")
        names = " and ".join(getattr(file.files, part) for part in file.files.parts)
        way = f"put {names} into {folder} or {folder / file.name} (--data DIR)"
        ways.append(": ".join(filter(None, (way, file.obtain))))
    if file.hub is not None:
        ways.append(f"pip install datasets, to fetch {file.hub.dataset} without --data")
    return f"task {file.name!r} lacks texts: {'; or '.join(ways)}"


def _read_file_rows(place: FileLocation, path: Path) -> Iterable[Any]:
    advice = f"files.encoding in the task file is {show(place.encoding)}"
    with readable(escaped(path), advice, error=ConfigError):
        # Line breaks as everywhere else, also within a text.
        text = path.read_text(encoding=place.encoding).removeprefix("\ufeff")
    return _parse_rows(text, place.format, escaped(path))


def _parse_rows(text: str, kind: str, source: str) -> Iterable[Any]:
    """Return the rows of a text in a format of :class:`FileLocation`."""
    if kind in ("csv", "tsv"):
        advice = "write JSON lines, or put texts with separators or quotes into quotes"
        with readable(source, advice, error=ConfigError):
            found = _tabbed(text) if kind == "tsv" else split_rows(text, ",", "double")
            names, *rows = found or [[]]
        _refuse_twice(names, source)
        return [dict(zip(names, row, strict=True)) for row in rows]
    if kind == "json":
        content = parse_json(text, source=source, error=ConfigError, finite=False)
        if isinstance(content, dict):
            keyed = content.items()
            content = [{_KEY: key, **row} if isinstance(row, dict) else row for key, row in keyed]
        if not isinstance(content, list):
            raise ConfigError(f"{source}: must contain a list or an object of rows")
        return content
    if kind == "lines":
        parts = [line.rstrip("\r").partition(" ") for line in text.split("\n") if line.strip()]
        return [{"label": head.partition(":")[0], "text": rest} for head, _, rest in parts]
    return parse_json_lines(text, source=source, error=ConfigError)


def _refuse_twice(names: list[str], source: str) -> None:
    """Refuse columns of one name, of which only the last would be read."""
    if twice := [name for name in {*names} - {""} if names.count(name) > 1]:
        raise ConfigError(f"{source}: column names are not unique: {show(twice[0])}; rename one")


def _tabbed(text: str) -> list[list[str]]:
    """Return the rows of text with tabs, where quotes enclose cells or are text."""
    try:
        rows = split_rows(text, "\t", "double")
    except csv.Error:
        return split_rows(text, "\t", "none")
    with suppress(csv.Error):
        if len(split_rows(text, "\t", "none")) != len(rows):
            raise ValueError("there are other rows if quotes are text than if they enclose cells")
    return rows


def _load_hub_rows(file: TaskFile, place: HubLocation, part: str) -> Iterable[Any]:
    try:
        import datasets
    except ImportError:
        raise ConfigError(_missing_texts(file, None)) from None
    name, config, revision = getattr(place, part), place.config or None, place.revision or None
    where = f"task {file.name!r}: dataset {place.dataset!r} ({name})"
    if os.path.lexists(place.dataset):
        # datasets would open it instead of the dataset on the hub.
        raise ConfigError(f"{where} is also a local path; run the command in another folder")
    with readable(where, f"{HUB_ADVICE}, or use --data DIR", error=ConfigError):
        builder = datasets.load_dataset_builder(place.dataset, config, revision=revision)
        # A dataset may refer to files anywhere, also on this machine.
        files = [str(each) for part in (builder.config.data_files or {}).values() for each in part]
        home = re.compile(rf"(.*::)?hf://datasets/{re.escape(place.dataset)}[@/].*")
        if outside := [each for each in files if not home.fullmatch(each)]:
            fault = f"refers to {show(outside[0])}, which is not one of its files on the hub"
            raise ConfigError(f"{where} {fault}; use --data DIR")
        builder.download_and_prepare()
        rows: Iterable[Any] = builder.as_dataset(split=name)
    names = getattr(getattr(rows, "features", {}).get(place.label), "names", None) or ()
    orders = [[*map(fold, each)] for each in (names, file.classes)]
    same = orders[0] == orders[1] or sorted(orders[0]) != sorted(orders[1])
    if not (same or place.labels or file.labels):
        raise ConfigError(f"{where} has the classes {quoted(names)}; list them in this order")
    return rows
