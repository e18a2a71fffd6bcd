"""Sweeps on real Ray processes with the packaged model and a real MLflow store."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dcs.evaluation.metrics import METRICS
from dcs_tracking import CellRecord, Recorder
from dcs_workflows.cluster.connect import place
from dcs_workflows.cluster.sweep import run_here
from dcs_workflows.config.sweep import SweepConfig
from dcs_workflows.plan import Budget, BudgetSpentError, Progress, plan_sweep, sweep_key
from dcs_workflows.study.cell import failed_record
from tests.dcs.refusals import refuses
from tests.faults.sweeps import poison, results, sweep
from tests.tracking.cells import runs_of
from tests.workflows.conftest import QUICK, biased_table, stopped, swept

CONFIG = SweepConfig(
    name="small",
    tasks=("helpdesk", "reviews"),
    shots=(1, "N"),
    seeds=(0,),
    methods=("icl", "dcs"),
    limit=30,
    tuner=QUICK,
    tracking={"figures": "none"},
)


def _sweep(config: SweepConfig, output: Path) -> tuple[list[CellRecord], tuple[int, ...]]:
    """Run a sweep; return its records, and its numbers of tables and cells at the end."""
    seen = Progress()
    records, _ = sweep(output, config, progress=seen)
    tables, cells = (seen.tables_done, seen.tables_total), (seen.cells_done, seen.cells_total)
    return records, (*tables, *cells, seen.cells_failed)


@pytest.fixture(scope="module")
def finished(cluster, new_output):
    output = new_output()
    return output, *_sweep(CONFIG, output)


def test_every_cell_is_finished_in_the_order_of_the_configuration(finished):
    output, records, ended = finished
    assert [(r.identity["task"], r.identity["shots"], r.identity["method"]) for r in records] == [
        (task, shots, method)
        for task in CONFIG.tasks
        for shots in CONFIG.shots
        for method in CONFIG.methods
    ]
    assert ended == (4, 4, 8, 8, 0)
    for icl, dcs in zip(records[::2], records[1::2], strict=True):
        assert len(dcs.trials) == 2
        for name in METRICS:
            assert dcs.metrics[f"test/{name}_low"] <= dcs.metrics[f"test/{name}"]
            assert icl.metrics[f"test/{name}"] == dcs.metrics[f"uncorrected/test/{name}"]
    uri = f"sqlite:///{output / 'mlflow.db'}"
    cells, scored = (runs_of(uri, CONFIG.name, kind) for kind in ("cell", "scoring"))
    keys = sorted(run.data.tags["dcs.cell_key"] for run in cells)
    assert keys == sorted(record.key for record in records)
    assert {run.info.status for run in cells} == {"FINISHED"} == {r.status for r in records}
    assert len({run.data.tags["dcs.table_key"] for run in scored}) == 4


def test_what_is_finished_is_not_computed_again_also_in_a_wider_sweep(finished):
    output, records, _ = finished
    assert _sweep(CONFIG, output) == (records, (4, 4, 8, 8, 0))
    wider = CONFIG.model_copy(update={"name": "wider", "methods": ("icl", "dcs", "dnip")})
    plan = plan_sweep(wider, output)
    assert sorted(plan.ended) == sorted(record.key for record in records)
    assert not plan.missing_tables
    assert {c.method for cells in plan.missing_cells.values() for c in cells} == {"dnip"}


def test_cells_of_prompts_that_are_scored_again_leave_before_others_are_computed(
    finished, tmp_path, monkeypatch
):
    """So that no mean of a stopped run is over the numbers of two prompts."""
    output, records, _ = finished
    shutil.copytree(output, tmp_path, dirs_exist_ok=True)
    next(tmp_path.glob("probabilities/*/scoring.json")).unlink()
    plan = plan_sweep(CONFIG, tmp_path)
    assert len(plan.missing_tables) == 1
    later = map(stopped, [plan])
    monkeypatch.setattr("dcs_workflows.cluster.sweep._run_in_process", lambda *about: later)
    about = {"experiment": "small", "sweep_key": sweep_key(CONFIG)}
    with Recorder("http://127.0.0.1:9", output=tmp_path, **about) as recorder:
        refuses(RuntimeError, run_here, plan, recorder, lambda share: None)
        left = {*recorder.archive.keys(recorder.sweep_key)}
    assert left == {*plan.ended} < {record.key for record in records}


@pytest.mark.slow
def test_a_spent_budget_leaves_the_rest_to_the_next_run(finished, output):
    seen = Progress()
    refuses(BudgetSpentError, sweep, output, CONFIG, progress=seen, budget=Budget(requests=1))
    assert 0 < seen.work["requests"] == seen.work["prompts"] < 4 * 120
    assert seen.work["tokens"] > seen.work["requests"]
    # Cells of complete tables are computed: only the models may do no more.
    assert seen.cells_done == 2 * seen.tables_done < 8
    refuses(BudgetSpentError, sweep, output, CONFIG, budget=Budget(hours=1e-9))
    assert results(_sweep(CONFIG, output)[0]) == results(finished[1])


def _note_width(cells, tables, setup) -> list[CellRecord]:
    about = {"sweep": setup.sweep, "started_ms": 0}
    records = [failed_record(cell, ValueError("not computed"), **about) for cell in cells]
    return [replace(each, params={"width": setup.mapper.width}) for each in records]


@pytest.mark.slow
def test_the_last_cells_share_all_cpus(finished, output, monkeypatch):
    """Those that others hold when they are handed out come free while they run."""
    monkeypatch.setattr("dcs_workflows.cluster.driver.run_cells", _note_width)
    eight = replace(place([]), cells={}, cell_cpus=8)
    monkeypatch.setattr("dcs_workflows.cluster.driver.look", lambda: eight)
    # Scoring takes longer than all else.
    shutil.copytree(finished[0] / "probabilities", output / "probabilities")
    records, _ = _sweep(CONFIG, output)
    # Handed out when 7, 5, 3 and 1 cells waited.
    widths = [record.params["width"] for record in records]
    assert widths == [1, 1, 1, 1, 1, 2, 1, 8]


def test_a_cell_that_raises_stops_no_other_and_those_are_the_same_without_ray(
    cluster, new_output, tmp_path, monkeypatch
):
    biased_table(120).write(tmp_path / "my.parquet")
    poison(monkeypatch)
    methods = ("icl", "batch", "dnip")
    config = swept(str(tmp_path / "my.parquet"), seeds=(1, 0), methods=methods)
    on_ray, ended = _sweep(config, new_output())
    failed = [record for record in on_ray if not record.finished]
    assert [record.identity["method"] for record in failed] == ["dnip"] * 2
    assert "Traceback" in (failed[0].error or "")
    assert ended == (2, 2, 6, 6, 2)
    plain = config.model_copy(update={"methods": methods[:2]})
    here, _ = sweep(new_output(), plain, here=True)
    finished = [record for record in on_ray if record.finished]
    assert results(here) == results(finished)
    assert [record.key for record in here] == [record.key for record in finished]
