"""Finds experiments, runs and artifacts in a store, and says in one line what is in the way."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dcs._messages import one_line, suggest
from dcs.errors import TrackingError
from tracking.stores import StoreUnavailable, open_client, quietly, redact, resolve_tracking_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run


def open_store(tracking_uri: str) -> MlflowClient:
    """Open a store to read from it, or say which one cannot be opened."""
    uri = resolve_tracking_uri(tracking_uri, ".")
    try:
        return open_client(uri)
    except StoreUnavailable as error:
        raise StoreUnavailable(f"tracking store {redact(uri)} cannot be used: {error}") from error


def open_experiment(tracking_uri: str, name: str) -> tuple[MlflowClient, str]:
    """Open a store, and return it with the id of one of its experiments."""
    client = open_store(tracking_uri)
    with quietly():
        found = client.get_experiment_by_name(name)
        if found is None:
            known = [item.name for item in client.search_experiments()]
            raise TrackingError(
                f"there is no experiment {name!r}{suggest(name, known)}; there are: "
                f"{', '.join(known)}"
            )
    check_active(found)
    return client, str(found.experiment_id)


def check_active(experiment: Experiment) -> None:
    """Refuse an experiment that was deleted, and say how to get it back."""
    if experiment.lifecycle_stage != "active":
        raise StoreUnavailable(
            f"experiment {experiment.name!r} is deleted there; restore it with `mlflow "
            f"experiments restore --experiment-id {experiment.experiment_id}` or choose another "
            "name"
        )


def search_runs(client: MlflowClient, experiment_id: str, where: str) -> Iterator[Run]:
    """Yield the runs of an experiment that fulfil a condition, oldest first."""
    token: str | None = None
    while True:
        with quietly():
            page = client.search_runs(
                [experiment_id],
                where,
                order_by=["attributes.start_time ASC"],
                max_results=1000,
                page_token=token,
            )
        yield from page
        token = page.token
        if not token:
            return


def artifact_text(client: MlflowClient, run: Run, name: str) -> str:
    """Return a text that was kept with a run, or say of which run it cannot be read."""
    from mlflow.artifacts import download_artifacts

    try:
        with quietly(), tempfile.TemporaryDirectory(prefix="dcs-") as folder:
            # Without the store's address MLflow would ask the one of the environment.
            path = download_artifacts(
                artifact_uri=f"{run.info.artifact_uri}/{name}",
                dst_path=folder,
                tracking_uri=client.tracking_uri,
            )
            return Path(path).read_text(encoding="utf-8")
    except Exception as error:
        raise TrackingError(
            f"{name} of run {run.info.run_id} cannot be read ({one_line(error)})"
        ) from error
