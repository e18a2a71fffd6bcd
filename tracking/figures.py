"""Figures of results, from cell records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from dcs.errors import InvalidInputError
from tracking.records import CellRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["class_accuracy_figure"]

# Told apart by lightness as well as by hue, so that print and colour-blind readers see both.
_BEFORE, _AFTER, _LINK = "#9aa5b1", "#d1495b", "#d9dee3"


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
    from matplotlib.figure import Figure

    panels = _panels(records, method)
    if not panels:
        raise InvalidInputError(f"no finished cell of method {method!r} to draw")
    rows = max(len(cells[0].class_accuracies["class"]) for cells in panels.values())
    figure = Figure(figsize=(4.6 * len(panels), 1.5 + 0.36 * rows), layout="constrained", dpi=150)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for panel, (title, cells) in zip(axes, panels.items(), strict=True):
        _draw(panel, title, cells)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=2, frameon=False)
    return figure


def _panels(records: Iterable[CellRecord], method: str) -> dict[str, list[CellRecord]]:
    cells = [r for r in records if r.finished and r.identity["method"] == method]
    groups: dict[tuple[str, str], dict[Any, list[CellRecord]]] = {}
    for cell in cells:
        shots = groups.setdefault((cell.identity["task"], cell.identity["model"]), {})
        shots.setdefault(cell.identity["shots"], []).append(cell)
    panels = {}
    for (task, model), by_shots in groups.items():
        shots = max(by_shots, key=lambda value: math.inf if value == "N" else (value or 0))
        prompt = "" if shots is None else f", {shots}-shot"
        panels[f"{task} ({model}{prompt})"] = by_shots[shots]
    return panels


def _draw(axes: Axes, title: str, cells: Sequence[CellRecord]) -> None:
    names = cells[0].class_accuracies["class"]
    before, after = (
        [
            100 * fmean(values)
            for values in zip(*(cell.class_accuracies[when] for cell in cells), strict=True)
        ]
        for when in ("before", "after")
    )
    order = sorted(range(len(names)), key=lambda index: -before[index])
    heights = range(len(order))
    starts, ends = ([values[index] for index in order] for values in (before, after))
    axes.hlines(heights, starts, ends, color=_LINK, linewidth=5, zorder=1)
    axes.scatter(
        starts,
        heights,
        s=52,
        facecolor="white",
        edgecolor=_BEFORE,
        linewidth=2,
        label="before",
        zorder=2,
    )
    axes.scatter(ends, heights, s=52, color=_AFTER, label="after", zorder=3)
    axes.set_yticks(list(heights), [str(names[index]) for index in order])
    axes.set_xlim(-3, 103)
    axes.set_xlabel("class accuracy, % of test rows")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    axes.grid(axis="x", color="#eceff1")
    axes.set_axisbelow(True)
    figures = [
        f"{label} {_percent(cells, f'uncorrected/test/{name}')} → "
        f"{_percent(cells, f'test/{name}')}"
        for label, name in (("accuracy", "accuracy"), ("COBias", "cobias"))
    ]
    axes.set_title(f"{title}\n{'   '.join(figures)}", loc="left", fontsize=10)


def _percent(cells: Sequence[CellRecord], metric: str) -> str:
    return f"{100 * fmean(cell.metrics[metric] for cell in cells):.0f}"
