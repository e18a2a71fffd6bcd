"""Figures of class accuracies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from dcs.errors import InvalidInputError
from tracking.records import CellRecord
from tracking.results.figures.style import (
    ACCENT,
    GREY,
    LIGHT,
    fullest_prompt,
    grid_of,
    legend,
    looks,
    panel_name,
    tidy,
    title,
)
from tracking.results.frames import method_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["class_accuracy_figure", "class_group_figure"]

#: More groups of classes than this are not told apart at a glance.
_MOST_GROUPS = 6
_LEVELS = {"dnip": "class level only", "furud": "sample level only", "dcs": "both levels"}


def class_accuracy_figure(records: Iterable[CellRecord], *, method: str = "dcs") -> Figure:
    """Draw the class accuracies before and after correction, one panel per model and task.

    Parameters
    ----------
    records : iterable of CellRecord
        Finished cells. Averages are over the seeds of the largest number of shots given.
    method : str
        The method whose cells are drawn.

    Returns
    -------
    matplotlib.figure.Figure
        Not attached to any window; the caller saves it.

    Raises
    ------
    InvalidInputError
        There is no finished cell of that method.
    """
    groups = fullest_prompt(
        cell for cell in records if cell.identity.get("method") == method and cell.class_accuracies
    )
    if not groups:
        raise InvalidInputError(f"no finished cell of method {method!r} to draw")
    heights = [1.5 + 0.36 * len(c[0].class_accuracies["class"]) for c in groups.values()]
    shares = [height / max(heights) for height in heights]
    figure, panels = grid_of(len(groups), width=4.6, height=max(heights), shares=shares)
    for panel, cells in zip(panels, groups.values(), strict=True):
        _draw_changes(panel, cells)
    legend(figure, panels[0])
    return figure


def class_group_figure(records: Iterable[CellRecord]) -> Figure:
    """Draw the accuracy of the weakest to the strongest classes by method (paper, Appendix F).

    Classes are ranked in every cell by their accuracy before correction, so that a bar is the
    mean over cells and over the classes of a rank. DNIP corrects at the class level only, FuRud
    at the sample level only, DCS at both.

    Parameters
    ----------
    records : iterable of CellRecord
        Finished cells of several methods; drawn for the largest number of shots.

    Raises
    ------
    InvalidInputError
        There is no cell with class accuracies.
    """
    groups = fullest_prompt(cell for cell in records if cell.class_accuracies)
    if not groups:
        raise InvalidInputError("no finished cell with class accuracies to draw")
    figure, panels = grid_of(len(groups), width=4.8, height=3.2)
    names = {cell.identity.get("method"): None for cells in groups.values() for cell in cells}
    styles = looks(names)
    width = 0.8 / len(names)
    for panel, cells in zip(panels, groups.values(), strict=True):
        count = min(_MOST_GROUPS, min(len(c.class_accuracies["class"]) for c in cells))
        for at, name in enumerate(names):
            heights = _by_group([c for c in cells if c.identity.get("method") == name], count)
            if not heights:
                continue
            level = _LEVELS.get(str(name))
            label = f"{method_title(name)} ({level})" if level else method_title(name)
            panel.bar(
                [group + (at - (len(names) - 1) / 2) * width for group in range(count)],
                [100 * height for height in heights],
                width=0.92 * width,
                color=styles[name].color,
                hatch=styles[name].hatch,
                edgecolor="white",
                linewidth=0,
                label=label,
            )
        middle = [str(group) for group in range(2, count)]
        panel.set_xticks(range(count), ["weakest", *middle, "strongest"][:count])
        panel.set_xlabel("classes, by accuracy before correction")
        panel.set_ylabel("accuracy, %")
        panel.set_ylim(0, 102)
        tidy(panel)
        title(panel, panel_name(cells[0]))
    legend(figure, panels[0], columns=2)
    return figure


def _by_group(cells: Sequence[CellRecord], count: int) -> list[float]:
    groups: list[list[float]] = [[] for _ in range(count)]
    for cell in cells:
        columns = cell.class_accuracies
        known = [
            (before, after)
            for before, after in zip(columns["before"], columns["after"], strict=True)
            if before is not None and after is not None
        ]
        for rank, (_, after) in enumerate(sorted(known)):
            groups[rank * count // len(known)].append(after)
    return [fmean(group) for group in groups] if all(groups) else []


def _draw_changes(axes: Axes, cells: Sequence[CellRecord]) -> None:
    names = cells[0].class_accuracies["class"]
    before, after = (
        [_mean(values) for values in zip(*(c.class_accuracies[when] for c in cells), strict=True)]
        for when in ("before", "after")
    )
    known = [i for i in range(len(names)) if before[i] is not None and after[i] is not None]
    order = sorted(known, key=lambda index: -(before[index] or 0.0))
    heights = range(len(order))
    starts, ends = ([100 * (values[i] or 0.0) for i in order] for values in (before, after))
    axes.hlines(heights, starts, ends, color=LIGHT, linewidth=5, zorder=1)
    axes.scatter(
        starts,
        heights,
        s=52,
        facecolor="white",
        edgecolor=GREY,
        linewidth=2,
        label="before",
        zorder=2,
    )
    axes.scatter(ends, heights, s=52, color=ACCENT, label="after", zorder=3)
    tidy(axes, grid="x")
    axes.set_yticks(list(heights), [str(names[index]) for index in order])
    axes.set_xlim(-3, 103)
    axes.set_xlabel("class accuracy, % of test rows")
    axes.spines["left"].set_visible(False)
    axes.tick_params(left=False)
    figures = [
        f"{label} {_percent(cells, f'uncorrected/test/{name}')} → "
        f"{_percent(cells, f'test/{name}')}"
        for label, name in (("accuracy", "accuracy"), ("COBias", "cobias"))
    ]
    # Half a row above and below, however many classes there are.
    axes.set_ylim(-0.6, max(len(order), 1) - 0.4)
    title(axes, f"{panel_name(cells[0])}\n{', '.join(figures)}")


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _percent(cells: Sequence[CellRecord], metric: str) -> str:
    values = [cell.metrics[metric] for cell in cells if metric in cell.metrics]
    return f"{100 * fmean(values):.0f}" if values else "?"
