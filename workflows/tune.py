"""One Optuna study: hyperparameters in, the scheme that is best on development rows out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import optuna

from dcs.annealing import AnnealingResult, Schedule, anneal
from dcs.errors import InvalidInputError
from dcs.exact import exact_search
from dcs.methods import Method
from dcs.metrics import ClassificationMetrics
from dcs.objective import Objective
from dcs.probabilities import ProbabilityTable
from dcs.scheme import CorrectionScheme
from dcs.seeds import derive_seed
from dcs.splits import stratified_split
from tracking import CellRecord, TrialRecord
from workflows.config import TunerSettings

__all__ = ["SAMPLER_SEEDS", "Fitted", "certify", "judge", "run_study", "selection_score"]

#: Optuna seeds NumPy's legacy generator, which takes 32 bits.
SAMPLER_SEEDS = 2**32

_DEFAULTS = {
    "weight_scale": 30,
    "beta": Objective().beta,
    "tau": Objective().tau,
    **{
        name: getattr(Schedule(), name)
        for name in (
            "initial_temperature",
            "final_temperature",
            "cooling_rate",
            "lambda1",
            "lambda2",
        )
    },
}


@dataclass(frozen=True, slots=True)
class Fitted:
    """A scheme, and how it was found.

    Attributes
    ----------
    scheme : CorrectionScheme
        The chosen scheme.
    trials : tuple of TrialRecord
        All settings that were judged, in order.
    best : TrialRecord or None
        The one that the scheme comes from; None if nothing was to choose.
    annealing : AnnealingResult or None
        The search that found the scheme, where it was one search on one set of rows.
    """

    scheme: CorrectionScheme
    trials: tuple[TrialRecord, ...] = ()
    best: TrialRecord | None = None
    annealing: AnnealingResult | None = None


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
    progress: Callable[[float], None] | None = None,
) -> Fitted:
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
    progress : callable, optional
        Called with the share of the trials that are done, 0..1.

    Returns
    -------
    Fitted
        Ties go to the earliest trial.
    """
    rows, held_out = _study_rows(table, settings=settings, seed=seed)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=derive_seed(seed, "sampler") % SAMPLER_SEEDS)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    # What a search does when nothing is tuned is a strong candidate.
    study.enqueue_trial(_DEFAULTS)
    records: list[TrialRecord] = []
    best: tuple[float, TrialRecord, AnnealingResult] | None = None
    for _ in range(settings.trials):
        started_ms = time.time_ns() // 1_000_000
        clock = time.perf_counter()
        trial = study.ask()
        search = _suggest(trial, method, settings)
        result = anneal(
            rows.probs,
            rows.labels,
            **search,
            seed=derive_seed(seed, "anneal", trial.number),
            classes=table.classes,
        )
        development = judge(result.scheme, held_out)
        optimization = judge(result.scheme, rows)
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
            value=score,
        )
        records.append(record)
        if best is None or score > best[0]:
            best = (score, record, result)
        if progress is not None:
            progress(len(records) / settings.trials)
    if best is None:
        raise ValueError("a study needs at least one trial")
    _, record, result = best
    return Fitted(scheme=result.scheme, trials=tuple(records), best=record, annealing=result)


def _study_rows(
    table: ProbabilityTable, *, settings: TunerSettings, seed: int
) -> tuple[ProbabilityTable, ProbabilityTable]:
    """Return the rows that a study anneals on and those that it judges trials on."""
    parts = stratified_split(
        table.labels,
        {"optimization": 1.0 - settings.development, "development": settings.development},
        seed=derive_seed(seed, "split"),
    )
    return table.subset(parts["optimization"]), table.subset(parts["development"])


def certify(
    table: ProbabilityTable, method: Method, record: CellRecord, *, settings: TunerSettings
) -> float:
    """Return how far the chosen scheme's Z is above the proven optimum of its own search.

    Parameters
    ----------
    table : ProbabilityTable
        The optimization rows that the cell was tuned on.
    method : Method
        The cell's method.
    record : CellRecord
        The finished cell.
    settings : TunerSettings
        The cell's tuner.

    Raises
    ------
    InvalidInputError
        There are too many classes for an exhaustive search.
    """
    corrections = method.correction_set(record.params.get("weight_scale", 30))
    if corrections is None:
        raise InvalidInputError(f"method {method.name!r} searches nothing that could be certified")
    rows, _ = _study_rows(table, settings=settings, seed=record.identity["seed"])
    optimum = exact_search(
        rows.probs,
        rows.labels,
        corrections=corrections,
        objective=Objective(beta=record.params["beta"], tau=record.params["tau"]),
    )
    return record.metrics["opt/z"] - optimum.z


def _suggest(trial: optuna.Trial, method: Method, settings: TunerSettings) -> dict[str, Any]:
    """Draw what :func:`dcs.anneal` is to search and how.

    The bounds of the temperatures are on the scale of Z, of which COBias and error rate are
    parts between 0 and 1: from a start that accepts most moves to an end that accepts none.
    """
    weight_scale = 30
    if method.uses_weight_scale:
        weight_scale = trial.suggest_int("weight_scale", 10, settings.max_weight_scale)
    objective = Objective(
        beta=trial.suggest_float("beta", 0.0, settings.max_beta),
        tau=trial.suggest_float("tau", 0.0, settings.max_tau),
    )
    schedule = Schedule(
        initial_temperature=trial.suggest_float("initial_temperature", 0.01, 0.5, log=True),
        final_temperature=trial.suggest_float("final_temperature", 1e-5, 0.01, log=True),
        cooling_rate=trial.suggest_float("cooling_rate", 0.5, 0.9),
        lambda1=trial.suggest_float("lambda1", 1.0, 10.0),
        lambda2=trial.suggest_float("lambda2", 1.0, 10.0),
        budget=settings.budget,
    )
    return {
        "corrections": method.correction_set(weight_scale),
        "objective": objective,
        "schedule": schedule,
    }


def judge(scheme: CorrectionScheme, table: ProbabilityTable) -> ClassificationMetrics:
    """Return the metrics of a scheme's predictions on a table."""
    return ClassificationMetrics.from_predictions(
        table.labels, scheme.predict(table.probs), table.n_classes
    )
