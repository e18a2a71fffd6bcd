"""Exact optimum by exhaustive search, for few classes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from benchmarks.evaluator import add_class, clear
from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import Objective
from dcs.schemes.corrections import CorrectionSet
from dcs.search.annealing import DEFAULT_CORRECTIONS, DEFAULT_OBJECTIVE, AnnealingResult, Problem
from dcs.search.kernels import TOLERANCE, State, Table, compiled, copy, eval_class, make_state

#: Maximum number of solutions: more would take most of an hour for 10,000 rows.
MOST_SOLUTIONS: Final = 1_000_000_000


def exact_search(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    corrections: CorrectionSet = DEFAULT_CORRECTIONS,
    objective: Objective = DEFAULT_OBJECTIVE,
    classes: Sequence[str] | None = None,
    progress: Callable[[float], None] | None = None,
) -> AnnealingResult:
    """Evaluate all schemes and return the best, which is the global optimum.

    The D^N solutions are evaluated D at a time; with 49 corrections this is practical for up to
    four classes.

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
    classes : sequence of str, optional
        Class names for the scheme, by default ``"class_0", "class_1", ...``.
    progress : callable, optional
        Called repeatedly with the fraction of the work completed, 0..1.

    Returns
    -------
    AnnealingResult
        As returned by `anneal`, with an empty trace. If there are several optima, the first in the
        lexicographic order of the indices is returned.

    Raises
    ------
    InvalidInputError
        If an argument is invalid, or there are more than `MOST_SOLUTIONS` solutions.

    Warns
    -----
    UserWarning
        If a class has no rows: it is left out of COBias and PMI.
    """
    started = time.perf_counter()
    problem = Problem.from_arguments(probs, labels, corrections, objective, classes)
    n_classes, n_functions = len(problem.classes), len(problem.corrections)
    n_solutions = n_functions**n_classes
    if n_solutions > MOST_SOLUTIONS:
        raise InvalidInputError(
            f"{n_functions} corrections for {n_classes} classes make {n_functions}^{n_classes} "
            f"solutions; exhaustive search allows {MOST_SOLUTIONS:.0e}: use anneal instead"
        )
    table = problem.table
    state = make_state(table)
    best_choice = np.full(n_classes, problem.corrections.identity)
    best = np.inf
    for first in range(n_functions):
        best = _exhaust(table, state, first, best_choice, best)
        if progress is not None:
            progress((first + 1) / n_functions)
    return problem.result(
        best_choice, evaluations=n_solutions, seconds=time.perf_counter() - started
    )


@compiled
def _exhaust(
    table: Table,
    state: State,
    first: int,
    best_choice: NDArray[np.int64],
    best: float,
) -> float:
    """Evaluate all solutions in which class 0 has the correction `first`.

    Updates `best_choice` in place if Z is below `best`, and returns the best Z.
    """
    n_classes, n_functions = best_choice.size, table.functions.shape[0]
    last = n_classes - 1
    # The maxima over the classes before each one: only the last classes change.
    values = np.empty((n_classes, table.fallback.size))
    holders = np.empty((n_classes, table.fallback.size), np.int16)
    # To the kernel, the last class has the best value, and the others the second best.
    state.first_class[:] = last
    clear(table, values, holders, 0)
    choice = np.zeros(n_classes, np.int64)
    choice[0] = first
    changed = 0
    while True:
        for j in range(changed, last):
            add_class(table, j, choice[j], values, holders, j, j + 1)
        copy(values[last], state.second)
        copy(holders[last], state.second_class)
        eval_class(table, state, last)
        for k in range(n_functions):
            if state.values[k] < best - TOLERANCE:
                best = state.values[k]
                copy(choice, best_choice)
                best_choice[last] = k
        changed = last - 1
        while changed > 0 and choice[changed] == n_functions - 1:
            choice[changed] = 0
            changed -= 1
        if changed <= 0:
            return best
        choice[changed] += 1
