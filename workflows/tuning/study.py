"""Protocol ``study``: one Optuna study whose trials are evaluated on development rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from optuna.trial import BaseTrial

from dcs.data.splits import stratified_split
from dcs.data.table import ProbabilityTable
from dcs.evaluation.metrics import ClassificationMetrics, Objective
from dcs.search.annealing import anneal
from dcs.search.problem import AnnealingResult
from dcs.search.schedule import Schedule
from dcs.seeds import derive_seed
from dcs.selection.front import Figures, choose
from workflows.config.tuner import LOGARITHMIC, SCHEDULE_PARAMETERS, TunerSettings
from workflows.tuning.trials import (
    LAST_STEP,
    Direction,
    Fitted,
    Report,
    StudyRun,
    StudyTrial,
    Tuning,
    development_metrics,
    importances,
    pareto_numbers,
    sampler_of,
)

#: Tuned hyperparameters of the objective.
_WEIGHTS: Final = ("beta", "tau", "error_weight", "pseudo_count")
#: Default hyperparameters, a strong candidate, which become the first trial.
_DEFAULTS: Final[dict[str, float]] = {
    "weight_scale": 30,
    **{name: getattr(Objective(), name) for name in _WEIGHTS},
    **{name: getattr(Schedule(), name) for name in SCHEDULE_PARAMETERS},
}
#: Metric of each cost.
_COSTS: Final = {"moves": "opt/evaluations", "seconds": "opt/seconds"}
#: Numbers of accepted and generated moves that end a temperature.
_PUBLISHED_MOVES: Final = {"published": (3, 6), "published-long": (150, 300)}
#: Number of candidate solutions that the heat-bath search of a trial evaluates.
_BUDGET: Final = 750_000

_Trial: TypeAlias = StudyTrial[dict[str, Any], AnnealingResult]


def study_scheme(tuning: Tuning) -> Fitted:
    """Tune the hyperparameters that affect the search and select one of the trials.

    Parameters
    ----------
    tuning : Tuning
        Input of the protocol; a stratified share of its rows becomes the development rows.

    Returns
    -------
    Fitted
        Scheme of the selected trial; ties go to the earliest trial.
    """
    settings, method = tuning.settings, tuning.method
    rows, held_out = study_rows(tuning.table, settings=settings, seed=tuning.seed)
    aim = "dev/accuracy" if settings.prefer == "accuracy" else "dev/score"
    aims: dict[str, Direction] = {aim: "maximize"}
    if settings.cost is not None:
        aims[_COSTS[settings.cost]] = "minimize"
    anneal_trial = _Annealer(rows, held_out, tuning.seed, tuple(aims))
    space, n_trials = settings.space(method), settings.n_trials(method)
    first = {name: min(max(_DEFAULTS[name], v[0]), v[-1]) for name, v in space.items()}
    trials: list[_Trial] = []
    best: _Trial | None = None
    for trial in StudyRun(
        suggest=lambda trial: _suggest(trial, tuning, rows.n_rows),
        judge=anneal_trial,
        aims=aims,
        trials=n_trials,
        window=settings.window,
        seed=tuning.seed,
        sampler=sampler_of(settings.sampler, space=space, order=derive_seed(tuning.seed, "grid")),
        first=None if settings.sampler == "grid" else first,
        mapper=tuning.mapper,
        stored=tuning.stored,
        pruner=settings.pruner,
    ).results():
        trials.append(replace(trial, found=None))
        if not trial.pruned and (best is None or trial.metrics[aim] > best.metrics[aim]):
            best = trial
        tuning.progress(len(trials) / n_trials)
    if best is None:
        raise ValueError("a study needs at least one trial")
    # The search of a pruned trial is incomplete.
    completed = [trial for trial in trials if not trial.pruned]
    preference = settings.preference
    chosen = completed[choose([trial.figures for trial in completed], preference)]
    if preference.rule == "balance" and not preference.limited:
        # The same trial as above, except for ties.
        chosen = best
    # Only the best scheme is in memory; those of other trials and of earlier runs are recomputed.
    found = best.found if best.number == chosen.number else None
    found = found or anneal_trial(chosen)[1]
    if len(aims) > 1:
        front = pareto_numbers(trials, aims)
        trials = [
            replace(trial, metrics=trial.metrics | {"pareto": float(trial.number in front)})
            for trial in trials
        ]
    records = tuple(trial.record(aim) for trial in trials)
    return Fitted(
        found.scheme,
        trials=records,
        best=records[chosen.number],
        annealing=found,
        importances=importances(trials, aim),
    )


@dataclass(frozen=True, slots=True)
class _Annealer:
    """Anneal one trial and evaluate the result on development rows; runs on any worker."""

    rows: ProbabilityTable
    held_out: ProbabilityTable
    seed: int
    aims: tuple[str, ...]

    def __call__(
        self, trial: _Trial, report: Report | None = None
    ) -> tuple[dict[str, float], AnnealingResult]:
        budget = trial.work["schedule"].budget

        def is_behind(so_far: AnnealingResult) -> bool:
            step = min(LAST_STEP, so_far.evaluations * LAST_STEP // budget)
            return report is not None and report(step, self._metrics(so_far)[self.aims[0]])

        found = anneal(
            self.rows.probs,
            self.rows.labels,
            **trial.work,
            seed=derive_seed(self.seed, "anneal", trial.number),
            classes=self.rows.classes,
            stop=None if report is None else is_behind,
        )
        return self._metrics(found), found

    def _metrics(self, found: AnnealingResult) -> dict[str, float]:
        held_out, rows = self.held_out, self.rows
        development = Figures.from_predictions(
            held_out.labels,
            held_out.probs.argmax(axis=1),
            found.scheme.predict(held_out.probs),
            held_out.n_classes,
        )
        optimization = ClassificationMetrics.from_predictions(
            rows.labels, found.scheme.predict(rows.probs), rows.n_classes
        )
        figures = {
            **development_metrics(development),
            "opt/accuracy": optimization.accuracy,
            "opt/cobias": optimization.cobias,
            "opt/z": found.z,
            "opt/evaluations": float(found.evaluations),
        }
        return figures | ({"opt/seconds": found.seconds} if "opt/seconds" in self.aims else {})


def study_rows(
    table: ProbabilityTable, *, settings: TunerSettings, seed: int
) -> tuple[ProbabilityTable, ProbabilityTable]:
    """Split the optimization rows like a study.

    Parameters
    ----------
    table : ProbabilityTable
        The optimization rows.
    settings : TunerSettings
        Settings with the share of development rows.
    seed : int
        Root seed.

    Returns
    -------
    optimization, development : ProbabilityTable
        Rows for annealing and rows for evaluating trials; all have labels.
    """
    table = table.only_labelled()
    parts = stratified_split(
        table.labels,
        {"optimization": 1.0 - settings.development, "development": settings.development},
        seed=derive_seed(seed, "split"),
    )
    return table.subset(parts["optimization"]), table.subset(parts["development"])


def _suggest(trial: BaseTrial, tuning: Tuning, n_rows: int) -> dict[str, Any]:
    """Suggest the arguments of :func:`dcs.anneal` for a trial."""
    settings = tuning.settings
    drawn: dict[str, float] = {}
    for name, values in settings.space(tuning.method).items():
        if name == "weight_scale":
            drawn[name] = trial.suggest_int(name, int(values[0]), int(values[-1]))
        else:
            log = name in LOGARITHMIC
            drawn[name] = trial.suggest_float(name, values[0], values[-1], log=log)
    return {
        "corrections": tuning.method.correction_set(
            int(drawn.pop("weight_scale", 30)), memberships=settings.memberships
        ),
        "objective": Objective(**{name: drawn[name] for name in _WEIGHTS}, pmi=settings.pmi),
        "schedule": _make_schedule(settings, drawn, n_rows),
    }


def _make_schedule(settings: TunerSettings, drawn: dict[str, float], n_rows: int) -> Schedule:
    if settings.search in _PUBLISHED_MOVES:
        schedule = Schedule.published(n_rows, *_PUBLISHED_MOVES[settings.search])
    elif settings.search == "metropolis":
        chain: dict[str, Any] = {name: drawn[name] for name in SCHEDULE_PARAMETERS}
        chain["final_temperature"] = min(drawn["final_temperature"], drawn["initial_temperature"])
        schedule = Schedule(**chain, moves="metropolis", restarts=1, descend=False, reheat=False)
    else:
        schedule = Schedule(budget=_BUDGET)
    return replace(schedule, **settings.schedule_fields)
