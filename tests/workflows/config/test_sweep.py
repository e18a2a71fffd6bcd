"""A sweep configuration is checked whole before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from dcs.errors import ConfigError
from dcs_workflows.config.sweep import SweepConfig, TuneConfig, configured, load_config
from tests.dcs.refusals import refuses
from tests.workflows.config.test_axes import narrowed

MINIMAL = {"name": "mine", "tasks": ["reviews"]}
ONE_AT_A_TIME = {"combine": "one_at_a_time"}


def _write(folder: Path, **content: object) -> Path:
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump(MINIMAL | content), encoding="utf-8")
    return path


def test_the_command_line_wins_over_the_file_and_the_file_over_defaults(tmp_path):
    path = _write(tmp_path, seeds=[1, 2], tuner={"trials": 5, "prefer": "balance"})
    twice = {"sets": ["tuner={window: 8}"], "tuner__trials": 7}
    refuses(ConfigError, load_config, path, **twice, names=["tuner.trials", "twice"])
    plain = load_config(path, seeds=None, limit=None)
    assert (plain.models, plain.seeds, plain.limit) == (("tiny_lm",), (1, 2), None)
    assert (plain.tuner.trials, plain.tuner.prefer, plain.tuner.window) == (5, "balance", 4)
    given = ["tuner.trials=7", "seeds=[3]", "tracking.trials=none", "axes.memberships=[null, 5]"]
    config = load_config(path, sets=given, limit=50, tuner__window=2)
    assert (config.seeds, config.limit, config.tracking.trials) == ((3,), 50, "none")
    assert config.axes == {"memberships": (None, 5)}
    assert (config.tuner.trials, config.tuner.prefer, config.tuner.window) == (7, "balance", 2)


@pytest.mark.parametrize(
    ("content", "prefer"),
    [
        ({}, "no-harm"),
        ({"optimization_sizes": [10, 50]}, "no-harm"),
        ({"axes": {"weight_scale": [30]}, "objectives": ["err"]}, "no-harm"),
        ({"axes": {"weight_scale": [10, 30]}}, "balance"),
        ({"objectives": ["full", "err"], "tuner": {"trials": 3}}, "balance"),
        ({"objectives": ["full", "err"], "tuner": {"prefer": "accuracy"}}, "accuracy"),
        ({"objectives": ["full", "err"], "axes": {"margin": [1.0, 2.0]}}, "no-harm"),
    ],
)
def test_ablations_pick_by_balance_unless_told(tmp_path, content, prefer):
    config = load_config(_write(tmp_path, **content))
    assert config.tuner.prefer == prefer
    assert {tuner.prefer for tuner, _ in config.variants} == {prefer}
    # A recorded sweep is read back as it ran.
    assert SweepConfig.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("tuner", "'tuner'"),
        ("=3", "'=3'"),
        ("tuner.trails=3", "'trials'"),
        ("tuner.betta=1", "space"),
        ("tuner.trials=[", "tuner.trials"),
        ("scoring.engine=vllm", "'scoring'"),
    ],
)
def test_a_wrong_setting_is_named(text, named):
    source = {"source": "command line", "sets": [text]}
    refuses(ConfigError, configured, TuneConfig, {}, **source, names=[named])


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tasks": []}, "tasks"),
        ({"tables": ["a.csv"], "limit": 50}, "limit"),
        ({"tables": ["a.csv"]}, "tasks"),
        ({"held_out": 0.5}, "held_out"),
        ({"seeds": [True]}, "seeds"),
        ({"tuner": {"max_cobias": False}}, "max_cobias"),
        ({"limit": 19}, "'limit' and 20"),
        ({"tables": [["a", "b", "c"]]}, "'tables.0'"),
        ({"tasks": ["revews"]}, "'reviews'"),
        ({"sheds": [1]}, "'seeds'"),
        ({"methods": ["dsc"]}, "'dcs'"),
        ({"shots": ["many"]}, "'shots.0'"),
        ({"seeds": [0, 0]}, "'seeds'"),
        ({"objectives": ["eror"]}, "'objectives.0'"),
        ({"optimization_sizes": [5]}, "'optimization_sizes.0"),
        ({"axes": {"weigth_scale": [30]}}, "'weight_scale'"),
        ({"axes": {"weight_scale": [30, 1]}}, "'axes.weight_scale.1.0'"),
        ({"axes": {"objective": ["err"]}}, "'objective'"),
        ({"axes": {"trials": [5]}, "objectives": ["err"], **ONE_AT_A_TIME}, "one_at_a_time"),
        (
            {"axes": {"weight_scale": [30]}, "objectives": ["err", "full"], **ONE_AT_A_TIME},
            "weight_scale",
        ),
        (
            {"axes": {"trials": [24, 5]}, "optimization_sizes": [50], **ONE_AT_A_TIME},
            "optimization_sizes",
        ),
        ({"seeds": [*range(1000)], "shots": [*range(150)]}, "100,000"),
        ({"tuner": {"objective": {"beta": 1}}}, "'tuner.objective'"),
        ({"tuner": {"space": {"beta": [2, 1]}}}, "'tuner.space.beta'"),
        ({"tuner": {"sampler": "tpee"}}, "'tpe'"),
        ({"tuner": {"prefer": "balance", "margin": 1}}, "margin"),
        ({"axes": {"prefer": ["no-harm", "balance"], "margin": [1]}}, "margin"),
        ({"tuner": {"judge": {"folds": 3, "development": 0.1}}}, "development"),
        ({"tuner": {"judge": {"development": 0.1}}, "axes": {"folds": [3, 5]}}, "development"),
        ({"scoring": {"enigne": "vllm"}}, "'engine'"),
        ({"scoring": {"engine": "vlm"}}, "'vllm'"),
        ({"scoring": {"store": "s3://bucket/folder"}}, "'scoring.store'"),
        ({"scoring": {"base_url": "http://x"}}, "engine transformers 'base_url': must be"),
        ({"scoring": {"engine": "openai", "dtype": "float16"}}, "engine openai 'dtype': must be"),
        ({"scoring": {"engine": "vllm", "memory": 1.5}}, "'scoring.memory'"),
    ],
)
def test_a_mistake_is_named_on_one_line(tmp_path, changes, named):
    path = _write(tmp_path, **changes)
    refuses(ConfigError, load_config, path, names=[path, *named.split(" and ")])


def test_a_sweep_is_narrowed_to_what_is_named():
    whole = SweepConfig(name="x", tasks=("helpdesk", "reviews"), shots=(1, 5, "N"))
    part = narrowed(whole, "shots=N,1", "task=reviews", "shots=5,N,1")
    assert (part.shots, part.tasks) == ((1, "N"), ("reviews",))
    assert narrowed(whole) == whole


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (["taks=reviews"], "'tasks'"),
        (["tasks=revews"], "'reviews'"),
        (["shots=2"], "'2'"),
        (["tasks=reviews", "tasks=helpdesk"], "remaining tasks"),
    ],
)
def test_what_a_sweep_does_not_have_cannot_be_asked_for(asked, named):
    whole = SweepConfig(name="x", tasks=("helpdesk", "reviews"))
    refuses(ConfigError, narrowed, whole, *asked, names=[named])
