"""``dcs sync``: send to MLflow what could not be sent before."""

from __future__ import annotations

from pathlib import Path

import typer

from workflows.cli._options import Output, TrackingUri

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sync")(sync)


def sync(output: Output = Path("dcs-runs"), tracking_uri: TrackingUri = None) -> None:
    """Record in MLflow what is finished on disk but not recorded yet, each cell exactly once."""
    import tracking
    from workflows.cli._console import console, trial_bar

    with trial_bar("recording", total=0) as progress:
        bar = progress.task_ids[0]
        reports = tracking.sync(
            output,
            tracking_uri=tracking_uri,
            progress=lambda done, total: progress.update(bar, completed=done, total=total),
        )
    for report in reports:
        console.print(report.message, soft_wrap=True)
    if not reports:
        console.print(f"nothing to send: all that is finished under {output} is recorded")
