"""The configurations that come along: valid, and those of the paper have its tables' cells."""

from __future__ import annotations

from pathlib import Path

import optuna
import pandas as pd
import pytest

from dcs.methods.parameters import Hyperparameters
from dcs.selection.methods import get_method
from dcs_workflows.config.sweep import SweepConfig, TunerSettings, load_config, value_label
from dcs_workflows.config.sweep import packaged_config as packaged
from dcs_workflows.plan import variants_of
from dcs_workflows.study.space import SearchSpace
from tests.dcs.solutions import setting_of

STUDY = TunerSettings(
    trials=64,
    space={"calibration": "none", "corrections": "both", "spacing": "linear"},
    search={"moves": "metropolis"},
    prefer="balance",
)
NAMES = sorted(path.stem for path in packaged("quickstart").parent.glob("*.yaml"))


def _load(name: str, **overrides: object) -> SweepConfig:
    return load_config(packaged(name), **overrides)


@pytest.mark.parametrize("name", NAMES)
def test_each_runs_on_the_small_model(name):
    of_tables = name.startswith("results")
    tables = ["my.parquet"] if of_tables else None
    config = _load(name, models=["tiny_lm"], limit=60, tables=tables)
    assert (config.name, config.models) == (name, ("tiny_lm",))
    assert variants_of(config)
    # Those of the paper want GPUs; without one a word on the command line is enough.
    here = _load(name, models=["tiny_lm"], tables=tables, sets=["scoring={engine: transformers}"])
    assert here.scoring.engine == "transformers"
    assert (config.scoring.engine == "vllm") is not (of_tables or name == "quickstart")


@pytest.mark.parametrize("name", NAMES)
def test_every_named_parameter_varies_and_runs_as_it_is_recorded(name):
    tables = ["my.parquet"] if name.startswith("results") else None
    tuner = _load(name, tables=tables).tuner
    space = SearchSpace(tuner, get_method("dcs"), [Hyperparameters()], n_rows=2000)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    trials = [study.ask() for _ in range(60)]
    settings = [space.suggest(trial) for trial in trials]
    recorded = [each.to_params() for each in settings]
    # The temperatures of the paper are those of its text.
    temperatures = ("initial_temperature", "temperature_ratio", "cooling_rate")
    fixed = temperatures if name == "paper" else ()
    for knob in ("weight_scale", "beta", "tau", "lambda1", "lambda2", *temperatures):
        assert (len({each[knob] for each in recorded}) > 20) is (knob not in fixed), knob
    for trial, setting, params in zip(trials, settings, recorded, strict=True):
        assert all(params[k] == pytest.approx(value) for k, value in trial.params.items())
        assert setting_of(params) == setting
        schedule = setting.schedule
        first, last = params["initial_temperature"], schedule.final_temperature
        assert (schedule.initial_temperature, last / first) == (
            first,
            pytest.approx(params["temperature_ratio"]),
        )


def _has_the_papers_cells(config: SweepConfig, table: str) -> pd.DataFrame:
    """Check a sweep against a table of the paper, and return its rows of the sweep's models."""
    frame = pd.read_csv(Path(__file__).parent / "paper" / f"{table}.csv", dtype=str)
    names = [model.rpartition("/")[2].lower().removesuffix("-hf") for model in config.models]
    rows = frame[frame["model"].isin(names)]
    assert set(rows["shots"]) == {str(shots) for shots in config.shots}
    assert {task for task in rows["task"] if not task.startswith("average")} == set(config.tasks)
    return rows


@pytest.mark.parametrize("name", ["paper_main", "llama2_70b", "gemma2_2b"])
def test_the_main_tables_have_the_cells_of_the_paper(name):
    config = _load(name)
    rows = _has_the_papers_cells(config, "results")
    assert set(rows["method"]) == {*config.methods}
    # Means and deviations over three draws of the demonstrations.
    assert (len(config.models), len(config.seeds)) == (1, 3)
    assert variants_of(config)[-1].tuner == STUDY


def test_the_ablation_has_the_cells_of_the_paper():
    config = _load("paper_ablation")
    rows = _has_the_papers_cells(config, "ablation")
    assert {*rows["objective"]} <= {value_label("objectives", o) for o in config.objectives}
    # One thing at a time beside the cell that nothing is left out of.
    main = [v for v in variants_of(config) if v.method == "dcs" and v.tuner == STUDY]
    assert len(main) == 1
    assert len(variants_of(config)) == 13
