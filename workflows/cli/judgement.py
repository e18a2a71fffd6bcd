"""What people see of schemes: their figures on labelled rows, side by side and tested in pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from rich.table import Table

from dcs.data.table import ProbabilityTable
from dcs.evaluation.formatting import percent, sentence_of_chance
from dcs.evaluation.metrics import FIGURES, confusion_matrix
from dcs.evaluation.uncertainty import Interval, bootstrap_intervals, compare_predictions
from dcs.schemes.scheme import CorrectionScheme
from workflows.cli.console import column_tables, console

__all__ = ["FIGURE_TITLES", "UNCORRECTED", "judged_tables", "warn_of_fitted_rows"]

#: What the probabilities as they came are called.
UNCORRECTED: Final = "uncorrected"

FIGURE_TITLES: Final = dict(
    zip(
        FIGURES,
        ("accuracy ↑", "COBias ↓", "balanced accuracy ↑", "macro-F1 ↑", "weakest class ↑"),
        strict=True,
    )
)
#: Figures whose changes are tested.
_TESTED: Final = ("accuracy", "cobias")


def judged_tables(
    rows: ProbabilityTable, schemes: Mapping[str, CorrectionScheme], *, width: int
) -> Iterator[Table]:
    """Judge schemes on labelled rows: a column for each, figures and class accuracies as rows.

    Under accuracy and COBias stand the changes, tested on the same rows, against the first scheme
    and, where there are more than two, against the second.

    Parameters
    ----------
    rows : ProbabilityTable
        The rows.
    schemes : mapping of str to CorrectionScheme
        By the heads of their columns; the classes in the order of the rows.
    width : int
        Characters there are. Columns that do not fit come on a table of their own.
    """
    first, *others = schemes
    against = [first, *others[:1]] if len(others) > 1 else [first] if others else []
    labels, n_classes = rows.labels, rows.n_classes
    predictions = {name: scheme.predict(rows.probs) for name, scheme in schemes.items()}
    columns: dict[str, list[str]] = {}
    for name, predicted in predictions.items():
        found = bootstrap_intervals(confusion_matrix(labels, predicted, n_classes))
        pairs = {
            reference: compare_predictions(labels, predictions[reference], predicted, n_classes)
            for reference in against
        }
        heads, texts = [], []
        for figure, title in FIGURE_TITLES.items():
            heads.append(title)
            texts.append(_figure(getattr(found, figure)))
            for reference, pair in pairs.items() if figure in _TESTED else ():
                by, p = getattr(pair, figure).estimate, getattr(pair, f"{figure}_p")
                change = f"{100 * by:+.1f}, {sentence_of_chance(p)}"
                heads.append(f"  against {reference}")
                # Of the earlier ones the column of the later one tells.
                texts.append(change if reference in columns else "")
        columns[name] = [*texts, *map(_figure, found.class_accuracies)]
    return column_tables(" ", [*heads, *rows.classes], columns, width=width, ruled=len(heads))


def _figure(interval: Interval) -> str:
    # A class without rows has no accuracy.
    ends = interval.low, interval.high
    return percent(interval.estimate, interval=ends, padded=True) or "-"


def warn_of_fitted_rows(rows: ProbabilityTable, schemes: Mapping[str, CorrectionScheme]) -> None:
    """Warn where rows to be judged on are those that a scheme was fitted on."""
    for name, scheme in schemes.items():
        if share := scheme.share_fitted(rows):
            console.print(
                f"warning: about {share:.0%} of the rows that {name} was fitted on are among "
                "these; its figures here flatter it, those that count are of other rows",
                style="yellow",
            )
