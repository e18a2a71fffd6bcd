"""``dcs evaluate``: how accurate, and how even over the classes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dcs.evaluation.formatting import percent, sentence_of_chance

if TYPE_CHECKING:
    from dcs.evaluation.uncertainty import Interval

__all__ = ["evaluate"]


def evaluate(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="Probability table.")],
    scheme: Annotated[
        Path | None,
        typer.Option("--scheme", "-s", metavar="SCHEME", help="Correct with this scheme first."),
    ] = None,
) -> None:
    """Print accuracy, COBias and class accuracies of a table, before and after correction."""
    from rich.markup import escape

    from dcs.data.table import ProbabilityTable
    from dcs.evaluation.metrics import confusion_matrix
    from dcs.evaluation.uncertainty import bootstrap_intervals, compare_predictions
    from dcs.schemes.scheme import CorrectionScheme
    from workflows.cli._console import console, new_table

    probabilities = ProbabilityTable.read(table)
    schemes = {"uncorrected": CorrectionScheme.identity(probabilities.classes)}
    if scheme is not None:
        schemes["corrected"] = CorrectionScheme.load(scheme).for_classes(
            probabilities.classes, source=str(scheme)
        )
    labels, n_classes = probabilities.labels, probabilities.n_classes
    predictions = [correction.predict(probabilities.probs) for correction in schemes.values()]
    intervals = [
        bootstrap_intervals(confusion_matrix(labels, some, n_classes)) for some in predictions
    ]

    console.print(f"[bold]{table.name}[/bold]: % of {probabilities.n_rows} rows \\[95 % interval]")
    shown = new_table(" ", *schemes)
    shown.add_row("accuracy ↑", *(_figure(each.accuracy) for each in intervals), style="bold")
    shown.add_row("COBias ↓", *(_figure(each.cobias) for each in intervals), style="bold")
    shown.add_section()
    for index, name in enumerate(probabilities.classes):
        shown.add_row(escape(name), *(_figure(each.class_accuracies[index]) for each in intervals))
    console.print(shown)
    if scheme is not None:
        change = compare_predictions(labels, predictions[0], predictions[1], n_classes)
        console.print(
            f"change: accuracy {100 * change.accuracy.estimate:+.1f} points "
            f"({sentence_of_chance(change.accuracy_p)}), "
            f"COBias {100 * change.cobias.estimate:+.1f} points "
            f"({sentence_of_chance(change.cobias_p)})",
            highlight=False,
        )


def _figure(interval: Interval) -> str:
    ends = (interval.low, interval.high)
    # A class without rows has no accuracy.
    return percent(interval.estimate, interval=ends, padded=True) or "-"
