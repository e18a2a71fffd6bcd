"""The figures that a cell and a whole sweep have data for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from dcs.errors import InvalidInputError
from tracking import schema
from tracking.records import CellRecord
from tracking.results.figures import results, search
from tracking.results.figures.schemes import scheme_figure
from tracking.results.figures.style import figure_files
from tracking.results.frames import finished_cells, has_chosen
from tracking.results.settings import OBJECTIVE, axes_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ABLATION", "cell_figures", "overview_figures", "sweep_figures"]

#: Names of the figures of ablations begin so.
ABLATION = "ablation"

_FIGURES: dict[str, tuple[str, Callable[[list[CellRecord]], Figure]]] = {
    "class_accuracies": (
        "Class accuracies before and after correction by DCS{mean}: the nearer the filled dots "
        "of a panel lie to one upright line, the fairer",
        results.class_accuracy_figure,
    ),
    "accuracy_cobias": (
        "Accuracy against COBias{sure}; numbers are shots. "
        "Good is up and to the left; what lies below and right of the line is beaten in both",
        results.tradeoff_figure,
    ),
    "class_groups": (
        "Accuracy from the weakest to the strongest classes: correction lifts the first at the "
        "cost of the last, more evenly the flatter the bars of a colour",
        results.class_group_figure,
    ),
    ABLATION: ("DCS by the terms of its objective{spread}", results.ablation_figure),
    "annealing_time": (
        "Time of the search against its size, both on logarithmic scales{spread}",
        search.time_figure,
    ),
    "importances": (
        "How much of what trials reached each hyperparameter explains: mean decrease in impurity "
        "of a random forest over the trials of all cells",
        search.importance_figure,
    ),
    "slices": (
        "What each value of each hyperparameter of DCS reached, a dot per trial, the later the "
        "darker: where a cloud is level, the value hardly matters",
        search.slice_figure,
    ),
}
_SPREAD = ", mean and standard deviation over seeds"
_OVER_SEEDS = {"mean": ", mean over seeds", "spread": _SPREAD, "sure": _SPREAD}
_ONE_SEED = {"mean": "", "spread": "", "sure": ", with 95 % intervals"}


def overview_figures(records: Iterable[CellRecord]) -> dict[str, tuple[str, Figure]]:
    """Return the figures of a sweep by name, each with its caption.

    Parameters
    ----------
    records : iterable of CellRecord
        The cells; failed ones are left out.

    Returns
    -------
    dict of str to (str, matplotlib.figure.Figure)
        Without those for which there are no data.
    """
    cells = finished_cells(records)
    drawn = _FIGURES | {
        f"{ABLATION}_{axis.name}": (
            f"Accuracy and COBias by {axis.title}{{spread}}",
            partial(results.axis_figure, axis_name=axis.name),
        )
        for axis in axes_of(cells)
        if axis.name != OBJECTIVE
    }
    several = len({cell.identity.get("seed") for cell in cells}) > 1
    words = _OVER_SEEDS if several else _ONE_SEED
    figures = {}
    for name, (caption, draw) in drawn.items():
        try:
            figures[name] = caption.format_map(words), draw(cells)
        except InvalidInputError:
            continue  # Nothing of that kind in this sweep.
    return figures


def cell_figures(record: CellRecord) -> dict[str, bytes]:
    """Return the figures of one cell as files.

    Parameters
    ----------
    record : CellRecord
        The cell.

    Returns
    -------
    dict of str to bytes
        By artifact path, ``figures/scheme.png`` and ``.svg`` where a scheme was chosen,
        ``figures/annealing.png`` and ``.svg`` where there is a trace; empty for a failed cell.
    """
    files: dict[str, bytes] = {}
    if record.finished and has_chosen(record):
        files |= figure_files(scheme_figure(record), f"{schema.FIGURES_FOLDER}/scheme")
    if record.finished and record.trace:
        files |= figure_files(search.trace_figure(record), f"{schema.FIGURES_FOLDER}/annealing")
    return files


def sweep_figures(records: Iterable[CellRecord]) -> dict[str, bytes]:
    """Return the figures of a whole sweep as files, by artifact path; see `overview_figures`."""
    files: dict[str, bytes] = {}
    for name, (_, figure) in overview_figures(records).items():
        files |= figure_files(figure, f"{schema.FIGURES_FOLDER}/{name}")
    return files
