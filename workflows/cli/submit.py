"""``dcs submit``: a sweep handed to a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from workflows.cli.options import (
    Config,
    Data,
    Models,
    Only,
    Output,
    RetryFailed,
    Settings,
    TrackingUri,
    sweep_file,
)

__all__ = ["submit"]


def submit(
    config: Config,
    address: Annotated[
        str,
        typer.Option("--address", metavar="URL", help="The dashboard, mostly through a tunnel."),
    ] = "http://127.0.0.1:8265",
    output: Output = Path("/mnt/dcs/runs"),
    tracking_uri: TrackingUri = None,
    model: Models = None,
    only: Only = None,
    settings: Settings = None,
    retry_failed: RetryFailed = False,
    data: Data = None,
    working_dir: Annotated[
        Path | None,
        typer.Option(
            "--working-dir",
            metavar="FOLDER",
            help="Files to upload too, at most 100 MiB; hidden ones stay here.",
        ),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Do not wait: print the job's id and leave.")
    ] = False,
) -> None:
    """Run a sweep on a Ray cluster as a job, follow it, and end with its exit code.

    Folders and addresses are those of the cluster; only the configuration is uploaded. Ctrl-C
    ends the following, not the job. The cluster's token is read from RAY_AUTH_TOKEN.
    """
    from dcs.errors import ConfigError
    from dcs.messages import redact
    from workflows.cluster.jobs import follow_job, open_jobs, start_job
    from workflows.config.sweep import load_config, narrowed

    for text in filter(None, [tracking_uri, *(settings or [])]):
        if redact(text) != text:
            raise ConfigError(
                f"{redact(text)}: the password would be shown with the job; set "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, DCS_OPTUNA_STORAGE or "
                "PGPASSWORD on the cluster instead"
            )
    # Errors in the configuration show here and not on the cluster.
    file = sweep_file(config)
    narrowed(load_config(file, sets=settings or (), models=model), only or [])
    options = ["--output", str(output), *(["--retry-failed"] if retry_failed else [])]
    given = [("--tracking-uri", tracking_uri), ("--data", data)]
    for option, several in (("--model", model), ("--only", only), ("--set", settings)):
        given += [(option, value) for value in several or []]
    for name, value in given:
        options += [] if value is None else [name, str(value)]
    client = open_jobs(address)
    job = start_job(client, file, options, working_dir=working_dir)
    typer.echo(
        f"job {job} goes on when this command ends; to stop it: ray job stop --address {address} "
        f"{job}, to follow it again: ray job logs --address {address} --follow {job}"
    )
    if not detach:
        raise SystemExit(follow_job(client, job, lambda text: typer.echo(text, nl=False)))
