"""Judging settings on rows they were not fitted on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs._arrays import checked_classes, checked_labels, checked_probabilities
from dcs.errors import InvalidInputError
from dcs.fitting import Hyperparameters, Prepared
from dcs.metrics import ClassificationMetrics
from dcs.seeds import derive_generator, derive_seed

__all__ = ["Folds", "checked_rows", "cross_validate", "stratified_folds"]


def stratified_folds(labels: ArrayLike, folds: int, *, seed: int) -> NDArray[np.int64]:
    """Return the fold of every row, each fold with nearly the same mix of classes."""
    values = np.asarray(labels, dtype=np.int64)
    generator = derive_generator(seed, "folds")
    shuffled = generator.permutation(values.size)
    order = shuffled[np.argsort(values[shuffled], kind="stable")]
    places = np.empty(values.size, dtype=np.int64)
    places[order] = np.arange(values.size) % folds
    return places


def cross_validate(
    probs: ArrayLike,
    labels: ArrayLike,
    setting: Hyperparameters,
    *,
    folds: int = 5,
    seed: int = 0,
) -> ClassificationMetrics:
    """Judge one setting by K-fold cross-validation.

    The predictions of all folds are counted together, so that a class with few rows is judged on
    all of them at once: averaging the COBias of small folds would overstate it.

    Parameters
    ----------
    probs : array of float, shape [M, N]
        Class probabilities.
    labels : array of int, shape [M]
        True class indices.
    setting : Hyperparameters
        What to judge.
    folds : int, optional
        Number of folds, 2 or more; at most M are used.
    seed : int, optional
        Seed of folds and searches.

    Returns
    -------
    ClassificationMetrics
        Accuracy, COBias and class accuracies of rows that their scheme has not seen.

    Raises
    ------
    InvalidInputError
        When an argument is not allowed or there are fewer than two rows.
    """
    values, indices, _ = checked_rows(probs, labels, None)
    predictions = Folds(values, indices, folds, seed).predictions([setting])
    return ClassificationMetrics.from_predictions(indices, predictions[0], values.shape[1])


class Folds:
    """Rows divided into folds, and predictions of settings fitted without them.

    Raises
    ------
    InvalidInputError
        When there are fewer than two folds.
    """

    def __init__(
        self, probs: NDArray[np.float64], labels: NDArray[np.int64], folds: int, seed: int
    ) -> None:
        if folds < 2:
            raise InvalidInputError(f"folds {folds!r}: 2 or more are needed")
        self.probs, self.labels, self.seed = probs, labels, seed
        self.n_folds = min(folds, labels.size)
        self.place = stratified_folds(labels, self.n_folds, seed=seed)

    def predictions(
        self,
        grid: Sequence[Hyperparameters],
        *,
        progress: Callable[[float], None] | None = None,
    ) -> list[NDArray[np.int64]]:
        """Return, for each setting, the prediction of every row by a scheme without it."""
        found = [np.zeros(self.labels.size, np.int64) for _ in grid]
        for fold in range(self.n_folds):
            inside = self.place != fold
            rows, labels = self.probs[inside], self.labels[inside]
            prepared: dict[tuple[Any, float], Prepared] = {}
            for i, setting in enumerate(grid):
                key = (setting.calibration, setting.ridge)
                if key not in prepared:
                    prepared[key] = Prepared.from_arguments(
                        rows, labels, kind=setting.calibration, ridge=setting.ridge
                    )
                scheme = prepared[key].fit(setting, seed=derive_seed(self.seed, "anneal", fold))
                found[i][~inside] = scheme.predict(self.probs[~inside])
                if progress is not None:
                    progress((fold + (i + 1) / len(grid)) / self.n_folds)
        return found


def checked_rows(
    probs: ArrayLike, labels: ArrayLike, classes: Sequence[str] | None
) -> tuple[NDArray[np.float64], NDArray[np.int64], tuple[str, ...]]:
    """Check what cross-validation is given: at least two rows, and labels and names that fit."""
    values = checked_probabilities(probs)
    n_rows, n_classes = values.shape
    if n_rows < 2:
        raise InvalidInputError("probs has 1 row; cross-validation needs at least two")
    indices = checked_labels(labels, n_rows=n_rows, n_classes=n_classes)
    return values, indices, checked_classes(classes, n_classes=n_classes)
