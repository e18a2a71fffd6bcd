"""Packaged and user-defined tasks described by YAML files, and the loading of their texts."""

from __future__ import annotations

import csv
import io
import os
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveInt,
    StrictBool,
    StringConstraints,
    field_validator,
    model_validator,
)

from dcs.data.files import TEXT_BYTES
from dcs.data.reader import refuse_shared_texts
from dcs.data.splits import stratified_split
from dcs.data.table import open_parquet
from dcs.errors import HUB_ADVICE, ConfigError, check_choice, escaped, named, reason, show, unknown
from dcs.io import Strict, existing_file, parse_json, read_text, read_yaml, validated
from dcs.prompting.tasks import SPLITS, Example, Split, Task
from dcs.seeds import derive_generator

_FOLDER: Final = Path(__file__).parents[1] / "assets" / "tasks"

PACKAGED: Final = {name: _FOLDER / f"{name}.yaml" for name in ("helpdesk", "reviews")}
"""Files of the tasks with packaged texts, by name."""

DESCRIBED: Final = {
    name: _FOLDER / f"{name}.yaml"
    for name in ("agnews", "dbpedia", "sst5", "trec", "rte", "ddi", "pubmedqa")
}
"""Files of the tasks of the paper, which are packaged without texts, by name."""

_YAML: Final = (".yaml", ".yml")

_KEY: Final = "@key"  # key of a row in a JSON object of rows

#: Labels of unlabelled texts; -1 is that of datasets on the hub.
_UNLABELLED: Final = ("", "-1")

_TOKEN: Final = re.compile(r"@\w+\$|\w+|[^\w\s]")


def tokenized(text: str) -> str:
    """Separate words and punctuation by single spaces, also within ``0.5`` and ``co-use``.

    A mark such as ``@drug$`` is one token.
    """
    return " ".join(_TOKEN.findall(text))


#: Functions for the values of `Prompt.clean`.
_CLEANERS: Final[dict[str, Callable[[str], str]]] = {
    "tokenized": tokenized,
    "lower-cased": str.lower,
}


def _to_list(entry: Any) -> Any:
    return entry if isinstance(entry, list) else [entry]


Word = Annotated[str, StringConstraints(pattern=r"\S")]
Labels = tuple[Annotated[tuple[str | int, ...], BeforeValidator(_to_list)], ...]


class TextLocation(Strict):
    """The location of the texts of a task, and the names of their fields.

    Attributes
    ----------
    optimization, test : str
        File of the split in the task folder, or split of the hub dataset.
    train : str
        The only file or hub split, instead of both: divided at random, stratified by class, with
        the seed of the task. Equal texts stay together.
    held_out : float
        Fraction of the texts of `train` that become test texts.
    fields : dict of str to str
        Fields of the template and their keys in a row; ``a.b`` is key b of object a.
    label : str
        Key of the label in a row.
    labels : tuple of tuple
        Label values of each class; by default class names, or numbers from 0.
    id : str
        Key of the row id; by default rows are numbered.
    """

    optimization: str = ""
    test: str = ""
    train: str = ""
    held_out: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.3
    fields: dict[str, str]
    label: str
    labels: Labels = ()
    id: str = ""

    @property
    def parts(self) -> tuple[str, ...]:
        """The keys of the files, or hub splits, that hold the texts."""
        return ("train",) if self.train else SPLITS

    @model_validator(mode="after")
    def _has_texts(self) -> Self:
        given = {part for part in ("train", *SPLITS) if getattr(self, part)}
        if given not in ({"train"}, {*SPLITS}):
            raise ValueError("needs either train, or both optimization and test")
        return self


class FileLocation(TextLocation):
    """Local files of one format and encoding."""

    format: Literal["jsonl", "json", "csv", "lines"] = "jsonl"
    encoding: str = "utf-8"


_HUB_NAME: Final = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)


class HubLocation(TextLocation):
    """A hub dataset, optionally with a configuration and a revision."""

    dataset: str
    config: str = ""
    revision: str = ""

    @field_validator("dataset")
    @classmethod
    def _is_hub_name(cls, name: str) -> str:
        # datasets would also read local files, for example by NAME csv, and a third-party task
        # must not.
        if not _HUB_NAME.fullmatch(name) or ".." in name:
            raise ValueError("must be the name of a dataset on the hub, OWNER/NAME")
        return name


class Prompt(Strict):
    """The prompt of a task; a variant may override each of these keys.

    Attributes
    ----------
    instruction : str
        As in :class:`dcs.prompting.Task`.
    template : str
        The query, with ``{field}`` as placeholder for a field of the text; the last line is the
        answer prefix.
    label_words : tuple of str
        As in :class:`dcs.prompting.Task`; by default the class names.
    separator : str
        Text after each demonstration.
    join : str
        Separator between the parts of a field that is a list.
    replace : tuple of (str, str)
        Replacements in every field, in order.
    clean : tuple of {"tokenized", "lower-cased"}
        Transformations of every field after the replacements, in order.
    """

    instruction: str = ""
    template: str = ""
    label_words: tuple[Word, ...] = ()
    separator: str = "\n\n"
    join: str = " "
    replace: tuple[tuple[Annotated[str, Field(min_length=1)], str], ...] = ()
    clean: tuple[Literal["tokenized", "lower-cased"], ...] = ()


class TaskFile(Prompt):
    """The content of a task YAML file.

    Attributes
    ----------
    name, title : str
        As in :class:`dcs.prompting.Task`.
    classes : tuple of str
        As in :class:`dcs.prompting.Task`.
    labels : tuple of tuple
        Default for ``labels`` of :class:`TextLocation`.
    variants : dict of str to Prompt
        Alternative prompts by name; their keys override those of the task.
    sizes : dict of str to int
        Maximum number of texts per split, drawn with `seed`; by default all texts.
    seed : int
        Seed of the draw.
    disjoint : bool, optional
        Whether to exclude optimization texts that are also test texts. By default, more than 1 %
        of the test texts among them are an error; False keeps them.
    obtain : str
        Instructions for obtaining the files, for messages.
    files, hub : TextLocation or None
        Local files and a hub dataset; at least one is required.
    """

    name: Annotated[str, StringConstraints(pattern=r"^[^\W_][\w.-]{0,99}$")]  # names folders
    title: str = ""
    classes: tuple[Word, ...] = Field(min_length=2)
    labels: Labels = ()
    template: str
    variants: dict[Annotated[str, StringConstraints(pattern=r"^[\w.-]{1,50}$")], Prompt] = Field(
        default_factory=dict
    )
    sizes: dict[Split, PositiveInt] = Field(default_factory=dict)
    seed: NonNegativeInt = 0
    disjoint: StrictBool | None = None
    obtain: str = ""
    files: FileLocation | None = None
    hub: HubLocation | None = None

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    def variant(self, name: str) -> TaskFile:
        """Return the task with the prompt of a variant.

        Raises
        ------
        ConfigError
            If the variant does not exist, or the resulting task is invalid.
        """
        check_choice(f"task {self.name!r}: variant of the prompt", name, self.variants)
        values = self.model_dump(mode="json", exclude={"variants"})
        values |= self.variants[name].model_dump(mode="json", exclude_unset=True)
        return validated(TaskFile, values, source=f"key 'variants.{name}'", error=ConfigError)

    @property
    def input_template(self) -> str:
        """The template without its last line."""
        return self.template.rpartition("\n")[0]

    @property
    def answer_prefix(self) -> str:
        """The last line of the template."""
        return self.template.rpartition("\n")[2]

    @property
    def input_prefix(self) -> str:
        """The text before the field, if the template has a single field at its end; else empty."""
        head, brace, tail = self.input_template.partition("{")
        plain = brace and tail.endswith("}") and "{" not in tail
        return head.rstrip(" ") if plain and "\n" not in head and head.endswith(" ") else ""

    @field_validator("template")
    @classmethod
    def _has_fields_and_an_answer(cls, template: str) -> str:
        parts = [part[1:] for part in string.Formatter().parse(template) if part[1] is not None]
        plain = (not form and not how and str(name).isidentifier() for name, form, how in parts)
        if not parts or not all(plain):
            raise ValueError("fields must be written as {text}, with only a name in the braces")
        last = template.rpartition("\n")[2]
        if "\n" not in template or "{" in last or not last.strip():
            raise ValueError("the last line must be the answer prefix, without fields")
        return template

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if len(set(self.classes)) < len(self.classes):
            raise ValueError("key 'classes' contains duplicates")
        if self.files is None and self.hub is None:
            raise ValueError("key 'files' or 'hub' is required: the location of the texts")
        fields = {name for _, name, _, _ in string.Formatter().parse(self.template) if name}
        lists = {"labels": self.labels, "label_words": self.label_words}
        for key, place in (("files", self.files), ("hub", self.hub)):
            if place is not None:
                lists[f"{key}.labels"] = place.labels
                if set(place.fields) != fields:
                    own, needed = ", ".join(place.fields), ", ".join(sorted(fields))
                    raise ValueError(
                        f"key '{key}.fields' has {own}; those of the template: {needed}"
                    )
        for key, entries in lists.items():
            if entries and len(entries) != len(self.classes):
                raise ValueError(
                    f"key {key!r} has {len(entries)} entries for {len(self.classes)} classes"
                )
        for name in self.variants:
            self.variant(name)
        return self


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
    return _task(prompt, name="@".join(filter(None, (file.name, variant))), examples=examples)


def described_task(described: Mapping[str, Any], *, source: str) -> tuple[Task, TaskFile]:
    """Return a task without texts from its :attr:`Task.described`, and its file.

    Raises
    ------
    ConfigError
        If the values are not those of a task; names `source` and the key.
    """
    file = validated(TaskFile, dict(described), source=source, error=ConfigError)
    return _task(file, name=file.name, examples=lambda split: ()), file


def _task(file: TaskFile, **parts: Any) -> Task:
    """Return the task of a file, with the prompt of its variant."""
    return Task(
        title=file.title or file.name,
        classes=file.classes,
        label_words=file.label_words or file.classes,
        instruction=file.instruction,
        input_prefix=file.input_prefix,
        answer_prefix=file.answer_prefix,
        separator=file.separator,
        template=file.template,
        sizes=tuple(file.sizes.items()),
        described=file.model_dump(mode="json", exclude_defaults=True, exclude={"variants"}),
        **parts,
    )


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
            shown = {*test}
            examples = [each for each in examples if each.text not in shown]
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
    examples = []
    for row, values in enumerate(rows):
        try:
            examples.append(_convert(file, place, f"{file.name}-{part}", row, values))
        except ValueError as error:
            raise ConfigError(f"{where}: row {row}: {error}") from None
    if not examples:
        raise ConfigError(f"{where}: contains no texts")
    (name, count), *_ = Counter(example.id for example in examples).most_common(1)
    if count > 1:
        raise ConfigError(f"{where}: id {name!r} occurs more than once")
    return examples


def _convert(file: TaskFile, place: TextLocation, prefix: str, row: int, values: Any) -> Example:
    """Convert a row to an example; raise ValueError if the row is malformed."""
    if not isinstance(values, Mapping):
        raise ValueError(f"expected an object, got {show(values)}")
    text = _compose(file, place.fields, values)
    own = _get(values, place.id) if place.id else values.get(_KEY, f"{row:05d}")
    raw = None
    with suppress(ValueError):  # a row without a label
        raw = _get(values, place.label)
    return Example(f"{prefix}-{own}", text, _find_label(file, place, raw))


def _compose(file: TaskFile, keys: Mapping[str, str], values: Mapping[str, Any]) -> str:
    """Return the text of a row, of which `keys` are those of the fields."""
    fields = {name: _format_field(file, values, key) for name, key in keys.items()}
    plain = file.input_prefix  # rendered by the prompt, so that the text is the field only
    return next(iter(fields.values())) if plain else file.input_template.format_map(fields)


def text_of(file: TaskFile, row: str | Mapping[str, Any]) -> str:
    """Return the text of a row whose fields have the keys of the task's texts, or their own names.

    A string is the value of the only field.

    Raises
    ------
    ValueError
        If a field is missing or is not a text.
    """
    places = [place.fields for place in (file.files, file.hub) if place is not None]
    names = {name: name for name in places[0]}
    if not isinstance(row, str) and None in row:
        raise ValueError("has more cells than columns; put texts with separators into quotes")
    if isinstance(row, str):
        row = dict.fromkeys(names, row) if len(names) == 1 else {}
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


def _format_field(prompt: Prompt, values: Mapping[str, Any], key: str) -> str:
    """Return a field of a row as text for the prompt."""
    value = _get(values, key)
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        value = prompt.join.join(value)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"key {key!r}: expected a non-empty text, got {show(value)}")
    for old, new in prompt.replace:
        value = value.replace(old, new)
    for name in prompt.clean:
        value = _CLEANERS[name](value)
    return value.strip()


def _get(values: Mapping[str, Any], key: str) -> Any:
    found: Any = values
    for part in key.split("."):
        if not isinstance(found, Mapping) or part not in found:
            raise ValueError(f"key {key!r} is missing; found {', '.join(map(str, values))}")
        found = found[part]
    return found


def _find_label(file: TaskFile, place: TextLocation, raw: Any) -> int:
    """Return the class index of a label, given by `labels`, class name or number; -1 if none."""
    labels = place.labels or file.labels or tuple((name,) for name in file.classes)
    known = {str(value): index for index, entry in enumerate(labels) for value in entry}
    if not (place.labels or file.labels):
        known = {str(index): index for index in range(len(labels))} | known
    if not isinstance(raw, bool) and str(raw) in known:
        return known[str(raw)]
    if raw is None or raw != raw or str(raw).strip() in _UNLABELLED:
        return -1
    raise ValueError(f"label {show(raw)} must be one of {', '.join(str(e[0]) for e in labels)}")


def _find_file(file: TaskFile, part: str, data: str) -> Path:
    name = str(getattr(file.files, part, ""))
    paths = [folder / name for folder in (Path(data) / file.name, Path(data))]
    path = next((each for each in paths if each.is_file()), None)
    if path is None:
        raise ConfigError(_missing_texts(file, data, [part]))
    # A third-party task must not send unrelated local files to a model server.
    if not path.resolve().is_relative_to(Path(data).resolve()):
        raise ConfigError(
            f"{escaped(path)}: is a file outside of {escaped(data)}; copy it to that folder, or "
            "give another with --data"
        )
    return path


def _missing_texts(file: TaskFile, data: str | None, parts: Iterable[str] = ()) -> str:
    ways = []
    if file.files is not None:
        folder = Path(data or "DIR")
        names = " and ".join(getattr(file.files, part) for part in parts or file.files.parts)
        way = f"put {names} into {folder} or {folder / file.name} (--data DIR)"
        ways.append(": ".join(filter(None, (way, file.obtain))))
    if file.hub is not None:
        ways.append(f"pip install datasets, to fetch {file.hub.dataset} without --data")
    return f"task {file.name!r} lacks texts: {'; or '.join(ways)}"


def _read_file_rows(place: FileLocation, path: Path) -> Iterable[Any]:
    source = existing_file(path, error=ConfigError)
    try:
        text = source.read_bytes().decode(place.encoding).removeprefix("\ufeff")
    except (OSError, ValueError, LookupError, MemoryError) as error:
        raise ConfigError(
            f"{escaped(path)}: cannot be read as {place.format} in {show(place.encoding)}: "
            f"{reason(error)}; change files.format or files.encoding in the task file"
        ) from None
    return _parse_rows(text, place.format, escaped(path))


def _parse_rows(text: str, kind: str, source: str) -> Iterable[Any]:
    """Return the rows of a text in a format of :class:`FileLocation`."""
    if kind in ("csv", "tsv"):
        mark = "\t" if kind == "tsv" else ","
        rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=mark, strict=True)
        try:
            return list(rows)
        except csv.Error as error:
            raise ConfigError(f"{source}: cannot be read as {kind}: {reason(error)}") from None
    if kind == "json":
        content = parse_json(text, source=source, error=ConfigError, finite=False)
        if isinstance(content, dict):
            content = [
                {_KEY: key, **value} if isinstance(value, dict) else value
                for key, value in content.items()
            ]
        if not isinstance(content, list):
            raise ConfigError(f"{source}: must contain a list or an object of rows")
        return content
    # Only line feeds end a row: texts may contain other separators used by splitlines().
    lines = [line.rstrip("\r") for line in text.split("\n")]
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if kind == "lines":
        parts = [line.partition(" ") for _, line in numbered]
        return [{"label": head.partition(":")[0], "text": rest} for head, _, rest in parts]
    return [
        parse_json(line, source=f"{source}: line {number}", error=ConfigError, finite=False)
        for number, line in numbered
    ]


def _load_hub_rows(file: TaskFile, place: HubLocation, part: str) -> Iterable[Any]:
    try:
        import datasets
    except ImportError:
        raise ConfigError(_missing_texts(file, None)) from None
    name, revision = getattr(place, part), place.revision or None
    if os.path.lexists(place.dataset):
        # datasets would open it instead of the dataset on the hub.
        path = f"hub dataset {place.dataset!r} is also a local path"
        raise ConfigError(f"task {file.name!r}: {path}; run the command in another folder")
    where = f"task {file.name!r}: dataset {place.dataset!r}"
    try:
        builder = datasets.load_dataset_builder(
            place.dataset, place.config or None, revision=revision
        )
        # A dataset may refer to files anywhere, also on this machine.
        files = [str(each) for part in (builder.config.data_files or {}).values() for each in part]
        home = re.compile(rf"(.*::)?hf://datasets/{re.escape(place.dataset)}[@/].*")
        if outside := [each for each in files if not home.fullmatch(each)]:
            fault = f"refers to {show(outside[0])}, which is not one of its files on the hub"
            raise ConfigError(f"{where} {fault}; use --data DIR")
        builder.download_and_prepare()
        table: Iterable[Any] = builder.as_dataset(split=name)
    except ConfigError:
        raise
    except Exception as error:
        # datasets and its dependencies raise errors of many unrelated classes.
        fault = f"({name}) cannot be loaded ({named(error)})"
        raise ConfigError(f"{where} {fault}; {HUB_ADVICE}, or use --data DIR") from error
    return table
