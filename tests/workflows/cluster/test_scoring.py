"""Scoring actors: what they keep, and that no table is taken for another's."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from tests.faults.processes import wait_for
from workflows.cluster.scoring import ScoringActor
from workflows.config.scoring import ScoringSettings
from workflows.tables import ProbabilityStore, TableRequest, request_key

REQUEST = TableRequest(model="tiny_lm", task="reviews", shots=1, seed=0, limit=20)


class TestActor:
    def test_notes_what_its_numbers_are(self, tmp_path):
        actor = ScoringActor(
            "tiny_lm", tmp_path / "probabilities", 0, ScoringSettings(device="cpu")
        )
        name = request_key(REQUEST)
        tables, scoring = actor.generate(dataclasses.replace(REQUEST, shots="N"), name)
        assert scoring.scorer["dtype"] == "float32"
        assert scoring.scorer["version"].startswith("transformers ")
        assert len(scoring.demonstrations) == 5
        assert ProbabilityStore(tmp_path / "probabilities").scoring(name) == scoring
        np.testing.assert_allclose(tables["test"].probs.sum(axis=1), 1.0)
        assert list((tmp_path / "shards").iterdir())

    def test_keeps_prompts_where_it_is_told(self, tmp_path):
        store = tmp_path / "elsewhere"
        scoring = ScoringSettings(device="cpu", store=str(store))
        actor = ScoringActor("tiny_lm", tmp_path / "probabilities", 0, scoring)
        actor.generate(REQUEST, request_key(REQUEST))
        assert list(store.iterdir())
        assert not (tmp_path / "shards").exists()

    @pytest.mark.slow
    def test_frees_its_model_when_it_is_let_go(self, cluster, tmp_path):
        import ray

        closed = tmp_path / "closed"

        class Observed(ScoringActor):
            def close(self) -> None:
                super().close()
                closed.touch()

        actor = ray.remote(Observed).remote("tiny_lm", tmp_path / "probabilities", 0)
        ray.get(actor.generate.options(num_returns=2).remote(REQUEST, "k" * 32))
        del actor
        wait_for(closed.exists, "the actor to close its model")


def test_actors_load_no_numba_before_their_engine():
    # vLLM 0.32 looks into all modules loaded, and fails on those of llvmlite.
    code = "import sys, workflows.cluster.scoring; print('llvmlite' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
