"""Schemes as MLflow models: built, logged and registered."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from dcs.errors import TrackingError, one_line
from dcs.schemes.calibration import mean_combination
from dcs.schemes.scheme import CorrectionScheme
from tracking import schema
from tracking.records import files_of
from tracking.store.client import log_files, make_experiment, open_store

_CODE = Path(__file__).with_name("scheme_model.py")

#: The file that describes an MLflow model and contains its run id.
_MODEL_FILE = "MLmodel"

#: Experiment of the schemes that do not belong to a sweep.
_EXPERIMENT = "schemes"

#: Placeholder for the run id in the cached files of a model.
_RUN_PLACEHOLDER = "0" * 32


def scheme_model(scheme: Mapping[str, Any], *, run_id: str) -> dict[str, bytes]:
    """Return a scheme as an MLflow model that applies it.

    Parameters
    ----------
    scheme : mapping
        The scheme, as returned by `CorrectionScheme.to_dict`.
    run_id : str
        Id of the run that the model belongs to.

    Returns
    -------
    dict of str to bytes
        Content of the files of the folder ``model``, by path.

    Raises
    ------
    dcs.errors.SchemeError
        Raised if `scheme` is not a valid scheme.

    Notes
    -----
    The input and output columns are those of a probability table, ``p:<class>``; the output also
    has ``label``. A scheme of several tables takes ``<table>/p:<class>``. The model consists of
    the scheme's JSON and a small Python file; nothing is pickled.
    """
    checked = CorrectionScheme.from_dict(scheme)
    several = checked.inputs if checked.combination is not None else ()
    files = dict(_build_template(checked.classes, several))
    files[_MODEL_FILE] = files[_MODEL_FILE].replace(_RUN_PLACEHOLDER.encode(), run_id.encode())
    files[f"artifacts/{schema.SCHEME_FILE}"] = checked.to_json().encode()
    return {f"{schema.MODEL_FOLDER}/{name}": content for name, content in files.items()}


@lru_cache(maxsize=32)
def _build_template(classes: tuple[str, ...], inputs: tuple[str, ...]) -> Mapping[str, bytes]:
    """Return the files of a model of the identity scheme for these classes and tables.

    Cached since MLflow imports the code whenever it saves a model, and never unloads it.
    """
    import mlflow.pyfunc
    import pandas as pd
    from mlflow.models import Model, infer_signature

    count, columns = len(classes), [f"p:{name}" for name in classes]
    taken = [f"{table}/{name}" for table in inputs for name in columns] or columns
    # One row that favours the first class, and one with equal probabilities.
    sure = [0.5 + 0.5 / count, *[0.5 / count] * (count - 1)]
    rows = np.tile([sure, [1.0 / count] * count], len(taken) // count)
    example = pd.DataFrame(rows, columns=taken)
    answer = pd.DataFrame([["", *sure]], columns=["label", *columns])
    mean = mean_combination(len(inputs), count) if inputs else None
    other = CorrectionScheme.identity(classes, combination=mean, inputs=inputs)
    with tempfile.TemporaryDirectory(prefix="dcs-") as temporary:
        scheme = Path(temporary) / schema.SCHEME_FILE
        scheme.write_text(other.to_json(), encoding="utf-8")
        folder = Path(temporary) / schema.MODEL_FOLDER
        mlflow.pyfunc.save_model(
            str(folder),
            python_model=str(_CODE),
            artifacts={"scheme": str(scheme)},
            mlflow_model=Model(
                artifact_path=schema.MODEL_FOLDER,
                run_id=_RUN_PLACEHOLDER,
                model_uuid=lambda: _RUN_PLACEHOLDER,
            ),
            signature=infer_signature(example, answer),
            input_example=example,
            # MLflow would run the model to infer the requirements.
            pip_requirements=[
                f"{name}=={version(name)}" for name in ("mlflow", "numpy", "pandas")
            ],
        )
        return files_of(folder)


def model_uri(run_id: str) -> str:
    """Return the model URI for `mlflow models serve -m` and `mlflow.pyfunc.load_model`."""
    return f"runs:/{run_id}/{schema.MODEL_FOLDER}"


def log_scheme(
    tracking_uri: str, scheme: CorrectionScheme, *, output: Path | str, name: str
) -> str:
    """Log a scheme that does not belong to a sweep as a run of the experiment `schemes`.

    Parameters
    ----------
    tracking_uri : str
        Tracking URI of the store; a SQLite file is created if it does not exist.
    scheme : CorrectionScheme
        The scheme.
    output : path-like
        Folder of the artifacts if the store has no server.
    name : str
        Name of the run.

    Returns
    -------
    str
        Id of the run, for `register_scheme`.
    """
    client = open_store(tracking_uri, create=True)
    experiment = make_experiment(client, _EXPERIMENT, Path(output))
    run = client.create_run(experiment.experiment_id, run_name=name).info
    files = scheme_model(scheme.to_dict(), run_id=run.run_id)
    files[schema.SCHEME_FILE] = scheme.to_json().encode()
    log_files(client.tracking_uri, run.artifact_uri, files)
    client.set_terminated(run.run_id)
    return str(run.run_id)


def register_scheme(tracking_uri: str, run_id: str, name: str, *, alias: str | None = None) -> str:
    """Register the scheme of a cell's run as a new version of a model.

    Parameters
    ----------
    tracking_uri : str
        Tracking URI of the store.
    run_id : str
        Id of the cell's run.
    name : str
        Name of the registered model, which is created if it does not exist.
    alias : str, optional
        Alias of this version, such as ``champion``; moved from an earlier version.

    Returns
    -------
    str
        Number of the version.

    Raises
    ------
    dcs.errors.TrackingError
        Raised if the run has no model or the store has no registry.
    """
    from mlflow.exceptions import MlflowException

    client = open_store(tracking_uri)
    found = {item.path for item in client.list_artifacts(run_id)}
    if schema.MODEL_FOLDER not in found:
        raise TrackingError(
            f"run {run_id} has no model; give a run of a method that searches for a scheme"
        )
    try:
        if not client.search_registered_models(f"name = '{name}'"):
            client.create_registered_model(name)
        made = client.create_model_version(name, model_uri(run_id), run_id)
        if alias is not None:
            try:
                client.set_registered_model_alias(name, alias, made.version)
            except MlflowException:
                client.delete_model_version(name, made.version)
                raise
    except MlflowException as error:
        raise TrackingError(f"model {name!r} cannot be registered: {one_line(error)}") from error
    return str(made.version)


def log_drift(tracking_uri: str, run_id: str, distances: Mapping[str, float]) -> None:
    """Log the distances between new rows and the rows that the scheme of a run was fitted on.

    Parameters
    ----------
    tracking_uri : str
        Tracking URI of the store.
    run_id : str
        Id of the run, which is also in the served model.
    distances : mapping of str to float
        Distance, a fraction of the rows, by name. Each is logged as the metric ``drift/<name>``,
        whose history contains one value per check.
    """
    client, names = open_store(tracking_uri), schema.safe_names(distances)
    for name, distance in distances.items():
        client.log_metric(run_id, f"drift/{names[name]}", distance)
