"""Records as a sweep would make them, and ways to look at a store that are not ours."""

from __future__ import annotations

import zlib
from itertools import product
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
from mlflow.entities import Run

from dcs.schemes.corrections import Membership, Weight
from dcs.schemes.scheme import CorrectionScheme
from dcs_tracking import Recorder, RecorderReport
from dcs_tracking.records import CellRecord, TrialRecord
from dcs_tracking.store.client import search_runs

STARTED = 1_760_000_000_000
NAMES = {"class": ["Sports", "World"]}
SCHEME = CorrectionScheme(("Sports", "World"), (Weight(0.8), Membership(0.0, 0.25, 0.5)))


def make_cell(number: int = 0, *, trials: int = 2, **changes: Any) -> CellRecord:
    started = STARTED + 1000 * number
    values: dict[str, Any] = {
        "key": f"cell{number:04d}",
        "sweep": "demo",
        "identity": {
            "model": "tiny_lm",
            "task": "helpdesk",
            "shots": "1",
            "seed": number,
            "method": "dcs",
            "table_digest": "ab" * 32,
            "objective": {"beta": 1.0, "tau": 0.2},
        },
        "params": {"weight_scale": 30, "cooling_rate": 0.9},
        "metrics": {
            "test/accuracy": 0.5 + number / 100,
            "test/cobias": 0.2 - number / 100,
            "dev/accuracy": 0.6,
            "uncorrected/test/accuracy": 0.4,
            "test/class_accuracy/R&D / 'new'": 0.25,
        },
        "scheme": SCHEME.to_dict(),
        "class_accuracies": {**NAMES, "before": [0.9, float("nan")], "after": [0.8, 0.5]},
        "trials": tuple(
            TrialRecord(
                number=i,
                params={"weight_scale": 10 * (i + 1)},
                metrics={"dev/accuracy": 0.5 + i / 100},
                state="COMPLETE",
                seconds=0.25,
                started_ms=started + i,
                value=0.5 + i / 100,
            )
            for i in range(trials)
        ),
        "started_ms": started,
        "finished_ms": started + 900,
        "provenance": {"seeds": {"annealing": 7}},
    }
    return CellRecord(**(values | changes))


def failed_cell(number: int, error: str = "Traceback ...\nValueError: bad") -> CellRecord:
    nothing = {"metrics": {}, "scheme": None, "class_accuracies": {}}
    return make_cell(number, trials=0, status="FAILED", error=error, **nothing)


def paper_cells(
    *,
    model: str = "meta-llama/Llama-2-13b-hf",
    tasks: tuple[str, ...] = ("agnews", "dbpedia", "sst5", "trec", "rte", "ddi", "pubmedqa"),
    shots: tuple[Any, ...] = (1,),
    methods: tuple[str, ...] = ("icl", "dcs"),
    seeds: tuple[int, ...] = (0, 1, 2),
    **others: Any,
) -> list[CellRecord]:
    """Accuracy 0.7, 0.8, 0.9 and COBias 0.1, 0.2, 0.3 for the seeds 0, 1, 2 of every cell."""
    labelled = others.get("optimization_size") or 10_000
    if "tuner" not in others:
        others = {"objective": "full", **others}
    settings = f"{zlib.crc32(repr(others).encode()):08x}"
    return [
        make_cell(
            number,
            key=f"{number:04d}{settings}",
            identity=dict(model=model, task=task, shots=shot, seed=seed, method=method, **others),
            metrics={
                "test/accuracy": 0.7 + seed / 10,
                "test/cobias": 0.1 + seed / 10,
                "uncorrected/test/accuracy": 0.6,
                "uncorrected/test/cobias": 0.4,
                "dev/score": 0.5,
                **({} if method == "icl" else {"opt/evaluations": 1000.0, "opt/seconds": 0.25}),
            },
            class_accuracies={**NAMES, "before": [0.9, 0.3], "after": [0.8, 0.6 + seed / 10]},
            provenance={"tables": {"optimization": {"rows": labelled, "labelled": labelled}}},
        )
        for number, (task, shot, method, seed) in enumerate(
            product(tasks, shots, methods, seeds), start=1
        )
    ]


def recorded(output: Path, *cells: int | CellRecord, **options: Any) -> RecorderReport:
    """Record cells, some by their numbers, and return what became of them."""
    sweep = {"experiment": "demo", "sweep_key": "s1", "figures": "none"} | options
    with Recorder(output=output, **sweep) as recorder:
        for cell in cells:
            recorder.record(make_cell(cell) if isinstance(cell, int) else cell)
        return recorder.finish()


def runs(experiment: str = "demo", kind: str | None = None) -> pd.DataFrame:
    """What MLflow itself finds, through the address in its environment variable."""
    where = "" if kind is None else f"tags.`dcs.kind` = '{kind}'"
    found = mlflow.search_runs(experiment_names=[experiment], filter_string=where)
    assert isinstance(found, pd.DataFrame)
    return found


def runs_of(uri: str, experiment: str, kind: str = "cell") -> list[Run]:
    """The runs of a kind in any store."""
    client = mlflow.MlflowClient(uri)
    found = client.get_experiment_by_name(experiment)
    ids = [] if found is None else [found.experiment_id]
    return [*search_runs(client, ids, f"tags.`dcs.kind` = '{kind}'")] if ids else []


def table(name: str, run_id: str) -> pd.DataFrame:
    """A table of a run, as MLflow reads it."""
    client = mlflow.MlflowClient()
    experiment_id = client.get_run(run_id).info.experiment_id
    return client.load_table(experiment_id, name, run_ids=[run_id])


def content(experiment: str = "demo") -> tuple[int, dict[str, str], dict[str, int]]:
    """Number of sweeps, status by cell key, number of trials by cell key; no key twice."""
    cells = runs(experiment, "cell").to_dict("records")
    status = {cell["tags.dcs.cell_key"]: cell["status"] for cell in cells}
    assert len(status) == len(cells), "a cell has more than one run"
    history = mlflow.MlflowClient().get_metric_history
    count = {
        cell["tags.dcs.cell_key"]: len(history(cell["run_id"], "trial/value")) for cell in cells
    }
    return len(runs(experiment, "sweep")), status, count
