"""Input and output of a protocol, and its Optuna study, evaluated in a window on many CPUs.

The storage holds the complete state of a study, so a killed run resumes from it. Optuna stores
it in memory, in a journal file or in a database.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Concatenate, Final, Generic, Literal, TypeAlias, TypeVar

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.pruners import BasePruner, HyperbandPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, GPSampler, GridSampler, RandomSampler, TPESampler
from optuna.trial import BaseTrial, FrozenTrial, TrialState

from dcs.data.table import ProbabilityTable
from dcs.evaluation.metrics import ClassificationMetrics
from dcs.schemes.scheme import CorrectionScheme
from dcs.search.problem import AnnealingResult
from dcs.seeds import derive_seed
from dcs.selection.front import Figures, FittedScheme
from dcs.selection.methods import Method, Trial
from tracking import TrialRecord
from tracking.environment import source_digest
from workflows.config.tuner import StudyStorage, TunerSettings
from workflows.parallel import Mapper, in_process, one_thread

#: Direction of an objective.
Direction: TypeAlias = Literal["maximize", "minimize"]

#: Optuna seeds NumPy's legacy generator, which accepts 32 bits.
_SAMPLER_SEEDS: Final = 2**32
#: Minimum number of trials for meaningful importances, and the share that counts as good.
_MIN_TRIALS: Final = 10
_GOOD_SHARE: Final = 0.25
#: User attributes: of a study, the hash of the sources; of a trial, its number, which does not
#: depend on the run, and its verdict of plain values.
_CODE, _NUMBER, _VERDICT = "code", "number", "verdict"
_JUDGED: Final = ("metrics", "seconds", "started_ms", "pruned", "reports", "rungs")

#: Step at which the search of a trial is complete; a pruner compares at 1/27, 1/9 and 1/3 of it.
LAST_STEP: Final = 27
_PRUNERS: Final[dict[str, Callable[[], BasePruner]]] = {
    "successive-halving": lambda: SuccessiveHalvingPruner(min_resource=1, reduction_factor=3),
    "hyperband": lambda: HyperbandPruner(
        min_resource=1, max_resource=LAST_STEP, reduction_factor=3
    ),
}

W = TypeVar("W")
P = TypeVar("P")
#: Reports the first objective at a step to a pruner; returns whether to prune the trial.
Report: TypeAlias = Callable[[int, float], bool]
#: Evaluates a trial; with a pruner it receives a :data:`Report` too.
Judge: TypeAlias = (
    "Callable[Concatenate[StudyTrial[W, P], ...], tuple[dict[str, float], P | None]]"
)


@dataclass(frozen=True, slots=True)
class StoredStudy:
    """A persistent study; only one process may run it at a time.

    Attributes
    ----------
    storage : StudyStorage
        Storage of the study.
    name : str
        Name of the study: the key of the cell.
    notes : mapping of str to str
        Informational user attributes of the study.
    """

    storage: StudyStorage
    name: str
    notes: Mapping[str, str]


def unheard(share: float) -> None:
    """Ignore progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Input of a protocol for finding the scheme of a cell.

    Attributes
    ----------
    table : ProbabilityTable
        The optimization rows.
    method : Method
        Method to tune.
    settings : TunerSettings
        Settings of the tuner.
    seed : int
        Root seed, from which the seeds of splits, samplers and searches are derived.
    progress : callable
        Called with the completed fraction of the work, 0..1.
    mapper : Mapper
        Runs the trials; the result does not depend on the mapper.
    stored : StoredStudy or None
        Storage of the study, from which later runs resume; None keeps it in memory.
    known : dict
        Cache shared by tunings that differ only in their preference, to select from one search.
    reference : array of int, shape [M], or None
        Predictions that accuracy is compared with; None for those of the table.
    """

    table: ProbabilityTable
    method: Method
    settings: TunerSettings
    seed: int
    progress: Callable[[float], None] = unheard
    mapper: Mapper = in_process
    stored: StoredStudy | None = None
    known: dict[Any, Any] = field(default_factory=dict)
    reference: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True)
class Fitted:
    """A scheme and the search that found it.

    Attributes
    ----------
    scheme : CorrectionScheme
        The selected scheme.
    trials : tuple of TrialRecord
        All evaluated settings, in order.
    best : TrialRecord or None
        The trial of the scheme; None if there was no selection.
    annealing : AnnealingResult or None
        The search that found the scheme, if it was a single search on one set of rows.
    importances : dict of str to float
        See :func:`importances`.
    front : FittedScheme or None
        The front that the scheme was selected from, if any.
    """

    scheme: CorrectionScheme
    trials: tuple[TrialRecord, ...] = ()
    best: TrialRecord | None = None
    annealing: AnnealingResult | None = None
    importances: dict[str, float] = field(default_factory=dict)
    front: FittedScheme | None = None


@dataclass(frozen=True, slots=True)
class StudyTrial(Generic[W, P]):
    """One trial, before or after its evaluation.

    Attributes
    ----------
    number : int
        Number of the trial in the study, from 0.
    params : dict
        Parameters suggested by Optuna.
    work : object
        Return value of `suggest`.
    distributions : dict of str to BaseDistribution
        Distributions of the parameters.
    metrics : dict of str to float
        All metrics; empty before the evaluation.
    found : object or None
        Result of the search; None if the verdict comes from an earlier run.
    seconds : float
        Wall time of the evaluation.
    started_ms : int
        Start of the evaluation, in milliseconds since the epoch.
    pruned : bool
        Whether a pruner stopped the trial.
    reports : dict of str to float
        Values reported to the pruner, by step.
    rungs : dict of str to float
        System attributes that the pruner stored for later trials.
    earlier : tuple of dict or None
        With a pruner: `rungs` of the previous trials, None for running ones.
    """

    number: int
    params: dict[str, Any]
    work: W
    distributions: dict[str, BaseDistribution] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    found: P | None = None
    seconds: float = 0.0
    started_ms: int = 0
    pruned: bool = False
    reports: dict[str, float] = field(default_factory=dict)
    rungs: dict[str, float] = field(default_factory=dict)
    earlier: tuple[dict[str, float] | None, ...] = ()

    @property
    def accuracy(self) -> float:
        """Accuracy on rows that the trial was not fitted on, as a fraction."""
        return self.metrics["dev/accuracy"]

    @property
    def cobias(self) -> float:
        """COBias on these rows, as a fraction."""
        return self.metrics["dev/cobias"]

    @property
    def figures(self) -> Figures:
        """The figures by which trials are selected."""
        values: dict[str, Any] = {
            each.name: self.metrics[f"dev/{each.name}"] for each in fields(Figures)
        }
        return Figures(**values)

    def record(self, aim: str, params: Mapping[str, Any] | None = None) -> TrialRecord:
        """Return the record of the trial, with the metric `aim` as its value."""
        return TrialRecord(
            number=self.number,
            params=self.params if params is None else params,
            metrics=self.metrics,
            state="PRUNED" if self.pruned else "COMPLETE",
            seconds=self.seconds,
            started_ms=self.started_ms,
            value=self.metrics[aim],
        )


def fitted_at_once(
    table: ProbabilityTable, method: Method, seed: int, known: dict[Any, Any] | None = None
) -> Fitted:
    """Fit a method that does its own selection, and return its trials.

    Parameters
    ----------
    table : ProbabilityTable
        The optimization rows.
    method : Method
        Method such as ``published``, whose grid becomes the trials.
    seed : int
        Root seed.
    known : dict, optional
        See :meth:`dcs.selection.methods.Method.fitted`.
    """
    started_ms = time.time_ns() // 1_000_000
    found = method.fitted(table.probs, table.labels, classes=table.classes, seed=seed, known=known)
    aim = "dev/score" if "balanced" in method.name else "dev/accuracy"
    records = []
    for trial in found.trials:
        metrics = development_metrics(trial)
        records.append(
            TrialRecord(
                number=trial.number,
                params=dict(trial.params),
                metrics=metrics,
                state="COMPLETE",
                seconds=trial.seconds,
                started_ms=started_ms,
                value=metrics[aim],
            )
        )
        started_ms += round(1000 * trial.seconds)
    best = None if found.best is None else records[found.trials.index(found.best)]
    return Fitted(found.scheme, tuple(records), best, found.annealing)


def development_metrics(estimate: Figures | ClassificationMetrics | Trial) -> dict[str, float]:
    """Return the selection metrics of a trial: accuracy, COBias, and the score, their difference.

    The annealing objective is not comparable, since trials differ in beta and tau. All fields of
    :class:`dcs.selection.front.Figures` are included if available.
    """
    named = asdict(estimate) if isinstance(estimate, Figures) else {}
    return {
        "dev/score": estimate.accuracy - estimate.cobias,
        "dev/accuracy": estimate.accuracy,
        "dev/cobias": estimate.cobias,
        **{f"dev/{name}": value for name, value in named.items()},
    }


def importances(trials: Sequence[StudyTrial[W, P]], aim: str) -> dict[str, float]:
    """Return the importance of each hyperparameter for good trials, by PED-ANOVA.

    Parameters
    ----------
    trials : sequence of StudyTrial
        All evaluated trials of a study.
    aim : str
        The metric that defines good trials; higher is better.

    Returns
    -------
    dict of str to float
        Importances of the hyperparameters that vary, with sum 1; empty for fewer than 10 trials,
        or if all trials have the same value.
    """
    # Loads scikit-learn and pandas, which most processes do not need.
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    if len(trials) < _MIN_TRIALS or len({trial.metrics[aim] for trial in trials}) == 1:
        return {}
    study = _make_study(trials, {aim: "maximize"})
    # Not every trial has every hyperparameter.
    drawn = {name: each for trial in trials for name, each in trial.distributions.items()}
    evaluator = PedAnovaImportanceEvaluator(target_quantile=_GOOD_SHARE)
    shares = get_param_importances(study, evaluator=evaluator)
    return {name: float(share) for name, share in shares.items() if not drawn[name].single()}


def pareto_numbers(
    trials: Sequence[StudyTrial[W, P]], aims: Mapping[str, Direction]
) -> frozenset[int]:
    """Return the numbers of the trials on Optuna's Pareto front of some metrics."""
    return frozenset(trials[best.number].number for best in _make_study(trials, aims).best_trials)


def _make_study(trials: Sequence[StudyTrial[W, P]], aims: Mapping[str, Direction]) -> optuna.Study:
    """Return an in-memory study of evaluated trials."""
    study = optuna.create_study(directions=[*aims.values()])
    study.add_trials(
        optuna.create_trial(
            params=trial.params,
            distributions=trial.distributions,
            values=[trial.metrics[name] for name in aims],
        )
        for trial in trials
    )
    return study


@dataclass(frozen=True, slots=True)
class _TimedJudge(Generic[W, P]):
    """Evaluate a trial on a worker and measure the time there."""

    judge: Judge[W, P]
    pruner: str

    @one_thread()
    def __call__(self, trial: StudyTrial[W, P]) -> StudyTrial[W, P]:
        if trial.metrics:
            return replace(trial, earlier=())
        started_ms, clock = time.time_ns() // 1_000_000, time.perf_counter()
        halving = None if self.pruner == "none" else _Halving(self.pruner, trial)
        metrics, found = self.judge(trial) if halving is None else self.judge(trial, halving)
        judged = replace(
            trial,
            metrics=metrics,
            found=found,
            seconds=time.perf_counter() - clock,
            started_ms=started_ms,
            earlier=(),
        )
        return judged if halving is None else replace(judged, **halving.outcome)


class _Halving:
    """A :data:`Report` to Optuna's pruner, with an in-memory study of the earlier trials."""

    def __init__(self, pruner: str, trial: StudyTrial[Any, Any]) -> None:
        # Hyperband assigns trials to brackets by the name of the study and the trial number.
        self._study = optuna.create_study(
            study_name="trials", direction="maximize", pruner=_PRUNERS[pruner]()
        )
        for rungs in trial.earlier:
            # Running trials are added as failed ones to preserve the numbering.
            state = TrialState.FAIL if rungs is None else TrialState.PRUNED
            self._study.add_trial(optuna.create_trial(state=state, system_attrs=rungs or {}))
        self._trial = self._study.ask()
        self._step, self._pruned = 0, False

    def __call__(self, step: int, value: float) -> bool:
        if not self._step < step < LAST_STEP:
            return False
        self._step = step
        self._trial.report(value, step)
        self._pruned = self._trial.should_prune()
        return self._pruned

    @property
    def outcome(self) -> dict[str, Any]:
        trial = self._study.trials[-1]
        reports = {str(step): value for step, value in trial.intermediate_values.items()}
        rungs = dict(trial.system_attrs)
        return {"pruned": self._pruned, "reports": reports, "rungs": rungs}


def sampler_of(
    name: str, *, space: Mapping[str, Sequence[float]] | None = None, order: int = 0
) -> Callable[[int], BaseSampler]:
    """Return a factory of Optuna's sampler, called with the seed of a trial.

    Parameters
    ----------
    name : "tpe", "gp", "random" or "grid"
        Name of the sampler.
    space : mapping of str to sequence of float, optional
        Values to combine, for ``grid``.
    order : int, optional
        Seed of the order of the combinations, for ``grid``.
    """
    if name == "grid":
        combined = {key: [*values] for key, values in (space or {}).items()}
        # The same order for all trials, so that no combination is repeated.
        return lambda seed: _GridSampler(combined, seed=order % _SAMPLER_SEEDS)
    if name == "random":
        return lambda seed: RandomSampler(seed=seed)
    if name == "gp":
        return lambda seed: GPSampler(seed=seed, warn_independent_sampling=False)
    # Running trials count as bad ones, so that the next one differs from them.
    return lambda seed: TPESampler(constant_liar=True, seed=seed)


class _GridSampler(GridSampler):
    """Grid sampler for ask and tell: only `Study.optimize` may be stopped by a sampler."""

    def after_trial(self, *arguments: Any) -> None:
        """Skip the stop after the last combination."""


@dataclass(slots=True, kw_only=True)
class StudyRun(Generic[W, P]):
    """An Optuna study and its evaluated trials.

    Trial ``n`` is suggested from the metrics of trials ``0`` to ``n - window`` and the parameters
    of those in between, by a sampler with its own seed. So suggestions depend neither on the
    number of CPUs nor on when an earlier run was killed.

    Attributes
    ----------
    suggest : callable
        Suggests the parameters of a trial and returns the input of `judge`.
    judge : callable
        Returns the metrics of a trial and its result; picklable.
    aims : mapping of str to {"maximize", "minimize"}
        The metrics that are the objectives of the study.
    trials : int
        Number of trials.
    window : int
        Maximum number of concurrent trials. Affects the suggestions, so it belongs to the study.
    seed : int
        Seed from which those of the samplers are derived.
    sampler : callable
        Return value of :func:`sampler_of`.
    first : mapping or None
        Parameters of the first trial.
    mapper : Mapper
        Runs the trials.
    stored : StoredStudy or None
        Storage of the study, None for memory. Trials that an earlier run finished are not
        evaluated again.
    pruner : "none", "successive-halving" or "hyperband"
        Compares trial ``n`` only with trials ``0`` to ``n - window``, for the same reason.
    """

    suggest: Callable[[BaseTrial], W]
    judge: Judge[W, P]
    aims: Mapping[str, Direction]
    trials: int
    window: int
    seed: int
    sampler: Callable[[int], BaseSampler] = field(default_factory=lambda: sampler_of("tpe"))
    first: Mapping[str, Any] | None = None
    mapper: Mapper = in_process
    stored: StoredStudy | None = None
    pruner: str = "none"
    _finished: list[StudyTrial[W, P]] = field(default_factory=list, init=False)
    _asked: dict[int, optuna.Trial] = field(default_factory=dict, init=False)

    def results(self) -> Iterator[StudyTrial[W, P]]:
        """Evaluate the trials and yield them in order.

        Raises
        ------
        StudyStorageError
            If the storage fails.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with _open_study(self.stored, [*self.aims.values()]) as study:
            judge = _TimedJudge(self.judge, self.pruner)
            for trial in self.mapper(judge, self._start_trials(study), ahead=self.window):
                yield self._finish(trial)
            self._tell(study, self.trials)

    def _start_trials(self, study: optuna.Study) -> Iterator[StudyTrial[W, P]]:
        """Yield the trials to evaluate, telling the study the verdicts of their predecessors."""
        earlier = _load_earlier_trials(study)
        for number in range(self.trials):
            n_told = max(0, number - self.window + 1)
            self._tell(study, n_told)
            previous = earlier.get(number)
            whole = previous is not None and previous.state is not TrialState.FAIL
            source = previous if previous and whole else self._ask(study, number, previous)
            verdict = previous.user_attrs.get(_VERDICT, {}) if previous else {}
            trial: StudyTrial[W, P] = StudyTrial(
                number,
                work=self.suggest(source),
                params=dict(source.params),
                distributions=dict(source.distributions),
                **verdict,
            )
            if self.pruner != "none":
                known = [each.rungs for each in self._finished[:n_told]]
                trial = replace(trial, earlier=(*known, *[None] * (number - n_told)))
            if number in self._asked:
                # Set once all parameters are suggested: a later run enqueues only such trials.
                self._asked[number].set_user_attr(_NUMBER, number)
            yield trial

    def _ask(self, study: optuna.Study, number: int, previous: FrozenTrial | None) -> optuna.Trial:
        """Ask Optuna for a trial, with fixed parameters if they are known."""
        seed = derive_seed(self.seed, "sampler", number) % _SAMPLER_SEEDS
        study.sampler = self.sampler(seed)
        params = previous.params if previous else self.first if number == 0 else None
        if params is not None:
            study.enqueue_trial(dict(params))
        self._asked[number] = study.ask()
        return self._asked[number]

    def _finish(self, trial: StudyTrial[W, P]) -> StudyTrial[W, P]:
        """Store the verdict of an evaluated trial and return the trial."""
        # The caller stores the result; the study needs only the metrics.
        self._finished.append(replace(trial, found=None))
        if trial.number in self._asked:
            verdict = {name: getattr(trial, name) for name in _JUDGED}
            self._asked[trial.number].set_user_attr(_VERDICT, verdict)
        return trial

    def _tell(self, study: optuna.Study, before: int) -> None:
        """Tell the study the verdicts of all trials before a number."""
        for number in sorted(number for number in self._asked if number < before):
            done, asked = self._finished[number], self._asked.pop(number)
            for step, value in done.reports.items():
                asked.report(value, int(step))
            if done.pruned:
                study.tell(asked, state=TrialState.PRUNED)
            else:
                study.tell(asked, [done.metrics[name] for name in self.aims])


def _load_earlier_trials(study: optuna.Study) -> dict[int, FrozenTrial]:
    """Return the trials of earlier runs by number; their unfinished trials become failed."""
    for _ in study.get_trials(deepcopy=False, states=[TrialState.WAITING]):
        study.tell(study.ask(), state=TrialState.FAIL)
    for trial in study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
        study.tell(trial.number, state=TrialState.FAIL)
    trials = study.get_trials(deepcopy=False)
    return {each.user_attrs[_NUMBER]: each for each in trials if _NUMBER in each.user_attrs}


@contextmanager
def _open_study(
    stored: StoredStudy | None, directions: Sequence[Direction]
) -> Iterator[optuna.Study]:
    """Yield the study of a cell: a new one, or that of an earlier run of the same sources."""
    if stored is None:
        yield optuna.create_study(directions=directions)
        return
    with stored.storage.opened() as storage:
        code, name = source_digest(), stored.name
        with suppress(KeyError):
            if optuna.load_study(study_name=name, storage=storage).user_attrs.get(_CODE) != code:
                # Other sources may evaluate the same parameters differently.
                optuna.delete_study(study_name=name, storage=storage)
        study = optuna.create_study(
            storage=storage, study_name=name, directions=directions, load_if_exists=True
        )
        for key, value in {**stored.notes, _CODE: code}.items():
            study.set_user_attr(key, value)
        yield study
