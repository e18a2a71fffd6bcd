"""Whole cells read back from a store, with the runs that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dcs.errors import TrackingError
from tracking import schema
from tracking._lookup import artifact_text, open_experiment, open_store, search_runs
from tracking._readings import ordered
from tracking.outbox import Outbox
from tracking.records import CellRecord
from tracking.stores import is_http, quietly

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

__all__ = ["StoredCell", "find_cell", "log_report", "run_link", "stored_cells", "sweep_run"]

#: Where `dcs ui` and `mlflow ui` listen by default.
LOCAL_UI = "http://127.0.0.1:5000"
_SHORTEST_PREFIX = 4


@dataclass(frozen=True, slots=True)
class StoredCell:
    """A cell and its run.

    Attributes
    ----------
    record : CellRecord
        The cell.
    run_id, experiment_id : str
        Its run in the store.
    """

    record: CellRecord
    run_id: str
    experiment_id: str


def stored_cells(
    tracking_uri: str, experiment: str, *, outbox: Outbox | None = None
) -> list[StoredCell]:
    """Return the cells of an experiment, finished and failed, in the order of tables.

    Parameters
    ----------
    tracking_uri : str
        The store.
    experiment : str
        Name of the experiment (the sweep).
    outbox : Outbox, optional
        Where to look for the records first: reading a file is faster than asking a server.

    Raises
    ------
    dcs.errors.TrackingError
        There is no such experiment, it holds no cells, or the store cannot be opened.
    """
    client, experiment_id = open_experiment(tracking_uri, experiment)
    where = f"tags.`{schema.KIND}` = '{schema.KIND_CELL}'"
    cells = [
        StoredCell(_record(client, run, outbox), str(run.info.run_id), experiment_id)
        for run in search_runs(client, experiment_id, where)
        if run.info.status in ("FINISHED", "FAILED")
    ]
    if not cells:
        where = f"tags.`{schema.SCHEMA}` != ''"
        ours = next(search_runs(client, experiment_id, where), None)
        raise TrackingError(
            f"experiment {experiment!r} has no finished cells; run `dcs sync` if they are still "
            "to be recorded"
            if ours is not None
            else f"experiment {experiment!r} has no run of a sweep; is it of another program?"
        )
    place = {id(cell.record): cell for cell in cells}
    return [place[id(record)] for record in ordered(cell.record for cell in cells)]


def find_cell(tracking_uri: str, name: str, *, outbox: Outbox | None = None) -> StoredCell:
    """Return the cell of a run id or of a cell key; the first four characters may do.

    Raises
    ------
    dcs.errors.TrackingError
        None or several begin so.
    """
    if len(name) < _SHORTEST_PREFIX:
        raise TrackingError(
            f"run {name!r} is too short a name; give at least {_SHORTEST_PREFIX} characters of a "
            "run id or a cell key"
        )
    client = open_store(tracking_uri)
    with quietly():
        ids = [str(item.experiment_id) for item in client.search_experiments()]
    where = f"tags.`{schema.KIND}` = '{schema.KIND_CELL}'"
    found = [
        run
        for experiment_id in ids
        for run in search_runs(client, experiment_id, where)
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
    return StoredCell(
        _record(client, run, outbox), str(run.info.run_id), str(run.info.experiment_id)
    )


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
    base = ui or (tracking_uri if is_http(tracking_uri) else LOCAL_UI)
    return f"{base.rstrip('/')}/#/experiments/{cell.experiment_id}/runs/{cell.run_id}"


def _record(client: MlflowClient, run: Run, outbox: Outbox | None) -> CellRecord:
    tags = run.data.tags
    key = tags.get(schema.CELL_KEY, "")
    if outbox is not None:
        local = outbox.load([key]).records.get(key)
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
