"""The table of annealing time against the size of the search."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from tracking._readings import (
    annealing_seconds,
    finished_cells,
    mean_and_deviation,
    method_title,
    optimization_rows,
    place,
    search_space,
    tuning_seconds,
)
from tracking.paper import task_title
from tracking.records import CellRecord
from tracking.result_tables import ResultTable

__all__ = ["timing_table"]


def timing_table(records: Iterable[CellRecord]) -> ResultTable:
    """Return the time of one annealing run against the size of its search (paper, Figure 2)."""
    import pandas as pd

    groups: dict[tuple[Any, ...], list[CellRecord]] = {}
    for cell in finished_cells(records):
        if tuning_seconds(cell) is not None and search_space(cell) is not None:
            groups.setdefault(place(cell, "model", "task", "shots", "method"), []).append(cell)
    rows, frame = [], []
    for (model, task, shots, method), group in groups.items():
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
                "" if shots is None else str(shots),
                method_title(method),
                str(n_classes),
                "" if optimization is None else f"{optimization:,}",
                _range(sizes),
                f"{fmean(moves):,.0f}" if moves else "",
                _seconds(seconds, deviation),
                _seconds(whole, whole_deviation),
            )
        )
    names = "model task shots method seeds classes rows search_space moves seconds seconds_std "
    names += "tuning_seconds tuning_seconds_std"
    return ResultTable(
        name="annealing_time",
        title="Annealing time against the size of the search",
        frame=pd.DataFrame(frame, columns=names.split()),
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
        left=4,
        note="Moves and seconds are those of the annealing run whose scheme was chosen, where it "
        "was timed; 'to tune' is the time of all that was tried. N·D is the number of classes "
        "times the number of corrections to choose from.",
    )


def _seconds(mean: float, deviation: float) -> str:
    if math.isnan(mean):
        return ""
    return f"{mean:.2f}" if math.isnan(deviation) else f"{mean:.2f} ± {deviation:.2f}"


def _range(sizes: Sequence[int]) -> str:
    low, high = min(sizes), max(sizes)
    return str(low) if low == high else f"{low}-{high}"
