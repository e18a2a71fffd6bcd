"""Lower bounds of Z over all schemes, for any number of classes.

The lower bound of Z over all schemes uses three relaxations. None of them can exceed Z, and
together they reduce the search to one over pairs of classes:

- COBias is a maximum of linear functions of the class accuracies, one for each weighting of the
  pairs of classes. Any of them bounds COBias from below, as a line bounds the PMI term. The
  remaining variable is the number of misclassified rows of each class, with a cost per class.
- A misclassified row is lost to the rival class that takes it. Its cost is divided among its
  rivals, and each share is charged if *that* rival takes the row: no row costs more than before,
  and each share depends on the corrections of only two classes.
- The minimum of the sum over pairs is bounded by its dual (max-sum diffusion: Werner 2007, "A
  linear programming approach to max-sum problem").

Subgradient steps improve the weights of the pairs and the shares of the rivals.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.checks import whole_number
from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import Objective
from dcs.schemes.corrections import CorrectionSet
from dcs.search.annealing import DEFAULT_CORRECTIONS, DEFAULT_OBJECTIVE, Problem
from dcs.search.kernels import Table, compiled, corrected

#: Maximum size of the array of lost rows, one entry for each pair of corrections of two classes.
_MAX_PAIRS: Final = 50_000_000
#: Step sizes: weights of class pairs lie in -1..1; those of rivals are multiplied by exp(step).
_PAIR_STEP: Final = 0.2
_RIVAL_STEP: Final = 1.0
#: Number of steps after which the step size shrinks with the square root of the step number.
_CONSTANT_STEPS: Final = 5
_SWEEPS: Final = 8
#: Smaller shares of a row are ignored, which can only decrease the bound, so that it stays valid.
_MIN_SHARE: Final = 1e-3
#: Initial step towards the rivals that take the row under the given scheme.
_INITIAL_STEP: Final = 2.0


@dataclass(frozen=True, slots=True)
class LowerBound:
    """Lower bound of Z over all schemes.

    Attributes
    ----------
    z : float
        Z of the given scheme.
    bound : float
        No scheme has a lower Z.
    gap : float
        Maximum distance of the scheme from the optimum: ``z - bound``.
    steps : int
        Number of subgradient steps performed.
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
    """Return a lower bound of Z over all schemes, and the gap of a scheme to it.

    Parameters
    ----------
    probs : array of float, shape [M, N]
        Class probabilities.
    labels : array of int, shape [M]
        True class indices, ``0 .. N - 1``.
    indices : array of int, shape [N]
        A good scheme, as in ``AnnealingResult.indices``. The bound starts from it, and is valid
        for any scheme.
    corrections : CorrectionSet, optional
        Corrections to choose from, by default ``CorrectionSet.dcs(weight_scale=30)``.
    objective : Objective, optional
        Objective to minimise, by default ``Objective(beta=1.0, tau=0.2)``.
    classes : sequence of str, optional
        Class names for messages.
    steps : int, optional
        Maximum number of subgradient steps; each takes time O(M N D^2 + N^2 D^2).

    Returns
    -------
    LowerBound
        The largest bound of all steps.

    Raises
    ------
    InvalidInputError
        If an argument is invalid, or there are too many pairs of classes and corrections.

    Warns
    -----
    UserWarning
        If a class has no rows: it is left out of COBias and PMI.
    """
    started = time.perf_counter()
    whole_number(steps, "steps", least=1)
    problem = Problem.from_arguments(probs, labels, corrections, objective, classes)
    n_classes, n_functions = len(problem.classes), len(corrections)
    if (n_classes * n_functions) ** 2 > _MAX_PAIRS:
        raise InvalidInputError(
            f"{n_classes} classes and {n_functions} corrections: the number of classes times "
            f"corrections must be at most {int(_MAX_PAIRS**0.5)} for a lower bound"
        )
    choice = np.asarray(indices, dtype=np.int64)
    z = problem.z_of(problem.scheme(choice))
    table = problem.table
    constant, costs = _linearise(table, objective, z)
    weights = np.ones((table.fallback.size, n_classes))
    weights[np.arange(weights.shape[0]), problem.labels] = 0.0
    update_rival_weights(table, choice, _INITIAL_STEP, weights)
    pairs = _PairWeights(table, objective, costs)
    lost = np.zeros((n_classes, n_classes, n_functions, n_functions))
    best = -np.inf
    n_steps = 0
    while n_steps < steps and best < z - 1e-12:
        count_lost(table, weights, lost)
        due = pairs.costs()[:, None, None, None] * lost
        due += due.transpose(1, 0, 3, 2)
        dual = np.zeros((n_classes, n_classes, n_functions))
        best = max(best, constant + tighten(due, dual, _SWEEPS))
        cheapest = _minimise_greedily(due, dual)
        shrink = 1.0 / np.sqrt(1.0 + n_steps / _CONSTANT_STEPS)
        update_rival_weights(table, cheapest, _RIVAL_STEP * shrink, weights)
        of_class, of_rival = np.indices((n_classes, n_classes))
        rows = lost[of_class, of_rival, cheapest[of_class], cheapest[of_rival]].sum(axis=1)
        pairs.step(rows, _PAIR_STEP * shrink)
        n_steps += 1
    best = min(best, z)
    return LowerBound(z, best, z - best, n_steps, time.perf_counter() - started)


def _linearise(table: Table, objective: Objective, z: float) -> tuple[float, NDArray[np.float64]]:
    """Return a, c [N]: error and PMI are at least a plus the sum of c_j times the lost rows of j.

    Valid for all schemes whose Z is at most `z`.
    """
    n_rows, k, tau = table.fallback.size, objective.pseudo_count, objective.tau
    cost = objective.error_weight / n_rows
    # The PMI term if no row is lost: every class is predicted as often as it is correct.
    rows = table.class_rows[table.present]
    constant = float(table.factors[3]) - objective.error_weight
    if rows.size == table.class_rows.size:
        # With absent classes, rows may be lost to classes that PMI leaves out. The sum of
        # log(q_j + k) is concave: lost rows increase it least if one class takes them all, and
        # less per row the more there are, which is at most what a scheme with this `z` may lose.
        most = float(n_rows)
        if objective.error_weight > 0.0:
            most = min(most, max(1.0, (z - constant) / cost))
        cost += tau * np.log1p(most / (rows.max() + k)) / most
    return constant, np.full(table.class_rows.size, cost)


class _PairWeights:
    """Signed weights, in -1..1, of the accuracy differences of all pairs of classes."""

    def __init__(self, table: Table, objective: Objective, base: NDArray[np.float64]) -> None:
        self._base = base
        self._rows = np.maximum(table.class_rows, 1.0)
        self._i, self._j = (
            table.present[each] for each in np.triu_indices(table.present.size, k=1)
        )
        self._scale = objective.beta / max(1, self._i.size)
        self._weights = np.zeros(self._i.size)

    def costs(self) -> NDArray[np.float64]:
        """Return the non-negative cost of a lost row for each class."""
        relief = np.zeros(self._base.size)
        np.add.at(relief, self._i, self._weights)
        np.add.at(relief, self._j, -self._weights)
        relief *= self._scale / self._rows
        relieved = relief > 0.0
        share = min(1.0, float((self._base[relieved] / relief[relieved]).min(initial=1.0)))
        self._weights *= share
        return np.maximum(self._base - share * relief, 0.0)

    def step(self, lost: NDArray[np.float64], size: float) -> None:
        """Take a subgradient step for the rows lost by the current minimiser."""
        rates = lost / self._rows
        slope = rates[self._j] - rates[self._i]
        steepest = np.abs(slope).max(initial=0.0)
        if steepest > 0.0:
            self._weights = np.clip(self._weights + size / steepest * slope, -1.0, 1.0)


def _minimise_greedily(due: NDArray[np.float64], dual: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return a choice of low cost: the minimiser of the dual, improved class by class."""
    choice: NDArray[np.int64] = dual.sum(axis=1).argmin(axis=1)
    others = np.arange(choice.size)
    for _ in range(3):
        for i in range(choice.size):
            total = due[i, others, :, choice].sum(axis=0) - due[i, i, :, choice[i]]
            choice[i] = total.argmin()
    return choice


@compiled
def _takes_row(v: float, rival: float, j: int, other: int) -> bool:
    """Return whether the value `v` of class j takes a row from another class, as in `predict`."""
    return v > rival or (v == rival and v > 0.0 and j < other)


@compiled
def count_lost(table: Table, shares: NDArray[np.float64], lost: NDArray[np.float64]) -> None:
    """Fill `lost` [N, N, D, D], the rows of class i lost to class j, by the corrections of both.

    Row m counts `shares[m, j]` for rival j. If its own class is corrected to 0, the row is lost
    unless its uncorrected prediction is correct.
    """
    n_functions = table.functions.shape[0]
    lost[:] = 0.0
    own, others = np.zeros(n_functions), np.zeros(n_functions)
    for m in range(table.fallback.size):
        i = int(table.labels[0, m])
        for k in range(n_functions):
            left, rise, right, fall = table.functions[k]
            own[k] = max(0.0, corrected(table.columns[i, m], left, rise, right, fall))
        for j in range(shares.shape[1]):
            share = shares[m, j]
            if j == i or share < _MIN_SHARE:
                continue
            for k in range(n_functions):
                left, rise, right, fall = table.functions[k]
                others[k] = max(0.0, corrected(table.columns[j, m], left, rise, right, fall))
            for a in range(n_functions):
                line = lost[i, j, a]
                zeroed = own[a] == 0.0 and table.fallback[m] != i
                # The value that the rival must exceed: ties go to the lower class.
                least = np.nextafter(own[a], 0.0) if j < i and own[a] > 0.0 else own[a]
                for b in range(n_functions):
                    line[b] += share if zeroed or others[b] > least else 0.0


@compiled
def update_rival_weights(
    table: Table, choice: NDArray[np.int64], step: float, weights: NDArray[np.float64]
) -> None:
    """Multiply the weights [M, N] of rivals that take a row by exp(`step`) and normalise them."""
    n_classes, factor = choice.size, np.exp(step)
    for m in range(table.fallback.size):
        i = int(table.labels[0, m])
        left, rise, right, fall = table.functions[choice[i]]
        own = max(0.0, corrected(table.columns[i, m], left, rise, right, fall))
        zeroed = own == 0.0 and table.fallback[m] != i
        total = 0.0
        for j in range(n_classes):
            if j != i:
                left, rise, right, fall = table.functions[choice[j]]
                v = max(0.0, corrected(table.columns[j, m], left, rise, right, fall))
                if zeroed or _takes_row(v, own, j, i):
                    weights[m, j] *= factor
                total += weights[m, j]
        for j in range(n_classes):
            weights[m, j] /= total


@compiled
def tighten(costs: NDArray[np.float64], dual: NDArray[np.float64], sweeps: int) -> float:
    """Return a lower bound, over choices, of the sum of `costs` [N, N, D, D] over pairs i > j.

    `dual` [N, N, D] holds the part of the cost of a pair that is charged to one of its classes.
    Every sweep redistributes these costs between pairs and classes (max-sum diffusion). Any
    `dual` gives a valid lower bound.
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
