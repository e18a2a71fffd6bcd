"""The engine ``unigram``: a language model that counts words, for want of a better one."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dcs.errors import ScoringError
from dcs.io import Strict
from dcs.prompting.tasks import PromptPrefix
from dcs.scoring import Advance, ModelReference


class UnigramOptions(Strict):
    """Options of the engine ``unigram``.

    Attributes
    ----------
    smoothing : float
        Added to every count.
    """

    smoothing: float = Field(default=1.0, gt=0.0)


class UnigramScorer:
    """Gives a class the more, the more of its words stand in a prompt's text.

    Parameters
    ----------
    model : ModelReference
        A folder whose ``config.json`` gives the words of every label word.
    smoothing : float
        See :class:`UnigramOptions`.

    Raises
    ------
    ScoringError
        If the words cannot be read.
    """

    name = "unigram"
    version = "1"
    packages = ("dcs-extras",)
    options = UnigramOptions

    def __init__(self, model: ModelReference, *, smoothing: float = 1.0) -> None:
        try:
            words = json.loads((Path(model.location) / "config.json").read_text("utf-8"))["words"]
            self._counts = {label: Counter(_split(text)) for label, text in words.items()}
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise ScoringError(
                f"model {model.name!r}: no words in config.json ({error})"
            ) from None
        self._smoothing = smoothing
        self.model, self.revision = model.name, model.revision or "unknown"
        self.settings: Mapping[str, str] = {"smoothing": str(smoothing)}

    def score(
        self,
        prefix: str | PromptPrefix,
        queries: Sequence[str],
        label_words: Sequence[str],
        *,
        progress: Advance | None = None,
    ) -> NDArray[np.float64]:
        """Return the class probabilities of the prompts ``f"{prefix}{query}"``."""
        unknown = [word for word in label_words if word not in self._counts]
        if unknown:
            raise ScoringError(f"model {self.model!r} does not know {', '.join(unknown)}")
        counts = [self._counts[word] for word in label_words]
        logits = np.array([[self._logit(each, query) for each in counts] for query in queries])
        logits = logits.reshape(len(queries), len(label_words))
        weights = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-math.inf))
        if progress is not None:
            progress(len(queries))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    def close(self) -> None:
        """Free the model's memory."""
        self._counts.clear()

    def _logit(self, counts: Counter[str], query: str) -> float:
        total = counts.total() + self._smoothing * 1000
        return sum(math.log((counts[word] + self._smoothing) / total) for word in _split(query))


def _split(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())
