"""The store keeps the contract of the scorers, and the model is asked once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dcs.scoring import Scorer, StoredScorer, load_scorer
from dcs.scoring.cache import ShardStore
from tests.dcs.scoring.test_contract import PREFIX, QUERIES, TASK, ScorerContract


class TestStored(ScorerContract):
    @pytest.fixture
    def scorer(self, tiny_scorer: Scorer, tmp_path: Path) -> Scorer:
        return StoredScorer(tiny_scorer, ShardStore(tmp_path), shard_size=10)


class TestJoint(ScorerContract):
    @pytest.fixture
    def scorer(self) -> Scorer:
        return load_scorer("tiny_lm", device="cpu", label_rule="joint")


def test_equal_to_the_last_bit(tiny_scorer: Scorer, tmp_path: Path) -> None:
    first = StoredScorer(tiny_scorer, ShardStore(tmp_path), shard_size=10)
    again = StoredScorer(tiny_scorer, ShardStore(tmp_path), shard_size=10)
    probs = first.score(PREFIX, QUERIES, TASK.label_words)
    np.testing.assert_array_equal(again.score(PREFIX, QUERIES, TASK.label_words), probs)
    assert (first.scored, again.scored) == (len(QUERIES), 0)
