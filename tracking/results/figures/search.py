"""Figures of the search itself: one annealing run, and its time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dcs.errors import InvalidInputError
from tracking.records import CellRecord
from tracking.results.figures.style import (
    ACCENT,
    BLUE,
    GREY,
    INK,
    LIGHT,
    draw_point,
    empty_figure,
    grid_of,
    label_points,
    legend,
    log_scale,
    looks,
    place_labels,
    tidy,
    title,
)
from tracking.results.frames import (
    annealing_seconds,
    axes_of,
    finished_cells,
    main_cells,
    mean_and_deviation,
    method_title,
    place,
    search_space,
    setting,
    tuning_seconds,
)
from tracking.results.paper import task_title

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["time_figure", "trace_figure"]

_MOST_RESTARTS = 60
_RISE = 3.0


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
    # Drawn for every cell: margins that are known need not be found out.
    figure = empty_figure(6.4, 4.6, fitted=False)
    figure.subplots_adjust(left=0.115, right=0.975, top=0.94, bottom=0.105, hspace=0.14)
    panels = figure.subplots(3, 1, sharex=True, height_ratios=(2.2, 1, 1))
    upper, middle, lower = panels
    steps = range(len(record.trace))
    temperature, current, best, acceptance = zip(*record.trace, strict=True)
    upper.plot(steps, current, color=GREY, linewidth=1, label="current")
    upper.plot(steps, best, color=ACCENT, linewidth=2.2, label="best so far")
    upper.set_ylabel("objective Z")
    upper.legend(frameon=False, fontsize=9, ncols=2, loc="upper right", labelcolor=INK)
    # Room for the legend, above what the search went through.
    upper.set_ylim(top=max(current) + 0.22 * (max(current) - min(best) or 1.0))
    names = "method", "task", "shots", "seed"
    method, task, shots, seed = place(record, *names)
    prompt = "" if shots is None else f", {shots}-shot"
    title(upper, f"{method_title(method)}, {task}{prompt}, seed {seed}: best Z {best[-1]:.4f}")
    middle.plot(steps, temperature, color=BLUE, linewidth=1.4)
    log_scale(middle, "y", ticks=2)
    middle.set_ylabel("temperature")
    lower.fill_between(steps, [100 * v for v in acceptance], color=LIGHT, linewidth=0)
    lower.plot(steps, [100 * value for value in acceptance], color=INK, linewidth=1)
    lower.set_ylim(0, 104)
    lower.set_ylabel("accepted, %")
    lower.set_xlabel("temperature step")
    restarts = _restarts(temperature)
    for axes in panels:
        tidy(axes)
        place_labels(axes, left=0.52, below=0.27)
        axes.set_xlim(0, max(1, len(record.trace) - 1))
        # From the bottom of the panel to its top, whatever its scale.
        axes.vlines(
            restarts,
            0,
            1,
            transform=axes.get_xaxis_transform(),
            color=LIGHT,
            linewidth=0.9,
            zorder=0,
        )
    return figure


def _restarts(temperature: Sequence[float]) -> list[int]:
    rises = [
        step
        for step in range(1, len(temperature))
        if temperature[step] > _RISE * temperature[step - 1]
    ]
    # Where there are very many, the lines would be all that is seen.
    return rises if len(rises) <= _MOST_RESTARTS else []


def time_figure(records: Iterable[CellRecord]) -> Figure:
    """Draw the time of an annealing run against the size of its search (paper, Figure 2).

    A point per model, task, shots, method and size: the mean over seeds. The size is N * D,
    classes times the corrections to choose from. Where annealing runs were not timed one by one
    it is the time of all that was tried for a cell.

    Raises
    ------
    InvalidInputError
        There are fewer than two searches to compare.
    """
    groups: dict[tuple[Any, ...], list[CellRecord]] = {}
    # Other ablations leave the search as large as it is.
    cells = main_cells(finished_cells(records), but=("weight_scale", "memberships"))
    axes_tried = axes_of(cells)
    for cell in cells:
        if tuning_seconds(cell) and search_space(cell) is not None:
            where = place(cell, "method", "task", "model", "shots")
            groups.setdefault((*where, setting(cell, axes_tried)), []).append(cell)
    if len(groups) < 2:
        raise InvalidInputError("a figure of time needs finished cells of two searches or more")
    timed = all(annealing_seconds(cell) for group in groups.values() for cell in group)
    time_of = annealing_seconds if timed else tuning_seconds
    figure, (axes,) = grid_of(1, width=6.6, height=4.2)
    styles = looks({method: None for method, *_ in groups})
    seen: set[Any] = set()
    named: dict[tuple[Any, Any], tuple[float, float, str]] = {}
    unnamed: list[tuple[float, float]] = []
    for (method, task, *_), group in groups.items():
        x, _ = mean_and_deviation([float(search_space(cell) or 0) for cell in group])
        y, spread = mean_and_deviation([time_of(cell) or 0.0 for cell in group])
        style = styles[method]
        # A logarithmic axis has no room for what reaches down to 0.
        bar = [[min(spread, 0.9 * y)], [spread]] if spread == spread else None
        label = None if method in seen else method_title(method)
        draw_point(axes, (x, y), style, yerr=bar, label=label)
        seen.add(method)
        if (method, task) in named:
            unnamed.append((x, y))
        named.setdefault((method, task), (x, y, task_title(task)))
    log_scale(axes, "x")
    log_scale(axes, "y")
    axes.set_xlabel("search space: classes times correction functions")
    axes.set_ylabel("seconds of one annealing run" if timed else "seconds to tune a cell")
    tidy(axes, grid="both")
    legend(figure, axes)
    label_points(figure, {axes: list(named.values())}, others=unnamed)
    return figure
