"""What a sweep says of itself before it runs: its cells, by key, and what of them is done."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path

import pytest
from pydantic import SecretStr

from dcs.io import content_key
from dcs_tracking import Archive
from dcs_workflows.config.sweep import SweepConfig, TunerSettings
from dcs_workflows.plan import STORAGE_VARIABLE, Budget, Progress, SweepPlan, plan_sweep, sharing
from dcs_workflows.sources.scored import StoredTables
from dcs_workflows.study.cell import compute_cell, failed_record
from dcs_workflows.study.study import Setup
from tests.workflows.conftest import QUICK, biased_table, done, refused, toy_cell

CONFIG = SweepConfig(
    name="ablated",
    tasks=("reviews",),
    seeds=(0, 1),
    methods=("icl", "batch", "dnip", "dcs"),
    limit=100,
    tuner=QUICK,
    objectives=("full", "err"),
    axes={"memberships": [None, 2]},
    optimization_sizes=(30, "full"),
)
#: icl; batch by rows; dnip by objective and rows; dcs by all three.
PER_TABLE = {"icl": 1, "batch": 2, "dnip": 4, "dcs": 8}
TABLES = {"optimization": biased_table(100), "test": biased_table(60, seed=1)}


def _score(plan: SweepPlan, seeds: set[int]) -> None:
    """Put tables where scoring would."""
    for key, (request, *_) in plan.sources.items():
        if request.seed in seeds:
            StoredTables(plan.output, key).write(TABLES, seconds=8.0, gpus=0.5)


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> Path:
    """A sweep with one of two tables scored; of its cells dnip is done, and one batch failed."""
    output = tmp_path_factory.mktemp("begun")
    _score(plan_sweep(CONFIG, output), {0})
    archive = Archive(output)
    for cells in plan_sweep(CONFIG, output).cells.values():
        for cell in cells:
            if cell.method == "dnip":
                archive.write(compute_cell(cell, TABLES, setup=Setup(sweep=CONFIG.name)))
            elif cell.method == "batch" and cell.optimization_size == 30:
                error = ValueError("poisoned")
                archive.write(failed_record(cell, error, sweep=CONFIG.name, started_ms=0))
    return output


def test_a_plan_has_every_cell_of_every_table(begun):
    plan = plan_sweep(CONFIG, begun)
    assert plan.n_cells == 2 * sum(PER_TABLE.values())
    assert Counter(variant.method for variant in plan.variants) == PER_TABLE
    assert (len(plan.ended), plan.n_failed, len(plan.missing_tables)) == (5, 1, 1)
    assert len(plan_sweep(CONFIG, begun, retry_failed=True).ended) == 4
    assert plan_sweep(CONFIG, begun, only=["optimization_sizes=full"]).n_failed == 0


def test_a_dry_run_counts_and_computes_nothing(begun):
    path = begun / "sweep.yaml"
    path.write_text(CONFIG.model_dump_json(), encoding="utf-8")
    before = sorted(begun.rglob("*"))
    said = done("sweep", path, "--output", begun, "--dry-run").out
    assert sorted(begun.rglob("*")) == before
    assert "ablated: 2 tables, 30 cells; 4 cells finished earlier, 1 failed" in said
    assert "to do: 1 table to score, 25 cells to compute" in said
    assert "  seeds: 0 (15), 1 (15)\n  methods: icl (2), " in said
    assert " requests" in said
    counts = json.loads(done("sweep", path, "--output", begun, "--dry-run", "--json").out)
    assert counts["missing"] == {"tables": 1, "cells": 25} and counts["exit_code"] == 0


def test_a_dry_run_refuses_what_the_sweep_would_refuse(tmp_path):
    given = ("--dry-run", "--output", tmp_path, "--set")
    for storage in ("redis://x", "some/folder"):
        refused("sweep", "quickstart", *given, f"optuna_storage={storage}", says=[storage])


def test_studies_in_memory_are_not_stored_and_need_no_folder_in_common(tmp_path, monkeypatch):
    assert plan_sweep(CONFIG, tmp_path).study_storage is None
    for storage in ("memory", "postgresql://me@host/x"):
        config = CONFIG.model_copy(update={"optuna_storage": SecretStr(storage)})
        assert plan_sweep(config, tmp_path).study_storage is not None
    biased_table(60).write(tmp_path / "rows.parquet")
    monkeypatch.setenv(STORAGE_VARIABLE, "memory")
    given = ("--method", "dnip", "--trials", "1", "--output", tmp_path / "runs")
    done("tune", tmp_path / "rows.parquet", *given)
    assert (tmp_path / "runs" / "rows-dnip" / "scheme.json").exists()
    assert not (tmp_path / "runs" / "studies").exists()


def test_requests_that_one_table_answers_have_cells_of_their_own(tmp_path):
    # Without demonstrations the seed changes no prompt, but it does change split and search.
    config = CONFIG.model_copy(update={"shots": (0, 1)})
    plan = plan_sweep(config, tmp_path)
    assert (len(plan.sources), plan.n_cells) == (3, 60)
    _score(plan, {0, 1})
    plan = plan_sweep(config, tmp_path)
    cells = [cell for some in plan.cells.values() for cell in some]
    assert len({cell.key for cell in cells}) == len(cells) == 60
    assert Counter(cell.seed for cell in cells) == {0: 30, 1: 30}


CELL = toy_cell(method="dcs", tuner=TunerSettings())


def test_the_key_does_not_depend_on_the_process():
    # A literal: were it to change, finished work on users' disks would not be found again.
    assert content_key({"b": [1, "N", None], "a": 0.5}) == "6f0b8c5d40e517720eb52d1113928870"


def test_every_part_of_a_cell_counts():
    others = {"method": "dnip", "shots": None, "seed": 1, "optimization_size": 9}
    others["tuner"] = TunerSettings(trials=31)
    parts = [each.name for each in dataclasses.fields(CELL)]
    changes = [{part: others.get(part, "other")} for part in parts]
    changes += [{}, {"shots": "N"}, {"tuner": None}]
    assert len({dataclasses.replace(CELL, **change).key for change in changes}) == len(changes)


def test_cells_that_share_a_search_are_together():
    names = ("published", "icl", "published-balanced", "published-long", "dcs")
    cells = [dataclasses.replace(CELL, method=name) for name in names]
    groups = [[cell.method for cell in group] for group in sharing(cells)]
    assert groups == [["published", "published-balanced"], ["icl"], ["published-long"], ["dcs"]]
    other = dataclasses.replace(cells[2], optimization_size=50)
    assert sharing([cells[0], other]) == [(cells[0],), (other,)]
    tuners = [TunerSettings(prefer=each) for each in ("balance", "macro-f1")]
    tuners.append(TunerSettings(max_cobias=5.0))
    both = [dataclasses.replace(CELL, tuner=tuner) for tuner in tuners]
    # A limit is a constraint of the study.
    assert [len(group) for group in sharing(both)] == [2, 1]


def test_a_budget_is_spent_when_one_of_its_limits_is_reached():
    budget, progress = Budget(hours=2, requests=100), Progress()
    assert budget.spent(progress) == ""
    progress.work.update(requests=99, tokens=10**9)
    assert budget.spent(progress) == ""
    progress.work.update(requests=1)
    assert budget.spent(progress) == "requests"
    progress.started -= 7200.0
    assert budget.spent(progress) == "hours"


@pytest.mark.parametrize(
    "limit",
    ["hours", "hours=0", "hours=-1", "hours=inf", "hours=nan", "days=1", "tokens=many", "="],
)
def test_a_budget_that_limits_nothing_is_refused(limit, tmp_path):
    given = ("sweep", "quickstart", "--dry-run", "--output", tmp_path, "--budget", limit)
    refused(*given, says=["--budget", limit.partition("=")[0]])
    refused(*given, *("--budget", "hours=1") * 2, says=["--budget"])
