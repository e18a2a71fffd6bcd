"""Simulated annealing over correction schemes (section "Simulated Annealing for Solving DCS")."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.checks import finite_number, whole_number
from dcs.errors import InvalidInputError
from dcs.evaluation.objective import Objective
from dcs.schemes.corrections import CorrectionSet, Weight
from dcs.search.kernels.chains import (
    TOLERANCE,
    descend,
    heat_bath_chain,
    metropolis_chain,
    randomise,
)
from dcs.search.kernels.moves import make_state
from dcs.search.kernels.table import make_room
from dcs.search.problem import (
    DEFAULT_CORRECTIONS,
    DEFAULT_OBJECTIVE,
    AnnealingResult,
    Problem,
    TracePoint,
)

__all__ = ["AnnealingResult", "Moves", "Schedule", "Start", "TracePoint", "anneal", "cooled"]

Moves = Literal["metropolis", "heat-bath"]
Start = Literal["dont-change", "weight-one", "random"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a search cools.

    Temperatures are on the scale of the normalised objective Z, whatever the number of rows.

    Parameters
    ----------
    initial_temperature, final_temperature : float
        Where cooling starts and where it ends, ``0 < final <= initial``.
    cooling_rate : float
        Factor from one temperature to the next, between 0 and 1, both excluded.
    lambda1 : float
        A temperature ends when this many moves per class have been accepted, greater than 0.
    lambda2 : float
        A temperature ends when this many moves per class have been generated, greater than 0.
    per_class : bool
        Whether lambda1 and lambda2 are multiples of the number of classes, as in the paper, or
        numbers of moves.
    count_worse : bool
        Whether moves to a worse solution count as accepted where they are taken.
    start : {"dont-change", "weight-one", "random"}
        Where the first cooling starts: from unchanged probabilities, written as Don't Change or as
        the weight 1 where the corrections have it, or from a random solution.
    restarts : int
        The most coolings, 1 or more; the best solution of all is kept. All but the first start
        from random solutions.
    moves : {"heat-bath", "metropolis"}
        How a solution is perturbed. ``"metropolis"`` is the paper's: one class takes another
        correction at random, and the Metropolis criterion accepts it or not. ``"heat-bath"``
        judges all corrections of one class and draws one from their Boltzmann distribution. It
        counts as accepted when it changes Z, and cooling ends early where none does.
    descend : bool
        Whether every cooling ends with a descent: class by class the best correction is taken
        until none improves Z.
    reheat : bool
        Whether every second cooling starts from the best solution so far, at the middle of the
        temperatures, instead of from a random solution at the first.
    budget : int
        No cooling starts once this many candidate solutions have been judged, 1 or more; the
        first always runs. The default takes about 0.9 s for 10,000 rows.

    Raises
    ------
    InvalidInputError
        When a value is not in its range.
    """

    initial_temperature: float = 0.05
    final_temperature: float = 0.00005
    cooling_rate: float = 0.7
    lambda1: float = 3.0
    lambda2: float = 6.0
    per_class: bool = True
    count_worse: bool = True
    start: Start = "dont-change"
    restarts: int = 1000
    moves: Moves = "heat-bath"
    descend: bool = True
    reheat: bool = True
    budget: int = 850_000

    def __post_init__(self) -> None:
        for field in fields(self):
            value, name = getattr(self, field.name), f"schedule {field.name}"
            if field.name in ("restarts", "budget"):
                whole_number(value, name, least=1)
            elif isinstance(field.default, float):
                object.__setattr__(self, field.name, finite_number(value, name, positive=True))
        if self.final_temperature > self.initial_temperature:
            raise InvalidInputError(
                f"schedule final_temperature {self.final_temperature} is above "
                f"initial_temperature {self.initial_temperature}; a search only cools"
            )
        if self.cooling_rate >= 1.0:
            raise InvalidInputError(
                f"schedule cooling_rate {self.cooling_rate}: must be less than 1, or a search "
                "never ends"
            )
        for name, options in (("moves", get_args(Moves)), ("start", get_args(Start))):
            if getattr(self, name) not in options:
                raise InvalidInputError(
                    f"schedule {name} {getattr(self, name)!r}: allowed are {', '.join(options)}"
                )

    @classmethod
    def published(cls, n_rows: int, accepted: int = 3, generated: int = 6) -> Schedule:
        """Return the schedule of the published code for `n_rows` rows.

        The code minimises M * Z, from the temperature 200,000 down to 200 at the rate 0.95: these
        are 135 temperatures of at most `generated` moves. A temperature also ends after
        `accepted` moves, whatever the number of classes, of which only improving and equal ones
        count. The start is the weight 1 for every class. The paper itself gives the initial
        temperature and the rate, and starts from Don't Change.

        Parameters
        ----------
        n_rows : int
            Number of optimization rows M, 1 or more.
        accepted, generated : int, optional
            Moves that end a temperature, by default those the code is configured with; for large
            runs its instructions suggest 150 and 300.

        Returns
        -------
        Schedule
            The schedule.

        Raises
        ------
        InvalidInputError
            When there are no rows.
        """
        if n_rows < 1:
            raise InvalidInputError(f"n_rows {n_rows}: at least one row is needed")
        return cls(
            initial_temperature=200_000 / n_rows,
            final_temperature=200 / n_rows,
            cooling_rate=0.95,
            lambda1=accepted,
            lambda2=generated,
            per_class=False,
            count_worse=False,
            start="weight-one",
            restarts=1,
            moves="metropolis",
            descend=False,
            reheat=False,
        )

    def temperatures(self) -> NDArray[np.float64]:
        """Return the temperatures of one cooling, falling from initial to final.

        Returns
        -------
        array of float64
            On the scale of Z.
        """
        span = math.log(self.final_temperature / self.initial_temperature)
        steps = math.floor(span / math.log(self.cooling_rate) + 1e-9) + 1
        rates: NDArray[np.float64] = self.cooling_rate ** np.arange(steps, dtype=np.float64)
        return self.initial_temperature * rates

    def limits(self, n_classes: int) -> NDArray[np.int64]:
        """Return how many accepted and how many generated moves end a temperature.

        Parameters
        ----------
        n_classes : int
            Number of classes N.

        Returns
        -------
        array of int64, shape [2]
            Accepted and generated moves, at least 1 each.
        """
        factor = n_classes if self.per_class else 1
        moves = [round(self.lambda1 * factor), round(self.lambda2 * factor)]
        return np.maximum(np.array(moves, dtype=np.int64), 1)


#: The schedule of `anneal`.
DEFAULT_SCHEDULE: Final = Schedule()


def anneal(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    corrections: CorrectionSet = DEFAULT_CORRECTIONS,
    objective: Objective = DEFAULT_OBJECTIVE,
    schedule: Schedule = DEFAULT_SCHEDULE,
    seed: int = 0,
    classes: Sequence[str] | None = None,
    stop: Callable[[AnnealingResult], bool] | None = None,
) -> AnnealingResult:
    """Search the correction scheme that minimises Z.

    Parameters
    ----------
    probs : array of float, shape [M, N]
        Class probabilities. Never written to; may be read-only.
    labels : array of int, shape [M]
        True class indices, ``0 .. N - 1``.
    corrections : CorrectionSet, optional
        What to choose from, by default ``CorrectionSet.dcs(weight_scale=30)``.
    objective : Objective, optional
        What to minimise, by default ``Objective(beta=1.0, tau=0.2)``.
    schedule : Schedule, optional
        How to cool, by default ``Schedule()``.
    seed : int, optional
        Seed of all random choices, 0 or more. The same arguments give the same result, whatever
        the machine's load or number of processors.
    classes : sequence of str, optional
        Class names for the scheme, by default ``"class_0", "class_1", ...``.
    stop : callable, optional
        Called after every cooling with the best that was found so far; true ends the search.

    Returns
    -------
    AnnealingResult
        Best scheme, its Z, and how the search went.

    Raises
    ------
    InvalidInputError
        When an argument is not allowed; the message names argument, row, class and value.

    Warns
    -----
    UserWarning
        When a class has no rows: it is left out of COBias and PMI.
    """
    started = time.perf_counter()
    if not isinstance(schedule, Schedule):
        raise InvalidInputError(f"schedule is {schedule!r}; a Schedule is needed")
    problem = Problem.from_arguments(probs, labels, corrections, objective, classes)

    def so_far() -> AnnealingResult:
        return problem.result(
            choice,
            evaluations=evaluations,
            seconds=time.perf_counter() - started,
            trace=(*trace[:-1], replace(trace[-1], best=best)),
        )

    for choice, best, evaluations, trace in cooled(problem, schedule, seed=seed):  # noqa: B007
        if stop is not None and stop(so_far()):
            break
    return so_far()


def cooled(
    problem: Problem, schedule: Schedule, *, seed: int, start: NDArray[np.int64] | None = None
) -> Iterator[tuple[NDArray[np.int64], float, int, list[TracePoint]]]:
    """Anneal, and yield after every cooling the best choice, its Z, how many were judged, a trace.

    With `start`, the solution of a problem much like this one, there is one cooling from it, a
    reheating.
    """
    table = problem.table
    room, state = make_room(table), make_state(table)
    seeds = np.random.SeedSequence(whole_number(seed, "seed", least=0))
    streams = seeds.generate_state(schedule.restarts, np.uint64).astype(np.uint64)
    temperatures = schedule.temperatures()
    limits = schedule.limits(problem.n_classes)
    choice = _unchanged(schedule.start, problem) if start is None else start.copy()
    best_choice, found = choice.copy(), choice.copy()
    best = math.inf
    evaluations = 0
    trace: list[TracePoint] = []
    for r in range(schedule.restarts if start is None else 1):
        if r > 0 and evaluations >= schedule.budget:
            break
        stream = streams[r : r + 1]
        reheating = start is not None or (schedule.reheat and r % 2 == 1)
        if reheating:
            choice[:] = best_choice
        elif r > 0 or schedule.start == "random":
            randomise(stream, choice, len(problem.corrections))
        cooling = temperatures[temperatures.size // 2 :] if reheating else temperatures
        curve = np.zeros((cooling.size, 3))
        chain = (stream, cooling, limits, schedule.count_worse, choice, found, curve)
        if schedule.moves == "metropolis":
            z, judged, points = metropolis_chain(table, room, state, *chain)
        else:
            z, judged, points = heat_bath_chain(table, room, *chain)
        evaluations += judged
        trace.extend(
            TracePoint(float(t), float(current), min(best, float(low)), float(acceptance))
            for t, (current, low, acceptance) in zip(cooling[:points], curve[:points], strict=True)
        )
        if schedule.descend:
            z, judged = descend(table, room, found)
            evaluations += judged
        if z < best - TOLERANCE:
            best = z
            best_choice[:] = found
        yield best_choice.copy(), best, evaluations, trace


def _unchanged(start: Start, problem: Problem) -> NDArray[np.int64]:
    """Return a choice that changes nothing, with weights if asked for and possible."""
    corrections = problem.corrections
    one = Weight(1.0)
    weighted = start == "weight-one" and one in corrections.corrections
    index = corrections.corrections.index(one) if weighted else corrections.identity
    return np.full(problem.n_classes, index)
