"""``dcs apply``: a scheme on new probabilities."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["apply"]


def apply(
    scheme: Annotated[Path, typer.Argument(metavar="SCHEME", help="scheme.json of dcs tune.")],
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="Probability table.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="OUT", help="The Parquet file to write.")
    ],
) -> None:
    """Write the corrected probabilities of a table, as a table of the same form."""
    from dcs.data.table import ProbabilityTable
    from dcs.schemes.scheme import CorrectionScheme
    from workflows.cli._console import console

    probabilities = ProbabilityTable.read(table)
    correction = CorrectionScheme.load(scheme).for_classes(
        probabilities.classes, source=str(scheme)
    )
    before = probabilities.probs.argmax(axis=1)
    changed = int((correction.predict(probabilities.probs) != before).sum())
    probabilities.with_probs(correction.apply(probabilities.probs)).write(output)
    console.print(
        f"{output}: {probabilities.n_rows} rows, {changed} predictions changed",
        highlight=False,
        soft_wrap=True,
    )
    console.print(f"next: [bold]dcs evaluate {output}[/bold]", soft_wrap=True)
