"""Scoring of tables in shards: the actor that holds a model, and the table that it works on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dcs.errors import ScoringError
from dcs.prompting import PromptPrefix
from dcs.scoring import Progress, StoredScorer
from dcs.scoring.cache import SHARD_SIZE
from dcs.scoring.generation import PromptSet, ScorerInfo
from workflows.config.scoring import ScoringSettings
from workflows.parallel import one_thread
from workflows.tables import ProbabilityStore, Scoring, TableRequest, texts_key

#: Number of shards that an actor is given at a time: while the engine computes one, the prompts of
#: the next are waiting, and the results of the previous are written.
IN_FLIGHT = 2

#: Number of shards of a table, so that many actors finish it together; fewer if they would have
#: less than `_LEAST` prompts, since every shard runs the demonstrations once.
_SHARDS, _LEAST = 32, 64


@dataclass(frozen=True, slots=True)
class ScoredShard:
    """Class probabilities of consecutive prompts, and all that their actor has done so far.

    Attributes
    ----------
    probs : float64 array [M, N]
        Class probabilities.
    scored, tokens : int
        Numbers of prompts scored by the model, and of their tokens, since the actor was started.
    remarks : list of str
        Report of the engine.
    """

    probs: NDArray[np.float64]
    scored: int
    tokens: int
    remarks: list[str]


class ScoringActor:
    """Hold one model; the driver starts it as a Ray actor with the GPUs that its engine needs.

    Parameters
    ----------
    model : str
        Local folder, hub id, or ``tiny_lm``.
    shards : pathlib.Path
        Folder for scored prompts, if the settings name none. On a file system that all nodes share
        an actor reuses those of one that died.
    settings : ScoringSettings
        The engine and its options.
    """

    def __init__(
        self,
        model: str,
        shards: Path,
        settings: ScoringSettings = ScoringSettings(),  # noqa: B008 - frozen
    ) -> None:
        self._model, self._settings = model, settings
        self._folder = settings.store or shards
        self._held = ExitStack()

    def load(self) -> ScorerInfo:
        """Load the model.

        Raises
        ------
        DCSError
            If the model cannot be loaded.
        """
        scorer = self._settings.load(self._model)
        self._held.callback(scorer.close)
        # For its life: calls overlap, and what they restore must not be more than one.
        self._held.enter_context(one_thread())
        self._scorer = StoredScorer(scorer, self._folder)
        return ScorerInfo.of(scorer)

    @one_thread()
    def score(
        self,
        prefix: str | PromptPrefix,
        queries: Sequence[str],
        label_words: Sequence[str],
        progress: Progress | None = None,
    ) -> ScoredShard:
        """Score and store prompts; see :meth:`dcs.scoring.Scorer.score`."""
        scorer = self._scorer
        probs = scorer.score(prefix, queries, label_words, progress=progress)
        return ScoredShard(probs, scorer.scored, scorer.tokens_read, scorer.report())

    def close(self) -> None:
        """Free the memory of the model, including GPU memory, before the process ends."""
        self._held.close()

    def __ray_shutdown__(self) -> None:
        """Close the model; called by Ray when the driver has released the actor."""
        self.close()


@dataclass(slots=True, eq=False)
class Work:
    """What an actor has reported so far; shared by the tables that it works on.

    Attributes
    ----------
    gpus : float
        Number of its GPUs.
    info : ScorerInfo or None
        Its model; None until it is loaded.
    scored, tokens : int
        See :class:`ScoredShard`.
    """

    gpus: float = 0.0
    info: ScorerInfo | None = None
    scored: int = 0
    tokens: int = 0


class TableScoring:
    """A pair of tables that is scored in shards, by any number of actors in any order.

    Shards depend on the prompts alone, so that results do not depend on the number of actors.

    Parameters
    ----------
    key : str
        The :func:`request_key` of the request.
    request : TableRequest
        The request.
    texts : str, optional
        Its :func:`texts_key` when the sweep was planned.

    Attributes
    ----------
    left : deque of slice
        Shards that no actor works on.

    Raises
    ------
    DCSError
        If the texts cannot be read, or have changed.
    """

    def __init__(self, key: str, request: TableRequest, texts: str | None = None) -> None:
        if texts is not None and texts != texts_key(request):
            # Stored under this key, the table would be mistaken for that of the planned texts.
            raise ScoringError(
                f"task {request.task}: the texts have changed since the sweep began; run the same "
                "command again"
            )
        self.key, self.request = key, request
        self.prompts = PromptSet.select(**request.prompted)
        self.n_prompts = len(self.prompts.texts)
        size = min(SHARD_SIZE, max(_LEAST, -(-self.n_prompts // _SHARDS)))
        starts = range(0, self.n_prompts, size)
        self.left = deque(slice(at, min(at + size, self.n_prompts)) for at in starts)
        self._probs = np.full((self.n_prompts, self.prompts.task.n_classes), np.nan)
        self._unscored = self.n_prompts
        self._clock = time.perf_counter()
        self._scored = self._tokens = 0
        self._remarks: dict[Work, list[str]] = {}

    @property
    def complete(self) -> bool:
        """Whether all shards are scored."""
        return not self._unscored

    def add(self, shard: slice, result: ScoredShard, work: Work) -> None:
        """Add a scored shard of an actor."""
        self._probs[shard] = result.probs
        self._unscored -= shard.stop - shard.start
        # Results of an actor may arrive in another order.
        scored, tokens = max(0, result.scored - work.scored), max(0, result.tokens - work.tokens)
        work.scored, work.tokens = work.scored + scored, work.tokens + tokens
        self._scored += scored
        self._tokens += tokens
        self._remarks[work] = result.remarks

    def store(self, store: ProbabilityStore, info: ScorerInfo) -> Scoring:
        """Write both tables of a complete scoring, and return its record."""
        return store.write(
            self.key,
            self.prompts.tables(self._probs, info),
            model=self.request.model,
            seconds=time.perf_counter() - self._clock,
            gpus=sum(work.gpus for work in self._remarks),
            scorer={
                "scorer": info.name,
                "version": info.version,
                "revision": info.revision,
                **info.settings,
            },
            demonstrations=[example.id for example in self.prompts.demonstrations.examples],
            remarks=[
                *filter(None, [self.prompts.task.division]),
                *(line for lines in self._remarks.values() for line in lines),
            ],
            scored=self._scored,
            tokens=self._tokens,
        )


def score_here(
    table: TableScoring,
    actor: ScoringActor,
    work: Work,
    store: ProbabilityStore,
    progress: Progress | None = None,
) -> Scoring:
    """Score a table with an actor of this process, write it and return its record."""
    if work.info is None:
        work.info = actor.load()

    def score(shard: slice) -> ScoredShard:
        return actor.score(*table.prompts.prompts(shard.start, shard.stop), progress=progress)

    with ThreadPoolExecutor(IN_FLIGHT) as threads:
        for shard, result in zip(table.left, threads.map(score, table.left), strict=True):
            table.add(shard, result, work)
    return table.store(store, work.info)
