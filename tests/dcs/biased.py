"""Generated class probabilities with the faults of a prompted language model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.table import ProbabilityTable
from dcs.evaluation.metrics import ClassificationMetrics
from dcs.methods.parameters import Hyperparameters
from dcs.schemes.scheme import CorrectionScheme
from dcs.selection.fitting import Fitting


def biased_table(
    n_rows: int, n_classes: int, *, seed: int = 0, bias: float = 1.5
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return probabilities and labels: informative, but some classes are favoured."""
    rng = np.random.default_rng(seed)
    labels = np.concatenate(
        [np.arange(n_classes), rng.integers(0, n_classes, n_rows - n_classes)]
    )[:n_rows]
    logits = rng.normal(0.0, 1.0, (n_rows, n_classes))
    logits[np.arange(n_rows), labels] += 1.5
    logits += bias * np.linspace(-1.0, 1.0, n_classes)
    weights = np.exp(logits)
    return weights / weights.sum(axis=1, keepdims=True), labels.astype(np.int64)


def labelled(table: ProbabilityTable, known: ArrayLike) -> ProbabilityTable:
    """Return the table without the labels of other rows."""
    return replace(table, labels=np.where(known, table.labels, -1))


def judged(
    scheme: CorrectionScheme, probs: NDArray[np.float64], labels: NDArray[np.int64]
) -> list[ClassificationMetrics]:
    """Return the metrics of the predictions without a scheme and with it."""
    predictions = (probs.argmax(axis=1), scheme.predict(probs))
    count = probs.shape[1]
    return [ClassificationMetrics.from_predictions(labels, each, count) for each in predictions]


def gain(
    scheme: CorrectionScheme, probs: NDArray[np.float64], labels: NDArray[np.int64]
) -> tuple[float, float]:
    """Return how much more accurate and how much fairer a scheme makes the predictions."""
    before, after = judged(scheme, probs, labels)
    return after.accuracy - before.accuracy, before.cobias - after.cobias


def fit_setting(
    probs: NDArray[np.float64], labels: NDArray[np.int64], setting: Hyperparameters
) -> CorrectionScheme:
    """Return the scheme of one setting for new rows."""
    fitting = Fitting(probs, labels, 5, seed=0)
    return fitting.whole(fitting.judge([setting])[0])
