"""Tasks and their prompts: instruction, demonstrations, query."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from dcs.errors import ConfigError, check_choice
from dcs.seeds import derive_generator

Split = Literal["optimization", "test"]
SPLITS: tuple[Split, ...] = ("optimization", "test")

Shots = int | Literal["N"]


@dataclass(frozen=True, slots=True)
class Example:
    """One text with its class.

    Parameters
    ----------
    id : str
        Unique within the task.
    text : str
        The text to be classified.
    label : int
        Index of its class in ``Task.classes``.
    """

    id: str
    text: str
    label: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A text classification task, and how it is put to a language model; see :func:`get_task`.

    Parameters
    ----------
    name : str
        The name used on the command line and in tables; what follows an ``@`` names a variant of
        the prompt, which shows the same demonstrations.
    title : str
        One line that says what the task is.
    classes : tuple of str
        Class names, in the order of the labels.
    label_words : tuple of str
        The word that the model answers with for each class.
    instruction : str
        Said once, at the head of the prompt.
    input_prefix, answer_prefix : str
        What stands before a text and before its label word, e.g. ``"Review:"``, ``"Rating:"``.
    source : callable
        Gives the examples of a split. Its answer must not change from call to call.
    separator : str
        What follows each demonstration.
    template : str
        The query before its fields are filled in, where texts are made of several fields.
    sizes : tuple of (str, int)
        Texts of each split as described, for listings; a task may have no texts at hand.
    """

    name: str
    title: str
    classes: tuple[str, ...]
    label_words: tuple[str, ...]
    instruction: str
    input_prefix: str
    answer_prefix: str
    source: Callable[[Split], tuple[Example, ...]] = field(repr=False, compare=False)
    separator: str = "\n\n"
    template: str = ""
    sizes: tuple[tuple[str, int], ...] = ()

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    def examples(self, split: Split) -> tuple[Example, ...]:
        """Return the examples of a split, the same on every call.

        Parameters
        ----------
        split : {"optimization", "test"}
            Optimization texts are for demonstrations and for choosing corrections; test texts
            are for the final figures alone.

        Raises
        ------
        ConfigError
            If `split` is not one of the two.
        """
        check_choice(f"task {self.name!r}: split", split, SPLITS)
        return self.source(split)


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """The labelled examples shown in a prompt, in their order.

    Parameters
    ----------
    examples : tuple of Example
        Drawn from the optimization split.
    shots : int or "N"
        What was asked for.
    seed : int
        The demonstration seed.
    """

    examples: tuple[Example, ...]
    shots: Shots
    seed: int

    @property
    def texts(self) -> frozenset[str]:
        """The texts shown, which must not be scored as queries."""
        return frozenset(example.text for example in self.examples)


def parse_shots(value: str | int) -> Shots:
    """Read a number of shots.

    Parameters
    ----------
    value : str or int
        ``"0"``, ``"1"``, ``"5"``, ... demonstrations drawn at random, or ``"N"`` for one
        demonstration of each class.

    Raises
    ------
    ConfigError
        If `value` is neither.
    """
    text = str(value).strip()
    if text in ("N", "n"):
        return "N"
    if text.isascii() and text.isdigit() and not isinstance(value, bool):
        return int(text)
    raise ConfigError(
        f"shots {value!r}: allowed are a number of demonstrations (0, 1, 5, ...) or N "
        "for one demonstration of each class"
    )


def select_demonstrations(task: Task, shots: Shots, *, seed: int) -> Demonstrations:
    """Draw the demonstrations of a prompt from the optimization split.

    Parameters
    ----------
    task : Task
        The task.
    shots : int or "N"
        ``k`` texts at random whatever their classes, or one text of each class in random order
        (the paper's 1-shot, k-shot and N-shot prompts).
    seed : int
        Demonstration seed; each seed is another draw.

    Returns
    -------
    Demonstrations
        The examples, in the order in which they are shown.

    Raises
    ------
    ConfigError
        If the split has too few texts, or a class has none.
    """
    shots = parse_shots(shots)
    pool = task.examples("optimization")
    # Variants of a prompt show the same texts, so that they can be compared.
    rng = derive_generator(seed, "demonstrations", task.name.partition("@")[0], str(shots))
    if shots == "N":
        members = [[e for e in pool if e.label == label] for label in range(task.n_classes)]
        if [] in members:
            raise ConfigError(
                f"shots N: class {task.classes[members.index([])]!r} of task {task.name!r} has no "
                "optimization text; ask for a number of shots instead"
            )
        pool = tuple(each[int(rng.integers(len(each)))] for each in members)
    elif shots > len(pool):
        raise ConfigError(
            f"shots {shots}: task {task.name!r} has {len(pool)} optimization texts; "
            "ask for fewer shots"
        )
    drawn = rng.permutation(len(pool))[: len(pool) if shots == "N" else shots]
    return Demonstrations(tuple(pool[int(row)] for row in drawn), shots, seed)


def render_prefix(task: Task, demonstrations: Demonstrations) -> str:
    r"""Return what all prompts of a table begin with: the instruction and the demonstrations.

    Parameters
    ----------
    task : Task
        The task.
    demonstrations : Demonstrations
        What is shown, in order; may be empty (0-shot).

    Returns
    -------
    str
        ``instruction``, a blank line, then per demonstration
        ``"<input_prefix> text\n<answer_prefix> label<separator>"``.
    """
    blocks = [f"{task.instruction}\n\n"] if task.instruction else []
    blocks += [
        f"{render_query(task, example.text)} {task.label_words[example.label]}{task.separator}"
        for example in demonstrations.examples
    ]
    return "".join(blocks)


def render_query(task: Task, text: str) -> str:
    """Return the last part of a prompt: the text, and the answer prefix the model continues.

    It ends without a space, since most tokenizers join the space to the label word.
    """
    head = f"{task.input_prefix} " if task.input_prefix else ""
    return f"{head}{text.strip()}\n{task.answer_prefix}".rstrip(" ")


def prompt_hash(task: Task, demonstrations: Demonstrations) -> str:
    """Return a hash of everything in the prompts but the query texts.

    Two tables with the same hash asked the same question: same instruction, demonstrations,
    template, classes and label words.
    """
    content: dict[str, object] = {
        "prefix": render_prefix(task, demonstrations),
        "query": render_query(task, "{text}"),
        "classes": task.classes,
        "label_words": task.label_words,
    }
    if task.template:
        content["template"] = task.template
    canonical = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(canonical.encode("utf-8")).hexdigest()
