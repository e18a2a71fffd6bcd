"""The solver ``tabu``: the best move to another class, even uphill, but never soon back."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from dcs import AnnealingResult, CorrectionSet, Objective
from dcs.schemes.scheme import CorrectionScheme
from dcs.search.annealing import Problem
from dcs.selection.methods import Method


def tabu_search(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    corrections: CorrectionSet,
    objective: Objective,
    seed: int = 0,
    classes: Sequence[str] | None = None,
    rounds: int = 60,
    memory: int = 3,
) -> AnnealingResult:
    """Search with the arguments of `dcs.anneal`, and answer as it does."""
    started = time.perf_counter()
    problem = Problem.from_arguments(probs, labels, corrections, objective, classes)
    n_classes, n_functions = np.shape(probs)[1], len(corrections)
    choice = np.full(n_classes, corrections.identity)
    best = problem.z_of(problem.scheme(choice))
    best_choice = choice.copy()
    order = np.random.default_rng(seed).permutation(n_classes)
    recent: deque[int] = deque(maxlen=min(memory, n_classes - 1))
    evaluations = 1
    for _ in range(rounds):
        moves: list[tuple[float, int, int]] = []
        for j in (int(j) for j in order if j not in recent):
            neighbours = np.tile(choice, (n_functions, 1))
            neighbours[:, j] = np.arange(n_functions)
            values = [problem.z_of(problem.scheme(indices)) for indices in neighbours]
            values[choice[j]] = np.inf
            moves.append((min(values), j, int(np.argmin(values))))
            evaluations += n_functions
        z, j, k = min(moves)
        choice[j] = k
        recent.append(j)
        if z < best:
            best, best_choice = z, choice.copy()
    return problem.result(
        best_choice, evaluations=evaluations, seconds=time.perf_counter() - started
    )


def fit_tabu(
    probs: ArrayLike, labels: ArrayLike, *, classes: Sequence[str] | None, seed: int
) -> CorrectionScheme:
    """Search the published corrections, with the default objective."""
    return tabu_search(
        probs,
        labels,
        corrections=CorrectionSet.dcs(),
        objective=Objective(),
        seed=seed,
        classes=classes,
    ).scheme


TABU = Method(
    name="tabu",
    title="DCS by tabu search",
    fitter=fit_tabu,
)
