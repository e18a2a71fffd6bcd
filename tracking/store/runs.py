"""Writes one sweep's runs to an open store: parent, cells, trials. No threads, no retries."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracking import schema
from tracking.records import TRACE_COLUMNS, CellRecord, TrialRecord
from tracking.results import summary
from tracking.results.frames import has_chosen
from tracking.store import _content
from tracking.store.client import check_active, search_runs
from tracking.store.destinations import DestinationInfo
from tracking.store.serving import save_scheme_model

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param, Run

_COMPLETE = ("FINISHED", "FAILED")


@dataclass(frozen=True, slots=True)
class _Found:
    """What must be known of a run that the store has already."""

    id: str
    status: str
    digest: str | None
    parent: str | None


class SweepRuns:
    """The runs of one sweep in one store.

    Parameters
    ----------
    client : MlflowClient
        An open store.
    info : DestinationInfo
        The sweep.
    location : str or None
        Where a new experiment keeps its artifacts; None leaves it to the server.

    Raises
    ------
    StoreUnavailable
        When the experiment was deleted in the store.
    """

    def __init__(
        self, client: MlflowClient, info: DestinationInfo, *, location: str | None
    ) -> None:
        self._client = client
        self._info = info
        self.experiment_id = self._experiment(location)
        self.parent_id = self._parent()
        self._listed: dict[str, list[_Found]] | None = None
        # Cells tried since the listing: what the store holds of them is looked up again.
        self._tried: set[str] = set()

    def write_cell(self, record: CellRecord, digest: str) -> str:
        """Write a cell once, with its trials and artifacts, and return its run id.

        A complete run of the same record is kept; anything else found under the cell's key, such
        as a run that a crash left half-written, is deleted first.
        """
        kept = self._keep(record.key, digest)
        if kept is not None:
            return kept
        self._tried.add(record.key)
        run = self._client.create_run(
            self.experiment_id,
            start_time=record.started_ms,
            tags=self._cell_tags(record, digest),
            run_name=_content.cell_name(record),
        )
        run_id = str(run.info.run_id)
        self._client.log_batch(run_id, self._cell_metrics(record), self._cell_params(record))
        if inputs := _content.datasets(record):
            self._client.log_inputs(run_id, inputs)
        scheme = record.scheme if has_chosen(record) else None
        self._log_files(run_id, _content.cell_files(record), scheme)
        for trial in _content.chosen(record, self._info.trials):
            self._write_trial(trial, record, run_id)
        self._client.set_terminated(run_id, record.status, end_time=record.finished_ms)
        return run_id

    def forget_cell(self, key: str) -> None:
        """Delete what an attempt left of a cell that the store does not take."""
        for run in [_found(run) for run in self._search(self._cells_where(key))]:
            if run.status not in _COMPLETE:
                self._delete(run)

    def write_summary(self, records: Iterable[CellRecord]) -> None:
        """Write the tables of the parent run, replacing earlier ones."""
        from mlflow.entities import Metric, RunTag

        cells = list(records)
        files = summary.table_files(cells)
        text = files[schema.LEADERBOARD_TEXT]
        self._log_files(self.parent_id, files)

        now = _content.now()
        counts = {
            "cells/finished": sum(cell.finished for cell in cells),
            "cells/failed": sum(not cell.finished for cell in cells),
        }
        listed = _content.logged_tables(name for name in files if name.endswith(".json"))
        self._client.log_batch(
            self.parent_id,
            [Metric(name, float(value), now, 0) for name, value in counts.items()],
            tags=[
                RunTag(schema.NOTE, schema.shorten(text, schema.TAG_LIMIT)),
                RunTag(schema.LOGGED_ARTIFACTS, listed),
            ],
        )

    def write_figures(self, figures: Mapping[str, bytes], *, run_id: str | None = None) -> None:
        """Keep figures with a run, by default that of the sweep, replacing earlier ones."""
        self._log_files(run_id or self.parent_id, figures)

    def _log_files(
        self,
        run_id: str,
        files: Mapping[str, str | bytes],
        scheme: Mapping[str, Any] | None = None,
    ) -> None:
        if not files:
            return
        with tempfile.TemporaryDirectory(prefix="dcs-") as folder:
            for name, content in files.items():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.encode() if isinstance(content, str) else content)
            if scheme is not None:
                save_scheme_model(Path(folder) / schema.MODEL_FOLDER, scheme, run_id=run_id)
            self._client.log_artifacts(run_id, folder)

    def end(self, status: str) -> None:
        """End the parent run."""
        self._client.set_terminated(self.parent_id, status)

    def _experiment(self, location: str | None) -> str:
        name = self._info.experiment
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            try:
                return str(self._client.create_experiment(name, artifact_location=location))
            except Exception:
                # Another driver may have been faster; otherwise the reason is said by the caller.
                experiment = self._client.get_experiment_by_name(name)
                if experiment is None:
                    raise
        check_active(experiment)
        return str(experiment.experiment_id)

    def _parent(self) -> str:
        info = self._info
        found = list(
            self._search(
                f"tags.`{schema.KIND}` = '{schema.KIND_SWEEP}' and "
                f"tags.`{schema.SWEEP_KEY}` = '{info.sweep_key}'"
            )
        )
        params = dict(_content.texts(info.sweep_params))
        if found:
            parent = min(found, key=lambda run: int(run.info.start_time))
            params = {k: v for k, v in params.items() if k not in parent.data.params}
            self._client.update_run(parent.info.run_id, status="RUNNING")
        else:
            parent = self._client.create_run(
                self.experiment_id,
                tags=self._common(schema.KIND_SWEEP) | _content.authorship(info.source),
                run_name=info.run_name or info.experiment,
            )
        run_id = str(parent.info.run_id)
        self._client.log_batch(run_id, params=_content.params(params))
        return run_id

    def _keep(self, key: str, digest: str) -> str | None:
        kept: str | None = None
        for run in self._runs_of(key):
            if kept is None and run.digest == digest and run.status in _COMPLETE:
                kept = run.id
                if run.parent != self.parent_id:
                    self._client.set_tag(run.id, schema.PARENT, self.parent_id)
            else:
                self._delete(run)
        return kept

    def _runs_of(self, key: str) -> list[_Found]:
        if key in self._tried:
            return [_found(run) for run in self._search(self._cells_where(key))]
        if self._listed is None:
            # One listing instead of a search per cell, which gets slower with every run.
            self._listed = {}
            for run in self._search(self._cells_where()):
                name = run.data.tags.get(schema.CELL_KEY, "")
                self._listed.setdefault(name, []).append(_found(run))
        return self._listed.get(key, [])

    def _delete(self, cell: _Found) -> None:
        where = (
            f"tags.`{schema.KIND}` = '{schema.KIND_TRIAL}' and "
            f"tags.`{schema.PARENT}` = '{cell.id}'"
        )
        for trial in [_found(run) for run in self._search(where)]:
            self._discard(trial)
        self._discard(cell)

    def _discard(self, run: _Found) -> None:
        # A deleted run can be restored; it should not then look as if it still ran.
        if run.status not in _COMPLETE:
            self._client.set_terminated(run.id, "KILLED")
        self._client.delete_run(run.id)

    def _search(self, where: str) -> Iterator[Run]:
        return search_runs(self._client, self.experiment_id, where)

    def _cells_where(self, key: str | None = None) -> str:
        where = f"tags.`{schema.KIND}` = '{schema.KIND_CELL}'"
        return where if key is None else f"{where} and tags.`{schema.CELL_KEY}` = '{key}'"

    def _common(self, kind: str) -> dict[str, str]:
        return {
            schema.KIND: kind,
            schema.SCHEMA: schema.SCHEMA_VERSION,
            schema.SWEEP: self._info.experiment,
            schema.SWEEP_KEY: self._info.sweep_key,
        }

    def _cell_tags(self, record: CellRecord, digest: str) -> dict[str, str]:
        tags = self._common(schema.KIND_CELL) | _content.authorship(self._info.source)
        tags |= {
            schema.PARENT: self.parent_id,
            schema.CELL_KEY: record.key,
            schema.RECORD_DIGEST: digest,
        }
        for name in schema.IDENTITY_TAGS:
            if record.identity.get(name) is not None:
                tags[f"dcs.{name}"] = schema.shorten(record.identity[name], schema.TAG_LIMIT)
        tags |= _content.setting_tags(record)
        for name in schema.DIGESTS:
            if record.identity.get(name) is not None:
                tags[f"dcs.{name}"] = str(record.identity[name])
        logged = [schema.TRIALS_FILE] if record.trials else []
        if record.class_accuracies:
            logged.append(schema.CLASS_ACCURACIES_FILE)
        return tags | ({schema.LOGGED_ARTIFACTS: _content.logged_tables(logged)} if logged else {})

    def _cell_params(self, record: CellRecord) -> list[Param]:
        return _content.params(dict(_content.texts({**record.identity, **record.params})))

    def _cell_metrics(self, record: CellRecord) -> list[Metric]:
        from mlflow.entities import Metric

        at = record.finished_ms
        names = schema.safe_names(record.metrics)
        metrics = [Metric(names[k], v, at, 0) for k, v in record.metrics.items()]
        steps = _content.thin(len(record.trace), self._info.trace_points)
        span = (at - record.started_ms) / max(1, len(record.trace))
        for step in steps:
            when = int(record.started_ms + span * (step + 1))
            for column, value in zip(TRACE_COLUMNS, record.trace[step], strict=True):
                metrics.append(Metric(schema.TRACE_PREFIX + column, value, when, step))
        return metrics

    def _write_trial(self, trial: TrialRecord, record: CellRecord, parent: str) -> None:
        from mlflow.entities import Metric

        tags = self._common(schema.KIND_TRIAL) | {
            schema.PARENT: parent,
            schema.CELL_KEY: record.key,
            schema.TRIAL_NUMBER: str(trial.number),
            schema.TRIAL_STATE: trial.state,
        }
        run = self._client.create_run(
            self.experiment_id,
            start_time=trial.started_ms,
            tags=tags,
            run_name=f"trial {trial.number}",
        )
        run_id = run.info.run_id
        end = trial.started_ms + round(1000 * trial.seconds)
        values = {**trial.metrics, **({} if trial.value is None else {"value": trial.value})}
        names = schema.safe_names(values)
        self._client.log_batch(
            run_id,
            [Metric(names[k], v, end, 0) for k, v in values.items()],
            _content.params(dict(_content.texts(trial.params))),
        )
        status = "FAILED" if trial.state == "FAIL" else "FINISHED"
        self._client.set_terminated(run_id, status, end_time=end)


def _found(run: Run) -> _Found:
    tags = run.data.tags
    return _Found(
        id=str(run.info.run_id),
        status=str(run.info.status),
        digest=tags.get(schema.RECORD_DIGEST),
        parent=tags.get(schema.PARENT),
    )
