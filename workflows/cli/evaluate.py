"""``dcs evaluate``: how accurate, and how even over the classes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("evaluate")(evaluate)


def evaluate(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="Probability table.")],
    scheme: Annotated[
        Path | None,
        typer.Option("--scheme", "-s", metavar="SCHEME", help="Correct with this scheme first."),
    ] = None,
) -> None:
    """Print accuracy, COBias and class accuracies of a table, before and after correction."""
    from dcs.metrics import ClassificationMetrics
    from dcs.probabilities import ProbabilityTable
    from dcs.scheme import CorrectionScheme
    from workflows.cli._console import console, new_table

    probabilities = ProbabilityTable.read(table)
    columns = {"uncorrected": probabilities.probs.argmax(axis=1)}
    if scheme is not None:
        correction = CorrectionScheme.load(scheme).for_classes(
            probabilities.classes, source=str(scheme)
        )
        columns["corrected"] = correction.predict(probabilities.probs)
    metrics = [
        ClassificationMetrics.from_predictions(
            probabilities.labels, predictions, probabilities.n_classes
        )
        for predictions in columns.values()
    ]

    console.print(f"[bold]{table.name}[/bold]: % of {probabilities.n_rows} rows")
    shown = new_table(" ", *columns)
    shown.add_row("accuracy ↑", *(f"{100 * m.accuracy:.1f}" for m in metrics), style="bold")
    shown.add_row("COBias ↓", *(f"{100 * m.cobias:.1f}" for m in metrics), style="bold")
    shown.add_section()
    for index, name in enumerate(probabilities.classes):
        values = [m.class_accuracies[index] for m in metrics]
        # A class without rows has no accuracy.
        shown.add_row(name, *("-" if v != v else f"{100 * v:.1f}" for v in values))
    console.print(shown)
