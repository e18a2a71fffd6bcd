"""Runs of one sweep in an open store: parent, cells, trials. No threads of its own, no retries.

A cell costs eight requests: its run with all tags, its datasets, one batch of metrics and
parameters, the address of its artifacts, three artifacts, and its end.
"""

from __future__ import annotations

import json
import math
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dcs.schemes.scheme import CorrectionScheme
from dcs_tracking import schema
from dcs_tracking.archive import Archive, Sweep
from dcs_tracking.environment import user_name
from dcs_tracking.records import CellRecord, ScoringRecord, now_ms, sealed, text_digest
from dcs_tracking.results.cells import MEASURES, Cells, look_of
from dcs_tracking.results.sweep_tables import main_results, table_files
from dcs_tracking.store import views
from dcs_tracking.store.client import log_files, make_experiment, search_runs, store_name
from dcs_tracking.store.serving import log_model

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Run, RunInfo

#: Maximum number of trials logged as step metrics, three each, within the limit of 1,000 metrics
#: in one request; the table of trials contains all.
_MAX_TRIAL_POINTS = 250

#: Beginning of descriptions that are written here.
_NOTE = "Compare: "

#: Name, value, milliseconds since the epoch, step.
Measured = tuple[str, float, int, int]


@dataclass(frozen=True, slots=True)
class _KnownRun:
    """A run of a cell or table that the store has."""

    id: str
    status: str
    digest: str | None
    parent: str | None

    @property
    def complete(self) -> bool:
        """Whether it has ended with a result, or the error of its cell."""
        return self.status in ("FINISHED", "FAILED")


@dataclass(slots=True)
class KnownRuns:
    """The runs of cells and tables that a store is known to have, also after an interruption."""

    by_key: dict[str, list[_KnownRun]] = field(default_factory=dict)
    #: Keys of which a request failed, so that their runs are not known any more.
    doubtful: set[str] = field(default_factory=set)
    #: Whether other keys have no run.
    listed: bool = False


class SweepRuns:
    """The runs of one sweep in one store.

    Parameters
    ----------
    client : MlflowClient
        Client of an open store.
    sweep : Sweep
        The sweep.
    archive : Archive
        Archive of the records.
    recheck : bool
        Whether to list all runs of the store, also if every cell is noted as recorded.
    known : KnownRuns, optional
        What the store told before it was away for some time.
    """

    def __init__(
        self,
        client: MlflowClient,
        sweep: Sweep,
        archive: Archive,
        *,
        recheck: bool = False,
        known: KnownRuns | None = None,
    ) -> None:
        self._client = client
        self._sweep = sweep
        self._archive = archive
        self._varied = sweep.varied
        self._store = store_name(client.tracking_uri, archive.output)
        experiment = make_experiment(
            client, sweep.experiment, archive.output, views.EXPERIMENT_KIND
        )
        self.experiment_id = str(experiment.experiment_id)
        self._tag_experiment(experiment.tags, ())
        self.info = self._open_parent()
        self.parent_id, self.status = str(self.info.run_id), str(self.info.status)
        self._noted = self._read_noted()
        self._recheck = recheck
        # A new parent run is of another store.
        self.known = known if known and self._resumed else KnownRuns()
        self._dataset_lock, self._listing_lock = threading.Lock(), threading.Lock()

    def _read_noted(self) -> dict[str, _KnownRun]:
        """Return the runs of cells that were noted as complete, as far as deleted ones tell.

        None of them if the parent run is new: the store is then another one.
        """
        noted = self._archive.runs(self._sweep.sweep_key, self._store) if self._resumed else {}
        if not noted:
            return {}
        deleted = self._search({schema.KIND: schema.KIND_CELL}, deleted=True)
        gone = {run.info.run_id for run in deleted}
        return {
            key: _KnownRun(run_id, "FINISHED", digest, self.parent_id)
            for key, (run_id, experiment_id, digest) in noted.items()
            if experiment_id == self.experiment_id and run_id not in gone
        }

    def note(self, key: str, run_id: str, digest: str) -> None:
        """Note the run of a cell on disk, where commands that read results find it."""
        run = _KnownRun(run_id, "FINISHED", digest, self.parent_id)
        if self._noted.get(key) != run:
            about = (run_id, self.experiment_id, digest, self._store)
            self._archive.add_run(self._sweep.sweep_key, key, *about)
            self._noted[key] = run

    def _runs_of(self, key: str) -> list[_KnownRun]:
        """Return the runs of a cell or table; those of all cells are listed at the first."""
        known = self.known
        with self._listing_lock:
            if key in known.doubtful:
                self.look_up(key)
            # One listing instead of a search per cell, which slows down as runs are added.
            elif key not in known.by_key and not known.listed:
                for each, runs in self._list_runs({schema.KIND: schema.KIND_CELL}).items():
                    known.by_key.setdefault(each, runs)
                known.listed = True
        return known.by_key.get(key, [])

    def _list_runs(self, wanted: Mapping[str, str]) -> dict[str, list[_KnownRun]]:
        """Return the runs that have these tags, by the key of their cell or table."""
        found: defaultdict[str, list[_KnownRun]] = defaultdict(list)
        for run in self._search(wanted):
            tags = run.data.tags
            digest, parent = tags.get(schema.RECORD_DIGEST), tags.get(schema.PARENT)
            known = _KnownRun(str(run.info.run_id), run.info.status, digest, parent)
            found[tags.get(schema.CELL_KEY) or tags.get(schema.TABLE_KEY, known.id)].append(known)
        return found

    def look_up(self, key: str) -> None:
        """Search for the runs of a cell again, after a request that failed."""
        own = {schema.KIND: schema.KIND_CELL, schema.CELL_KEY: key}
        self.known.by_key[key] = self._list_runs(own).get(key, [])
        self.known.doubtful.discard(key)

    def reconcile(self, key: str, digest: str) -> str | None:
        """Return the id of the complete run of a record, and delete the others of its key then.

        These are incomplete after a crash, of an older record, or doubles of another driver.
        """
        noted = self._noted.get(key)
        if noted is not None and noted.digest == digest and not self._recheck:
            return noted.id
        runs = self._runs_of(key)
        kept = next((run for run in runs if run.complete and run.digest == digest), None)
        if kept is None:
            return None
        self._delete_runs(key, kept)
        if kept.parent != self.parent_id:
            self._adopt(key, kept.id)
        return kept.id

    def _delete_runs(self, key: str, *kept: _KnownRun) -> None:
        """Delete the runs of a cell, except for those to be kept."""
        for run in self._runs_of(key):
            if run not in kept:
                self._delete_cell(run.id)
        self.known.by_key[key] = [*kept]

    def _adopt(self, key: str, run_id: str) -> None:
        """Move a run of an earlier sweep, which may vary less, to this one."""
        tags, metrics = {schema.PARENT: self.parent_id}, []
        if (record := self._archive.load([key]).get(key)) is not None:
            tags |= _cell_tags(record, self._varied)
            metrics = _metrics(_shown_metrics(record, self._varied), record.finished_ms)
            self._client.update_run(run_id, name=views.cell_name(record, self._varied))
        self._log(run_id, metrics, tags=tags)

    def write_cell(self, record: CellRecord) -> str:
        """Write a cell with its trials and artifacts unless it exists, and return its run id."""
        text = record.to_json()
        digest = text_digest(text)
        if (there := self.reconcile(record.key, digest)) is not None:
            return there
        self._delete_runs(record.key)
        if self.status != "RUNNING":
            self._client.update_run(self.parent_id, status="RUNNING")
            self.status = "RUNNING"
        files = {schema.CELL_FILE: sealed(text)}
        if record.scheme is not None:
            files[schema.SCHEME_FILE] = json.dumps(record.scheme, indent=2)
        # The run counts as complete only once it has ended.
        tags = {schema.PARENT: self.parent_id, schema.RECORD_DIGEST: digest}
        tags |= _cell_tags(record, self._varied)
        if record.trials and self._sweep.trials != "none":
            files[schema.TRIALS_FILE] = trials_table(record)
            tags |= schema.logged_tables([schema.TRIALS_FILE])
        name = views.cell_name(record, self._varied)
        run_id = self._new_run(schema.KIND_CELL, name, tags, start=record.started_ms)
        if inputs := _dataset_inputs(record):
            # Of two requests at the same time that create a dataset, a server refuses one.
            with self._dataset_lock:
                self._client.log_inputs(run_id, inputs)
        metrics = _metrics(_shown_metrics(record, self._varied), record.finished_ms)
        if self._sweep.trials != "none":
            metrics += _trial_metrics(record)
        self._log(run_id, metrics, params=views.cell_params(record, self._varied))
        log_files(self._client, run_id, files)
        self._client.set_terminated(run_id, record.status, end_time=record.finished_ms)
        complete = _KnownRun(run_id, record.status, digest, self.parent_id)
        self.known.by_key[record.key] = [complete]
        return run_id

    def _log(
        self,
        run_id: str,
        metrics: Iterable[Measured] = (),
        *,
        params: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        from mlflow.entities import Metric, Param, RunTag

        self._client.log_batch(
            run_id,
            [Metric(*metric) for metric in metrics],
            [Param(*param) for param in schema.as_params(params or {}).items()],
            [RunTag(*tag) for tag in (tags or {}).items()],
            synchronous=True,
        )

    def remove_doubles(self) -> None:
        """Delete all but one of the complete runs of a cell, written by several drivers."""
        for runs in self._list_runs({schema.KIND: schema.KIND_CELL}).values():
            # By id, so that drivers that end at the same time keep the same run.
            complete = sorted((run.status != "FINISHED", run.id) for run in runs if run.complete)
            for _, run_id in complete[1:]:
                self._delete_cell(run_id)

    def forget_cell(self, key: str) -> None:
        """Delete the incomplete runs of a cell that could not be recorded."""
        self._delete_runs(key, *(run for run in self._runs_of(key) if run.complete))

    def remove_cell(self, key: str) -> bool:
        """Delete the noted run of a cell that the sweep has no longer; return whether it had one.

        Models stay, since they may be registered.
        """
        if key not in self._noted:
            return False
        found = [*self._search({schema.CELL_KEY: key, schema.PARENT: self.parent_id})]
        for run in found:
            self._delete_cell(run.info.run_id)
        return bool(found)

    def write_scorings(self, scorings: Iterable[ScoringRecord]) -> None:
        """Write one run per scored table, replacing runs of older records."""
        # Listed as late as possible: another driver of the sweep may have written some.
        there = self._list_runs({schema.KIND: schema.KIND_SCORING})
        for scoring in scorings:
            self.known.by_key[scoring.key] = there.get(scoring.key, [])
            if self.reconcile(scoring.key, scoring.digest) is None:
                self._delete_runs(scoring.key)
                self._write_scoring(scoring)

    def _write_scoring(self, scoring: ScoringRecord) -> None:
        who = scoring.identity
        name = f"scoring {who['task']} {who['shots']}-shot seed {who['seed']} {who['model']}"
        tags = {schema.PARENT: self.parent_id, schema.RECORD_DIGEST: scoring.digest}
        tags |= {f"dcs.{name}": str(value) for name, value in who.items() if value is not None}
        tags[schema.TABLE_KEY] = scoring.key
        name = schema.shorten(name, schema.NAME_LIMIT)
        run_id = self._new_run(schema.KIND_SCORING, name, tags, start=scoring.started_ms)
        metrics = _metrics(scoring.metrics, scoring.finished_ms)
        self._log(run_id, metrics, params={**who, **scoring.params})
        self._client.set_terminated(run_id, end_time=scoring.finished_ms)

    def write_summary(self, cells: Cells, failed: int) -> None:
        """Write the tables and metrics of the parent run, replacing earlier ones."""
        files = table_files(cells)
        log_files(self._client, self.parent_id, files)
        metrics = {"cells/finished": len(cells.records), "cells/failed": failed}
        experiment = self._client.get_experiment(self.experiment_id)
        note = self._tag_experiment(experiment.tags, cells.records)
        note = schema.shorten(f"{note}\n\n{main_results(cells).to_markdown()}", schema.TAG_LIMIT)
        listed = schema.logged_tables(name for name in files if name.endswith(".json"))
        # The store shows the latest value, by a clock that may have been set back.
        known = self._client.get_metric_history(self.parent_id, "cells/finished")
        now = max([now_ms(), *(metric.timestamp + 1 for metric in known)])
        self._log(self.parent_id, _metrics(metrics, now), tags={schema.NOTE: note, **listed})
        if cells.records and experiment.tags.get(schema.NOTE, _NOTE).startswith(_NOTE):
            self._set_experiment_tag(schema.NOTE, note)

    def _set_experiment_tag(self, tag: str, value: str) -> None:
        """Set a tag of the experiment, which another driver may add at the same time."""
        from mlflow.exceptions import MlflowException

        try:
            self._client.set_experiment_tag(self.experiment_id, tag, value)
        except MlflowException:
            # Of two drivers that both found no tag, one fails to add it; now it is replaced.
            self._client.set_experiment_tag(self.experiment_id, tag, value)

    def _tag_experiment(self, tags: Mapping[str, str], cells: Sequence[CellRecord]) -> str:
        """Write the views of cells as tags of the experiment; return a line of links to them.

        Without cells, only views that do not exist are written.
        """
        groups: dict[str, dict[str, list[CellRecord]]] = {
            name: defaultdict(list) for name in views.group_names(self._varied)
        }
        for cell in cells:
            for name, value in views.group_tags(cell, self._varied).items():
                groups[name][value].append(cell)
        # Of more groups MLflow would load some only, and their list would not fit in a tag.
        for name in [name for name, own in groups.items() if len(own) > views.MAX_RUNS]:
            del groups[name]
            if (tag := f"{views.VIEW}{name}") in tags:
                self._client.delete_experiment_tag(self.experiment_id, tag)
        tasks = list(dict.fromkeys(cell.who["task"] for cell in cells))
        columns = dict.fromkeys([*self._varied, *schema.IDENTITY_TAGS])
        averaged = len(cells) > views.MAX_RUNS
        if averaged:
            self._write_means(groups)
        charted = tasks if len(tasks) > 1 else ()
        found = views.view_tags(columns, groups, charted, averaged=averaged)
        for tag, value in found.items():
            if tags.get(tag) != value and (tasks or tag not in tags):
                self._set_experiment_tag(tag, value)
        links = views.view_links(self.experiment_id, found)
        return _NOTE + " · ".join(f"[{name}]({link})" for name, link in links.items())

    def _write_means(self, groups: Mapping[str, Mapping[str, Sequence[CellRecord]]]) -> None:
        """Write or update a run of the means of each group of cells, for sweeps of many cells."""
        own = {schema.KIND: schema.KIND_MEAN, schema.SWEEP_KEY: self._sweep.sweep_key}
        found = [*self._search(own)]
        there = {(r.data.tags[schema.MEAN_OF], r.info.run_name): str(r.info.run_id) for r in found}
        now = max([now_ms(), *((r.info.end_time or 0) + 1 for r in found)])
        by_group = [(name, *group) for name, own in groups.items() for group in own.items()]
        for name, value, cells in by_group:
            values: defaultdict[str, list[float]] = defaultdict(list)
            for cell in cells:
                for metric, figure in _shown_metrics(cell, self._varied).items():
                    values[metric].append(figure)
            tags = {schema.PARENT: self.parent_id, schema.MEAN_OF: name, f"dcs.{name}": value}
            run_id = there.get((name, value)) or self._new_run(schema.KIND_MEAN, value, tags)
            means = {metric: math.fsum(each) / len(each) for metric, each in values.items()}
            self._log(run_id, _metrics(means, now))
            self._client.set_terminated(run_id, end_time=now)

    def write_figures(self, figures: Mapping[str, bytes]) -> None:
        """Log figures to the parent run, replacing earlier ones."""
        log_files(self._client, self.parent_id, figures)

    def write_models(self, cells: Cells) -> None:
        """Log the schemes to serve as models, unless they are models already.

        Of a sweep the best of each model and task; of `dcs tune` the scheme of its method, fitted
        on all labelled rows.
        """
        method = self._sweep.sweep_params.get("method")
        if method is not None:
            cells = cells.where(lambda cell: cell.identity.get("method") == method)
            cells = cells.where(lambda cell: not cell.identity.get(schema.OPTIMIZATION_SIZE))
        for cell in cells.best_schemes:
            run_id = next((run.id for run in self._runs_of(cell.key) if run.complete), None)
            where = f"source_run_id = '{run_id}'"
            if run_id is None or self._client.search_logged_models([self.experiment_id], where):
                continue
            log_model(
                self._client,
                CorrectionScheme.from_dict(self._archive.with_scheme(cell).scheme or {}),
                experiment_id=self.experiment_id,
                run_id=run_id,
                name=views.cell_name(cell),
                metrics=_shown_metrics(cell),
            )

    def end(self, status: str) -> None:
        """End the parent run."""
        self._client.set_terminated(self.parent_id, status)
        self.status = status

    def _open_parent(self) -> RunInfo:
        """Return the parent run of the sweep, and create it if it does not exist."""
        sweep = self._sweep
        own = {schema.KIND: schema.KIND_SWEEP, schema.SWEEP_KEY: sweep.sweep_key}
        parent = next(self._search(own), None)
        self._resumed = parent is not None
        if parent is None:
            name = sweep.run_name or sweep.experiment
            parent = self._client.get_run(self._new_run(schema.KIND_SWEEP, name, _author_tags()))
        params = schema.as_params(sweep.sweep_params)
        new = {key: params[key] for key in params if key not in parent.data.params}
        self._log(parent.info.run_id, params=new)
        return parent.info

    def _delete_cell(self, run_id: str) -> None:
        # A deleted run can be restored and must not be RUNNING then.
        self._client.set_terminated(run_id, "KILLED")
        self._client.delete_run(run_id)

    def _search(self, tags: Mapping[str, str], *, deleted: bool = False) -> Iterator[Run]:
        where = schema.tagged(tags)
        return search_runs(self._client, [self.experiment_id], where, deleted=deleted)

    def _new_run(
        self, kind: str, name: str, tags: Mapping[str, str], *, start: int | None = None
    ) -> str:
        own = {schema.SWEEP: self._sweep.experiment, schema.SWEEP_KEY: self._sweep.sweep_key}
        own |= {schema.KIND: kind, **tags}
        run = self._client.create_run(self.experiment_id, start, own, run_name=name)
        return str(run.info.run_id)


def trials_table(record: CellRecord) -> str:
    """Return the trials of a cell as a table that `mlflow.load_table` reads."""
    fields = ("number", "state", "value", "seconds")
    rows = [
        {name: getattr(trial, name) for name in fields} | {**trial.metrics, **trial.params}
        for trial in record.trials
    ]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    data = [[row.get(name) for name in columns] for row in rows]
    return json.dumps({"columns": columns, "data": data})


def _trial_metrics(record: CellRecord) -> list[Measured]:
    """Return accuracy, COBias and value of the trials; the step is the number of the trial."""
    metrics: list[Measured] = []
    step = max(1, math.ceil(len(record.trials) / _MAX_TRIAL_POINTS))
    for trial in record.trials[::step]:
        when = trial.started_ms + round(1000 * trial.seconds)
        values = {name: trial.metrics.get(f"dev/{name}") for name in MEASURES}
        values["value"] = trial.value
        own = {schema.TRIAL_PREFIX + n: value for n, value in values.items() if value is not None}
        metrics += _metrics(own, when, step=trial.number)
    return metrics


def _author_tags() -> dict[str, str]:
    return {"mlflow.user": user_name(), "mlflow.source.name": "dcs", "mlflow.source.type": "LOCAL"}


def _cell_tags(record: CellRecord, varied: Collection[str]) -> dict[str, str]:
    own = {
        **{name: record.identity.get(name) for name in schema.DIGESTS},
        **views.group_tags(record, varied),
        **views.identity_of(record, varied),
    }
    return {
        **{f"dcs.{name}": value for name, value in own.items() if value is not None},
        schema.CELL_KEY: record.key,
        schema.NOTE: schema.shorten(views.cell_note(record), schema.TAG_LIMIT),
        views.COLOR: look_of(str(record.who["method"]))[0],
        **_author_tags(),
    }


def _shown_metrics(record: CellRecord, varied: Collection[str] = ()) -> dict[str, float]:
    """Return the metrics that are charts: of several tasks, also under the name of the task."""
    shown = {n: record.metrics[n] for n in schema.SHOWN_METRICS if n in record.metrics}
    if "task" not in varied:
        return shown
    by_task = {schema.task_metric(n, record.who["task"]): shown[n] for n in [*shown][:2]}
    return shown | by_task


def _dataset_inputs(record: CellRecord) -> list[DatasetInput]:
    """Return the tables of a cell as MLflow datasets: what is known of them, and their sizes."""
    from mlflow.data.code_dataset_source import CodeDatasetSource
    from mlflow.entities import Dataset, DatasetInput, InputTag

    who = [str(name) for name in (record.who["task"], record.who["model"]) if name is not None]
    classes = record.class_accuracies.get("class", [])
    inputs = []
    for split in ("optimization", "test"):
        digest = record.identity.get(f"{split}_digest")
        if digest is None:
            continue
        about = record.provenance.get("tables", {}).get(split, {})
        source = CodeDatasetSource({k: str(about[k]) for k in about} | {"digest": digest})
        profile = {"num_rows": about.get("rows"), "num_classes": len(classes)}
        name = schema.shorten(" ".join([*who, split]), 500)
        short = str(digest)[: schema.DATASET_DIGEST_LIMIT]
        dataset = Dataset(name, short, "code", source.to_json(), profile=json.dumps(profile))
        inputs.append(DatasetInput(dataset, [InputTag("mlflow.data.context", split)]))
    return inputs


def _metrics(values: Mapping[str, float], when: int, *, step: int = 0) -> list[Measured]:
    return [(name, value, when, step) for name, value in values.items()]
