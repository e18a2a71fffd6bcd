"""The default way to tune a table: a cross-validated front of accuracy and COBias."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, Final

import optuna

from dcs.annealing import Schedule
from dcs.calibration import CalibrationKind
from dcs.fitting import CorrectionFamily, Hyperparameters, WeightSpacing
from dcs.methods import Method
from dcs.metrics import ClassificationMetrics
from dcs.peers import paper_settings
from dcs.probabilities import ProbabilityTable
from dcs.seeds import derive_seed
from dcs.selection import FrontPoint, SelectionSettings, fit_scheme
from dcs.validation import cross_validate
from tracking import TrialRecord
from workflows.config import TunerSettings
from workflows.tune import SAMPLER_SEEDS, Fitted, preference, selection_score

__all__ = ["run_front"]

# Optuna gives back plain text; these give it its type again.
_CALIBRATIONS: Final[dict[str, CalibrationKind]] = {
    "none": "none",
    "batch": "batch",
    "vector": "vector",
    "logistic": "logistic",
}
_FAMILIES: Final[dict[str, CorrectionFamily]] = {"weights": "weights", "both": "both"}
#: Methods of the paper, by what they search; ``dcs`` is more than its corrections here.
_PAPER_FAMILIES: Final[dict[str, CorrectionFamily]] = {"dnip": "weights", "furud": "memberships"}

#: Weights of PMI that are compared where COBias has none, as parts of the largest.
_TAU_PARTS: Final = (0.1, 0.4, 1.0)

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
    if method.fitter is not None:
        # A package's own method: only it knows how it is fitted.
        return Fitted(method.fit(table.probs, table.labels, classes=table.classes, seed=seed))
    tell = progress or (lambda share: None)
    standard = _standard(method, settings)
    # The other methods have nothing to try beside their own corrections.
    n_trials = settings.trials if method.name == "dcs" else 0
    # Each trial costs about as much as one of the standard settings at one beta.
    share = n_trials / (n_trials + len(standard.candidates) * len(standard.betas))
    trials, extra = _search(table, settings, n_trials, seed, lambda part: tell(share * part))
    fitted = fit_scheme(
        table.probs,
        table.labels,
        settings=replace(standard, candidates=standard.candidates + extra),
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
        standard, candidates=tuple(candidates), betas=betas, preference=preference(settings)
    )


def _search(
    table: ProbabilityTable,
    settings: TunerSettings,
    n_trials: int,
    seed: int,
    progress: Callable[[float], None],
) -> tuple[list[TrialRecord], tuple[Hyperparameters, ...]]:
    """Let Optuna try settings; return all trials, and the best setting as a candidate."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=derive_seed(seed, "sampler") % SAMPLER_SEEDS)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    records: list[TrialRecord] = []
    best: tuple[float, Hyperparameters] | None = None
    for number in range(n_trials):
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
        progress((number + 1) / n_trials)
    return records, () if best is None else (best[1],)


def _suggest(trial: optuna.Trial, settings: TunerSettings) -> Hyperparameters:
    low, high = settings.weight_scale_bounds
    return Hyperparameters(
        calibration=_CALIBRATIONS[trial.suggest_categorical("calibration", list(_CALIBRATIONS))],
        corrections=_FAMILIES[trial.suggest_categorical("corrections", list(_FAMILIES))],
        spacing=_SPACINGS[trial.suggest_categorical("spacing", list(_SPACINGS))],
        weight_scale=trial.suggest_int("weight_scale", low, high if low == high else 2 * high),
        memberships=settings.memberships,
        beta=trial.suggest_float("beta", *settings.beta_bounds),
        tau=trial.suggest_float("tau", *settings.tau_bounds),
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
