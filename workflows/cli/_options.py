"""Options that several commands share, worded once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Data", "Output", "Seed", "TrackingUri"]

Output = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        help="Folder for all that is written: MLflow database, probabilities, results.",
        show_default=True,
    ),
]

TrackingUri = Annotated[
    str | None,
    typer.Option(
        "--tracking-uri",
        help="MLflow store, e.g. http://127.0.0.1:5000 or postgresql://...; "
        "by default an SQLite file in --output.",
        show_default=False,
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
        help="Folder with the texts of the tasks: DIR/TASK/..., or the files themselves.",
        show_default=False,
    ),
]
