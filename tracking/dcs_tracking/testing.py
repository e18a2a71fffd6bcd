"""The contract of tracking stores, for whoever runs one or adds one to MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

from dcs_tracking import schema
from dcs_tracking.records import CellRecord, now_ms
from dcs_tracking.store.client import open_store, search_runs
from dcs_tracking.store.queries import delete_runs
from dcs_tracking.store.recorder import Recorder

_NAME = "dcs check of the store"


def check_store(tracking_uri: str, output: Path | str) -> None:
    """Check that a store has the cells of a sweep as they are on disk, each once.

    Three cells are recorded three times, the last run being deleted after each. If the check
    passes, all of their runs are deleted.

    Parameters
    ----------
    tracking_uri : str
        Address of the store.
    output : path-like
        An empty folder for the records.

    Raises
    ------
    AssertionError
        If a cell is missing, there twice, or different.
    """
    key = f"check-{uuid4().hex}"
    about: Any = {"identity": {"task": "check"}, "started_ms": now_ms(), "finished_ms": now_ms()}
    metrics = {f"{key}-{k}": {"test/accuracy": k / 4} for k in range(3)}
    cells = [CellRecord(key=k, sweep=key, metrics=own, **about) for k, own in metrics.items()]
    for _ in cells:
        with Recorder(tracking_uri, output=output, experiment=_NAME, sweep_key=key) as recorder:
            for cell in cells:
                recorder.record(cell)
        store = open_store(tracking_uri)
        named = store.search_experiments(filter_string=f"name = '{_NAME}'")
        ids = [each.experiment_id for each in named]
        where = schema.tagged({schema.KIND: schema.KIND_CELL, schema.SWEEP_KEY: key})
        runs = [*search_runs(store, ids, where)]
        found = {run.data.tags[schema.CELL_KEY]: dict(run.data.metrics) for run in runs}
        if len(runs) != len(cells) or found != metrics:
            raise AssertionError(f"{len(runs)} runs have {found}; expected one each of {metrics}")
        for run in runs:
            file = Path(store.download_artifacts(run.info.run_id, schema.CELL_FILE))
            record = recorder.archive.path(run.data.tags[schema.CELL_KEY])
            if file.read_bytes() != record.read_bytes():
                raise AssertionError(f"{file.name} of run {run.info.run_id} is not {record}")
        store.delete_run(runs[-1].info.run_id)
    delete_runs(store, ids, schema.tagged({schema.SWEEP_KEY: key}))
