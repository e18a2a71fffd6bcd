"""Runs of one sweep in an open store: parent, cells, trials. No threads, no retries.

A cell is written to a database in one transaction, with the rows that MLflow's client would write
in about ten transactions per run, each waiting for the disk. A server with the app of
`tracking.store.app` gets it in one request, any other server in about thirty.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pydantic import Base64Bytes, ConfigDict, TypeAdapter

from dcs.evaluation.uncertainty import percent
from dcs.schemes.scheme import CorrectionScheme
from tracking import schema
from tracking.environment import git_commit, user_name
from tracking.records import (
    TRACE_COLUMNS,
    Archive,
    CellRecord,
    ScoringRecord,
    Sweep,
    TrialRecord,
    sealed,
    text_digest,
)
from tracking.results.frames import has_chosen, trial_score
from tracking.results.settings import objective_label, own_setting
from tracking.results.tables import leaderboard, leaderboard_metrics, table_files
from tracking.store.client import has_server, log_files, make_experiment, search_runs
from tracking.store.serving import scheme_model

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Experiment, Run, RunInfo

#: Maximum number of points of an annealing trace logged as step metrics, each of which costs as
#: much as any metric; the record contains the whole trace.
_MAX_TRACE_POINTS = 25

#: Below the limit of metrics in one request; the leaderboard contains all values.
_MAX_METRICS = 900

_COMPLETE = ("FINISHED", "FAILED")

#: Seconds after which a driver that has not finished writing a cell is considered dead.
_LEASE_SECONDS = 600.0
#: Seconds between two queries of a run that another driver is about to end.
_POLL_SECONDS = 0.1

#: Endpoint for runs of a server with the app.
PATH: Final = "/api/2.0/dcs/runs"

#: Name, value, milliseconds since the epoch, step.
Measured = tuple[str, float, int, int]

#: Values that MLflow's client writes for a run without a known source.
_UNKNOWN_SOURCE = dict.fromkeys(("source_name", "entry_point_name", "source_version"), "") | {
    "source_type": "UNKNOWN",
    "user_id": "unknown",
}


@dataclass(frozen=True, slots=True)
class _ExistingRun:
    """An existing run of a cell or table."""

    id: str
    key: str
    status: str
    digest: str | None
    parent: str | None
    deleted: bool
    claim: str

    @classmethod
    def of(cls, run: Run) -> _ExistingRun:
        tags = run.data.tags
        return cls(
            id=str(run.info.run_id),
            key=tags.get(schema.CELL_KEY) or tags.get(schema.TABLE_KEY, ""),
            status=str(run.info.status),
            digest=tags.get(schema.RECORD_DIGEST),
            parent=tags.get(schema.PARENT),
            deleted=run.info.lifecycle_stage == "deleted",
            claim=tags.get(schema.CLAIM, ""),
        )

    def claimed_by_other(self, owner: str) -> bool:
        """Whether a driver with another output folder is writing the run."""
        name, _, since = self.claim.partition(" ")
        alive = bool(since) and time.time() - float(since) < _LEASE_SECONDS
        return self.status == "RUNNING" and alive and name != owner


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContent:
    """Content to write to an existing or a new run.

    Attributes
    ----------
    metrics : sequence of Measured
        Metrics, with names that MLflow allows.
    params : mapping of str to str
        Parameters, with names that MLflow allows.
    run_id : str or None
        Id of an existing run, which is not ended; None creates a run that has ended.
    tags : mapping of str to str
        Tags that the run does not have yet.
    files : mapping of str to bytes
        Artifacts of an existing run, by path.
    name, start, end, status
        Attributes of a new run; times in milliseconds since the epoch.
    """

    metrics: Sequence[Measured]
    params: Mapping[str, str]
    run_id: str | None = None
    name: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Base64Bytes] = field(default_factory=dict)
    start: int = 0
    end: int = 0
    status: str = "FINISHED"


#: JSON serialization of runs.
BATCH: Final = TypeAdapter(list[RunContent], config=ConfigDict(ser_json_inf_nan="constants"))


class SweepRuns:
    """The runs of one sweep in one store.

    Parameters
    ----------
    client : MlflowClient
        Client of an open store.
    sweep : Sweep
        The sweep.
    archive : Archive
        Archive of the records; its folder identifies the driver.

    Raises
    ------
    StoreUnavailable
        Raised if the experiment was deleted in the store.
    """

    def __init__(self, client: MlflowClient, sweep: Sweep, archive: Archive) -> None:
        self._client = client
        self._sweep = sweep
        self._owner = archive.owner
        self._varied = tuple(sweep.sweep_params.get("axes") or ())
        tags = schema.EXPERIMENT_TAGS
        experiment = make_experiment(client, sweep.experiment, archive.output, tags)
        self.experiment_id = str(experiment.experiment_id)
        self._write = writer(client, experiment)
        # Set before listing runs, so that a driver that misses the tag has its runs listed here.
        client.set_experiment_tag(self.experiment_id, schema.DRIVER + self._owner, "")
        self._alone = True
        self.info = self._open_parent()
        self.parent_id, self.status = str(self.info.run_id), str(self.info.status)
        self._found: dict[str, list[_ExistingRun]] = {}
        # One listing instead of a search per cell, which slows down as runs are added.
        self._list_runs(schema.KIND_CELL)

    def _list_runs(self, kind: str) -> None:
        where = schema.tagged({schema.KIND: kind})
        for run in search_runs(self._client, self.experiment_id, where, deleted=True):
            found = _ExistingRun.of(run)
            self._found.setdefault(found.key, []).append(found)

    def keep(self, key: str, digest: str, *, overwrite: bool = True) -> str | None:
        """Return the id of the complete run of a record, and delete other runs with its key.

        These are incomplete after a crash, or of an older record. Runs that another driver is
        writing are not deleted. A run of this sweep that a user deleted counts as complete.
        Without `overwrite`, runs are only deleted if a complete one exists.
        """
        kept: _ExistingRun | None = None
        others = []
        for run in self._found.get(key, []):
            whole = run.digest == digest and run.status in _COMPLETE
            if run.deleted:
                if whole and run.parent == self.parent_id:
                    kept = kept or run
            elif whole and kept is None:
                kept = run
                if run.parent != self.parent_id:
                    self._client.set_tag(run.id, schema.PARENT, self.parent_id)
            elif not run.claimed_by_other(self._owner):
                others.append(run)
        if kept is None and not overwrite:
            return None
        for run in others:
            self._delete_cell(run)
        self._found[key] = [kept] if kept else []
        return kept.id if kept else None

    def write_cell(self, record: CellRecord, figures: Mapping[str, bytes]) -> str:
        """Write a cell with its trials and artifacts unless it exists, and return its run id."""
        text = record.to_json()
        digest = text_digest(text)
        if (there := self.keep(record.key, digest)) is not None:
            return there
        if self.status != "RUNNING":
            self._client.update_run(self.parent_id, status="RUNNING")
            self.status = "RUNNING"
        tags = {
            schema.PARENT: self.parent_id,
            schema.CLAIM: f"{self._owner} {time.time():.0f}",
            **_cell_tags(record, self._varied),
        }
        name = cell_name(record, self._varied)
        made = self._new_run(schema.KIND_CELL, name, tags, start=record.started_ms)
        run = _ExistingRun.of(made)
        self._found[record.key] = [run]
        if inputs := _dataset_inputs(record):
            self._client.log_inputs(run.id, inputs)
        files = {schema.CELL_FILE: sealed(text).encode(), **figures}
        if record.scheme is not None:
            files[schema.SCHEME_FILE] = json.dumps(record.scheme, indent=2).encode()
            if has_chosen(record):
                files |= scheme_model(record.scheme, run_id=run.id)
        own = RunContent(
            run_id=run.id,
            metrics=_cell_metrics(record),
            params=_to_params({**record.identity, **record.params}),
            tags={schema.RECORD_DIGEST: digest},
            files=files,
        )
        trials = chosen(record, self._sweep.trials)
        self._write([own, *(self._trial_content(trial, record, run.id) for trial in trials)])
        other = self._find_competitor(record.status, name, run)
        if other is None:
            self._client.set_terminated(run.id, record.status, end_time=record.finished_ms)
        else:
            self._delete_cell(run)
        kept = replace(other or run, digest=digest, status=record.status)
        self._found[record.key] = [kept]
        return kept.id

    def _find_competitor(self, status: str, name: str, own: _ExistingRun) -> _ExistingRun | None:
        """Return a run of the same cell by a driver with another output folder, if it is kept.

        Runs that existed at the start have been deleted. A driver writes the digest of its run
        before it searches here, so at least one of two drivers sees the other. Of two RUNNING
        runs the one with the lower id is kept; if the other one has a digest, its driver may have
        searched before this run was created, so wait until it ends.
        """
        if self._alone:  # Reading the tags is much cheaper for a server than a search.
            tags = self._client.get_experiment(self.experiment_id).tags
            drivers = {name for name in tags if name.startswith(schema.DRIVER)}
            self._alone = drivers == {schema.DRIVER + self._owner}
        if self._alone:
            return None
        # Filter by name, which is faster than a filter by tags.
        same = f"attributes.run_name = '{name}' and attributes.run_id != '{own.id}'"
        while True:
            undecided = False
            for other in map(_ExistingRun.of, self._search(same)):
                if other.key != own.key:
                    continue
                if other.status in ("FINISHED", status):
                    return other
                if not other.claimed_by_other(self._owner):
                    self._delete_cell(other)
                elif other.id < own.id:
                    return other
                else:
                    undecided = undecided or bool(other.digest)
            if not undecided:
                return None
            time.sleep(_POLL_SECONDS)

    def forget_cell(self, key: str) -> None:
        """Delete the incomplete runs of a cell that could not be recorded."""
        for run in self._found.get(key, []):
            if not run.deleted and run.status not in _COMPLETE:
                self._delete_cell(run)

    def write_scorings(self, scorings: Iterable[ScoringRecord]) -> None:
        """Write one run per scored table, replacing runs of older records."""
        # Listed as late as possible: another driver of the sweep may have written some.
        self._list_runs(schema.KIND_SCORING)
        missing = [
            scoring for scoring in scorings if self.keep(scoring.key, scoring.digest) is None
        ]
        self._write(map(self._scoring_content, missing))

    def _scoring_content(self, scoring: ScoringRecord) -> RunContent:
        who = scoring.identity
        name = f"scoring {who['task']} {who['shots']}-shot seed {who['seed']} {who['model']}"
        return RunContent(
            metrics=_metrics(scoring.metrics, scoring.finished_ms),
            params=_to_params({**who, **scoring.params}),
            name=schema.shorten(name, schema.NAME_LIMIT),
            tags={
                **self._common_tags(schema.KIND_SCORING),
                schema.PARENT: self.parent_id,
                schema.TABLE_KEY: scoring.key,
                schema.RECORD_DIGEST: scoring.digest,
                **{f"dcs.{name}": str(value) for name, value in who.items() if value is not None},
            },
            start=scoring.started_ms,
            end=scoring.finished_ms,
        )

    def write_summary(self, cells: Sequence[CellRecord]) -> None:
        """Write the tables and metrics of the parent run, replacing earlier ones."""
        from mlflow.entities import Metric, RunTag

        self._join_earlier_parent()
        board = leaderboard(cells)
        files = table_files(cells, board)
        log_files(self._client.tracking_uri, self.info.artifact_uri, files)
        now = time.time_ns() // 1_000_000
        figures = {
            "cells/finished": sum(cell.finished for cell in cells),
            "cells/failed": sum(not cell.finished for cell in cells),
            **leaderboard_metrics(board),
        }
        note = schema.shorten(files[schema.LEADERBOARD_TEXT], schema.TAG_LIMIT)
        # `mlflow.load_table` requires this format and order of keys.
        listed = json.dumps(
            [{"path": name, "type": "table"} for name in files if name.endswith(".json")]
        )
        self._client.log_batch(
            self.parent_id,
            [Metric(*metric) for metric in _metrics(figures, now)[:_MAX_METRICS]],
            tags=[RunTag(schema.NOTE, note), RunTag(schema.LOGGED_ARTIFACTS, listed)],
        )

    def write_figures(self, figures: Mapping[str, bytes]) -> None:
        """Log figures to the parent run, replacing earlier ones."""
        log_files(self._client.tracking_uri, self.info.artifact_uri, figures)

    def end(self, status: str) -> None:
        """End the parent run."""
        self._client.set_terminated(self.parent_id, status)
        self.status = status

    def _open_parent(self) -> RunInfo:
        """Return the parent run of the sweep, and create it if it does not exist."""
        from mlflow.entities import Param

        sweep = self._sweep
        parent = self._find_parent()
        if parent is None:
            name = sweep.run_name or sweep.experiment
            made = self._new_run(schema.KIND_SWEEP, name, _author_tags())
            # Another driver may have created one at the same time; both use the earliest.
            parent = self._find_parent() or made
            if parent.info.run_id != made.info.run_id:
                self._delete_run(made.info.run_id)
        had = parent.data.params
        new = {
            key: value for key, value in _to_params(sweep.sweep_params).items() if key not in had
        }
        params = [Param(key, value) for key, value in new.items()]
        self._client.log_batch(parent.info.run_id, params=params)
        return parent.info

    def _find_parent(self) -> Run | None:
        own = {schema.KIND: schema.KIND_SWEEP, schema.SWEEP_KEY: self._sweep.sweep_key}
        return next(self._search(schema.tagged(own)), None)

    def _join_earlier_parent(self) -> None:
        """Move the cells to an earlier parent run, which may have become visible only now."""
        first, own = self._find_parent(), self.parent_id
        if first is None or first.info.run_id == own:
            return
        self.info, self.parent_id = first.info, str(first.info.run_id)
        for cell in list(self._search(schema.tagged({schema.PARENT: own}))):
            self._client.set_tag(cell.info.run_id, schema.PARENT, self.parent_id)
        self._delete_run(own)

    def _delete_cell(self, cell: _ExistingRun) -> None:
        trials = schema.tagged({schema.KIND: schema.KIND_TRIAL, schema.PARENT: cell.id})
        for run_id in (*[run.info.run_id for run in self._search(trials)], cell.id):
            self._delete_run(run_id)

    def _delete_run(self, run_id: str) -> None:
        # Distinguishes it from a run that a user deletes, even if its driver ends it meanwhile.
        self._client.set_tag(run_id, schema.RECORD_DIGEST, "")
        # A deleted run can be restored and must not be RUNNING then.
        self._client.set_terminated(run_id, "KILLED")
        self._client.delete_run(run_id)

    def _search(self, where: str) -> Iterator[Run]:
        return search_runs(self._client, self.experiment_id, where)

    def _new_run(
        self, kind: str, name: str, tags: Mapping[str, str], *, start: int | None = None
    ) -> Run:
        tags = {**self._common_tags(kind), **tags}
        return self._client.create_run(
            self.experiment_id, start_time=start, tags=tags, run_name=name
        )

    def _common_tags(self, kind: str) -> dict[str, str]:
        return {
            schema.KIND: kind,
            schema.SCHEMA: schema.SCHEMA_VERSION,
            schema.SWEEP: self._sweep.experiment,
            schema.SWEEP_KEY: self._sweep.sweep_key,
        }

    def _trial_content(self, trial: TrialRecord, record: CellRecord, parent: str) -> RunContent:
        tags = {
            **self._common_tags(schema.KIND_TRIAL),
            schema.PARENT: parent,
            schema.CELL_KEY: record.key,
            schema.TRIAL_NUMBER: str(trial.number),
            schema.TRIAL_STATE: trial.state,
        }
        end = trial.started_ms + round(1000 * trial.seconds)
        values = {**trial.metrics, **({} if trial.value is None else {"value": trial.value})}
        return RunContent(
            metrics=_metrics(values, end),
            params=_to_params(trial.params),
            name=f"trial {trial.number}",
            tags=tags,
            start=trial.started_ms,
            end=end,
            status="FAILED" if trial.state == "FAIL" else "FINISHED",
        )


def chosen(record: CellRecord, trials: str | int) -> list[TrialRecord]:
    """Return the trials of a cell that get runs: all, none, or a number of the best."""
    if isinstance(trials, str):
        return list(record.trials) if trials == "all" else []
    sign = -1.0 if record.direction == "maximize" else 1.0
    # A trial without a score, or with NaN, is never among the best.
    scored = sorted(
        (sign * score, trial.number)
        for trial in record.trials
        if (score := trial_score(trial)) is not None and score == score
    )
    best = {number for _, number in scored[:trials]}
    return [trial for trial in record.trials if trial.number in best]


def thin(length: int, limit: int) -> list[int]:
    """Return at most `limit` evenly spaced indices of ``range(length)``, including the last."""
    return sorted({round(i) for i in np.linspace(length - 1, 0, min(length, limit))})


def cell_name(record: CellRecord, varied: Collection[str] = ()) -> str:
    """Return the run name of a cell, without quotes so that it can be used in a filter.

    Parameters
    ----------
    record : CellRecord
        The cell.
    varied : collection of str
        Settings that the sweep varies; the name contains each of them.
    """
    forms = {"method": "{}", "task": "{}", "shots": "{}-shot", "seed": "seed {}", "model": "{}"}
    who = record.who
    if who["method"] == "icl":
        who["method"] = "uncorrected"
    if who["model"] is not None:  # The last part of a path or of a name on the hub.
        who["model"] = str(who["model"]).rstrip("/").rpartition("/")[2]
    parts = [form.format(who[name]) for name, form in forms.items() if who[name] is not None]
    words = " ".join(dict.fromkeys(parts)) or record.key
    name = ", ".join(filter(None, (words, own_setting(record, varied))))
    return schema.shorten(name.replace("'", "’"), schema.NAME_LIMIT)


def cell_note(record: CellRecord) -> str:
    """Return the description of a cell: its result and scheme in words, or its error."""
    if record.error is not None:
        return f"```text\n{record.error}\n```"
    lines = [
        f"{title}: {percent(record.metrics.get(f'uncorrected/test/{name}'))} % of the test rows "
        f"uncorrected, {percent(record.metrics.get(f'test/{name}'))} % corrected."
        for name, title in (("accuracy", "Accuracy"), ("cobias", "COBias"))
    ]
    if record.scheme is not None:
        lines += CorrectionScheme.from_dict(record.scheme).explain()
    return "\n".join(f"- {line}" for line in lines)


def _author_tags() -> dict[str, str]:
    tags = {"mlflow.user": user_name(), "mlflow.source.name": "dcs", "mlflow.source.type": "LOCAL"}
    commit = git_commit()
    return tags | ({"mlflow.source.git.commit": commit} if commit else {})


def _cell_tags(record: CellRecord, varied: Collection[str]) -> dict[str, str]:
    known = {**record.identity, **record.who}
    identity = {
        f"dcs.{name}": schema.shorten(known[name], schema.TAG_LIMIT)
        for name in (*schema.IDENTITY_TAGS, *schema.DIGESTS)
        if known.get(name) is not None
    }
    note = schema.shorten(cell_note(record), schema.TAG_LIMIT)
    own = {schema.CELL_KEY: record.key, schema.NOTE: note}
    return identity | own | setting_tags(record, varied) | _author_tags()


def setting_tags(record: CellRecord, varied: Collection[str] = ()) -> dict[str, str]:
    """Return the tags of the settings that a sweep varies."""
    size = record.identity.get(schema.OPTIMIZATION_SIZE)
    tuner = record.identity.get("tuner") or {}
    values = {
        **{name: tuner[name] or "none" for name in varied if name in tuner},
        schema.OBJECTIVE: objective_label(record),
        schema.OPTIMIZATION_SIZE: "full" if size is None else size,
    }
    return {f"dcs.{name}": str(value) for name, value in values.items() if value is not None}


def _dataset_inputs(record: CellRecord) -> list[DatasetInput]:
    """Return the tables of a cell as MLflow datasets: metadata without the probabilities."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    who = [str(name) for name in (record.who["task"], record.who["model"]) if name is not None]
    classes = [str(name) for name in record.class_accuracies.get("class", [])]
    columns = [{"type": "double", "name": f"p:{name}", "required": True} for name in classes]
    columns.append({"type": "long", "name": "label", "required": True})
    inputs = []
    for split in ("optimization", "test"):
        digest = record.identity.get(f"{split}_digest")
        if digest is None:
            continue
        about = record.provenance.get("tables", {}).get(split, {})
        tags = {name: str(value) for name, value in {**about, "digest": digest}.items()}
        dataset = Dataset(
            name=schema.shorten(" ".join([*who, split]), 500),
            digest=str(digest)[: schema.DATASET_DIGEST_LIMIT],
            # A source type that MLflow can load, for data generated by a program.
            source_type="code",
            source=json.dumps({"tags": tags}),
            schema=json.dumps({"mlflow_colspec": columns}),
            profile=json.dumps({"num_rows": about.get("rows"), "num_classes": len(classes)}),
        )
        inputs.append(DatasetInput(dataset, [InputTag("mlflow.data.context", split)]))
    return inputs


def _cell_metrics(record: CellRecord) -> list[Measured]:
    at = record.finished_ms
    metrics = _metrics(record.metrics, at)
    span = (at - record.started_ms) / max(1, len(record.trace))
    for step in thin(len(record.trace), _MAX_TRACE_POINTS):
        when = int(record.started_ms + span * (step + 1))
        for column, value in zip(TRACE_COLUMNS, record.trace[step], strict=True):
            metrics.append((schema.TRACE_PREFIX + column, value, when, step))
    return metrics


def _to_params(values: Mapping[str, Any]) -> dict[str, str]:
    flat = schema.flatten(values)
    names = schema.safe_names(flat)
    return {
        names[name]: schema.shorten(
            value if isinstance(value, str | int | float) else json.dumps(value),
            schema.PARAM_LIMIT,
        )
        for name, value in flat.items()
    }


def _metrics(values: Mapping[str, float], when: int) -> list[Measured]:
    names = schema.safe_names(values)
    return [(names[name], value, when, 0) for name, value in values.items()]


def artifact_folder(experiment: Experiment, run_id: str) -> str:
    """Return the artifact URI of a run."""
    from mlflow.utils.uri import append_to_uri_path

    place = append_to_uri_path(  # type: ignore[no-untyped-call]
        experiment.artifact_location, run_id, "artifacts"
    )
    return str(place)


def writer(client: MlflowClient, experiment: Experiment) -> Callable[[Iterable[RunContent]], None]:
    """Return the fastest function that writes runs to an experiment of a store.

    In a database the runs are written atomically.
    """
    if not has_server(client.tracking_uri):
        return partial(_insert, client, experiment)
    return partial(_write_batch if _takes_batches(client) else _log_runs, client, experiment)


def _insert(client: MlflowClient, experiment: Experiment, runs: Iterable[RunContent]) -> None:
    """Write runs to a database and log their files."""
    runs = list(runs)
    insert_runs(client._tracking_client.store, experiment, runs)
    _log_files(client, experiment, runs)


def _log_files(client: MlflowClient, experiment: Experiment, runs: Iterable[RunContent]) -> None:
    for run in runs:
        if run.run_id is not None:
            log_files(client.tracking_uri, artifact_folder(experiment, run.run_id), run.files)


def _takes_batches(client: MlflowClient) -> bool:
    """Whether a server runs the app."""
    return bool(_send_request(client, "GET").status_code == 200)


def _send_request(client: MlflowClient, method: str, **options: Any) -> Any:
    """Send a request to a server with the credentials of MLflow's client."""
    from mlflow.utils.rest_utils import http_request

    credentials = client._tracking_client.store.get_host_creds()
    return http_request(credentials, PATH, method, **options)  # type: ignore[no-untyped-call]


def _write_batch(client: MlflowClient, experiment: Experiment, runs: Iterable[RunContent]) -> None:
    """Write runs in one request."""
    from mlflow.utils.rest_utils import verify_rest_response

    runs = list(runs)
    if not experiment.artifact_location.startswith("mlflow-artifacts:"):
        # The artifacts are not stored by the server.
        _log_files(client, experiment, runs)
        runs = [replace(run, files={}) for run in runs]
    where = {"experiment_id": experiment.experiment_id}
    answer = _send_request(client, "POST", params=where, data=BATCH.dump_json(runs))
    verify_rest_response(answer, PATH)


def _log_runs(client: MlflowClient, experiment: Experiment, runs: Iterable[RunContent]) -> None:
    """Write runs with MLflow's client."""
    from mlflow.entities import Metric, Param, RunTag

    for run in runs:
        metrics = [Metric(*metric) for metric in run.metrics]
        params = [Param(key, value) for key, value in run.params.items()]
        if run.run_id is not None:
            tags = [RunTag(key, value) for key, value in run.tags.items()]
            _log_files(client, experiment, [run])
            client.log_batch(run.run_id, metrics, params, tags, synchronous=True)
            continue
        made = client.create_run(
            experiment.experiment_id, start_time=run.start, tags=dict(run.tags), run_name=run.name
        )
        client.log_batch(made.info.run_id, metrics, params, synchronous=True)
        client.set_terminated(made.info.run_id, run.status, end_time=run.end)


def insert_runs(store: Any, experiment: Experiment, runs: Iterable[RunContent]) -> None:
    """Write runs, except for their files, to a database in one transaction.

    Parameters
    ----------
    store : mlflow.store.tracking.sqlalchemy_store.SqlAlchemyStore
        MLflow's store of the database.
    experiment : Experiment
        Experiment of the runs.
    runs : iterable of RunContent
        Content to write.
    """
    from mlflow.store.tracking.dbmodels import models
    from mlflow.utils.mlflow_tags import MLFLOW_RUN_NAME
    from sqlalchemy import insert

    # Runs are inserted first since all other rows reference them.
    rows: dict[Any, list[dict[str, Any]]] = defaultdict(list, {models.SqlRun: []})
    for run in runs:
        run_id, tags = run.run_id or uuid.uuid4().hex, dict(run.tags)
        if run.run_id is None:
            tags[MLFLOW_RUN_NAME] = run.name
            rows[models.SqlRun].append(
                _UNKNOWN_SOURCE
                | {
                    "run_uuid": run_id,
                    "name": run.name,
                    "status": run.status,
                    "start_time": run.start,
                    "end_time": run.end,
                    "lifecycle_stage": experiment.lifecycle_stage,
                    "artifact_uri": artifact_folder(experiment, run_id),
                    "experiment_id": int(experiment.experiment_id),
                }
            )
        for kind, texts in ((models.SqlTag, tags), (models.SqlParam, run.params)):
            for key, text in texts.items():
                rows[kind].append({"run_uuid": run_id, "key": key, "value": text})
        measured = []
        for name, number, timestamp, step in dict.fromkeys(run.metrics):
            is_nan, value = store.sanitize_metric_value(number)
            measured.append(
                {
                    "run_uuid": run_id,
                    "key": name,
                    "value": value,
                    "timestamp": timestamp,
                    "step": step,
                    "is_nan": is_nan,
                }
            )
        measured.sort(key=lambda row: (row["step"], row["timestamp"], row["value"]))
        rows[models.SqlMetric] += measured
        rows[models.SqlLatestMetric] += {row["key"]: row for row in measured}.values()
    with store.ManagedSessionMaker(read_only=False) as session:
        for kind, values in rows.items():
            if values:
                session.execute(insert(kind), values)
