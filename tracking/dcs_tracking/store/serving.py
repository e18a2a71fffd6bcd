"""Schemes as MLflow models: built, logged and registered."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcs.errors import ConfigError, TrackingError, one_line, show
from dcs.schemes import apply
from dcs.schemes.scheme import CorrectionScheme
from dcs_tracking import schema
from dcs_tracking.records import StoredCell, now_ms
from dcs_tracking.results.cells import has_chosen
from dcs_tracking.store.client import make_experiment, open_store, usable_experiment

if TYPE_CHECKING:
    from mlflow import MlflowClient

_CODE = Path(__file__).with_name("scheme_model.py")

#: Experiment of the schemes that do not belong to a sweep.
_EXPERIMENT = "schemes"

_MODEL_TYPE = "correction scheme"

#: Characters that MLflow does not allow in the name of a logged model.
_NOT_IN_NAMES = re.compile(r"""[/:.%"'\n\r]+""")


def save_model(scheme: CorrectionScheme, folder: Path, **identity: Any) -> None:
    """Write a scheme as an MLflow model that applies it.

    Parameters
    ----------
    scheme : CorrectionScheme
        The scheme.
    folder : Path
        Folder to create.
    **identity
        Fields of `mlflow.models.Model`, such as ``model_id`` and ``run_id``.

    Notes
    -----
    The input and output columns are those of a probability table, ``p:<class>``; the output also
    has ``label``. A scheme of several tables takes ``<table>/p:<class>``. The model consists of
    the scheme's JSON and two small Python files, this package's `dcs.schemes.apply` and one that
    checks its input; nothing is pickled.
    """
    import mlflow.pyfunc
    import pandas as pd
    from mlflow.models import Model, infer_signature

    inputs = scheme.inputs if scheme.combination is not None else ()
    count, columns = len(scheme.classes), [f"p:{name}" for name in scheme.classes]
    taken = [f"{table}/{name}" for table in inputs for name in columns] or columns
    equal = [1.0 / count] * count
    example = pd.DataFrame([equal * (len(taken) // count)], columns=taken)
    answer = pd.DataFrame([["", *equal]], columns=["label", *columns])
    # MLflow would run the model to infer the requirements.
    needed = [f"{name}=={version(name)}" for name in ("mlflow", "numpy", "pandas")]
    with tempfile.TemporaryDirectory(prefix="dcs-") as temporary:
        file = Path(temporary) / schema.SCHEME_FILE
        file.write_text(scheme.to_json(), encoding="utf-8")
        mlflow.pyfunc.save_model(
            str(folder),
            python_model=str(_CODE),
            artifacts={"scheme": str(file), "apply": apply.__file__},
            mlflow_model=Model(**identity),
            signature=infer_signature(example, answer),
            input_example=example,
            pip_requirements=needed,
        )


def log_model(
    client: MlflowClient,
    scheme: CorrectionScheme,
    *,
    experiment_id: str,
    name: str,
    run_id: str | None = None,
    metrics: Mapping[str, float] | None = None,
) -> str:
    """Log a scheme as a model of an experiment, and link metrics to it.

    Parameters
    ----------
    client : MlflowClient
        Client of an open store.
    scheme : CorrectionScheme
        The scheme.
    experiment_id : str
        Experiment of the model.
    name : str
        Name of the model; characters that MLflow does not allow are replaced.
    run_id : str, optional
        Run that the model comes from.
    metrics : mapping of str to float, optional
        Metrics of the run that describe the model.

    Returns
    -------
    str
        Id of the logged model; its URI is ``models:/<id>``.
    """
    from mlflow.entities import Metric

    allowed = _NOT_IN_NAMES.sub("_", name)[: schema.NAME_LIMIT]
    tags = {schema.KIND: schema.KIND_MODEL}
    made = client.create_logged_model(experiment_id, allowed, run_id, tags, model_type=_MODEL_TYPE)
    model_id = str(made.model_id)
    try:
        with tempfile.TemporaryDirectory(prefix="dcs-") as temporary:
            folder = Path(temporary) / "model"
            save_model(scheme, folder, model_id=model_id, run_id=run_id)
            client.log_model_artifacts(model_id, str(folder))
        client.finalize_logged_model(model_id, "READY")
    except BaseException:
        client.finalize_logged_model(model_id, "FAILED")
        raise
    if run_id is not None and metrics:
        now = now_ms()
        linked = [Metric(key, v, now, 0, model_id=model_id) for key, v in metrics.items()]
        client.log_batch(run_id, linked, synchronous=True)
    return model_id


def log_scheme(
    tracking_uri: str, scheme: CorrectionScheme, *, output: Path | str, name: str
) -> str:
    """Log a scheme that does not belong to a sweep as a model of the experiment `schemes`.

    Parameters
    ----------
    tracking_uri : str
        Tracking URI of the store; a SQLite file is created if it does not exist.
    scheme : CorrectionScheme
        The scheme.
    output : path-like
        Folder of the artifacts if the store has no server.
    name : str
        Name of the model.

    Returns
    -------
    str
        Id of the model, for `register_model`.
    """
    client = open_store(tracking_uri, create=True)
    experiment = make_experiment(client, _EXPERIMENT, Path(output))
    return log_model(client, scheme, experiment_id=experiment.experiment_id, name=name)


def log_cell_scheme(tracking_uri: str, cell: StoredCell) -> str:
    """Log the scheme of a cell as a model of its run.

    The scheme is that of the record, whose digest is checked, and not a copy among the artifacts.

    Parameters
    ----------
    tracking_uri : str
        Tracking URI of the store.
    cell : StoredCell
        The cell.

    Returns
    -------
    str
        Id of the model, for `register_model`.

    Raises
    ------
    dcs.errors.TrackingError
        Raised if the method of the cell has no scheme to serve, the cell is not recorded, or the
        folder of its SQLite store was moved.
    """
    record = cell.record
    if cell.experiment_id is None:
        raise TrackingError(f"cell {record.key} is not recorded in MLflow; run `dcs sync`")
    if record.scheme is None or not has_chosen(record):
        raise TrackingError(
            f"run {cell.run_id} has no scheme to serve; give a run of a method that searches for "
            "a scheme"
        )
    client = open_store(tracking_uri)
    usable_experiment(client, client.get_experiment(cell.experiment_id).name)
    scheme = CorrectionScheme.from_dict(record.scheme)
    return log_model(
        client, scheme, experiment_id=cell.experiment_id, name=record.key, run_id=cell.run_id
    )


def check_registered_names(name: str, alias: str | None) -> None:
    """Check the name and the alias of a registered model, before anything is logged.

    Raises
    ------
    dcs.errors.ConfigError
        Raised if MLflow, or the command that serves the model, would not accept one.
    """
    if not re.fullmatch(r"(?![-\s])[^/:'\"]{1,200}(?<!\s)", name) or not name.isprintable():
        raise ConfigError(
            f"--name {show(name)}: must be 1 to 200 printable characters without / : ' \", not "
            "beginning with a hyphen"
        )
    if alias is not None and not re.fullmatch(r"(?!latest$|v\d+$)\w[\w-]{0,199}", alias.lower()):
        raise ConfigError(
            f"--alias {show(alias)}: must be 1 to 200 letters, digits, hyphens and underscores, "
            "neither latest nor a version such as v1"
        )


def register_model(
    tracking_uri: str, model_id: str, name: str, *, alias: str | None = None
) -> str:
    """Register a logged model as a new version of a registered model.

    Parameters
    ----------
    tracking_uri : str
        Tracking URI of the store.
    model_id : str
        Id of the logged model.
    name : str
        Name of the registered model, which is created if it does not exist; see
        `check_registered_names`.
    alias : str, optional
        Alias of this version, such as ``champion``; moved from an earlier version.

    Returns
    -------
    str
        Number of the version.

    Raises
    ------
    dcs.errors.TrackingError
        Raised if the store has no registry, or does not accept the name.
    """
    from mlflow.exceptions import MlflowException

    client = open_store(tracking_uri)
    try:
        if not client.search_registered_models(f"name = '{name}'"):
            client.create_registered_model(name)
        model = client.get_logged_model(model_id)
        # Not its models:/ URI, which MLflow looks up in the store of the environment.
        made = client.create_model_version(name, model.artifact_location, model.source_run_id)
        if alias is not None:
            client.set_registered_model_alias(name, alias, made.version)
    except MlflowException as error:
        raise TrackingError(f"model {name!r} cannot be registered: {one_line(error)}") from error
    return str(made.version)
