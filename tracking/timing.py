"""The table of annealing time against the size of the search."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from tracking._readings import (
    annealing_seconds,
    finished_cells,
    method_title,
    optimization_rows,
    place,
    search_space,
    text,
    tuning_seconds,
)
from tracking._settings import axes_of, setting
from tracking.estimates import mean_and_deviation
from tracking.paper import paper_times, task_title
from tracking.records import CellRecord
from tracking.result_tables import ResultTable, RowKind
from tracking.tables import frame_of

__all__ = ["timing_table"]


def timing_table(records: Iterable[CellRecord], *, paper_too: bool = True) -> ResultTable:
    """Return the time of one annealing run against the size of its search (paper, Figure 2).

    Parameters
    ----------
    records : iterable of CellRecord
        Cells; a row for each model, task, shots and method, and for each setting tried.
    paper_too : bool
        Add what the paper says of its times where it has the model.
    """
    cells = finished_cells(records)
    axes = axes_of(cells)
    groups: dict[tuple[Any, ...], list[CellRecord]] = {}
    for cell in cells:
        if tuning_seconds(cell) is not None and search_space(cell) is not None:
            where = (*place(cell, "model", "task", "shots", "method"), setting(cell, axes))
            groups.setdefault(where, []).append(cell)
    rows, frame = [], []
    for (model, task, shots, method, settings), group in groups.items():
        sizes = [search_space(cell) or 0 for cell in group]
        n_classes = len((group[0].scheme or {}).get("corrections", []))
        known = [s for s in map(annealing_seconds, group) if s is not None]
        seconds, deviation = mean_and_deviation(known)
        whole, whole_deviation = mean_and_deviation([tuning_seconds(c) or 0.0 for c in group])
        moves = [c.metrics["opt/evaluations"] for c in group if "opt/evaluations" in c.metrics]
        optimization = optimization_rows(group[0])
        frame.append(
            (
                model,
                task,
                shots,
                method,
                settings,
                len(group),
                n_classes,
                optimization,
                fmean(sizes),
                fmean(moves) if moves else math.nan,
                seconds,
                deviation,
                whole,
                whole_deviation,
            )
        )
        rows.append(
            (
                str(model),
                task_title(task),
                text(shots),
                ", ".join(filter(None, (method_title(method), settings))),
                str(n_classes),
                "" if optimization is None else f"{optimization:,}",
                _range(sizes),
                f"{fmean(moves):,.0f}" if moves else "",
                _seconds(seconds, deviation),
                _seconds(whole, whole_deviation),
            )
        )
    kinds: list[RowKind] = ["measured"] * len(rows)
    for model in dict.fromkeys(model for model, _, _, method, _ in groups if method == "dcs"):
        theirs = paper_times(model=model) if paper_too else None
        if theirs is not None:
            about = f"{theirs['seconds_min']} to {theirs['seconds_max']}"
            time = f"{theirs['seconds_mean']} ({about})"
            head = (str(model), "all seven", "", "DCS, paper")
            rows.append((*head, "", "", f"{theirs['corrections']}·N", "", time, ""))
            kinds.append("paper")
    names = "model task shots method setting seeds classes rows search_space moves seconds "
    names += "seconds_std tuning_seconds tuning_seconds_std"
    return ResultTable(
        name="annealing_time",
        title="Annealing time against the size of the search",
        frame=frame_of(frame, names.split()),
        columns=(
            "model",
            "task",
            "shots",
            "method",
            "classes N",
            "rows M",
            "search space N·D",
            "moves",
            "seconds",
            "seconds to tune",
        ),
        rows=tuple(rows),
        kinds=tuple(kinds),
        left=4,
        sections=1,
        note="Moves and seconds are those of the annealing run whose scheme was chosen, where it "
        "was timed; 'to tune' is the time of all that was tried. N·D is the number of classes "
        "times the number of corrections to choose from."
        + (" Of the paper: mean (range) over its tasks." if "paper" in kinds else ""),
    )


def _seconds(mean: float, deviation: float) -> str:
    if math.isnan(mean):
        return ""
    return f"{mean:.2f}" if math.isnan(deviation) else f"{mean:.2f} ± {deviation:.2f}"


def _range(sizes: Sequence[int]) -> str:
    low, high = min(sizes), max(sizes)
    return str(low) if low == high else f"{low}-{high}"
