"""Tasks: what is asked, which labels are allowed, and the texts with their labels."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from dcs.errors import ConfigError
from dcs.messages import show, suggest

__all__ = ["SPLITS", "Example", "Split", "Task", "get_task", "register_task", "task_names"]

Split = Literal["optimization", "test"]
SPLITS: tuple[Split, ...] = ("optimization", "test")

_NAME = re.compile(r"[^\W_][\w.-]{0,99}")


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
    """A text classification task, and how it is put to a language model.

    Parameters
    ----------
    name : str
        The name used on the command line and in tables.
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
    template: str = ""
    sizes: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"task name {show(self.name)}: it names folders, so letters, digits, '_', '-' and "
                "'.' are allowed, at most 100, the first a letter or digit"
            )
        if len(self.classes) < 2:
            raise ConfigError(
                f"task {self.name!r}: classes has {len(self.classes)} names, needs 2 or more"
            )
        if len(set(self.classes)) != len(self.classes):
            raise ConfigError(f"task {self.name!r}: classes {list(self.classes)} repeat a name")
        if len(self.label_words) != len(self.classes):
            raise ConfigError(
                f"task {self.name!r}: {len(self.label_words)} label words for "
                f"{len(self.classes)} classes; give one word per class"
            )
        if not all(name.strip() for name in self.classes):
            raise ConfigError(f"task {self.name!r}: a class has an empty name")
        empty = [c for c, w in zip(self.classes, self.label_words, strict=True) if not w.strip()]
        if empty:
            raise ConfigError(f"task {self.name!r}: class {empty[0]!r} has an empty label word")

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    def examples(self, split: Split) -> tuple[Example, ...]:
        """Return the examples of a split.

        Parameters
        ----------
        split : {"optimization", "test"}
            Optimization texts are for demonstrations and for choosing corrections; test texts
            are for the final figures alone.

        Returns
        -------
        tuple of Example
            The same on every call.

        Raises
        ------
        ConfigError
            If `split` is not one of the two.
        """
        if split not in SPLITS:
            raise ConfigError(
                f"split {split!r} of task {self.name!r}: allowed are {', '.join(SPLITS)}"
            )
        return self.source(split)


_REGISTRY: dict[str, Task] = {}


def register_task(task: Task) -> None:
    """Make a task known by its name, so that :func:`get_task` finds it.

    Raises
    ------
    ConfigError
        If another task has that name.
    """
    if task.name in task_names() and _REGISTRY.get(task.name) != task:
        raise ConfigError(f"task {task.name!r} exists already; give the new task another name")
    _REGISTRY[task.name] = task


def task_names() -> tuple[str, ...]:
    """Return the names of the tasks whose texts are at hand, the built-in ones first.

    :func:`dcs.prompting.described_task_names` gives those whose texts must be fetched.
    """
    _add_built_in()
    return tuple(_REGISTRY)


def get_task(name: str, data: str | os.PathLike[str] | None = None) -> Task:
    """Return a task.

    Parameters
    ----------
    name : str
        A built-in or registered task, one of the paper's seven, or the path of a YAML file that
        describes a task.
    data : path-like, optional
        Folder that holds the texts of a described task, in itself or in a folder of the task's
        name. Built-in tasks need none and take no notice of it.

    Raises
    ------
    ConfigError
        If there is no such task, names the allowed ones; if its file is malformed. Whether its
        texts can be read shows when they are asked for.
    """
    from dcs.prompting.task_files import described_task_names, load_task

    if name in task_names():
        return _REGISTRY[name]
    names = (*task_names(), *described_task_names())
    if name in described_task_names() or name.endswith((".yaml", ".yml")):
        return load_task(name, data)
    raise ConfigError(
        f"unknown task {name!r}{suggest(name, names)}: allowed are {', '.join(names)}, or the "
        "path of a task YAML"
    )


@lru_cache(maxsize=8)
def _generated(module: str, split: Split) -> tuple[Example, ...]:
    # Texts take a fraction of a second to write: only when asked for, and once.
    generator = importlib.import_module(f"dcs.prompting.{module}")
    examples: tuple[Example, ...] = generator.examples(split)
    return examples


def _helpdesk(split: Split) -> tuple[Example, ...]:
    return _generated("_helpdesk", split)


def _reviews(split: Split) -> tuple[Example, ...]:
    return _generated("_reviews", split)


def _add_built_in() -> None:
    if _REGISTRY:
        return
    for task in (
        Task(
            name="helpdesk",
            title="Support tickets, to be sent to one of six teams (generated)",
            classes=("Access", "Billing", "Hardware", "Network", "Shipping", "Software"),
            label_words=("access", "billing", "hardware", "network", "shipping", "software"),
            instruction=(
                "Name the team that should handle each ticket: access, billing, hardware, "
                "network, shipping or software."
            ),
            input_prefix="Ticket:",
            answer_prefix="Team:",
            source=_helpdesk,
        ),
        Task(
            name="reviews",
            title="Customer reviews, to be given one of five grades (generated)",
            classes=("Terrible", "Bad", "Okay", "Good", "Great"),
            label_words=("terrible", "bad", "okay", "good", "great"),
            instruction="Grade each review as terrible, bad, okay, good or great.",
            input_prefix="Review:",
            answer_prefix="Rating:",
            source=_reviews,
        ),
    ):
        _REGISTRY[task.name] = task
