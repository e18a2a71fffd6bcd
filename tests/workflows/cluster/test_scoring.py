"""Tables scored in shards, and the actors that hold a model."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from dcs.scoring.generation import ScorerInfo
from dcs_workflows.cluster.pool import ScoringPool
from dcs_workflows.cluster.scoring import (
    ScoredShard,
    ScoringActor,
    TableScoring,
    Work,
    score_here,
)
from dcs_workflows.config.scoring import ScoringSettings
from dcs_workflows.config.sweep import SweepConfig
from dcs_workflows.plan import SweepPlan
from dcs_workflows.tables import Scoring, StoredTables, TableRequest
from tests.dcs.scoring.clerk import Clerk

REQUEST = TableRequest(model="tiny_lm", task="reviews", shots=1, seed=0, limit=20)
#: More prompts than a shard has.
WHOLE = dataclasses.replace(REQUEST, limit=80)


def score(folder: Path, request: TableRequest, **settings: Any) -> Scoring:
    actor = ScoringActor("tiny_lm", folder / "shards", ScoringSettings(device="cpu", **settings))
    with closing(actor):
        table, store = TableScoring("k", request), StoredTables.under(folder, "k")
        return score_here(table, actor, Work(), store)


def test_the_record_says_what_the_numbers_are(tmp_path):
    scoring = score(tmp_path, dataclasses.replace(REQUEST, shots="N"))
    assert scoring.scorer["dtype"] == "float32"
    assert scoring.scorer["version"].startswith("transformers ")
    assert scoring.rows == scoring.scored
    stored = StoredTables.under(tmp_path, "k")
    assert stored.scoring == scoring
    np.testing.assert_allclose(stored.read()["test"].probs.sum(axis=1), 1.0)
    assert list((tmp_path / "shards").iterdir())


def test_prompts_are_kept_where_the_settings_say(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    score(tmp_path, REQUEST, store=str(elsewhere))
    assert list(elsewhere.iterdir())
    assert not (tmp_path / "shards").exists()
    again = score(tmp_path / "again", REQUEST, store=str(elsewhere))
    assert (again.scored, again.metrics["scoring/cache_hits"]) == (0, again.rows)


def test_a_table_does_not_depend_on_who_scores_which_shard_and_when(tmp_path):
    info = ScorerInfo("clerk", "1", "abacus", "r7", {})
    digests = set()
    for order in (1, -1):
        table, works = TableScoring("k", WHOLE), (Work(gpus=1), Work(gpus=1))
        assert len(table.left) == 3
        for number, shard in enumerate([*table.left][::order]):
            assert not table.complete
            prefix, queries, words = table.prompts.prompts(shard)
            probs = Clerk.probs(prefix, queries, len(words))
            # What an actor says is of all that it has done.
            done = 10 * (number // 2 + 1)
            table.add(shard, ScoredShard(probs, done, 2 * done, ["a line"]), works[number % 2])
        assert table.complete
        note = table.store(StoredTables(tmp_path / str(order)), info)
        assert (note.scored, note.tokens, note.gpus, note.remarks) == (30, 60, 2, ["a line"] * 2)
        digests.add(tuple(note.digests.values()))
    assert len(digests) == 1


def test_other_texts_than_the_planned_ones_are_not_scored(tmp_path):
    config = SweepConfig(name="x", tasks=("reviews",))
    pool = ScoringPool(SweepPlan(config, tmp_path, (), sources={"another key": [REQUEST]}))
    pool.fill({}, 1)
    assert "the texts or the model have changed" in str(pool.unscored[0])
