"""Matplotlib figures of cells, not attached to any window.

`figure_files` draws those of a sweep as PNG and SVG.
"""

from __future__ import annotations

import io
import logging
import math
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from dcs.errors import one_line
from dcs.evaluation.metrics import METRICS
from dcs.evaluation.uncertainty import percent
from dcs.selection.preference import pareto_front
from dcs_tracking import schema
from dcs_tracking.results.cells import (
    MEASURES,
    Cells,
    fullest,
    groups_of,
    is_missing,
    look_of,
    method_title,
    name_of,
    reach,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREY, LIGHT, ACCENT = "#8a96a3", "#d9dee3", "#b0204f"
_STYLE: Final = Path(__file__).parents[1] / "templates" / "figures.mplstyle"

#: Maximum number of characters per line of a panel title.
_MAX_TITLE_WIDTH = 56
_Form: TypeAlias = Literal["png", "svg"]

_log = logging.getLogger(__name__)

_Point = namedtuple("_Point", "accuracy cobias")


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the common style; also a decorator, ``@styled()``."""
    import matplotlib

    with matplotlib.rc_context(fname=_STYLE):
        yield


def grid_of(heights: Sequence[float], *, width: float, columns: int) -> tuple[Figure, list[Axes]]:
    """Return a figure and its panels, of `width` inches each, at most `columns` side by side.

    Each row has the maximum of the heights of its panels.
    """
    from matplotlib.figure import Figure

    rows = math.ceil(len(heights) / columns)
    columns = math.ceil(len(heights) / rows)
    by_row = [max(heights[columns * row : columns * (row + 1)]) for row in range(rows)]
    figure = Figure(figsize=(width * columns, sum(by_row)), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False, height_ratios=by_row).flat)
    for unused in panels[len(heights) :]:
        unused.set_axis_off()
    return figure, panels[: len(heights)]


def add_legend(figure: Figure) -> None:
    """Add one legend above all panels, which keep their size, with each label once.

    It has as many columns as fit.
    """
    entries = {
        label: handle
        for axes in figure.axes
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    given = list(entries.values()), list(entries)
    for columns in range(min(len(entries), 5), 0, -1):
        legend = figure.legend(*given, loc="outside upper right", ncols=columns)
        extent = legend.get_window_extent()
        if columns == 1 or extent.width <= figure.bbox.width:
            break
        legend.remove()
    figure.set_figheight(figure.get_figheight() + extent.height / figure.dpi)


def figure_bytes(figure: Figure, form: _Form) -> bytes:
    """Return a figure as PNG or SVG, without the date and the version of the program.

    PNG files of equal figures are equal on the same machine; identifiers in SVG files may differ.
    """
    buffer = io.BytesIO()
    metadata: dict[str, Any] = {"Date": None} if form == "svg" else {"Software": None}
    with styled():
        figure.savefig(buffer, format=form, metadata=metadata)
    return buffer.getvalue()


@styled()
def class_accuracy_figure(cells: Cells, columns: int = 3) -> Figure | None:
    """Draw the class accuracies before and after DCS, one panel per model and task.

    Averages are over the seeds of the largest number of shots. None without a cell of DCS.
    """
    own = cells.main.where(lambda record: record.identity.get("method") == "dcs")
    if own.classes.empty:
        return None
    frame, panels = own.frame, _split(fullest(own.classes))
    heights = [1.5 + 0.36 * group["class"].nunique() for group in panels]
    figure, axes = grid_of(heights, width=4.6, columns=columns)
    for panel, group in zip(axes, panels, strict=True):
        _draw_changes(panel, group, frame[frame["key"].isin(group["key"])])
    add_legend(figure)
    return figure


def _draw_changes(axes: Axes, classes: pd.DataFrame, cells: pd.DataFrame) -> None:
    means = 100 * classes.groupby("class", sort=False)[["before", "after"]].mean().dropna()
    means = means.sort_values("before", ascending=False, kind="stable")
    heights = range(len(means))
    axes.hlines(heights, means["before"], means["after"], color=LIGHT, linewidth=5, zorder=1)
    hollow: dict[str, Any] = {"facecolor": "white", "edgecolor": GREY, "linewidth": 2}
    axes.scatter(means["before"], heights, s=52, **hollow, zorder=2, label="before")
    axes.scatter(means["after"], heights, s=52, color=ACCENT, zorder=3, label="after")
    axes.set_yticks(list(heights), [str(name) for name in means.index])
    axes.spines["left"].set_visible(False)
    axes.tick_params(left=False)
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    shown = cells.mean(numeric_only=True).map(partial(percent, digits=0))
    changes = ", ".join(
        f"{METRICS[m].title} {shown[f'uncorrected/test/{m}']} → {shown[f'test/{m}']}"
        for m in MEASURES
    )
    axes.set(title=f"{_panel_title(cells)}\n{changes}", xlabel="class accuracy, % of test rows")
    # Half a row above and below, independent of the number of classes.
    axes.set(xlim=(-3, 103), ylim=(-0.6, max(len(means), 1) - 0.4))


@styled()
def tradeoff_figure(cells: Cells, columns: int = 3) -> Figure | None:
    """Draw every method in the plane of COBias and accuracy, with the Pareto front.

    A panel per model and task, a point per method and number of shots: the mean over seeds with
    its standard deviations, or the values of a single seed with their 95 % intervals. Better
    points are up and to the left; the line joins the points that no other point dominates, and
    the area below and to the right of it is dominated. None without a cell with test metrics.
    """
    found = cells.main.estimates(("model", "task", "method", "shots"))
    panels = _split(found.dropna(subset="cobias_mean"))
    if not panels:
        return None
    figure, axes = grid_of([3.7] * len(panels), width=4.4, columns=columns)
    for panel, group in zip(axes, panels, strict=True):
        _draw_plane(panel, group.to_dict("records"))
        panel.set_title(_panel_title(group, with_shots=False))
    add_legend(figure)
    return figure


def _draw_plane(axes: Axes, rows: Sequence[dict[Any, Any]]) -> None:
    points = []
    for row in rows:
        points.append(_Point(100 * row["accuracy_mean"], 100 * row["cobias_mean"]))
        at = (points[-1].cobias, points[-1].accuracy)
        xerr, yerr = ([[100 * part] for part in reach(row, m)] for m in ("cobias", "accuracy"))
        (color, marker), label = look_of(row["method"]), method_title(row["method"])
        axes.errorbar(*at, xerr=xerr, yerr=yerr, fmt="none", ecolor=color, lw=1, alpha=0.45)
        axes.plot(*at, marker, color=color, markersize=12, label=label, zorder=4)
        if not is_missing(row["shots"]):
            inside: dict[str, Any] = {"ha": "center", "va": "center", "color": "white"}
            axes.annotate(str(row["shots"]), at, **inside, fontsize=7, weight="bold", zorder=5)
    axes.margins(0.12)
    # Error bars may extend below 0, but COBias cannot be negative.
    axes.set_xlim(left=-0.02 * axes.get_xlim()[1])
    front = pareto_front(points)[::-1]
    (_, right), (bottom, _) = axes.get_xlim(), axes.get_ylim()
    x = [front[0].cobias, *(point.cobias for point in front), right]
    y = [bottom, *(point.accuracy for point in front), front[-1].accuracy]
    axes.fill_between(x, y, bottom, step="post", color="whitesmoke", linewidth=0, zorder=0)
    dashed: dict[str, Any] = {"color": GREY, "linewidth": 1.2, "linestyle": (0, (4, 3))}
    axes.step(x, y, where="post", zorder=1, label="Pareto front", **dashed)
    axes.grid(axis="both")
    axes.set(xlabel="COBias, % (less is fairer)", ylabel="accuracy, %")
    axes.set(xlim=(None, right), ylim=(bottom, None))


def _split(frame: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the rows of each panel: those of a model and task."""
    return [group for _, group in groups_of(frame, ("model", "task"))]


def _panel_title(group: pd.DataFrame, *, with_shots: bool = True) -> str:
    """Return the task, model and shots that all cells of a panel share."""
    common = group[["task", "model"]].iloc[0].to_dict()
    if common["model"] == common["task"]:  # the name of a table
        del common["model"]
    shots = group["shots"].unique()
    if with_shots and len(shots) == 1:
        common["shots"] = shots[0]
    task, about = name_of(common, "task"), name_of(common, "model", "shots")
    # The names of ensembles are long.
    return fill(f"{task} ({about})" if task and about else task + about, _MAX_TITLE_WIDTH)


_FIGURES: Final[dict[str, tuple[str, Callable[[Cells, int], Figure | None]]]] = {
    "class_accuracies": (
        "Class accuracies before and after correction by DCS, mean over seeds: predictions are "
        "fairer if the filled dots of a panel are closer to a vertical line",
        class_accuracy_figure,
    ),
    "accuracy_cobias": (
        "Accuracy against COBias, mean and standard deviation over seeds or, of one, the 95 % "
        "interval; numbers are shots. Better points are up and to the left; those below and to "
        "the right of the line are dominated",
        tradeoff_figure,
    ),
}


def overview_figures(cells: Cells, *, columns: int = 3) -> dict[str, tuple[str, Figure]]:
    """Return the figures of a sweep that have data, by name and with their captions.

    They have at most a number of panels side by side.

    A figure that cannot be drawn is left out with a warning, so that no results are lost.
    """
    found = {}
    for name, (caption, draw) in _FIGURES.items():
        try:
            if figure := draw(cells, columns):
                found[name] = caption, figure
        except Exception as error:
            _log.warning("figure %s could not be drawn (%s)", name, one_line(error))
    return found


def figure_files(figures: Mapping[str, tuple[str, Figure]]) -> dict[str, bytes]:
    """Return figures with their captions as the contents of files, by artifact path."""
    return {
        f"{schema.FIGURES_FOLDER}/{name}.{form}": figure_bytes(figure, form)
        for name, (_, figure) in figures.items()
        for form in get_args(_Form)
    }
