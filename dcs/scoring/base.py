"""What every engine that reads class probabilities off a language model can do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

__all__ = ["SCORING_VERSION", "Progress", "Scorer"]

SCORING_VERSION = 1
"""Raised when the engines here read other numbers off the same model: old ones are not reused."""

Progress = Callable[[int], None]
"""Called with the number of queries just finished."""


@runtime_checkable
class Scorer(Protocol):
    """A loaded language model that gives the class probabilities of prompts.

    Attributes
    ----------
    name, version : str
        The engine, and the versions of the software that decide its numbers.
    model, revision : str
        The model as it was named, and the exact version of its weights.
    settings : mapping of str to str
        What else decides the numbers: precision, how label words are read.

    A class may also say: ``packages``, names of the installed packages whose versions decide its
    numbers; ``served``, that a server has its models, so that it is given a name and not a
    :class:`~dcs.scoring.ModelReference`; and have a method ``report()`` that gives lines to be
    printed at the end.
    """

    @property
    def name(self) -> str:
        """The engine."""

    @property
    def version(self) -> str:
        """The versions of the software that decide the engine's numbers."""

    @property
    def model(self) -> str:
        """The model, as it was named."""

    @property
    def revision(self) -> str:
        """The exact version of the model's weights."""

    @property
    def settings(self) -> Mapping[str, str]:
        """What else decides the engine's numbers, e.g. ``{"dtype": "float32"}``."""

    def score(
        self,
        prefix: str,
        queries: Sequence[str],
        label_words: Sequence[str],
        *,
        progress: Progress | None = None,
    ) -> NDArray[np.float64]:
        """Return the class probabilities of the prompts ``prefix + query``.

        Parameters
        ----------
        prefix : str
            What all prompts begin with: instruction and demonstrations. May be empty.
        queries : sequence of str, length M
            The rest of each prompt, which ends where the label word is to follow.
        label_words : sequence of str, length N
            The answer of each class, without its leading space.
        progress : callable, optional
            Called with the number of queries just finished.

        Returns
        -------
        float64 array [M, N]
            Rows sum to 1. Row i does not depend on the other queries (to 1e-5).

        Raises
        ------
        ScoringError
            If label words cannot be told apart, a prompt is too long, or the model gives
            values that are not finite.
        """

    def close(self) -> None:
        """Free the model's memory. The scorer cannot be used afterwards."""
