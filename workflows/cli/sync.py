"""``dcs sync``: send to MLflow what could not be sent before."""

from __future__ import annotations

from pathlib import Path

from workflows.cli._options import Runs, TrackingUri

__all__ = ["sync"]


def sync(runs: Runs = Path("dcs-runs"), tracking_uri: TrackingUri = None) -> None:
    """Record in MLflow what is finished on disk but not recorded yet, each cell exactly once."""
    import tracking
    from workflows.cli._console import console

    with console.status("recording in MLflow") as status:
        reports = tracking.sync(
            runs,
            tracking_uri=tracking_uri,
            progress=lambda done, total: status.update(f"recording in MLflow: {done} of {total}"),
        )
    for report in reports:
        console.print(report.message, soft_wrap=True)
    if not reports:
        console.print(f"nothing to send: all that is finished under {runs} is recorded")
