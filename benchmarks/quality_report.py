"""What `quality.py` measured, as text and as Markdown."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dcs.selection.preference import pareto_front

OURS = "dcs"
FRONT = "front"
#: Points; half of the last digit that is shown.
ROUNDING = 0.05
REACHED = ("front is lower", "within one error")


@dataclass(frozen=True)
class Point:
    """Mean figures of one method on one table, in points (hundredths)."""

    accuracy: float
    cobias: float


def summarise(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and standard error."""
    array = np.asarray(values)
    error = float(array.std(ddof=1) / math.sqrt(array.size)) if array.size > 1 else math.nan
    return float(array.mean()), error


def front_of(records: Sequence[dict[str, Any]]) -> list[Point]:
    """Return our front, every point the mean over the splits."""
    mine = [r for r in records if r["method"] == FRONT]
    n_points = 1 + max((r["point"] for r in mine), default=-1)
    by_split = [
        [Point(r["accuracy"], r["cobias"]) for r in mine if r["split"] == s]
        for s in sorted({r["split"] for r in mine})
    ]
    return [
        Point(
            float(np.mean([points[k].accuracy for points in by_split])),
            float(np.mean([points[k].cobias for points in by_split])),
        )
        for k in range(n_points)
    ]


def print_table(records: Sequence[dict[str, Any]], out: Any) -> dict[str, tuple[float, ...]]:
    """Print one table's figures; returns means per method."""
    front = front_of(records)
    names = list(dict.fromkeys(r["method"] for r in records if r["method"] != FRONT))
    print(f"\n{records[0]['table']}", file=out)
    print(
        f"  {'method':24s}{'accuracy':>14s}{'COBias':>14s}{'acc-COBias':>14s}"
        f"{'front COBias':>14s}  verdict",
        file=out,
    )
    means: dict[str, tuple[float, ...]] = {}
    for name in names:
        mine = [r for r in records if r["method"] == name]
        accuracy = summarise([r["accuracy"] for r in mine])
        bias = summarise([r["cobias"] for r in mine])
        score = summarise([r["accuracy"] - r["cobias"] for r in mine])
        means[name] = (*accuracy, *bias, *score)
        line = f"  {name:24s}" + "".join(
            f"{mean:8.1f} ±{error:4.1f}" for mean, error in (accuracy, bias, score)
        )
        if front and name != OURS:
            at, verdict = verdict_at(front, accuracy, bias)
            means[name] += (at,)
            line += f"{at:14.1f}  {verdict}"
        print(line, file=out)
    return means


def cobias_at(points: Sequence[Point], accuracy: float) -> float:
    """Return the lowest COBias that the points reach at an accuracy.

    Between neighbouring points of the front it is interpolated; NaN when none is that accurate.
    """
    front = pareto_front(points)
    if not front or front[0].accuracy < accuracy - 1e-12:
        return math.nan
    accuracies = np.array([p.accuracy for p in front[::-1]])
    biases = np.array([p.cobias for p in front[::-1]])
    return float(np.interp(accuracy, accuracies, biases))


def verdict_at(
    front: Sequence[Point], accuracy: tuple[float, float], bias: tuple[float, float]
) -> tuple[float, str]:
    """Compare our front with a method at the method's own mean accuracy.

    Within one standard error of the method, in COBias or in accuracy; less than `ROUNDING` is no
    difference.
    """
    at = cobias_at(front, accuracy[0])
    error = max(ROUNDING, 0.0 if math.isnan(accuracy[1]) else accuracy[1])
    if math.isnan(at):
        at = cobias_at(front, accuracy[0] - error)
        if math.isnan(at):
            return at, "out of reach"
    if at <= bias[0]:
        return at, "front is lower"
    slack = max(ROUNDING, 0.0 if math.isnan(bias[1]) else bias[1])
    if at <= bias[0] + slack or cobias_at(front, accuracy[0] - error) <= bias[0] + slack:
        return at, "within one error"
    return at, "front is higher"


def print_overall(tables: Mapping[str, dict[str, tuple[float, ...]]], out: Any) -> None:
    names = list(next(iter(tables.values())))
    print(f"\nmean of {len(tables)} tables", file=out)
    for name in names:
        figures = np.array([t[name][:6] for t in tables.values() if name in t])
        mean = figures.mean(axis=0)
        spread = np.sqrt((figures[:, 1::2] ** 2).sum(axis=0)) / len(tables)
        print(
            f"  {name:24s}" + "".join(f"{mean[2 * i]:8.1f} ±{spread[i]:4.1f}" for i in range(3)),
            file=out,
        )


def markdown(saved: Mapping[str, Sequence[dict[str, Any]]]) -> Iterator[str]:
    """Yield the lines of a Markdown table: accuracy / COBias of every method on every table.

    Bold is the highest accuracy minus COBias; an up arrow marks methods that our front misses by
    more than one standard error at their own accuracy.
    """
    names = list(dict.fromkeys(r["method"] for rows in saved.values() for r in rows))
    names = [name for name in names if name != FRONT]
    yield "| table | " + " | ".join(names) + " |"
    yield "|---|" + "---|" * len(names)
    totals: dict[str, list[float]] = {}
    for table, records in saved.items():
        front = front_of(records)
        cells: dict[str, str] = {}
        scores: dict[str, float] = {}
        for name in names:
            mine = [r for r in records if r["method"] == name]
            accuracy = summarise([r["accuracy"] for r in mine])
            bias = summarise([r["cobias"] for r in mine])
            scores[name] = accuracy[0] - bias[0]
            totals.setdefault(name, []).append(scores[name])
            cells[name] = f"{accuracy[0]:.1f} / {bias[0]:.1f}"
            if name != OURS and front:
                missed = verdict_at(front, accuracy, bias)[1] not in REACHED
                cells[name] += " ↑" if missed else ""
        best = max(scores, key=lambda name: scores[name])
        cells[best] = f"**{cells[best]}**"
        yield f"| {table} | " + " | ".join(cells[name] for name in names) + " |"
    yield (
        "| mean of accuracy − COBias | "
        + " | ".join(f"{np.mean(totals[name]):.1f}" for name in names)
        + " |"
    )


def scores(
    saved: Mapping[str, Sequence[dict[str, Any]]], *, methods_as_rows: bool
) -> Iterator[str]:
    """Yield the lines of a Markdown table of accuracy minus COBias, with the mean over tables."""
    found = dict.fromkeys(r["method"] for rows in saved.values() for r in rows)
    names = [name for name in found if name != FRONT]
    figures = {
        (table, name): summarise(
            [r["accuracy"] - r["cobias"] for r in rows if r["method"] == name]
        )
        for table, rows in saved.items()
        for name in names
    }
    cells = {key: f"{mean:.1f} ± {error:.1f}" for key, (mean, error) in figures.items()}
    means = {name: f"{np.mean([figures[t, name][0] for t in saved]):.1f}" for name in names}
    if methods_as_rows:
        yield "| method | " + " | ".join(saved) + " | mean |"
        yield "|---|" + "---|" * (len(saved) + 1)
        for name in names:
            row = " | ".join(cells[table, name] for table in saved)
            yield f"| {name} | {row} | {means[name]} |"
        return
    yield "| table | " + " | ".join(names) + " |"
    yield "|---|" + "---|" * len(names)
    for table in saved:
        yield f"| {table} | " + " | ".join(cells[table, name] for name in names) + " |"
    yield "| mean | " + " | ".join(means.values()) + " |"


def read_results(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return what earlier runs wrote, by table; numbers of rows apart, where there are several."""
    records = [
        json.loads(line)
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    sizes: dict[str, set[int]] = {}
    for record in records:
        sizes.setdefault(record["table"], set()).add(record["rows"])
    saved: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for record in records:
        several = len(sizes[record["table"]]) > 1
        key = record["table"], record["rows"] if several else 0
        saved.setdefault(key, []).append(record)
    return {
        name + (f", {rows} rows" if rows else ""): saved[name, rows]
        for name, rows in sorted(saved)
    }


def print_saved(folder: Path, *, form: str | None) -> None:
    """Print results that earlier runs wrote, together."""
    saved = read_results(folder)
    if form is not None:
        lines = (
            markdown(saved)
            if form == "tables"
            else scores(saved, methods_as_rows=form == "methods")
        )
        for line in lines:
            print(line)
        return
    print_overall(
        {name: print_table(rows, sys.stdout) for name, rows in saved.items()}, sys.stdout
    )
