"""``dcs sweep``: a grid of cells from a YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from workflows.cli._engine import Yes, with_engine_options
from workflows.cli._options import (
    Config,
    Data,
    Models,
    Only,
    Output,
    RetryFailed,
    TrackingUri,
    sweep_file,
)

__all__ = ["sweep"]


@with_engine_options
def sweep(
    config: Config,
    model: Models = None,
    data: Data = None,
    only: Only = None,
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="ROWS",
            help="Use at most so many texts of each split, to try a sweep out.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what there is to do, and do nothing.")
    ] = False,
    retry_failed: RetryFailed = False,
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            metavar="ADDRESS",
            help="Ray cluster to run on, e.g. auto or 10.0.0.5:6379; by default this machine.",
            show_default=False,
        ),
    ] = None,
    output: Output = Path("dcs-runs"),
    tracking_uri: TrackingUri = None,
    *,
    scoring: dict[str, Any],
    yes: Yes = False,
) -> None:
    """Run every cell of a sweep: models x tasks x shots x seeds x methods x ablations.

    What is finished is not computed again when the command is repeated, also after it was
    stopped or the machine went down. The command line wins over the file, the file over defaults.
    """
    from workflows.cli._planning import show_plan
    from workflows.cli._sweeping import sweep_and_show
    from workflows.config.sweep import load_config, narrowed

    whole = load_config(
        sweep_file(config),
        models=model,
        limit=limit,
        data=None if data is None else str(data.absolute()),
        scoring=scoring,
    )
    part = narrowed(whole, only or [])
    if dry_run:
        show_plan(part, output=output, retry_failed=retry_failed)
        return
    sweep_and_show(
        part,
        whole=whole,
        output=output,
        tracking_uri=tracking_uri,
        retry_failed=retry_failed,
        address=address,
        yes=yes,
    )
