"""Evaluation of many schemes on one table with the compiled code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.evaluation.metrics import Objective
from dcs.schemes.corrections import CorrectionSet
from dcs.search.kernels.candidates import add_class, clear
from dcs.search.kernels.table import Room, Table, compiled, make_room
from dcs.search.problem import DEFAULT_CORRECTIONS, DEFAULT_OBJECTIVE, Problem


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
        self._room = make_room(self._problem.table)

    def confusion(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Return the confusion matrix [N, N] of a solution, one correction index per class."""
        n_classes = self._problem.n_classes
        matrix = np.zeros((n_classes, n_classes), np.int64)
        choice = np.asarray(indices, dtype=np.int64)
        _count_confusion(self._problem.table, self._room, choice, matrix)
        return matrix

    def value(self, indices: ArrayLike, objective: Objective = DEFAULT_OBJECTIVE) -> float:
        """Return Z of one solution."""
        return objective.value(self.confusion(indices))


@compiled
def _count_confusion(
    table: Table, room: Room, choice: NDArray[np.int64], confusion: NDArray[np.int64]
) -> None:
    """Compute the confusion matrix [N, N] (row = true class) of one correction per class."""
    values, holders = room.head_value, room.head_class
    clear(table, values, holders, 0)
    for j in range(choice.size):
        add_class(table, j, choice[j], values, holders, j % 2, 1 - j % 2)
    predictions, labels = holders[choice.size % 2], table.labels
    confusion[:] = 0
    for m in range(labels.size):
        confusion[labels[m], predictions[m]] += 1
