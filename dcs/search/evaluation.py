"""Judging many schemes on one table, fast."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.errors import InvalidInputError
from dcs.evaluation.objective import Objective
from dcs.schemes.corrections import CorrectionSet
from dcs.schemes.scheme import CorrectionScheme
from dcs.search.kernels import candidates as _confusion
from dcs.search.kernels import table as _table
from dcs.search.problem import DEFAULT_CORRECTIONS, DEFAULT_OBJECTIVE, Problem

__all__ = ["SchemeEvaluator"]


class SchemeEvaluator:
    """Confusion matrices of many schemes on one table.

    The table is checked and laid out once; every scheme then costs one compiled pass per class,
    and its predictions are exactly those of `CorrectionScheme.predict`. One evaluator serves one
    thread at a time.

    Parameters
    ----------
    probs : array of float, shape [M, N]
        Class probabilities. Never written to; may be read-only.
    labels : array of int, shape [M]
        True class indices, ``0 .. N - 1``.
    corrections : CorrectionSet, optional
        What the indices stand for, by default ``CorrectionSet.dcs(weight_scale=30)``.
    classes : sequence of str, optional
        Class names, by default ``"0", "1", ...``.

    Raises
    ------
    InvalidInputError
        When an argument is not allowed.

    Warns
    -----
    UserWarning
        When a class has no rows: it is left out of COBias and PMI.
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
        self._room = _table.make_room(self._problem.table)

    def confusion(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Return the confusion matrix [N, N] of one correction index per class.

        Raises
        ------
        InvalidInputError
            When there are not N indices or one is out of range.
        """
        matrix: NDArray[np.int64] = self.confusions(np.asarray(indices)[None])[0]
        return matrix

    def confusions(self, batch: ArrayLike) -> NDArray[np.int64]:
        """Return the confusion matrices [B, N, N] of B solutions, indices of shape [B, N]."""
        n_classes, n_functions = self._problem.n_classes, len(self._problem.corrections)
        indices = np.asarray(batch)
        if indices.ndim != 2 or indices.shape[1] != n_classes:
            raise InvalidInputError(
                f"indices has shape {indices.shape}; one index for each of {n_classes} classes "
                "is needed"
            )
        if indices.size and not np.issubdtype(indices.dtype, np.integer):
            raise InvalidInputError(f"indices has type {indices.dtype}; integers are needed")
        choices = np.ascontiguousarray(indices, dtype=np.int64)
        wrong = choices[(choices < 0) | (choices >= n_functions)]
        if wrong.size:
            raise InvalidInputError(f"indices holds {wrong[0]}; allowed are 0..{n_functions - 1}")
        matrices = np.zeros((len(choices), n_classes, n_classes), np.int64)
        for i in range(len(choices)):
            _confusion.count_confusion(
                self._problem.table, self._room, choices[i].copy(), matrices[i]
            )
        return matrices

    def value(self, indices: ArrayLike, objective: Objective = DEFAULT_OBJECTIVE) -> float:
        """Return Z of one solution."""
        return objective.value(self.confusion(indices))

    def scheme(self, indices: ArrayLike) -> CorrectionScheme:
        """Return the scheme that the indices stand for."""
        corrections = tuple(self._problem.corrections[int(k)] for k in np.asarray(indices))
        return CorrectionScheme(self._problem.classes, corrections)
