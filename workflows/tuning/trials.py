"""What a protocol is given, and Optuna's trials for it: asked in a window, judged on many CPUs.

The study in its storage is all there is of it: a run that was killed goes on from what it finds
there. It is kept by Optuna in memory, in a journal file or in a database.
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

#: Which way an objective is better.
Direction: TypeAlias = Literal["maximize", "minimize"]

#: Optuna seeds NumPy's legacy generator, which takes 32 bits.
_SAMPLER_SEEDS: Final = 2**32
#: Trials below which importances are chance, and the share of them that counts as good.
_FEWEST_TRIALS: Final = 10
_GOOD_SHARE: Final = 0.25
#: What is noted of a study and of its trials: the sources that judge it; the number that a trial
#: has whichever run asks it, and its verdict, of plain values.
_CODE, _NUMBER, _VERDICT = "code", "number", "verdict"
_JUDGED: Final = ("metrics", "seconds", "started_ms", "pruned", "reports", "rungs")

#: The step at which the search of a trial is whole; a pruner compares at 1/27, 1/9 and 1/3 of it.
LAST_STEP: Final = 27
_PRUNERS: Final[dict[str, Callable[[], BasePruner]]] = {
    "successive-halving": lambda: SuccessiveHalvingPruner(min_resource=1, reduction_factor=3),
    "hyperband": lambda: HyperbandPruner(
        min_resource=1, max_resource=LAST_STEP, reduction_factor=3
    ),
}

W = TypeVar("W")
P = TypeVar("P")
#: Tells a pruner the first objective at a step; true says that the trial is behind.
Report: TypeAlias = Callable[[int, float], bool]
#: With a pruner it is given a :data:`Report` too.
Judge: TypeAlias = (
    "Callable[Concatenate[StudyTrial[W, P], ...], tuple[dict[str, float], P | None]]"
)


@dataclass(frozen=True, slots=True)
class StoredStudy:
    """A study that outlives the process which runs it; one process at a time.

    Attributes
    ----------
    storage : StudyStorage
        Where it is kept.
    name : str
        Of the study: the key of the cell.
    notes : mapping of str to str
        Kept beside it, for people.
    """

    storage: StudyStorage
    name: str
    notes: Mapping[str, str]


def unheard(share: float) -> None:
    """Take no notice of progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What a protocol is given to find the scheme of a cell.

    Attributes
    ----------
    table : ProbabilityTable
        The optimization rows.
    method : Method
        What is tuned.
    settings : TunerSettings
        How.
    seed : int
        Root seed; splits, samplers and searches derive theirs from it.
    progress : callable
        Called with the share of the work done, 0..1.
    mapper : Mapper
        Where trials are judged; the result is the same everywhere.
    stored : StoredStudy or None
        Where the study is kept, and found again by a later run; None keeps it in memory.
    known : dict
        The same one for what differs in its preference alone, to choose from one search.
    reference : array of int, shape [M], or None
        Predictions that accuracy is held against; None for those of the table.
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
    importances : dict of str to float
        See :func:`importances`.
    front : FittedScheme or None
        What the scheme was picked from, where that was a front.
    """

    scheme: CorrectionScheme
    trials: tuple[TrialRecord, ...] = ()
    best: TrialRecord | None = None
    annealing: AnnealingResult | None = None
    importances: dict[str, float] = field(default_factory=dict)
    front: FittedScheme | None = None


@dataclass(frozen=True, slots=True)
class StudyTrial(Generic[W, P]):
    """One trial, before it is judged and after.

    Attributes
    ----------
    number : int
        Counts the trials of the study from 0.
    params : dict
        What Optuna suggested.
    work : object
        What `suggest` made of it.
    distributions : dict of str to BaseDistribution
        What the parameters were drawn from.
    metrics : dict of str to float
        All figures; empty before the trial is judged.
    found : object or None
        What judging it found; None where the verdict is that of an earlier run.
    seconds : float
        Wall time of judging it.
    started_ms : int
        When that began, milliseconds since the epoch.
    pruned : bool
        Whether a pruner ended it.
    reports : dict of str to float
        What a pruner was told, by step.
    rungs : dict of str to float
        What a pruner noted of it for later trials.
    earlier : tuple of dict or None
        With a pruner: `rungs` of the trials before it, None for those under way.
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
        """Accuracy on rows that the trial has not seen, a share."""
        return self.metrics["dev/accuracy"]

    @property
    def cobias(self) -> float:
        """COBias on these rows, a share."""
        return self.metrics["dev/cobias"]

    @property
    def figures(self) -> Figures:
        """What a choice between trials goes by."""
        return Figures(**{each.name: self.metrics[f"dev/{each.name}"] for each in fields(Figures)})

    def record(self, aim: str, params: Mapping[str, Any] | None = None) -> TrialRecord:
        """Return what is recorded of the trial, its value being the metric of that name."""
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
    """Fit a method that makes its own choices, and return what it tried.

    Parameters
    ----------
    table : ProbabilityTable
        The optimization rows.
    method : Method
        E.g. ``published``, whose grid becomes the trials.
    seed : int
        Root seed.
    known : dict, optional
        As of :meth:`dcs.selection.methods.Method.fitted`.
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
    """Return what a trial is chosen for: accuracy, COBias, and the score, their difference.

    The annealing objective cannot serve here, since trials differ in beta and tau. Of figures
    that a preference goes by all are returned.
    """
    named = asdict(estimate) if isinstance(estimate, Figures) else {}
    return {
        "dev/score": estimate.accuracy - estimate.cobias,
        "dev/accuracy": estimate.accuracy,
        "dev/cobias": estimate.cobias,
        **{f"dev/{name}": value for name, value in named.items()},
    }


def importances(trials: Sequence[StudyTrial[W, P]], aim: str) -> dict[str, float]:
    """Return the share of each hyperparameter in what sets the good trials apart, by PED-ANOVA.

    Parameters
    ----------
    trials : sequence of StudyTrial
        All of a study, judged.
    aim : str
        The metric that tells good trials, the higher the better.

    Returns
    -------
    dict of str to float
        Of those that vary, with sum 1; empty for fewer than 10 trials, or where all trials
        reached the same.
    """
    # Loads scikit-learn and pandas, which most processes do not need.
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    if len(trials) < _FEWEST_TRIALS or len({trial.metrics[aim] for trial in trials}) == 1:
        return {}
    study = _as_study(trials, {aim: "maximize"})
    # Not every trial has every hyperparameter.
    drawn = {name: each for trial in trials for name, each in trial.distributions.items()}
    evaluator = PedAnovaImportanceEvaluator(target_quantile=_GOOD_SHARE)
    shares = get_param_importances(study, evaluator=evaluator)
    return {name: float(share) for name, share in shares.items() if not drawn[name].single()}


def pareto_numbers(
    trials: Sequence[StudyTrial[W, P]], aims: Mapping[str, Direction]
) -> frozenset[int]:
    """Return the numbers of the trials on Optuna's Pareto front of some metrics."""
    return frozenset(trials[best.number].number for best in _as_study(trials, aims).best_trials)


def _as_study(trials: Sequence[StudyTrial[W, P]], aims: Mapping[str, Direction]) -> optuna.Study:
    """Return a study in memory of trials that have been judged."""
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
    """Runs where the mapper puts it, and takes the time there."""

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
    """Optuna's pruner over a study in memory of what a trial may know: a :data:`Report`."""

    def __init__(self, pruner: str, trial: StudyTrial[Any, Any]) -> None:
        # Its name decides what Hyperband does with a trial of which number.
        self._study = optuna.create_study(
            study_name="trials", direction="maximize", pruner=_PRUNERS[pruner]()
        )
        for rungs in trial.earlier:
            # Those under way keep the numbers right.
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
    """Return what makes Optuna's sampler of a name from the seed of a trial.

    Parameters
    ----------
    name : "tpe", "gp", "random" or "grid"
        The sampler.
    space : mapping of str to sequence of float, optional
        With ``grid``: the values that are combined.
    order : int, optional
        With ``grid``: seed of the order of its combinations.
    """
    if name == "grid":
        combined = {key: [*values] for key, values in (space or {}).items()}
        # One order for all trials, so that no combination comes twice.
        return lambda seed: _GridSampler(combined, seed=order % _SAMPLER_SEEDS)
    if name == "random":
        return lambda seed: RandomSampler(seed=seed)
    if name == "gp":
        return lambda seed: GPSampler(seed=seed, warn_independent_sampling=False)
    # Those that are under way count as bad ones, so that the next is tried elsewhere.
    return lambda seed: TPESampler(constant_liar=True, seed=seed)


class _GridSampler(GridSampler):
    """Does not stop the study after the last combination, which `optimize` alone can."""

    def after_trial(self, *arguments: Any) -> None:
        """Take no notice."""


@dataclass(slots=True, kw_only=True)
class StudyRun(Generic[W, P]):
    """A study that Optuna suggests the trials of, and what of it is done.

    Trial ``n`` is suggested from the metrics of trials ``0`` to ``n - window`` and the parameters
    of those in between, by a sampler with a seed of its own. So neither the number of CPUs nor
    when an earlier run was killed changes what is suggested.

    Attributes
    ----------
    suggest : callable
        Draws the parameters of a trial and returns what `judge` needs of them.
    judge : callable
        Returns the metrics of a trial and what it found; picklable.
    aims : mapping of str to {"maximize", "minimize"}
        The metrics that the study has for objectives.
    trials : int
        How many there are.
    window : int
        Trials that may be judged at once. Decides what is suggested, so it belongs to the study.
    seed : int
        The samplers derive theirs from it.
    sampler : callable
        As :func:`sampler_of` returns it.
    first : mapping or None
        Parameters of the first trial.
    mapper : Mapper
        Where trials are judged.
    stored : StoredStudy or None
        Where the study is kept, None for memory. Trials that an earlier run finished there are
        not judged again.
    pruner : "none", "successive-halving" or "hyperband"
        Trial ``n`` is compared with trials ``0`` to ``n - window`` alone, for the same reason.
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
    _done: list[StudyTrial[W, P]] = field(default_factory=list, init=False)
    _asked: dict[int, optuna.Trial] = field(default_factory=dict, init=False)

    def results(self) -> Iterator[StudyTrial[W, P]]:
        """Have the trials judged, and yield each in its turn.

        Raises
        ------
        StudyStorageError
            The storage fails.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with _opened_study(self.stored, [*self.aims.values()]) as study:
            judge = _TimedJudge(self.judge, self.pruner)
            for trial in self.mapper(judge, self._begun_trials(study), ahead=self.window):
                yield self._end(trial)
            self._tell(study, self.trials)

    def _begun_trials(self, study: optuna.Study) -> Iterator[StudyTrial[W, P]]:
        """Yield the trials to be judged; the verdicts there are by then are told before."""
        earlier = _earlier_trials(study)
        for number in range(self.trials):
            told = max(0, number - self.window + 1)
            self._tell(study, told)
            left = earlier.get(number)
            whole = left is not None and left.state is not TrialState.FAIL
            begun = left if left and whole else self._ask(study, number, left)
            verdict = left.user_attrs.get(_VERDICT, {}) if left else {}
            trial: StudyTrial[W, P] = StudyTrial(
                number,
                work=self.suggest(begun),
                params=dict(begun.params),
                distributions=dict(begun.distributions),
                **verdict,
            )
            if self.pruner != "none":
                known = [each.rungs for each in self._done[:told]]
                trial = replace(trial, earlier=(*known, *[None] * (number - told)))
            if number in self._asked:
                # Only now, when it has all its parameters, is it one that can be put in line.
                self._asked[number].set_user_attr(_NUMBER, number)
            yield trial

    def _ask(self, study: optuna.Study, number: int, left: FrozenTrial | None) -> optuna.Trial:
        """Ask Optuna for a trial, with its parameters where they are known."""
        seed = derive_seed(self.seed, "sampler", number) % _SAMPLER_SEEDS
        study.sampler = self.sampler(seed)
        params = left.params if left else self.first if number == 0 else None
        if params is not None:
            study.enqueue_trial(dict(params))
        self._asked[number] = study.ask()
        return self._asked[number]

    def _end(self, trial: StudyTrial[W, P]) -> StudyTrial[W, P]:
        """Keep the verdict of a judged trial and return it."""
        # What was found is the caller's to keep; the numbers are enough to go on.
        self._done.append(replace(trial, found=None))
        if trial.number in self._asked:
            verdict = {name: getattr(trial, name) for name in _JUDGED}
            self._asked[trial.number].set_user_attr(_VERDICT, verdict)
        return trial

    def _tell(self, study: optuna.Study, before: int) -> None:
        """Tell the study the verdicts of all trials before this one."""
        for number in sorted(number for number in self._asked if number < before):
            done, asked = self._done[number], self._asked.pop(number)
            for step, value in done.reports.items():
                asked.report(value, int(step))
            if done.pruned:
                study.tell(asked, state=TrialState.PRUNED)
            else:
                study.tell(asked, [done.metrics[name] for name in self.aims])


def _earlier_trials(study: optuna.Study) -> dict[int, FrozenTrial]:
    """Return what earlier runs left, by number; trials under way when they were killed fail."""
    for _ in study.get_trials(deepcopy=False, states=[TrialState.WAITING]):
        study.tell(study.ask(), state=TrialState.FAIL)
    for trial in study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
        study.tell(trial.number, state=TrialState.FAIL)
    trials = study.get_trials(deepcopy=False)
    return {each.user_attrs[_NUMBER]: each for each in trials if _NUMBER in each.user_attrs}


@contextmanager
def _opened_study(
    stored: StoredStudy | None, directions: Sequence[Direction]
) -> Iterator[optuna.Study]:
    """Give the study of a cell: a new one, or that of an earlier run of the same code."""
    if stored is None:
        yield optuna.create_study(directions=directions)
        return
    with stored.storage.opened() as storage:
        code, name = source_digest(), stored.name
        with suppress(KeyError):
            if optuna.load_study(study_name=name, storage=storage).user_attrs.get(_CODE) != code:
                # Another version may judge the same parameters otherwise.
                optuna.delete_study(study_name=name, storage=storage)
        study = optuna.create_study(
            storage=storage, study_name=name, directions=directions, load_if_exists=True
        )
        for key, value in {**stored.notes, _CODE: code}.items():
            study.set_user_attr(key, value)
        yield study
