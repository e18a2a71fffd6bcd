"""The trials of one Optuna study, asked in a sliding window and judged here or on many CPUs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

import optuna
from optuna.distributions import BaseDistribution

from dcs.seeds import derive_seed
from workflows.parallel import Known, Mapper, in_process, one_thread

__all__ = ["Asked", "Direction", "Ledger", "Outcome", "Verdict", "run_trials"]

#: Optuna seeds NumPy's legacy generator, which takes 32 bits.
_SAMPLER_SEEDS = 2**32

#: Which way an objective is better.
Direction: TypeAlias = Literal["maximize", "minimize"]

W = TypeVar("W")
P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Asked(Generic[W]):
    """One trial to be judged.

    Attributes
    ----------
    number : int
        Counts the trials of the study from 0.
    params : dict
        What Optuna suggested.
    distributions : dict
        What it was drawn from, by name.
    work : object
        What `suggest` made of it.
    """

    number: int
    params: dict[str, Any]
    distributions: dict[str, BaseDistribution]
    work: W


@dataclass(frozen=True, slots=True)
class Verdict(Generic[P]):
    """How one trial did.

    Attributes
    ----------
    value : float
        What the study maximises, if it has no other aims.
    metrics : dict of str to float
        All figures of the trial.
    payload : object or None
        What was found; None where the verdict is that of an earlier run or trial.
    """

    value: float
    metrics: dict[str, float]
    payload: P | None = None


@dataclass(frozen=True, slots=True)
class Outcome(Generic[W, P]):
    """A trial and its verdict.

    Attributes
    ----------
    asked : Asked
        The trial.
    verdict : Verdict
        Its verdict.
    seconds : float
        Wall time of judging it; 0 for a repetition.
    started_ms : int
        When that began, milliseconds since the epoch.
    repeats : int or None
        The earlier trial with the same parameters whose verdict this is.
    """

    asked: Asked[W]
    verdict: Verdict[P]
    seconds: float
    started_ms: int
    repeats: int | None = None


class Ledger(Protocol):
    """Where the trials of a study are written down as they begin and end."""

    def earlier(self, number: int, params: Mapping[str, Any]) -> tuple[Verdict[Any], float] | None:
        """Return verdict and seconds of a trial that an earlier run finished."""

    def begin(self, asked: Asked[Any]) -> None:
        """Take note of a trial that is handed out."""

    def end(self, outcome: Outcome[Any, Any]) -> None:
        """Take note of a trial that was judged."""


@dataclass(frozen=True, slots=True)
class _Judge(Generic[W, P]):
    """Runs where the mapper puts it, and takes the time there."""

    judge: Callable[[Asked[W]], Verdict[P]]

    @one_thread()
    def __call__(self, asked: Asked[W]) -> Outcome[W, P]:
        started_ms, clock = time.time_ns() // 1_000_000, time.perf_counter()
        verdict = self.judge(asked)
        return Outcome(asked, verdict, time.perf_counter() - clock, started_ms)


def run_trials(
    suggest: Callable[[optuna.Trial], W],
    judge: Callable[[Asked[W]], Verdict[P]],
    *,
    trials: int,
    window: int,
    seed: int,
    aims: Mapping[str, Direction] | None = None,
    first: Iterable[dict[str, Any]] = (),
    mapper: Mapper = in_process,
    ledger: Ledger | None = None,
) -> Iterator[Outcome[W, P]]:
    """Let Optuna suggest trials, have them judged, and yield them in order.

    Trial ``n`` is suggested from the verdicts of trials ``0`` to ``n - window`` and the
    parameters of those in between, by a sampler with a seed of its own. So neither the number of
    CPUs nor what an earlier run has finished changes what is suggested.

    Parameters
    ----------
    suggest : callable
        Draws the parameters of a trial and returns what `judge` needs of them.
    judge : callable
        Judges one trial; picklable.
    trials : int
        How many there are.
    window : int
        Trials that may be judged at once. Decides what is suggested, so it belongs to the study.
    seed : int
        The samplers derive theirs from it.
    aims : mapping of str to {"maximize", "minimize"}, optional
        Metrics of a verdict that the study has for objectives, two or more; by default it
        maximises the one value.
    first : iterable of dict
        Parameters of the first trials.
    mapper : Mapper
        Where trials are judged.
    ledger : Ledger, optional
        Where they are written down; what an earlier run finished there is not judged again.

    Yields
    ------
    Outcome
        One for each trial. Parameters that come again are not judged again.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # In memory even with a ledger: suggestions must not depend on what others write there.
    directions: list[Direction] = list(aims.values()) if aims else ["maximize"]
    study = optuna.create_study(directions=directions, sampler=_sampler(seed, 0))
    for params in first:
        study.enqueue_trial(params)
    asked_trials: list[optuna.Trial] = []
    outcomes: list[Outcome[W, P]] = []
    numbers: dict[str, int] = {}

    def ask() -> Iterator[Asked[W] | Known[Outcome[W, P]]]:
        for number in range(trials):
            if number >= window:
                told = number - window
                study.tell(asked_trials[told], _values(outcomes[told].verdict, aims))
            study.sampler = _sampler(seed, number)
            trial = study.ask()
            asked_trials.append(trial)
            work = suggest(trial)
            asked = Asked(number, dict(trial.params), dict(trial.distributions), work)
            text = json.dumps(asked.params, sort_keys=True)
            if text in numbers:
                # Its verdict may still be on its way; in its turn it is there.
                yield Known(Outcome(asked, _UNKNOWN, 0.0, _now_ms(), repeats=numbers[text]))
                continue
            numbers[text] = number
            earlier = ledger.earlier(number, asked.params) if ledger else None
            if earlier is not None:
                verdict, seconds = earlier
                yield Known(Outcome(asked, verdict, seconds, _now_ms()))
                continue
            if ledger:
                ledger.begin(asked)
            yield asked

    for outcome in mapper(_Judge(judge), ask(), ahead=window):
        if outcome.repeats is not None:
            outcome = replace(outcome, verdict=outcomes[outcome.repeats].verdict)
        # What was found is the caller's to keep; the numbers are enough to go on.
        outcomes.append(replace(outcome, verdict=replace(outcome.verdict, payload=None)))
        if ledger:
            ledger.end(outcome)
        yield outcome


def _values(verdict: Verdict[Any], aims: Mapping[str, Direction] | None) -> list[float]:
    return [verdict.metrics[name] for name in aims] if aims else [verdict.value]


_UNKNOWN: Verdict[Any] = Verdict(value=float("nan"), metrics={})


def _sampler(seed: int, number: int) -> optuna.samplers.BaseSampler:
    return optuna.samplers.TPESampler(
        # Trials that are under way count as bad ones, so that the next is tried elsewhere.
        constant_liar=True,
        seed=derive_seed(seed, "sampler", number) % _SAMPLER_SEEDS,
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
