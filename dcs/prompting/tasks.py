"""Tasks, the demonstrations of a prompt, its text, and the same prompt as chat messages."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dcs.errors import ConfigError
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A text classification task and its prompt; see :func:`get_task`.

    Parameters
    ----------
    name : str
        The name used on the command line and in tables; the part after an ``@`` is a variant of
        the prompt, which has the same demonstrations.
    title : str
        One-line description.
    classes : tuple of str
        Class names, in the order of the labels.
    label_words : tuple of str
        The answer of the model for each class.
    instruction : str
        Text at the beginning of the prompt.
    input_prefix, answer_prefix : str
        Text before an input and before its label word, e.g. ``"Review:"``, ``"Rating:"``.
    examples : callable
        Returns the examples of a split, ``"optimization"`` for demonstrations and for selecting
        corrections, or ``"test"`` for the final evaluation; the same on every call.
    separator : str
        Text after each demonstration.
    template : str
        The query with unfilled fields, if texts are composed of several fields.
    sizes : tuple of (str, int)
        Number of texts per split according to the task description, for listings; the texts
        themselves may be unavailable.
    described : mapping
        The task file, from which :func:`dcs.prompting.files.described_task` makes the task again;
        empty for a task that was made otherwise.
    """

    name: str
    title: str
    classes: tuple[str, ...]
    label_words: tuple[str, ...]
    instruction: str
    input_prefix: str
    answer_prefix: str
    examples: Callable[[Split], tuple[Example, ...]] = field(repr=False, compare=False)
    separator: str = "\n\n"
    template: str = ""
    sizes: tuple[tuple[str, int], ...] = ()
    described: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)


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

    @property
    def texts(self) -> frozenset[str]:
        """The texts of the demonstrations, which must not be scored as queries."""
        return frozenset(example.text for example in self.examples)


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
        members = [[e for e in pool if e.label == label] for label in range(task.n_classes)]
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
    prefix: str | PromptPrefix,
    query: str,
    *,
    system: bool = True,
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
    messages = []
    for text, word in prefix.turns:
        messages.append({"role": "user", "content": text})
        messages.append({"role": "assistant", "content": word})
    messages.append({"role": "user", "content": query})
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
    shown = ((render_query(task, e.text), e.label) for e in demonstrations.examples)
    turns = tuple((query, task.label_words[label]) for query, label in shown)
    return PromptPrefix(instruction=task.instruction, turns=turns, separator=task.separator)


def render_query(task: Task, text: str) -> str:
    """Return the last part of a prompt: the text, and the answer prefix the model continues.

    Trailing spaces are removed, because most tokenizers merge the space into the label word.
    """
    head = f"{task.input_prefix} " if task.input_prefix else ""
    return f"{head}{text.strip()}\n{task.answer_prefix}".rstrip(" ")


def prompt_hash(task: Task, demonstrations: Demonstrations) -> str:
    """Return a hash of everything in the prompts except the query texts.

    Tables with the same hash have the same instruction, demonstrations, template, classes and
    label words.
    """
    content: dict[str, object] = {
        "prefix": str(render_prefix(task, demonstrations)),
        "query": render_query(task, "{text}"),
        "classes": task.classes,
        "label_words": task.label_words,
    }
    if task.template:
        content["template"] = task.template
    canonical = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(canonical.encode("utf-8")).hexdigest()
