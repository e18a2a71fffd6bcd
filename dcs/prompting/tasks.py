"""Tasks, the demonstrations of a prompt, its text, and the same prompt as chat messages."""

from __future__ import annotations

import hashlib
import json
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, cycle
from typing import Annotated, Any, Final, Literal, Self

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

from dcs.data.labels import as_text
from dcs.errors import ConfigError, check_choice
from dcs.io import Strict, as_values, content_key, validated
from dcs.seeds import derive_generator

Split = Literal["optimization", "test"]
SPLITS: tuple[Split, ...] = ("optimization", "test")

Shots = int | Literal["N"]


@dataclass(frozen=True, slots=True)
class Example:
    """A text, perhaps labelled.

    Parameters
    ----------
    id : str
        Unique within the task.
    text : str
        The text to classify.
    label : int
        Index of the class in ``Task.classes``; -1 if it is unknown.
    """

    id: str
    text: str
    label: int


Word = Annotated[str, StringConstraints(pattern=r"\S")]
LabelNames = tuple[Annotated[tuple[str | int, ...], BeforeValidator(as_values)], ...]


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
    labels: LabelNames = ()
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


_OWNER_OR_NAME: Final = r"[A-Za-z0-9_]+([.-][A-Za-z0-9_-]+)*"


class HubLocation(TextLocation):
    """A hub dataset, optionally with a configuration and a revision."""

    # datasets would also read local files, for example by NAME csv; a third-party task must not.
    dataset: Annotated[str, StringConstraints(pattern=f"^{_OWNER_OR_NAME}/{_OWNER_OR_NAME}$")]
    config: str = ""
    revision: str = ""


class Prompt(Strict):
    """The prompt of a task; a variant may override each of these keys.

    Attributes
    ----------
    instruction : str
        As in :class:`dcs.prompting.Task`.
    template : str
        The query, with ``{field}`` as placeholder for a field of the text; the last line is the
        answer prefix. Braces are written twice, as for :meth:`str.format`.
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
    labels: LabelNames = ()
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
    def described(self) -> dict[str, Any]:
        """What :func:`dcs.prompting.files.described_task` makes the task of again."""
        return self.model_dump(mode="json", exclude_defaults=True, exclude={"variants"})

    @property
    def reading(self) -> str:
        """Hash of how the text and the label of a row are read."""
        of_rows = {name: {"fields", "label", "labels"} for name in ("files", "hub")}
        own = dict.fromkeys(("labels", "join", "replace", "clean"), True)
        return content_key(self.model_dump(mode="json", include={**own, **of_rows}))

    @property
    def input_template(self) -> str:
        """The template without its last line."""
        return self.template.rpartition("\n")[0]

    @property
    def answer_prefix(self) -> str:
        """The last line of the template."""
        return self.template.rpartition("\n")[2].format()

    @property
    def input_prefix(self) -> str:
        """The text before the field, if the template has a single field at its end; else empty."""
        head, _, tail = self.input_template.partition("{")
        plain = tail[-1:] == "}" and tail[:-1].isidentifier() and "\n" not in head
        return head.rstrip(" ").replace("}}", "}") if plain and head.endswith(" ") else ""

    @field_validator("template")
    @classmethod
    def _has_fields_and_an_answer(cls, template: str) -> str:
        parts = [part[1:] for part in string.Formatter().parse(template) if part[1] is not None]
        plain = (not form and not how and str(name).isidentifier() for name, form, how in parts)
        if not parts or not all(plain):
            raise ValueError("fields must be written as {text}, with only a name in the braces")
        last = template.rpartition("\n")[2]
        if "\n" not in template or "{" in last.replace("{{", "") or not last.strip():
            raise ValueError("the last line must be the answer prefix, without fields")
        return template

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.files is None and self.hub is None:
            raise ValueError("key 'files' or 'hub' is required: the location of the texts")
        fields = {name for _, name, _, _ in string.Formatter().parse(self.template) if name}
        own = ("classes", "labels", "label_words")
        lists: dict[str, Sequence[Any]] = {key: getattr(self, key) for key in own}
        for key, place in (("files", self.files), ("hub", self.hub)):
            if place is not None:
                lists[f"{key}.labels"] = place.labels
                if set(place.fields) != fields:
                    needed = f"those of the template: {', '.join(sorted(fields))}"
                    raise ValueError(f"key '{key}.fields' has {', '.join(place.fields)}; {needed}")
        for key, entries in lists.items():
            if entries and len(entries) != len(self.classes):
                sizes = f"{len(entries)} entries for {len(self.classes)} classes"
                raise ValueError(f"key {key!r} has {sizes}")
            sets = [{*map(as_text, as_values(entry))} for entry in entries]
            if twice := [text for text, n in Counter(chain(*sets)).items() if n > 1]:
                raise ValueError(f"key {key!r} has {twice[0]!r} for two classes")
        for name in self.variants:
            self.variant(name)
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A text classification task and its prompt; see :func:`dcs.prompting.files.get_task`.

    Parameters
    ----------
    name : str
        The name used on the command line and in tables; the part after an ``@`` is a variant of
        the prompt, which has the same demonstrations.
    file : TaskFile
        The task file, with the prompt of the variant.
    examples : callable
        Returns the examples of a split, ``"optimization"`` for demonstrations and for selecting
        corrections, or ``"test"`` for the final evaluation; the same on every call.
    """

    name: str
    file: TaskFile = field(repr=False)
    examples: Callable[[Split], tuple[Example, ...]] = field(repr=False, compare=False)

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, in the order of the labels."""
        return self.file.classes

    @property
    def label_words(self) -> tuple[str, ...]:
        """The answer of the model for each class."""
        return self.file.label_words or self.file.classes


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """The labelled examples in a prompt, in order.

    Parameters
    ----------
    examples : tuple of Example
        Drawn from the optimization split.
    shots : int or "N"
        The requested number of shots.
    seed : int
        The demonstration seed.
    """

    examples: tuple[Example, ...]
    shots: Shots
    seed: int


def parse_shots(value: str | int) -> Shots:
    """Parse a number of shots.

    Parameters
    ----------
    value : str or int
        ``"0"``, ``"1"``, ``"5"``, ... random demonstrations, or ``"N"`` for one demonstration
        per class.

    Raises
    ------
    ConfigError
        If `value` is invalid.
    """
    text = str(value).strip()
    if text in ("N", "n"):
        return "N"
    if text.isascii() and text.isdigit() and not isinstance(value, bool):
        return int(text)
    raise ConfigError(f"shots {value!r}: must be a number (0, 1, 5, ...), or N: one per class")


def select_demonstrations(task: Task, shots: Shots, *, seed: int) -> Demonstrations:
    """Draw the demonstrations of a prompt from the optimization split.

    Parameters
    ----------
    task : Task
        The task.
    shots : int or "N"
        ``k`` random texts regardless of class, or one text per class in random order (the 1-shot,
        k-shot and N-shot prompts of the paper).
    seed : int
        Demonstration seed; different seeds draw different demonstrations.

    Returns
    -------
    Demonstrations
        The examples, in prompt order.

    Raises
    ------
    ConfigError
        If the split has too few texts, or a class has no text.
    """
    shots = parse_shots(shots)
    pool = tuple(each for each in task.examples("optimization") if each.label >= 0)
    # Variants of a prompt share demonstrations, so that they are comparable.
    rng = derive_generator(seed, "demonstrations", task.name.partition("@")[0], str(shots))
    if shots == "N":
        members = [[e for e in pool if e.label == label] for label in range(len(task.classes))]
        if [] in members:
            lacking = f"class {task.classes[members.index([])]!r} of task {task.name!r}"
            raise ConfigError(f"shots N: {lacking} has no labelled text; use a number of shots")
        pool = tuple(each[int(rng.integers(len(each)))] for each in members)
    elif shots > len(pool):
        lacking = f"task {task.name!r} has {len(pool)} labelled texts"
        raise ConfigError(f"shots {shots}: {lacking}; use fewer shots")
    drawn = rng.permutation(len(pool))[: len(pool) if shots == "N" else shots]
    return Demonstrations(tuple(pool[int(row)] for row in drawn), shots, seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPrefix:
    r"""The common beginning of prompts: an instruction and demonstrations.

    As a string, it is the text to which a query is appended: ``instruction``, a blank line, then
    per demonstration ``"query answer<separator>"``.

    Parameters
    ----------
    instruction : str
        Text at the beginning; may be empty.
    turns : tuple of (str, str)
        Query and label word of each demonstration, in order.
    separator : str
        Text after each demonstration.
    """

    instruction: str = ""
    turns: tuple[tuple[str, str], ...] = ()
    separator: str = "\n\n"

    def __str__(self) -> str:
        head = f"{self.instruction}\n\n" if self.instruction else ""
        return head + "".join(f"{query} {word}{self.separator}" for query, word in self.turns)


def chat_messages(
    prefix: str | PromptPrefix, query: str, *, system: bool = True
) -> list[dict[str, str]]:
    """Return a prompt as chat messages, up to the turn of the assistant.

    Parameters
    ----------
    prefix : str or PromptPrefix
        The instruction becomes the system message, each demonstration one message of the user and
        one of the assistant. A plain text is the beginning of the only message.
    query : str
        The last message.
    system : bool
        Whether there is a system message; if not, the first message begins with the instruction.

    Returns
    -------
    list of dict
        Messages with the keys ``role`` and ``content``.
    """
    if isinstance(prefix, str):
        query, prefix = prefix + query, PromptPrefix()
    said, roles = [*chain(*prefix.turns), query], cycle(("user", "assistant"))
    messages = [{"role": role, "content": text} for text, role in zip(said, roles, strict=False)]
    if prefix.instruction and system:
        messages.insert(0, {"role": "system", "content": prefix.instruction})
    elif prefix.instruction:
        messages[0]["content"] = f"{prefix.instruction}\n\n{messages[0]['content']}"
    return messages


def render_prefix(task: Task, demonstrations: Demonstrations) -> PromptPrefix:
    """Return the common prefix of the prompts: the instruction and the demonstrations.

    Parameters
    ----------
    task : Task
        The task.
    demonstrations : Demonstrations
        The demonstrations in order; may be empty (0-shot).
    """
    file, words = task.file, task.label_words
    turns = tuple((render_query(task, e.text), words[e.label]) for e in demonstrations.examples)
    return PromptPrefix(instruction=file.instruction, turns=turns, separator=file.separator)


def render_query(task: Task, text: str) -> str:
    """Return the last part of a prompt: the text, and the answer prefix the model continues.

    Trailing spaces are removed, because most tokenizers merge the space into the label word.
    """
    head = f"{task.file.input_prefix} " if task.file.input_prefix else ""
    return f"{head}{text.strip()}\n{task.file.answer_prefix}".rstrip(" ")


def prompt_hash(task: Task, demonstrations: Demonstrations) -> str:
    """Return a hash of everything in the prompts except the query texts.

    Tables with the same hash have the same instruction, demonstrations, template, classes and
    label words.
    """
    content = {
        "prefix": str(render_prefix(task, demonstrations)),
        "query": render_query(task, "{text}"),
        "classes": task.classes,
        "label_words": task.label_words,
        "template": task.file.template,
    }
    canonical = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(canonical.encode("utf-8")).hexdigest()
