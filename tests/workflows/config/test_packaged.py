"""The configurations that come along: valid, and those of the paper have its tables' cells."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from dcs_workflows.config.sweep import SweepConfig, TunerSettings, load_config, value_label
from dcs_workflows.config.sweep import packaged_config as packaged
from dcs_workflows.plan import variants_of

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
    limit = None if of_tables else 60
    config = _load(name, models=["tiny_lm"], limit=limit, tables=tables)
    assert (config.name, config.models) == (name, ("tiny_lm",))
    assert variants_of(config)
    # Those of the paper want GPUs; without one a word on the command line is enough.
    here = _load(name, models=["tiny_lm"], tables=tables, sets=["scoring={engine: transformers}"])
    assert here.scoring.engine == "transformers"
    assert (config.scoring.engine == "vllm") is not (of_tables or name == "quickstart")


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
