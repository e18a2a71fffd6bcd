"""What a scheme does to each class, drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dcs.data.table import ProbabilityTable
from dcs.errors import InvalidInputError
from dcs.schemes.corrections import Correction, Weight
from dcs.schemes.scheme import CorrectionScheme
from tracking.records import CellRecord
from tracking.results.figures.style import (
    ACCENT,
    GREY,
    INK,
    LIGHT,
    Frame,
    grid_of,
    place_labels,
    tidy,
    title,
)
from tracking.results.frames import method_title, place, shots_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from dcs.data.table import ProbabilityTable

__all__ = ["BINS", "class_histograms", "scheme_figure"]


BINS = 40

"""Bars between 0 and 1."""


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
    edges = np.linspace(0.0, 1.0, BINS + 1)
    counts: dict[str, list[list[int]]] = {"all": [], "own": []}
    for column, index in enumerate(scheme_order):
        values = probs[:, column]
        for name, chosen in (("all", values), ("own", values[table.labels == index])):
            counts[name].append(np.histogram(chosen, bins=edges)[0].tolist())
    return counts


_FRAME = Frame(left=0.5, right=0.08, top=0.4, bottom=0.42, head=0.22)


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
    figure, panels = grid_of(len(scheme.classes), width=2.5, height=2.2, columns=5, frame=_FRAME)
    for index, (panel, name, correction) in enumerate(
        zip(panels, scheme.classes, scheme.corrections, strict=True)
    ):
        if counts:
            _draw_histogram(panel, *(np.array(counts[of][index]) for of in ("all", "own")))
        points = np.linspace(0.0, 1.0, 257)
        panel.plot([0, 1], [0, 1], color=GREY, linewidth=0.9, linestyle=(0, (3, 3)))
        panel.plot(points, np.minimum(correction(points), 1.04), color=ACCENT, linewidth=2.2)
        panel.set_xlim(0, 1)
        panel.set_ylim(0, 1.04)
        panel.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
        panel.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
        tidy(panel, grid=None)
        title(panel, f"{name}\n{_brief(correction)}")
        place_labels(panel, left=0.36, below=0.25)
    panels[0].set_ylabel("corrected", color=INK)
    panels[0].set_xlabel(
        "calibrated probability" if scheme.calibration else "probability", color=INK
    )
    method, task, shots, seed = place(record, "method", "task", "shots", "seed")
    parts = (method_title(method), str(task), shots_text(shots), f"seed {seed}")
    figure.suptitle(
        ", ".join(filter(None, parts)),
        x=0.01,
        # The same way below the edge of a figure of one row as of ten.
        y=1.0 - 0.03 / figure.get_figheight(),
        ha="left",
        va="top",
        fontsize=10,
        color=INK,
        weight="bold",
    )
    return figure


def _draw_histogram(axes: Axes, total: NDArray[np.int64], own: NDArray[np.int64]) -> None:
    edges = np.linspace(0.0, 1.0, len(total) + 1)
    # Most probabilities lie near 0: on a square-root scale the others are seen too.
    scale = float(np.sqrt(max(1, int(total.max()))))
    heights = np.sqrt(total) / scale
    share = np.divide(own, total, out=np.zeros(len(total)), where=total > 0)
    for values, color in ((heights, LIGHT), (heights * share, GREY)):
        axes.stairs(values, edges, fill=True, color=color, linewidth=0)


def _brief(correction: Correction) -> str:
    if isinstance(correction, Weight):
        return "unchanged" if correction.value == 1.0 else f"weight {correction.value:.2f}"
    return correction.name
