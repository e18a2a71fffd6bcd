"""Evaluation of many schemes on one table with the compiled code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.evaluation.metrics import Objective
from dcs.schemes.corrections import CorrectionSet
from dcs.search.annealing import DEFAULT_CORRECTIONS, DEFAULT_OBJECTIVE, Problem
from dcs.search.kernels import Table, compiled, copy, corrected


class SchemeEvaluator:
    """Confusion matrices of many schemes on one table.

    The table is validated and prepared once; every scheme then takes one compiled pass per class.
    The predictions are exactly those of `CorrectionScheme.predict`. Not thread-safe.

    Parameters
    ----------
    probs : array of float, shape [M, N]
        Class probabilities. Never written to; may be read-only.
    labels : array of int, shape [M]
        True class indices, ``0 .. N - 1``.
    corrections : CorrectionSet, optional
        Corrections that the indices refer to, by default ``CorrectionSet.dcs(weight_scale=30)``.
    classes : sequence of str, optional
        Class names, by default ``"class_0", "class_1", ...``.

    Raises
    ------
    InvalidInputError
        If an argument is invalid.

    Warns
    -----
    UserWarning
        If a class has no rows: it is left out of COBias and PMI.
    """

    def __init__(
        self,
        probs: ArrayLike,
        labels: ArrayLike,
        *,
        corrections: CorrectionSet = DEFAULT_CORRECTIONS,
        classes: Sequence[str] | None = None,
    ) -> None:
        self._problem = Problem.from_arguments(
            probs, labels, corrections, DEFAULT_OBJECTIVE, classes
        )
        n_rows = self._problem.labels.size
        self._lines = np.zeros((2, n_rows)), np.zeros((2, n_rows), np.int16)

    def confusion(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Return the confusion matrix [N, N] of a solution, one correction index per class."""
        n_classes = len(self._problem.classes)
        matrix = np.zeros((n_classes, n_classes), np.int64)
        choice = np.asarray(indices, dtype=np.int64)
        _count_confusion(self._problem.table, *self._lines, choice, matrix)
        return matrix

    def value(self, indices: ArrayLike, objective: Objective = DEFAULT_OBJECTIVE) -> float:
        """Return Z of one solution."""
        return objective.value(self.confusion(indices))


@compiled
def _count_confusion(
    table: Table,
    values: NDArray[np.float64],
    holders: NDArray[np.int16],
    choice: NDArray[np.int64],
    confusion: NDArray[np.int64],
) -> None:
    """Compute the confusion matrix [N, N] (row = true class) of one correction per class."""
    clear(table, values, holders, 0)
    for j in range(choice.size):
        add_class(table, j, choice[j], values, holders, j % 2, 1 - j % 2)
    predictions, labels = holders[choice.size % 2], table.labels[0]
    confusion[:] = 0
    for m in range(labels.size):
        confusion[labels[m], predictions[m]] += 1


@compiled
def clear(table: Table, values: NDArray[np.float64], holders: NDArray[np.int16], at: int) -> None:
    """Reset line `at` to the maxima over no class: zeros with the uncorrected predictions."""
    values[at] = 0.0
    copy(table.fallback, holders[at])


@compiled
def add_class(
    table: Table,
    j: int,
    k: int,
    values: NDArray[np.float64],
    holders: NDArray[np.int16],
    at: int,
    to: int,
) -> None:
    """Add class j with correction k to the maxima in line `at`, and store them in line `to`.

    The lines must differ, because a loop with overlapping input and output is not vectorised.
    """
    column = table.columns[j]
    value, holder, new_value, new_holder = values[at], holders[at], values[to], holders[to]
    left, rise, right, fall = table.functions[k]
    jj = np.int16(j)
    for m in range(column.size):
        v = corrected(column[m], left, rise, right, fall)
        old = value[m]
        wins = (v > old) | ((v == old) & (jj < holder[m]) & (v > 0.0))
        new_value[m] = v if wins else old
        new_holder[m] = jj if wins else holder[m]
