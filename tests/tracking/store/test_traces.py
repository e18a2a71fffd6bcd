"""Prompts of scored tables as traces, in a real MLflow store."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow import MlflowClient
from mlflow.entities import Trace

from dcs.errors import TrackingError
from dcs_tracking import Archive, PromptRecord, Recorder, ScoringRecord
from dcs_tracking.records import plain
from dcs_tracking.store.client import default_tracking_uri
from dcs_tracking.store.queries import delete_runs
from tests.tracking.cells import STARTED, make_cell, runs

SWEEP: dict[str, Any] = {"experiment": "demo", "sweep_key": "s1", "figures": "none"}
LOGS = {"positive": -0.1, "negative": -2.5}


def _scoring(output: Path, seconds: float = 1.0, number: int = 30) -> ScoringRecord:
    prompts = [
        PromptRecord(
            inputs={"prompt": f"Review: {each}\nAnswer:"},
            outputs={"log_probabilities": LOGS},
            label="positive",
            tokens=7,
            started_ms=STARTED + each,
            seconds=0.25,
        )
        for each in range(number)
    ]
    (output / "prompts.json").write_text(json.dumps([plain(prompt) for prompt in prompts]))
    return ScoringRecord(
        key="t1",
        identity={"model": "tiny_lm", "task": "reviews", "shots": 1, "seed": 0},
        params={"engine": "transformers"},
        metrics={"scoring/seconds": seconds},
        started_ms=STARTED,
        finished_ms=STARTED + 1000,
        prompts="prompts.json",
    )


def _record(output: Path, scoring: ScoringRecord, number: int = 1, **settings: int) -> None:
    with Recorder(output=output, **SWEEP, **settings) as recorder:
        recorder.record(make_cell(number))
        recorder.scored(scoring)


def _traces(output: Path) -> list[Trace]:
    client = MlflowClient(default_tracking_uri(output))
    experiment = client.get_experiment_by_name("demo")
    assert experiment is not None
    return list(client.search_traces(locations=[experiment.experiment_id], max_results=100))


def test_twenty_prompts_of_a_table_are_traces_of_its_run(
    output: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////elsewhere/mlflow.db")
    before = mlflow.get_tracking_uri()
    _record(output, _scoring(output))
    assert mlflow.get_tracking_uri() == before == os.environ["MLFLOW_TRACKING_URI"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    found = _traces(output)
    assert len(found) == 20
    run_id = runs(kind="scoring").iloc[0]["run_id"]
    first = min(found, key=lambda trace: trace.info.request_time)
    assert first.info.request_metadata["mlflow.sourceRun"] == run_id
    assert first.info.tags["dcs.kind"] == "prompt"
    assert first.info.tags["dcs.table_key"] == "t1"
    assert (first.info.request_time, first.info.execution_duration) == (STARTED, 250)
    assert (first.info.token_usage or {})["input_tokens"] == 7
    (span,) = first.data.spans
    assert span.inputs == {"prompt": "Review: 0\nAnswer:"}
    assert span.outputs == {"log_probabilities": LOGS}
    assert span.attributes["label"] == "positive"


def test_a_replaced_or_deleted_run_takes_its_traces_with_it(output: Path, uri: str) -> None:
    _record(output, _scoring(output, number=2))
    _record(output, _scoring(output, number=2), 2)
    assert len(_traces(output)) == 2
    _record(output, _scoring(output, seconds=2.0, number=1), 3)
    assert len(_traces(output)) == 1
    client = MlflowClient()
    experiments = [client.get_experiment_by_name("demo").experiment_id]
    delete_runs(client, experiments, "tags.`dcs.kind` = 'scoring'")
    assert _traces(output) == []


def test_a_damaged_file_of_prompts_is_named(output: Path) -> None:
    scoring = _scoring(output)
    (output / "prompts.json").write_text("[")
    with pytest.raises(TrackingError, match="prompts.json"):
        Archive(output).prompts(scoring)
