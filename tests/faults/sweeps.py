"""The sweep that is disturbed, and what must be true of it afterwards."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dcs_tracking import Archive, CellRecord, Recorder, RecorderReport
from dcs_workflows.cluster.sweep import run_here, run_sweep
from dcs_workflows.config.sweep import SweepConfig, TunerSettings
from dcs_workflows.plan import Budget, Progress, plan_sweep, sweep_key
from tests.tracking.cells import runs_of
from tests.workflows.conftest import QUICK

CONFIG = SweepConfig(
    name="disturbed",
    tasks=("helpdesk",),
    shots=(1,),
    seeds=(0, 1),
    methods=("icl", "dnip", "dcs"),
    limit=200,
    tuner=TunerSettings(**QUICK | {"trials": 40}),
    tracking={"trials": "none", "figures": "none"},
)
#: Little beside the scoring.
SCORING = CONFIG.model_copy(update={"methods": ("icl",)})
#: One cell, which has all CPUs for its trials.
ALONE = CONFIG.model_copy(update={"seeds": (0,), "methods": ("dcs",)})


def sweep_command(
    cluster: Any, output: Path, *more: object, config: SweepConfig = CONFIG
) -> list[object]:
    """Return the arguments of ``dcs sweep`` as a person would give them.

    Without a cluster it runs on that of its process, or else on a new one.
    """
    file = output.parent / "sweep.yaml"
    file.write_text(json.dumps(config.model_dump(mode="json")), encoding="utf-8")
    joined = [] if cluster is None else ["--address", cluster.address]
    return ["sweep", file, "--output", output, *joined, *more]


def sweep(
    output: Path,
    config: SweepConfig = CONFIG,
    *,
    tracking_uri: str | None = None,
    retry: bool = False,
    progress: Progress | None = None,
    here: bool = False,
    budget: Budget | None = None,
    only: Sequence[str] = (),
) -> tuple[list[CellRecord], RecorderReport]:
    """Run what is missing, recorded as ``dcs sweep`` records it.

    On the cluster that is joined, or, if its tables exist, in this process.
    """
    plan = plan_sweep(config, output, only=only, retry_failed=retry)
    with Recorder(
        tracking_uri,
        output=output,
        experiment=config.name,
        sweep_key=sweep_key(config),
        sweep_params=config.model_dump(mode="json"),
        trials=config.tracking.trials,
        figures=config.tracking.figures,
    ) as recorder:
        if here:
            records = run_here(plan, recorder, lambda share: None)
        else:
            records = run_sweep(plan, recorder, progress or Progress(), budget)
        return [recorder.archive.read(record.key) for record in records], recorder.finish()


def disturbed_sweep(
    fault: Callable[[], int], output: Path, config: SweepConfig = CONFIG
) -> tuple[list[CellRecord], RecorderReport]:
    """Run what is missing while `fault` kills a process, whose id it returns."""
    with ThreadPoolExecutor(1) as threads:
        killed = threads.submit(fault)
        done = sweep(output, config)
        assert killed.result() > 0
    return done


def poison(monkeypatch: pytest.MonkeyPatch, *, deadly: bool = False) -> None:
    """Let every cell that has a study raise, for lack of its tables, or end its process."""

    def run(cells, tables, *more):
        # On a worker nothing is patched: this is the real one.
        from dcs_workflows.cluster.driver import run_cells

        if deadly and cells[0].tuner is not None:
            os.abort()
        return run_cells(cells, tables if cells[0].tuner is None else {}, *more)

    monkeypatch.setattr("dcs_workflows.cluster.driver.run_cells", run)


def results(records: list[CellRecord]) -> list[dict]:
    """Return what must not depend on what happened on the way."""
    contents = [json.loads(record.to_json()) for record in records]
    for content in contents:
        content["metrics"].pop("opt/seconds", None)
    return [
        {name: content[name] for name in ("key", "identity", "params", "metrics", "scheme")}
        for content in sorted(contents, key=lambda content: content["key"])
    ]


def same_cells(records: list[CellRecord], undisturbed: list[dict]) -> list[dict]:
    """Return those of the undisturbed results that are of the cells of some records."""
    keys = {record.key for record in records}
    return [cell for cell in undisturbed if cell["key"] in keys]


def of_scoring(undisturbed: list[dict]) -> list[dict]:
    """Return those of the undisturbed results that are of :data:`SCORING`."""
    return [cell for cell in undisturbed if cell["identity"]["method"] in SCORING.methods]


def kept_files(output: Path) -> list[Path]:
    """Return the records that lie on the disk."""
    return sorted(Archive(output).cells.glob("[!.]*.json"))


def kept(output: Path) -> list[CellRecord]:
    """Return what lies on the disk, all of it whole."""
    archive = Archive(output)
    return [archive.read(path.stem) for path in kept_files(output)]


def check_complete(output: Path, undisturbed: list[dict], tracking_uri: str | None = None) -> None:
    """Every cell once, finished, with the figures of a run that nobody disturbed."""
    records = kept(output)
    assert {record.status for record in records} == {"FINISHED"}
    assert results(records) == undisturbed
    runs = runs_of(tracking_uri or f"sqlite:///{output / 'mlflow.db'}", CONFIG.name)
    keys = Counter(run.data.tags["dcs.cell_key"] for run in runs)
    assert keys == Counter(record.key for record in records)
    assert {run.info.status for run in runs} == {"FINISHED"}
