"""A scorer without a model."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dcs.prompting.tasks import PromptPrefix
from dcs.scoring import Advance
from dcs.scoring.cache import query_hash


class Clerk:
    """Gives every prompt probabilities of its own, notes what it was asked, may die over it."""

    name, version, model, revision = "clerk", "1", "abacus", "r7"
    settings = {"dtype": "float64"}  # noqa: RUF012

    def __init__(self, *, die_after: int | None = None) -> None:
        self.asked: list[str] = []
        self.calls: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = []
        self.die_after = die_after

    def score(
        self,
        prefix: str | PromptPrefix,
        queries: Sequence[str],
        label_words: Sequence[str],
        *,
        progress: Advance | None = None,
    ) -> NDArray[np.float64]:
        self.calls.append((prefix, tuple(queries), tuple(label_words)))
        if len(self.calls) == self.die_after:
            os.kill(os.getpid(), signal.SIGKILL)
        self.asked += queries
        if progress is not None:
            progress(len(queries))
        return self.probs(prefix, queries, len(label_words))

    @staticmethod
    def probs(
        prefix: str | PromptPrefix, queries: Sequence[str], n_classes: int
    ) -> NDArray[np.float64]:
        """Return what it says to some prompts."""
        seeds = [list(query_hash(f"{prefix}{query}")) for query in queries]
        rows = [np.random.default_rng(seed).dirichlet(np.ones(n_classes)) for seed in seeds]
        return np.array(rows).reshape(len(queries), n_classes)

    def close(self) -> None:
        pass
