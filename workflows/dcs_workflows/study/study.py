"""The Optuna study of a cell: standard settings, then suggestions in a window.

The study runs in memory, where it is fast, and every judged trial is added to the stored study in
the order of the numbers. A later run asks the same trials again and takes the stored values for
those that were judged, so that its sampler is in the same state as without the interruption.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import optuna
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.trial import BaseTrial, FixedTrial, FrozenTrial, TrialState

from dcs.data.table import ProbabilityTable
from dcs.evaluation.metrics import METRICS
from dcs.methods.calibrations import Labels
from dcs.methods.parameters import (
    MIXTURE,
    PARAMETERS,
    STANDARD_SCHEDULE,
    Hyperparameters,
    Parameter,
)
from dcs.plugins import naming_plugin
from dcs.schemes.scheme import CorrectionScheme
from dcs.search.schedule import Schedule
from dcs.seeds import derive_seed
from dcs.selection.compare import SelectionSettings, front_of, reference_of, standard_settings
from dcs.selection.fitting import Fit, Fitting, Mapper, Threads
from dcs.selection.front import FittedScheme
from dcs.selection.methods import Method, get_method
from dcs.selection.preference import FrontPoint
from dcs_tracking import TrialRecord
from dcs_tracking.records import now_ms
from dcs_workflows.config.tuner import Sampler, TunerSettings
from dcs_workflows.plan import Cell
from dcs_workflows.study.storage import OBJECTIVES, StoredStudy

#: Optuna seeds NumPy's legacy generator, which accepts 32 bits.
_SAMPLER_SEEDS: Final = 2**32
#: Number of random trials of TPE, unless the study is short.
_STARTUP: Final = 10
#: PMI weights of standard settings without COBias, as shares of the largest.
_TAU_SHARES: Final = (0.1, 0.4, 1.0)
_FRONT: Final = "front"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What cells are computed with.

    Attributes
    ----------
    sweep : str
        Name of the sweep that the records belong to.
    progress : callable
        Called with the completed fraction of the work, 0..1.
    mapper : Mapper
        Runs the fits, one task per trial and fold; the result does not depend on the mapper.
    stored : callable
        Returns the stored study of a cell, given its key and label, from which later runs resume;
        None keeps it in memory. See :meth:`dcs_workflows.study.storage.Studies.of`.
    files : mapping of str to str
        Files of the tables by split, to be recorded.
    known : dict
        Cache shared by cells that differ only in their preference, to pick from one study; see
        :func:`dcs_workflows.plan.sharing`.
    """

    sweep: str = ""
    progress: Callable[[float], None] = lambda share: None
    mapper: Mapper = Threads(1)
    stored: Callable[[str, str], StoredStudy | None] = lambda key, label: None
    files: Mapping[str, str] = field(default_factory=dict)
    known: dict[Any, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tuned:
    """A scheme and the study that found it.

    Attributes
    ----------
    scheme : CorrectionScheme
        The selected scheme.
    trials : tuple of TrialRecord
        All trials, in order.
    params, metrics : mapping
        Those of the selected setting.
    front : FittedScheme or None
        The front that the scheme was picked from, if any.
    """

    scheme: CorrectionScheme
    trials: tuple[TrialRecord, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    front: FittedScheme | None = None


def study_scheme(
    cell: Cell, table: ProbabilityTable, *, setup: Setup, reference: Labels | None = None
) -> Tuned:
    """Run the study of a cell and pick a point of its front.

    Parameters
    ----------
    cell : Cell
        Its method, the settings of the tuner, if the method is tuned, and the root seed, from
        which the seeds of folds, sampler and searches are derived.
    table : ProbabilityTable
        The optimization rows.
    setup : Setup
        What cells are computed with.
    reference : array of int, shape [M], optional
        Predictions that accuracy is compared with; by default those of the table.
    """
    method = get_method(cell.method)
    usual = method.compared(int(table.labelled.sum()))
    if usual is None:
        with naming_plugin("dcs.methods", method.name):
            return Tuned(
                method.fit(table.probs, table.labels, classes=table.classes, seed=cell.seed)
            )
    selection = _selection(usual, cell.tuner)
    if _FRONT not in setup.known:
        fitting = Fitting(
            table.probs, table.labels, **selection.judge, seed=cell.seed, groups=table.groups
        )
        trials, fits, gain = _run(cell, method, fitting, selection=selection, setup=setup)
        about: Any = {"settings": selection, "classes": table.classes, "reference": reference}
        setup.known[_FRONT] = trials, front_of(fitting, fits, **about), gain
    trials, front, gain = setup.known[_FRONT]
    fitted = front.pick(selection.preference)
    point = fitted.chosen
    metrics = {"dev/score": point.accuracy - point.cobias}
    metrics |= {f"dev/{name}": getattr(point.estimate, name) for name in (*METRICS, "n_rows")}
    metrics |= {f"dev/{n}": getattr(point.change, n) for n in ("gained", "lost", "changed")}
    metrics |= {"dev/lasting_cobias": point.lasting_cobias, "dev/trials_gain": gain}
    # Methods that share a search have their own names.
    scheme = replace(fitted.scheme, provenance={**fitted.scheme.provenance, "method": method.name})
    return Tuned(scheme, trials, _params_of(point), metrics, fitted)


def _params_of(point: FrontPoint) -> dict[str, Any]:
    """Return the parameters of the setting with the largest share of a point, and their number."""
    if not point.settings:
        return {"calibration": "none", "corrections": "none"}
    main = max(point.settings, key=lambda each: float(each["share"]))
    values = {name: value for name, value in main.items() if name != "share"}
    return {**values, "averaged": len(point.settings)}


def _selection(usual: SelectionSettings, settings: TunerSettings | None) -> SelectionSettings:
    """Return the settings of a method with those of the tuner."""
    if settings is None:
        return usual
    candidates, betas = usual.candidates, settings.values("beta")
    taus = settings.values("tau")
    if betas == (0.0,) and len(taus) > 1:
        candidates = tuple(
            each if each.corrections == "none" else replace(each, tau=share * taus[-1])
            for each in candidates
            for share in ((1.0,) if each.corrections == "none" else _TAU_SHARES)
        )
    if len(betas) == 2:
        betas = tuple(b for b in usual.betas if betas[0] <= b <= betas[1]) or betas
    return replace(
        usual,
        candidates=candidates,
        betas=betas,
        preference=settings.preference,
        **dict(settings.judge),
    )


def _run(
    cell: Cell,
    method: Method,
    fitting: Fitting,
    *,
    selection: SelectionSettings,
    setup: Setup,
) -> tuple[tuple[TrialRecord, ...], list[Fit], float]:
    """Return trials, all judged settings, and what the sampled trials gained, in score."""
    settings, standard = cell.tuner, standard_settings(selection, fitting.n_classes)
    if settings is None:
        clock, started_ms = time.perf_counter(), now_ms()
        fits = fitting.judge(standard, mapper=setup.mapper, progress=setup.progress)
        seconds = (time.perf_counter() - clock) / len(fits)
        records = [_record(n, fit, seconds, started_ms) for n, fit in enumerate(fits)]
        return tuple(records), fits, 0.0
    searched = [each for each in standard if each.corrections != "none"] or standard
    # Development rows do not take part in searches.
    n_rows = fitting.labels.size - (fitting.truth.size if fitting.n_folds == 1 else 0)
    space = SearchSpace(settings, method, searched, n_rows=int(n_rows))
    unsearched = [each for each in standard if each not in searched and space.admits(each)]
    others = fitting.judge(unsearched, mapper=setup.mapper)
    stored = setup.stored(cell.key, cell.label)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    first = space.first(searched)
    with nullcontext() if stored is None else stored.opened() as copy:
        study = _Study(
            setup=setup, fitting=fitting, space=space, first=first, stored=stored, copy=copy
        )
        study.run()
    fits = [*others, *study.fits]
    known = fits[: len(others) + len(first)]
    before, after = (reference_of(fitting, each, selection) for each in (known, fits))
    gain = (after.accuracy - after.cobias) - (before.accuracy - before.cobias)
    return tuple(study.records), fits, gain


def _record(number: int, fit: Fit, seconds: float, started_ms: int) -> TrialRecord:
    """Return the record of a judged setting."""
    score = fit.accuracy - fit.cobias
    return TrialRecord(
        number=number,
        params=fit.setting.to_params() if isinstance(fit.setting, Hyperparameters) else {},
        metrics={
            "dev/score": score,
            "dev/accuracy": fit.accuracy,
            "dev/cobias": fit.cobias,
            "opt/evaluations": float(fit.moves),
        },
        state="COMPLETE",
        seconds=seconds,
        started_ms=started_ms,
        value=score,
    )


class SearchSpace:
    """The hyperparameters of a study, all of which every trial has.

    Parameters
    ----------
    settings : TunerSettings
        Bounds, choices and fixed values.
    method : Method
        Its `fixed` knobs are not tuned.
    standard : sequence of Hyperparameters
        The standard settings.
    n_rows : int
        Number of rows of a search.

    Attributes
    ----------
    settings : TunerSettings
        The settings.
    values : dict of str to tuple
        Bounds or choices of every hyperparameter; a single value if it is fixed.
    """

    def __init__(
        self,
        settings: TunerSettings,
        method: Method,
        standard: Sequence[Hyperparameters],
        *,
        n_rows: int,
    ) -> None:
        self.settings, self._n_rows = settings, n_rows
        self._rows = [row for row in PARAMETERS if row.name not in settings.search.fixed]
        self.values = {row.name: settings.values(row.name) for row in self._rows}
        self.values |= {name: (value,) for name, value in (method.fixed or {}).items()}
        if settings.memberships is not None and settings.memberships < 2:
            families = self.values["corrections"]
            others = tuple(family for family in families if family != "memberships")
            self.values["corrections"] = others or families
        # As the standard settings, searches among many classes make fewer moves per class.
        share = min(1.0, standard[0].schedule.lambda2 / STANDARD_SCHEDULE.lambda2)
        for name in {"lambda1", "lambda2"} & self.values.keys() - settings.given:
            self.values[name] = tuple(v * share for v in self.values[name])

    def suggest(self, trial: BaseTrial) -> Hyperparameters:
        """Suggest a complete setting."""
        drawn = {row.name: self._draw(trial, row) for row in self._rows}
        own = [row.name for row in self._rows if row.schedule]
        schedule = self._schedule({name: drawn.pop(name) for name in own})
        if drawn["beta"] == drawn["tau"] == 0.0:
            # Without another term, the weight of the error rate has no effect.
            drawn["error_weight"] = 1.0
        weights_only = drawn["corrections"] == "weights"
        memberships = None if weights_only else self.settings.memberships
        return Hyperparameters(**drawn, memberships=memberships, schedule=schedule)

    def first(self, standard: Sequence[Hyperparameters]) -> list[dict[str, Any]]:
        """Return the parameters to enqueue, as near to `standard` as possible."""
        near = [each for each in standard if self.admits(each)] or standard[:1]
        distinct: dict[Hyperparameters, dict[str, Any]] = {}
        for params in map(self._params, near):
            distinct.setdefault(self.suggest(FixedTrial(params)), params)
        return [*distinct.values()]

    def admits(self, setting: Hyperparameters) -> bool:
        """Whether a setting has a calibration and corrections of the space."""
        names = ["calibration"]
        if setting.corrections != "none":
            names += ["corrections", "spacing"]
        elif self.settings.given & {"corrections", "spacing"}:
            names += ["corrections"]
        return all(getattr(setting, name) in self.values[name] for name in names)

    def _params(self, setting: Hyperparameters) -> dict[str, Any]:
        """Return the parameters nearest to a setting."""
        schedule = setting.schedule
        own = {"temperature_ratio": schedule.final_temperature / schedule.initial_temperature}
        params: dict[str, Any] = {}
        for name, values in self.values.items():
            value: Any = own.get(name, getattr(setting, name, getattr(schedule, name, None)))
            if value not in values:
                if isinstance(values[0], str):
                    value = values[0]
                elif len(values) == 2:
                    value = min(max(value, values[0]), values[1])
                else:
                    value = min(values, key=lambda each: abs(float(each) - float(value)))
            params[name] = value
        return params

    def _draw(self, trial: BaseTrial, row: Parameter) -> Any:
        values = self.values[row.name]
        if len(values) == 2 and not isinstance(values[0], str) and values[0] != values[1]:
            if row.integer:
                return trial.suggest_int(row.name, int(values[0]), int(values[1]))
            low, high = float(values[0]), float(values[1])
            return trial.suggest_float(row.name, low, high, log=row.logarithmic and low > 0.0)
        return trial.suggest_categorical(row.name, list(dict.fromkeys(values)))

    def _schedule(self, drawn: dict[str, Any]) -> Schedule:
        search, usual = self.settings.search, STANDARD_SCHEDULE
        if search.schedule == "paper":
            usual = Schedule.published(self._n_rows)
            drawn |= {"per_class": True, "count_worse": True, "start": "dont-change"}
        else:
            ratio = drawn.pop("temperature_ratio")
            drawn["final_temperature"] = drawn["initial_temperature"] * ratio
        return replace(usual, **drawn, **search.changed)


@dataclass(slots=True, kw_only=True)
class _Study:
    """The study while it runs."""

    setup: Setup
    fitting: Fitting
    space: SearchSpace
    first: Sequence[dict[str, Any]]
    stored: StoredStudy | None
    copy: optuna.Study | None
    fits: list[Fit] = field(default_factory=list)
    records: list[TrialRecord] = field(default_factory=list)
    asked: list[tuple[optuna.Trial, Hyperparameters]] = field(default_factory=list)
    #: Stored trials that were asked again.
    earlier: list[FrozenTrial] = field(default_factory=list)
    complete: Iterator[FrozenTrial] = field(init=False)
    study: optuna.Study = field(init=False)
    n_trials: int = field(init=False)

    def __post_init__(self) -> None:
        self.n_trials = max(self.space.settings.trials, len(self.first))
        seed = derive_seed(self.fitting.rows.seed, "sampler") % _SAMPLER_SEEDS
        sampler = make_sampler(self.space.settings.sampler, seed=seed, trials=self.n_trials)
        self.study = optuna.create_study(directions=[*OBJECTIVES.values()], sampler=sampler)
        complete = self.copy.get_trials(states=[TrialState.COMPLETE]) if self.copy else []
        # Those asked again are found in order: two processes may have stored each twice.
        self.complete = iter(complete)

    def run(self) -> None:
        """Judge the standard settings together, then those of the sampler in a window."""
        for params in self.first:
            self.study.enqueue_trial(params)
        if MIXTURE in self.space.values["calibration"]:
            self.fitting.prepare(self.setup.mapper)
        self._judge(range(len(self.first)), window=None)
        self._judge(range(len(self.first), self.n_trials), window=self.space.settings.window)

    def _judge(self, numbers: range, *, window: int | None) -> None:
        """Judge trials, of which no more than a window are asked before they are told."""
        found: dict[int, tuple[Fit, float, int]] = {}

        def items() -> Iterator[Hyperparameters]:
            for number in numbers:
                # All trials but those of the window are told, in order, and no others.
                while window is not None and len(self.fits) <= number - window:
                    self._tell(*found[len(self.fits)])
                setting = self._ask()
                if number < len(self.earlier):
                    earlier = self.earlier[number]
                    accuracy, cobias, moves = earlier.values
                    fit, about = Fit(setting, accuracy, cobias, int(moves)), earlier.user_attrs
                    found[number] = fit, about["seconds"], about["started_ms"]
                else:
                    yield setting

        # Trial n is asked when trial n - window is done.
        fit = partial(_timed, self.fitting.rows.fit)
        results = self.setup.mapper(fit, items(), ahead=window)
        for index, (schemes, took, started_ms) in enumerate(results):
            number = max(numbers.start, len(self.earlier)) + index
            found[number] = (self.fitting.judged(self.asked[number][1], schemes), took, started_ms)
            self.setup.progress(0.95 * (number + 1) / self.n_trials)
        while len(self.fits) < numbers.stop:
            self._tell(*found[len(self.fits)])

    def _ask(self) -> Hyperparameters:
        trial = self.study.ask()
        setting = self.space.suggest(trial)
        found = next((each for each in self.complete if each.params == trial.params), None)
        if found is not None:
            self.earlier.append(found)
        self.asked.append((trial, setting))
        return setting

    def _tell(self, fit: Fit, seconds: float, started_ms: int) -> None:
        """Tell the study the next trial in order, and store it."""
        number = len(self.fits)
        trial, _ = self.asked[number]
        values = {name: float(getattr(fit, name)) for name in OBJECTIVES}
        about = {"score": fit.accuracy - fit.cobias, "seconds": seconds, "started_ms": started_ms}
        for name, value in (values | about).items():
            trial.set_user_attr(name, value)
        self.fits.append(fit)
        self._constrain(trial, fit)
        self.study.tell(trial, [*values.values()])
        if self.stored and self.copy and number >= len(self.earlier):
            with self.stored.storage_errors():
                self.copy.add_trial(self.study.get_trials(deepcopy=False)[number])
        self.records.append(_record(number, fit, seconds, started_ms))

    def _constrain(self, trial: optuna.Trial, fit: Fit) -> None:
        settings = self.space.settings
        if settings.max_cobias is not None:
            trial.set_constraint("max_cobias", 100.0 * fit.cobias - settings.max_cobias)
        if settings.max_accuracy_loss is not None:
            # Those told so far, which do not depend on the number of workers.
            loss = max(each.accuracy for each in self.fits) - fit.accuracy
            trial.set_constraint("max_accuracy_loss", 100.0 * loss - settings.max_accuracy_loss)


def _timed(
    fit: Callable[[Any], tuple[CorrectionScheme, ...]], item: Any
) -> tuple[tuple[CorrectionScheme, ...], float, int]:
    """Fit a setting without each fold on a worker and measure the time there."""
    started_ms, clock = now_ms(), time.perf_counter()
    return fit(item), time.perf_counter() - clock, started_ms


def make_sampler(name: Sampler, *, seed: int, trials: int) -> BaseSampler:
    """Return a sampler of Optuna.

    Parameters
    ----------
    name : "tpe", "nsga2", "gp" or "random"
        Its name.
    seed : int
        Seed of the sampler.
    trials : int
        Number of trials of the study; fewer than these are random.
    """
    startup = max(1, min(_STARTUP, trials // 3))
    if name == "tpe":
        return TPESampler(seed=seed, n_startup_trials=startup)
    if name == "nsga2":
        return NSGAIISampler(seed=seed, population_size=max(2, startup))
    if name == "gp":
        return GPSampler(seed=seed, n_startup_trials=startup, warn_independent_sampling=False)
    return RandomSampler(seed=seed)
