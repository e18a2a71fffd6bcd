"""Tables scored in shards, the actors that hold a model, and the threads of both and of cells."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from dcs.scoring.generation import ScorerInfo
from dcs_workflows.cli import sweeps
from dcs_workflows.cluster.pool import ScoringPool
from dcs_workflows.cluster.scoring import ScoredShard, ScoringActor, TableScoring
from dcs_workflows.config.scoring import ScoringSettings
from dcs_workflows.config.sweep import SweepConfig
from dcs_workflows.parallel import one_thread
from dcs_workflows.plan import SweepPlan
from dcs_workflows.sources.scored import StoredTables, TableRequest
from dcs_workflows.study.cell import compute_cell
from dcs_workflows.study.study import Setup
from tests.dcs.scoring.clerk import Clerk
from tests.workflows.cluster.test_parallel import CELL, TABLES

REQUEST = TableRequest(model="tiny_lm", task="reviews", shots=1, seed=0, limit=20)


def score(folder: Path, request: TableRequest, **settings: Any) -> Any:
    own = dataclasses.replace(request, scoring=ScoringSettings(device="cpu", **settings))
    sweeps.score("tiny_lm", {"k": own}, folder)
    return StoredTables(folder, "k").scoring


def test_the_record_says_what_the_numbers_are(tmp_path):
    scoring = score(tmp_path, dataclasses.replace(REQUEST, shots="N"))
    assert scoring.scorer["dtype"] == "float32"
    assert scoring.scorer["version"].startswith("transformers ")
    assert scoring.rows == scoring.scored
    np.testing.assert_allclose(StoredTables(tmp_path, "k").read()["test"].probs.sum(axis=1), 1.0)
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
        # More prompts than a shard has.
        table = TableScoring("k", dataclasses.replace(REQUEST, limit=80))
        assert len(table.left) == 3
        for number, shard in enumerate([*table.left][::order]):
            assert table.unscored
            prefix, queries, words = table.prompts.prompts(shard)
            probs = Clerk.probs(prefix, queries, len(words))
            table.add(shard, ScoredShard(probs, 10, 20, ["a line"]), number % 2, 1)
        assert not table.unscored
        note = table.store(StoredTables(tmp_path, str(order)), info)
        assert (note.scored, note.tokens, note.gpus, note.remarks) == (30, 60, 2, ["a line"] * 2)
        digests.add(tuple(note.digests.values()))
    assert len(digests) == 1


def test_other_texts_than_the_planned_ones_are_not_scored(tmp_path):
    config = SweepConfig(name="x", tasks=("reviews",))
    plan = SweepPlan(config, tmp_path, (), sources={"another key": [REQUEST]})
    pool = ScoringPool(plan, Counter())
    pool.fill({}, 1)
    assert "the texts or the model have changed" in str(pool.unscored[0])


def _threads() -> set[int]:
    """Return the numbers of threads of all libraries that are loaded."""
    import torch

    return {library["num_threads"] for library in threadpool_info()} | {torch.get_num_threads()}


@pytest.fixture
def several_threads() -> Iterator[None]:
    """Offer three threads, as another machine would."""
    import torch

    before = torch.get_num_threads()
    with threadpool_limits(3):
        torch.set_num_threads(3)
        yield
    torch.set_num_threads(before)


def test_one_thread_ends_with_its_block_however_that_ends(several_threads):
    with one_thread():
        assert _threads() == {1}
    assert _threads() == {3}
    with pytest.raises(ValueError, match="stop"), one_thread():
        raise ValueError("stop")
    assert _threads() == {3}


def test_cells_trials_and_scoring_have_one_thread(several_threads, tmp_path):
    seen = []

    def look(*arguments: object, **options: object) -> Iterator[Any]:
        seen.append(_threads())
        raise InterruptedError

    with pytest.raises(InterruptedError):
        compute_cell(CELL, TABLES, setup=Setup(mapper=look))
    request = TableRequest(model="tiny_lm", task="helpdesk", shots=0, seed=0, limit=5)
    actor = ScoringActor("tiny_lm", tmp_path / "shards", request.scoring)
    with closing(actor):
        actor.load()
        actor.score(request.prompts.prompts(), lambda count: seen.append(_threads()))
    assert len(seen) >= 2
    assert set.union(*seen) == {1}
