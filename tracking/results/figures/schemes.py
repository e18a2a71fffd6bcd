"""What a scheme does to each class, drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from dcs.data.table import ProbabilityTable
from dcs.errors import InvalidInputError
from dcs.schemes.corrections import Correction, Weight
from dcs.schemes.scheme import CorrectionScheme
from tracking.records import CellRecord
from tracking.results.figures import style
from tracking.results.frames import name_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["BINS", "class_histograms", "scheme_figure"]

BINS = 40
"""Bars between 0 and 1."""

#: Inches of a panel, for what is left, right, below and above in it, and above all panels.
_WIDTH, _HEIGHT = 2.5, 2.2
_LEFT, _RIGHT, _BOTTOM, _TOP, _HEAD = 0.5, 0.08, 0.42, 0.4, 0.22


def class_histograms(
    table: ProbabilityTable, scheme: CorrectionScheme
) -> dict[str, list[list[int]]]:
    """Count how often the probabilities of each class occur, before its correction.

    Parameters
    ----------
    table : ProbabilityTable
        The rows, of the scheme's classes in any order.
    scheme : CorrectionScheme
        Its calibration, where it has one, comes before the corrections and so before the counts.

    Returns
    -------
    dict of str to list of list of int
        ``all`` and ``own``: for each class of the scheme, in its order, rows by probability in
        `BINS` bins of equal width; of all rows, and of the rows that belong to the class.
    """
    scheme_order = [table.classes.index(name) for name in scheme.classes]
    # The calibration mixes classes, in the order of the scheme.
    probs = table.probs[:, scheme_order]
    if scheme.calibration is not None:
        probs = scheme.calibration.apply(probs)
    counts: dict[str, list[list[int]]] = {"all": [], "own": []}
    for column, index in enumerate(scheme_order):
        values = probs[:, column]
        for name, chosen in (("all", values), ("own", values[table.labels == index])):
            counts[name].append(np.histogram(chosen, bins=BINS, range=(0.0, 1.0))[0].tolist())
    return counts


def scheme_figure(record: CellRecord, *, table: ProbabilityTable | None = None) -> Figure:
    """Draw the correction function of each class over the histogram of that class's probabilities.

    Parameters
    ----------
    record : CellRecord
        A cell with a scheme.
    table : ProbabilityTable, optional
        The table that the cell was tuned on (or tested on), instead of the histograms that the
        record keeps. Where there is neither, functions only.

    Returns
    -------
    matplotlib.figure.Figure
        A panel per class. The dark part of a bar are rows of that class, the light part all
        others; the dashed line would leave probabilities as they are.

    Raises
    ------
    InvalidInputError
        The cell has no scheme, or the table has other classes.
    """
    if record.scheme is None:
        raise InvalidInputError(f"cell {record.key} has no scheme to draw")
    scheme = CorrectionScheme.from_dict(record.scheme, source=f"cell {record.key}")
    counts = record.histograms
    if table is not None:
        scheme = scheme.for_classes(table.classes, source=f"cell {record.key}")
        counts = class_histograms(table, scheme)
    figure, panels = style.grid_of(
        len(scheme.classes), width=_WIDTH, height=_HEIGHT, columns=5, head=_HEAD, fitted=False
    )
    # Drawn for every cell: margins that are known need not be found out.
    width, height = figure.get_size_inches()
    figure.subplots_adjust(
        left=_LEFT / width,
        right=1.0 - _RIGHT / width,
        bottom=_BOTTOM / height,
        top=1.0 - (_HEAD + _TOP) / height,
        wspace=(_LEFT + _RIGHT) / (_WIDTH - _LEFT - _RIGHT),
        hspace=(_TOP + _BOTTOM) / (_HEIGHT - _TOP - _BOTTOM),
    )
    for index, (panel, name, correction) in enumerate(
        zip(panels, scheme.classes, scheme.corrections, strict=True)
    ):
        if counts:
            _draw_histogram(panel, counts["all"][index], counts["own"][index])
        points = np.linspace(0.0, 1.0, 257)
        panel.plot([0, 1], [0, 1], color=style.GREY, linewidth=0.9, linestyle=(0, (3, 3)))
        panel.plot(points, np.minimum(correction(points), 1.04), color=style.ACCENT, linewidth=2.2)
        panel.set_xlim(0, 1)
        panel.set_ylim(0, 1.04)
        panel.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
        panel.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
        style.tidy(panel, grid=None)
        style.title(panel, f"{name}\n{_brief(correction)}")
        style.place_labels(panel, left=0.36, below=0.25)
    panels[0].set_ylabel("corrected", color=style.INK)
    kind = "calibrated probability" if scheme.calibration else "probability"
    panels[0].set_xlabel(kind, color=style.INK)
    figure.suptitle(
        name_of(record.identity, "method", "task", "shots", "seed"),
        x=0.01,
        # The same way below the edge of a figure of one row as of ten.
        y=1.0 - 0.03 / height,
        ha="left",
        va="top",
        fontsize=10,
        color=style.INK,
        weight="bold",
    )
    return figure


def _draw_histogram(axes: Axes, total: ArrayLike, own: ArrayLike) -> None:
    rows = np.asarray(total)
    edges = np.linspace(0.0, 1.0, len(rows) + 1)
    # Most probabilities lie near 0: on a square-root scale the others are seen too.
    heights = np.sqrt(rows / max(1, rows.max()))
    share = np.asarray(own) / np.maximum(rows, 1)
    axes.stairs(heights, edges, fill=True, color=style.LIGHT, linewidth=0)
    axes.stairs(heights * share, edges, fill=True, color=style.GREY, linewidth=0)


def _brief(correction: Correction) -> str:
    if isinstance(correction, Weight):
        return "unchanged" if correction.value == 1.0 else f"weight {correction.value:.2f}"
    return correction.name
