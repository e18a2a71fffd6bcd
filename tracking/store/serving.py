"""Schemes as MLflow models: saved as code, served as JSON, registered by name."""

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

#: The file of a model that tells what it is, and names its run.
_DESCRIPTION = "MLmodel"

#: Where schemes go that are of no sweep.
_EXPERIMENT = "schemes"

#: Stands for the run's id in what is the same for all schemes of some classes.
_RUN = "0" * 32


def scheme_model(scheme: Mapping[str, Any], *, run_id: str) -> dict[str, bytes]:
    """Return a scheme as an MLflow model that knows how to apply it.

    Parameters
    ----------
    scheme : mapping
        The scheme, as `CorrectionScheme.to_dict` gives it.
    run_id : str
        The run that the model belongs to.

    Returns
    -------
    dict of str to bytes
        The files of the folder ``model``, by their paths.

    Raises
    ------
    dcs.errors.SchemeError
        When it is not a scheme.

    Notes
    -----
    The model takes and gives the columns of a probability table, ``p:<class>``, and answers the
    ``label`` too. Of several tables it takes ``<table>/p:<class>``. It holds the scheme's JSON and
    a small Python file; nothing is pickled.
    """
    checked = CorrectionScheme.from_dict(scheme)
    several = checked.inputs if checked.combination is not None else ()
    files = dict(_template(checked.classes, several))
    files[_DESCRIPTION] = files[_DESCRIPTION].replace(_RUN.encode(), run_id.encode())
    files[f"artifacts/{schema.SCHEME_FILE}"] = checked.to_json().encode()
    return {f"{schema.MODEL_FOLDER}/{name}": content for name, content in files.items()}


@lru_cache(maxsize=32)
def _template(classes: tuple[str, ...], inputs: tuple[str, ...]) -> Mapping[str, bytes]:
    """Return the files of a model for these classes and tables, another scheme and no run.

    MLflow runs the code when it saves a model, and keeps a module of it for ever: once for a set
    of classes is enough.
    """
    import mlflow.pyfunc
    import pandas as pd
    from mlflow.models import Model, infer_signature

    count, columns = len(classes), [f"p:{name}" for name in classes]
    taken = [f"{table}/{name}" for table in inputs for name in columns] or columns
    # Two rows: one that is sure of the first class, one that is sure of none.
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
                artifact_path=schema.MODEL_FOLDER, run_id=_RUN, model_uuid=lambda: _RUN
            ),
            signature=infer_signature(example, answer),
            input_example=example,
            # The versions here; a list that MLflow infers would run the model to see.
            pip_requirements=[
                f"{name}=={version(name)}" for name in ("mlflow", "numpy", "pandas")
            ],
        )
        return files_of(folder)


def model_uri(run_id: str) -> str:
    """Return what `mlflow models serve -m` and `mlflow.pyfunc.load_model` take."""
    return f"runs:/{run_id}/{schema.MODEL_FOLDER}"


def log_scheme(
    tracking_uri: str, scheme: CorrectionScheme, *, output: Path | str, name: str
) -> str:
    """Make a run, in the experiment `schemes`, for a scheme that no sweep has found.

    Parameters
    ----------
    tracking_uri : str
        The store; a new SQLite file is made ready.
    scheme : CorrectionScheme
        The scheme.
    output : path-like
        Folder of the artifacts where the store has no server.
    name : str
        What the run is called.

    Returns
    -------
    str
        The run's id; it can be given to `register_scheme`.
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
        The store.
    run_id : str
        The cell's run.
    name : str
        The registered model; made if there is none.
    alias : str, optional
        A name for this version, such as ``champion``; moves from an earlier version.

    Returns
    -------
    str
        The version.

    Raises
    ------
    dcs.errors.TrackingError
        The run has no model, or the store has no registry.
    """
    from mlflow.exceptions import MlflowException

    client = open_store(tracking_uri)
    found = {item.path for item in client.list_artifacts(run_id)}
    if schema.MODEL_FOLDER not in found:
        raise TrackingError(
            f"run {run_id} has no model: only runs of a method that chose a scheme have one"
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
    """Note how far new rows are from those that the scheme of a run was fitted on.

    Parameters
    ----------
    tracking_uri : str
        The store.
    run_id : str
        The run, which the served model names too.
    distances : mapping of str to float
        Shares of the rows by what was compared. Each becomes a metric ``drift/...``, whose
        history shows one check after another.
    """
    client, names = open_store(tracking_uri), schema.safe_names(distances)
    for name, distance in distances.items():
        client.log_metric(run_id, f"drift/{names[name]}", distance)
