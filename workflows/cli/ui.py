"""``dcs ui``: MLflow's own interface on the right store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from workflows.cli._options import Output, TrackingUri

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("ui")(ui)


def ui(
    output: Output = Path("dcs-runs"),
    tracking_uri: TrackingUri = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on 127.0.0.1.")] = 5000,
) -> None:
    """Open MLflow on the runs in --output; it listens on this machine only. Ctrl-C ends it."""
    import os
    import sys

    from dcs.errors import TrackingError
    from tracking import resolve_tracking_uri, ui_arguments
    from tracking.stores import redact
    from workflows.cli._console import console

    if tracking_uri is None and not (output / "mlflow.db").is_file():
        raise TrackingError(
            f"{output / 'mlflow.db'}: no such file; nothing is recorded there yet, "
            "run dcs quickstart or dcs tune first, or give --output or --tracking-uri"
        )
    uri = resolve_tracking_uri(tracking_uri, output)
    arguments = ui_arguments(uri, port=port)
    if redact(uri) != uri:
        # Whoever is on this machine sees the arguments of a process, but not its environment.
        at = arguments.index("--backend-store-uri")
        del arguments[at : at + 2]
        os.environ["MLFLOW_BACKEND_STORE_URI"] = uri
    console.print(f"MLflow at [bold]http://127.0.0.1:{port}[/bold]")
    # MLflow takes this process over, so that Ctrl-C and signals reach it and nothing stays behind.
    os.execv(sys.executable, arguments)
