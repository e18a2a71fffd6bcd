"""Protocol ``cross-validation``: a cross-validated front of accuracy and COBias."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Final, TypeAlias, get_args

from optuna.trial import BaseTrial

from dcs.data.table import ProbabilityTable
from dcs.schemes.calibration import CalibrationKind
from dcs.selection.cross_validation import (
    FEWEST_LABELS,
    SelectionSettings,
    cross_validate,
    fit_scheme,
    label_free_scheme,
)
from dcs.selection.front import FittedScheme, FrontPoint, pareto_front
from dcs.selection.methods import Method
from dcs.selection.settings import (
    CorrectionFamily,
    Hyperparameters,
    Interpolated,
    Setting,
    WeightSpacing,
)
from tracking import TrialRecord
from workflows.config.tuner import SCHEDULE_PARAMETERS, TunerSettings
from workflows.tuning.trials import (
    Direction,
    Fitted,
    StudyRun,
    StudyTrial,
    Tuning,
    development_metrics,
    fitted_at_once,
    importances,
    sampler_of,
)

#: PMI weights that are compared if the COBias weight is 0, as fractions of the largest.
_TAU_PARTS: Final = (0.1, 0.4, 1.0)

#: Objectives of Optuna's study; its Pareto front is added to the candidates.
_AIMS: Final[dict[str, Direction]] = {"dev/accuracy": "maximize", "dev/cobias": "minimize"}

#: Key under which a front is cached for other preferences.
_FRONT: Final = "front"

_Trial: TypeAlias = StudyTrial[Hyperparameters, None]


def cross_validated_scheme(tuning: Tuning) -> Fitted:
    """Fit a front of schemes by cross-validation and select a point by the preference.

    With trials, a study with the objectives accuracy and COBias evaluates that many settings in
    addition to the standard ones, and those on its Pareto front become candidates.

    Parameters
    ----------
    tuning : Tuning
        Input of the protocol. Methods other than ``dcs`` follow their papers: they are fitted
        with their own corrections and without calibration, selected by the same
        cross-validation.

    Returns
    -------
    Fitted
        Scheme whose trials are those of Optuna, followed by the points of the front.
    """
    if tuning.method.fitter is not None:
        # A method from a plugin implements its own fitting.
        return fitted_at_once(tuning.table, tuning.method, tuning.seed)
    table = tuning.table
    if tuning.method.name == "dcs" and table.labelled.sum() < FEWEST_LABELS:
        return Fitted(label_free_scheme(table.probs, table.labels, classes=table.classes))
    if _FRONT not in tuning.known:
        tuning.known[_FRONT] = _fit_front(tuning)
    trials, front = tuning.known[_FRONT]
    fitted = front.pick(tuning.settings.preference)
    tuned = [trial.record("dev/score", params=_flatten(trial.work)) for trial in trials]
    points = [_point_record(len(tuned) + i, point) for i, point in enumerate(fitted.points)]
    best = next(
        record
        for record, point in zip(points, fitted.points, strict=True)
        if point is fitted.chosen
    )
    return Fitted(
        scheme=fitted.scheme,
        trials=(*tuned, *points),
        best=best,
        importances=importances(trials, "dev/score"),
        front=fitted,
    )


def _fit_front(tuning: Tuning) -> tuple[list[_Trial], FittedScheme]:
    """Return the trials of Optuna and the front."""
    table, settings = tuning.table, tuning.settings
    standard = _standard_settings(tuning.method, settings)
    n_trials = settings.n_trials(tuning.method)
    # Each trial costs about as much as one of the standard settings at one beta.
    share = n_trials / (n_trials + len(standard.candidates) * len(standard.betas))
    trials: list[_Trial] = []
    for trial in StudyRun(
        suggest=lambda trial: _suggest(trial, settings),
        judge=partial(_evaluate, table, tuning.seed),
        aims=_AIMS,
        trials=n_trials,
        window=settings.window,
        seed=tuning.seed,
        sampler=sampler_of(settings.sampler),
        mapper=tuning.mapper,
        stored=tuning.stored,
    ).results():
        trials.append(trial)
        tuning.progress(share * len(trials) / n_trials)
    fixed = dict.fromkeys(trial.work for trial in pareto_front(trials))
    return trials, fit_scheme(
        table.probs,
        table.labels,
        settings=replace(standard, fixed=tuple(fixed)),
        seed=tuning.seed,
        classes=table.classes,
        reference=tuning.reference,
        progress=lambda part: tuning.progress(share + (1.0 - share) * part),
        mapper=tuning.mapper,
    )


def _standard_settings(method: Method, settings: TunerSettings) -> SelectionSettings:
    """Return the candidates of a method without Optuna, restricted by the settings.

    The front omits the PMI term unless the objective has no COBias term: beside COBias it gains
    nothing (reports/results.md).
    """
    standard = SelectionSettings.of_method(method.name)
    betas, taus = settings.values("beta"), settings.values("tau")[:1]
    if betas == (0.0,) and len(settings.values("tau")) > 1:
        taus = tuple(settings.values("tau")[-1] * part for part in _TAU_PARTS)
    if len(betas) > 1:
        betas = standard.betas
    candidates: list[Hyperparameters] = []
    for candidate in standard.candidates:
        searched = candidate.corrections != "none"
        scale = settings.weight_scale if searched else None
        candidates += [
            replace(
                candidate,
                tau=tau,
                memberships=settings.memberships,
                weight_scale=scale or candidate.weight_scale,
                schedule=replace(candidate.schedule, **settings.schedule_fields),
            )
            for tau in (taus if searched else (candidate.tau,))
        ]
    return replace(
        standard, candidates=tuple(candidates), betas=betas, preference=settings.preference
    )


def _evaluate(table: ProbabilityTable, seed: int, trial: _Trial) -> tuple[dict[str, float], None]:
    """Evaluate one setting by cross-validation; runs on any worker."""
    estimate = cross_validate(table.probs, table.labels, trial.work, seed=seed)
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
        beta=trial.suggest_float("beta", *_bounds(settings, "beta")),
        tau=trial.suggest_float("tau", *_bounds(settings, "tau")),
        prior_rows=trial.suggest_float("prior_rows", 0.0, 300.0),
        schedule=replace(Hyperparameters().schedule, **settings.schedule_fields),
    )
    if corrections == "memberships":
        return setting
    low, high = (int(end) for end in _bounds(settings, "weight_scale"))
    spacing = trial.suggest_categorical("spacing", get_args(WeightSpacing))
    scale = trial.suggest_int("weight_scale", low, high if low == high else 2 * high)
    averages = setting.averages
    if corrections == "weights":
        averages = trial.suggest_int("averages", 0, 16)
    return replace(setting, spacing=spacing, weight_scale=scale, averages=averages)


def _bounds(settings: TunerSettings, name: str) -> tuple[float, float]:
    values = settings.values(name)
    return values[0], values[-1]


def _point_record(number: int, point: FrontPoint) -> TrialRecord:
    metrics = development_metrics(point.figures)
    return TrialRecord(
        number=number,
        params=_flatten(point.setting),
        # The value that --max-cobias limits.
        metrics=metrics | {"dev/lasting_cobias": point.lasting_cobias},
        state="COMPLETE",
        seconds=0.0,
        started_ms=time.time_ns() // 1_000_000,
        value=metrics["dev/score"],
    )


def _flatten(setting: Setting | None) -> dict[str, Any]:
    if setting is None:
        return {"calibration": "none", "corrections": "none"}
    if isinstance(setting, Interpolated):
        ends = {"first": _flatten(setting.first), "second": _flatten(setting.second)}
        named = {f"{end}_{k}": v for end, values in ends.items() for k, v in values.items()}
        return {"calibration": "interpolated", "share": setting.share, **named}
    values = asdict(setting)
    schedule = values.pop("schedule")
    # Same names as in the trials of a study, so that both can be compared.
    return values | {name: schedule[name] for name in (*SCHEDULE_PARAMETERS, "restarts")}
