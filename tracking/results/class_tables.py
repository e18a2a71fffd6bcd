"""The paper's tables about classes: which corrections they get, and what it does to each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from dcs.evaluation.formatting import percent
from tracking.records import CellRecord
from tracking.results.frames import (
    Estimate,
    class_intervals,
    finished_cells,
    main_cells,
    method_title,
    notes_of,
    place,
    text,
    weakest_class,
)
from tracking.results.paper import paper_class_accuracies, paper_schemes, paper_weakest, task_title
from tracking.results.tables import ResultTable, RowKind, difference, frame_of
from tracking.results.task_grid import PAPER_NOTE

__all__ = ["class_accuracies_by_seed", "scheme_summary"]


def scheme_summary(
    records: Iterable[CellRecord], *, method: str = "dcs", paper_too: bool = True
) -> ResultTable:
    """Return how many classes get weights and how many memberships (paper, scheme table).

    Parameters
    ----------
    records : iterable of CellRecord
        Cells; those of other methods are left out, and those of ablations.
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
    for cell in main_cells(finished_cells(records)):
        if cell.identity.get("method") == method and cell.scheme is not None:
            groups.setdefault(place(cell, "model", "task", "shots"), []).append(cell)
    rows: list[tuple[str, ...]] = []
    kinds: list[RowKind] = []
    tidy: list[tuple[Any, ...]] = []
    for (model, task, shots), group in groups.items():
        chosen = [[c["kind"] for c in (cell.scheme or {})["corrections"]] for cell in group]
        weights = [sum(kind == "weight" for kind in each) for each in chosen]
        memberships = [len(each) - count for each, count in zip(chosen, weights, strict=True)]
        head = (str(model), task_title(task), text(shots))
        mean_w, mean_m = fmean(weights), fmean(memberships)
        rows.append(
            (
                *head,
                str(len(chosen[0])),
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
        kinds.append("measured")
        below = _paper_scheme(model, task, shots, mean_w, mean_m) if paper_too else []
        rows += [(head[0], *row) for row in below]
        if below:
            kinds += ["paper", "difference"]
    columns = "model task shots seed weights memberships weakest_class weakest_kind before after"
    return ResultTable(
        name="schemes",
        title=f"Correction schemes of {method_title(method)}: weights against memberships",
        frame=frame_of(tidy, columns.split()),
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
        kinds=tuple(kinds),
        left=3,
        texts=(7, 8),
        note="Classes with each kind of correction, mean over seeds; ratio of memberships to "
        "weights. (M): a membership corrects the weakest class.",
    )


def _paper_scheme(
    model: Any, task: Any, shots: Any, weights: float, memberships: float
) -> list[tuple[str, ...]]:
    """Return the paper's row of a prompt and how ours differs from it, or nothing."""
    own = paper_schemes(model=model, task=task, shots=shots)
    if own is None:
        return []
    words = "; ".join(
        f"{row['seed']}: {row['class']} (M) {row['before']} → {row['after']}"
        for row in paper_weakest(model=model, task=task, shots=shots)
    )
    theirs = (own["weights"], own["memberships"], own["ratio"], own["memberships_by_seed"])
    gaps = (
        difference(weights, float(own["weights"])),
        difference(memberships, float(own["memberships"])),
        difference(memberships / weights, float(own["ratio"]), digits=2) if weights else "",
    )
    return [
        (f"{task_title(task)}, paper", text(shots), own["classes"], *theirs, words),
        ("difference", text(shots), "", *gaps, "", ""),
    ]


def class_accuracies_by_seed(
    records: Iterable[CellRecord], *, paper_too: bool = True
) -> list[ResultTable]:
    """Return the class accuracies of every seed (paper, DDI table), one table per task.

    Parameters
    ----------
    records : iterable of CellRecord
        Cells; those of ablations are left out.
    paper_too : bool
        Add the paper's figures and the differences for the cells that exist in both.

    Returns
    -------
    list of ResultTable
        One per task: a row per model, shots, method and seed; in percent.
    """
    by_task: dict[tuple[Any, ...], list[CellRecord]] = {}
    for cell in main_cells(finished_cells(records)):
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
    kinds: list[RowKind] = []
    tidy: list[tuple[Any, ...]] = []
    shown: list[Estimate] = []
    for cell in cells:
        model, shots, method, seed = place(cell, "model", "shots", "method", "seed")
        total = [Estimate.of([cell], f"test/{name}") for name in ("accuracy", "cobias")]
        after = class_intervals(cell)
        shown += [*total, *after]
        head = (str(model), text(shots))
        figures = [each.marked() for each in total] + [each.percent(coarse=True) for each in after]
        rows.append((*head, method_title(method), str(seed), *figures))
        kinds.append("measured")
        theirs = (
            paper_class_accuracies(model=model, task=task, shots=shots, seed=seed, method=method)
            if paper_too
            else {}
        )
        own = [theirs.get(name.lower()) for name in classes]
        for name, each, published in zip(classes, after, own, strict=True):
            numbers = (each.mean, each.low, each.high)
            theirs_here = math.nan if published is None else published
            tidy.append((model, task, shots, method, seed, name, *numbers, theirs_here))
        if theirs:
            gaps = (
                ""
                if value is None or math.isnan(ours.mean)
                else difference(100 * ours.mean, 100 * value)
                for ours, value in zip(after, own, strict=True)
            )
            name = f"{method_title(method)}, paper"
            rows.append((*head, name, str(seed), "", "", *map(percent, own)))
            rows.append((*head, "difference", str(seed), "", "", *gaps))
            kinds += ["paper", "difference"]
    columns = "model task shots method seed class accuracy low high paper_accuracy"
    frame = frame_of(tidy, columns.split())
    compared = "paper" in kinds
    return ResultTable(
        name=f"class_accuracies_{_stem(task)}",
        title=f"Class accuracies of {task_title(task)} by seed, % of test rows",
        frame=frame if compared else frame.drop(columns="paper_accuracy"),
        columns=("model", "shots", "method", "seed", "Acc", "COBias", *classes),
        rows=tuple(rows),
        kinds=tuple(kinds),
        left=4,
        sections=2,
        note=" ".join(filter(None, (notes_of(shown), PAPER_NOTE if compared else ""))),
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
