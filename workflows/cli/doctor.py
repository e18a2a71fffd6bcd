"""``dcs doctor``: whether this machine is ready, and what mends it if not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workflows.cli._options import Output, TrackingUri

if TYPE_CHECKING:
    from workflows.doctor import Finding

__all__ = ["doctor"]

_SIGNS = {"ok": "[green]ok[/green]", "warning": "[yellow]warning[/yellow]"}


def doctor(
    output: Output = Path("dcs-runs"),
    tracking_uri: TrackingUri = None,
    optuna_storage: Annotated[
        str | None,
        typer.Option(
            "--optuna-storage",
            metavar="URL",
            help="Where studies are written down; by default DCS_OPTUNA_STORAGE, if it is set.",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out what starts Ray or loads a model.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the findings as JSON, for programs.")
    ] = False,
) -> None:
    """Check Python, packages, GPU, Ray, MLflow, Optuna, disk and model; say what mends them.

    Each line is ok, a warning, or a failure with its fix. Exit code 1 if there is a failure.
    Nothing is changed. With the options of a sweep, its stores are looked at.
    """
    from workflows.doctor import examine

    found: list[Finding] = []
    for finding in examine(
        output, tracking_uri=tracking_uri, optuna_storage=optuna_storage, quick=quick
    ):
        found.append(finding)
        if not json:
            _show(finding)
    counts = {
        status: sum(finding.status == status for finding in found)
        for status in ("ok", "warning", "failure")
    }
    if json:
        _print_json(found, counts)
    else:
        typer.echo(
            f"{counts['ok']} ok, {counts['warning']} warnings, {counts['failure']} failures"
        )
    if counts["failure"]:
        raise SystemExit(1)


def _show(finding: Finding) -> None:
    from workflows.cli._console import console

    sign = _SIGNS.get(finding.status, "[red]failure[/red]")
    console.print(f"{sign} {finding.name}: {finding.text}", highlight=False, soft_wrap=True)
    if finding.fix:
        console.print(f"   [dim]fix:[/dim] {finding.fix}", highlight=False, soft_wrap=True)


def _print_json(found: list[Finding], counts: dict[str, int]) -> None:
    import json
    from dataclasses import asdict

    body = {"usable": not counts["failure"], "findings": [asdict(item) for item in found]}
    typer.echo(json.dumps(body, indent=1, ensure_ascii=False))
