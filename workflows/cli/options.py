"""Options that several commands share, worded once, and the stores that they name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workflows.cli.console import console

if TYPE_CHECKING:
    from tracking import Recorder
    from workflows.config.sweep import TrackingSettings

Config = Annotated[
    Path,
    typer.Argument(metavar="CONFIG.yaml", help="The sweep, or one that comes along: quickstart"),
]
Models = Annotated[
    list[str] | None,
    typer.Option("--model", metavar="MODEL", help="Folder, hub id or served name; repeatable."),
]
Tables = Annotated[
    list[str] | None,
    typer.Option("--tables", metavar="PATH", help="Tables in place of prompts; repeatable."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any key of the YAML: tuner.trials=10"),
]
Engine = Annotated[
    str | None,
    typer.Option("--engine", metavar="NAME", help="What scores prompts: vllm, openai, ..."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask before requests that cost money.")]
Limit = Annotated[
    int | None, typer.Option("--limit", metavar="ROWS", min=1, help="Most texts of each split.")
]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="AXIS=VALUE,...", help="Only such cells: tasks=trec,rte"),
]
Output = Annotated[
    Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where everything is written.")
]
#: Where commands look that only read.
Runs = Annotated[
    Path,
    typer.Option("--runs", "--output", "-o", metavar="FOLDER", help="The --output of the runs."),
]
TrackingUri = Annotated[
    str | None,
    typer.Option("--tracking-uri", metavar="URI", help="MLflow; by default FOLDER/mlflow.db."),
]
Seed = Annotated[
    int, typer.Option("--seed", metavar="N", min=0, help="Root seed of all that is random.")
]
Data = Annotated[
    Path | None, typer.Option("--data", metavar="FOLDER", help="Texts of tasks: FOLDER/TASK/...")
]


def sweep_file(config: Path) -> Path:
    """Return the file of a sweep: a bare word that is no file names one in the package."""
    from workflows.config.sweep import packaged_config

    return config if config.suffix or config.exists() else packaged_config(str(config))


def recording(
    tracking_uri: str | None, *, output: Path, tracking: TrackingSettings, **sweep: Any
) -> Recorder:
    """Return what records a sweep as the configuration says, and warns on the terminal."""
    from tracking import Recorder

    return Recorder(
        tracking_uri,
        output=output,
        trials=tracking.trials,
        figures=tracking.figures,
        warn=lambda line: console.print(line, style="yellow"),
        **sweep,
    )


def recorded_store(runs: Path, tracking_uri: str | None) -> str:
    """Return the address of a store that is only read.

    MLflow would make a database that is not there, and then find nothing in it.

    Raises
    ------
    dcs.errors.TrackingError
        It is an SQLite file that does not exist.
    """
    from dcs.errors import TrackingError
    from tracking import resolve_tracking_uri

    uri = resolve_tracking_uri(tracking_uri, runs)
    _, is_sqlite, name = uri.partition("sqlite:///")
    file = Path(name.partition("?")[0]) if tracking_uri else runs / "mlflow.db"
    if is_sqlite and not file.is_file():
        raise TrackingError(
            f"{file}: no such file; nothing is recorded there yet: run dcs quickstart, dcs tune "
            "or dcs sweep first, or say where the results are with --runs or --tracking-uri"
        )
    return uri
