"""Accuracy, class accuracies, COBias, macro-F1 and the objective Z from a confusion matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.checks import checked_labels, finite_number, refuse_other_order
from dcs.errors import InvalidInputError, Named


@dataclass(frozen=True, slots=True)
class Metric:
    """What is to know of a scalar metric.

    Attributes
    ----------
    title, short : str
        Name in tables, and in narrow ones.
    maximize : bool
        Whether more is better.
    tested : bool
        Whether tables of results show it, with intervals and tests.
    compared : bool
        Whether runs are compared by it in MLflow.
    """

    title: str
    short: str
    maximize: bool = True
    tested: bool = False
    compared: bool = False

    @property
    def head(self) -> str:
        """The title with an arrow in the direction of improvement."""
        return f"{self.title} {'↑' if self.maximize else '↓'}"


#: The metrics of predictions, by name; all are shares of rows.
METRICS: Final = {
    "accuracy": Metric("accuracy", "accuracy", tested=True, compared=True),
    "cobias": Metric("COBias", "COBias", maximize=False, tested=True, compared=True),
    "balanced_accuracy": Metric("balanced accuracy", "balanced"),
    "macro_f1": Metric("macro-F1", "macro-F1"),
    "weakest_class": Metric("weakest class", "weakest", compared=True),
}

#: Those of selections and of single classes.
_OTHERS: Final = {
    "score": Metric("accuracy - COBias", "score"),
    "lasting_cobias": Metric("COBias without sampling noise", "lasting", maximize=False),
    "class_accuracy": Metric("class accuracy", "class"),
}


def metric_of(column: str) -> Metric | None:
    """Return the metric of a recorded column, ``test/accuracy_low`` for instance, if it is one."""
    *folders, name = column.split("/")
    if "class_accuracy" in folders:
        name = "class_accuracy"
    return (METRICS | _OTHERS).get(name.removesuffix("_low").removesuffix("_high"))


def confusion_matrix(
    labels: ArrayLike, predictions: ArrayLike, n_classes: int
) -> NDArray[np.int64]:
    """Count the rows of each true class by predicted class.

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
        If there are no rows, the lengths differ, or an index is out of range.
    """
    refuse_other_order(labels, predictions=predictions)
    true = checked_labels(labels, n_classes=n_classes)
    names = Named("predictions")
    predicted = checked_labels(predictions, n_rows=true.size, n_classes=n_classes, names=names)
    return count_confusion(true, predicted, n_classes)


def count_confusion(
    true: NDArray[np.int64], predicted: NDArray[np.int64], n_classes: int
) -> NDArray[np.int64]:
    """Return the confusion matrix of class indices that were checked."""
    cells = true * n_classes + predicted
    return np.bincount(cells, minlength=n_classes**2).reshape(n_classes, n_classes)


def rates(right: NDArray[Any], rows: NDArray[Any]) -> NDArray[np.float64]:
    """Return the fraction of correct rows, NaN if there are no rows."""
    values = np.full(rows.shape, np.nan)
    np.divide(right, rows, out=values, where=rows > 0)
    return values


def mean_distance(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean absolute difference over all pairs of the last axis, ignoring NaN.

    The sum over pairs is computed from sorted values in O(N log N) instead of O(N^2).
    """
    # NaN sorts last.
    ordered = np.sort(values, axis=-1)
    missing = np.isnan(ordered)
    known = ordered.shape[-1] - np.count_nonzero(missing, axis=-1, keepdims=True)
    ordered[missing] = 0.0
    ranks = np.arange(ordered.shape[-1])
    factors = np.where(ranks < known, 2.0 * ranks - (known - 1), 0.0)
    pairs = np.maximum(known * (known - 1) / 2, 1.0)[..., 0]
    distances = (factors * ordered).sum(axis=-1) / pairs
    # Rounding errors of equal values may be negative.
    return np.asarray(np.maximum(distances, 0.0), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class ClassificationMetrics:
    """Metrics of a set of predictions.

    Attributes
    ----------
    accuracy : float
        Fraction of correct rows, 0..1.
    cobias : float
        Mean absolute accuracy difference over all pairs of classes, 0..1. Classes without rows
        are left out; with fewer than two classes present it is 0. Source: Z_COBias in the appendix
        on the objective function.
    macro_f1 : float
        Mean F1 score of the classes that have rows, 0..1: whether a class without rows is
        predicted must not change which classes count. As in scikit-learn, F1 is 0 if precision
        and recall are 0.
    class_accuracies : tuple of float
        One accuracy per class; NaN for classes without rows.
    n_rows : int
        Number of rows.
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
        """Lowest accuracy of the classes that have rows, 0..1."""
        return float(np.nanmin(self.class_accuracies))

    @classmethod
    def from_confusion(cls, confusion: NDArray[Any]) -> Self:
        """Compute all metrics from a confusion matrix.

        Parameters
        ----------
        confusion : array of int, shape [N, N]
            Row = true class, column = predicted class.

        Returns
        -------
        ClassificationMetrics
            All figures.

        Raises
        ------
        InvalidInputError
            If the confusion matrix is not square or has no rows.
        """
        counts = np.asarray(confusion)
        if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or counts.shape[0] == 0:
            raise InvalidInputError(
                f"confusion has shape {counts.shape}; expected a square matrix of counts"
            )
        if counts.sum() <= 0 or counts.min() < 0 or (counts % 1 != 0).any():
            raise InvalidInputError("confusion must have whole numbers of rows, at least one row")
        counts = counts.astype(np.int64)
        right, rows = counts.diagonal(), counts.sum(axis=1)
        shares = rates(right, rows)
        scores = rates(2 * right, np.where(rows > 0, counts.sum(axis=0) + rows, 0))
        return cls(
            accuracy=float(right.sum() / rows.sum()),
            cobias=float(mean_distance(shares)),
            macro_f1=float(np.nanmean(scores)),
            class_accuracies=tuple(shares.tolist()),
            n_rows=int(rows.sum()),
        )

    @classmethod
    def from_predictions(cls, labels: ArrayLike, predictions: ArrayLike, n_classes: int) -> Self:
        """Compute all metrics of `predictions` given the true `labels`.

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


def cobias_score(y_true: ArrayLike, y_pred: ArrayLike) -> float:
    """Return the COBias of predictions, 0..1; less is fairer.

    A scorer is ``sklearn.metrics.make_scorer(dcs.cobias_score, greater_is_better=False)``.

    Parameters
    ----------
    y_true, y_pred : array-like, shape [M]
        True and predicted classes: labels of any one type.

    Raises
    ------
    InvalidInputError
        If they are not, or not as many.
    """
    refuse_other_order(y_true, y_pred=y_pred)
    both = [np.asarray(y_true), np.asarray(y_pred)]
    labels = [each for own in both for each in own.ravel().tolist()]
    missing = any(each is None or each != each for each in labels)
    several = len({isinstance(each, str) for each in labels}) > 1
    if both[0].ndim != 1 or both[0].shape != both[1].shape or several or missing:
        first, second = (f"{own.dtype} of shape {own.shape}" for own in both)
        raise InvalidInputError(
            f"y_true is {first}, y_pred {second}; must be a label of one type for each row"
        )
    classes, codes = np.unique(np.concatenate(both), return_inverse=True)
    true, predicted = np.split(codes, 2)
    return ClassificationMetrics.from_predictions(true, predicted, classes.size).cobias


@dataclass(frozen=True, slots=True)
class Objective:
    """Objective Z of a search (section "Mathematical Model" and the appendix on the objective).

    Z is normalised: it uses the error *rate*, so that its scale and the temperatures of a search
    do not depend on the number of rows M. The published code minimises ``M * Z``.

    With a pseudo-count k, M rows, N classes, and for class j with n_j labels, q_j predictions and
    d_j correct predictions, ::

        PMI_j = log[ (d_j + k) / (M + k N^2)
                     / ( (q_j + k) / (M + k N) * (n_j + k) / (M + k N) ) ]

    that is, k rows are added to every cell of the joint table and of the marginals. The term is
    minus the sum of PMI_j, which is unbounded: it grows with N, and the weight of a class depends
    on k.

    Classes without rows are left out of COBias and PMI.

    Parameters
    ----------
    beta, tau : float
        Weights of COBias and of PMI, 0 or more.
    error_weight : float
        Weight of the error rate, 0 or more.
    pseudo_count : float
        k above, greater than 0; with k = 0 a class that is never predicted would give log 0.

    Raises
    ------
    InvalidInputError
        If a value is not finite or out of range.
    """

    beta: float = 1.0
    tau: float = 0.2
    error_weight: float = 1.0
    pseudo_count: float = 4000.0

    def __post_init__(self) -> None:
        for name in ("beta", "tau", "error_weight", "pseudo_count"):
            positive, value = name == "pseudo_count", getattr(self, name)
            number = finite_number(value, f"objective {name}", least=0.0, positive=positive)
            object.__setattr__(self, name, number)

    def value(self, confusion: NDArray[Any]) -> float:
        """Return Z for a confusion matrix [N, N].

        Parameters
        ----------
        confusion : array of int, shape [N, N]
            Counts; row = true class, column = predicted class.

        Returns
        -------
        float
            Weighted sum of the terms.

        Raises
        ------
        InvalidInputError
            If the matrix is not square or has no rows.
        """
        metrics = ClassificationMetrics.from_confusion(confusion)
        counts, k = np.asarray(confusion, np.float64), self.pseudo_count
        n_rows, n_classes = counts.sum(), counts.shape[0]
        labelled = counts.sum(axis=1)
        present = labelled > 0
        joint = (counts.diagonal() + k) / (n_rows + k * n_classes**2)
        predicted = (counts.sum(axis=0) + k) / (n_rows + k * n_classes)
        true = (labelled + k) / (n_rows + k * n_classes)
        # Minus the sum of PMI_j: lower is better, like the other terms.
        pmi = -float(np.log(joint / (predicted * true))[present].sum())
        error = 1.0 - metrics.accuracy
        return self.error_weight * error + self.beta * metrics.cobias + self.tau * pmi
