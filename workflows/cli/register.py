"""``dcs register``: a scheme as a version of a named MLflow model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from workflows.cli._options import Runs, TrackingUri, recorded_store

__all__ = ["register_model"]


def register_model(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A run id or a cell key, or how it begins."),
    ],
    name: Annotated[str, typer.Option("--name", help="The model; made if there is none.")],
    alias: Annotated[
        str | None,
        typer.Option(help="A name for this version, e.g. champion.", show_default=False),
    ] = None,
    runs: Runs = Path("dcs-runs"),
    tracking_uri: TrackingUri = None,
) -> None:
    """Register the scheme of a run as an MLflow model, and say how to serve it."""
    from tracking import Archive
    from tracking.store.client import redact
    from tracking.store.queries import find_cell
    from tracking.store.serving import register_scheme
    from workflows.cli._console import console

    uri = recorded_store(runs, tracking_uri)
    with console.status("registering"):
        cell = find_cell(uri, run, archive=Archive(runs))
        version = register_scheme(uri, cell.run_id, name, alias=alias)
    served = f"models:/{name}@{alias}" if alias else f"models:/{name}/{version}"
    console.print(f"version {version} of model {name!r} is run {cell.run_id}")
    console.print("next:", highlight=False)
    console.print(
        f"  MLFLOW_TRACKING_URI={redact(uri)} mlflow models serve -m {served} "
        "--env-manager local --port 5001",
        soft_wrap=True,
        highlight=False,
    )
