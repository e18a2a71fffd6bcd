"""Cells read back from a store, with their runs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcs.errors import TrackingError, one_line, unknown
from dcs.evaluation.metrics import metric_of
from dcs_tracking import schema
from dcs_tracking.archive import Archive
from dcs_tracking.records import CellRecord, StoredCell
from dcs_tracking.results.cells import MEASURES, ordered
from dcs_tracking.store.client import open_experiment, open_store, search_runs
from dcs_tracking.store.views import view_links

if TYPE_CHECKING:
    import pandas as pd
    from mlflow import MlflowClient
    from mlflow.entities import Run

_IDENTITY = (*schema.IDENTITY_TAGS, *schema.SETTING_TAGS)

# These metrics are columns even if no cell has finished: notebooks access them by name.
FIGURES = tuple(f"test/{name}" for name in MEASURES)

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
        Name of the experiment (the sweep); by default all experiments of the store.
    archive : Archive, optional
        Archive whose records have precedence over the metrics in the store.

    Returns
    -------
    pandas.DataFrame
        ``run_id``, ``cell_key``, ``status``, ``name``, ``sweep``, ``experiment_id``, ``model``,
        ``task``, ``shots``, ``seed``, ``method``, ``objective``, ``optimization_size``,
        ``started``, ``seconds``, ``test/accuracy``, ``test/cobias``, even without any cell; then
        the other metrics of the cells, with `archive` all of their records, such as the bounds
        of the 95 % interval ``test/accuracy_low`` and ``test/accuracy_high`` and the p-value
        ``test/accuracy_p`` of no difference to uncorrected; and their parameters as
        ``params.<name>``.

    Raises
    ------
    dcs.errors.TrackingError
        Raised if the experiment does not exist or was deleted, or the store cannot be opened.
    """
    import pandas as pd

    if experiment is None:
        runs = _search_all(open_store(tracking_uri), _CELLS)
    else:
        runs = _deduplicate(search_runs(*open_experiment(tracking_uri, experiment), _CELLS))
    records = _on_disk(runs, archive, summaries=True)
    frame = pd.DataFrame([_format_row(run, records.get(run.info.run_id)) for run in runs])
    others = [name for name in frame if name not in CELL_COLUMNS]
    # The types must not depend on the number of rows.
    return frame.reindex(columns=[*CELL_COLUMNS, *others]).astype(_TYPES)


def _format_row(run: Run, record: CellRecord | None) -> dict[str, Any]:
    tags, start, end = run.data.tags, run.info.start_time, run.info.end_time
    return {
        **run.data.metrics,
        **(record.metrics if record else {}),
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


def _search_all(client: MlflowClient, where: str) -> list[Run]:
    ids = [str(item.experiment_id) for item in client.search_experiments()]
    runs = [run for each in ids for run in _deduplicate(search_runs(client, each, where))]
    return sorted(runs, key=lambda run: run.info.start_time)


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


def _deduplicate(runs: Iterable[Run]) -> list[Run]:
    """Return one run per cell, a finished one if several drivers wrote the cell."""
    rank = {"FINISHED": 0, "FAILED": 1}
    kept: dict[str, Run] = {}
    for run in sorted(runs, key=lambda run: rank.get(run.info.status, 2)):
        kept.setdefault(run.data.tags.get(schema.CELL_KEY, run.info.run_id), run)
    return sorted(kept.values(), key=lambda run: run.info.start_time)


def stored_cells(
    tracking_uri: str, experiment: str, *, archive: Archive | None = None
) -> list[StoredCell]:
    """Return the finished and failed cells of an experiment, in the order of tables.

    Parameters
    ----------
    tracking_uri : str
        Tracking URI of the store.
    experiment : str
        Name of the experiment (the sweep).
    archive : Archive, optional
        Archive to read records from first: a file is faster to read than an artifact.

    Raises
    ------
    dcs.errors.TrackingError
        Raised if the experiment does not exist or has no cells, or the store cannot be opened.
    """
    client, experiment_id = open_experiment(tracking_uri, experiment)
    runs = [
        run
        for run in _deduplicate(search_runs(client, experiment_id, _CELLS))
        if run.info.status in ("FINISHED", "FAILED")
    ]
    cells = _load_cells(client, runs, archive)
    if not cells:
        raise TrackingError(
            f"experiment {experiment!r} has no finished cells; run `dcs sync` if they are not "
            "recorded yet"
        )
    place = {id(cell.record): cell for cell in cells}
    return [place[id(record)] for record in ordered(cell.record for cell in cells)]


def find_cell(tracking_uri: str, name: str, *, archive: Archive | None = None) -> StoredCell:
    """Return the cell with a user-specified name.

    Parameters
    ----------
    tracking_uri : str
        Tracking URI of the store.
    name : str
        A cell key or run id, or a prefix of one; or the name of a run.
    archive : Archive, optional
        Archive to read the record from first.

    Raises
    ------
    dcs.errors.TrackingError
        Raised if no cell or several cells match.
    """
    client = open_store(tracking_uri)
    runs = [run for run in _search_all(client, _CELLS) if name and _is(run, name)]
    if len({run.data.tags.get(schema.CELL_KEY) for run in runs}) != 1:
        known = ", ".join(f"{run.info.run_id[:8]} ({run.info.run_name})" for run in runs[:5])
        raise TrackingError(
            f"run {name!r}: {len(runs)} cells have this key, run id or name ({known}); `dcs runs` "
            "lists all of them"
        )
    # Several sweeps may have the same cell, with the same record.
    return _load_cells(client, runs[-1:], archive)[0]


def _is(run: Run, name: str) -> bool:
    ids = (run.data.tags.get(schema.CELL_KEY, ""), run.info.run_id)
    return run.info.run_name == name or any(each.startswith(name) for each in ids)


def log_report(tracking_uri: str, experiment: str, page: str) -> Run | None:
    """Log a report to the newest parent run of its sweep and return that run, or None."""
    client, experiment_id = open_experiment(tracking_uri, experiment)
    where = schema.tagged({schema.KIND: schema.KIND_SWEEP})
    runs = list(search_runs(client, experiment_id, where))
    if not runs:
        return None
    client.log_text(runs[-1].info.run_id, page, schema.REPORT_FILE)
    return runs[-1]


def delete_runs(client: MlflowClient, experiment_ids: Iterable[str], where: str) -> int:
    """Delete the runs that match a filter, and their models; return their number.

    MLflow keeps deleted runs until `mlflow gc`.
    """
    count = 0
    for experiment_id in experiment_ids:
        for run in list(search_runs(client, experiment_id, where)):
            run_id = run.info.run_id
            of_run = f"source_run_id = '{run_id}'"
            for model in client.search_logged_models([experiment_id], of_run):
                client.delete_logged_model(model.model_id)
            client.delete_run(run_id)
            count += 1
    return count


def newest_links(tracking_uri: str, ui: str) -> dict[str, str]:
    """Return the URLs at `ui` of the views of the newest sweep of a store, by name."""
    newest_first = ["creation_time DESC"]
    for experiment in open_store(tracking_uri).search_experiments(order_by=newest_first):
        if links := view_links(experiment.experiment_id, experiment.tags, f"{ui}/#"):
            return links
    return {}


def _load_cells(
    client: MlflowClient, runs: Sequence[Run], archive: Archive | None
) -> list[StoredCell]:
    records, cells = _on_disk(runs, archive), []
    for run in runs:
        run_id = str(run.info.run_id)
        record = records.get(run_id) or _download_record(client, run_id)
        cells.append(StoredCell(record, run_id, str(run.info.experiment_id)))
    return cells


def _on_disk(
    runs: Iterable[Run], archive: Archive | None, *, summaries: bool = False
) -> dict[str, CellRecord]:
    """Return the records that runs were written from, by run id, of those that are on disk."""
    if archive is None:
        return {}
    same: dict[str, str] = {}
    for run in runs:
        key = run.data.tags.get(schema.CELL_KEY, "")
        if archive.digest(key) == run.data.tags.get(schema.RECORD_DIGEST):
            same[str(run.info.run_id)] = key
    records = archive.load(same.values(), summaries=summaries)
    return {run_id: records[key] for run_id, key in same.items() if key in records}


def _download_record(client: MlflowClient, run_id: str) -> CellRecord:
    source = f"{schema.CELL_FILE} of run {run_id}"
    try:
        with tempfile.TemporaryDirectory(prefix="dcs-") as folder:
            path = client.download_artifacts(run_id, schema.CELL_FILE, folder)
            return CellRecord.from_json(Path(path).read_text(encoding="utf-8"), source=source)
    except Exception as error:  # MLflow, requests, the disk and records have no common class.
        raise TrackingError(
            f"{source} cannot be read ({one_line(error)}); give the output folder of the sweep "
            "with --runs, or delete the run in MLflow"
        ) from error
