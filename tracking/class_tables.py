"""The paper's tables about classes: which corrections they get, and what it does to each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from tracking._readings import finished_cells, method_title, percent, place, weakest_class
from tracking.paper import paper_class_accuracies, paper_schemes, task_title
from tracking.records import CellRecord
from tracking.result_tables import ResultTable

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["class_accuracies_by_seed", "scheme_summary"]


def scheme_summary(
    records: Iterable[CellRecord], *, method: str = "dcs", paper_too: bool = True
) -> ResultTable:
    """Return how many classes get weights and how many memberships (paper, scheme table).

    Parameters
    ----------
    records : iterable of CellRecord
        Cells; those of other methods are left out.
    method : str
        The method whose schemes are counted.
    paper_too : bool
        Add the paper's counts for the cells that exist in both.

    Returns
    -------
    ResultTable
        A row per model, task and shots: classes with a weight and with a membership, averaged
        over seeds; their ratio; memberships in each seed's run; and the weakest class of each
        seed before and after correction, marked with M where a membership corrects it.
    """
    groups: dict[tuple[Any, ...], list[CellRecord]] = {}
    for cell in finished_cells(records):
        if cell.identity.get("method") == method and cell.scheme is not None:
            groups.setdefault(place(cell, "model", "task", "shots"), []).append(cell)
    rows: list[tuple[str, ...]] = []
    tidy: list[tuple[Any, ...]] = []
    for (model, task, shots), group in groups.items():
        kinds = [[c["kind"] for c in (cell.scheme or {})["corrections"]] for cell in group]
        weights = [sum(kind == "weight" for kind in each) for each in kinds]
        memberships = [len(each) - count for each, count in zip(kinds, weights, strict=True)]
        head = (str(model), task_title(task), _text(shots))
        mean_w, mean_m = fmean(weights), fmean(memberships)
        rows.append(
            (
                *head,
                str(len(kinds[0])),
                f"{mean_w:.1f}",
                f"{mean_m:.1f}",
                f"{mean_m / mean_w:.2f}" if mean_w else "-",
                "/".join(map(str, memberships)),
                "; ".join(filter(None, map(_weakest_text, group))),
            )
        )
        for cell, weight, membership in zip(group, weights, memberships, strict=True):
            counts = (cell.identity.get("seed"), weight, membership)
            tidy.append((model, task, shots, *counts, *_weakest_values(cell)))
        own = paper_schemes(model=model, task=task, shots=shots) if paper_too else None
        if own is not None:
            theirs = (own["weights"], own["memberships"], own["ratio"], own["memberships_by_seed"])
            rows.append((head[0], f"{head[1]}, paper", head[2], own["classes"], *theirs, ""))
    columns = "model task shots seed weights memberships weakest_class weakest_kind before after"
    return ResultTable(
        name="schemes",
        title=f"Correction schemes of {method_title(method)}: weights against memberships",
        frame=_frame(tidy, columns.split()),
        columns=(
            "model",
            "task",
            "shots",
            "classes",
            "weights",
            "memberships",
            "ratio",
            "memberships by seed",
            "weakest class by seed, before → after",
        ),
        rows=tuple(rows),
        left=3,
        texts=(7, 8),
        note="Classes with each kind of correction, mean over seeds; ratio of memberships to "
        "weights. (M): a membership corrects the weakest class.",
    )


def class_accuracies_by_seed(
    records: Iterable[CellRecord], *, paper_too: bool = True
) -> list[ResultTable]:
    """Return the class accuracies of every seed (paper, DDI table), one table per task.

    Parameters
    ----------
    records : iterable of CellRecord
        Cells.
    paper_too : bool
        Add the paper's figures for the cells that exist in both.

    Returns
    -------
    list of ResultTable
        One per task: a row per model, shots, method and seed; in percent.
    """
    by_task: dict[tuple[Any, ...], list[CellRecord]] = {}
    for cell in finished_cells(records):
        if cell.class_accuracies:
            classes = tuple(map(str, cell.class_accuracies["class"]))
            by_task.setdefault((cell.identity.get("task"), classes), []).append(cell)
    return [
        _class_table(task, classes, cells, paper_too=paper_too)
        for (task, classes), cells in by_task.items()
    ]


def _class_table(
    task: Any, classes: Sequence[str], cells: Sequence[CellRecord], *, paper_too: bool
) -> ResultTable:
    rows: list[tuple[str, ...]] = []
    tidy: list[tuple[Any, ...]] = []
    done: set[tuple[Any, ...]] = set()
    for cell in cells:
        model, shots, method, seed = place(cell, "model", "shots", "method", "seed")
        after = cell.class_accuracies["after"]
        total = (cell.metrics.get("test/accuracy"), cell.metrics.get("test/cobias"))
        head = (str(model), _text(shots), method_title(method))
        rows.append((*head, str(seed), *map(percent, (*total, *after))))
        for name, value in zip(classes, after, strict=True):
            tidy.append(
                (model, task, shots, method, seed, name, math.nan if value is None else value)
            )
        if not paper_too or (model, shots, method) in done:
            continue
        done.add((model, shots, method))
        for own_seed, own_method, values in paper_class_accuracies(
            model=model, task=task, shots=shots
        ):
            if own_method == method:
                known = {name.lower(): value for name, value in values.items()}
                texts = [percent(known.get(name.lower())) for name in classes]
                rows.append((head[0], head[1], f"{head[2]}, paper", own_seed, "", "", *texts))
    columns = "model task shots method seed class accuracy"
    return ResultTable(
        name=f"class_accuracies_{_stem(task)}",
        title=f"Class accuracies of {task_title(task)} by seed, % of test rows",
        frame=_frame(tidy, columns.split()),
        columns=("model", "shots", "method", "seed", "Acc", "COBias", *classes),
        rows=tuple(rows),
        left=4,
    )


def _weakest_values(cell: CellRecord) -> tuple[Any, ...]:
    index = weakest_class(cell)
    if index is None or cell.scheme is None:
        return None, None, math.nan, math.nan
    columns = cell.class_accuracies
    after = columns["after"][index]
    return (
        columns["class"][index],
        cell.scheme["corrections"][index]["kind"],
        columns["before"][index],
        math.nan if after is None else after,
    )


def _weakest_text(cell: CellRecord) -> str:
    name, kind, before, after = _weakest_values(cell)
    if name is None:
        return ""
    mark = " (M)" if kind == "membership" else ""
    return f"{cell.identity.get('seed')}: {name}{mark} {before:.2f} → {after:.2f}"


def _stem(task: object) -> str:
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in str(task))


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _frame(rows: list[tuple[Any, ...]], columns: Sequence[str]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(rows, columns=list(columns))
