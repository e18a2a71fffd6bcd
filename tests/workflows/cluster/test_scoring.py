"""Scoring actors: how many GPUs they take, and that no table is taken for another's."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import numpy as np
import pytest

from dcs.errors import DCSError, ScoringError
from workflows.cells import TableRequest, request_key, texts_key
from workflows.cluster.placement import CELLS, MAX_CPUS, MAX_GPUS, actor_pool, check_gpus, place
from workflows.cluster.scoring import ScoringActor
from workflows.config.scoring import ScoringSettings
from workflows.tables import ProbabilityStore

REQUEST = TableRequest(model="tiny_lm", task="reviews", shots=1, seed=0, limit=20)
SERVED = ScoringSettings(engine="openai", base_url="http://127.0.0.1:1/v1")


def nodes(*resources: dict[str, float]) -> list[dict]:
    return [
        {"NodeID": str(n), "Alive": True, "Resources": each} for n, each in enumerate(resources)
    ]


class TestActors:
    GPUS = place(nodes({"CPU": 4}, {"CPU": 8, "GPU": 4}, {"CPU": 8, "GPU": 4}))
    CPUS = place(nodes({"CPU": 8}))
    COMING = place(nodes({MAX_CPUS: 64, MAX_GPUS: 8}))

    def test_transformers_takes_a_gpu_where_there_are_any(self):
        assert actor_pool(ScoringSettings(), self.GPUS) == ({"num_cpus": 1, "num_gpus": 1}, 8)
        assert actor_pool(ScoringSettings(), self.CPUS) == ({"num_cpus": 1, "num_gpus": 0}, 4)

    def test_vllm_takes_as_many_as_share_the_model(self):
        shared = ScoringSettings(engine="vllm", tensor_parallel=4)
        assert actor_pool(shared, self.GPUS) == ({"num_cpus": 1, "num_gpus": 4}, 2)
        assert actor_pool(shared, self.COMING) == ({"num_cpus": 1, "num_gpus": 4}, 2)
        # GPUs that have gone away for a while: Ray waits for them, and the sweep does not end.
        assert actor_pool(shared, self.CPUS) == ({"num_cpus": 1, "num_gpus": 4}, 1)
        alone = ScoringSettings(engine="vllm")
        assert actor_pool(alone, self.GPUS) == ({"num_cpus": 1, "num_gpus": 1}, 8)
        assert actor_pool(alone, self.CPUS)[0]["num_gpus"] == 0

    def test_a_cluster_that_is_too_small_is_refused(self):
        shared = ScoringSettings(engine="vllm", tensor_parallel=16)
        with pytest.raises(DCSError, match="tensor_parallel 16: the cluster has 8 GPUs"):
            check_gpus(shared, self.GPUS)
        with pytest.raises(DCSError, match="the cluster has 0 GPUs"):
            check_gpus(ScoringSettings(engine="vllm", tensor_parallel=2), self.CPUS)
        check_gpus(ScoringSettings(engine="vllm", tensor_parallel=8), self.COMING)
        check_gpus(ScoringSettings(), self.CPUS)

    def test_a_server_is_asked_by_one_actor_without_a_gpu(self):
        options, most = actor_pool(SERVED, self.GPUS)
        assert most == 1
        assert options["num_gpus"] == 0
        assert "label_selector" in options  # not on a node with GPUs
        assert CELLS in actor_pool(SERVED, self.COMING)[0]["resources"]


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
        store = str(tmp_path / "elsewhere")
        scoring = ScoringSettings(device="cpu", store=store)
        ScoringActor("tiny_lm", tmp_path / "probabilities", 0, scoring).generate(
            REQUEST, request_key(REQUEST)
        )
        assert list(Path(store).iterdir())
        assert not (tmp_path / "shards").exists()

    def test_refuses_other_texts_than_the_driver_has(self, tmp_path):
        """As when a file changes meanwhile, or a node has a copy of its own."""
        store = ProbabilityStore(tmp_path / "probabilities")
        actor = ScoringActor("tiny_lm", store.root, 0, ScoringSettings(device="cpu"))
        other = texts_key(dataclasses.replace(REQUEST, seed=REQUEST.seed + 1))
        with pytest.raises(ScoringError, match=f"task {REQUEST.task} has other texts on"):
            actor.generate(REQUEST, request_key(REQUEST), other)
        assert store.scoring(request_key(REQUEST)) is None
        actor.generate(REQUEST, request_key(REQUEST), texts_key(REQUEST))
        assert store.scoring(request_key(REQUEST)) is not None

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
        for _ in range(200):
            if closed.exists():
                break
            time.sleep(0.05)
        assert closed.exists()
