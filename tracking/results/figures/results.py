"""Figures of results: class accuracies, the accuracy-COBias plane, ablations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dcs.errors import InvalidInputError
from dcs.selection.front import pareto_front
from tracking.records import CellRecord
from tracking.results import frames, settings
from tracking.results.figures import style
from tracking.results.frames import MEASURES, Estimate, cells_frame, estimates, grouped
from tracking.results.paper import task_title
from tracking.results.settings import OBJECTIVE, Axis

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "ablation_figure",
    "axis_figure",
    "class_accuracy_figure",
    "class_group_figure",
    "tradeoff_figure",
]

#: More groups of classes than this are not told apart at a glance.
_MOST_GROUPS = 6
_LEVELS = {"dnip": "class level only", "furud": "sample level only", "dcs": "both levels"}
_NAMES = {"accuracy": "accuracy", "cobias": "COBias"}
_BEATEN = "#f4f6f8"


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
    cells = frames.main_finished(records, method=method)
    panels = dict(_panels(frames.classes_frame(cells)))
    if not panels:
        raise InvalidInputError(f"no finished cell of method {method!r} to draw")
    totals = dict(_panels(cells_frame(cells)))
    heights = [1.5 + 0.36 * group["class"].nunique() for group in panels.values()]
    shares = [height / max(heights) for height in heights]
    figure, axes = style.grid_of(len(panels), width=4.6, height=max(heights), shares=shares)
    for panel, (where, group) in zip(axes, panels.items(), strict=True):
        _draw_changes(panel, group, totals[where])
    style.legend(figure, axes[0])
    return figure


def _draw_changes(axes: Axes, classes: pd.DataFrame, cells: pd.DataFrame) -> None:
    means = 100 * classes.groupby("class", sort=False)[["before", "after"]].mean().dropna()
    means = means.sort_values("before", ascending=False, kind="stable")
    heights = range(len(means))
    axes.hlines(heights, means["before"], means["after"], color=style.LIGHT, linewidth=5, zorder=1)
    hollow: dict[str, Any] = {"facecolor": "white", "edgecolor": style.GREY, "linewidth": 2}
    axes.scatter(means["before"], heights, s=52, **hollow, label="before", zorder=2)
    axes.scatter(means["after"], heights, s=52, color=style.ACCENT, label="after", zorder=3)
    style.tidy(axes, grid="x")
    axes.set_yticks(list(heights), [str(name) for name in means.index])
    axes.set_xlim(-3, 103)
    axes.set_xlabel("class accuracy, % of test rows")
    axes.spines["left"].set_visible(False)
    axes.tick_params(left=False)
    # Half a row above and below, however many classes there are.
    axes.set_ylim(-0.6, max(len(means), 1) - 0.4)
    changes = ", ".join(
        f"{_NAMES[m]} {_whole(cells[f'uncorrected/test/{m}'])} → {_whole(cells[f'test/{m}'])}"
        for m in MEASURES
    )
    style.title(axes, f"{_panel_name(cells)}\n{changes}")


def _whole(shares: pd.Series[float]) -> str:
    mean = float(shares.mean())
    return "?" if frames.is_missing(mean) else f"{100 * mean:.0f}"


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
    frame = frames.fullest(frames.classes_frame(frames.main_finished(records)))
    if frame.empty:
        raise InvalidInputError("no finished cell with class accuracies to draw")
    panels = dict(_panels(frame))
    figure, axes = style.grid_of(len(panels), width=4.8, height=3.2)
    looks = style.looks(frame["method"])
    for panel, group in zip(axes, panels.values(), strict=True):
        count = min(_MOST_GROUPS, int(group.groupby("key").size().min()))
        known = group.dropna(subset=["before", "after"]).sort_values(["before", "after"])
        by_cell = known.groupby("key")["class"]
        rank = by_cell.cumcount() * count // by_cell.transform("size")
        means = known["after"].groupby([known["method"], rank]).mean().unstack()
        for at, (name, look) in enumerate(looks.items()):
            if name in means.index and means.loc[name].notna().all():
                level = _LEVELS.get(str(name))
                label = (
                    f"{frames.method_title(name)} ({level})"
                    if level
                    else frames.method_title(name)
                )
                style.bars(panel, list(means.loc[name]), look, at=at, of=len(looks), label=label)
        middle = [str(place) for place in range(2, count)]
        panel.set_xticks(range(count), ["weakest", *middle, "strongest"][:count])
        panel.set_xlabel("classes, by accuracy before correction")
        panel.set_ylabel("accuracy, %")
        panel.set_ylim(0, 102)
        style.tidy(panel)
        style.title(panel, _panel_name(group))
    style.legend(figure, axes[0], columns=2)
    return figure


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
    frame = cells_frame(frames.main_finished(records)).dropna(
        subset=["test/accuracy", "test/cobias"]
    )
    if frame.empty:
        raise InvalidInputError("no finished cell with accuracy and COBias to draw")
    found = estimates(frame, ("model", "task", "method", "shots"))
    keys, groups = grouped(found, ("model", "task"))
    figure, axes = style.grid_of(len(keys), width=4.4, height=3.7)
    looks = style.looks(frame["method"])
    labels = {}
    for panel, (_, group) in zip(axes, groups, strict=True):
        labels[panel] = _draw_plane(panel, group.to_dict("records"), looks)
        style.title(panel, _panel_name(group, with_shots=False))
    style.legend(figure, axes[0], columns=len(looks) + 1)
    style.label_points(figure, labels)
    return figure


@dataclass(frozen=True, slots=True)
class _Point:
    cobias: float
    accuracy: float


def _draw_plane(
    axes: Axes, rows: Sequence[dict[Any, Any]], looks: Mapping[Any, style.Look]
) -> list[tuple[float, float, str]]:
    """Draw one panel, and return the labels that its points are to get."""
    points, labels = [], []
    for row in rows:
        cobias, accuracy = (Estimate.of(row, m) for m in ("cobias", "accuracy"))
        point = _Point(100 * cobias.mean, 100 * accuracy.mean)
        points.append(point)
        xerr, yerr = ([[100 * part] for part in each.reach] for each in (cobias, accuracy))
        at, method = (point.cobias, point.accuracy), row["method"]
        style.draw_point(axes, at, method, looks[method], xerr=xerr, yerr=yerr)
        if not frames.is_missing(row["shots"]):
            labels.append((*at, str(row["shots"])))
    axes.margins(0.12)
    # A deviation may reach below 0, COBias does not.
    axes.set_xlim(left=-0.02 * axes.get_xlim()[1])
    front = pareto_front(points)[::-1]
    (_, right), (bottom, _) = axes.get_xlim(), axes.get_ylim()
    x = [front[0].cobias, *(point.cobias for point in front), right]
    y = [bottom, *(point.accuracy for point in front), front[-1].accuracy]
    axes.fill_between(x, y, bottom, step="post", color=_BEATEN, linewidth=0, zorder=0)
    dashed: dict[str, Any] = {"color": style.GREY, "linewidth": 1.2, "linestyle": (0, (4, 3))}
    axes.step(x, y, where="post", zorder=1, label="Pareto front", **dashed)
    axes.set_xlim(right=right)
    axes.set_ylim(bottom=bottom)
    axes.set_xlabel("COBias, % (less is fairer)")
    axes.set_ylabel("accuracy, %")
    style.tidy(axes, grid="both")
    return labels


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
    axis, frame = _of_axis(records, OBJECTIVE, method="dcs")
    found = estimates(frame, ("model", "task", OBJECTIVE))
    models = list(dict.fromkeys(found["model"]))
    figure, axes = style.grid_of(2 * len(models), width=5.2, height=2.8, columns=2)
    # The terms are drawn as the methods that they resemble.
    alike = {"full": "dcs", "err": "dnip", "err+pmi": "furud"}
    looks = style.looks(alike.get(label, label) for label in axis.values)
    for panel, (model, measure) in zip(
        axes, ((model, measure) for model in models for measure in MEASURES), strict=True
    ):
        own = found[found["model"] == model]
        tasks = list(dict.fromkeys(own["task"]))
        for at, label in enumerate(axis.values):
            of_label = own[own[OBJECTIVE] == label].set_index("task").reindex(tasks)
            style.bars(
                panel,
                list(of_label[f"{measure}_mean"]),
                looks[alike.get(label, label)],
                at=at,
                of=len(axis.values),
                label=_terms(label),
                yerr=list(100 * of_label[f"{measure}_std"]),
                error_kw={"ecolor": style.INK, "elinewidth": 1},
            )
        panel.set_xticks(range(len(tasks)), [task_title(task) for task in tasks])
        panel.set_ylabel(f"{_NAMES[measure]}, %")
        panel.set_ylim(bottom=0)
        style.tidy(panel)
        shots = set(frame.loc[frame["model"] == model, "shots"].map(frames.shots_text))
        about = ", ".join(filter(None, (str(model), shots.pop() if len(shots) == 1 else "")))
        style.title(panel, f"{_NAMES[measure]} ({about})")
    style.legend(figure, axes[0], columns=len(axis.values))
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
    axis, frame = _of_axis(records, axis_name)
    panels = [(group, measure) for _, group in _panels(frame) for measure in MEASURES]
    figure, axes = style.grid_of(len(panels), width=4.6, height=2.7, columns=2)
    looks = style.looks(axis.methods)
    order = axis.in_order
    for panel, (group, measure) in zip(axes, panels, strict=True):
        found = estimates(group, ("method", axis_name))
        found["at"] = found[axis_name].map(order.index)
        for method, look in looks.items():
            own = found[found["method"] == method].sort_values("at")
            if own.empty:
                continue
            panel.errorbar(
                own["at"],
                100 * own[f"{measure}_mean"],
                yerr=100 * own[f"{measure}_std"].fillna(0.0),
                marker=look.marker,
                color=look.color,
                linewidth=1.5,
                elinewidth=0.8,
                markersize=6.5,
                markeredgecolor="white",
                label=frames.method_title(method),
            )
        panel.set_xticks(range(len(order)), [axis.short(value) for value in order])
        panel.set_xlabel(axis.title)
        panel.set_ylabel(f"{_NAMES[measure]}, %")
        panel.margins(x=0.08)
        style.tidy(panel)
        style.title(panel, _panel_name(group))
    style.legend(figure, axes[0], columns=len(looks))
    return figure


def _of_axis(
    records: Iterable[CellRecord], name: str, *, method: str | None = None
) -> tuple[Axis, pd.DataFrame]:
    """Return a setting and the cells to draw it from: other settings as in the main results."""
    cells = frames.main_finished(records, method=method, but=(name,))
    axis = next((axis for axis in settings.axes_of(cells) if axis.name == name), None)
    if axis is None:
        raise InvalidInputError(f"an ablation needs cells of two values of {name!r} or more")
    frame = cells_frame(cell for cell in cells if axis.varies(cell))
    return axis, frames.fullest(frame.dropna(subset="test/accuracy"))


def _panels(frame: pd.DataFrame) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Yield model and task, and their cells of the largest number of shots."""
    keys, groups = grouped(frames.fullest(frame), ("model", "task"))
    for where, (_, group) in zip(keys.itertuples(index=False, name=None), groups, strict=True):
        yield where, group


def _panel_name(group: pd.DataFrame, *, with_shots: bool = True) -> str:
    """Return task, model and prompt of a panel's cells."""
    first = group.iloc[0]
    shots = frames.shots_text(first["shots"]) if with_shots else ""
    return f"{first['task']} ({', '.join(filter(None, (str(first['model']), shots)))})"


def _terms(label: str) -> str:
    terms = {"Z_err": r"$Z_{err}$", "Z_cobias": r"$Z_{cobias}$", "Z_pmi": r"$Z_{pmi}$"}
    return " + ".join(
        terms.get(part, part) for part in settings.objective_title(label).split(" + ")
    )
