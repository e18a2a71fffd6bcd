"""What people see of schemes: their figures on labelled rows, and the front that one is from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, get_args

import numpy as np
from rich.table import Table

from dcs.data.table import ProbabilityTable
from dcs.evaluation.metrics import FIGURES, confusion_matrix
from dcs.evaluation.uncertainty import (
    Interval,
    bootstrap_intervals,
    compare_predictions,
    percent,
    sentence_of_chance,
)
from dcs.io import atomic_write_bytes
from dcs.schemes.scheme import CorrectionScheme
from dcs.selection.ensemble import inputs_of
from dcs.selection.front import FittedScheme, FrontPoint, Prefer, Preference
from tracking.records import CellRecord
from workflows.cli.console import column_tables, console, new_table
from workflows.tables import Rows

#: Heads of the figures of schemes, and the same where there is little room.
_TITLES: Final = ("accuracy ↑", "COBias ↓", "balanced accuracy ↑", "macro-F1 ↑", "weakest class ↑")
_SHORT_TITLES: Final = ("accuracy", "COBias", "balanced", "macro-F1", "weakest")

#: Lines of a front, if no more points have an option by name.
_MOST_POINTS: Final = 20

#: Standard errors to either side in which 95 % of estimates lie.
_REACH: Final = 1.96

#: A cost of which chance is less likely than this is warned of.
_SIGNIFICANT: Final = 0.05

#: Figures whose changes are tested.
_TESTED: Final = ("accuracy", "cobias")


def show_tuned(
    name: str, rows: Mapping[str, Rows], schemes: Mapping[str, CorrectionScheme]
) -> None:
    """Print how schemes do on the held-out rows of a table, or why that cannot be told."""
    fitted, held_out = rows["optimization"], rows["test"]
    labelled = int(fitted.labelled.sum())
    if labelled < fitted.n_rows:
        console.print(f"{name}: of {fitted.n_rows} rows to fit on {labelled} have labels")
    if held_out.labelled.any():
        judged = held_out.only_labelled()
        show_judgement(f"{name}: % of {judged.n_rows} held-out rows", judged, schemes)
    else:
        console.print(
            "No row has a label: this is batch calibration, which makes the mean probabilities of "
            "all classes alike. What it does to accuracy and COBias nobody can tell without "
            "labels; label some hundred rows and tune again.",
            style="yellow",
        )


def show_judgement(title: str, rows: Rows, schemes: Mapping[str, CorrectionScheme]) -> None:
    """Print how schemes do on labelled rows, beside each other."""
    console.print(f"{title} [95 % interval]", style="bold")
    console.print(*judged_tables(rows, schemes, width=console.width))


def judged_tables(
    rows: Rows, schemes: Mapping[str, CorrectionScheme], *, width: int
) -> Iterator[Table]:
    """Judge schemes on labelled rows: a column for each, figures and class accuracies as rows.

    Under accuracy and COBias stand the changes, tested on the same rows, against the first scheme
    and, where there are more than two, against the second.

    Parameters
    ----------
    rows : ProbabilityTable or TableEnsemble
        The rows.
    schemes : mapping of str to CorrectionScheme
        By the heads of their columns; the classes in the order of the rows.
    width : int
        Characters there are. Columns that do not fit come on a table of their own.
    """
    against = [*schemes][: min(2, len(schemes) - 1)]
    labels, n_classes = rows.labels, rows.n_classes
    predictions = {
        name: scheme.predict(inputs_of(scheme, rows)) for name, scheme in schemes.items()
    }
    columns: dict[str, list[str]] = {}
    for name, predicted in predictions.items():
        found = bootstrap_intervals(confusion_matrix(labels, predicted, n_classes))
        pairs = {
            reference: compare_predictions(labels, predictions[reference], predicted, n_classes)
            for reference in against
        }
        heads, texts = [], []
        for figure, title in zip(FIGURES, _TITLES, strict=True):
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
                f"warning: about {100 * share:.0f} % of the rows that {name} was fitted on are "
                "among these; its figures here flatter it, those that count are of other rows",
                style="yellow",
            )


def show_front(fitted: FittedScheme) -> None:
    """Print a front, a line for each point with the option that picks it, and what to mind.

    Points that no other beats are shown, those that an option picks by name, and the uncorrected
    one; the most accurate first, the chosen one marked. Of very many that have no name some are
    left out.
    """
    chosen, plain = fitted.chosen, fitted.points[-1]
    picked = _options(fitted)
    named = [p for p in fitted.points if id(p) in picked or p is chosen or p is plain]
    others = [p for p in fitted.front if not any(p is each for each in named)]
    kept = others[:: 1 + len(others) // max(1, _MOST_POINTS - len(named))]
    table = new_table("--prefer ", *_SHORT_TITLES, dense=True)
    for column in table.columns[1:]:
        column.no_wrap = True
    for point in sorted((*named, *kept), key=lambda p: (-p.accuracy, p.cobias)):
        names = picked.get(id(point)) or [
            "uncorrected" if point is plain else _limit(fitted, point)
        ]
        found = bootstrap_intervals(np.array(point.confusion), resamples=500)
        reach = (_REACH * getattr(found, name).standard_error for name in FIGURES)
        # Limits are held against the COBias that is not due to the folds being small.
        estimate = replace(point.estimate, cobias=point.lasting_cobias)
        figures = (percent(getattr(estimate, name)) for name in FIGURES)
        mark, style = ("→ ", "bold") if point is chosen else ("", "")
        texts = (f"{a} ±{percent(b)}" for a, b in zip(figures, reach, strict=True))
        table.add_row(mark + ", ".join(names), *texts, style=style)
    some = "" if len(kept) == len(others) else f"; {len(kept)} of {len(others)} in between"
    rows = plain.estimate.n_rows
    console.print(f"front: % of {rows} rows, cross-validated, ± 95 %{some}", style="bold")
    console.print(table)
    if said := _advice(fitted):
        console.print(said, style="yellow")


def _options(fitted: FittedScheme) -> dict[int, list[str]]:
    """Return the names that pick points, for the id of each such point."""
    found: dict[int, list[str]] = {}
    for name in get_args(Prefer):
        found.setdefault(id(fitted.pick(Preference(prefer=name)).chosen), []).append(name)
    return found


def _limit(fitted: FittedScheme, point: FrontPoint) -> str:
    """Return the limit that picks a point, or nothing where none does."""
    loss = max(each.accuracy for each in fitted.points) - point.accuracy
    low, near = (math.ceil(1000 * share) / 10 for share in (point.lasting_cobias, loss))
    options = {
        f"--max-cobias {low:g}": Preference(max_cobias=low),
        f"--max-accuracy-loss {near:g}": Preference(max_accuracy_loss=near),
        f"accuracy --max-cobias {low:g}": Preference("accuracy", max_cobias=low),
    }
    picks = (text for text, each in options.items() if fitted.pick(each).chosen is point)
    return next(picks, "")


def _advice(fitted: FittedScheme) -> str:
    """Return one sentence where nothing was changed or the choice has its price, else nothing."""
    chosen, plain = fitted.chosen, fitted.points[-1]
    if chosen is not plain:
        change = chosen.change
        price = _price(
            change.accuracy, chosen.lasting_cobias - plain.lasting_cobias, change.accuracy_p
        )
        return price and f"{price}; --prefer no-harm costs none beyond noise"
    fairer = [point for point in fitted.front if point.cobias < plain.cobias]
    if not fairer:
        return "no class is corrected: no point that was tried is fairer"
    accuracy = fairer[0].accuracy - plain.accuracy
    bias = fairer[0].lasting_cobias - plain.lasting_cobias
    return (
        "no class is corrected: no point is preferred beyond noise; the next changes accuracy by "
        f"{100 * accuracy:+.1f} and COBias by {100 * bias:+.1f} points"
    )


def show_learning_curve(records: Sequence[CellRecord], method: str, path: Path) -> None:
    """Print what a method reaches with more and more labelled rows, and write the figure."""
    from tracking.results.figures import learning_curve_figure
    from tracking.results.frames import learning_curve_frame
    from tracking.results.style import figure_bytes

    frame = learning_curve_frame(records, method=method)
    console.print("% of the same held-out rows by labelled rows", style="bold")
    shown = new_table("labelled rows ", "rows ", "accuracy ↑", "COBias ↓")
    for row in frame.sort_values(["labelled", "rows_used"]).to_dict("records"):
        figures = (percent(row[measure]) for measure in _TESTED)
        shown.add_row(f"{row['labelled']:,}", row["rows_used"], *figures)
    console.print(shown)
    figure = learning_curve_figure(records, method=method)
    atomic_write_bytes(path, figure_bytes(figure, "svg"))
    console.print(f"learning curve written to {path}")


def cost_of(record: CellRecord) -> str:
    """Return a sentence where a scheme costs accuracy on held-out rows, else nothing."""
    values = record.metrics
    accuracy, bias = (
        values[f"test/{name}"] - values[f"uncorrected/test/{name}"]
        for name in ("accuracy", "cobias")
    )
    return _price(accuracy, bias, values["test/accuracy_p"])


def _price(accuracy: float, cobias: float, p: float) -> str:
    if accuracy >= 0.0 or p >= _SIGNIFICANT:
        return ""
    return (
        f"warning: the choice costs {-100 * accuracy:.1f} points of accuracy "
        f"({sentence_of_chance(p)}) for {100 * cobias:+.1f} points of COBias"
    )
