"""Bootstrap intervals and paired tests of metrics from counts, and their formatting.

Accuracy, class accuracies and COBias depend on the rows only through the numbers of correct and
wrong rows per class. Drawing these counts from a multinomial distribution is equivalent to a
bootstrap over rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr

from dcs.data.checks import whole_number
from dcs.evaluation.metrics import ClassificationMetrics, confusion_matrix, mean_distance, rates

_RESAMPLES: Final = 2000

#: Smallest p-value shown: the resolution of a bootstrap of 2,000 samples.
_MIN_P: Final = 0.002

#: Coverage of the intervals.
_LEVEL: Final = 0.95

#: Smaller differences of class accuracies are rounding errors.
_ROUNDING: Final = 1e-9
#: Number of bisection steps: they locate the end of an interval to 1/1000 of the search range.
_BISECTIONS: Final = 10


@dataclass(frozen=True, slots=True)
class Interval:
    """Estimate with a confidence interval.

    Attributes
    ----------
    estimate, low, high : float
        Metric and the ends of its interval; NaN for a class without rows.
    standard_error : float
        Standard deviation of the metric over the resamples.
    """

    estimate: float
    low: float
    high: float
    standard_error: float


@dataclass(frozen=True, slots=True)
class MetricIntervals:
    """Confidence intervals of the metrics of one set of predictions.

    Attributes
    ----------
    accuracy, cobias, score : Interval
        Accuracy, COBias, and accuracy minus COBias, as fractions.
    balanced_accuracy, macro_f1, weakest_class : Interval
        As in :class:`ClassificationMetrics`. The interval of the weakest class is that of the
        class that is weakest in these rows.
    class_accuracies : tuple of Interval
        One per class.
    """

    accuracy: Interval
    cobias: Interval
    score: Interval
    balanced_accuracy: Interval
    macro_f1: Interval
    weakest_class: Interval
    class_accuracies: tuple[Interval, ...]


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """Comparison of two sets of predictions on the same rows; differences are "after - before".

    Attributes
    ----------
    accuracy, cobias, score : Interval
        Differences of accuracy, COBias, and accuracy minus COBias.
    accuracy_p : float
        p-value of the exact McNemar test of equal accuracy.
    cobias_p : float
        Two-sided bootstrap p-value of equal COBias, at least 1 / (resamples + 1).
    """

    accuracy: Interval
    cobias: Interval
    score: Interval
    accuracy_p: float
    cobias_p: float


def bootstrap_intervals(
    confusion: NDArray[Any], *, resamples: int = _RESAMPLES, seed: int = 0
) -> MetricIntervals:
    """Return 95 % bootstrap intervals of all metrics of a confusion matrix.

    Bias-corrected percentile intervals (Efron 1987) for all metrics except COBias. By chance
    alone class accuracies differ, so that small values of COBias are overestimated, and again by
    resampling. Its interval contains the true values for which the observed one is likely (an
    inverted parametric bootstrap), including 0 if chance explains all of it.

    Parameters
    ----------
    confusion : array of int, shape [N, N]
        Row = true class, column = predicted class.
    resamples : int, optional
        Number of bootstrap samples.
    seed : int, optional
        Seed of the random number generator.

    Raises
    ------
    InvalidInputError
        If an argument is invalid.
    """
    whole_number(resamples, "resamples", least=1)
    estimate = ClassificationMetrics.from_confusion(confusion)
    counts = np.asarray(confusion, dtype=np.int64)
    right = counts.diagonal()
    cells = np.stack([right, counts.sum(axis=1) - right])
    drawn = _resample(cells, resamples, seed)
    shares, accuracy, bias = _metrics(drawn[:, 0], drawn.sum(axis=1))
    by_class = tuple(
        _bootstrap(value, shares[:, j]) for j, value in enumerate(estimate.class_accuracies)
    )
    low, high = _cobias_bounds(right, cells.sum(axis=0), estimate.cobias, resamples, seed)
    return MetricIntervals(
        accuracy=_bootstrap(estimate.accuracy, accuracy),
        cobias=Interval(estimate.cobias, low, high, float(bias.std())),
        score=_bootstrap(estimate.accuracy - estimate.cobias, accuracy - bias),
        balanced_accuracy=_bootstrap(estimate.balanced_accuracy, np.nanmean(shares, axis=1)),
        macro_f1=_bootstrap(estimate.macro_f1, _resample_f1(counts, resamples, seed)),
        weakest_class=min(by_class, key=lambda each: (math.isnan(each.estimate), each.estimate)),
        class_accuracies=by_class,
    )


def compare_predictions(
    labels: ArrayLike,
    before: ArrayLike,
    after: ArrayLike,
    n_classes: int,
    *,
    parts: ArrayLike | None = None,
    resamples: int = _RESAMPLES,
) -> PairedComparison:
    """Compare two sets of predictions on the same rows, e.g. uncorrected and corrected.

    Parameters
    ----------
    labels, before, after : array of int, shape [M]
        True classes and the two predictions.
    n_classes : int
        Number of classes N.
    parts : array of int, shape [M], optional
        Part of each row. If given, COBias is the mean over the parts, as in cross-validation.
    resamples : int, optional
        Number of bootstrap samples.

    Raises
    ------
    InvalidInputError
        If an argument is invalid.
    """
    whole_number(resamples, "resamples", least=1)
    for values in (before, after):
        # Validates labels and predictions.
        confusion_matrix(labels, values, n_classes)
    true = np.asarray(labels, dtype=np.int64)
    ok = [np.asarray(values) == true for values in (before, after)]
    # Parts without rows are dropped.
    part = np.unique(np.zeros_like(true) if parts is None else parts, return_inverse=True)[1]
    key = true + n_classes * (2 * ok[0].astype(np.int64) + ok[1].astype(np.int64) + 4 * part)
    counts = np.bincount(key, minlength=4 * n_classes * (int(part.max()) + 1))
    tables = counts.reshape(-1, 4, n_classes)
    cells = tables.sum(axis=0)
    accuracy, bias, change = np.zeros(resamples), np.zeros(resamples), 0.0
    for i, table in enumerate(tables):
        # The observed counts, followed by the resampled ones.
        drawn = np.concatenate([table[None], _resample(table, resamples, i)])
        rows = drawn.sum(axis=1)
        _, accuracy1, bias1 = _metrics(drawn[:, 2] + drawn[:, 3], rows)
        _, accuracy2, bias2 = _metrics(drawn[:, 1] + drawn[:, 3], rows)
        accuracy += (accuracy2 - accuracy1)[1:] * (table.sum() / true.size)
        differences = (bias2 - bias1) / len(tables)
        bias += differences[1:]
        change += float(differences[0])
    gain = float(cells[1].sum() - cells[2].sum()) / true.size
    return PairedComparison(
        accuracy=_bootstrap(gain, accuracy),
        cobias=_bootstrap(change, bias),
        score=_bootstrap(gain - change, accuracy - bias),
        accuracy_p=_mcnemar_p(int(cells[1].sum()), int(cells[2].sum())),
        cobias_p=_bootstrap_p(bias),
    )


def _resample(cells: NDArray[np.int64], resamples: int, seed: int) -> NDArray[np.int64]:
    """Draw `resamples` tables of counts with the total and the proportions of `cells`."""
    total = int(cells.sum())
    generator = np.random.default_rng(seed)
    drawn = generator.multinomial(total, cells.ravel() / total, size=resamples)
    return drawn.reshape(resamples, *cells.shape)


def _resample_f1(counts: NDArray[np.int64], resamples: int, seed: int) -> NDArray[np.float64]:
    """Return macro-F1 [R] of R resamples of a confusion matrix [N, N]."""
    # Empty cells, most of them with many classes, remain empty and are skipped.
    true, predicted = np.nonzero(counts)
    drawn = _resample(counts[true, predicted], resamples, seed)
    members = np.eye(len(counts))
    right = (drawn * (true == predicted)) @ members[true]
    scores = rates(2 * right, drawn @ (members[true] + members[predicted]))
    return np.asarray(np.nanmean(scores, axis=1), dtype=np.float64)


def _metrics(
    right: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return class accuracies [R, N], accuracy [R] and COBias [R] of R tables of counts."""
    shares = rates(right, rows)
    return shares, right.sum(axis=1) / rows.sum(axis=1), mean_distance(shares)


def _cobias_bounds(
    right: NDArray[np.int64],
    rows: NDArray[np.int64],
    estimate: float,
    resamples: int,
    seed: int,
) -> tuple[float, float]:
    """Return the ends of the COBias interval, values that rarely give one so large or so small."""
    known = rows > 0
    right, rows = right[known], rows[known]
    n = rows.size
    if n < 2:
        return estimate, estimate
    shares = right / rows
    # The relative spread of the classes is taken from the data; its scale is the unknown.
    shape = (shares - shares.mean()) / max(estimate, _ROUNDING)
    if estimate < _ROUNDING:
        shape = np.linspace(-0.5, 0.5, n) * 3 * (n - 1) / (n + 1)
    # Smoothing: classes that are always or never correct may differ in other rows.
    likely = (right + 1) / (rows + 2)
    errors = np.sqrt(likely * (1.0 - likely) / rows)
    noise = np.random.default_rng(seed).standard_normal((resamples, n)) * errors

    def observed(true: float, quantile: float) -> float:
        return float(np.quantile(mean_distance(true * shape + noise), quantile))

    tail = (1.0 - _LEVEL) / 2
    # COBias below that of chance alone is luck or the result of tuning on these rows.
    least = max(estimate, observed(0.0, 0.5))
    low = _bisect(lambda true: observed(true, 1.0 - tail), estimate, least)
    high = _bisect(lambda true: observed(true, tail), least, least + 4.0 * float(errors.max()))
    # COBias is largest if half of the classes are always correct and half never.
    most = 2 * (n // 2) * (n - n // 2) / (n * (n - 1))
    return min(low, estimate), max(min(high, most), estimate)


def _bisect(rising: Callable[[float], float], value: float, high: float) -> float:
    """Return the root of ``rising(x) = value`` in 0..high by bisection, or the nearer end."""
    low = 0.0
    if rising(low) >= value:
        return low
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if rising(middle) < value:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _bootstrap(estimate: float, drawn: NDArray[np.float64]) -> Interval:
    known = drawn[~np.isnan(drawn)]
    if math.isnan(estimate) or known.size == 0:
        return Interval(estimate, math.nan, math.nan, math.nan)
    normal = NormalDist()
    # Ties count half, so that a metric that hardly varies is not considered biased.
    below = ((known < estimate).sum() + 0.5 * (known == estimate).sum()) / known.size
    edge = 1.0 / (known.size + 1)
    shift = normal.inv_cdf(float(np.clip(below, edge, 1.0 - edge)))
    reach = normal.inv_cdf((1.0 + _LEVEL) / 2)
    low, high = np.quantile(
        known, [normal.cdf(2 * shift - reach), normal.cdf(2 * shift + reach)]
    ).tolist()
    return Interval(estimate, min(low, estimate), max(high, estimate), float(known.std()))


def _bootstrap_p(differences: NDArray[np.float64]) -> float:
    n = differences.size
    smaller = min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    return min(1.0, 2.0 * (smaller + 1) / (n + 1))


def _mcnemar_p(gained: int, lost: int) -> float:
    """Return the p-value of a two-sided sign test on the rows where one prediction is correct."""
    return min(1.0, 2.0 * float(bdtr(min(gained, lost), gained + lost, 0.5)))


def percent(
    share: float | None,
    deviation: float | None = None,
    *,
    interval: tuple[float, float] | None = None,
    digits: int = 1,
    coarse: bool = False,
    padded: bool = False,
) -> str:
    """Format a share in percent as ``58.2``, ``58.2 ± 0.3`` or ``58.2 [55.1, 61.0]``.

    Parameters
    ----------
    share : float or None
        Fraction; None and NaN give an empty text.
    deviation : float, optional
        Standard deviation; omitted if None or NaN.
    interval : tuple of float, optional
        Confidence interval, used if there is no deviation; omitted if NaN.
    digits : int
        Number of decimals.
    coarse : bool
        Whether to round the ends of the interval to integers.
    padded : bool
        Whether to pad ends of one digit with a blank, to align the brackets of a column.
    """
    if share is None or math.isnan(share):
        return ""
    text = f"{100 * share:.{digits}f}"
    if deviation is not None and not math.isnan(deviation):
        return f"{text} ± {100 * deviation:.{digits}f}"
    if interval is not None and not math.isnan(interval[0]):
        places = 0 if coarse else digits
        width = (3 + places if places else 2) if padded else 0
        low, high = (f"{100 * end:{width}.{places}f}" for end in interval)
        return f"{text} [{low}, {high}]"
    return text


def chance(p: float | None) -> str:
    """Format a p-value for a column: ``0.035``, ``<0.002``, an empty text for None and NaN."""
    if p is None or math.isnan(p):
        return ""
    return f"<{_MIN_P}" if p < _MIN_P else f"{p:.3f}"


def sentence_of_chance(p: float) -> str:
    """Format a p-value for a sentence: ``p = 0.035``, ``p < 0.002``."""
    text = chance(p)
    return f"p < {text[1:]}" if text.startswith("<") else f"p = {text}"
