"""``dcs reproduce``: what it says is the same, what it says differs, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dcs.data.table import ProbabilityTable
from tests.workflows.conftest import biased_table, run_dcs
from tracking import Archive, CellRecord, Recorder, collect_provenance
from tracking.store import queries
from workflows.cells import cells_of, request_key, table_requests
from workflows.cluster.workers import ScoringActor
from workflows.config.sweep import SweepConfig, TunerSettings
from workflows.plan import sweep_key
from workflows.tables import ProbabilityStore
from workflows.tuning.cell import compute_cell

SWEEP = SweepConfig(
    name="small",
    tasks=("helpdesk",),
    methods=("icl", "batch", "dnip"),
    limit=60,
    tuner=TunerSettings(trials=2, budget=5000),
)


@pytest.fixture(scope="module")
def moods(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("table") / "moods.parquet"
    biased_table().write(path)
    return path


@pytest.fixture(scope="module")
def tuned(moods, new_output) -> Path:
    """The folder of a finished ``dcs tune``."""
    output = new_output()
    study = ("--protocol", "paper", "--trials", 2)
    assert run_dcs("tune", moods, *study, "--output", output).code == 0
    return output


@pytest.fixture(scope="module")
def swept(new_output) -> Path:
    """The folder of a finished sweep, computed in this process."""
    output = new_output()
    store = ProbabilityStore.under(output)
    (request,) = table_requests(SWEEP)
    actor = ScoringActor("tiny_lm", store.root, 0.0)
    tables, scoring = actor.generate(request, request_key(request))
    with Recorder(
        output=output,
        experiment=SWEEP.name,
        sweep_key=sweep_key(SWEEP),
        sweep_params=SWEEP.model_dump(mode="json"),
    ) as recorder:
        for cell in cells_of(request, SWEEP, scoring.digests):
            recorder.record(
                compute_cell(cell, tables["optimization"], tables["test"], sweep=SWEEP.name)
            )
    return output


def record_of(output: Path, method: str) -> CellRecord:
    records = Archive(output).load().records.values()
    return next(record for record in records if record.identity["method"] == method)


@pytest.fixture
def copy(swept, tmp_path) -> Path:
    """A copy of the sweep that a test may spoil."""
    shutil.copytree(swept, tmp_path / "runs")
    return tmp_path / "runs"


def changed(output: Path, record: CellRecord, **values) -> None:
    """Put another record in the place of one."""
    Archive(output).write(replace(record, **values))


@pytest.mark.parametrize("method", ["icl", "batch", "dnip"])
def test_a_cell_of_a_sweep_is_identical(swept, method):
    outcome = run_dcs("reproduce", record_of(swept, method).key[:8], "--runs", swept)
    assert outcome.code == 0, outcome.out + outcome.err
    assert "software: as recorded" in outcome.out
    assert "tables: stored" in outcome.out
    assert "identical" in outcome.out
    assert "not the same" not in outcome.out


def test_a_cell_is_found_by_its_run_in_mlflow_alone(copy):
    uri = f"sqlite:///{copy / 'mlflow.db'}"
    runs = queries.cells(uri, "small").set_index("method")["run_id"]
    shutil.rmtree(copy / "cells")
    shutil.rmtree(copy / "archive")
    outcome = run_dcs("reproduce", runs["dnip"], "--runs", copy)
    assert outcome.code == 0, outcome.out + outcome.err
    assert "identical" in outcome.out and "2 trials" in outcome.out


@pytest.mark.parametrize("gone", [("probabilities",), ("probabilities", "shards")])
@pytest.mark.parametrize("noted", [True, False], ids=["sweep known", "record alone"])
def test_tables_that_are_gone_are_scored_again(copy, gone, noted):
    for name in gone:
        shutil.rmtree(copy / name)
    if not noted:
        shutil.rmtree(copy / "archive")
    outcome = run_dcs("reproduce", record_of(copy, "batch").key, "--runs", copy)
    assert outcome.code == 0, outcome.out + outcome.err
    assert "scored again" in outcome.out
    assert not (copy / "probabilities").exists()


def test_how_many_rows_there_were_is_not_guessed(copy):
    record = record_of(copy, "batch")
    changed(copy, record, identity={**record.identity, "optimization_size": 40})
    for name in ("probabilities", "archive"):
        shutil.rmtree(copy / name)
    outcome = run_dcs("reproduce", record.key, "--runs", copy)
    assert outcome.code == 2
    assert "the record does not say how to score them" in outcome.err


def test_a_table_that_was_changed_is_named_and_not_used(copy):
    (path,) = copy.glob("probabilities/*/test.parquet")
    table = ProbabilityTable.read(path)
    table.with_probs(table.probs[:, ::-1]).write(path)
    outcome = run_dcs("reproduce", record_of(copy, "icl").key, "--runs", copy)
    assert outcome.code == 0, outcome.out + outcome.err
    assert f"{path}: changed since it was scored" in outcome.out
    assert "scored again" in outcome.out


def test_scoring_from_scratch_says_how_far_the_numbers_are(copy):
    # A run whose tables come of other arithmetic: the record and the store know those.
    record = record_of(copy, "icl")
    (path,) = copy.glob("probabilities/*/test.parquet")
    table = ProbabilityTable.read(path)
    probs = table.probs.copy()
    probs[0, 0], probs[0, 1] = probs[0, 0] + 1e-6, probs[0, 1] - 1e-6
    other = table.with_probs(probs)
    other.write(path)
    note = path.parent / "scoring.json"
    content = json.loads(note.read_text())
    content["digests"]["test"] = other.digest
    note.write_text(json.dumps(content))
    changed(copy, record, identity={**record.identity, "test_digest": other.digest})
    outcome = run_dcs("reproduce", record.key, "--runs", copy, "--rescore")
    assert outcome.code == 1, outcome.out + outcome.err
    assert "largest difference from a stored probability: 1e-06" in outcome.out
    assert "not the same: test rows" in outcome.out


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"metrics": {"test/accuracy": 0.125}}, "test/accuracy"),
        ({"scheme": None}, "scheme"),
        ({"trials": ()}, "trials"),
        ({"params": {"beta": 3.0}}, "chosen settings"),
    ],
)
def test_what_differs_is_named(copy, values, named):
    record = record_of(copy, "dnip")
    if "metrics" in values:
        values = {"metrics": {**record.metrics, **values["metrics"]}}
    changed(copy, record, **values)
    outcome = run_dcs("reproduce", record.key, "--runs", copy)
    assert outcome.code == 1, outcome.out + outcome.err
    assert f"not the same: {named}\n" in outcome.out
    assert "--requirements" in outcome.out


def test_other_software_is_shown_and_does_not_matter_if_the_result_is_the_same(copy):
    record = record_of(copy, "dnip")
    about = dict(record.provenance)
    about["lock"] = {**about["lock"], "numpy": "1.0.0", "gone": "2.0"}
    about["git_commit"] = "0" * 40
    changed(copy, record, provenance=about)
    outcome = run_dcs("reproduce", record.key, "--runs", copy)
    assert outcome.code == 0, outcome.out + outcome.err
    rows = {line.split("  ")[0].strip(): line for line in outcome.out.splitlines()}
    assert "1.0.0" in rows["numpy"] and np.__version__ in rows["numpy"]
    assert "not installed" in rows["gone"]
    assert "000000000000" in rows["git commit"]
    assert "numba" not in rows


def test_times_and_new_metrics_are_no_difference(copy):
    record = record_of(copy, "dnip")
    metrics = {k: v for k, v in record.metrics.items() if k != "test/cobias_p"}
    trials = tuple(replace(trial, seconds=99.0, started_ms=1) for trial in record.trials)
    changed(copy, record, metrics=metrics, trials=trials, started_ms=1, finished_ms=2)
    assert run_dcs("reproduce", record.key, "--runs", copy).code == 0


def test_a_failed_cell_is_tried_again(copy, monkeypatch):
    record = record_of(copy, "dnip")
    trace = 'Traceback (most recent call last):\n  File "a.py", line 1\nValueError: too hot'
    failed = {"metrics": {}, "scheme": None, "class_accuracies": {}, "trials": (), "trace": ()}
    changed(copy, record, status="FAILED", error=trace, params={}, **failed)
    outcome = run_dcs("reproduce", record.key, "--runs", copy)
    assert outcome.code == 1
    assert "the recorded run failed" in outcome.out
    assert "not the same: ending" in outcome.out
    assert "failed: ValueError: too hot" in outcome.out

    def fail(*args, **options):
        raise ValueError("too hot")

    monkeypatch.setattr("workflows.reproduce.compute_cell", fail)
    outcome = run_dcs("reproduce", record.key, "--runs", copy)
    assert outcome.code == 0, outcome.out + outcome.err
    assert "failed as recorded" in outcome.out


def test_a_cell_that_fails_now_is_a_difference(swept, monkeypatch):
    def fail(*args, **options):
        raise MemoryError("no room")

    monkeypatch.setattr("workflows.reproduce.compute_cell", fail)
    outcome = run_dcs("reproduce", record_of(swept, "dnip").key, "--runs", swept)
    assert outcome.code == 1
    assert "failed: MemoryError: no room" in outcome.out


def test_a_table_of_ones_own_is_asked_for(tuned, moods):
    key = record_of(tuned, "dcs").key
    outcome = run_dcs("reproduce", key, "--runs", tuned)
    assert outcome.code == 2
    assert "--table" in outcome.err and len(outcome.err.splitlines()) == 1
    outcome = run_dcs("reproduce", key, "--runs", tuned, "--table", moods)
    assert outcome.code == 0, outcome.out + outcome.err
    assert "identical" in outcome.out


def test_another_table_is_refused(tuned, moods, tmp_path):
    other = tmp_path / "other.parquet"
    biased_table(seed=1).write(other)
    key = record_of(tuned, "dcs").key
    for arguments in (("--table", other), ("--table", moods, "--test", other)):
        outcome = run_dcs("reproduce", key, "--runs", tuned, *arguments)
        assert outcome.code == 2
        assert "are not those of cell" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("abc",), "too short"),
        (("ffffffff",), "no cell has that run id or key"),
        (("KEY", "--test", "t.parquet"), "give --table too"),
        (("KEY", "--table", "t.parquet", "--rescore"), "exclude each other"),
        (("KEY", "--table", "t.parquet"), "t.parquet"),
    ],
)
def test_wrong_input_is_said_on_one_line(swept, arguments, words):
    key = record_of(swept, "dnip").key
    given = [key if argument == "KEY" else argument for argument in arguments]
    outcome = run_dcs("reproduce", *given, "--runs", swept)
    assert outcome.code == 2
    assert words in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_a_folder_without_results_is_said_so(tmp_path):
    outcome = run_dcs("reproduce", "abcdef", "--runs", tmp_path / "none")
    assert outcome.code == 2
    assert "--runs" in outcome.err
    assert not (tmp_path / "none").exists()


def test_settings_of_another_version_are_named_with_the_commit(copy):
    record = record_of(copy, "dnip")
    tuner = {**record.identity["tuner"], "warp": 9}
    about = {**record.provenance, "git_commit": "abc123"}
    changed(copy, record, identity={**record.identity, "tuner": tuner}, provenance=about)
    outcome = run_dcs("reproduce", record.key, "--runs", copy)
    assert outcome.code == 2
    assert "warp" in outcome.err and "abc123" in outcome.err


def test_the_packages_of_a_run_become_requirements(copy, tmp_path):
    record = record_of(copy, "dnip")
    lock = {**record.provenance["lock"], "torch": "2.99.0+cpu"}
    changed(copy, record, provenance={**record.provenance, "lock": lock})
    path = tmp_path / "again" / "requirements.txt"
    outcome = run_dcs("reproduce", record.key, "--runs", copy, "--requirements", path)
    assert outcome.code == 0
    assert "pip install --requirement" in outcome.out.replace("\n", "")
    lines = path.read_text().splitlines()
    comments = [line for line in lines if line.startswith("#")]
    assert record.key in comments[0]
    pins = dict(line.partition("  #")[0].split("==") for line in lines if line not in comments)
    assert pins.pop("torch") == "2.99.0"
    now = collect_provenance()["lock"]
    assert {name: now[name] for name in pins} == pins
    assert {"numba", "llvmlite", "ray", "optuna", "mlflow"} <= set(pins)
    assert all(re.fullmatch(r"[\w.-]+==[\w.!]+(  # build \w+)?", line) for line in lines[2:])


def test_records_without_a_lock_give_what_they_know(copy, tmp_path):
    record = record_of(copy, "dnip")
    built = "0.1.0.dev85+g17af9776a.d20261121"
    about = {"packages": {"dcs-debias": built, "numpy": "2.4.6"}, "python": "3.11.7"}
    changed(copy, record, provenance=about)
    path = tmp_path / "requirements.txt"
    outcome = run_dcs("reproduce", record.key, "--runs", copy, "--requirements", path)
    assert outcome.code == 0
    assert "git checkout 17af9776a\n" in outcome.out
    text = path.read_text()
    assert "numpy==2.4.6" in text and "only these packages" in text
    assert "dcs-debias==" not in text
