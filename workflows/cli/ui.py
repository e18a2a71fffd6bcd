"""``dcs ui``: MLflow's own interface on the right store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from workflows.cli._options import Runs, TrackingUri, recorded_store

__all__ = ["ui"]


def ui(
    runs: Runs = Path("dcs-runs"),
    tracking_uri: TrackingUri = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on 127.0.0.1.")] = 5000,
) -> None:
    """Open MLflow on what is recorded; it listens on this machine only. Ctrl-C ends it."""
    import os
    import sys

    from tracking import ui_arguments
    from tracking.store.client import redact
    from workflows.cli._console import console

    uri = recorded_store(runs, tracking_uri)
    arguments = ui_arguments(uri, port=port)
    if redact(uri) != uri:
        # Whoever is on this machine sees the arguments of a process, but not its environment.
        at = arguments.index("--backend-store-uri")
        del arguments[at : at + 2]
        os.environ["MLFLOW_BACKEND_STORE_URI"] = uri
    console.print(f"MLflow at [bold]http://127.0.0.1:{port}[/bold]")
    # MLflow takes this process over, so that Ctrl-C and signals reach it and nothing stays behind.
    os.execv(sys.executable, arguments)
