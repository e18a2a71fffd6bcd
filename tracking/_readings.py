"""What tables and figures read off a cell record, each said once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from dcs.correction_sets import CorrectionSet
from dcs.errors import ConfigError
from dcs.methods import get_method, method_names
from tracking.records import CellRecord, TrialRecord

__all__ = [
    "annealing_seconds",
    "best_trial",
    "finished_cells",
    "method_title",
    "optimization_rows",
    "ordered",
    "place",
    "search_space",
    "shots_text",
    "weakest_class",
]


def finished_cells(records: Iterable[CellRecord]) -> list[CellRecord]:
    """Return the finished cells in the order of tables: see `ordered`."""
    return ordered(record for record in records if record.finished)


def ordered(records: Iterable[CellRecord]) -> list[CellRecord]:
    """Sort cells by model and task as they first come, then by shots, method and seed."""
    cells = list(records)
    first: dict[tuple[str, str], int] = {}
    for cell in cells:
        for name in ("model", "task"):
            first.setdefault((name, str(cell.identity.get(name))), len(first))
    methods = method_names(peers=True)

    def position(cell: CellRecord) -> tuple[Any, ...]:
        who = cell.identity
        method = str(who.get("method"))
        rank = methods.index(method) if method in methods else len(methods)
        return (
            first["model", str(who.get("model"))],
            first["task", str(who.get("task"))],
            shots_rank(who.get("shots")),
            rank,
            method,
            _number(who.get("seed")),
        )

    return sorted(cells, key=position)


def shots_rank(shots: object) -> float:
    """Order shots: none, 0, 1, 5, ..., N."""
    return math.inf if shots == "N" else -1.0 if shots is None else _number(shots)


def shots_text(shots: object) -> str:
    """Return how people write a number of shots."""
    return "" if shots is None else f"{shots}-shot"


def method_title(name: object) -> str:
    """Return a method's title, or its name where it is not one of ours."""
    try:
        return get_method(str(name)).title
    except ConfigError:
        return str(name)


def place(record: CellRecord, *names: str) -> tuple[Any, ...]:
    """Return some values of a cell's identity."""
    return tuple(record.identity.get(name) for name in names)


def best_trial(record: CellRecord) -> TrialRecord | None:
    """Return the trial whose scheme was chosen, None if nothing was tuned."""
    number = record.params.get("best_trial")
    for trial in record.trials:
        if trial.number == number:
            return trial
    scored = [trial for trial in record.trials if trial.value is not None]
    sign = 1.0 if record.direction == "maximize" else -1.0
    return max(scored, key=lambda trial: sign * (trial.value or 0.0), default=None)


def trial_score(trial: TrialRecord) -> float | None:
    """Return what a trial was judged by on the development rows."""
    return trial.metrics.get("dev/score") if trial.value is None else trial.value


def annealing_seconds(record: CellRecord) -> float | None:
    """Return the time of the search that found the scheme; None where it is not known.

    Where the annealing itself was not timed it is the trial's time, judging included.
    """
    seconds = record.metrics.get("opt/seconds")
    if seconds is not None:
        return seconds
    trial = best_trial(record)
    # A point of a front was fitted with others and has no time of its own.
    return None if trial is None or not trial.seconds else trial.seconds


def tuning_seconds(record: CellRecord) -> float | None:
    """Return the time of all that was tried for a cell; None where nothing was chosen."""
    if not has_chosen(record):
        return None
    return (record.finished_ms - record.started_ms) / 1000


def search_space(record: CellRecord) -> int | None:
    """Return N * D, classes times correction functions to choose from (paper, Section 4.2)."""
    try:
        method = get_method(str(record.identity.get("method")))
    except ConfigError:
        return None
    # A setting may narrow down what the method chooses from.
    family = str(record.params.get("corrections", ""))
    builders = {"weights": CorrectionSet.dnip, "both": CorrectionSet.dcs}
    tuner = record.identity.get("tuner") or {}
    scale = int(record.params.get("weight_scale") or tuner.get("weight_scale") or 30)
    if family in builders:
        corrections: CorrectionSet | None = builders[family](weight_scale=scale)
    else:
        memberships = tuner.get("memberships")
        corrections = method.correction_set(scale, memberships=memberships)
        corrections = None if family == "none" else corrections
    if corrections is None or record.scheme is None:
        return None
    return len(corrections) * len(record.scheme["corrections"])


def has_chosen(record: CellRecord) -> bool:
    """Whether the cell has a scheme that was chosen, and not the one that changes nothing."""
    return record.scheme is not None and record.identity.get("method") != "icl"


def optimization_rows(record: CellRecord) -> int | None:
    """Return the number of rows that the cell was tuned on."""
    tables = record.provenance.get("tables", {})
    rows = tables.get("optimization", {}).get("rows") if isinstance(tables, Mapping) else None
    size = record.identity.get("optimization_size")
    known = [int(number) for number in (rows, size) if isinstance(number, int)]
    return min(known, default=None)


def weakest_class(record: CellRecord) -> int | None:
    """Return the index of the class that the uncorrected model is worst at."""
    before = record.class_accuracies.get("before", [])
    known = [index for index, value in enumerate(before) if value is not None]
    return min(known, key=lambda index: before[index], default=None)


def text(value: object) -> str:
    """Return a value as tables show it: nothing for None."""
    return "" if value is None else str(value)


def _number(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        return math.inf
