"""The table of annealing time against the size of the search."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from tracking.records import CellRecord
from tracking.results.frames import (
    annealing_seconds,
    axes_of,
    finished_cells,
    mean_and_deviation,
    method_title,
    optimization_rows,
    place,
    search_space,
    setting,
    text,
    tuning_seconds,
)
from tracking.results.paper import paper_times, task_title
from tracking.results.tables import ResultTable, RowKind, frame_of

__all__ = ["timing_table"]

_NOTE = (
    "Moves and seconds are those of the annealing run whose scheme was chosen, where it was "
    "timed; 'to tune' is the time of all that was tried. N·D is the number of classes times the "
    "number of corrections to choose from."
)
_PAPER_NOTE = " Of the paper: mean (range) over its tasks."


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
    measured = [_measure(group) for group in groups.values()]
    rows = [(*_head(where), *_texts(times)) for where, times in zip(groups, measured, strict=True)]
    kinds: list[RowKind] = ["measured"] * len(rows)
    for model in dict.fromkeys(model for model, _, _, method, _ in groups if method == "dcs"):
        theirs = paper_times(model=model) if paper_too else None
        if theirs is not None:
            about = f"{theirs['seconds_min']} to {theirs['seconds_max']}"
            time = f"{theirs['seconds_mean']} ({about})"
            head = (str(model), "all seven", "", "DCS, paper")
            rows.append((*head, "", "", f"{theirs['corrections']}·N", "", time, ""))
            kinds.append("paper")
    names = ("model", "task", "shots", "method", "setting")
    numbers = (
        *("seeds", "classes", "rows", "search_space", "moves"),
        *("seconds", "seconds_std", "tuning_seconds", "tuning_seconds_std"),
    )
    tidy = [
        (*where, *(times[name] for name in numbers))
        for where, times in zip(groups, measured, strict=True)
    ]
    return ResultTable(
        name="annealing_time",
        title="Annealing time against the size of the search",
        frame=frame_of(tidy, (*names, *numbers)),
        columns=(
            *("model", "task", "shots", "method", "classes N", "rows M"),
            *("search space N·D", "moves", "seconds", "seconds to tune"),
        ),
        rows=tuple(rows),
        kinds=tuple(kinds),
        left=4,
        sections=1,
        note=_NOTE + (_PAPER_NOTE if "paper" in kinds else ""),
    )


def _measure(group: Sequence[CellRecord]) -> dict[str, Any]:
    """Return the numbers of a row: means over seeds, and their deviations."""
    sizes = [search_space(cell) or 0 for cell in group]
    known = [seconds for seconds in map(annealing_seconds, group) if seconds is not None]
    moves = [c.metrics["opt/evaluations"] for c in group if "opt/evaluations" in c.metrics]
    seconds, deviation = mean_and_deviation(known)
    whole, whole_deviation = mean_and_deviation([tuning_seconds(cell) or 0.0 for cell in group])
    return {
        "seeds": len(group),
        "classes": len((group[0].scheme or {}).get("corrections", [])),
        "rows": optimization_rows(group[0]),
        "search_space": fmean(sizes),
        "sizes": (min(sizes), max(sizes)),
        "moves": fmean(moves) if moves else math.nan,
        "seconds": seconds,
        "seconds_std": deviation,
        "tuning_seconds": whole,
        "tuning_seconds_std": whole_deviation,
    }


def _head(where: tuple[Any, ...]) -> tuple[str, ...]:
    model, task, shots, method, settings = where
    named = ", ".join(filter(None, (method_title(method), settings)))
    return str(model), task_title(task), text(shots), named


def _texts(times: Mapping[str, Any]) -> tuple[str, ...]:
    low, high = times["sizes"]
    return (
        str(times["classes"]),
        "" if times["rows"] is None else f"{times['rows']:,}",
        str(low) if low == high else f"{low}-{high}",
        "" if math.isnan(times["moves"]) else f"{times['moves']:,.0f}",
        _seconds(times["seconds"], times["seconds_std"]),
        _seconds(times["tuning_seconds"], times["tuning_seconds_std"]),
    )


def _seconds(mean: float, deviation: float) -> str:
    if math.isnan(mean):
        return ""
    return f"{mean:.2f}" if math.isnan(deviation) else f"{mean:.2f} ± {deviation:.2f}"
