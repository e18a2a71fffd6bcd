"""``dcs sweep``: a grid of cells from a YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from workflows.cli._options import Output, TrackingUri

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sweep")(sweep)


def sweep(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG.yaml", help="The sweep: models, tasks, shots, ...")
    ],
    output: Output = Path("dcs-runs"),
    tracking_uri: TrackingUri = None,
) -> None:
    """Run every cell of a sweep: models x tasks x shots x seeds x methods.

    What is finished is not computed again when the command is repeated.
    """
    from workflows.cli._sweeping import sweep_and_show
    from workflows.config import load_config

    sweep_and_show(load_config(config), output=output, tracking_uri=tracking_uri)
