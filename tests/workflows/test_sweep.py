"""Sweeps on real Ray processes with the packaged model and a real MLflow store."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
from mlflow import MlflowClient

from dcs.errors import ScoringError, TableError
from dcs.evaluation.metrics import FIGURES
from tests.faults.sweeps import sweep
from tracking import Archive, CellRecord, Recorder
from tracking.store import queries
from workflows.cluster.connect import Look
from workflows.cluster.driver import Silent
from workflows.cluster.placement import place
from workflows.cluster.sweep import run_sweep
from workflows.config.sweep import SweepConfig
from workflows.config.tuner import TrackingSettings, TunerSettings
from workflows.plan import plan_sweep
from workflows.tables import ProbabilityStore, request_key, table_requests
from workflows.tuning.cell import failed_record

CONFIG = SweepConfig(
    name="small",
    tasks=("helpdesk", "reviews"),
    shots=(1, "N"),
    seeds=(0,),
    methods=("icl", "dcs"),
    limit=60,
    tuner=TunerSettings(protocol="study", trials=2),
    tracking={"figures": "none"},
)


class Steps(Silent):
    """Keeps what a sweep said."""

    def __init__(self) -> None:
        self.seen_tables: list[tuple[int, int]] = []
        self.seen_cells: list[tuple[int, int, int]] = []

    def tables(self, done: int, total: int) -> None:
        self.seen_tables.append((done, total))

    def cells(self, done: int, total: int, failed: int) -> None:
        self.seen_cells.append((done, total, failed))

    def computed(self, record: CellRecord) -> None:
        assert record.key

    def machines(self, **usage: float) -> None:
        assert usage["cpus_used"] <= usage["cpus"]


def _sweep(config: SweepConfig, output) -> tuple[list[CellRecord], Steps]:
    steps = Steps()
    records, _ = sweep(output, config, progress=steps)
    return records, steps


@pytest.fixture(scope="module")
def finished(cluster, tmp_path_factory):
    output = tmp_path_factory.mktemp("sweep") / "runs"
    return output, *_sweep(CONFIG, output)


def _result(record: CellRecord) -> dict:
    """Return what has to be the same on every run of a cell."""
    content = json.loads(record.to_json())
    content["metrics"].pop("opt/seconds", None)
    return {name: content[name] for name in ("key", "identity", "params", "metrics", "scheme")}


def test_every_cell_is_finished_in_the_order_of_the_configuration(finished):
    _, records, steps = finished
    assert [(r.identity["task"], r.identity["shots"], r.identity["method"]) for r in records] == [
        (task, shots, method)
        for task in CONFIG.tasks
        for shots in CONFIG.shots
        for method in CONFIG.methods
    ]
    assert {record.status for record in records} == {"FINISHED"}
    assert steps.seen_tables[-1] == (4, 4)
    assert steps.seen_cells[-1] == (8, 8, 0)


def test_uncorrected_figures_are_those_of_the_uncorrected_cell(finished):
    _, records, _ = finished
    for icl, dcs in zip(records[::2], records[1::2], strict=True):
        for name in FIGURES:
            assert dcs.metrics[f"test/{name}_low"] <= dcs.metrics[f"test/{name}"]
            assert icl.metrics[f"test/{name}"] == dcs.metrics[f"uncorrected/test/{name}"]
        assert len(dcs.trials) == 2


def test_a_finished_sweep_has_no_work_left(finished):
    output, records, _ = finished
    plan = plan_sweep(CONFIG, output)
    assert not plan.has_work
    again, steps = _sweep(CONFIG, output)
    assert again == records
    assert steps.seen_cells == [(8, 8, 0)]


def test_a_time_budget_ends_a_sweep_that_the_same_command_finishes(finished, tmp_path, dcs):
    output, records, _ = finished
    shutil.copytree(output / "probabilities", tmp_path / "runs" / "probabilities")
    file = tmp_path / "sweep.yaml"
    file.write_text(json.dumps(CONFIG.model_dump(mode="json")), encoding="utf-8")
    command = ("sweep", file, "--output", tmp_path / "runs")
    first = dcs(*command, "--time-budget", "0.01s")
    assert first.code == 3, first.err
    assert len(Archive(tmp_path / "runs").finished()) < len(records)
    store = f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}"
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name(CONFIG.name).experiment_id

    def status() -> str:
        (parent,) = client.search_runs([experiment], "tags.`dcs.kind` = 'sweep'")
        return parent.info.status

    assert status() == "KILLED"
    assert dcs(*command).code == 0
    assert status() == "FINISHED"
    again = Archive(tmp_path / "runs").finished([record.key for record in records])
    assert [_result(again[record.key]) for record in records] == [*map(_result, records)]


def test_what_is_missing_is_computed_and_equals_what_was(finished):
    output, records, _ = finished
    victim = records[3]
    (output / "cells" / f"{victim.key}.json").unlink()
    store = ProbabilityStore.under(output)
    requests = table_requests(CONFIG)
    plan = plan_sweep(CONFIG, output)
    assert [cell.key for cells in plan.missing_cells.values() for cell in cells] == [victim.key]

    # With its tables gone too, cells that are finished are found again after the scoring.
    (key,) = plan.missing_cells
    store.path(key, "test").unlink()
    plan = plan_sweep(CONFIG, output)
    assert list(plan.missing_tables.values()) == [requests[1]]
    again, _ = _sweep(CONFIG, output)
    assert list(map(_result, again)) == list(map(_result, records))


def test_every_scored_table_is_a_run_below_its_sweep_once(finished):
    output, records, _ = finished
    client = MlflowClient(f"sqlite:///{output / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(CONFIG.name).experiment_id
    (parent,) = client.search_runs([experiment], "tags.`dcs.kind` = 'sweep'")
    for _ in range(2):
        runs = client.search_runs([experiment], "tags.`dcs.kind` = 'scoring'")
        assert len({run.data.tags["dcs.table_key"] for run in runs}) == len(runs) == 4
        Archive(output).path(records[0].key).unlink()
        _sweep(CONFIG, output)
    assert any(run.data.metrics["scoring/tokens"] for run in runs)
    for run in runs:
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert run.info.status == "FINISHED"
        metrics, seconds = run.data.metrics, (run.info.end_time - run.info.start_time) / 1000
        assert seconds == pytest.approx(metrics["scoring/seconds"], abs=0.002)
        asked = metrics["scoring/prompts"] - metrics["scoring/cache_hits"]
        assert 0 <= asked <= metrics["scoring/prompts"] == 120
        # A table that was scored again was asked of the store of prompts alone.
        assert (metrics["scoring/tokens"] > asked) if asked else not metrics["scoring/tokens"]
        assert run.data.params["engine"] == "transformers"


def test_mlflow_has_each_run_once_and_none_left_running(finished):
    output, records, _ = finished
    uri = f"sqlite:///{output / 'mlflow.db'}"
    cells = queries.cells(uri, "small")
    assert sorted(cells["cell_key"]) == sorted(record.key for record in records)
    assert set(cells["status"]) == {"FINISHED"}
    assert len(queries.trials(uri, "small")) == 8


def test_a_wider_sweep_reuses_what_a_narrow_one_finished(finished):
    output, records, _ = finished
    wider = CONFIG.model_copy(update={"name": "wider", "methods": ("icl", "dcs", "dnip")})
    plan = plan_sweep(wider, output)
    assert sorted(plan.ended) == sorted(record.key for record in records)
    assert not plan.missing_tables
    assert {c.method for cells in plan.missing_cells.values() for c in cells} == {"dnip"}


def test_a_cell_that_raises_stops_no_other(cluster, tmp_path):
    # Validation refuses this, so that only a study meets it.
    tuner = CONFIG.tuner.model_copy(update={"trials": 0})
    poisoned = CONFIG.model_copy(update={"tasks": ("helpdesk",), "shots": (1,), "tuner": tuner})
    records, steps = _sweep(poisoned, tmp_path)
    by_method = {record.identity["method"]: record for record in records}
    assert by_method["icl"].status == "FINISHED"
    assert by_method["dcs"].status == "FAILED"
    assert "Traceback" in (by_method["dcs"].error or "")
    assert steps.seen_cells[-1] == (2, 2, 1)
    assert set(Archive(tmp_path).finished()) == {by_method["icl"].key}

    # A failed cell is left alone, unless it is to be retried; its run is then the same one.
    assert not plan_sweep(poisoned, tmp_path).has_work
    plan = plan_sweep(poisoned, tmp_path, retry_failed=True)
    assert [c.method for cells in plan.missing_cells.values() for c in cells] == ["dcs"]


def _note_width(cell, tables, sweep, mapper, *more) -> tuple[CellRecord, dict]:
    record = failed_record(cell, ValueError("not computed"), sweep=sweep, started_ms=0)
    return replace(record, params={"width": getattr(mapper, "width", 1)}), {}


def test_the_last_cells_share_all_cpus(finished, tmp_path, monkeypatch):
    """Those that others hold when they are handed out come free while they run."""
    output, *_ = finished
    shutil.copytree(output / "probabilities", tmp_path / "probabilities")
    monkeypatch.setattr("workflows.cluster.driver.run_cell", _note_width)
    monkeypatch.setattr(
        "workflows.cluster.driver.look",
        lambda: Look(replace(place([]), cells={}, cell_cpus=8), {"cpus": 8.0, "cpus_used": 0.0}),
    )
    records, _ = _sweep(CONFIG, tmp_path)
    widths = {"icl": [], "dcs": []}
    for record in records:
        widths[record.identity["method"]].append(record.params["width"])
    # Handed out when 7, 5, 3 and 1 cells waited; each has two trials.
    assert widths == {"icl": [1] * 4, "dcs": [1, 1, 2, 2]}


def test_cells_come_with_their_figures(finished, tmp_path):
    output, *_ = finished
    shutil.copytree(output / "probabilities", tmp_path / "probabilities")
    part = {"tasks": ("reviews",), "shots": (1,), "tracking": TrackingSettings()}
    _sweep(CONFIG.model_copy(update=part), tmp_path)
    for name in ("scheme.png", "annealing.png"):
        assert len([*tmp_path.glob(f"mlartifacts/**/figures/{name}")]) == 1


def test_a_table_replaced_by_another_is_not_taken_for_it(finished, tmp_path):
    output, *_ = finished
    shutil.copytree(output / "probabilities", tmp_path / "probabilities")
    key, other = [request_key(request) for request in table_requests(CONFIG)[:2]]
    store = ProbabilityStore.under(tmp_path)
    shutil.copy(store.path(other, "test"), store.path(key, "test"))
    with pytest.raises(TableError, match=f"{key}/test.parquet: changed since it was scored"):
        _sweep(CONFIG, tmp_path)


def test_texts_that_changed_since_the_sweep_was_planned_are_not_scored(cluster, tmp_path):
    plan = plan_sweep(CONFIG, tmp_path)
    *changed, unchanged = plan.texts
    plan.texts.update(dict.fromkeys(changed, "of other texts"))
    # More than there are CPUs: actors whose tables fail are not to hold theirs.
    assert len(changed) == 3
    said = r"helpdesk has other texts on .* than the sweep began with.*\(and 2 more tables\)"
    with (
        Recorder(output=tmp_path, experiment="small", sweep_key="small") as recorder,
        pytest.raises(ScoringError, match=said),
    ):
        run_sweep(plan, recorder, Steps())
    assert [*plan_sweep(CONFIG, tmp_path).cells] == [unchanged]
    assert len(Archive(tmp_path).finished()) == 2
