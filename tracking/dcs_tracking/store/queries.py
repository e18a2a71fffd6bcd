"""Cells read back from a store, with their runs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dcs.errors import TrackingError, one_line, unknown
from dcs.evaluation.metrics import metric_of
from dcs_tracking import schema
from dcs_tracking.archive import Archive, Sweep
from dcs_tracking.records import CellRecord, StoredCell
from dcs_tracking.results.cells import MEASURES
from dcs_tracking.store import views
from dcs_tracking.store.client import open_experiments, open_store, search_runs, store_name

if TYPE_CHECKING:
    import pandas as pd
    from mlflow import MlflowClient
    from mlflow.entities import Run

T = TypeVar("T")

_IDENTITY = (*schema.IDENTITY_TAGS, *schema.SETTING_TAGS)

# These metrics are columns even if no cell has finished: notebooks access them by name.
FIGURES = tuple(f"test/{name}" for name in MEASURES)

#: Key, run id and name of a cell.
_Names = tuple[str | None, str | None, str | None]

_RUN = ("run_id", "cell_key", "status", "name", "sweep", "experiment_id")

CELL_COLUMNS = (*_RUN, *_IDENTITY, "started", "seconds", *FIGURES)

_TYPES = {"started": "datetime64[ms, UTC]"} | dict.fromkeys(("seconds", *FIGURES), "float64")

_CELLS = schema.tagged({schema.KIND: schema.KIND_CELL})


def cells(
    tracking_uri: str, experiment: str | None = None, *, archive: Archive | None = None
) -> pd.DataFrame:
    """Return the cells of an experiment, one row each, oldest first.

    Parameters
    ----------
    tracking_uri : str
        Tracking URI of the store.
    experiment : str, optional
        Name of the experiment (the sweep); by default all experiments.
    archive : Archive, optional
        Output folder, whose sweeps are read from disk; only others are read from the store.

    Returns
    -------
    pandas.DataFrame
        ``run_id``, ``cell_key``, ``status``, ``name``, ``sweep``, ``experiment_id``, ``model``,
        ``task``, ``shots``, ``seed``, ``method``, ``objective``, ``optimization_size``,
        ``started``, ``seconds``, ``test/accuracy``, ``test/cobias``, even without any cell; then
        the other metrics of the cells, from disk all of their records, such as the bounds
        of the 95 % interval ``test/accuracy_low`` and ``test/accuracy_high`` and the p-value
        ``test/accuracy_p`` of no difference to uncorrected; and their parameters as
        ``params.<name>``. Without a ``run_id`` is a cell of the folder that is not known to be
        recorded in the store.

    Raises
    ------
    dcs.errors.TrackingError
        Raised if the experiment does not exist or was deleted, or the store cannot be opened.
    """
    import pandas as pd

    found = _on_disk(archive, tracking_uri, experiment)
    rows = [_row_of_record(*each) for each in found]
    if not rows:
        rows = [_row_of_run(run) for run in _cell_runs(tracking_uri, experiment)[1]]
    frame = pd.DataFrame(rows)
    others = [name for name in frame if name not in CELL_COLUMNS]
    # The types must not depend on the number of rows.
    return frame.reindex(columns=[*CELL_COLUMNS, *others]).astype(_TYPES)


def _on_disk(
    archive: Archive | None, tracking_uri: str, experiment: str | None = None
) -> list[tuple[Sweep, StoredCell]]:
    if archive is None:
        return []
    return archive.stored(experiment, store_name(tracking_uri, archive.output))


def _row_of_record(sweep: Sweep, cell: StoredCell) -> dict[str, Any]:
    record = cell.record
    params = schema.as_params(views.cell_params(record, sweep.varied))
    identity = views.identity_of(record)
    return {
        **record.metrics,
        **{f"params.{name}": value for name, value in params.items()},
        "run_id": cell.run_id,
        "cell_key": record.key,
        "status": record.status,
        "name": views.cell_name(record, sweep.varied),
        "sweep": sweep.experiment,
        "experiment_id": cell.experiment_id,
        **{name: identity.get(name) for name in _IDENTITY},
        "started": record.started_ms,
        "seconds": (record.finished_ms - record.started_ms) / 1000,
    }


def _row_of_run(run: Run) -> dict[str, Any]:
    tags, start, end = run.data.tags, run.info.start_time, run.info.end_time
    return {
        **run.data.metrics,
        **{f"params.{name}": value for name, value in run.data.params.items()},
        "run_id": run.info.run_id,
        "cell_key": tags.get(schema.CELL_KEY),
        "status": run.info.status,
        "name": run.info.run_name,
        "sweep": tags.get(schema.SWEEP),
        "experiment_id": str(run.info.experiment_id),
        **{name: tags.get(f"dcs.{name}") for name in _IDENTITY},
        "started": start,
        "seconds": None if end is None else (end - start) / 1000,
    }


def _cell_runs(tracking_uri: str, experiment: str | None = None) -> tuple[MlflowClient, list[Run]]:
    """Return a store and its runs of cells, oldest first, by default of all experiments.

    Of a cell that several drivers wrote it is one run, a finished one if there is one.
    """
    client, ids = open_experiments(tracking_uri, experiment)
    rank = {"FINISHED": 0, "FAILED": 1}
    kept: dict[tuple[str, str], Run] = {}
    for run in sorted(search_runs(client, ids, _CELLS), key=lambda r: rank.get(r.info.status, 2)):
        key = run.data.tags.get(schema.CELL_KEY, run.info.run_id)
        kept.setdefault((run.info.experiment_id, key), run)
    return client, sorted(kept.values(), key=lambda run: run.info.start_time)


def best_first(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return cells sorted by a metric or another column, missing values last.

    Accuracies, F1 and scores are sorted in descending order, all others, such as COBias and
    seconds, in ascending order.
    """
    import pandas as pd

    if name not in frame:
        known = [str(each) for each in frame if not str(each).startswith("params.")]
        raise unknown("column", name, known)
    column = frame[name]
    numbers = pd.to_numeric(column, errors="coerce")
    # Tags and parameters are strings, even if their values are numbers.
    values = numbers if numbers.notna().any() else column
    metric = metric_of(name)
    ascending = metric is None or not metric.maximize
    order = values.sort_values(ascending=ascending, kind="stable")
    return frame.loc[order.index]


def stored_cells(
    tracking_uri: str, experiment: str, *, archive: Archive | None = None
) -> list[StoredCell]:
    """Return the finished and failed cells of an experiment, oldest first.

    Parameters
    ----------
    tracking_uri : str
        Tracking URI of the store.
    experiment : str
        Name of the experiment (the sweep).
    archive : Archive, optional
        Output folder, whose sweeps are read from disk, without search and scheme of each cell.

    Raises
    ------
    dcs.errors.TrackingError
        Raised if the experiment does not exist or has no cells, or the store cannot be opened.
    """
    cells = [cell for _, cell in _on_disk(archive, tracking_uri, experiment)]
    if not cells:
        client, runs = _cell_runs(tracking_uri, experiment)
        ended = (run for run in runs if run.info.status in ("FINISHED", "FAILED"))
        cells = [_download_cell(client, run) for run in ended]
    if not cells:
        raise TrackingError(
            f"experiment {experiment!r} has no finished cells; run `dcs sync` if they are not "
            "recorded yet"
        )
    return cells


def find_cell(tracking_uri: str, name: str, *, archive: Archive | None = None) -> StoredCell:
    """Return the cell with a user-specified name.

    Parameters
    ----------
    tracking_uri : str
        Tracking URI of the store.
    name : str
        A cell key or run id, or a prefix of one; or the name of a run.
    archive : Archive, optional
        Output folder, which is searched first.

    Raises
    ------
    dcs.errors.TrackingError
        Raised if no cell or several cells match.
    """
    on_disk: dict[_Names, StoredCell] = {
        (cell.record.key, cell.run_id, views.cell_name(cell.record, sweep.varied)): cell
        for sweep, cell in _on_disk(archive, tracking_uri)
    }
    if archive is not None and (cell := _named(on_disk, name)):
        return replace(cell, record=archive.read(cell.record.key))
    client, runs = _cell_runs(tracking_uri)
    recorded: dict[_Names, Run] = {
        (run.data.tags.get(schema.CELL_KEY), str(run.info.run_id), run.info.run_name): run
        for run in runs
    }
    if run := _named(recorded, name):
        return _download_cell(client, run)
    raise TrackingError(f"run {name!r}: no cell has this key, run id or name; see `dcs runs`")


def _named(found: Mapping[_Names, T], name: str) -> T | None:
    """Return which of the cells, by key, run id and name, a user means; None for none.

    Several sweeps may have the same cell, with the same record.
    """
    named = [
        each
        for each in found
        if name and (each[2] == name or any(own and own.startswith(name) for own in each[:2]))
    ]
    if len({key for key, _, _ in named}) > 1:
        known = ", ".join(f"{key} ({run})" for key, _, run in named[:5])
        raise TrackingError(
            f"run {name!r}: {len(named)} cells have this key, run id or name ({known}); "
            "`dcs runs` lists all of them"
        )
    return found[named[-1]] if named else None


def log_report(tracking_uri: str, experiment: str, page: str) -> Run | None:
    """Log a report to the newest parent run of its sweep and return that run, or None."""
    client, ids = open_experiments(tracking_uri, experiment)
    runs = list(search_runs(client, ids, schema.tagged({schema.KIND: schema.KIND_SWEEP})))
    if runs:
        client.log_text(runs[-1].info.run_id, page, schema.REPORT_FILE)
    return runs[-1] if runs else None


def delete_runs(client: MlflowClient, experiment_ids: Iterable[str], where: str) -> int:
    """Delete the runs that match a filter, and their models; return their number.

    MLflow keeps deleted runs until `mlflow gc`.
    """
    runs = list(search_runs(client, experiment_ids, where))
    for run in runs:
        of_run = f"source_run_id = '{run.info.run_id}'"
        for model in client.search_logged_models([run.info.experiment_id], of_run):
            client.delete_logged_model(model.model_id)
        client.delete_run(run.info.run_id)
    return len(runs)


def newest_links(tracking_uri: str, ui: str) -> dict[str, str]:
    """Return the URLs at `ui` of the views of the newest sweep of a store, by name."""
    newest_first = ["creation_time DESC"]
    for experiment in open_store(tracking_uri).search_experiments(order_by=newest_first):
        if links := views.view_links(experiment.experiment_id, experiment.tags, f"{ui}/#"):
            return links
    return {}


def _download_cell(client: MlflowClient, run: Run) -> StoredCell:
    run_id = str(run.info.run_id)
    source = f"{schema.CELL_FILE} of run {run_id}"
    try:
        with tempfile.TemporaryDirectory(prefix="dcs-") as folder:
            path = client.download_artifacts(run_id, schema.CELL_FILE, folder)
            record = CellRecord.from_json(Path(path).read_text(encoding="utf-8"), source=source)
    except Exception as error:  # MLflow, requests, the disk and records have no common class.
        raise TrackingError(
            f"{source} cannot be read ({one_line(error)}); give the output folder of the sweep "
            "with --runs, or delete the run in MLflow"
        ) from error
    return StoredCell(record, run_id, str(run.info.experiment_id))
