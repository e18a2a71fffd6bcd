"""How far a chosen scheme is from the proven optimum of its own search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import optuna

from dcs.data.splits import stratified_split
from dcs.data.table import ProbabilityTable
from dcs.errors import InvalidInputError
from dcs.evaluation.objective import Objective
from dcs.search.annealing import AnnealingResult, Schedule, anneal
from dcs.search.exact import exact_search
from dcs.seeds import derive_seed
from dcs.selection.front import Preference, choose
from dcs.selection.methods import Method
from tracking import CellRecord, TrialRecord
from workflows.config.tuner import TunerSettings
from workflows.parallel import Mapper, in_process
from workflows.tuning.judging import Fitted, judge, preference, selection_score
from workflows.tuning.study import Asked, Ledger, Outcome, Verdict, run_trials

__all__ = ["SCHEDULE_PARAMETERS", "certify", "run_study", "study_rows"]


#: What is tuned of a schedule; it is recorded under these names by both ways of tuning.
SCHEDULE_PARAMETERS: Final = (
    "initial_temperature",
    "final_temperature",
    "cooling_rate",
    "lambda1",
    "lambda2",
)

_DEFAULTS: dict[str, Any] = {
    "weight_scale": 30,
    "beta": Objective().beta,
    "tau": Objective().tau,
    **{name: getattr(Schedule(), name) for name in SCHEDULE_PARAMETERS},
}


def _defaults(settings: TunerSettings) -> dict[str, Any]:
    """Return what a search does when nothing is tuned, within the bounds of the settings."""
    bounds: dict[str, tuple[float, float]] = {
        "weight_scale": settings.weight_scale_bounds,
        "beta": settings.beta_bounds,
        "tau": settings.tau_bounds,
    }
    within = {name: min(max(_DEFAULTS[name], low), high) for name, (low, high) in bounds.items()}
    return _DEFAULTS | within


def run_study(
    table: ProbabilityTable,
    method: Method,
    *,
    settings: TunerSettings,
    seed: int,
    progress: Callable[[float], None] | None = None,
    mapper: Mapper = in_process,
    ledger: Ledger | None = None,
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
        Root seed; split, samplers and every annealing derive theirs from it.
    progress : callable, optional
        Called with the share of the trials that are done, 0..1.
    mapper : Mapper
        Where the trials are annealed; the result is the same everywhere.
    ledger : Ledger, optional
        Where trials are written down, and found again by a later run.

    Returns
    -------
    Fitted
        Ties go to the earliest trial.
    """
    rows, held_out = study_rows(table, settings=settings, seed=seed)
    anneal_trial = _Annealer(rows, held_out, seed, accurate=settings.prefer == "accuracy")
    outcomes = run_trials(
        lambda trial: _suggest(trial, method, settings),
        anneal_trial,
        trials=settings.trials,
        window=settings.window,
        seed=seed,
        # What a search does when nothing is tuned is a strong candidate.
        first=[_defaults(settings)],
        mapper=mapper,
        ledger=ledger,
    )
    records: list[TrialRecord] = []
    asked: list[Asked[dict[str, Any]]] = []
    best: _Trial | None = None
    for outcome in outcomes:
        records.append(_record(outcome))
        asked.append(outcome.asked)
        if best is None or outcome.verdict.value > best.verdict.value:
            best = outcome
        if progress is not None:
            progress(len(records) / settings.trials)
    if best is None:
        raise ValueError("a study needs at least one trial")
    number = _chosen(records, settings)
    found = best.verdict.payload if best.asked.number == number else None
    # Of the other trials, and of those of an earlier run, only the figures were kept: what they
    # found is found again.
    found = found or anneal_trial(asked[number]).payload
    if found is None:
        raise ValueError(f"trial {number} found no scheme")
    return Fitted(
        scheme=found.scheme,
        trials=tuple(records),
        best=records[number],
        annealing=found,
    )


@dataclass(frozen=True, slots=True)
class _Judged:
    """A trial as a point of the trade-off between accuracy and COBias."""

    number: int
    accuracy: float
    cobias: float


def _chosen(records: Sequence[TrialRecord], settings: TunerSettings) -> int:
    """Return the number of the trial that the settings prefer; ties go to the earliest."""
    rule = preference(settings)
    if rule == Preference():
        # As choose() does, except where several trials are alike.
        scores = [record.metrics["dev/score"] for record in records]
        return scores.index(max(scores))
    points = [
        _Judged(record.number, record.metrics["dev/accuracy"], record.metrics["dev/cobias"])
        for record in records
    ]
    return choose(points, rule).number


_Trial: TypeAlias = Outcome[dict[str, Any], AnnealingResult]


@dataclass(frozen=True, slots=True)
class _Annealer:
    """Anneals one trial and judges what it found on development rows; runs on any worker."""

    rows: ProbabilityTable
    held_out: ProbabilityTable
    seed: int
    accurate: bool = False

    def __call__(self, asked: Asked[dict[str, Any]]) -> Verdict[AnnealingResult]:
        result = anneal(
            self.rows.probs,
            self.rows.labels,
            **asked.work,
            seed=derive_seed(self.seed, "anneal", asked.number),
            classes=self.rows.classes,
        )
        development = judge(result.scheme, self.held_out)
        optimization = judge(result.scheme, self.rows)
        score = selection_score(development)
        return Verdict(
            development.accuracy if self.accurate else score,
            {
                "dev/score": score,
                "dev/accuracy": development.accuracy,
                "dev/cobias": development.cobias,
                "opt/accuracy": optimization.accuracy,
                "opt/cobias": optimization.cobias,
                "opt/z": result.z,
                "opt/evaluations": float(result.evaluations),
            },
            result,
        )


def _record(outcome: _Trial) -> TrialRecord:
    metrics = outcome.verdict.metrics
    if outcome.repeats is not None:
        # Its figures are known; nothing was searched for them.
        metrics = {**metrics, "opt/evaluations": 0.0}
    return TrialRecord(
        number=outcome.asked.number,
        params=outcome.asked.params,
        metrics=metrics,
        state="COMPLETE",
        seconds=outcome.seconds,
        started_ms=outcome.started_ms,
        value=outcome.verdict.value,
    )


def study_rows(
    table: ProbabilityTable, *, settings: TunerSettings, seed: int
) -> tuple[ProbabilityTable, ProbabilityTable]:
    """Split the optimization rows as a study does.

    Parameters
    ----------
    table : ProbabilityTable
        The optimization rows.
    settings : TunerSettings
        The share of development rows.
    seed : int
        Root seed.

    Returns
    -------
    optimization, development : ProbabilityTable
        The rows that are annealed on, and those that trials are judged on.
    """
    parts = stratified_split(
        table.labels,
        {"optimization": 1.0 - settings.development, "development": settings.development},
        seed=derive_seed(seed, "split"),
    )
    return table.subset(parts["optimization"]), table.subset(parts["development"])


def _suggest(trial: optuna.Trial, method: Method, settings: TunerSettings) -> dict[str, Any]:
    """Draw what :func:`dcs.anneal` is to search and how.

    The bounds of the temperatures are on the scale of Z, of which COBias and error rate are
    parts between 0 and 1: from a start that accepts most moves to an end that accepts none.
    """
    weight_scale = 30
    if method.uses_weight_scale:
        weight_scale = trial.suggest_int("weight_scale", *settings.weight_scale_bounds)
    # What is fixed is suggested from one value, so that it is among the trial's parameters.
    objective = Objective(
        beta=trial.suggest_float("beta", *settings.beta_bounds),
        tau=trial.suggest_float("tau", *settings.tau_bounds),
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
        "corrections": method.correction_set(weight_scale, memberships=settings.memberships),
        "objective": objective,
        "schedule": schedule,
    }


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

    Returns
    -------
    float
        0 where the optimum was found.

    Raises
    ------
    InvalidInputError
        There are too many classes for an exhaustive search.
    """
    corrections = method.correction_set(
        record.params.get("weight_scale", 30), memberships=settings.memberships
    )
    if corrections is None:
        raise InvalidInputError(f"method {method.name!r} searches nothing that could be certified")
    rows, _ = study_rows(table, settings=settings, seed=record.identity["seed"])
    optimum = exact_search(
        rows.probs,
        rows.labels,
        corrections=corrections,
        objective=Objective(beta=record.params["beta"], tau=record.params["tau"]),
    )
    return record.metrics["opt/z"] - optimum.z
