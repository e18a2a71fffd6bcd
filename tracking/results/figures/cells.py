"""Figures of one cell: what its scheme does to each class, and how it was found."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from dcs.data.table import ProbabilityTable
from dcs.errors import InvalidInputError
from dcs.schemes.corrections import Correction, Weight
from dcs.schemes.scheme import CorrectionScheme
from dcs.selection.front import FittedScheme
from tracking import schema
from tracking.records import CellRecord
from tracking.results.figures import style
from tracking.results.frames import has_chosen, name_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "BINS",
    "cell_figures",
    "class_histograms",
    "confusion_figure",
    "front_figure",
    "scheme_figure",
    "trace_figure",
]

BINS = 40
"""Bars between 0 and 1."""

#: Inches of a panel, for what is left, right, below and above in it, and above all panels.
_WIDTH, _HEIGHT = 2.5, 2.2
_LEFT, _RIGHT, _BOTTOM, _TOP, _HEAD = 0.5, 0.08, 0.42, 0.4, 0.22
_MOST_RESTARTS = 60
#: On shades, which are those of a bitmap: no colours that a page changes by night.
_ON_DARK, _ON_LIGHT = "#fefefe", "#1b2730"
#: A temperature so many times that before it begins a restart.
_RISE = 3.0


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
        ``figures/annealing.png`` and ``.svg`` where there is a trace, and so ``confusion`` and
        ``front``; empty for a failed cell.
    """
    files: dict[str, bytes] = {}
    if record.finished and has_chosen(record):
        files |= style.figure_files(scheme_figure(record), f"{schema.FIGURES_FOLDER}/scheme")
    if record.finished and "counts_after" in record.class_accuracies:
        files |= style.figure_files(confusion_figure(record), f"{schema.FIGURES_FOLDER}/confusion")
    if record.finished and record.front is not None:
        files |= style.figure_files(front_figure(record), f"{schema.FIGURES_FOLDER}/front")
    if record.finished and record.trace:
        files |= style.figure_files(trace_figure(record), f"{schema.FIGURES_FOLDER}/annealing")
    return files


@style.styled
def confusion_figure(record: CellRecord) -> Figure:
    """Draw the confusion matrices of the test rows, uncorrected and corrected.

    Raises
    ------
    InvalidInputError
        The record holds no counts.
    """
    table = record.class_accuracies
    if "counts_after" not in table:
        raise InvalidInputError(f"cell {record.key} has no confusion matrix to draw")
    names = [str(name) for name in table["class"]]
    size = 1.6 + 0.34 * len(names)
    figure, panels = style.grid_of(2, width=size + 0.6, height=size)
    for panel, when in zip(panels, ("before", "after"), strict=True):
        counts = np.asarray(table[f"counts_{when}"])
        shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        panel.imshow(shares, cmap=style.SHADES, vmin=0, vmax=100)
        for (row, column), share in np.ndenumerate(shares):
            color = _ON_DARK if share > 55 else _ON_LIGHT
            text = panel.text(column, row, f"{share:.0f}", ha="center", va="center", color=color)
            text.set_fontsize(8)
        panel.set_xticks(range(len(names)), names, rotation=90)
        panel.set_yticks(range(len(names)), names if when == "before" else [""] * len(names))
        panel.set(title=f"{when} correction", xlabel="predicted")
        panel.grid(visible=False)
    panels[0].set_ylabel("true class, % of its rows")
    return figure


@style.styled
def front_figure(record: CellRecord) -> Figure:
    """Draw the front that a cell's scheme was picked from; see `dcs.FittedScheme.plot_front`.

    Raises
    ------
    InvalidInputError
        The record holds no front.
    """
    if record.front is None:
        raise InvalidInputError(f"cell {record.key} has no front to draw")
    figure = FittedScheme.from_dict(record.front, source=f"cell {record.key}").plot_front()
    figure.axes[0].set_title(name_of(record.who, "method", "task", "shots", "seed"))
    return figure


@style.styled
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
    figure, panels = style.grid_of(len(scheme.classes), width=_WIDTH, height=_HEIGHT, columns=5)
    _fix_margins(figure)
    for index, (panel, name, correction) in enumerate(
        zip(panels, scheme.classes, scheme.corrections, strict=True)
    ):
        if counts:
            _draw_histogram(panel, counts["all"][index], counts["own"][index])
        points = np.linspace(0.0, 1.0, 257)
        panel.plot([0, 1], [0, 1], color=style.GREY, linewidth=0.9, linestyle=(0, (3, 3)))
        panel.plot(points, np.minimum(correction(points), 1.04), color=style.ACCENT, linewidth=2.2)
        panel.set(xlim=(0, 1), ylim=(0, 1.04), title=f"{name}\n{_brief(correction)}")
        panel.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
        panel.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
        panel.grid(visible=False)
        style.place_labels(panel, left=0.36, below=0.25)
    kind = "calibrated probability" if scheme.calibration else "probability"
    panels[0].set(xlabel=kind, ylabel="corrected")
    figure.suptitle(
        name_of(record.who, "method", "task", "shots", "seed"),
        x=0.01,
        # The same way below the edge of a figure of one row as of ten.
        y=1.0 - 0.03 / figure.get_figheight(),
        ha="left",
        va="top",
        fontsize=10,
        weight="bold",
    )
    return figure


def _fix_margins(figure: Figure) -> None:
    """Give a figure that is drawn for every cell margins that need not be found out."""
    figure.set_layout_engine(None)
    figure.set_figheight(figure.get_figheight() + _HEAD)
    width, height = figure.get_size_inches()
    figure.subplots_adjust(
        left=_LEFT / width,
        right=1.0 - _RIGHT / width,
        bottom=_BOTTOM / height,
        top=1.0 - (_HEAD + _TOP) / height,
        wspace=(_LEFT + _RIGHT) / (_WIDTH - _LEFT - _RIGHT),
        hspace=(_TOP + _BOTTOM) / (_HEIGHT - _TOP - _BOTTOM),
    )


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


@style.styled
def trace_figure(record: CellRecord) -> Figure:
    """Draw one annealing run: Z, current and best, above temperature and accepted moves.

    A light line marks where the temperature rises again: a restart.

    Raises
    ------
    InvalidInputError
        The cell has no trace.
    """
    if not record.trace:
        raise InvalidInputError(f"cell {record.key} has no annealing trace to draw")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.6))
    # Drawn for every cell: margins that are known need not be found out.
    figure.subplots_adjust(left=0.115, right=0.975, top=0.94, bottom=0.105, hspace=0.14)
    panels = figure.subplots(3, 1, sharex=True, height_ratios=(2.2, 1, 1))
    upper, middle, lower = panels
    steps = range(len(record.trace))
    temperature, current, best, acceptance = np.transpose(record.trace)
    upper.plot(steps, current, color=style.GREY, linewidth=1, label="current")
    upper.plot(steps, best, color=style.ACCENT, linewidth=2.2, label="best so far")
    upper.legend(ncols=2, loc="upper right")
    name = name_of(record.who, "method", "task", "shots", "seed")
    upper.set(title=f"{name}: best Z {best[-1]:.4f}", ylabel="objective Z")
    # Room for the legend, above what the search went through.
    upper.set_ylim(top=max(current) + 0.22 * (max(current) - min(best) or 1.0))
    middle.plot(steps, temperature, color=style.BLUE, linewidth=1.4)
    middle.set(ylabel="temperature", yscale="log")
    middle.yaxis.set_major_formatter("{x:g}")
    middle.yaxis.set_minor_formatter("")
    lower.fill_between(steps, 100 * acceptance, color=style.LIGHT, linewidth=0)
    lower.plot(steps, 100 * acceptance, color=style.INK, linewidth=1)
    lower.set(xlabel="temperature step", ylabel="accepted, %", ylim=(0, 104))
    lower.set_xlim(0, max(1, len(record.trace) - 1))
    rises = [at for at, (a, b) in enumerate(pairwise(temperature), start=1) if b > _RISE * a]
    for axes in panels:
        style.place_labels(axes, left=0.52, below=0.27)
        # Where there are very many, the lines would be all that is seen.
        if len(rises) <= _MOST_RESTARTS:
            # From the bottom of the panel to its top, whatever its scale.
            whole = axes.get_xaxis_transform()
            axes.vlines(rises, 0, 1, transform=whole, color=style.LIGHT, linewidth=0.9, zorder=0)
    return figure
