"""Figures that compare methods: the accuracy-COBias plane."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dcs.errors import InvalidInputError
from tracking.records import CellRecord
from tracking.results.figures.style import (
    GREY,
    draw_point,
    grid_of,
    label_points,
    legend,
    looks,
    panel_name,
    tidy,
    title,
)
from tracking.results.frames import Estimate, finished_cells, main_cells, method_title, place

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["pareto_front", "tradeoff_figure"]

_BEATEN = "#f4f6f8"


def tradeoff_figure(records: Iterable[CellRecord]) -> Figure:
    """Draw every method in the plane of COBias and accuracy, with the Pareto front.

    Parameters
    ----------
    records : iterable of CellRecord
        Finished cells; those of ablations are left out. A panel per model and task, a point per
        method and number of shots: the mean over seeds with its standard deviations, or the
        figures of a single seed with their 95 % intervals.

    Returns
    -------
    matplotlib.figure.Figure
        Good is up and to the left; the line goes through the points that no other beats in both,
        what lies below and to the right of it is beaten.

    Raises
    ------
    InvalidInputError
        There is no cell with test metrics.
    """
    groups: dict[tuple[Any, ...], list[CellRecord]] = {}
    for cell in main_cells(finished_cells(records)):
        if {"test/accuracy", "test/cobias"} <= cell.metrics.keys():
            groups.setdefault(place(cell, "model", "task"), []).append(cell)
    if not groups:
        raise InvalidInputError("no finished cell with accuracy and COBias to draw")
    figure, panels = grid_of(len(groups), width=4.4, height=3.7)
    styles = looks({c.identity.get("method"): None for cells in groups.values() for c in cells})
    labels = {
        panel: _draw_plane(panel, cells, styles)
        for panel, cells in zip(panels, groups.values(), strict=True)
    }
    for panel, cells in zip(panels, groups.values(), strict=True):
        title(panel, panel_name(cells[0], with_shots=False))
    legend(figure, panels[0], columns=len(styles) + 1)
    label_points(figure, labels)
    return figure


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indices of the points ``(cobias, accuracy)`` that no other beats in both."""
    best = -1.0
    front = []
    for index in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        if points[index][1] > best:
            best = points[index][1]
            front.append(index)
    return front


def _draw_plane(
    axes: Axes, cells: Sequence[CellRecord], styles: dict[Any, Any]
) -> list[tuple[float, float, str]]:
    """Draw one panel, and return the labels that its points are to get."""
    groups: dict[tuple[Any, ...], list[CellRecord]] = {}
    for cell in cells:
        groups.setdefault(place(cell, "method", "shots"), []).append(cell)
    points: list[tuple[float, float]] = []
    labels: list[tuple[float, float, str]] = []
    seen: set[Any] = set()
    for (method, shots), group in groups.items():
        style = styles[method]
        cobias, accuracy = (Estimate.of(group, f"test/{m}") for m in ("cobias", "accuracy"))
        x, y = 100 * cobias.mean, 100 * accuracy.mean
        points.append((x, y))
        label = None if method in seen else method_title(method)
        xerr, yerr = ([[100 * part] for part in each.reach] for each in (cobias, accuracy))
        draw_point(axes, (x, y), style, xerr=xerr, yerr=yerr, label=label)
        seen.add(method)
        if shots is not None:
            labels.append((x, y, str(shots)))
    axes.margins(0.12)
    # A deviation may reach below 0, COBias does not.
    axes.set_xlim(left=-0.02 * axes.get_xlim()[1])
    _draw_front(axes, [points[index] for index in pareto_front(points)])
    axes.set_xlabel("COBias, % (less is fairer)")
    axes.set_ylabel("accuracy, %")
    tidy(axes, grid="both")
    return labels


def _draw_front(axes: Axes, front: Sequence[tuple[float, float]]) -> None:
    (_, right), (bottom, _) = axes.get_xlim(), axes.get_ylim()
    x = [front[0][0], *(x for x, _ in front), right]
    y = [bottom, *(y for _, y in front), front[-1][1]]
    axes.fill_between(x, y, bottom, step="post", color=_BEATEN, linewidth=0, zorder=0)
    axes.step(
        x,
        y,
        where="post",
        color=GREY,
        linewidth=1.2,
        linestyle=(0, (4, 3)),
        zorder=1,
        label="Pareto front",
    )
    axes.set_xlim(right=right)
    axes.set_ylim(bottom=bottom)
