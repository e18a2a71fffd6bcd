"""A sweep configuration is checked whole before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcs.errors import ConfigError
from workflows.config.sweep import SweepConfig, load_config, narrowed, packaged_config

MINIMAL = {"name": "mine", "tasks": ["reviews"]}


def _write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults_fill_what_is_not_said():
    config = SweepConfig.model_validate(MINIMAL)
    assert config.models == ("tiny_lm",)
    assert config.methods == ("icl", "dnip", "furud", "dcs")


def test_every_packaged_configuration_is_valid():
    folder = packaged_config("quickstart").parent
    names = [path.stem for path in folder.glob("*.yaml")]
    assert "quickstart" in names
    for name in names:
        assert load_config(packaged_config(name)).name == name


def test_the_command_line_wins_over_the_file(tmp_path):
    path = _write(tmp_path, "name: mine\ntasks: [reviews]\nseeds: [1, 2]\n")
    assert load_config(path, seeds=[7], shots=None).seeds == (7,)
    assert load_config(path, seeds=None).seeds == (1, 2)


def test_shots_are_numbers_or_n(tmp_path):
    path = _write(tmp_path, "name: mine\ntasks: [reviews]\nshots: [0, 1, N, '5']\n")
    assert load_config(path).shots == (0, 1, "N", 5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tasks: [reviews]\n", ["'name'"]),
        ("name: x\n", ["'tasks'"]),
        ("name: x\ntasks: [reviews]\nsheds: [1]\n", ["'sheds'", "'seeds'"]),
        ("name: x\ntasks: [reviews]\ntuner: {trails: 3}\n", ["'tuner'", "'trails'", "'trials'"]),
        ("name: x\ntasks: [revews]\n", ["'tasks'", "'revews'", "'reviews'"]),
        ("name: x\ntasks: [reviews]\nmethods: [dsc]\n", ["'methods'", "'dsc'", "'dcs'"]),
        ("name: x\ntasks: [reviews]\nshots: [many]\n", ["'shots'", "many"]),
        ("name: x\ntasks: [reviews]\nshots: [-1]\n", ["'shots'", "-1"]),
        ("name: x\ntasks: [reviews]\nseeds: [-1]\n", ["'seeds.0'", "-1"]),
        ("name: x\ntasks: [reviews]\nseeds: [0, 0]\n", ["'seeds'", "more than once"]),
        ("name: x\ntasks: []\n", ["'tasks'"]),
        ("name: x\ntasks: [reviews]\ntuner: {trials: 0}\n", ["'tuner'", "trials 0"]),
        ("name: x\ntasks: [reviews]\ntuner: {trials: -1}\n", ["'tuner.trials'", "-1"]),
        ("name: x\ntasks: [reviews]\nmethods: [contextual]\n", ["'methods'", "content-free"]),
        ("name: ../x\ntasks: [reviews]\n", ["'name'", "../x"]),
        ("- a\n- b\n", ["list"]),
        ("name: [x\n", ["YAML"]),
        ("", ["NoneType"]),
    ],
)
def test_a_mistake_is_named_on_one_line(tmp_path, text, words):
    path = _write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    message = str(caught.value)
    assert "\n" not in message
    for word in [str(path), *words]:
        assert word in message


def test_a_file_that_is_not_text_or_not_there(tmp_path):
    path = tmp_path / "sweep.yaml"
    with pytest.raises(ConfigError, match="no such file"):
        load_config(path)
    path.write_bytes(b"name: \xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(path)
    with pytest.raises(ConfigError, match="is a folder"):
        load_config(tmp_path)


def test_a_sweep_is_narrowed_to_what_is_named():
    whole = SweepConfig(name="x", tasks=("helpdesk", "reviews"), shots=(1, 5, "N"))
    part = narrowed(whole, ["shots=N,1", "tasks=reviews"])
    assert part.shots == (1, "N")
    assert part.tasks == ("reviews",)
    assert narrowed(whole, []) == whole


@pytest.mark.parametrize(
    ("restriction", "words"),
    [
        ("task=reviews", ["'task'", "'tasks'"]),
        ("tasks=revews", ["'revews'", "'reviews'"]),
        ("shots=2", ["'2'", "1"]),
        ("tasks", ["tasks"]),
    ],
)
def test_what_a_sweep_does_not_have_cannot_be_asked_for(restriction, words):
    whole = SweepConfig(name="x", tasks=("helpdesk", "reviews"))
    with pytest.raises(ConfigError) as caught:
        narrowed(whole, [restriction])
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("text", "trials"), [("all", "all"), ("none", "none"), ("best:5", 5), ("5", 5)]
)
def test_which_trials_are_tracked(tmp_path: Path, text: str, trials: str | int) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(f"name: s\ntasks: [trec]\ntracking:\n  trials: {text}\n")
    assert load_config(path).tracking.trials == trials


def test_a_tracking_option_that_is_not_known_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text("name: s\ntasks: [trec]\ntracking: {trials: best}\n")
    with pytest.raises(ConfigError, match=r"tracking\.trials.*allowed: all, none, best:K"):
        load_config(path)
