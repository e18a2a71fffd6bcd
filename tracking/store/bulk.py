"""Writes runs with all they hold: a database gets them in one transaction, a server by requests.

MLflow's client takes some ten transactions for a run, each of which waits for the disk. Here all
runs of a cell take one. The rows are those that the client would write: a contract test compares.
"""

from __future__ import annotations

import math
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tracking.store.client import has_server

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Metric, Param

__all__ = ["RunContent", "write_runs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContent:
    """What a run is to hold.

    Attributes
    ----------
    metrics, params : sequence of Metric, of Param
        Named as MLflow allows.
    run_id : str or None
        A run that is there, which goes on; None makes one that has ended.
    name, tags, start, end, status
        Of a new run; times in milliseconds since the epoch.
    """

    metrics: Sequence[Metric]
    params: Sequence[Param]
    run_id: str | None = None
    name: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    start: int = 0
    end: int = 0
    status: str = "FINISHED"


def write_runs(client: MlflowClient, experiment: Experiment, runs: Iterable[RunContent]) -> None:
    """Write runs into an experiment, a database's all or none of them.

    Parameters
    ----------
    client : MlflowClient
        An open store.
    experiment : Experiment
        Where new runs go.
    runs : iterable of RunContent
        The runs.
    """
    if has_server(client.tracking_uri):
        for run in runs:
            _request(client, experiment, run)
    else:
        _insert(client, experiment, list(runs))


def _request(client: MlflowClient, experiment: Experiment, run: RunContent) -> None:
    run_id = run.run_id
    if run_id is None:
        made = client.create_run(
            experiment.experiment_id, start_time=run.start, tags=dict(run.tags), run_name=run.name
        )
        run_id = made.info.run_id
    client.log_batch(run_id, run.metrics, run.params, synchronous=True)
    if run.run_id is None:
        client.set_terminated(run_id, run.status, end_time=run.end)


def _insert(client: MlflowClient, experiment: Experiment, runs: Sequence[RunContent]) -> None:
    from mlflow.store.tracking.dbmodels import models
    from mlflow.utils.mlflow_tags import MLFLOW_RUN_NAME
    from mlflow.utils.uri import append_to_uri_path
    from sqlalchemy import insert

    rows: dict[Any, list[dict[str, Any]]] = {
        kind: []
        for kind in (
            models.SqlRun,
            models.SqlTag,
            models.SqlParam,
            models.SqlMetric,
            models.SqlLatestMetric,
        )
    }
    for run in runs:
        run_id = run.run_id or uuid.uuid4().hex
        if run.run_id is None:
            rows[models.SqlRun].append(
                {
                    "run_uuid": run_id,
                    "name": run.name,
                    "source_type": "UNKNOWN",
                    "source_name": "",
                    "entry_point_name": "",
                    "user_id": "unknown",
                    "status": run.status,
                    "start_time": run.start,
                    "end_time": run.end,
                    "source_version": "",
                    "lifecycle_stage": experiment.lifecycle_stage,
                    "artifact_uri": append_to_uri_path(  # type: ignore[no-untyped-call]
                        experiment.artifact_location, run_id, "artifacts"
                    ),
                    "experiment_id": int(experiment.experiment_id),
                }
            )
        tags = {**run.tags, MLFLOW_RUN_NAME: run.name} if run.run_id is None else {}
        rows[models.SqlTag] += _pairs(run_id, tags.items())
        rows[models.SqlParam] += _pairs(run_id, ((p.key, str(p.value)) for p in run.params))
        latest: dict[str, dict[str, Any]] = {}
        for metric in dict.fromkeys(run.metrics):
            row = _metric(run_id, metric)
            rows[models.SqlMetric].append(row)
            newest = latest.setdefault(metric.key, row)
            if _age(row) >= _age(newest):
                latest[metric.key] = row
        rows[models.SqlLatestMetric] += latest.values()
    with client._tracking_client.store.ManagedSessionMaker(read_only=False) as session:
        for kind, values in rows.items():
            if values:
                session.execute(insert(kind), values)


def _pairs(run_id: str, pairs: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    return [{"run_uuid": run_id, "key": key, "value": value} for key, value in pairs]


def _metric(run_id: str, metric: Metric) -> dict[str, Any]:
    is_nan = math.isnan(metric.value)
    largest = sys.float_info.max  # A database has no infinity.
    return {
        "run_uuid": run_id,
        "key": metric.key,
        "value": 0.0 if is_nan else min(largest, max(-largest, metric.value)),
        "timestamp": metric.timestamp,
        "step": metric.step,
        "is_nan": is_nan,
    }


def _age(row: Mapping[str, Any]) -> tuple[int, int, float]:
    return row["step"], row["timestamp"], row["value"]
