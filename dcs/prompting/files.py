"""Tasks described by a YAML file: those that come along, and a user's own; and their texts."""

from __future__ import annotations

import csv
import io
import os
import re
import socket
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache, partial
from pathlib import Path, PurePath
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit
from urllib.request import getproxies

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

from dcs.errors import ConfigError, check_choice, escaped, hub_advice, named, reason, show, unknown
from dcs.io import Strict, existing_file, parse_json, read_yaml, validated
from dcs.prompting.tasks import SPLITS, Example, Split, Task
from dcs.seeds import derive_generator

_FOLDER: Final = Path(__file__).parents[1] / "assets" / "tasks"

PACKAGED: Final = {name: _FOLDER / f"{name}.yaml" for name in ("helpdesk", "reviews")}
"""Files of the tasks whose texts come along, by name."""

DESCRIBED: Final = {
    name: _FOLDER / f"{name}.yaml"
    for name in ("agnews", "dbpedia", "sst5", "trec", "rte", "ddi", "pubmedqa")
}
"""Files of the tasks of the paper, which come without their texts, by name."""

_YAML: Final = (".yaml", ".yml")

#: A hub that does not answer in this time is not there.
_HUB_SECONDS: Final = 3.0
_KEY: Final = "@key"  # a JSON object's own name for a row

_TOKEN: Final = re.compile(r"@\w+\$|\w+(?:[-'.]\w+)*|[^\w\s]")


def tokenized(text: str) -> str:
    """Set words and punctuation marks apart by single spaces; a mark such as ``@drug$`` is one."""
    return " ".join(_TOKEN.findall(text))


#: What `Prompt.clean` names.
_CLEANERS: Final[dict[str, Callable[[str], str]]] = {
    "tokenized": tokenized,
    "lower-cased": str.lower,
}


def _as_list(entry: Any) -> Any:
    return entry if isinstance(entry, list) else [entry]


Word = Annotated[str, StringConstraints(pattern=r"\S")]
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


class Prompt(Strict):
    """How texts are put to a model: what a variant of a task's prompt may say otherwise.

    Attributes
    ----------
    instruction : str
        As in :class:`dcs.prompting.Task`.
    template : str
        A query, with ``{field}`` where a field of the text goes; its last line is the answer
        prefix.
    label_words : tuple of str
        As in :class:`dcs.prompting.Task`; the classes, if left out.
    separator : str
        What follows each demonstration.
    join : str
        What stands between the parts of a field that is a list.
    replace : tuple of (str, str)
        Replacements in every field, in order.
    clean : tuple of {"tokenized", "lower-cased"}
        What is done to every field after that, in order.
    """

    instruction: str = ""
    template: str = ""
    label_words: tuple[Word, ...] = ()
    separator: str = "\n\n"
    join: str = " "
    replace: tuple[tuple[Annotated[str, Field(min_length=1)], str], ...] = ()
    clean: tuple[Literal["tokenized", "lower-cased"], ...] = ()


class TaskFile(Prompt):
    """A task as its YAML file describes it.

    Attributes
    ----------
    name, title : str
        As in :class:`dcs.prompting.Task`.
    classes : tuple of str
        As in :class:`dcs.prompting.Task`.
    labels : tuple of tuple
        As in :class:`TextLocation`, where that has none.
    variants : dict of str to Prompt
        Other prompts by name: what each says takes the place of what the task says.
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
    disjoint: StrictBool = False
    obtain: str = ""
    files: FileLocation | None = None
    hub: HubLocation | None = None

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    def variant(self, name: str) -> TaskFile:
        """Return the task with another prompt.

        Raises
        ------
        ConfigError
            If there is no variant of that name, or the task makes no sense with it.
        """
        check_choice(f"task {self.name!r}: variant of the prompt", name, self.variants)
        values = self.model_dump(mode="json", exclude={"variants"})
        values |= self.variants[name].model_dump(mode="json", exclude_unset=True)
        return validated(TaskFile, values, source=f"key 'variants.{name}'", error=ConfigError)

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
        if len(set(self.classes)) < len(self.classes):
            raise ValueError("key 'classes' has one twice")
        if self.files is None and self.hub is None:
            raise ValueError("give key 'files' or 'hub': where the texts are")
        fields = {name for _, name, _, _ in string.Formatter().parse(self.template) if name}
        lists = {"labels": self.labels, "label_words": self.label_words}
        for key, place in (("files", self.files), ("hub", self.hub)):
            if place is not None:
                lists[f"{key}.labels"] = place.labels
                if set(place.fields) != fields:
                    raise ValueError(
                        f"key '{key}.fields' has {', '.join(place.fields)}; the template's "
                        f"fields are {', '.join(sorted(fields))}"
                    )
        for key, entries in lists.items():
            if entries and len(entries) != len(self.classes):
                raise ValueError(
                    f"key {key!r} has {len(entries)} entries for {len(self.classes)} classes"
                )
        for name in self.variants:
            self.variant(name)
        return self


def task_names() -> tuple[str, ...]:
    """Return the names of the tasks whose texts come with the package."""
    return tuple(PACKAGED)


def described_task_names() -> tuple[str, ...]:
    """Return the names of the tasks that come as a description without texts."""
    return tuple(DESCRIBED)


def get_task(name: str, data: str | os.PathLike[str] | None = None) -> Task:
    """Return a task.

    Parameters
    ----------
    name : str
        A built-in task, one of the paper's seven, or the path of a YAML file that describes a
        task; a variant of a described prompt follows an ``@``: ``trec@published``.
    data : path-like, optional
        Folder that holds the texts of a described task, in itself or in a folder of the task's
        name. Without it, texts come from beside a user's own YAML file, or from the hub.
        Built-in tasks need none and take no notice of it.

    Raises
    ------
    ConfigError
        If there is no such task or variant, names the allowed ones; if its file is malformed.
        Whether its texts can be read shows when they are asked for.
    """
    known = PACKAGED | DESCRIBED
    base, variant = name, ""
    if "@" in name and not name.endswith(_YAML):
        base, _, variant = name.rpartition("@")
    if base not in known and not base.endswith(_YAML):
        raise unknown("task", name, known, ", or the path of a task YAML")
    path = known.get(base, Path(base))
    file = read_task_file(path)
    if base not in DESCRIBED and file.hub is None and (data is None or base in PACKAGED):
        data = path.parent  # The texts lie beside the file.
    prompt = file.variant(variant) if variant else file
    return Task(
        name=f"{file.name}@{variant}" if variant else file.name,
        title=file.title or file.name,
        classes=file.classes,
        label_words=prompt.label_words or file.classes,
        instruction=prompt.instruction,
        input_prefix=prompt.input_prefix,
        answer_prefix=prompt.answer_prefix,
        separator=prompt.separator,
        template=prompt.template,
        sizes=tuple(file.sizes.items()),
        source=partial(
            read_examples, prompt, data=None if data is None else os.path.abspath(data)
        ),
    )


def read_task_file(path: Path) -> TaskFile:
    """Read and check a description.

    Raises
    ------
    ConfigError
        One line: file, key, value and what is allowed.
    """
    # A file that has changed since is read again.
    return _parse(path, path.stat().st_mtime_ns if path.is_file() else None)


@lru_cache(maxsize=32)
def _parse(path: Path, stamp: int | None) -> TaskFile:
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
    counts = Counter(example.id for example in examples)
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise ConfigError(f"{where}: id {repeated[0]!r} occurs more than once")
    return tuple(examples)


def _example(file: TaskFile, place: TextLocation, prefix: str, row: int, values: Any) -> Example:
    """Make an example of a row; a ValueError says what is wrong with it."""
    if not isinstance(values, Mapping):
        raise ValueError(f"is {show(values)}, not an object")
    fields = {name: _field(file, values, key) for name, key in place.fields.items()}
    plain = file.input_prefix  # which stands before the text, so that the text is the field alone
    text = next(iter(fields.values())) if plain else file.input_template.format_map(fields)
    own = _value(values, place.id) if place.id else values.get(_KEY, f"{row:05d}")
    return Example(f"{prefix}-{own}", text, _label(file, place, _value(values, place.label)))


def _field(prompt: Prompt, values: Mapping[str, Any], key: str) -> str:
    """Return a field of a row as the prompt shows it."""
    value = _value(values, key)
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        value = prompt.join.join(value)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"key {key!r} is {show(value)}; a text is needed")
    for old, new in prompt.replace:
        value = value.replace(old, new)
    for name in prompt.clean:
        value = _CLEANERS[name](value)
    return value.strip()


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
                # As with the name itself: a stranger's task must not send others' files away.
                if not path.resolve().is_relative_to(Path(data).resolve()):
                    raise ConfigError(
                        f"{escaped(path)}: links to a file outside of {escaped(data)}; texts are "
                        "read from within that folder: copy the file there"
                    )
                return path
    raise ConfigError(_how_to_get(file, data, [split]))


def _how_to_get(file: TaskFile, data: str | None, splits: Iterable[Split] = SPLITS) -> str:
    ways = []
    if file.files is not None:
        folder = Path(data or "DIR")
        names = " and ".join(getattr(file.files, split) for split in splits)
        told = f"put {names} into {folder} or {folder / file.name} (--data DIR)"
        ways.append(f"{told}: {file.obtain}" if file.obtain else told)
    if file.hub is not None:
        ways.append(f"pip install datasets, to fetch {file.hub.dataset} without --data")
    return f"task {file.name!r} lacks texts: {'; or '.join(ways)}"


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


@cache
def _hub_is_near() -> bool:
    """Whether the hub can be reached, or may be through a proxy."""
    hub = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    if getproxies().get(hub.scheme) is not None:
        return True
    try:
        port = hub.port or (80 if hub.scheme == "http" else 443)
        socket.create_connection((hub.hostname or "", port), _HUB_SECONDS).close()
    except OSError:
        return False
    return True


def _hub_rows(file: TaskFile, place: HubLocation, split: Split) -> Iterable[Any]:
    try:
        import datasets
        from huggingface_hub import constants
    except ImportError:
        raise ConfigError(_how_to_get(file, None)) from None
    if not _hub_is_near():
        # Datasets would try for half a minute. What was fetched before is found all the same. The
        # variable is for Ray's workers: this process may have read it already.
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
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
