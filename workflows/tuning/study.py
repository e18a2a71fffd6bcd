"""The Optuna study of a cell: trials asked in a sliding window, judged here or on many CPUs.

The study in its storage is all there is of it: a run that was killed goes on from what it finds
there. It is kept by Optuna in memory, in a journal file or in a database.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import StorageInternalError
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import BaseTrial, FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from dcs.errors import DCSError, MissingDependencyError
from dcs.evaluation.metrics import ClassificationMetrics
from dcs.messages import reason
from dcs.schemes.scheme import CorrectionScheme
from dcs.search.annealing import AnnealingResult, Schedule
from dcs.seeds import derive_seed
from tracking import TrialRecord
from tracking.environment import source_digest
from workflows.config.storage import StudyStorage
from workflows.parallel import Mapper, in_process, one_thread

__all__ = [
    "SCHEDULE_PARAMETERS",
    "Direction",
    "Fitted",
    "StoredStudy",
    "StudyStorageError",
    "StudyTrial",
    "check_storage",
    "development_metrics",
    "importances",
    "run_trials",
    "suggest_schedule",
]

#: Which way an objective is better.
Direction: TypeAlias = Literal["maximize", "minimize"]

#: What is tuned of a schedule; it is recorded under these names by both ways of tuning.
SCHEDULE_PARAMETERS: Final = (
    "initial_temperature",
    "final_temperature",
    "cooling_rate",
    "lambda1",
    "lambda2",
)

#: Optuna seeds NumPy's legacy generator, which takes 32 bits.
_SAMPLER_SEEDS: Final = 2**32
#: A trial that was under way whenever its process died is not tried for ever.
_ATTEMPTS: Final = 10
#: Trials below which importances are chance, and the share of them that counts as good.
_FEWEST_TRIALS: Final = 10
_GOOD_SHARE: Final = 0.25
_CONNECT_SECONDS: Final = 10
#: What is noted of a study and of its trials: the sources that judge it; the number that a trial
#: has whichever run asks it, and its verdict.
_CODE, _NUMBER, _VERDICT = "code", "number", "verdict"

W = TypeVar("W")
P = TypeVar("P")


class StudyStorageError(DCSError):
    """The storage of the Optuna studies cannot be used."""


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
    metrics : dict of str to float
        All figures; empty before the trial is judged.
    found : object or None
        What judging it found; None where the verdict is that of an earlier run or trial.
    distributions : dict of str to BaseDistribution
        What the parameters were drawn from.
    seconds : float
        Wall time of judging it; 0 for a repetition.
    started_ms : int
        When that began, milliseconds since the epoch.
    repeats : int or None
        The earlier trial with the same parameters whose metrics these are.
    """

    number: int
    params: dict[str, Any]
    work: W
    metrics: dict[str, float]
    found: P | None = None
    distributions: dict[str, BaseDistribution] = field(default_factory=dict)
    seconds: float = 0.0
    started_ms: int = 0
    repeats: int | None = None

    @property
    def accuracy(self) -> float:
        """Accuracy on rows that the trial has not seen, a share."""
        return self.metrics["dev/accuracy"]

    @property
    def cobias(self) -> float:
        """COBias on these rows, a share."""
        return self.metrics["dev/cobias"]

    def record(self, aim: str, **changes: Any) -> TrialRecord:
        """Return what is recorded of the trial, its value being the metric of that name."""
        record = TrialRecord(
            number=self.number,
            params=self.params,
            metrics=self.metrics,
            state="COMPLETE",
            seconds=self.seconds,
            started_ms=self.started_ms,
            value=self.metrics[aim],
        )
        return replace(record, **changes)


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
    """

    scheme: CorrectionScheme
    trials: tuple[TrialRecord, ...] = ()
    best: TrialRecord | None = None
    annealing: AnnealingResult | None = None
    importances: dict[str, float] = field(default_factory=dict)


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
        Of those that every trial has and that vary, with sum 1; empty for fewer than 10 trials,
        or where all trials reached the same.
    """
    if len(trials) < _FEWEST_TRIALS or len({trial.metrics[aim] for trial in trials}) == 1:
        return {}
    study = optuna.create_study(direction="maximize")
    study.add_trials(
        optuna.create_trial(
            params=trial.params, distributions=trial.distributions, value=trial.metrics[aim]
        )
        for trial in trials
    )
    drawn = trials[0].distributions
    evaluator = PedAnovaImportanceEvaluator(target_quantile=_GOOD_SHARE)
    shares = get_param_importances(study, evaluator=evaluator)
    return {name: float(share) for name, share in shares.items() if not drawn[name].single()}


def development_metrics(estimate: ClassificationMetrics) -> dict[str, float]:
    """Return what a trial is chosen for: accuracy, COBias, and the score, their difference.

    The annealing objective cannot serve here, since trials differ in beta and tau.
    """
    return {
        "dev/score": estimate.accuracy - estimate.cobias,
        "dev/accuracy": estimate.accuracy,
        "dev/cobias": estimate.cobias,
    }


def suggest_schedule(
    trial: BaseTrial, *, coldest: float, slowest: float, longest: float
) -> Schedule:
    """Draw a schedule; the temperatures are bounded on the scale of Z.

    COBias and error rate are parts of Z between 0 and 1: the start accepts most moves, the end
    next to none.

    Parameters
    ----------
    trial : optuna.trial.BaseTrial
        Draws the values of :data:`SCHEDULE_PARAMETERS`.
    coldest : float
        Lowest final temperature.
    slowest : float
        Highest cooling rate.
    longest : float
        Largest lambda1 and lambda2.
    """
    return Schedule(
        initial_temperature=trial.suggest_float("initial_temperature", 0.01, 0.5, log=True),
        final_temperature=trial.suggest_float("final_temperature", coldest, 0.01, log=True),
        cooling_rate=trial.suggest_float("cooling_rate", 0.5, slowest),
        lambda1=trial.suggest_float("lambda1", 1.0, longest),
        lambda2=trial.suggest_float("lambda2", 1.0, longest),
    )


@dataclass(frozen=True, slots=True)
class _Judge(Generic[W, P]):
    """Runs where the mapper puts it, and takes the time there."""

    judge: Callable[[StudyTrial[W, P]], tuple[dict[str, float], P | None]]

    @one_thread()
    def __call__(self, trial: StudyTrial[W, P]) -> StudyTrial[W, P]:
        if trial.metrics or trial.repeats is not None:
            return trial
        started_ms, clock = time.time_ns() // 1_000_000, time.perf_counter()
        metrics, found = self.judge(trial)
        seconds = time.perf_counter() - clock
        return replace(trial, metrics=metrics, found=found, seconds=seconds, started_ms=started_ms)


def run_trials(
    suggest: Callable[[BaseTrial], W],
    judge: Callable[[StudyTrial[W, P]], tuple[dict[str, float], P | None]],
    *,
    aims: Mapping[str, Direction],
    trials: int,
    window: int,
    seed: int,
    first: Mapping[str, Any] | None = None,
    mapper: Mapper = in_process,
    stored: StoredStudy | None = None,
) -> Iterator[StudyTrial[W, P]]:
    """Let Optuna suggest trials, have them judged, and yield them in order.

    Trial ``n`` is suggested from the metrics of trials ``0`` to ``n - window`` and the parameters
    of those in between, by a sampler with a seed of its own. So neither the number of CPUs nor
    when an earlier run was killed changes what is suggested.

    Parameters
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
    first : mapping, optional
        Parameters of the first trial.
    mapper : Mapper
        Where trials are judged.
    stored : StoredStudy, optional
        Where the study is kept, by default in memory. Trials that an earlier run finished there
        are not judged again.

    Yields
    ------
    StudyTrial
        One for each trial. Parameters that come again are not judged again.

    Raises
    ------
    StudyStorageError
        The storage fails, or a trial was under way too often when its process died.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with _opened_study(stored, list(aims.values())) as study:
        earlier = _earlier_trials(study)
        done: list[StudyTrial[W, P]] = []
        numbers: dict[frozenset[tuple[str, Any]], int] = {}
        asked: dict[int, optuna.Trial] = {}

        def begun(
            number: int, trial: optuna.Trial | FrozenTrial, verdict: Mapping[str, Any] | None
        ) -> StudyTrial[W, P]:
            work = suggest(trial)
            same = numbers.setdefault(frozenset(trial.params.items()), number)
            begin: StudyTrial[W, P] = StudyTrial(
                number,
                dict(trial.params),
                work,
                {},
                distributions=dict(trial.distributions),
                started_ms=_ms(trial),
            )
            if same != number:
                # Its metrics may still be on their way; in its turn they are there.
                return replace(begin, repeats=same)
            return replace(begin, **verdict) if verdict else begin

        def ended(trial: StudyTrial[W, P]) -> StudyTrial[W, P]:
            if trial.repeats is not None:
                trial = replace(trial, metrics=done[trial.repeats].metrics)
            # What was found is the caller's to keep; the numbers are enough to go on.
            done.append(replace(trial, found=None))
            return trial

        def tell(before: int) -> None:
            for number in sorted(number for number in asked if number < before):
                values = [done[number].metrics[name] for name in aims]
                study.tell(asked.pop(number), values)

        def ask(begin: int) -> Iterator[StudyTrial[W, P]]:
            for number in range(begin, trials):
                tell(number - window + 1)
                study.sampler = _sampler(seed, number)
                again = earlier.get(number)
                params = again.params if again else first if number == 0 else None
                if params is not None:
                    study.enqueue_trial(dict(params))
                asked[number] = study.ask()
                verdict = again.user_attrs.get(_VERDICT) if again else None
                trial = begun(number, asked[number], verdict)
                # Only now, when it has all its parameters, is it one that can be put in line.
                asked[number].set_user_attr(_NUMBER, number)
                yield trial

        for number in range(trials):
            whole = earlier.get(number)
            if whole is None or whole.state is not TrialState.COMPLETE:
                break
            yield ended(begun(number, whole, whole.user_attrs[_VERDICT]))
        for trial in mapper(_Judge(judge), ask(len(done)), ahead=window):
            trial = ended(trial)
            verdict = {"metrics": trial.metrics, "seconds": trial.seconds}
            asked[trial.number].set_user_attr(_VERDICT, verdict)
            yield trial
        tell(trials)


def _earlier_trials(study: optuna.Study) -> dict[int, FrozenTrial]:
    """Return what earlier runs left, by number; trials under way when they were killed fail."""
    for _ in study.get_trials(deepcopy=False, states=[TrialState.WAITING]):
        study.tell(study.ask(), state=TrialState.FAIL)
    for trial in study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
        study.tell(trial.number, state=TrialState.FAIL)
    left: dict[int, FrozenTrial] = {}
    attempts: Counter[int] = Counter()
    for trial in study.get_trials(deepcopy=False):
        if _NUMBER in trial.user_attrs:
            number = trial.user_attrs[_NUMBER]
            left[number] = trial
            attempts[number] += _VERDICT not in trial.user_attrs
    for number, count in attempts.items():
        if count >= _ATTEMPTS and left[number].state is TrialState.FAIL:
            raise StudyStorageError(
                f"trial {number} was under way {count} times when its process died (parameters "
                f"{left[number].params}); to try it again, delete the study {study.study_name} "
                "from optuna_storage"
            )
    return left


def _sampler(seed: int, number: int) -> optuna.samplers.BaseSampler:
    return optuna.samplers.TPESampler(
        # Trials that are under way count as bad ones, so that the next is tried elsewhere.
        constant_liar=True,
        seed=derive_seed(seed, "sampler", number) % _SAMPLER_SEEDS,
    )


def _ms(trial: optuna.Trial | FrozenTrial) -> int:
    begin = trial.datetime_start
    return 0 if begin is None else int(begin.timestamp() * 1000)


@contextmanager
def _opened_study(
    stored: StoredStudy | None, directions: Sequence[Direction]
) -> Iterator[optuna.Study]:
    """Give the study of a cell: a new one, or that of an earlier run of the same code."""
    if stored is None:
        yield optuna.create_study(directions=directions)
        return
    with _opened_storage(stored.storage) as storage:
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


def check_storage(storage: StudyStorage) -> None:
    """Reach a storage and make its tables, before anything is computed.

    Raises
    ------
    StudyStorageError
        It cannot be reached, or is not to be written to.
    MissingDependencyError
        The database's driver is not installed.
    """
    with _opened_storage(storage, first=True) as opened:
        optuna.get_all_study_names(opened)


@contextmanager
def _opened_storage(storage: StudyStorage, *, first: bool = False) -> Iterator[BaseStorage]:
    try:
        opened = _journal(storage.address) if storage.url is None else _database(storage, first)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"optuna_storage: {error.name} is not installed; run: pip install "
            "'dcs-debias[cluster]'"
        ) from None
    except Exception as error:
        # Whatever SQLAlchemy, the driver or the file system raises.
        raise _failure(storage, error) from None
    try:
        yield opened
    except (StorageInternalError, SQLAlchemyError, OSError) as error:
        raise _failure(storage, error) from None
    finally:
        if isinstance(opened, RDBStorage):
            opened.remove_session()
            opened.engine.dispose()


def _database(storage: StudyStorage, first: bool) -> BaseStorage:
    return RDBStorage(
        storage.address,
        # One process, one writer: more than a connection is of no use.
        engine_kwargs={
            "pool_pre_ping": True,
            "pool_size": 1,
            "connect_args": {"connect_timeout": _CONNECT_SECONDS},
        },
        # Workers that all make the tables at once get into each other's way.
        skip_table_creation=not first,
        skip_compatibility_check=not first,
    )


def _journal(address: str) -> BaseStorage:
    path = Path(address).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    return JournalStorage(JournalFileBackend(str(path)))


def _failure(storage: StudyStorage, error: BaseException) -> StudyStorageError:
    """Say what is wrong without the cause, which may quote the password."""
    while error.__cause__ is not None:
        error = error.__cause__  # The innermost one names the host and what it said.
    return StudyStorageError(
        f"optuna_storage: {storage.label} cannot be used: {storage.hide(reason(error))}; "
        "see that it is reachable from every node, or leave optuna_storage out"
    )
