"""``dcs import``: other people's files into probability tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("import")(import_)


def import_(
    format: Annotated[str, typer.Argument(metavar="FORMAT", help="What the file is: npz, ...")],
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The file or folder to read.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="TABLE", help="The Parquet file to write.")
    ],
    normalise: Annotated[
        bool, typer.Option("--normalise", help="Divide each row by its sum instead of refusing.")
    ] = False,
) -> None:
    """Turn class probabilities from elsewhere into a probability table."""
    from dcs.importers import import_file
    from dcs.metrics import ClassificationMetrics
    from workflows.cli._console import console

    table = import_file(format, path, normalise=normalise)
    table.write(output)
    metrics = ClassificationMetrics.from_predictions(
        table.labels, table.probs.argmax(axis=1), table.n_classes
    )
    console.print(
        f"{output}: {table.n_rows} rows, {table.n_classes} classes "
        f"({', '.join(table.classes)}); accuracy {100 * metrics.accuracy:.1f} %, "
        f"COBias {100 * metrics.cobias:.1f}",
        highlight=False,
        soft_wrap=True,
    )
    console.print(f"next: [bold]dcs tune {output}[/bold]")
