"""The default way to tune a table: a cross-validated front of accuracy and COBias."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

import optuna

from dcs.annealing import Schedule
from dcs.calibration import CalibrationKind
from dcs.fitting import CorrectionFamily, Hyperparameters, WeightSpacing
from dcs.front import Preference
from dcs.methods import Method
from dcs.metrics import ClassificationMetrics
from dcs.probabilities import ProbabilityTable
from dcs.seeds import derive_seed
from dcs.selection import FrontPoint, SelectionSettings, fit_scheme
from dcs.validation import cross_validate
from tracking import TrialRecord
from workflows.config import TunerSettings
from workflows.tune import SAMPLER_SEEDS, Fitted, selection_score

__all__ = ["run_front"]

# Optuna gives back plain text; these give it its type again.
_CALIBRATIONS: Final[dict[str, CalibrationKind]] = {
    "none": "none",
    "batch": "batch",
    "vector": "vector",
    "logistic": "logistic",
}
_FAMILIES: Final[dict[str, CorrectionFamily]] = {"weights": "weights", "both": "both"}
_SPACINGS: Final[dict[str, WeightSpacing]] = {"logarithmic": "logarithmic", "linear": "linear"}


def run_front(
    table: ProbabilityTable,
    method: Method,
    *,
    settings: TunerSettings,
    seed: int,
    progress: Callable[[float], None] | None = None,
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
        The preference; with `trials`, Optuna tries that many settings beside the standard ones,
        and the best of them competes.
    seed : int
        Root seed; folds, sampler and searches derive theirs from it.
    progress : callable, optional
        Called with the share of the work done, 0..1.

    Returns
    -------
    Fitted
        Its trials are those of Optuna, then the points of the front.
    """
    if method.name != "dcs":
        return Fitted(method.fit(table.probs, table.labels, classes=table.classes, seed=seed))
    tell = progress or (lambda share: None)
    # Each trial costs about as much as one of the standard settings at one beta.
    standard = SelectionSettings(preference=_preference(settings))
    share = settings.trials / (settings.trials + len(standard.candidates) * len(standard.betas))
    trials, extra = _search(table, settings, seed, lambda part: tell(share * part))
    fitted = fit_scheme(
        table.probs,
        table.labels,
        settings=SelectionSettings(
            candidates=standard.candidates + extra, preference=standard.preference
        ),
        seed=seed,
        classes=table.classes,
        progress=lambda part: tell(share + (1.0 - share) * part),
    )
    points = [
        _record(len(trials) + i, point.setting, point.estimate)
        for i, point in enumerate(fitted.points)
    ]
    best = points[_index(fitted.points, fitted.chosen)]
    return Fitted(scheme=fitted.scheme, trials=(*trials, *points), best=best)


def _index(points: tuple[FrontPoint, ...], chosen: FrontPoint) -> int:
    return next(i for i, point in enumerate(points) if point is chosen)


def _preference(settings: TunerSettings) -> Preference:
    def share(points: float | None) -> float | None:
        return None if points is None else points / 100.0

    return Preference(
        prefer=settings.prefer,
        max_accuracy_loss=share(settings.max_accuracy_loss),
        max_cobias=share(settings.max_cobias),
    )


def _search(
    table: ProbabilityTable,
    settings: TunerSettings,
    seed: int,
    progress: Callable[[float], None],
) -> tuple[list[TrialRecord], tuple[Hyperparameters, ...]]:
    """Let Optuna try settings; return all trials, and the best setting as a candidate."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=derive_seed(seed, "sampler") % SAMPLER_SEEDS)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    records: list[TrialRecord] = []
    best: tuple[float, Hyperparameters] | None = None
    for number in range(settings.trials):
        clock, started_ms = time.perf_counter(), time.time_ns() // 1_000_000
        trial = study.ask()
        setting = _suggest(trial, settings)
        estimate = cross_validate(table.probs, table.labels, setting, seed=seed)
        score = selection_score(estimate)
        study.tell(trial, score)
        if best is None or score > best[0]:
            best = score, setting
        records.append(
            _record(
                number,
                setting,
                estimate,
                seconds=time.perf_counter() - clock,
                started_ms=started_ms,
            )
        )
        progress((number + 1) / settings.trials)
    return records, () if best is None else (best[1],)


def _suggest(trial: optuna.Trial, settings: TunerSettings) -> Hyperparameters:
    return Hyperparameters(
        calibration=_CALIBRATIONS[trial.suggest_categorical("calibration", list(_CALIBRATIONS))],
        corrections=_FAMILIES[trial.suggest_categorical("corrections", list(_FAMILIES))],
        spacing=_SPACINGS[trial.suggest_categorical("spacing", list(_SPACINGS))],
        weight_scale=trial.suggest_int("weight_scale", 10, 2 * settings.max_weight_scale),
        beta=trial.suggest_float("beta", 0.0, settings.max_beta),
        tau=trial.suggest_float("tau", 0.0, settings.max_tau),
        prior_rows=trial.suggest_float("prior_rows", 0.0, 300.0),
        schedule=Schedule(
            initial_temperature=trial.suggest_float("initial_temperature", 0.01, 0.5, log=True),
            final_temperature=trial.suggest_float("final_temperature", 1e-4, 0.01, log=True),
            cooling_rate=trial.suggest_float("cooling_rate", 0.5, 0.8),
            lambda1=trial.suggest_float("lambda1", 1.0, 5.0),
            lambda2=trial.suggest_float("lambda2", 1.0, 5.0),
            restarts=3,
        ),
    )


def _record(
    number: int,
    setting: Hyperparameters | None,
    estimate: ClassificationMetrics,
    *,
    seconds: float = 0.0,
    started_ms: int | None = None,
) -> TrialRecord:
    return TrialRecord(
        number=number,
        params={"calibration": "none", "corrections": "none"}
        if setting is None
        else _flat(setting),
        metrics={
            "dev/score": selection_score(estimate),
            "dev/accuracy": estimate.accuracy,
            "dev/cobias": estimate.cobias,
        },
        state="COMPLETE",
        seconds=seconds,
        started_ms=time.time_ns() // 1_000_000 if started_ms is None else started_ms,
        value=selection_score(estimate),
    )


def _flat(setting: Hyperparameters) -> dict[str, Any]:
    values = asdict(setting)
    schedule = values.pop("schedule")
    # Named as the trials of the paper's protocol name them, so that both can be compared.
    return values | {
        name: schedule[name]
        for name in (
            "initial_temperature",
            "final_temperature",
            "cooling_rate",
            "lambda1",
            "lambda2",
            "restarts",
        )
    }
