"""How long the rest of a sweep may take, judged by what of it has been done."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from workflows.stores import ProbabilityStore
from workflows.sweep import SweepPlan

__all__ = ["Estimate", "estimate"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a sweep still has to do.

    Attributes
    ----------
    tables, cells : int
        To be scored, and to be computed.
    scoring_seconds, gpu_seconds, cell_seconds : float or None
        Of one worker after the other; None while nothing comparable has been measured.
    """

    tables: int
    cells: int
    scoring_seconds: float | None
    gpu_seconds: float | None
    cell_seconds: float | None


def estimate(plan: SweepPlan) -> Estimate:
    """Judge the missing tables by scored ones of their model, missing cells by ended ones.

    Parameters
    ----------
    plan : SweepPlan
        What is there and what is missing.
    """
    store = ProbabilityStore.under(plan.output)
    scorings = [scoring for key in plan.cells if (scoring := store.scoring(key)) is not None]
    seconds: list[float | None] = []
    gpu_seconds: list[float | None] = []
    for request in plan.missing_tables.values():
        alike = [scoring for scoring in scorings if scoring.model == request.model]
        seconds.append(_mean(scoring.seconds for scoring in alike))
        gpu_seconds.append(_mean(scoring.seconds * scoring.gpus for scoring in alike))

    tuned = _mean(
        (record.finished_ms - record.started_ms) / 1000
        for record in plan.ended.values()
        if record.finished and record.trials
    )
    cells = sum(map(len, plan.missing_cells.values()))
    cells += len(plan.missing_tables) * len(plan.config.methods)
    return Estimate(
        tables=len(seconds),
        cells=cells,
        scoring_seconds=_total(seconds),
        gpu_seconds=_total(gpu_seconds),
        cell_seconds=0.0 if not cells else None if tuned is None else cells * tuned,
    )


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return fmean(known) if known else None


def _total(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
