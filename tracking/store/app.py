"""The app of ``mlflow server --app-name dcs``: MLflow's own, plus an endpoint for whole runs.

The time of a server goes into requests, of which MLflow's client sends about thirty for a cell
with its trials and files. A driver that detects this app sends them in one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from flask import request
from mlflow.exceptions import MlflowException
from mlflow.server import app as pages
from mlflow.server import handlers
from mlflow.server.fastapi_app import app  # noqa: F401, which includes `pages`
from mlflow.utils.uri import validate_path_is_safe
from pydantic import ValidationError

from tracking.records import write_files
from tracking.store.runs import BATCH, PATH, artifact_folder, insert_runs


@pages.get(handlers._add_static_prefix(PATH))
def _confirm_app() -> str:
    """Tell a driver that the server runs this app."""
    return "dcs"


@pages.post(handlers._add_static_prefix(PATH))
@handlers.catch_mlflow_exception
def _write_runs() -> dict[str, int]:
    """Write the runs of a request and return their number."""
    try:
        runs = BATCH.validate_json(request.get_data())
    except ValidationError as error:
        raise MlflowException.invalid_parameter_value(str(error)) from error
    store = handlers._get_tracking_store()
    experiment = store.get_experiment(request.args["experiment_id"])
    folders = {
        artifact_folder(experiment, run.run_id): run.files
        for run in runs
        if run.run_id is not None and run.files
    }
    for folder, files in folders.items():
        for path in (urlsplit(folder).path.strip("/"), *files):
            validate_path_is_safe(path)
    insert_runs(store, experiment, runs)
    for folder, files in folders.items():
        _save_artifacts(folder, files)
    return {"written": len(runs)}


def _save_artifacts(folder: str, files: Mapping[str, bytes]) -> None:
    """Write artifacts to the artifact store of the server."""
    path = handlers._get_workspace_scoped_repo_path_if_enabled(urlsplit(folder).path.strip("/"))
    with tempfile.TemporaryDirectory(prefix="dcs-") as written:
        write_files(Path(written), files)
        handlers._get_artifact_repo_mlflow_artifacts().log_artifacts(written, path)
