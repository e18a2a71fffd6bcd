"""Options that several commands share, worded once, and the stores and cells that they name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workflows.cli.console import console

if TYPE_CHECKING:
    from tracking import Recorder
    from workflows.config.sweep import TrackingSettings

__all__ = [
    "Config",
    "Data",
    "Engine",
    "Limit",
    "Models",
    "Only",
    "Output",
    "RetryFailed",
    "Runs",
    "Seed",
    "Settings",
    "Tables",
    "TrackingUri",
    "Yes",
    "recorded_store",
    "recording",
    "sweep_file",
]

Config = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG.yaml",
        help="The sweep: models, tasks, shots, ... Or the name of one in the package: "
        "quickstart, paper_main, ...",
    ),
]

Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="tiny_lm, a model folder, a hub id, or a served model; repeatable. It takes the "
        "place of the models of a file.",
    ),
]

Tables = Annotated[
    list[str] | None,
    typer.Option(
        "--tables",
        metavar="PATH",
        help="Probability tables in the place of prompts: a file, a folder or a pattern; "
        "repeatable.",
    ),
]

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set any key of the configuration, e.g. tuner.trials=10 or scoring.dtype=bfloat16; "
        "the value in YAML; repeatable. It wins over the file.",
    ),
]

Engine = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="NAME",
        help="What scores the prompts: transformers (default), vllm, or openai (any "
        "OpenAI-compatible server); its options are the keys scoring.* of --set.",
    ),
]

Yes = Annotated[
    bool, typer.Option("--yes", help="openai: do not ask before requests that cost money.")
]

Limit = Annotated[
    int | None,
    typer.Option(
        "--limit",
        metavar="ROWS",
        min=1,
        help="Use at most so many texts of each split, to try it out.",
    ),
]

Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="AXIS=VALUE,...",
        help="Only the cells of these values, e.g. tasks=trec,rte or objectives=err; repeatable, "
        "one axis each.",
    ),
]

RetryFailed = Annotated[
    bool, typer.Option("--retry-failed", help="Compute cells again that failed earlier.")
]

Output = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        metavar="FOLDER",
        help="Folder for all that is written: MLflow database, probabilities, results.",
    ),
]

Runs = Annotated[
    Path,
    typer.Option(
        "--runs",
        "--output",
        "-o",
        metavar="FOLDER",
        help="Folder of the results, the --output of what made them.",
    ),
]

TrackingUri = Annotated[
    str | None,
    typer.Option(
        "--tracking-uri",
        metavar="URI",
        help="MLflow store, e.g. http://127.0.0.1:5000 or postgresql://...; "
        "by default an SQLite file in that folder.",
    ),
]

Seed = Annotated[
    int,
    typer.Option("--seed", min=0, help="Root seed of split, sampler and annealing."),
]

Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="FOLDER",
        help="Folder with the texts of the tasks: FOLDER/TASK/..., or the files themselves.",
    ),
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
