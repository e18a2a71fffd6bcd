"""Tasks, their texts and the demonstrations of a prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from dcs.errors import ConfigError
from dcs.seeds import derive_generator

Split = Literal["optimization", "test"]
SPLITS: tuple[Split, ...] = ("optimization", "test")

Shots = int | Literal["N"]


@dataclass(frozen=True, slots=True)
class Example:
    """A labelled text.

    Parameters
    ----------
    id : str
        Unique within the task.
    text : str
        The text to classify.
    label : int
        Index of the class in ``Task.classes``.
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
    division : str
        How one set of texts was divided into the splits; empty if it came divided.
    sizes : tuple of (str, int)
        Number of texts per split according to the task description, for listings; the texts
        themselves may be unavailable.
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
    division: str = ""
    sizes: tuple[tuple[str, int], ...] = ()

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
    raise ConfigError(
        f"shots {value!r}: must be a number of demonstrations (0, 1, 5, ...), or N for one "
        "demonstration per class"
    )


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
    pool = task.examples("optimization")
    # Variants of a prompt share demonstrations, so that they are comparable.
    rng = derive_generator(seed, "demonstrations", task.name.partition("@")[0], str(shots))
    if shots == "N":
        members = [[e for e in pool if e.label == label] for label in range(task.n_classes)]
        if [] in members:
            raise ConfigError(
                f"shots N: class {task.classes[members.index([])]!r} of task {task.name!r} has no "
                "optimization text; use a number of shots instead"
            )
        pool = tuple(each[int(rng.integers(len(each)))] for each in members)
    elif shots > len(pool):
        raise ConfigError(
            f"shots {shots}: task {task.name!r} has {len(pool)} optimization texts; "
            "use fewer shots"
        )
    drawn = rng.permutation(len(pool))[: len(pool) if shots == "N" else shots]
    return Demonstrations(tuple(pool[int(row)] for row in drawn), shots, seed)
