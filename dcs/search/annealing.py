"""Simulated annealing over correction schemes (section "Simulated Annealing for Solving DCS")."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
from filelock import FileLock
from numpy.typing import ArrayLike, NDArray

from dcs.data.checks import whole_number
from dcs.evaluation.metrics import Objective
from dcs.schemes.corrections import CorrectionSet, Weight
from dcs.search.kernels.chains import TOLERANCE, cool, descend, randomise
from dcs.search.kernels.moves import make_state
from dcs.search.kernels.table import make_room
from dcs.search.problem import DEFAULT_CORRECTIONS, DEFAULT_OBJECTIVE, AnnealingResult, Problem
from dcs.search.schedule import Schedule, Start

#: Default schedule of `anneal`.
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
) -> AnnealingResult:
    """Search for the correction scheme that minimises Z.

    Parameters
    ----------
    probs : array of float, shape [M, N]
        Class probabilities. Never written to; may be read-only.
    labels : array of int, shape [M]
        True class indices, ``0 .. N - 1``.
    corrections : CorrectionSet, optional
        Corrections to choose from, by default ``CorrectionSet.dcs(weight_scale=30)``.
    objective : Objective, optional
        Objective to minimise, by default ``Objective(beta=1.0, tau=0.2)``.
    schedule : Schedule, optional
        Annealing schedule, by default ``Schedule()``.
    seed : int, optional
        Seed of the random number generator, 0 or more. The same arguments give the same result,
        regardless of the load or the number of processors.
    classes : sequence of str, optional
        Class names for the scheme, by default ``"class_0", "class_1", ...``.

    Returns
    -------
    AnnealingResult
        Best scheme, its Z, and the cost of the search.

    Raises
    ------
    InvalidInputError
        If an argument is invalid; the message names the argument, row, class and value.

    Warns
    -----
    UserWarning
        If a class has no rows: it is left out of COBias and PMI.
    """
    started = time.perf_counter()
    problem = Problem.from_arguments(probs, labels, corrections, objective, classes)
    choice, evaluations = cooled(problem, schedule, seed=seed)
    return problem.result(choice, evaluations=evaluations, seconds=time.perf_counter() - started)


def cooled(problem: Problem, schedule: Schedule, *, seed: int) -> tuple[NDArray[np.int64], int]:
    """Return the best choice of all coolings, and the number of evaluations."""
    table = problem.table
    room, state = make_room(table), make_state(table)
    seeds = np.random.SeedSequence(whole_number(seed, "seed", least=0))
    streams = seeds.generate_state(schedule.restarts, np.uint64).astype(np.uint64)
    temperatures = schedule.temperatures()
    limits = schedule.limits(problem.n_classes)
    choice = _identity_choice(schedule.start, problem)
    best_choice, found = choice.copy(), choice.copy()
    best = np.inf
    evaluations = 0
    for r in range(schedule.restarts):
        if r > 0 and evaluations >= schedule.budget:
            break
        stream = streams[r : r + 1]
        reheating = schedule.reheat and r % 2 == 1
        if reheating:
            choice[:] = best_choice
        elif r > 0 or schedule.start == "random":
            randomise(stream, choice, len(problem.corrections))
        cooling = temperatures[temperatures.size // 2 :] if reheating else temperatures
        kind = schedule.count_worse, schedule.moves == "heat-bath"
        with _compiled_once():
            z, n_evaluated = cool(
                table, room, state, stream, cooling, limits, *kind, choice, found
            )
        evaluations += n_evaluated
        if schedule.descend:
            z, n_evaluated = descend(table, room, state, found)
            evaluations += n_evaluated
        if z < best - TOLERANCE:
            best = z
            best_choice[:] = found
    return best_choice, evaluations


def compile_search() -> None:
    """Compile searches, or load what another process has compiled.

    The first search of an installation takes some twenty seconds longer than the others.
    """
    anneal([[0.6, 0.4], [0.4, 0.6]], [0, 1], schedule=Schedule(restarts=1))


@contextmanager
def _compiled_once() -> Iterator[None]:
    """Let one process of a machine compile, while the others wait for what it saves."""
    if cool.signatures:  # type: ignore[attr-defined]
        yield
        return
    folder = Path(cool.stats.cache_path)  # type: ignore[attr-defined]
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "search.lock"):
        yield


def _identity_choice(start: Start, problem: Problem) -> NDArray[np.int64]:
    """Return the choice that changes nothing, with weights if requested and possible."""
    corrections = problem.corrections
    one = Weight(1.0)
    weighted = start == "weight-one" and one in corrections.corrections
    index = corrections.corrections.index(one) if weighted else corrections.identity
    return np.full(problem.n_classes, index)
