"""A scorer that asks its store first, and keeps what it had to ask the model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcs.scorers.base import SCORING_VERSION, Progress, Scorer
from dcs.store import ShardGroup, ShardStore, query_hash

__all__ = ["SHARD_SIZE", "StoredScorer", "score_settings"]

SHARD_SIZE = 256
"""Queries of one shard: the most that a killed run has to do again."""

_CONTENT_REVISION = re.compile(r"sha256:[0-9a-f]+")


def score_settings(scorer: Scorer, prefix: str, label_words: Sequence[str]) -> dict[str, Any]:
    """Return all that decides the probabilities of a query but the query itself.

    A model folder goes by its content, whatever it is called; other models by name and revision.
    ``_model`` is what it was called, for people.
    """
    is_content = _CONTENT_REVISION.fullmatch(scorer.revision)
    return {
        "model": None if is_content else scorer.model,
        "revision": scorer.revision,
        "scorer": scorer.name,
        "scorer_version": scorer.version,
        "scoring": SCORING_VERSION,
        "settings": dict(getattr(scorer, "settings", {})),
        "prefix": prefix,
        "label_words": list(label_words),
        "_model": scorer.model,
    }


class StoredScorer:
    """Gives the probabilities of another scorer, each scored once.

    Queries are scored in shards of consecutive ones; each is written as soon as it is done, all
    or nothing. What a run that was killed has finished is not done again, and the probabilities
    are the same to the last bit as without the kill. Of several processes that share a store,
    one scores a shard and the others wait for it.

    Parameters
    ----------
    scorer : Scorer
        What scores the prompts that are not in the store.
    store : ShardStore
        Where they are kept.
    shard_size : int
        Queries of one shard.
    """

    def __init__(self, scorer: Scorer, store: ShardStore, *, shard_size: int = SHARD_SIZE) -> None:
        self._scorer = scorer
        self._store = store
        self._shard_size = shard_size
        self.scored = 0
        """Queries that the model has been asked so far."""

    @property
    def name(self) -> str:
        """The engine."""
        return self._scorer.name

    @property
    def version(self) -> str:
        """The versions of the software that decide the engine's numbers."""
        return self._scorer.version

    @property
    def model(self) -> str:
        """The model, as it was named."""
        return self._scorer.model

    @property
    def revision(self) -> str:
        """The exact version of the model's weights."""
        return self._scorer.revision

    @property
    def settings(self) -> Mapping[str, str]:
        """What else decides the engine's numbers."""
        return dict(getattr(self._scorer, "settings", {}))

    def score(
        self,
        prefix: str,
        queries: Sequence[str],
        label_words: Sequence[str],
        *,
        progress: Progress | None = None,
    ) -> NDArray[np.float64]:
        """Return the class probabilities of the prompts ``prefix + query``.

        See :meth:`dcs.scorers.Scorer.score`.
        """
        report = progress or (lambda count: None)
        group = self._store.group(score_settings(self._scorer, prefix, label_words))
        hashes = [query_hash(query) for query in queries]
        by_hash = dict(zip(hashes, queries, strict=True))
        distinct = list(by_hash)
        # Cut before looking at what is there: a run that goes on cuts as the first one did.
        shards = [
            distinct[start : start + self._shard_size]
            for start in range(0, len(distinct), self._shard_size)
        ]
        copies = Counter(hashes)
        postponed = []

        def extra(shard: Sequence[bytes]) -> None:
            more = sum(copies[key] - 1 for key in shard)
            if more:
                report(more)

        for shard in shards:
            if self._do(group, shard, by_hash, label_words, prefix, report, wait=False):
                extra(shard)
            else:
                postponed.append(shard)
        for shard in postponed:
            self._do(group, shard, by_hash, label_words, prefix, report, wait=True)
            extra(shard)
        if not hashes:
            return self._scorer.score(prefix, [], label_words)
        return np.stack([group.rows[key] for key in hashes])

    def _do(
        self,
        group: ShardGroup,
        shard: Sequence[bytes],
        by_hash: Mapping[bytes, str],
        label_words: Sequence[str],
        prefix: str,
        report: Progress,
        *,
        wait: bool,
    ) -> bool:
        if all(key in group.rows for key in shard):
            report(len(shard))
            return True
        with group.lock(shard, wait=wait) as held:
            if not held:
                return False
            group.refresh()  # whoever held it before has written it
            missing = [key for key in shard if key not in group.rows]
            if missing:
                texts = [by_hash[key] for key in missing]
                probs = self._scorer.score(prefix, texts, label_words, progress=report)
                group.write(missing, probs)
                self.scored += len(missing)
            if len(missing) < len(shard):
                report(len(shard) - len(missing))
            return True

    def report(self) -> list[str]:
        """Return what the engine has to say, e.g. labels missing from a server's answers."""
        lines: list[str] = getattr(self._scorer, "report", list)()
        return lines

    def close(self) -> None:
        """Free the model's memory. The scorer cannot be used afterwards."""
        self._scorer.close()
