"""Sweeps score with the engine they name, and no table is taken for another's."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

from dcs.errors import ConfigError, DCSError, ScoringError
from workflows.cells import TableRequest, request_key, table_requests, texts_key
from workflows.cluster.placement import (
    CELLS,
    MAX_CPUS,
    MAX_GPUS,
    actor_pool,
    check_gpus,
    place,
)
from workflows.cluster.workers import ScoringActor
from workflows.config.errors import validated
from workflows.config.scoring import (
    INDECISIVE,
    ScoringSettings,
)
from workflows.config.sweep import SweepConfig, load_config
from workflows.plan import sweep_key
from workflows.tables import ProbabilityStore

REQUEST = TableRequest(model="tiny_lm", task="reviews", shots=1, seed=0, limit=20)
SERVED = ScoringSettings(engine="openai", base_url="http://127.0.0.1:1/v1")


def key(scoring: ScoringSettings = REQUEST.scoring, **changes) -> str:
    return request_key(dataclasses.replace(REQUEST, scoring=scoring, **changes))


class TestKey:
    def test_is_the_same_for_the_same_request(self):
        assert key() == key(ScoringSettings(engine="transformers", label_rule="auto"))

    def test_depends_on_all_that_decides_the_numbers(self):
        choices = [
            {},
            {"engine": "vllm"},
            {"label_rule": "first"},
            {"label_rule": "joint"},
            {"dtype": "bfloat16"},
            {"dtype": "float32"},
            {"engine": "openai"},
            {"engine": "openai", "base_url": "http://a/v1"},
            {"engine": "openai", "base_url": "http://a/v1", "revision": "3"},
            {"engine": "openai", "base_url": "http://a/v1", "api": "chat"},
            {"engine": "openai", "base_url": "http://a/v1", "top_logprobs": 5},
            {"engine": "openai", "base_url": "http://a/v1", "missing": "zero"},
            {"engine": "openai", "base_url": "http://a/v1", "label_rule": "joint"},
        ]
        assert len({key(ScoringSettings(**choice)) for choice in choices}) == len(choices)

    def test_depends_on_the_versions_of_its_own_engine(self, monkeypatch):
        installed = {"transformers": "5.1", "torch": "2.1", "vllm": "0.1"}
        monkeypatch.setattr("workflows.config.scoring.version", lambda name: installed[name])
        engines = [ScoringSettings(), ScoringSettings(engine="vllm"), SERVED]
        before = [key(engine) for engine in engines]
        installed["vllm"] = "0.2"
        assert [key(engine) == old for engine, old in zip(engines, before, strict=True)] == [
            True,
            False,
            True,
        ]
        installed["torch"] = "2.2"
        assert key() != before[0]

    def test_depends_on_the_weights_and_on_the_revision_named(self, tmp_path):
        folder = tmp_path / "model"
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_text("a")
        before = key(model=str(folder))
        (folder / "model.safetensors").write_text("b")
        assert key(model=str(folder)) != before
        assert key(model="owner/name") != key(model="owner/name@v2")

    def test_does_not_depend_on_where_and_how_fast(self):
        both = {"store": "s3://b/d"}
        assert key(ScoringSettings(**both)) == key()
        vllm = ScoringSettings(engine="vllm")
        more = ScoringSettings(engine="vllm", tensor_parallel=4, memory=0.5, max_length=2048)
        assert key(more) == key(vllm)
        faster = {"concurrency": 64, "price": 3.0, "tokenizer": "tiny_lm", "key_variable": "K"}
        assert key(ScoringSettings(**SERVED.model_dump() | faster)) == key(SERVED)

    def test_a_cpu_that_is_named_means_its_precision(self):
        on_cpu = ScoringSettings(device="cpu")
        assert key(on_cpu) == key(ScoringSettings(dtype="float32"))
        assert key(ScoringSettings(device="cpu", dtype="bfloat16")) != key(on_cpu)
        assert key(ScoringSettings(device="cuda:1")) == key()

    def test_of_a_sweep_counts_the_same(self):
        def of(**scoring) -> str:
            return sweep_key(SweepConfig(name="x", tasks=("reviews",), scoring=scoring))

        assert of(store="/elsewhere", device="cpu") == of()
        assert of(engine="vllm", memory=0.5) == of(engine="vllm") != of()
        assert set(ScoringSettings.model_fields) > INDECISIVE


class TestSettings:
    @pytest.mark.parametrize(
        ("values", "parts"),
        [
            ({"engine": "vlm"}, ["'vlm'", "did you mean 'vllm'", "openai"]),
            ({"base_url": "http://x"}, ["transformers has no option 'base_url'", "openai"]),
            ({"engine": "openai", "dtype": "float16"}, ["'dtype'", "transformers and vllm"]),
            ({"engine": "vllm", "price": 1.0}, ["'price'", "openai"]),
            ({"label_rule": "men"}, ["'label_rule'", "'mean'", "'men'"]),
            ({"engine": "vllm", "tensor_parallel": 0}, ["'tensor_parallel'", "0"]),
            ({"engine": "vllm", "memory": 1.5}, ["'memory'", "1.5"]),
        ],
    )
    def test_errors_are_one_line(self, values, parts):
        with pytest.raises(ConfigError) as caught:
            validated(ScoringSettings, values, source="x")
        assert "\n" not in str(caught.value)
        for part in parts:
            assert part in str(caught.value)

    def test_the_command_line_wins_key_by_key(self, tmp_path):
        path = tmp_path / "sweep.yaml"
        content = {"name": "x", "tasks": ["reviews"]}
        scoring = {"engine": "openai", "base_url": "http://a/v1", "missing": "bound"}
        path.write_text(yaml.safe_dump(content | {"scoring": scoring}))
        config = load_config(path, sets=["scoring.base_url=http://b/v1"])
        assert config.scoring == ScoringSettings(**scoring | {"base_url": "http://b/v1"})
        assert load_config(path).scoring == ScoringSettings(**scoring)
        assert {r.scoring for r in table_requests(config)} == {config.scoring}
        other = load_config(path, sets=["scoring.device=cpu"], scoring__engine="transformers")
        assert other.scoring == ScoringSettings(device="cpu")  # of the server nothing is left
        with pytest.raises(ConfigError, match="unknown engine 'vlm'"):
            load_config(path, scoring__engine="vlm")
        path.write_text(yaml.safe_dump(content))
        assert load_config(path).scoring == ScoringSettings()
        path.write_text(yaml.safe_dump(content | {"scoring": {"enigne": "vllm"}}))
        with pytest.raises(ConfigError, match=r"'scoring'.*'enigne'.*did you mean 'engine'"):
            load_config(path)

    def test_options_go_to_the_engine(self):
        scorer = ScoringSettings(device="cpu", label_rule="joint").load("tiny_lm")
        assert scorer.settings == {"dtype": "float32", "label_rule": "joint"}
        served = ScoringSettings(**SERVED.model_dump() | {"missing": "zero"}).load("anything")
        assert (served.model, served.settings["missing"]) == ("anything", "zero")


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
        name = key()
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
        ScoringActor("tiny_lm", tmp_path / "probabilities", 0, scoring).generate(REQUEST, key())
        assert list(Path(store).iterdir())
        assert not (tmp_path / "shards").exists()

    def test_refuses_other_texts_than_the_driver_has(self, tmp_path):
        """As when a file changes meanwhile, or a node has a copy of its own."""
        store = ProbabilityStore(tmp_path / "probabilities")
        actor = ScoringActor("tiny_lm", store.root, 0, ScoringSettings(device="cpu"))
        other = texts_key(dataclasses.replace(REQUEST, seed=REQUEST.seed + 1))
        with pytest.raises(ScoringError, match=f"task {REQUEST.task} has other texts on"):
            actor.generate(REQUEST, key(), other)
        assert store.scoring(key()) is None
        actor.generate(REQUEST, key(), texts_key(REQUEST))
        assert store.scoring(key()) is not None

    def test_frees_its_model_when_it_is_let_go(self, tmp_path):
        import ray

        ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
        try:
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
        finally:
            ray.shutdown()
