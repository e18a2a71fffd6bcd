"""Figures of the search itself: one annealing run, and its time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dcs.errors import InvalidInputError
from tracking._readings import (
    annealing_seconds,
    finished_cells,
    mean_and_deviation,
    method_title,
    place,
    search_space,
    tuning_seconds,
)
from tracking.figures._style import ACCENT, GREY, INK, grid_of, legend, looks, tidy, title
from tracking.paper import task_title
from tracking.records import CellRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["time_figure", "trace_figure"]


def trace_figure(record: CellRecord) -> Figure:
    """Draw one annealing run: Z, current and best, above temperature and acceptance.

    Raises
    ------
    InvalidInputError
        The cell has no trace.
    """
    if not record.trace:
        raise InvalidInputError(f"cell {record.key} has no annealing trace to draw")
    figure, (upper, lower) = grid_of(2, width=6.2, height=2.3, columns=1)
    steps = range(len(record.trace))
    temperature, current, best, acceptance = zip(*record.trace, strict=True)
    upper.plot(steps, current, color=GREY, linewidth=1, label="current Z")
    upper.plot(steps, best, color=ACCENT, linewidth=2, label="best Z")
    upper.set_ylabel("objective Z")
    upper.legend(frameon=False, fontsize=9)
    names = "method", "task", "shots", "seed"
    method, task, shots, seed = place(record, *names)
    prompt = "" if shots is None else f", {shots}-shot"
    title(upper, f"{method_title(method)}, {task}{prompt}, seed {seed}: best Z {best[-1]:.4f}")
    lower.plot(steps, temperature, color=INK, linewidth=1.4)
    lower.set_yscale("log")
    lower.set_ylabel("temperature")
    lower.set_xlabel("temperature step")
    right = lower.twinx()
    right.plot(steps, [100 * value for value in acceptance], color="#0072b2", linewidth=1)
    right.set_ylabel("moves accepted, %", color="#0072b2")
    right.set_ylim(0, 102)
    for axes in (upper, lower):
        tidy(axes)
        axes.set_xlim(0, max(1, len(record.trace) - 1))
    right.spines[["top", "left", "bottom"]].set_visible(False)
    right.tick_params(labelsize=9)
    return figure


def time_figure(records: Iterable[CellRecord]) -> Figure:
    """Draw the time of an annealing run against the size of its search (paper, Figure 2).

    A point per model, task, shots and method: the mean over seeds. The size is N * D, classes
    times the corrections to choose from. Where annealing runs were not timed one by one it is the
    time of all that was tried for a cell.

    Raises
    ------
    InvalidInputError
        There are fewer than two searches to compare.
    """
    groups: dict[tuple[Any, ...], list[CellRecord]] = {}
    for cell in finished_cells(records):
        if tuning_seconds(cell) and search_space(cell) is not None:
            groups.setdefault(place(cell, "method", "task", "model", "shots"), []).append(cell)
    if len(groups) < 2:
        raise InvalidInputError("a figure of time needs finished cells of two searches or more")
    timed = all(annealing_seconds(cell) for cells in groups.values() for cell in cells)
    time_of = annealing_seconds if timed else tuning_seconds
    figure, (axes,) = grid_of(1, width=6.4, height=4.0)
    styles = looks({method: None for method, *_ in groups})
    seen: set[Any] = set()
    named: set[Any] = set()
    for (method, task, *_), cells in groups.items():
        x, _ = mean_and_deviation([float(search_space(cell) or 0) for cell in cells])
        y, spread = mean_and_deviation([time_of(cell) or 0.0 for cell in cells])
        style = styles[method]
        axes.errorbar(
            x,
            y,
            yerr=min(spread, 0.9 * y) if spread == spread else None,
            fmt=style.marker,
            color=style.color,
            elinewidth=1,
            markersize=7,
            markeredgecolor="white",
            label=None if method in seen else method_title(method),
        )
        seen.add(method)
        if (method, task) not in named:
            named.add((method, task))
            axes.annotate(
                task_title(task),
                (x, y),
                xytext=(7, -3),
                textcoords="offset points",
                fontsize=8,
                color=INK,
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("{x:g}" if axis is axes.xaxis else "")
    axes.set_xlabel("search space: classes times correction functions")
    axes.set_ylabel("seconds of one annealing run" if timed else "seconds to tune a cell")
    tidy(axes, grid="both")
    legend(figure, axes)
    return figure
