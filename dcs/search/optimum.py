"""The optimum: proven by exhaustive search where there are few classes, else bounded from below.

The lower bound of Z over all schemes takes three relaxations, none of which can exceed Z, and
which turn the search into one over pairs of classes:

- COBias is a maximum of linear functions of the class accuracies, one for each way to weigh the
  pairs; any of them bounds it from below, and a line the PMI term. What is left is the number of
  rows lost of each class, at a cost for each class.
- A row is lost to the rival that takes it. Its cost is divided among its rivals, and each part
  is due when *that* rival takes it: no row costs more than it did, and each part depends on the
  corrections of two classes alone.
- The least sum over pairs is bounded by its dual (max-sum diffusion: Werner 2007, "A linear
  programming approach to max-sum problem").

How pairs are weighed and rows divided is improved by subgradient steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.checks import whole_number
from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import Objective
from dcs.schemes.corrections import CorrectionSet
from dcs.search.kernels.chains import exhaust
from dcs.search.kernels.table import Table, compiled, corrected, make_room
from dcs.search.problem import DEFAULT_CORRECTIONS, DEFAULT_OBJECTIVE, AnnealingResult, Problem

#: More solutions than this would take the better part of an hour at 10,000 rows.
MOST_SOLUTIONS: Final = 1_000_000_000

#: Numbers of lost rows that are held at a time, one for each pair of corrections of two classes.
_MOST_PAIRS: Final = 50_000_000
#: How far one step goes: weights of pairs of classes lie in -1..1, those of rivals are multiplied.
_PAIR_STEP: Final = 0.2
_RIVAL_STEP: Final = 1.0
#: Steps shrink with the square root of their number, beginning after so many.
_PATIENCE: Final = 5
_SWEEPS: Final = 8
#: A smaller share of a row is not counted: what is left out makes a lower bound no less true.
_LEAST: Final = 1e-3
#: How much more a rival that takes the row now is blamed at first.
_BLAME: Final = 2.0


def exact_search(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    corrections: CorrectionSet = DEFAULT_CORRECTIONS,
    objective: Objective = DEFAULT_OBJECTIVE,
    classes: Sequence[str] | None = None,
    progress: Callable[[float], None] | None = None,
) -> AnnealingResult:
    """Judge every scheme and return the best: the proven optimum.

    The D^N solutions are judged D at a time; with 49 corrections that is practical up to four
    classes.

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
    classes : sequence of str, optional
        Class names for the scheme, by default ``"class_0", "class_1", ...``.
    progress : callable, optional
        Called with the share of the work done so far, 0..1, now and then.

    Returns
    -------
    AnnealingResult
        As from `anneal`, with an empty trace. Of several optima the first in the order of the
        indices is returned.

    Raises
    ------
    InvalidInputError
        When an argument is not allowed, or when there are more than `MOST_SOLUTIONS` solutions.

    Warns
    -----
    UserWarning
        When a class has no rows: it is left out of COBias and PMI.
    """
    started = time.perf_counter()
    problem = Problem.from_arguments(probs, labels, corrections, objective, classes)
    n_classes, n_functions = problem.n_classes, len(problem.corrections)
    n_solutions = n_functions**n_classes
    if n_solutions > MOST_SOLUTIONS:
        raise InvalidInputError(
            f"{n_functions} corrections for {n_classes} classes make {n_functions}^{n_classes} "
            f"solutions; exhaustive search stops at {MOST_SOLUTIONS:.0e}: use anneal instead"
        )
    table = problem.table
    room = make_room(table)
    best_choice = np.full(n_classes, problem.corrections.identity)
    best = np.inf
    for first in range(n_functions):
        best = exhaust(table, room, first, best_choice, best)
        if progress is not None:
            progress((first + 1) / n_functions)
    return problem.result(
        best_choice, evaluations=n_solutions, seconds=time.perf_counter() - started
    )


@dataclass(frozen=True, slots=True)
class LowerBound:
    """What no scheme can be better than.

    Attributes
    ----------
    z : float
        Z of the scheme that was given.
    bound : float
        No scheme has a lower Z.
    gap : float
        How far the scheme may at most be above the optimum: ``z - bound``.
    steps : int
        Subgradient steps made.
    seconds : float
        Wall-clock time.
    """

    z: float
    bound: float
    gap: float
    steps: int
    seconds: float


def lower_bound(
    probs: ArrayLike,
    labels: ArrayLike,
    indices: ArrayLike,
    *,
    corrections: CorrectionSet = DEFAULT_CORRECTIONS,
    objective: Objective = DEFAULT_OBJECTIVE,
    classes: Sequence[str] | None = None,
    steps: int = 100,
) -> LowerBound:
    """Bound Z from below over all schemes, and with it the gap of a scheme to the optimum.

    Parameters
    ----------
    probs : array of float, shape [M, N]
        Class probabilities.
    labels : array of int, shape [M]
        True class indices, ``0 .. N - 1``.
    indices : array of int, shape [N]
        A good scheme, as ``AnnealingResult.indices``: the bound is made around it, and is true
        whatever it is.
    corrections : CorrectionSet, optional
        What to choose from, by default ``CorrectionSet.dcs(weight_scale=30)``.
    objective : Objective, optional
        What is minimised, by default ``Objective(beta=1.0, tau=0.2)``.
    classes : sequence of str, optional
        Class names, for messages.
    steps : int, optional
        Subgradient steps. One takes time in proportion to M N D^2 and N^2 D^2.

    Returns
    -------
    LowerBound
        The best bound of all steps.

    Raises
    ------
    InvalidInputError
        When an argument is not allowed, or pairs of classes and corrections are too many.

    Warns
    -----
    UserWarning
        When a class has no rows: it is left out of COBias and PMI.
    """
    started = time.perf_counter()
    whole_number(steps, "steps", least=1)
    problem = Problem.from_arguments(probs, labels, corrections, objective, classes)
    n_classes, n_functions = problem.n_classes, len(corrections)
    if (n_classes * n_functions) ** 2 > _MOST_PAIRS:
        raise InvalidInputError(
            f"{n_classes} classes and {n_functions} corrections: a bound holds at most "
            f"{_MOST_PAIRS} pairs, {int(_MOST_PAIRS**0.5)} classes times corrections"
        )
    choice = problem.checked(indices)
    z = problem.z_of(problem.scheme(choice))
    table = problem.table
    constant, costs = _linear(table, objective, z)
    weights = np.ones((table.labels.size, n_classes))
    weights[np.arange(weights.shape[0]), problem.labels] = 0.0
    share_by_rivals(table, choice, _BLAME, weights)
    pairs = _PairWeights(table, objective, costs)
    lost = np.zeros((n_classes, n_classes, n_functions, n_functions))
    best = -np.inf
    made = 0
    while made < steps and best < z - 1e-12:
        count_lost(table, weights, lost)
        due = pairs.costs()[:, None, None, None] * lost
        due += due.transpose(1, 0, 3, 2)
        dual = np.zeros((n_classes, n_classes, n_functions))
        best = max(best, constant + tighten(due, dual, _SWEEPS))
        cheapest = _cheapest(due, dual)
        shrink = 1.0 / np.sqrt(1.0 + made / _PATIENCE)
        share_by_rivals(table, cheapest, _RIVAL_STEP * shrink, weights)
        of_class, of_rival = np.indices((n_classes, n_classes))
        rows = lost[of_class, of_rival, cheapest[of_class], cheapest[of_rival]].sum(axis=1)
        pairs.step(rows, _PAIR_STEP * shrink)
        made += 1
    best = min(best, z)
    return LowerBound(z, best, z - best, made, time.perf_counter() - started)


def _linear(table: Table, objective: Objective, z: float) -> tuple[float, NDArray[np.float64]]:
    """Return a, c [N]: error and PMI are at least a + sum of c_j times the rows lost of j.

    This holds for all schemes whose Z is at most `z`.
    """
    n_rows, k, tau = table.labels.size, objective.pseudo_count, objective.tau
    cost = objective.error_weight / n_rows
    if objective.pmi == "normalised":
        return -tau, np.full(table.class_rows.size, cost)  # Its mean over classes is at most 1.
    # What PMI is if no row is lost of any class: a class is predicted as often as it is right.
    rows = table.class_rows[table.present]
    constant = float(table.factors[3]) - objective.error_weight
    if rows.size == table.class_rows.size:
        # Otherwise rows may be lost to classes that PMI leaves out. The sum of log(q_j + k) is
        # concave, so that lost rows raise it least where one class has them all, and the more of
        # them there are the less each: no more than a scheme as good as `z` may lose.
        most = float(n_rows)
        if objective.error_weight > 0.0:
            most = min(most, max(1.0, (z - constant) / cost))
        cost += tau * np.log1p(most / (rows.max() + k)) / most
    return constant, np.full(table.class_rows.size, cost)


class _PairWeights:
    """How much the difference of every two class accuracies counts, and which way: in -1..1."""

    def __init__(self, table: Table, objective: Objective, base: NDArray[np.float64]) -> None:
        self._base = base
        self._rows = np.maximum(table.class_rows, 1.0)
        self._i, self._j = (
            table.present[each] for each in np.triu_indices(table.present.size, k=1)
        )
        self._scale = objective.beta / max(1, self._i.size)
        self._weights = np.zeros(self._i.size)

    def costs(self) -> NDArray[np.float64]:
        """Return the cost of a row lost, by class: none is negative."""
        relief = np.zeros(self._base.size)
        np.add.at(relief, self._i, self._weights)
        np.add.at(relief, self._j, -self._weights)
        relief *= self._scale / self._rows
        paid = relief > 0.0
        share = min(1.0, float((self._base[paid] / relief[paid]).min(initial=1.0)))
        self._weights *= share
        return np.maximum(self._base - share * relief, 0.0)

    def step(self, lost: NDArray[np.float64], size: float) -> None:
        """Weigh against the solution that has been found cheapest."""
        rates = lost / self._rows
        slope = rates[self._j] - rates[self._i]
        steepest = np.abs(slope).max(initial=0.0)
        if steepest > 0.0:
            self._weights = np.clip(self._weights + size / steepest * slope, -1.0, 1.0)


def _cheapest(due: NDArray[np.float64], dual: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return a choice of low cost: what the dual favours, improved class by class."""
    choice: NDArray[np.int64] = dual.sum(axis=1).argmin(axis=1)
    others = np.arange(choice.size)
    for _ in range(3):
        for i in range(choice.size):
            total = due[i, others, :, choice].sum(axis=0) - due[i, i, :, choice[i]]
            choice[i] = total.argmin()
    return choice


@compiled
def _wins(v: float, rival: float, j: int, other: int) -> bool:
    """Whether the value `v` of class j takes a row from another class, as `predict` decides."""
    return v > rival or (v == rival and v > 0.0 and j < other)


@compiled
def count_lost(table: Table, shares: NDArray[np.float64], lost: NDArray[np.float64]) -> None:
    """Fill `lost` [N, N, D, D]: rows of class i lost to class j, by the corrections of both.

    Row m counts `shares[m, j]` for rival j. Where its own class is corrected to 0 it is lost,
    unless its uncorrected prediction is right.
    """
    n_functions = table.functions.shape[0]
    lost[:] = 0.0
    own, others = np.zeros(n_functions), np.zeros(n_functions)
    for m in range(table.labels.size):
        i = int(table.labels[m])
        for k in range(n_functions):
            left, rise, right, fall = table.functions[k]
            own[k] = max(0.0, corrected(table.columns[i, m], left, rise, right, fall))
        for j in range(shares.shape[1]):
            share = shares[m, j]
            if j == i or share < _LEAST:
                continue
            for k in range(n_functions):
                left, rise, right, fall = table.functions[k]
                others[k] = max(0.0, corrected(table.columns[j, m], left, rise, right, fall))
            for a in range(n_functions):
                line = lost[i, j, a]
                gone = own[a] == 0.0 and table.fallback[m] != i
                # The value that the rival must exceed: of equal ones the lower class has the row.
                least = np.nextafter(own[a], 0.0) if j < i and own[a] > 0.0 else own[a]
                for b in range(n_functions):
                    line[b] += share if gone or others[b] > least else 0.0


@compiled
def share_by_rivals(
    table: Table, choice: NDArray[np.int64], step: float, weights: NDArray[np.float64]
) -> None:
    """Multiply the weights [M, N] of the rivals that take a row under a choice by exp(`step`)."""
    n_classes, factor = choice.size, np.exp(step)
    for m in range(table.labels.size):
        i = int(table.labels[m])
        left, rise, right, fall = table.functions[choice[i]]
        own = max(0.0, corrected(table.columns[i, m], left, rise, right, fall))
        gone = own == 0.0 and table.fallback[m] != i
        total = 0.0
        for j in range(n_classes):
            if j != i:
                left, rise, right, fall = table.functions[choice[j]]
                v = max(0.0, corrected(table.columns[j, m], left, rise, right, fall))
                if gone or _wins(v, own, j, i):
                    weights[m, j] *= factor
                total += weights[m, j]
        for j in range(n_classes):
            weights[m, j] /= total


@compiled
def tighten(costs: NDArray[np.float64], dual: NDArray[np.float64], sweeps: int) -> float:
    """Return a lower bound, over choices, of the sum of `costs` [N, N, D, D] over pairs i > j.

    `dual` [N, N, D] holds the part of the cost of a pair that is charged to one of its classes;
    every sweep moves it so that no pair holds back what its classes could bear (max-sum
    diffusion). Any `dual` makes a lower bound.
    """
    n_classes, n_functions = dual.shape[0], dual.shape[2]
    charged = np.zeros((n_classes, n_functions))
    for i in range(n_classes):
        for j in range(n_classes):
            charged[i] += dual[i, j]
    low_i, low_j = np.zeros(n_functions), np.zeros(n_functions)
    bound = 0.0
    for sweep in range(sweeps + 1):
        bound = 0.0
        for i in range(n_classes):
            for j in range(i):
                pair = costs[i, j]
                charged[i] -= dual[i, j]
                charged[j] -= dual[j, i]
                if sweep == sweeps:
                    rest = np.inf
                    for a in range(n_functions):
                        for b in range(n_functions):
                            rest = min(rest, pair[a, b] - dual[i, j, a] - dual[j, i, b])
                    bound += rest
                else:
                    low_i[:] = np.inf
                    low_j[:] = np.inf
                    for a in range(n_functions):
                        for b in range(n_functions):
                            low_i[a] = min(low_i[a], pair[a, b] + charged[j, b])
                            low_j[b] = min(low_j[b], pair[a, b] + charged[i, a])
                    for a in range(n_functions):
                        dual[i, j, a] = 0.5 * (low_i[a] - charged[i, a])
                        dual[j, i, a] = 0.5 * (low_j[a] - charged[j, a])
                charged[i] += dual[i, j]
                charged[j] += dual[j, i]
    for i in range(n_classes):
        bound += charged[i].min()
    return bound
