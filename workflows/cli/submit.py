"""``dcs submit``: a sweep handed to a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from workflows.cli._options import (
    Config,
    Models,
    Only,
    RetryFailed,
    TrackingUri,
    sweep_file,
)
from workflows.cli._signals import STOP

__all__ = ["submit"]


def submit(
    config: Config,
    address: Annotated[
        str,
        typer.Option(
            "--address", metavar="URL", help="The cluster's dashboard, mostly through a tunnel."
        ),
    ] = "http://127.0.0.1:8265",
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Folder on the cluster, on a file system that its nodes share.",
        ),
    ] = "/mnt/dcs/runs",
    tracking_uri: TrackingUri = None,
    model: Models = None,
    only: Only = None,
    retry_failed: RetryFailed = False,
    data: Annotated[
        str | None,
        typer.Option(
            "--data", metavar="FOLDER", help="Folder of texts on the cluster, as for `dcs sweep`."
        ),
    ] = None,
    working_dir: Annotated[
        Path | None,
        typer.Option(
            "--working-dir",
            metavar="FOLDER",
            help="Small files of your own to upload too, at most 1 MB in all.",
        ),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Do not wait: print the job's id and leave.")
    ] = False,
) -> None:
    """Run a sweep on a Ray cluster as a job, follow it, and end with its exit code.

    Only the configuration is uploaded. Ctrl-C ends the following, not the job. The same command
    again goes on where the last one ended. The cluster's token is read from RAY_AUTH_TOKEN.
    """
    from dcs.errors import ConfigError
    from dcs.messages import redact
    from workflows.cluster.jobs import follow_job, open_jobs, staged, start_job
    from workflows.config.sweep import load_config, narrowed

    if tracking_uri is not None and redact(tracking_uri) != tracking_uri:
        raise ConfigError(
            f"--tracking-uri {redact(tracking_uri)}: the password would be shown with the job; "
            "leave it out and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or "
            "PGPASSWORD for PostgreSQL, on the cluster"
        )
    # Mistakes show here and not on the cluster.
    file = sweep_file(config)
    narrowed(load_config(file, models=model), only or [])
    options = ["--output", output]
    for name, values in (("--model", model), ("--only", only)):
        for value in values or []:
            options += [name, value]
    for name, text in (("--tracking-uri", tracking_uri), ("--data", data)):
        if text is not None:
            options += [name, text]
    if retry_failed:
        options.append("--retry-failed")

    client = open_jobs(address)
    with staged(file, working_dir) as stage:
        job = start_job(client, file, stage, options)
    typer.echo(f"job {job} at {address}; to stop it: ray job stop --address {address} {job}")
    if detach:
        return
    try:
        code = follow_job(client, job, lambda text: typer.echo(text, nl=False))
    except KeyboardInterrupt:
        # Not this command's end is what matters here, so its own words and not the usual ones.
        STOP.number = None
        typer.echo(
            f"the job goes on; to follow it: ray job logs --address {address} --follow {job}",
            err=True,
        )
        raise SystemExit(130) from None
    raise SystemExit(code)
