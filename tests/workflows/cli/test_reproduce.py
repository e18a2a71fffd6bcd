"""``dcs reproduce``: what it says is the same, what it says differs, and what it refuses."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dcs.data.table import ProbabilityTable
from dcs_tracking import Archive, CellRecord, Recorder
from dcs_tracking.store import queries
from dcs_workflows.cli.scoring import score
from dcs_workflows.config.sweep import SweepConfig, TunerSettings
from dcs_workflows.plan import cells_of, sweep_key, variants_of
from dcs_workflows.study.cell import compute_cell
from dcs_workflows.tables import StoredTables, request_key, table_requests
from tests.workflows.conftest import Outcome, done, refused

SWEEP = SweepConfig(
    name="small",
    tasks=("helpdesk",),
    methods=("icl", "batch", "dnip"),
    limit=60,
    tuner=TunerSettings(
        trials=2,
        judge={"development": 0.3},
        space={"calibration": "none", "corrections": "both", "spacing": "linear", "beta": 0.5},
    ),
)


@pytest.fixture(scope="module")
def swept(new_output: Callable[[], Path]) -> Path:
    """The folder of a finished sweep, computed in this process."""
    output = new_output()
    (request,) = table_requests(SWEEP)
    stored = StoredTables.under(output, request_key(request))
    score("tiny_lm", {stored.key: request}, output)
    tables = stored.read()
    with Recorder(
        output=output,
        experiment=SWEEP.name,
        sweep_key=sweep_key(SWEEP),
        sweep_params=SWEEP.model_dump(mode="json"),
        figures="none",
    ) as recorder:
        for cell in cells_of(request, variants_of(SWEEP), stored.digests):
            recorder.record(
                compute_cell(cell, tables["optimization"], tables["test"], sweep=SWEEP.name)
            )
    return output


@pytest.fixture
def copy(swept: Path, tmp_path: Path) -> Path:
    """A copy of the sweep that a test may spoil."""
    shutil.copytree(swept, tmp_path / "runs")
    return tmp_path / "runs"


def record_of(output: Path, method: str) -> CellRecord:
    records = Archive(output).load().values()
    return next(record for record in records if record.identity["method"] == method)


def reproduced(output: Path, name: str, *arguments: object, code: int = 0) -> Outcome:
    return done("reproduce", name, "--runs", output, *arguments, code=code)


def test_a_cell_of_a_sweep_is_identical_and_found_by_its_run_in_mlflow_alone(copy: Path) -> None:
    for method in SWEEP.methods:
        reproduced(copy, record_of(copy, method).key[:8])
    runs = queries.cells(f"sqlite:///{copy / 'mlflow.db'}", "small").set_index("method")["run_id"]
    shutil.rmtree(copy / "cells")
    reproduced(copy, runs["dnip"])


def test_what_cannot_be_tried_is_said_on_one_line(copy: Path) -> None:
    record, (path,) = record_of(copy, "dnip"), copy.glob("probabilities/*/test.parquet")
    command = ("reproduce", record.key, "--runs", copy)
    other_version = {**record.identity, "tuner": {**record.identity["tuner"], "warp": 9}}
    Archive(copy).write(replace(record, identity=other_version))
    refused(*command, says=["warp"])
    Archive(copy).write(record)
    table = ProbabilityTable.read(path)
    table.with_probs(table.probs[:, ::-1]).write(path)
    refused(*command, says=[str(path)])
    shutil.rmtree(copy / "probabilities")
    refused(*command, says=["tables"])


@pytest.mark.parametrize("name", ["metrics", "scheme", "trials", "params"])
def test_what_differs_is_named(copy: Path, name: str) -> None:
    record = record_of(copy, "dnip")
    other: dict[str, Any] = {
        "metrics": {**record.metrics, "test/accuracy": 0.125},
        "scheme": None,
        "trials": (),
        "params": {"beta": 3.0},
    }
    Archive(copy).write(replace(record, **{name: other[name]}))
    last = reproduced(copy, record.key, code=1).out.splitlines()[-1]
    assert last.endswith(": test/accuracy" if name == "metrics" else f": {name}")


def test_other_software_is_named(copy: Path) -> None:
    record = record_of(copy, "dnip")
    packages = {**record.provenance["packages"], "numpy": "1.0.0", "gone": "2.0"}
    Archive(copy).write(replace(record, provenance={**record.provenance, "packages": packages}))
    out = reproduced(copy, record.key).out
    assert "1.0.0" in out and "gone" in out
    assert "numba" not in out


@pytest.mark.parametrize("error", ["too hot", "too cold"])
def test_a_failed_cell_is_tried_again(
    copy: Path, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **options: object) -> CellRecord:
        raise ValueError(error)

    record = record_of(copy, "dnip")
    failed = replace(record, status="FAILED", error="Traceback\nValueError: too hot", params={})
    failed = replace(failed, metrics={}, scheme=None, class_accuracies={}, trials=(), trace=())
    Archive(copy).write(failed)
    reproduced(copy, record.key, code=1)
    monkeypatch.setattr("dcs_workflows.reproduce.compute_cell", fail)
    reproduced(copy, record.key, code=0 if error == "too hot" else 1)
