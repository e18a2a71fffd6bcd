"""Effects of the method and of settings, tested over sources of probabilities.

    python -m benchmarks.findings SWEEP [--runs dcs-runs] [--figure findings.svg]

The unit of the tests is the source (model, task, shots), averaged over its splits: rows of one
source are not independent evidence.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dcs.errors import InvalidInputError
from dcs.evaluation.uncertainty import percent
from dcs.io import atomic_write_bytes
from dcs_tracking import Archive, CellRecord
from dcs_tracking.results import figures
from dcs_tracking.results.cells import (
    SOURCE,
    Cells,
    groups_of,
    is_missing,
    method_title,
    name_of,
    sorted_by,
)
from dcs_tracking.results.settings import Axis
from dcs_tracking.results.sweep_tables import ResultTable, filled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Metrics of a method in a setting, means over sources, and their column heads.
METRICS: Final[Mapping[str, str]] = {
    "z": "Z",
    "membership_share": "memberships, % of classes",
    "weak": "of these to weak classes, %",
    "accuracy": "accuracy, %",
    "cobias": "COBias, %",
    "score": "accuracy − COBias, %",
    "lost": "classes never right, %",
}
_PANELS: Final = {
    **{name: METRICS[name] for name in ("z", "membership_share", "accuracy", "cobias", "score")},
    "change": "change of the difference, points",
}
_BASELINE: Final = "dnip"
#: Preferred reference values of settings; the default is the main value of the axis.
_REFERENCES: Final[Mapping[str, tuple[Any, ...]]] = {
    "beta": (1.0,),
    "tau": (0.0, 0.2),
    "schedule": ("tuned",),
    "prefer": ("accuracy",),
    "restarts": (1,),
}
_RESAMPLES: Final = 10_000
#: More tick labels than this are rotated.
_MAX_HORIZONTAL_LABELS: Final = 4
_NOTE: Final = (
    "Means over {sources} sources of means over splits. Memberships: classes with a membership "
    "function other than Don't Change; weak: the less accurate half of the classes of a source, "
    "uncorrected. Change: accuracy − COBias against {against}, in points, with its 95 % bootstrap "
    "interval over sources; p: Wilcoxon's signed-rank test over sources."
)


def named_cells(cells: Cells) -> pd.DataFrame:
    """Return `Cells.judged` with ``source`` (model, task, shots), ``name`` (method, setting)."""
    frame = cells.judged
    rows = frame.to_dict("records")
    return frame.assign(
        source=[name_of(row, *SOURCE) for row in rows],
        name=[name_of(row, "method", "setting") for row in rows],
    )


def findings_frame(records: Iterable[CellRecord]) -> tuple[pd.DataFrame, list[Axis]]:
    """Return the metrics that findings compare for each finished cell, and the varied settings.

    Returns
    -------
    frame : pandas.DataFrame
        ``key``, ``source``, ``seed``, ``method``, a column for each axis, and `METRICS`: Z of the
        search, and shares.
    axes : list of Axis
        Without settings that follow from the source.
    """
    cells = Cells.of(records)
    axes, classes = cells.axes, cells.classes
    corrections = pd.DataFrame(
        [
            {"key": record.key, **each}
            for record in cells.records
            for each in (record.scheme or {}).get("corrections", [])
        ],
        columns=["key", "class", "kind", "a", "b", "c"],
    )
    unchanged = (corrections[["a", "b", "c"]] == [0.0, 1.0, 1.0]).all(axis=1)
    used = (corrections["kind"] == "membership") & ~unchanged
    rank = classes.groupby("key")["before"].rank(pct=True)
    weak = corrections.assign(used=used).merge(
        classes.assign(weak=rank <= 0.5)[["key", "class", "weak"]], on=["key", "class"]
    )
    served = weak[weak["used"]].groupby("key")["weak"].mean()
    frame = named_cells(cells)
    found = frame.assign(
        z=frame.get("opt/z"),
        membership_share=frame["key"].map(used.groupby(corrections["key"]).mean()),
        weak=frame["key"].map(served).astype(float),
        lost=frame["key"].map((classes["after"] == 0.0).groupby(classes["key"]).mean()),
    )
    names = [axis.name for axis in axes]
    return found[["key", "source", "seed", "method", *names, *METRICS]], axes


def finding_tables(records: Iterable[CellRecord]) -> list[ResultTable]:
    """Return comparisons of methods and settings over sources.

    Parameters
    ----------
    records : iterable of CellRecord
        Cells.

    Returns
    -------
    list of ResultTable
        ``findings_methods`` compares each method with DNIP in the same setting, and
        ``findings_settings`` each setting with a reference setting of the same method; empty if
        cells do not differ in any setting, or if there are fewer than two sources.
    """
    frame, axes = findings_frame(records)
    frame = frame[frame["method"] != "uncorrected"]
    for axis in axes:
        # Leave out cells of methods that do not have the setting.
        frame = frame[[value in axis.values for value in frame[axis.name]]]
    if not axes or frame["source"].nunique() < 2:
        return []
    names = [axis.name for axis in axes]
    main = {axis.name: _get_reference(axis) for axis in axes}
    tables = []
    if {_BASELINE} < set(frame["method"]):
        against = frame[frame["method"] == _BASELINE]
        title = "Methods in every setting"
        tables.append(_build_table("methods", title, frame, against, names, axes, "DNIP there"))
    at = [all(row[name] == main[name] for name in names) for row in frame.to_dict("records")]
    words = ", ".join(axis.words(main[axis.name]) for axis in axes)
    tables.append(
        _build_table(
            "settings", "Settings", frame, frame[at], ["method"], axes, f"the row of {words}"
        )
    )
    return tables


@figures.styled()
def finding_figure(records: Iterable[CellRecord]) -> Figure:
    """Draw the metrics of settings over sources, against the setting with the most values.

    Parameters
    ----------
    records : iterable of CellRecord
        Cells.

    Returns
    -------
    matplotlib.figure.Figure
        Panels of Z, the share of memberships, held-out metrics, and the change from the reference
        with half the width of its interval.

    Raises
    ------
    InvalidInputError
        Raised if cells do not differ in any setting, or if there are fewer than two sources.
    """
    cells = list(records)
    tables = finding_tables(cells)
    if not tables:
        raise InvalidInputError(
            "findings need cells that differ in a setting, of at least two sources"
        )
    frame, axes = tables[-1].frame, Cells.of(cells).axes
    across, *others = sorted(axes, key=lambda axis: -len(axis.values))
    series = []
    for row in frame.to_dict("records"):
        words = [axis.words(_restore_none(row[axis.name])) for axis in others]
        series.append(", ".join([method_title(row["method"]), *words]))
    looks = dict(zip(series, _assign_looks(frame["method"], series), strict=True))
    places = across.in_order
    at = [places.index(_restore_none(value)) for value in frame[across.name]]
    of_series = frame.assign(at=at, series=series)
    off = (of_series["high"] - of_series["low"]) / 2
    figure, panels = figures.grid_of(len(_PANELS), width=4.2, height=2.9)
    for panel, (name, ylabel) in zip(panels, _PANELS.items(), strict=True):
        scale = 1.0 if name == "z" else 100.0
        scaled = of_series.assign(mean=scale * of_series[name], spread=scale * off)
        means, spreads = (
            scaled.pivot(index="at", columns="series", values=each) for each in ("mean", "spread")
        )
        for order, (title, look) in enumerate(looks.items()):
            own = means[title].dropna()
            # Points are side by side, unless a line joins those of a numeric setting.
            shift = 0.0 if _is_scale(across) else 0.12 * (order - (len(looks) - 1) / 2)
            spread = spreads[title].reindex(own.index).fillna(0.0)
            panel.errorbar(
                own.index.to_numpy(dtype=float) + shift,
                own,
                yerr=spread if name == "change" else None,
                color=look.color,
                label=title,
                marker=look.marker,
                linestyle="-" if _is_scale(across) else "none",
                elinewidth=0.8,
            )
        turned: dict[str, Any] = (
            {"rotation": 20, "ha": "right"} if len(places) > _MAX_HORIZONTAL_LABELS else {}
        )
        panel.set_xticks(range(len(places)), map(across.short, places), **turned)
        panel.set(ylabel=ylabel, xlabel=across.title, xlim=(-0.4, len(places) - 0.6))
    figures.add_legend(figure)
    return figure


def _assign_looks(methods: pd.Series[str], series: Sequence[str]) -> list[figures.Look]:
    """Return a look for each row: the color of its method, or its own if there is one method."""
    if methods.nunique() == 1:
        one = figures.looks_of(series)
        return [one[each] for each in series]
    hues = figures.looks_of(methods)
    rest = [each.split(", ", 1)[-1] for each in series]
    markers = figures.looks_of(rest)
    return [
        replace(hues[method], marker=markers[each].marker)
        for method, each in zip(methods, rest, strict=True)
    ]


def _is_scale(axis: Axis) -> bool:
    """Whether the values of an axis are numeric; None, such as all rows, counts as numeric."""
    return not any(isinstance(value, str | bool) for value in axis.values)


def _get_reference(axis: Axis) -> Any:
    known = _REFERENCES.get(axis.name, ())
    return next((value for value in known if value in axis.values), axis.main)


def _build_table(
    name: str,
    title: str,
    frame: pd.DataFrame,
    against: pd.DataFrame,
    on: Sequence[str],
    axes: Sequence[Axis],
    words: str,
) -> ResultTable:
    """Return a row per method and setting; a row and its reference are matched by `on`."""
    names = [axis.name for axis in axes]
    unit = ["source", "seed", *on]
    paired = frame.merge(against[[*unit, "key", "score"]], on=unit, how="left", suffixes=("", "_"))
    paired["change"] = (paired["score"] - paired["score_"]).mask(paired["key"] == paired["key_"])
    methods = list(dict.fromkeys(frame["method"]))
    orders = {"method": methods} | {axis.name: axis.in_order for axis in axes}
    paired = sorted_by(paired, orders)
    rows, lines = [], []
    for where, group in groups_of(paired, ["method", *names]):
        sources = group.groupby("source", sort=False)
        means = sources[[*METRICS]].mean()
        row: dict[Any, Any] = {**where, "sources": len(means), "cells": len(group)}
        row |= {metric: float(means[metric].mean()) for metric in METRICS}
        row |= _test_changes(sources["change"].mean().dropna().to_numpy())
        rows.append(row)
        head = {axis.title: axis.short(where[axis.name]) for axis in axes}
        texts = {title: _format_metric(metric, row[metric]) for metric, title in METRICS.items()}
        lines.append({"method": method_title(where["method"]), **head, **texts})
        lines[-1] |= _format_change(row)
    return ResultTable(
        name=f"findings_{name}",
        title=f"{title}, over sources",
        frame=pd.DataFrame(rows),
        text=filled(pd.DataFrame(lines)),
        words=("method", *(axis.title for axis in axes)),
        about=_NOTE.format(sources=frame["source"].nunique(), against=words),
    )


def _restore_none(value: Any) -> Any:
    """Return the value of a setting, with None restored where pandas converted it to NaN."""
    return None if is_missing(value) else value


def _format_metric(metric: str, value: float) -> str:
    if is_missing(value):
        return ""
    return f"{value:.4f}" if metric == "z" else percent(value)


def _test_changes(changes: NDArray[np.float64]) -> dict[str, float]:
    """Return the mean of paired changes, its interval and p-value, and the counts by sign."""
    from scipy.stats import wilcoxon

    if not changes.size:
        return {}
    drawn = np.random.default_rng(0).integers(0, changes.size, (_RESAMPLES, changes.size))
    low, high = np.quantile(changes[drawn].mean(axis=1), [0.025, 0.975])
    p = float(wilcoxon(changes).pvalue) if np.any(changes) else 1.0
    counts = {"ahead": (changes > 0.0).sum(), "behind": (changes < 0.0).sum()}
    return {"change": float(changes.mean()), "low": low, "high": high, "p": p, **counts}


def _format_change(row: Mapping[Any, Any]) -> dict[str, str]:
    if "change" not in row:
        return {"change": "", "p": "", "ahead / behind": ""}
    change, low, high = (100.0 * row[name] for name in ("change", "low", "high"))
    return {
        "change": f"{change:+.1f} [{low:+.1f}, {high:+.1f}]",
        "p": f"{row['p']:.2g}",
        "ahead / behind": f"{row['ahead']} / {row['behind']}",
    }


def sweep_records(runs: Path, sweep: str) -> list[CellRecord]:
    """Return the finished cells of a sweep in an output folder."""
    archive = Archive(runs)
    sweeps = archive.sweeps()
    found = [each for each in sweeps if each.experiment == sweep]
    if not found:
        names = ", ".join(dict.fromkeys(each.experiment for each in sweeps))
        raise InvalidInputError(f"{runs}: no sweep {sweep!r}; it has {names or 'none'}")
    keys = dict.fromkeys(key for each in found for key in archive.keys(each.sweep_key))
    return list(archive.finished(keys).values())


def main() -> None:
    """Print the tables of a sweep and draw its figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sweep", help="name of the sweep")
    parser.add_argument("--runs", type=Path, default=Path("dcs-runs"))
    parser.add_argument("--figure", type=Path, help="SVG file to write")
    given = parser.parse_args()
    records = sweep_records(given.runs, given.sweep)
    tables = finding_tables(records)
    if not tables:
        parser.exit(1, f"{given.sweep}: no setting varies over at least two sources\n")
    for table in tables:
        print(table.to_markdown())
    if given.figure is not None:
        atomic_write_bytes(given.figure, figures.figure_bytes(finding_figure(records), "svg"))


if __name__ == "__main__":
    main()
