"""Tasks: what is asked, which labels are allowed, and the texts with their labels."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from dcs.errors import ConfigError
from dcs.messages import show

__all__ = ["SPLITS", "Example", "Split", "Task"]

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
        if len(set(self.classes)) != len(self.classes) or len(self.classes) < 2:
            raise ConfigError(
                f"task {self.name!r}: classes {list(self.classes)}; give two or more that differ"
            )
        if len(self.label_words) != len(self.classes):
            raise ConfigError(
                f"task {self.name!r}: {len(self.label_words)} label words for "
                f"{len(self.classes)} classes; give one word per class"
            )
        for kind, words in (("classes", self.classes), ("label words", self.label_words)):
            if not all(word.strip() for word in words):
                raise ConfigError(f"task {self.name!r}: {kind} {list(words)} hold an empty one")

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
