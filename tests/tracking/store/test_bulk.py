"""Runs written in one transaction are those that MLflow's client would have written."""

from __future__ import annotations

import math
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from tracking.store.runs import RunContent, insert_runs, request_run, write_runs

_METRICS = [
    *(Metric("loss", value, 10 + step, step) for step, value in enumerate((3.0, 1.0, 2.0))),
    Metric("twice", 0.5, 7, 0),
    Metric("twice", 0.5, 7, 0),
    Metric("same step", 0.25, 7, 0),
    Metric("same step", 0.5, 7, 0),
    Metric("none", math.nan, 7, 0),
    Metric("most", math.inf, 7, 0),
    Metric("least", -math.inf, 7, 0),
]
_PARAMS = [Param("rate", "0.5"), Param("name", "Zürich"), Param("empty", "")]


def _content(**values: Any) -> RunContent:
    return RunContent(metrics=_METRICS, params=_PARAMS, **values)


def _seen(client: MlflowClient, run_id: str) -> dict[str, Any]:
    run = client.get_run(run_id)
    info = {k: v for k, v in dict(run.info).items() if k not in ("run_id", "run_uuid")}
    history = {
        name: sorted((m.step, m.timestamp, str(m.value)) for m in found)
        for name in sorted(run.data.metrics)
        if (found := client.get_metric_history(run_id, name))
    }
    latest = sorted((name, str(value)) for name, value in run.data.metrics.items())
    text = str(info | {"latest": latest, "history": history})
    return {"text": text.replace(run_id, "ID"), "params": run.data.params, "tags": run.data.tags}


def test_a_transaction_writes_what_requests_write(uri: str) -> None:
    client = MlflowClient(uri)
    place = client.get_experiment(client.create_experiment("bulk"))
    new = _content(name="trial 1", tags={"dcs.kind": "trial"}, start=5, end=9, status="FAILED")
    seen = []
    for write in (
        insert_runs,
        lambda client, place, runs: [request_run(client, place, r) for r in runs],
    ):
        going = client.create_run(place.experiment_id, start_time=1, run_name="cell")
        write(client, place, [_content(run_id=going.info.run_id), new])
        made = client.search_runs([place.experiment_id], "tags.`dcs.kind` = 'trial'")[0]
        seen.append([_seen(client, run_id) for run_id in (going.info.run_id, made.info.run_id)])
        for run in (going, made):
            client.delete_run(run.info.run_id)
    assert seen[0] == seen[1]


def test_a_database_gets_all_or_nothing(uri: str) -> None:
    client = MlflowClient(uri)
    place = client.get_experiment(client.create_experiment("whole"))
    twice = RunContent(metrics=[], params=[Param("a", "1"), Param("a", "2")], name="bad")
    with pytest.raises(Exception, match="UNIQUE"):
        write_runs(client, place, [_content(name="good"), twice])
    assert list(client.search_runs([place.experiment_id])) == []
