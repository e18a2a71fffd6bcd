"""``dcs doctor``: whether this machine is ready, and what to do if not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from workflows.cli.console import console
from workflows.cli.options import Output, TrackingUri

__all__ = ["doctor"]


def doctor(
    output: Output = Path("dcs-runs"),
    tracking_uri: TrackingUri = None,
    quick: Annotated[bool, typer.Option("--quick", help="Do not look at GPUs and Ray.")] = False,
) -> None:
    """Check versions, disk, MLflow, GPUs and Ray by using them, and say what to do.

    Exit code 1 if one of them fails. Nothing is changed.
    """
    from workflows import doctor as checks

    todo = {
        "versions": checks.check_versions,
        "disk": lambda: checks.check_disk(output),
        "mlflow": lambda: checks.check_store(tracking_uri, output),
    }
    if not quick:
        todo |= {"gpu": checks.check_gpu, "ray": checks.check_ray}
    healthy = True
    for name, check in todo.items():
        passed, text = checks.result_of(check)
        healthy &= passed
        sign, style = ("ok", "green") if passed else ("failure", "red")
        console.print(f"{sign} {name}: {text}", style=style)
    if not healthy:
        raise SystemExit(1)
