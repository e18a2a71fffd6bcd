"""Figures that compare methods: the accuracy-COBias plane, and ablations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dcs.errors import InvalidInputError
from tracking._readings import (
    finished_cells,
    mean_and_deviation,
    method_title,
    objective_name,
    place,
)
from tracking.figures._style import (
    GREY,
    INK,
    fullest_prompt,
    grid_of,
    legend,
    look,
    looks,
    panel_name,
    tidy,
    title,
)
from tracking.paper import task_title
from tracking.records import CellRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["ablation_figure", "tradeoff_figure"]

_OBJECTIVES = {"full": "dcs", "err": "dnip", "err+pmi": "furud"}


def tradeoff_figure(records: Iterable[CellRecord]) -> Figure:
    """Draw every method in the plane of COBias and accuracy, with the Pareto front.

    Parameters
    ----------
    records : iterable of CellRecord
        Finished cells. A panel per model and task, a point per method and number of shots, the
        mean over seeds with its standard deviations.

    Returns
    -------
    matplotlib.figure.Figure
        Good is up and to the left; the line joins the points that no other beats in both.

    Raises
    ------
    InvalidInputError
        There is no cell with test metrics.
    """
    groups: dict[tuple[Any, ...], list[CellRecord]] = {}
    for cell in finished_cells(records):
        if {"test/accuracy", "test/cobias"} <= cell.metrics.keys():
            groups.setdefault(place(cell, "model", "task"), []).append(cell)
    if not groups:
        raise InvalidInputError("no finished cell with accuracy and COBias to draw")
    figure, panels = grid_of(len(groups), width=4.2, height=3.6)
    styles = looks({c.identity.get("method"): None for cells in groups.values() for c in cells})
    for panel, cells in zip(panels, groups.values(), strict=True):
        _draw_plane(panel, cells, styles)
        title(panel, panel_name(cells[0], with_shots=False))
    legend(figure, panels[0], columns=len(styles) + 1)
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


def ablation_figure(records: Iterable[CellRecord]) -> Figure:
    """Draw accuracy and COBias of DCS by the terms of its objective, a pair of bars per task.

    Raises
    ------
    InvalidInputError
        There is no DCS cell, or only one objective.
    """
    cells = [cell for cell in records if cell.identity.get("method") == "dcs"]
    groups = fullest_prompt(cell for cell in cells if "test/accuracy" in cell.metrics)
    names = list(dict.fromkeys(objective_name(c) for group in groups.values() for c in group))
    if len(names) < 2:
        raise InvalidInputError("an ablation needs cells of two objectives or more")
    names.sort(key=lambda name: name != "full")
    models = list(dict.fromkeys(model for model, _ in groups))
    figure, panels = grid_of(2 * len(models), width=5.2, height=2.8, columns=2)
    width = 0.8 / len(names)
    for row, model in enumerate(models):
        tasks = [task for other, task in groups if other == model]
        for column, (metric, label) in enumerate((("accuracy", "accuracy"), ("cobias", "COBias"))):
            panel = panels[2 * row + column]
            for at, name in enumerate(names):
                style = look(_OBJECTIVES.get(name, name), [name])
                values = [
                    mean_and_deviation(
                        [
                            c.metrics[f"test/{metric}"]
                            for c in groups[model, task]
                            if objective_name(c) == name and f"test/{metric}" in c.metrics
                        ]
                    )
                    for task in tasks
                ]
                panel.bar(
                    [i + (at - (len(names) - 1) / 2) * width for i in range(len(tasks))],
                    [100 * mean for mean, _ in values],
                    yerr=[100 * sd for _, sd in values],
                    error_kw={"ecolor": INK, "elinewidth": 1},
                    width=0.92 * width,
                    color=style.color,
                    hatch=style.hatch,
                    edgecolor="white",
                    linewidth=0,
                    label=_objective_label(name),
                )
            panel.set_xticks(range(len(tasks)), [task_title(task) for task in tasks])
            panel.set_ylabel(f"{label}, %")
            tidy(panel)
            title(panel, f"{label} ({model})")
    legend(figure, panels[0], columns=len(names))
    return figure


def _draw_plane(axes: Axes, cells: Sequence[CellRecord], styles: dict[Any, Any]) -> None:
    groups: dict[tuple[Any, ...], list[CellRecord]] = {}
    for cell in cells:
        groups.setdefault(place(cell, "method", "shots"), []).append(cell)
    points: list[tuple[float, float]] = []
    seen: set[Any] = set()
    for (method, shots), group in groups.items():
        style = styles[method]
        x, dx = mean_and_deviation([100 * cell.metrics["test/cobias"] for cell in group])
        y, dy = mean_and_deviation([100 * cell.metrics["test/accuracy"] for cell in group])
        points.append((x, y))
        axes.errorbar(
            x,
            y,
            xerr=dx,
            yerr=dy,
            fmt=style.marker,
            color=style.color,
            elinewidth=1,
            alpha=0.95,
            markersize=7,
            markeredgecolor="white",
            label=None if method in seen else method_title(method),
        )
        seen.add(method)
        if shots is not None:
            axes.annotate(
                str(shots),
                (x, y),
                xytext=(6, 5),
                textcoords="offset points",
                fontsize=8,
                color=INK,
            )
    front = [points[index] for index in pareto_front(points)]
    axes.plot(
        [x for x, _ in front],
        [y for _, y in front],
        color=GREY,
        linewidth=1.2,
        linestyle=(0, (4, 3)),
        zorder=0,
        label="Pareto front",
    )
    axes.set_xlabel("COBias, % (less is fairer)")
    axes.set_ylabel("accuracy, %")
    axes.margins(0.12)
    axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    tidy(axes, grid="both")


def _objective_label(name: str) -> str:
    if name == "full":
        return "full objective"
    terms = {"err": r"$Z_{err}$", "cobias": r"$Z_{cobias}$", "pmi": r"$Z_{pmi}$"}
    return " + ".join(terms.get(part, part) for part in name.split("+"))
