"""``dcs quickstart``: the main job on the embedded model and tasks."""

from __future__ import annotations

from pathlib import Path

from workflows.cli._options import Output, TrackingUri

__all__ = ["quickstart"]


def quickstart(output: Output = Path("dcs-runs"), tracking_uri: TrackingUri = None) -> None:
    """Run the main job on the built-in demonstration model and tasks: a minute or two.

    A tiny language model scores two generated tasks with 1-shot and N-shot prompts and three
    seeds; ICL, DNIP, FuRud and DCS are compared on the same texts; all runs are in MLflow
    afterwards. What is finished is not computed again when the command is repeated.
    """
    from workflows.cli._sweeping import sweep_and_show
    from workflows.config.sweep import load_config, packaged_config

    config = load_config(packaged_config("quickstart"))
    sweep_and_show(config, whole=config, output=output, tracking_uri=tracking_uri)
