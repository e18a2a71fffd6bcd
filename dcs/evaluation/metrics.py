"""Accuracy, class accuracies, COBias and macro-F1, all from one confusion matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.checks import Named, checked_labels
from dcs.errors import InvalidInputError

FIGURES: Final = ("accuracy", "cobias", "balanced_accuracy", "macro_f1", "weakest_class")
"""Names of the figures that say in one number what predictions are worth."""


def confusion_matrix(
    labels: ArrayLike, predictions: ArrayLike, n_classes: int
) -> NDArray[np.int64]:
    """Count how often each true class received each prediction.

    Parameters
    ----------
    labels, predictions : array of int, shape [M]
        Class indices in ``0 .. n_classes - 1``.
    n_classes : int
        Number of classes N.

    Returns
    -------
    array of int64, shape [N, N]
        Row = true class, column = predicted class.

    Raises
    ------
    InvalidInputError
        When there are no rows, the lengths differ, or an index is out of range.
    """
    true = checked_labels(labels, n_classes=n_classes)
    names = Named("predictions")
    predicted = checked_labels(predictions, n_rows=true.size, n_classes=n_classes, names=names)
    cells = true * n_classes + predicted
    return np.bincount(cells, minlength=n_classes**2).reshape(n_classes, n_classes)


def accuracy(confusion: NDArray[Any]) -> float:
    """Return the share of correct rows, 0..1.

    Raises
    ------
    InvalidInputError
        When the confusion matrix is not square or counts no rows.
    """
    counts = _square(confusion)
    return float(np.trace(counts) / counts.sum())


def rates(right: NDArray[Any], rows: NDArray[Any]) -> NDArray[np.float64]:
    """Return the share of rows that are right, NaN where there are none."""
    values = np.full(rows.shape, np.nan)
    np.divide(right, rows, out=values, where=rows > 0)
    return values


def cobias(confusion: NDArray[Any]) -> float:
    """Return the mean absolute accuracy difference over all pairs of classes.

    Classes without rows are left out; with fewer than two classes present the value is 0.
    Source: Z_COBias in the appendix on the objective function.
    """
    counts = _square(confusion)
    return float(mean_distance(rates(counts.diagonal(), counts.sum(axis=1))))


def mean_distance(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean absolute difference over all pairs of the last axis, NaN left out.

    The sum over pairs is taken over sorted values, so the cost is O(N log N), not O(N^2).
    """
    # NaN sorts last.
    ordered = np.sort(values, axis=-1)
    known = np.count_nonzero(~np.isnan(ordered), axis=-1, keepdims=True)
    ranks = np.arange(ordered.shape[-1])
    factors = np.where(ranks < known, 2.0 * ranks - (known - 1), 0.0)
    pairs = np.maximum(known * (known - 1) / 2, 1.0)[..., 0]
    distances = (factors * np.nan_to_num(ordered)).sum(axis=-1) / pairs
    # Equal values can leave a rounding residue of either sign; a mean distance has none.
    return np.asarray(np.maximum(distances, 0.0), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class ClassificationMetrics:
    """What a set of predictions is worth.

    Attributes
    ----------
    accuracy, cobias, macro_f1 : float
        Overall accuracy, COBias, and the mean F1 score of the classes that have rows or are
        predicted, 0 where precision and recall are 0, as scikit-learn has it; all 0..1.
    class_accuracies : tuple of float
        One accuracy per class; NaN for a class with no rows.
    n_rows : int
        Number of rows judged.
    """

    accuracy: float
    cobias: float
    macro_f1: float
    class_accuracies: tuple[float, ...]
    n_rows: int

    @property
    def balanced_accuracy(self) -> float:
        """Mean accuracy of the classes that have rows, 0..1."""
        return float(np.nanmean(self.class_accuracies))

    @property
    def weakest_class(self) -> float:
        """The lowest accuracy of a class that has rows, 0..1."""
        return float(np.nanmin(self.class_accuracies))

    @classmethod
    def from_confusion(cls, confusion: NDArray[Any]) -> ClassificationMetrics:
        """Read every metric from one confusion matrix.

        Parameters
        ----------
        confusion : array of int, shape [N, N]
            Row = true class, column = predicted class.

        Returns
        -------
        ClassificationMetrics
            All figures.
        """
        counts = _square(confusion)
        right, rows = counts.diagonal(), counts.sum(axis=1)
        shares = rates(right, rows)
        scores = rates(2 * right, counts.sum(axis=0) + rows)
        return cls(
            accuracy=float(right.sum() / rows.sum()),
            cobias=float(mean_distance(shares)),
            macro_f1=float(np.nanmean(scores)),
            class_accuracies=tuple(shares.tolist()),
            n_rows=int(rows.sum()),
        )

    @classmethod
    def from_predictions(
        cls, labels: ArrayLike, predictions: ArrayLike, n_classes: int
    ) -> ClassificationMetrics:
        """Judge `predictions` against `labels`, both class indices of shape [M].

        Parameters
        ----------
        labels, predictions : array of int, shape [M]
            Class indices in ``0 .. n_classes - 1``.
        n_classes : int
            Number of classes N.

        Returns
        -------
        ClassificationMetrics
            All figures.
        """
        return cls.from_confusion(confusion_matrix(labels, predictions, n_classes))


def _square(confusion: NDArray[Any]) -> NDArray[np.int64]:
    counts = np.asarray(confusion)
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or counts.shape[0] == 0:
        raise InvalidInputError(
            f"confusion has shape {counts.shape}; a square matrix of counts is needed"
        )
    if counts.sum() <= 0:
        raise InvalidInputError("confusion counts no rows; at least one row is needed")
    return counts.astype(np.int64)
