"""Figures of the search: one annealing run, its time, and what the trials tell.

Trials of all cells of a method are pooled: a single study is too short to tell. Scores are taken
relative to their cell's mean, since some tables are harder than others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from dcs.errors import InvalidInputError
from tracking.records import CellRecord
from tracking.results import frames
from tracking.results.figures import style
from tracking.results.frames import cells_frame, grouped
from tracking.results.paper import task_title

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["importance_figure", "importances", "slice_figure", "time_figure", "trace_figure"]

_MOST_RESTARTS = 60
#: A temperature so many times that before it begins a restart.
_RISE = 3.0
#: With fewer trials a forest explains noise.
_FEWEST_TRIALS = 20
_MOST_DOTS = 2000
_EARLY = "#f0c9d5"


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
    figure = style.empty_figure(6.4, 4.6, fitted=False)
    figure.subplots_adjust(left=0.115, right=0.975, top=0.94, bottom=0.105, hspace=0.14)
    panels = figure.subplots(3, 1, sharex=True, height_ratios=(2.2, 1, 1))
    upper, middle, lower = panels
    steps = range(len(record.trace))
    temperature, current, best, acceptance = zip(*record.trace, strict=True)
    upper.plot(steps, current, color=style.GREY, linewidth=1, label="current")
    upper.plot(steps, best, color=style.ACCENT, linewidth=2.2, label="best so far")
    upper.set_ylabel("objective Z")
    upper.legend(frameon=False, fontsize=9, ncols=2, loc="upper right", labelcolor=style.INK)
    # Room for the legend, above what the search went through.
    upper.set_ylim(top=max(current) + 0.22 * (max(current) - min(best) or 1.0))
    name = frames.name_of(record.identity, "method", "task", "shots", "seed")
    style.title(upper, f"{name}: best Z {best[-1]:.4f}")
    middle.plot(steps, temperature, color=style.BLUE, linewidth=1.4)
    style.log_scale(middle, "y", ticks=2)
    middle.set_ylabel("temperature")
    lower.fill_between(
        steps, [100 * value for value in acceptance], color=style.LIGHT, linewidth=0
    )
    lower.plot(steps, [100 * value for value in acceptance], color=style.INK, linewidth=1)
    lower.set_ylim(0, 104)
    lower.set_ylabel("accepted, %")
    lower.set_xlabel("temperature step")
    rises = [at for at, (a, b) in enumerate(pairwise(temperature), start=1) if b > _RISE * a]
    for axes in panels:
        style.tidy(axes)
        style.place_labels(axes, left=0.52, below=0.27)
        axes.set_xlim(0, max(1, len(record.trace) - 1))
        # Where there are very many, the lines would be all that is seen.
        if len(rises) <= _MOST_RESTARTS:
            # From the bottom of the panel to its top, whatever its scale.
            whole = axes.get_xaxis_transform()
            axes.vlines(rises, 0, 1, transform=whole, color=style.LIGHT, linewidth=0.9, zorder=0)
    return figure


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
    # Other ablations leave the search as large as it is.
    cells = frames.main_finished(records, but=("weight_scale", "memberships"))
    frame = cells_frame(cells)
    frame = frame[(frame["tuning_seconds"] > 0) & frame["search_space"].notna()]
    keys, groups = grouped(frame, ("method", "task", "model", "shots", "setting"))
    if len(keys) < 2:
        raise InvalidInputError("a figure of time needs finished cells of two searches or more")
    timed = bool((frame["annealing_seconds"] > 0).all())
    seconds = groups["annealing_seconds" if timed else "tuning_seconds"]
    points = keys.assign(x=groups["search_space"].mean(), y=seconds.mean(), std=seconds.std())
    figure, (axes,) = style.grid_of(1, width=6.6, height=4.2)
    looks = style.looks(points["method"])
    named: dict[tuple[Any, Any], tuple[float, float, str]] = {}
    unnamed: list[tuple[float, float]] = []
    for row in points.to_dict("records"):
        x, y, spread = row["x"], row["y"], row["std"]
        # A logarithmic axis has no room for what reaches down to 0.
        bar = [[min(spread, 0.9 * y)], [spread]] if spread == spread else None
        style.draw_point(axes, (x, y), row["method"], looks[row["method"]], yerr=bar)
        if (row["method"], row["task"]) in named:
            unnamed.append((x, y))
        named.setdefault((row["method"], row["task"]), (x, y, task_title(row["task"])))
    style.log_scale(axes, "x")
    style.log_scale(axes, "y")
    axes.set_xlabel("search space: classes times correction functions")
    axes.set_ylabel("seconds of one annealing run" if timed else "seconds to tune a cell")
    style.tidy(axes, grid="both")
    style.legend(figure, axes)
    style.label_points(figure, {axes: list(named.values())}, others=unnamed)
    return figure


def importances(records: Iterable[CellRecord], *, method: str = "dcs") -> dict[str, float]:
    """Return how much each hyperparameter explains of what trials reached, summing to 1.

    A random forest is fitted to the pooled trials of the method; the importance is the mean
    decrease in impurity, as in Optuna's evaluator of that name, which takes one study only.

    Returns
    -------
    dict of str to float
        Largest first; empty if there are fewer than 20 trials or nothing varies.
    """
    from sklearn.ensemble import RandomForestRegressor

    frame, values, _ = _pooled(records, method)
    if len(frame) < _FEWEST_TRIALS or frame["gain"].nunique() < 2:
        return {}
    forest = RandomForestRegressor(n_estimators=100, random_state=0, n_jobs=1)
    forest.fit(values.to_numpy(), frame["gain"])
    found = dict(zip(map(str, values), map(float, forest.feature_importances_), strict=True))
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def importance_figure(records: Iterable[CellRecord]) -> Figure:
    """Draw the importance of each hyperparameter, a panel per method that was tuned.

    Raises
    ------
    InvalidInputError
        No method has enough trials.
    """
    cells = frames.finished_cells(records)
    looks = style.looks(str(cell.identity.get("method")) for cell in cells if cell.trials)
    found = {name: importances(cells, method=name) for name in looks}
    found = {name: values for name, values in found.items() if values}
    if not found:
        raise InvalidInputError(f"no method has {_FEWEST_TRIALS} trials to draw")
    height = 1.0 + 0.3 * max(map(len, found.values()))
    figure, panels = style.grid_of(len(found), width=4.2, height=height)
    for panel, (name, values) in zip(panels, found.items(), strict=True):
        order = list(reversed(values.items()))
        drawn = panel.barh(
            [_readable(parameter) for parameter, _ in order],
            [100 * value for _, value in order],
            color=looks[name].color,
            hatch=looks[name].hatch,
            edgecolor="white",
            linewidth=0,
        )
        panel.bar_label(drawn, fmt="%.0f", padding=3, fontsize=8, color=style.INK)
        panel.set_xlabel("importance, %")
        panel.margins(x=0.15)
        style.tidy(panel, grid="x")
        style.title(panel, frames.method_title(name))
    return figure


def slice_figure(records: Iterable[CellRecord], *, method: str = "dcs") -> Figure:
    """Draw what each value of each hyperparameter reached, a panel per hyperparameter.

    A dot per trial, the darker the later it came in its study.

    Raises
    ------
    InvalidInputError
        The method has no trials.
    """
    frame, values, choices = _pooled(records, method)
    if values.empty:
        raise InvalidInputError(f"no trials of method {method!r} to draw")
    from matplotlib.colors import LinearSegmentedColormap

    figure, panels = style.grid_of(values.shape[1], width=2.7, height=2.3, columns=4)
    color = style.looks([method])[method].color
    shades = LinearSegmentedColormap.from_list("later", [_EARLY, color])
    for panel, name in zip(panels, map(str, values), strict=True):
        panel.axhline(0.0, color=style.GREY, linewidth=0.8)
        panel.scatter(
            values[name],
            100 * frame["gain"],
            s=13,
            c=frame["age"],
            cmap=shades,
            vmin=0.0,
            vmax=1.0,
            alpha=0.8,
            linewidth=0,
            # Tens of thousands of dots are a picture, and no longer lines to edit.
            rasterized=len(values) > _MOST_DOTS,
        )
        if name in choices:
            panel.set_xticks(range(len(choices[name])), choices[name])
            panel.margins(x=0.2)
        elif _is_wide(values[name]):
            panel.set_xscale("log")
        style.tidy(panel)
        style.title(panel, _readable(name))
    panels[0].set_ylabel("score against the\ncell's mean, points")
    return figure


def _pooled(
    records: Iterable[CellRecord], method: str
) -> tuple[pd.DataFrame, pd.DataFrame, Mapping[str, Sequence[str]]]:
    """Return trials with ``gain`` and ``age``, their varying values as numbers, and the choices.

    Parameters that are words become numbers, places in their choices.
    """
    frame = frames.trials_frame(frames.main_finished(records, method=method))
    by_cell = frame.groupby("key")
    frame["gain"] = frame["score"] - by_cell["score"].transform("mean")
    frame["age"] = frame["trial"] / by_cell["trial"].transform("max").clip(lower=1)
    values = frame.loc[:, "score":"gain"].iloc[:, 1:-1]
    # A trial without most of the hyperparameters, or one that few trials have, compares nothing.
    values = values.loc[:, values.notna().mean() > 0.5].dropna()
    choices: dict[str, Sequence[str]] = {}
    for name, column in values.items():
        if not all(isinstance(value, int | float) for value in column):
            choices[str(name)] = sorted(set(map(str, column)))
            values[name] = column.map(str).map(choices[str(name)].index)
    values = values.loc[:, values.nunique() > 1].astype(float)
    return frame.loc[values.index], values, choices


def _is_wide(values: pd.Series[float]) -> bool:
    """Whether values were drawn on a logarithmic scale: most of them are among the smallest."""
    low, high = values.min(), values.max()
    return bool(low > 0 and high / low > 30 and values.median() < low + 0.25 * (high - low))


def _readable(parameter: str) -> str:
    return parameter.replace("_", " ")
