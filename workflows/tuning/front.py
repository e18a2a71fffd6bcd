"""The default way to tune a table: a cross-validated front of accuracy and COBias."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, TypeAlias, get_args

from optuna.trial import BaseTrial

from dcs.data.table import ProbabilityTable
from dcs.schemes.calibration import CalibrationKind
from dcs.selection.baselines import paper_settings
from dcs.selection.cross_validation import cross_validate
from dcs.selection.fit import FrontPoint, SelectionSettings, fit_scheme
from dcs.selection.front import pareto_front
from dcs.selection.methods import Method
from dcs.selection.settings import CorrectionFamily, Hyperparameters, WeightSpacing
from tracking import TrialRecord
from workflows.config.tuner import TunerSettings
from workflows.parallel import Mapper, in_process
from workflows.tuning.study import (
    SCHEDULE_PARAMETERS,
    Direction,
    Fitted,
    StoredStudy,
    StudyTrial,
    development_metrics,
    importances,
    run_trials,
    suggest_schedule,
)

__all__ = ["run_front"]

#: Methods of the paper, by what they search; ``dcs`` is more than its corrections here.
_PAPER_FAMILIES: Final[dict[str, CorrectionFamily]] = {"dnip": "weights", "furud": "memberships"}

#: Weights of PMI that are compared where COBias has none, as parts of the largest.
_TAU_PARTS: Final = (0.1, 0.4, 1.0)

#: What Optuna's study is after; its Pareto front takes part in the choice.
_AIMS: Final[dict[str, Direction]] = {"dev/accuracy": "maximize", "dev/cobias": "minimize"}


def run_front(
    table: ProbabilityTable,
    method: Method,
    *,
    settings: TunerSettings,
    seed: int,
    progress: Callable[[float], None] | None = None,
    mapper: Mapper = in_process,
    stored: StoredStudy | None = None,
) -> Fitted:
    """Fit the front of schemes by cross-validation and choose a point by the stated preference.

    Parameters
    ----------
    table : ProbabilityTable
        The optimization rows.
    method : Method
        ``dcs``. The other methods are what their papers made them: they are fitted with their
        own corrections and no calibration, chosen by the same cross-validation.
    settings : TunerSettings
        The preference; with `trials`, a study with two objectives, accuracy and COBias, tries
        that many settings beside the standard ones, and those on its Pareto front compete.
    seed : int
        Root seed; folds, sampler and searches derive theirs from it.
    progress : callable, optional
        Called with the share of the work done, 0..1.
    mapper : Mapper
        Where trials and the standard settings are judged; the result is the same everywhere.
    stored : StoredStudy, optional
        Where the study is kept, and found again by a later run.

    Returns
    -------
    Fitted
        Its trials are those of Optuna, then the points of the front.
    """
    if method.fitter is not None:
        # A package's own method: only it knows how it is fitted.
        return Fitted(method.fit(table.probs, table.labels, classes=table.classes, seed=seed))
    tell = progress or (lambda share: None)
    standard = _standard(method, settings)
    # The other methods have nothing to try beside their own corrections.
    n_trials = settings.trials if method.name == "dcs" else 0
    # Each trial costs about as much as one of the standard settings at one beta.
    share = n_trials / (n_trials + len(standard.candidates) * len(standard.betas))
    trials: list[_Trial] = []
    for trial in run_trials(
        lambda trial: _suggest(trial, settings),
        _CrossValidator(table, seed),
        aims=_AIMS,
        trials=n_trials,
        window=settings.window,
        seed=seed,
        mapper=mapper,
        stored=stored,
    ):
        trials.append(trial)
        tell(share * len(trials) / n_trials)
    fixed = dict.fromkeys(trial.work for trial in pareto_front(trials))
    fitted = fit_scheme(
        table.probs,
        table.labels,
        settings=replace(standard, fixed=tuple(fixed)),
        seed=seed,
        classes=table.classes,
        progress=lambda part: tell(share + (1.0 - share) * part),
        mapper=mapper,
    )
    tried = [trial.record("dev/score", params=_flat(trial.work)) for trial in trials]
    points = [_point_record(len(tried) + i, point) for i, point in enumerate(fitted.points)]
    best = next(
        record
        for record, point in zip(points, fitted.points, strict=True)
        if point is fitted.chosen
    )
    return Fitted(
        scheme=fitted.scheme,
        trials=(*tried, *points),
        best=best,
        importances=importances(trials, "dev/score"),
    )


_Trial: TypeAlias = StudyTrial[Hyperparameters, None]


def _standard(method: Method, settings: TunerSettings) -> SelectionSettings:
    """Return what a method chooses from when Optuna tries nothing, within the settings.

    The front leaves the PMI term out unless the objective is made of it: it is worth nothing
    beside COBias (docs/results.md).
    """
    family = _PAPER_FAMILIES.get(method.name)
    standard = SelectionSettings() if family is None else paper_settings(family)
    (_, most_beta), (least_tau, most_tau) = settings.beta_bounds, settings.tau_bounds
    betas = standard.betas
    if settings.beta_bounds[0] == most_beta:
        betas = (most_beta,)
    taus: tuple[float, ...] = (least_tau,)
    if most_tau > least_tau and most_beta == 0.0:
        taus = tuple(most_tau * part for part in _TAU_PARTS)
    candidates: list[Hyperparameters] = []
    for candidate in standard.candidates:
        searched = candidate.corrections != "none"
        for tau in taus if searched else (candidate.tau,):
            setting = replace(candidate, tau=tau, memberships=settings.memberships)
            if searched and settings.weight_scale is not None:
                setting = replace(setting, weight_scale=settings.weight_scale)
            candidates.append(setting)
    return replace(
        standard, candidates=tuple(candidates), betas=betas, preference=settings.preference
    )


@dataclass(frozen=True, slots=True)
class _CrossValidator:
    """Judges one setting by cross-validation; runs on any worker."""

    table: ProbabilityTable
    seed: int

    def __call__(self, trial: _Trial) -> tuple[dict[str, float], None]:
        estimate = cross_validate(self.table.probs, self.table.labels, trial.work, seed=self.seed)
        return development_metrics(estimate), None


def _suggest(trial: BaseTrial, settings: TunerSettings) -> Hyperparameters:
    calibration = trial.suggest_categorical("calibration", get_args(CalibrationKind))
    ridge = Hyperparameters().ridge
    if calibration in ("vector", "logistic", "balanced"):
        ridge = trial.suggest_float("ridge", 1.0, 200.0, log=True)
    families = [*get_args(CorrectionFamily)]
    if settings.memberships is not None and settings.memberships < 2:
        families.remove("memberships")
    corrections = trial.suggest_categorical("corrections", families)
    if corrections == "none":
        return Hyperparameters(calibration=calibration, ridge=ridge, corrections="none")
    setting = Hyperparameters(
        calibration=calibration,
        ridge=ridge,
        corrections=corrections,
        memberships=settings.memberships,
        beta=trial.suggest_float("beta", *settings.beta_bounds),
        tau=trial.suggest_float("tau", *settings.tau_bounds),
        prior_rows=trial.suggest_float("prior_rows", 0.0, 300.0),
        schedule=replace(
            suggest_schedule(trial, coldest=1e-4, slowest=0.8, longest=5.0), restarts=3
        ),
    )
    if corrections == "memberships":
        return setting
    low, high = settings.weight_scale_bounds
    spacing = trial.suggest_categorical("spacing", get_args(WeightSpacing))
    scale = trial.suggest_int("weight_scale", low, high if low == high else 2 * high)
    averages = setting.averages
    if corrections == "weights":
        averages = trial.suggest_int("averages", 0, 16)
    return replace(setting, spacing=spacing, weight_scale=scale, averages=averages)


def _point_record(number: int, point: FrontPoint) -> TrialRecord:
    setting, metrics = point.setting, development_metrics(point.estimate)
    return TrialRecord(
        number=number,
        params={"calibration": "none", "corrections": "none"}
        if setting is None
        else _flat(setting),
        # What --max-cobias is held against.
        metrics=metrics | {"dev/lasting_cobias": point.lasting_cobias},
        state="COMPLETE",
        seconds=0.0,
        started_ms=time.time_ns() // 1_000_000,
        value=metrics["dev/score"],
    )


def _flat(setting: Hyperparameters) -> dict[str, Any]:
    values = asdict(setting)
    schedule = values.pop("schedule")
    # Named as the trials of the paper's protocol name them, so that both can be compared.
    return values | {name: schedule[name] for name in (*SCHEDULE_PARAMETERS, "restarts")}
