"""Whole cells read back from a store, with the runs that hold them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dcs.errors import TrackingError
from tracking import schema
from tracking.archive import Archive
from tracking.records import CellRecord, StoredCell
from tracking.results.frames import CORRECTION_COLUMNS, CORRECTION_NUMBERS, ordered
from tracking.store.client import (
    artifact_text,
    open_experiment,
    open_store,
    quietly,
    search_runs,
)

if TYPE_CHECKING:
    import pandas as pd
    from mlflow import MlflowClient
    from mlflow.entities import Run

__all__ = [
    "cells",
    "find_cell",
    "log_report",
    "run_link",
    "schemes",
    "stored_cells",
    "sweep_run",
    "trials",
]


_IDENTITY = (*schema.IDENTITY_TAGS, *schema.SETTING_TAGS)

# The figures that a notebook asks for by name, also where no cell has finished.
_FIGURES = ("test/accuracy", "test/cobias")

# What `_about` says of every run; the rest are its metrics and parameters.
_ABOUT = ("run_id", "cell_key", "status", *_IDENTITY, "trial", "state", "started", "seconds")

CELL_COLUMNS = ("run_id", "cell_key", "status", *_IDENTITY, "started", "seconds", *_FIGURES)

TRIAL_COLUMNS = ("run_id", "cell_key", "status", "trial", "state", "started", "seconds")

SCHEME_COLUMNS = ("run_id", "cell_key", *_IDENTITY, *CORRECTION_COLUMNS)

_TYPES = {"started": "datetime64[ms, UTC]", "trial": "int64"} | dict.fromkeys(
    ("seconds", *_FIGURES, *CORRECTION_NUMBERS), "float64"
)

#: Where `dcs ui` and `mlflow ui` listen by default.
LOCAL_UI = "http://127.0.0.1:5000"

_CELLS = f"tags.`{schema.KIND}` = '{schema.KIND_CELL}'"


def cells(tracking_uri: str, experiment: str) -> pd.DataFrame:
    """Return the cells of an experiment, one row each, oldest first.

    Parameters
    ----------
    tracking_uri : str
        The store.
    experiment : str
        Name of the experiment (the sweep).

    Returns
    -------
    pandas.DataFrame
        ``run_id``, ``cell_key``, ``status``, ``model``, ``task``, ``shots``, ``seed``,
        ``method``, ``objective``, ``optimization_size``, ``started``, ``seconds``,
        ``test/accuracy``, ``test/cobias``, also where there are no cells; then whatever the cells
        have of other metrics, such as the ends of 95 % intervals ``test/accuracy_low`` and
        ``test/accuracy_high`` and the chance ``test/accuracy_p`` of no difference to ICL, and of
        parameters as ``params.<name>``. The last values of annealing traces are left out.

    Raises
    ------
    dcs.errors.TrackingError
        When there is no such experiment, it was deleted, or the store cannot be opened.
    """
    client, experiment_id = open_experiment(tracking_uri, experiment)
    runs = _each_once(search_runs(client, experiment_id, _CELLS))
    return _frame([_values(run) | _about(run) for run in runs], CELL_COLUMNS)


def trials(tracking_uri: str, experiment: str, *, cell_key: str | None = None) -> pd.DataFrame:
    """Return the trials of an experiment that have runs of their own, one row each.

    Parameters
    ----------
    tracking_uri, experiment : str
        As for `cells`.
    cell_key : str, optional
        Only the trials of one cell.

    Returns
    -------
    pandas.DataFrame
        ``run_id``, ``cell_key``, ``status``, ``trial``, ``state``, ``started``, ``seconds``,
        also where there are no trials; then metrics and ``params.<name>``. Where a sweep gave no
        runs to its trials, the records of `stored_cells` have them all.

    Raises
    ------
    dcs.errors.TrackingError
        When there is no such experiment, it was deleted, or the store cannot be opened.
    """
    client, experiment_id = open_experiment(tracking_uri, experiment)
    # Those that somebody else tagged as trials are none of ours: they have no number.
    where = f"tags.`{schema.KIND}` = '{schema.KIND_TRIAL}' and tags.`{schema.TRIAL_NUMBER}` != ''"
    if cell_key is not None:
        where += f" and tags.`{schema.CELL_KEY}` = '{cell_key}'"
    runs = _each_once(search_runs(client, experiment_id, where))
    return _frame([_values(run) | _about(run) for run in runs], TRIAL_COLUMNS)


def schemes(tracking_uri: str, experiment: str) -> pd.DataFrame:
    """Return the correction schemes of an experiment, one row per cell and class.

    Parameters
    ----------
    tracking_uri, experiment : str
        As for `cells`.

    Returns
    -------
    pandas.DataFrame
        ``run_id``, ``cell_key``, ``model``, ``task``, ``shots``, ``seed``, ``method``,
        ``objective``, ``optimization_size``, ``class``, ``kind``, ``value``, ``a``, ``b``, ``c``,
        ``name``.

    Raises
    ------
    dcs.errors.TrackingError
        When there is no such experiment, it was deleted, or the store cannot be opened.
    """
    client, experiment_id = open_experiment(tracking_uri, experiment)
    where = f"{_CELLS} and attributes.status = 'FINISHED'"
    rows = [
        _about(run) | correction
        for run in _each_once(search_runs(client, experiment_id, where))
        for correction in (_record(client, run, None).scheme or {}).get("corrections", ())
    ]
    return _frame(rows, SCHEME_COLUMNS)


def _each_once(runs: Iterable[Run]) -> list[Run]:
    """Return one run of each cell and trial, where several drivers wrote it: a finished one."""
    kept: dict[tuple[str | None, ...], Run] = {}
    rank = defaultdict(lambda: 2, FINISHED=0, FAILED=1)
    for run in runs:
        tags = run.data.tags
        name = tags.get(schema.CELL_KEY, run.info.run_id), tags.get(schema.TRIAL_NUMBER)
        other = kept.setdefault(name, run)
        if rank[run.info.status] < rank[other.info.status]:
            kept[name] = run
    return list(kept.values())


def _about(run: Run) -> dict[str, Any]:
    """Return what is known of every run, whatever its kind."""
    tags, start, end = run.data.tags, run.info.start_time, run.info.end_time
    return {
        "run_id": run.info.run_id,
        "cell_key": tags.get(schema.CELL_KEY),
        "status": run.info.status,
        **{name: tags.get(f"dcs.{name}") for name in _IDENTITY},
        "trial": tags.get(schema.TRIAL_NUMBER),
        "state": tags.get(schema.TRIAL_STATE),
        "started": start,
        "seconds": None if end is None else (end - start) / 1000,
    }


def _values(run: Run) -> dict[str, Any]:
    metrics = {
        name: value
        for name, value in run.data.metrics.items()
        if not name.startswith(schema.TRACE_PREFIX)
    }
    return metrics | {f"params.{name}": value for name, value in run.data.params.items()}


def _frame(rows: list[dict[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    """Return `columns`, then what else runs were given; of the same types without any row."""
    import pandas as pd

    frame = pd.DataFrame(rows)
    others = [name for name in frame if name not in {*columns, *_ABOUT}]
    frame = frame.reindex(columns=[*columns, *others])
    return frame.astype({name: kind for name, kind in _TYPES.items() if name in columns})


def stored_cells(
    tracking_uri: str, experiment: str, *, archive: Archive | None = None
) -> list[StoredCell]:
    """Return the cells of an experiment, finished and failed, in the order of tables.

    Parameters
    ----------
    tracking_uri : str
        The store.
    experiment : str
        Name of the experiment (the sweep).
    archive : Archive, optional
        Where to look for the records first: reading a file is faster than asking a server.

    Raises
    ------
    dcs.errors.TrackingError
        There is no such experiment, it holds no cells, or the store cannot be opened.
    """
    client, experiment_id = open_experiment(tracking_uri, experiment)
    cells = [
        _stored(client, run, archive)
        for run in _each_once(search_runs(client, experiment_id, _CELLS))
        if run.info.status in ("FINISHED", "FAILED")
    ]
    if not cells:
        raise TrackingError(
            f"experiment {experiment!r} has no finished cells; run `dcs sync` if they are still "
            "to be recorded"
        )
    place = {id(cell.record): cell for cell in cells}
    return [place[id(record)] for record in ordered(cell.record for cell in cells)]


def find_cell(tracking_uri: str, name: str, *, archive: Archive | None = None) -> StoredCell:
    """Return the cell of a run id or of a cell key; their first characters may do.

    Raises
    ------
    dcs.errors.TrackingError
        None or several begin so.
    """
    client = open_store(tracking_uri)
    with quietly():
        ids = [str(item.experiment_id) for item in client.search_experiments()]
    found = [
        run
        for experiment_id in ids
        for run in _each_once(search_runs(client, experiment_id, _CELLS))
        if run.info.run_id.startswith(name)
        or run.data.tags.get(schema.CELL_KEY, "").startswith(name)
    ]
    if len(found) != 1:
        known = ", ".join(f"{run.info.run_id[:8]} ({run.info.run_name})" for run in found[:5])
        raise TrackingError(
            f"run {name!r}: {len(found)} cells begin so ({known}); give more characters"
            if found
            else f"run {name!r}: no cell has that run id or key; `dcs ui` and the report list them"
        )
    (run,) = found
    return _stored(client, run, archive)


def sweep_run(tracking_uri: str, experiment: str) -> Run | None:
    """Return the newest run of the sweep itself."""
    client, experiment_id = open_experiment(tracking_uri, experiment)
    where = f"tags.`{schema.KIND}` = '{schema.KIND_SWEEP}'"
    runs: Sequence[Run] = list(search_runs(client, experiment_id, where))
    return runs[-1] if runs else None


def log_report(tracking_uri: str, experiment: str, page: str) -> bool:
    """Keep a report with the newest run of its sweep; False if there is none."""
    run = sweep_run(tracking_uri, experiment)
    if run is None:
        return False
    client = open_store(tracking_uri)
    with quietly():
        client.log_text(run.info.run_id, page, schema.REPORT_FILE)
    return True


def run_link(tracking_uri: str, cell: StoredCell, *, ui: str | None = None) -> str:
    """Return the address of a run's page in MLflow.

    Parameters
    ----------
    tracking_uri : str
        The store; a server has pages of its own.
    cell : StoredCell
        The cell.
    ui : str, optional
        Where MLflow's pages of a store without a server are; by default those of `dcs ui`.
    """
    base = ui or (tracking_uri if tracking_uri.startswith("http") else LOCAL_UI)
    return f"{base.rstrip('/')}/#/experiments/{cell.experiment_id}/runs/{cell.run_id}"


def _stored(client: MlflowClient, run: Run, archive: Archive | None) -> StoredCell:
    record = _record(client, run, archive)
    return StoredCell(record, str(run.info.run_id), str(run.info.experiment_id))


def _record(client: MlflowClient, run: Run, archive: Archive | None) -> CellRecord:
    tags = run.data.tags
    key = tags.get(schema.CELL_KEY, "")
    if archive is not None:
        local = archive.load([key]).records.get(key)
        if local is not None and local.digest == tags.get(schema.RECORD_DIGEST):
            return local
    try:
        text = artifact_text(client, run, schema.CELL_FILE)
        return CellRecord.from_json(text, source=f"{schema.CELL_FILE} of run {run.info.run_id}")
    except TrackingError as error:
        raise TrackingError(
            f"{error}; give --runs with the folder of the sweep's results, or delete the run in "
            "MLflow"
        ) from error
