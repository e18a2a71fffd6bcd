"""One Optuna study: hyperparameters in, the scheme that is best on development rows out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import optuna

from dcs.annealing import AnnealingResult, Schedule, anneal
from dcs.corrections import CorrectionSet
from dcs.metrics import ClassificationMetrics
from dcs.methods import Method
from dcs.objective import Objective
from dcs.probabilities import ProbabilityTable
from dcs.scheme import CorrectionScheme
from dcs.seeds import derive_seed
from dcs.splits import stratified_split
from tracking.records import TrialRecord
from workflows.config import TunerSettings

__all__ = ["StudyResult", "run_study", "selection_score"]

#: Optuna seeds NumPy's legacy generator, which takes 32 bits.
_SAMPLER_SEEDS = 2**32


@dataclass(frozen=True, slots=True)
class StudyResult:
    """The outcome of a study.

    Attributes
    ----------
    scheme : CorrectionScheme
        The scheme of the best trial.
    best : TrialRecord
        The trial it comes from.
    trials : tuple of TrialRecord
        All trials, in order.
    annealing : AnnealingResult
        The best trial's search.
    """

    scheme: CorrectionScheme
    best: TrialRecord
    trials: tuple[TrialRecord, ...]
    annealing: AnnealingResult


def selection_score(metrics: ClassificationMetrics) -> float:
    """Return accuracy minus COBias: what a trial is chosen for on the development rows.

    The annealing objective cannot serve here, since trials differ in beta and tau.
    """
    return metrics.accuracy - metrics.cobias


def run_study(
    table: ProbabilityTable,
    method: Method,
    *,
    settings: TunerSettings,
    seed: int,
    on_trial: Callable[[TrialRecord], None] | None = None,
) -> StudyResult:
    """Tune D_W, beta, tau, lambda1, lambda2, temperatures and cooling of one cell.

    Parameters
    ----------
    table : ProbabilityTable
        The optimization rows; a stratified share of them becomes the development rows.
    method : Method
        Which correction functions there are to choose from.
    settings : TunerSettings
        Trials, development share, and the bounds of the search.
    seed : int
        Root seed; split, sampler and every annealing derive theirs from it.
    on_trial : callable, optional
        Called after each trial.

    Returns
    -------
    StudyResult
        Ties go to the earliest trial.
    """
    parts = stratified_split(
        table.labels,
        {"optimization": 1.0 - settings.development, "development": settings.development},
        seed=derive_seed(seed, "split"),
    )
    rows, held_out = (table.subset(parts[name]) for name in ("optimization", "development"))

    sampler = optuna.samplers.TPESampler(seed=derive_seed(seed, "sampler") % _SAMPLER_SEEDS)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    # The defaults are a strong candidate and make every study at least as good as no tuning.
    study.enqueue_trial(_default_parameters(method))
    records: list[TrialRecord] = []
    best: tuple[float, TrialRecord, AnnealingResult] | None = None
    for _ in range(settings.trials):
        started_ms = time.time_ns() // 1_000_000
        clock = time.perf_counter()
        trial = study.ask()
        objective, corrections, schedule = _suggest(trial, method, settings)
        result = anneal(
            rows.probs,
            rows.labels,
            corrections=corrections,
            objective=objective,
            schedule=schedule,
            seed=derive_seed(seed, "anneal", trial.number),
            classes=table.classes,
        )
        development = _judge(result.scheme, held_out)
        optimization = _judge(result.scheme, rows)
        score = selection_score(development)
        study.tell(trial, score)
        record = TrialRecord(
            number=trial.number,
            params=dict(trial.params),
            metrics={
                "dev/score": score,
                "dev/accuracy": development.accuracy,
                "dev/cobias": development.cobias,
                "opt/accuracy": optimization.accuracy,
                "opt/cobias": optimization.cobias,
                "opt/z": result.z,
            },
            state="COMPLETE",
            seconds=time.perf_counter() - clock,
            started_ms=started_ms,
        )
        records.append(record)
        if best is None or score > best[0]:
            best = (score, record, result)
        if on_trial is not None:
            on_trial(record)
    if best is None:
        raise ValueError("a study needs at least one trial")
    _, record, result = best
    return StudyResult(
        scheme=result.scheme, best=record, trials=tuple(records), annealing=result
    )


def _judge(scheme: CorrectionScheme, table: ProbabilityTable) -> ClassificationMetrics:
    return ClassificationMetrics.from_predictions(
        table.labels, scheme.predict(table.probs), table.n_classes
    )
