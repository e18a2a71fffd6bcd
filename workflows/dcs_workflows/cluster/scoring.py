"""Scoring of tables in shards: the actor that holds a model, and the table that it works on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Hashable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dcs.data.checks import doubts_about
from dcs.scoring import Advance, StoredScorer
from dcs.scoring.base import Prompts, score_rows
from dcs.scoring.cache import SHARD_SIZE
from dcs.scoring.generation import ScorerInfo
from dcs_workflows.config.scoring import ScoringSettings
from dcs_workflows.parallel import one_thread
from dcs_workflows.sources.scored import Scoring, StoredTables, TableRequest

#: Number of shards of a table, so that many actors finish it together; fewer if they would have
#: less than `_LEAST` prompts, since every shard runs the demonstrations once.
_SHARDS, _LEAST = 32, 64

#: Number of shards that an actor is given at a time: while it computes one, the next is waiting.
#: An actor that is lost costs all of them.
IN_FLIGHT = 2


@dataclass(frozen=True, slots=True)
class ScoredShard:
    """Class probabilities of consecutive prompts, and what it took to compute them.

    Attributes
    ----------
    probs : float64 array [M, N]
        Class probabilities.
    scored, tokens : int
        Numbers of prompts scored by the model, and of their tokens.
    remarks : list of str
        Report of the engine on what it has scored with these demonstrations and label words.
    reasons : mapping of int to str
        Why prompts could not be scored, by row; their probabilities are NaN.
    """

    probs: NDArray[np.float64]
    scored: int
    tokens: int
    remarks: list[str]
    reasons: Mapping[int, str] = field(default_factory=dict)


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

    def __init__(self, model: str, shards: Path, settings: ScoringSettings) -> None:
        self._model, self._settings = model, settings
        self._folder = settings.store or shards
        self._held = ExitStack()

    def __repr__(self) -> str:
        # Ray's dashboard shows it.
        return f"ScoringActor({self._model})"

    def load(self) -> ScorerInfo:
        """Load the model.

        Raises
        ------
        DCSError
            If the model cannot be loaded.
        """
        scorer = self._settings.load(self._model)
        self._held.callback(scorer.close)
        self._scorer = StoredScorer(scorer, self._folder)
        return ScorerInfo.of(scorer, self._settings.recorded)

    @one_thread()
    def score(self, prompts: Prompts, progress: Advance | None = None) -> ScoredShard:
        """Score and store prompts; see :meth:`dcs.scoring.Scorer.score`."""
        scorer = self._scorer
        before = scorer.scored, scorer.tokens_read
        probs, reasons = score_rows(scorer, prompts, progress)
        scored, tokens = scorer.scored - before[0], scorer.tokens_read - before[1]
        return ScoredShard(probs, scored, tokens, scorer.report(), reasons)

    def close(self) -> None:
        """Free the memory of the model, including GPU memory, before the process ends."""
        self._held.close()

    #: Called by Ray when the driver has released the actor.
    __ray_shutdown__ = close


class TableScoring:
    """A pair of tables that is scored in shards, by any number of actors in any order.

    Shards depend on the prompts alone, so that results do not depend on the number of actors.

    Parameters
    ----------
    key : str
        The :func:`request_key` of the request.
    request : TableRequest
        The request.

    Attributes
    ----------
    left : deque of slice
        Shards that no actor works on.
    unscored : int
        Number of prompts of the shards that have not been added.

    Raises
    ------
    DCSError
        If the texts cannot be read.
    """

    def __init__(self, key: str, request: TableRequest) -> None:
        self.key, self.request = key, request
        self.prompts = request.prompts
        self.n_prompts = len(self.prompts.texts)
        size = min(SHARD_SIZE, max(_LEAST, -(-self.n_prompts // _SHARDS)))
        starts = range(0, self.n_prompts, size)
        self.left = deque(slice(at, min(at + size, self.n_prompts)) for at in starts)
        self._probs = np.full((self.n_prompts, len(self.prompts.task.classes)), np.nan)
        self.unscored = self.n_prompts
        self._clock = time.perf_counter()
        self._scored = self._tokens = 0
        # The GPUs of each actor, and what its engine reports.
        self._actors: dict[Hashable, tuple[float, list[str]]] = {}
        self._reasons: dict[int, str] = {}

    def add(self, shard: slice, result: ScoredShard, actor: Hashable, gpus: float = 0.0) -> None:
        """Add a shard that an actor has scored, which holds some GPUs."""
        self._probs[shard] = result.probs
        self._reasons |= {shard.start + row: reason for row, reason in result.reasons.items()}
        self.unscored -= shard.stop - shard.start
        self._scored += result.scored
        self._tokens += result.tokens
        # If all prompts were stored, the report is that of another table.
        told = result.remarks if result.scored else self._actors.get(actor, (gpus, []))[1]
        self._actors[actor] = gpus, told

    def store(self, stored: StoredTables, info: ScorerInfo) -> Scoring:
        """Write both tables of a complete scoring, and return its record."""
        tables = self.prompts.tables(self._probs, info, self._reasons)
        # No labels of a task are predictions of the model, even if all of them are predicted.
        doubts = (
            f"{split}: {doubt}"
            for split, rows in tables.items()
            for doubt in doubts_about(rows.labels, rows.probs, rows.n_rows + 1, rows.classes)
        )
        return stored.write(
            tables,
            seconds=time.perf_counter() - self._clock,
            gpus=sum(gpus for gpus, _ in self._actors.values()),
            scorer={
                "scorer": info.name,
                "version": info.version,
                "revision": info.revision,
                "reading": self.prompts.task.file.reading,
                **info.settings,
            },
            remarks=[
                *doubts,
                *([self.prompts.unlabelled] if self.prompts.unlabelled else []),
                *(line for _, lines in self._actors.values() for line in lines),
            ],
            missing=self.prompts.missing(self._reasons),
            scored=self._scored,
            tokens=self._tokens,
        )
