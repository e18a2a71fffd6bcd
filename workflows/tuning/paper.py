"""The paper's way to tune a table: an Optuna study judged on development rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from optuna.trial import BaseTrial

from dcs.data.splits import stratified_split
from dcs.data.table import ProbabilityTable
from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import ClassificationMetrics
from dcs.evaluation.objective import Objective
from dcs.search.annealing import AnnealingResult, Schedule, anneal
from dcs.search.exact import exact_search
from dcs.seeds import derive_seed
from dcs.selection.front import Preference, choose
from dcs.selection.methods import Method
from tracking import CellRecord
from workflows.config.tuner import TunerSettings
from workflows.parallel import Mapper, in_process
from workflows.tuning.study import (
    SCHEDULE_PARAMETERS,
    Fitted,
    StoredStudy,
    StudyTrial,
    development_metrics,
    importances,
    run_trials,
    suggest_schedule,
)

__all__ = ["certify", "run_study", "study_rows"]


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
    stored: StoredStudy | None = None,
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
    stored : StoredStudy, optional
        Where the study is kept, and found again by a later run.

    Returns
    -------
    Fitted
        Ties go to the earliest trial.
    """
    rows, held_out = study_rows(table, settings=settings, seed=seed)
    anneal_trial = _Annealer(rows, held_out, seed)
    aim = "dev/accuracy" if settings.prefer == "accuracy" else "dev/score"
    trials: list[_Trial] = []
    best: _Trial | None = None
    for trial in run_trials(
        lambda trial: _suggest(trial, method, settings),
        anneal_trial,
        aims={aim: "maximize"},
        trials=settings.trials,
        window=settings.window,
        seed=seed,
        # What a search does when nothing is tuned is a strong candidate.
        first=_defaults(settings),
        mapper=mapper,
        stored=stored,
    ):
        trials.append(replace(trial, found=None))
        if best is None or trial.metrics[aim] > best.metrics[aim]:
            best = trial
        if progress is not None:
            progress(len(trials) / settings.trials)
    if best is None:
        raise ValueError("a study needs at least one trial")
    chosen = _chosen(trials, settings)
    # Of the other trials, and of those of an earlier run, only the figures were kept: what they
    # found is found again.
    found = best.found if best.number == chosen.number else None
    found = found or anneal_trial(chosen)[1]
    # Nothing was searched for a repetition.
    repeated = {"opt/evaluations": 0.0}
    records = tuple(
        trial.record(aim, metrics=trial.metrics | (repeated if trial.repeats is not None else {}))
        for trial in trials
    )
    return Fitted(
        found.scheme,
        trials=records,
        best=records[chosen.number],
        annealing=found,
        importances=importances(trials, aim),
    )


_Trial: TypeAlias = StudyTrial[dict[str, Any], AnnealingResult]


def _chosen(trials: Sequence[_Trial], settings: TunerSettings) -> _Trial:
    """Return the trial that the settings prefer; ties go to the earliest."""
    if settings.preference == Preference():
        # As choose() does, except where several trials are alike.
        return max(trials, key=lambda trial: trial.metrics["dev/score"])
    return choose(trials, settings.preference)


@dataclass(frozen=True, slots=True)
class _Annealer:
    """Anneals one trial and judges what it found on development rows; runs on any worker."""

    rows: ProbabilityTable
    held_out: ProbabilityTable
    seed: int

    def __call__(self, trial: _Trial) -> tuple[dict[str, float], AnnealingResult]:
        found = anneal(
            self.rows.probs,
            self.rows.labels,
            **trial.work,
            seed=derive_seed(self.seed, "anneal", trial.number),
            classes=self.rows.classes,
        )
        development, optimization = (
            ClassificationMetrics.from_predictions(
                table.labels, found.scheme.predict(table.probs), table.n_classes
            )
            for table in (self.held_out, self.rows)
        )
        return {
            **development_metrics(development),
            "opt/accuracy": optimization.accuracy,
            "opt/cobias": optimization.cobias,
            "opt/z": found.z,
            "opt/evaluations": float(found.evaluations),
        }, found


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


def _suggest(trial: BaseTrial, method: Method, settings: TunerSettings) -> dict[str, Any]:
    """Draw what :func:`dcs.anneal` is to search and how."""
    weight_scale = 30
    if method.uses_weight_scale:
        weight_scale = trial.suggest_int("weight_scale", *settings.weight_scale_bounds)
    # What is fixed is suggested from one value, so that it is among the trial's parameters.
    objective = Objective(
        beta=trial.suggest_float("beta", *settings.beta_bounds),
        tau=trial.suggest_float("tau", *settings.tau_bounds),
    )
    schedule = suggest_schedule(trial, coldest=1e-5, slowest=0.9, longest=10.0)
    return {
        "corrections": method.correction_set(weight_scale, memberships=settings.memberships),
        "objective": objective,
        "schedule": replace(schedule, budget=settings.budget),
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
