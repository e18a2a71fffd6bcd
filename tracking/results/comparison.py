"""Methods compared over many sources of probabilities: on each, and on the mean of all.

A method is one point of accuracy and COBias; DCS leaves a whole front. What the front has at the
accuracy of another method is compared too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from dcs.evaluation.formatting import percent
from dcs.selection.preference import pareto_front
from tracking.records import CellRecord
from tracking.results import frames
from tracking.results.formats import KINDS, ResultTable

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["method_tables"]

_SOURCE: Final = ("model", "task", "shots")
_MEANS: Final = ("accuracy", "cobias", "score", "balanced_accuracy", "weakest_class")
_HEADS: Final = ("accuracy", "COBias", "accuracy − COBias", "balanced accuracy", "weakest class")
_OURS: Final = "dcs"
_VERDICTS: Final = ("lower", "within one error", "higher", "out of reach")
#: Two figures that round alike are not told apart: half a tenth of a point.
_ROUNDING: Final = 0.0005
_NOTE: Final = (
    "Means over the sources of means over seeds, ± standard error over seeds. Less accurate: "
    "sources on which accuracy is below uncorrected by more than two standard errors of the "
    "difference over seeds (one seed: p < 0.05). Fairest: sources on which the method's COBias is "
    "the lowest of the methods that are not less accurate there."
)


def method_tables(records: Iterable[CellRecord]) -> list[ResultTable]:
    """Return how methods do on every source of probabilities, and on the mean of all.

    Parameters
    ----------
    records : iterable of CellRecord
        Cells. A method in several settings is compared with itself; sources (model, task and
        shots) for which a method has no cell are left out of both tables.

    Returns
    -------
    list of ResultTable
        ``method_means``, a row per method, and ``methods_by_source``, a row per source; empty
        for fewer than two sources or methods. Then, where cells have a front of DCS with test
        figures, ``front_comparison``, a row per other method.
    """
    cells = frames.finished_cells(records)
    frame = _named(cells)
    tidy = _judged(cells, frame)
    whole = tidy.groupby("source")["method"].transform("size") == tidy["method"].nunique()
    tidy = tidy[whole]
    if tidy["source"].nunique() < 2 or tidy["method"].nunique() < 2:
        return []
    return [_means_of(tidy), _by_source(tidy), *_front_comparison(cells, frame)]


def _named(cells: list[CellRecord]) -> pd.DataFrame:
    """Return the judged cells with their source and method as tables name them."""
    frame = frames.cells_frame(cells)
    frame = frame[frame["test/accuracy"].notna()]
    return frame.assign(
        source=[frames.name_of(row, *_SOURCE) for row in frame.to_dict("records")],
        method=[
            ", ".join(filter(None, (frames.method_title(method), setting)))
            for method, setting in zip(frame["method"], frame["setting"], strict=True)
        ],
    )


def _judged(cells: list[CellRecord], frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row per source and method: means over seeds, their errors, and the verdicts."""
    accuracies = frames.classes_frame(cells).groupby("key")["after"]
    frame = frame.assign(
        accuracy=frame["test/accuracy"],
        cobias=frame["test/cobias"],
        score=frame["test/accuracy"] - frame["test/cobias"],
        change=frame["test/accuracy"] - frame["uncorrected/test/accuracy"],
        balanced_accuracy=frame["key"].map(accuracies.mean()),
        weakest_class=frame["key"].map(accuracies.min()),
    )
    groups = frame.groupby(["source", "method"], sort=False)
    tidy = groups[[*_MEANS, "change"]].mean()
    errors = groups[["accuracy", "cobias", "score", "change"]].sem()
    tidy = tidy.join(errors.add_suffix("_error"))
    single = tidy["change_error"].isna()
    tidy["less_accurate"] = (tidy["change"] + 2.0 * tidy["change_error"] < 0.0) | (
        single & (tidy["change"] < 0.0) & (groups["test/accuracy_p"].first() < 0.05)
    )
    harmless = tidy["cobias"].mask(tidy["less_accurate"])
    lowest = harmless.groupby("source").transform("min")
    tidy["fairest"] = harmless <= lowest + _ROUNDING
    tidy["seeds"] = groups.size()
    return tidy.reset_index()


def _means_of(tidy: pd.DataFrame) -> ResultTable:
    import pandas as pd

    groups = tidy.groupby("method", sort=False)
    means = groups[[*_MEANS]].mean()
    # Sources are independent of each other, and their errors add up in squares.
    errors = groups[[f"{name}_error" for name in _MEANS[:3]]].agg(_error_of_mean)
    counts = groups[["less_accurate", "fairest"]].sum()
    frame = means.join(errors).join(counts).reset_index().assign(sources=groups.size().to_numpy())
    text = pd.DataFrame({"method": frame["method"]})
    for name, head in zip(_MEANS, _HEADS, strict=True):
        deviations = frame.get(f"{name}_error", [math.nan] * len(frame))
        text[head] = list(map(percent, frame[name], deviations))
    total = f" of {tidy['source'].nunique()}"
    text["less accurate"] = [f"{count}{total}" for count in frame["less_accurate"]]
    text["fairest"] = [f"{count}{total}" for count in frame["fairest"]]
    return ResultTable(
        name="method_means",
        title="Methods on the mean of the sources, % of test rows",
        frame=frame,
        text=text,
        words=("method",),
        kinds=(KINDS[0],) * len(text),
        about=_NOTE,
    )


def _error_of_mean(errors: pd.Series[float]) -> float:
    return math.sqrt(float((errors**2).sum(skipna=False))) / len(errors)


def _by_source(tidy: pd.DataFrame) -> ResultTable:
    pairs = [
        f"{100 * accuracy:.1f} / {100 * bias:.1f}" + ("↓" if harmed else "")
        for accuracy, bias, harmed in zip(
            tidy["accuracy"], tidy["cobias"], tidy["less_accurate"], strict=True
        )
    ]
    shown = tidy.assign(pair=pairs)
    methods = list(dict.fromkeys(shown["method"]))
    text = shown.pivot(index="source", columns="method", values="pair")
    text = text.loc[list(dict.fromkeys(shown["source"])), methods].reset_index()
    best = shown.loc[shown.groupby("source")["score"].idxmax()].set_index("source")["method"]
    text["highest accuracy − COBias"] = text["source"].map(best)
    return ResultTable(
        name="methods_by_source",
        title="Accuracy / COBias of methods by source, % of test rows",
        frame=tidy,
        text=text,
        words=("source", "highest accuracy − COBias"),
        kinds=(KINDS[0],) * len(text),
        about="↓: less accurate than uncorrected, beyond noise.",
    )


class _Point(NamedTuple):
    accuracy: float
    cobias: float


def _front_comparison(cells: list[CellRecord], frame: pd.DataFrame) -> list[ResultTable]:
    import pandas as pd

    fronts: dict[tuple[object, ...], list[_Point]] = {}
    for cell in cells:
        points = [
            _Point(trial.metrics["test/accuracy"], trial.metrics["test/cobias"])
            for trial in cell.trials
            if "test/accuracy" in trial.metrics
        ]
        if points and cell.identity.get("method") == _OURS:
            # The most accurate first; np.interp wants it last.
            fronts.setdefault(_place(cell), list(pareto_front(points))[::-1])
    names = {row["key"]: row for row in frame.to_dict("records")}
    others = [c for c in cells if c.identity.get("method") != _OURS and _place(c) in fronts]
    rows = []
    for cell in others:
        front, accuracy = fronts[_place(cell)], cell.metrics["test/accuracy"]
        at = np.interp(accuracy, [p.accuracy for p in front], [p.cobias for p in front])
        rows.append(
            {
                "source": names[cell.key]["source"],
                "method": names[cell.key]["method"],
                "gap": float(at) - cell.metrics["test/cobias"],
                "beyond": max(0.0, accuracy - front[-1].accuracy),
            }
        )
    if not rows:
        return []
    groups = pd.DataFrame(rows).groupby(["source", "method"], sort=False)
    gap, error = groups["gap"].mean(), groups["gap"].sem().fillna(0.0)
    beyond, short = groups["beyond"].mean(), groups["beyond"].sem().fillna(0.0)
    verdicts = pd.Series("within one error", index=gap.index)
    verdicts[gap <= 0.0] = "lower"
    verdicts[gap > np.maximum(error, _ROUNDING)] = "higher"
    verdicts[beyond > np.maximum(short, _ROUNDING)] = "out of reach"
    counts = verdicts.groupby("method", sort=False).value_counts().unstack(fill_value=0)
    counts = counts.reindex(columns=[*_VERDICTS], fill_value=0).loc[
        list(dict.fromkeys(row["method"] for row in rows))
    ]
    counts.loc["all"] = counts.sum()
    frame = counts.rename_axis(index="method", columns=None).reset_index()
    return [
        ResultTable(
            name="front_comparison",
            title="COBias of the front of DCS at the accuracy of other methods, sources",
            frame=frame,
            text=frame.astype(str),
            words=("method",),
            kinds=(KINDS[0],) * len(frame),
            about=(
                "Per seed the front is interpolated at the other method's accuracy; errors are "
                "standard errors over seeds. Out of reach: no point is as accurate."
            ),
        )
    ]


def _place(cell: CellRecord) -> tuple[object, ...]:
    """Return where a cell stands: its source and seed."""
    return tuple(map(cell.identity.get, (*_SOURCE, "seed")))
