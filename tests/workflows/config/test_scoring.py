"""Sweeps score with the engine they name, and no table is taken for another's."""

from __future__ import annotations

import dataclasses

import pytest

from dcs.errors import ScoringError
from dcs_workflows.config.scoring import ScoringSettings
from dcs_workflows.config.sweep import SweepConfig
from dcs_workflows.plan import sweep_key
from dcs_workflows.sources.scored import TableRequest, request_key

REQUEST = TableRequest(model="tiny_lm", task="reviews", shots=1, seed=0, limit=20)
ADDRESS = {"engine": "openai", "base_url": "http://127.0.0.1:1/v1"}
SERVED = ScoringSettings(**ADDRESS)


def test_the_path_of_an_address_is_used_but_not_recorded():
    address = "http://127.0.0.1:1/plantedletters/v1"
    keyed = ScoringSettings(engine="openai", base_url=address, revision="1")
    assert keyed.options["base_url"].endswith("/plantedletters/v1")
    config = SweepConfig(name="served", models=["m"], tasks=["reviews"], scoring=keyed)
    assert "planted" not in config.model_dump_json()
    assert "http://127.0.0.1:1" in config.model_dump_json()
    assert key(keyed) != key(SERVED)


def key(scoring: ScoringSettings = REQUEST.scoring, **changes) -> str:
    return request_key(dataclasses.replace(REQUEST, scoring=scoring, **changes))


class TestKey:
    def test_depends_on_all_that_decides_the_numbers(self):
        served = SERVED.model_dump(exclude_none=True)
        server = [{"revision": "3"}, {"api": "chat"}, {"votes": 3}]
        words = [{"label_rule": "first"}, {"label_rule": "joint"}]
        precision = [{"dtype": "bfloat16"}, {"dtype": "float32"}]
        engines = [{"engine": "vllm"}, {"engine": "openai"}]
        choices = [{}, *words, *precision, *engines, *(served | each for each in ({}, *server))]
        assert len({key(ScoringSettings(**choice)) for choice in choices}) == len(choices)

    def test_depends_on_the_versions_of_its_own_engine(self, monkeypatch):
        installed = {"transformers": "5.1", "torch": "2.1", "vllm": "0.1"}
        monkeypatch.setattr("dcs_workflows.config.scoring.version", lambda name: installed[name])
        engines = [ScoringSettings(), ScoringSettings(engine="vllm"), SERVED]
        before = [key(engine) for engine in engines]
        installed["vllm"] = "0.2"
        after = [key(engine) for engine in engines]
        assert (after[0], after[2]) == (before[0], before[2]) and after[1] != before[1]
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

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ({"label_rule": "auto", "store": "elsewhere"}, {}),
            (
                {"engine": "vllm", "tensor_parallel": 4, "memory": 0.5, "max_length": 2048},
                {"engine": "vllm"},
            ),
            ({**ADDRESS, "concurrency": 64, "key_variable": "K"}, ADDRESS),
            # A CPU that is named means its precision.
            ({"device": "cpu"}, {"dtype": "float32"}),
            ({"device": "cuda:1"}, {}),
        ],
    )
    def test_does_not_depend_on_where_and_how_fast(self, one, other):
        assert key(ScoringSettings(**one)) == key(ScoringSettings(**other))

    def test_of_a_sweep_counts_the_same(self):
        def of(**scoring) -> str:
            return sweep_key(SweepConfig(name="x", tasks=("reviews",), scoring=scoring))

        assert of(store="/elsewhere", device="cpu") == of()
        assert of(engine="vllm", memory=0.5) == of(engine="vllm") != of()


def test_options_go_to_the_engine():
    scorer = ScoringSettings(device="cpu", label_rule="joint").load("tiny_lm")
    read = {"label_rule": "joint", "joint": "sum"}
    assert scorer.settings == read | {"dtype": "float32", "prompt": "completion"}
    # Nothing answers at the address that could say what it offers.
    away = SERVED.model_copy(update={"retries": 0})
    with pytest.raises(ScoringError):
        away.load("anything")
