"""The engine ``unigram``: a language model that counts words, for want of a better one."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dcs.errors import ScoringError
from dcs.scorers import Progress


class UnigramScorer:
    """Gives a class the more, the more of its words stand near its label word in a text.

    Parameters
    ----------
    model : str
        A text file to count words in: lines that begin with a label word.
    smoothing : float
        Added to every count.

    Raises
    ------
    ScoringError
        If the file cannot be read.
    """

    name = "unigram"
    version = "1"

    def __init__(self, model: str, *, smoothing: float = 1.0) -> None:
        try:
            text = Path(model).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ScoringError(f"model {model!r} cannot be read ({error})") from None
        self.model = model
        self.revision = f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        self.settings: Mapping[str, str] = {"smoothing": str(smoothing)}
        self._smoothing = smoothing
        self._counts: dict[str, Counter[str]] = {}
        for words in map(_words, text.splitlines()):
            if words:
                self._counts.setdefault(words[0], Counter()).update(words[1:])

    def score(
        self,
        prefix: str,
        queries: Sequence[str],
        label_words: Sequence[str],
        *,
        progress: Progress | None = None,
    ) -> NDArray[np.float64]:
        """Return the class probabilities of the prompts ``prefix + query``."""
        unknown = [word for word in label_words if word.lower() not in self._counts]
        if unknown:
            raise ScoringError(f"model {self.model!r} does not know {', '.join(unknown)}")
        counts = [self._counts[word.lower()] for word in label_words]
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
        return sum(math.log((counts[word] + self._smoothing) / total) for word in _words(query))


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())
