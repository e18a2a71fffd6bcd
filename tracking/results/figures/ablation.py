"""Figures of ablations: what each term of the objective does, and each other setting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dcs.errors import InvalidInputError
from tracking.records import CellRecord
from tracking.results.figures.style import (
    INK,
    grid_of,
    legend,
    look,
    looks,
    panel_name,
    shots_suffix,
    tidy,
    title,
)
from tracking.results.frames import (
    OBJECTIVE,
    Axis,
    axes_of,
    finished_cells,
    main_cells,
    mean_and_deviation,
    method_title,
    objective_title,
    place,
    shots_rank,
)
from tracking.results.paper import task_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["ablation_figure", "axis_figure"]

_OBJECTIVES = {"full": "dcs", "err": "dnip", "err+pmi": "furud"}
_MEASURES = (("accuracy", "accuracy"), ("cobias", "COBias"))


def ablation_figure(records: Iterable[CellRecord]) -> Figure:
    """Draw accuracy and COBias of DCS by the terms of its objective, bars for each task.

    Parameters
    ----------
    records : iterable of CellRecord
        Finished cells; drawn for the largest number of shots, mean and deviation over seeds.

    Raises
    ------
    InvalidInputError
        There is no DCS cell, or only one objective.
    """
    axis, cells = _of_axis(records, OBJECTIVE, method="dcs")
    models = list(dict.fromkeys(cell.identity.get("model") for cell in cells))
    figure, panels = grid_of(2 * len(models), width=5.2, height=2.8, columns=2)
    width = 0.8 / len(axis.values)
    for panel, (model, (metric, label)) in zip(
        panels, [(model, measure) for model in models for measure in _MEASURES], strict=True
    ):
        own = [cell for cell in cells if cell.identity.get("model") == model]
        tasks = list(dict.fromkeys(cell.identity.get("task") for cell in own))
        for at, name in enumerate(axis.values):
            style = look(
                _OBJECTIVES.get(name, name), [n for n in axis.values if n not in _OBJECTIVES]
            )
            values = [
                mean_and_deviation(
                    [
                        cell.metrics[f"test/{metric}"]
                        for cell in own
                        if axis.value(cell) == name
                        and cell.identity.get("task") == task
                        and f"test/{metric}" in cell.metrics
                    ]
                )
                for task in tasks
            ]
            panel.bar(
                [i + (at - (len(axis.values) - 1) / 2) * width for i in range(len(tasks))],
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
        panel.set_ylim(bottom=0)
        tidy(panel)
        title(panel, f"{label} ({model}{shots_suffix(own)})")
    legend(figure, panels[0], columns=len(axis.values))
    return figure


def axis_figure(records: Iterable[CellRecord], axis_name: str) -> Figure:
    """Draw accuracy and COBias by the values of a setting, a line per method.

    Parameters
    ----------
    records : iterable of CellRecord
        Finished cells; drawn for the largest number of shots, a row of panels per model and
        task, mean and deviation over seeds.
    axis_name : str
        The setting, for example ``weight_scale``.

    Raises
    ------
    InvalidInputError
        The cells do not differ in it.
    """
    axis, cells = _of_axis(records, axis_name)
    groups: dict[tuple[Any, ...], list[CellRecord]] = {}
    for cell in cells:
        groups.setdefault(place(cell, "model", "task"), []).append(cell)
    figure, panels = grid_of(2 * len(groups), width=4.6, height=2.7, columns=2)
    styles = looks(axis.methods)
    for at, group in enumerate(groups.values()):
        for panel, measure in zip(panels[2 * at : 2 * at + 2], _MEASURES, strict=True):
            _draw_axis(panel, group, axis, measure, styles)
    legend(figure, panels[0], columns=len(styles))
    return figure


def _draw_axis(
    axes: Axes,
    cells: Sequence[CellRecord],
    axis: Axis,
    measure: tuple[str, str],
    styles: dict[Any, Any],
) -> None:
    metric, label = measure
    order = axis.in_order
    for method in axis.methods:
        points = []
        for at, value in enumerate(order):
            values = [
                cell.metrics[f"test/{metric}"]
                for cell in cells
                if axis.value(cell) == value
                and cell.identity.get("method") == method
                and f"test/{metric}" in cell.metrics
            ]
            if values:
                points.append((at, *mean_and_deviation([100 * v for v in values])))
        if not points:
            continue
        xs, ys, spreads = zip(*points, strict=True)
        style = styles[method]
        axes.errorbar(
            xs,
            ys,
            yerr=[0.0 if spread != spread else spread for spread in spreads],
            marker=style.marker,
            color=style.color,
            linewidth=1.5,
            elinewidth=0.8,
            markersize=6.5,
            markeredgecolor="white",
            label=method_title(method),
        )
    axes.set_xticks(range(len(order)), [axis.short(value) for value in order])
    axes.set_xlabel(axis.title)
    axes.set_ylabel(f"{label}, %")
    axes.margins(x=0.08)
    tidy(axes)
    title(axes, panel_name(cells[0]))


def _of_axis(
    records: Iterable[CellRecord], name: str, *, method: str | None = None
) -> tuple[Axis, list[CellRecord]]:
    """Return a setting and the cells to draw it from: other settings as in the main results."""
    cells = main_cells(
        (cell for cell in finished_cells(records) if "test/accuracy" in cell.metrics), but=(name,)
    )
    if method is not None:
        cells = [cell for cell in cells if cell.identity.get("method") == method]
    axis = next((axis for axis in axes_of(cells) if axis.name == name), None)
    if axis is None:
        raise InvalidInputError(f"an ablation needs cells of two values of {name!r} or more")
    cells = [cell for cell in cells if axis.varies(cell)]
    fullest: dict[tuple[Any, ...], Any] = {}
    for cell in cells:
        where, shots = place(cell, "model", "task"), cell.identity.get("shots")
        fullest[where] = max(shots, fullest.get(where, shots), key=shots_rank)
    return axis, [
        cell
        for cell in cells
        if cell.identity.get("shots") == fullest[place(cell, "model", "task")]
    ]


def _objective_label(name: str) -> str:
    terms = {"Z_err": r"$Z_{err}$", "Z_cobias": r"$Z_{cobias}$", "Z_pmi": r"$Z_{pmi}$"}
    return " + ".join(terms.get(part, part) for part in objective_title(name).split(" + "))
