"""Figures of tuning: which hyperparameters mattered, and which values were good.

Trials of all cells of a method are pooled: a single study is too short to tell. Scores are taken
relative to their cell's mean, since some tables are harder than others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from dcs.errors import InvalidInputError
from tracking.records import CellRecord
from tracking.results.figures.style import GREY, INK, grid_of, looks, tidy, title
from tracking.results.frames import finished_cells, main_cells, method_title, trial_score

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["importance_figure", "importances", "slice_figure"]

#: With fewer trials a forest explains noise.
_FEWEST_TRIALS = 20
_MOST_DOTS = 2000
_EARLY = "#f0c9d5"


@dataclass(frozen=True, slots=True)
class _Trials:
    names: tuple[str, ...]
    rows: tuple[tuple[float, ...], ...]
    gains: tuple[float, ...]
    ages: tuple[float, ...]
    choices: Mapping[str, tuple[str, ...]]


def importances(records: Iterable[CellRecord], *, method: str = "dcs") -> dict[str, float]:
    """Return how much each hyperparameter explains of what trials reached, summing to 1.

    A random forest is fitted to the pooled trials of the method; the importance is the mean
    decrease in impurity, as in Optuna's evaluator of that name.

    Returns
    -------
    dict of str to float
        Largest first; empty if there are fewer than 20 trials or nothing varies.
    """
    from sklearn.ensemble import RandomForestRegressor

    trials = _pooled(records, method)
    if len(trials.rows) < _FEWEST_TRIALS or len(set(trials.gains)) < 2:
        return {}
    forest = RandomForestRegressor(n_estimators=100, random_state=0, n_jobs=1)
    forest.fit(trials.rows, trials.gains)
    found = dict(zip(trials.names, map(float, forest.feature_importances_), strict=True))
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def importance_figure(records: Iterable[CellRecord]) -> Figure:
    """Draw the importance of each hyperparameter, a panel per method that was tuned.

    Raises
    ------
    InvalidInputError
        No method has enough trials.
    """
    cells = finished_cells(records)
    names = dict.fromkeys(str(cell.identity.get("method")) for cell in cells if cell.trials)
    found = {name: importances(cells, method=name) for name in names}
    found = {name: values for name, values in found.items() if values}
    if not found:
        raise InvalidInputError(f"no method has {_FEWEST_TRIALS} trials to draw")
    height = 1.0 + 0.3 * max(map(len, found.values()))
    figure, panels = grid_of(len(found), width=4.2, height=height)
    styles = looks(names)
    for panel, (name, values) in zip(panels, found.items(), strict=True):
        order = list(reversed(values.items()))
        style = styles[name]
        bars = panel.barh(
            [_readable(parameter) for parameter, _ in order],
            [100 * value for _, value in order],
            color=style.color,
            hatch=style.hatch,
            edgecolor="white",
            linewidth=0,
        )
        panel.bar_label(bars, fmt="%.0f", padding=3, fontsize=8, color=INK)
        panel.set_xlabel("importance, %")
        panel.margins(x=0.15)
        tidy(panel, grid="x")
        title(panel, method_title(name))
    return figure


def slice_figure(records: Iterable[CellRecord], *, method: str = "dcs") -> Figure:
    """Draw what each value of each hyperparameter reached, a panel per hyperparameter.

    A dot per trial, the darker the later it came in its study.

    Raises
    ------
    InvalidInputError
        The method has no trials.
    """
    trials = _pooled(records, method)
    if not trials.rows:
        raise InvalidInputError(f"no trials of method {method!r} to draw")
    from matplotlib.colors import LinearSegmentedColormap

    figure, panels = grid_of(len(trials.names), width=2.7, height=2.3, columns=4)
    color = looks([method])[method].color
    shades = LinearSegmentedColormap.from_list("later", [_EARLY, color])
    for panel, (name, values) in zip(
        panels, zip(trials.names, zip(*trials.rows, strict=True), strict=True), strict=True
    ):
        panel.axhline(0.0, color=GREY, linewidth=0.8)
        panel.scatter(
            values,
            [100 * gain for gain in trials.gains],
            s=13,
            c=trials.ages,
            cmap=shades,
            vmin=0.0,
            vmax=1.0,
            alpha=0.8,
            linewidth=0,
            # Tens of thousands of dots are a picture, and no longer lines to edit.
            rasterized=len(values) > _MOST_DOTS,
        )
        if name in trials.choices:
            panel.set_xticks(range(len(trials.choices[name])), trials.choices[name])
            panel.margins(x=0.2)
        elif _is_wide(values):
            panel.set_xscale("log")
        tidy(panel)
        title(panel, _readable(name))
    panels[0].set_ylabel("score against the\ncell's mean, points")
    return figure


def _pooled(records: Iterable[CellRecord], method: str) -> _Trials:
    rows: list[dict[str, Any]] = []
    gains: list[float] = []
    ages: list[float] = []
    for cell in main_cells(finished_cells(records)):
        if cell.identity.get("method") != method:
            continue
        done = [
            (trial, score)
            for trial in cell.trials
            if trial.state == "COMPLETE" and (score := trial_score(trial)) is not None
        ]
        mean = fmean(score for _, score in done) if done else 0.0
        rows += [dict(trial.params) for trial, _ in done]
        gains += [score - mean for _, score in done]
        last = max(1, *(trial.number for trial, _ in done)) if done else 1
        ages += [trial.number / last for trial, _ in done]
    counts = Counter(name for row in rows for name in row)
    # A trial without most of the hyperparameters, or one that few trials have, compares nothing.
    names = [name for name, count in counts.items() if count > len(rows) / 2]
    kept = [i for i, row in enumerate(rows) if all(name in row for name in names)]
    columns: dict[str, tuple[float, ...]] = {}
    choices: dict[str, tuple[str, ...]] = {}
    for name in names:
        values = [rows[i][name] for i in kept]
        if len({str(value) for value in values}) < 2:
            continue
        if not all(isinstance(value, int | float) for value in values):
            choices[name] = tuple(sorted({str(value) for value in values}))
            values = [choices[name].index(str(value)) for value in values]
        columns[name] = tuple(map(float, values))
    return _Trials(
        tuple(columns),
        tuple(zip(*columns.values(), strict=True)),
        tuple(gains[i] for i in kept) if columns else (),
        tuple(ages[i] for i in kept) if columns else (),
        choices,
    )


def _is_wide(values: Sequence[float]) -> bool:
    """Whether values were drawn on a logarithmic scale: most of them are among the smallest."""
    low, high = min(values), max(values)
    return low > 0 and high / low > 30 and median(values) < low + 0.25 * (high - low)


def _readable(parameter: str) -> str:
    return parameter.replace("_", " ")
