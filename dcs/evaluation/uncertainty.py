"""How sure a figure is, and how that is written: intervals and paired tests, from counts alone.

Accuracy, class accuracies and COBias depend on the rows only through how many of every class are
right and wrong. Drawing those counts from a multinomial distribution is the bootstrap over rows,
without touching a row.
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

#: A bootstrap of 2,000 samples says no more than this.
_SMALLEST: Final = 0.002

#: Coverage of the intervals.
_LEVEL: Final = 0.95

#: Classes that differ by less are equally accurate but for rounding.
_EVEN: Final = 1e-9
#: They find the end of an interval to a thousandth of where it is looked for.
_HALVINGS: Final = 10


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and where the true value may lie.

    Attributes
    ----------
    estimate, low, high : float
        The figure and the ends of its interval; NaN for a class with no rows.
    standard_error : float
        Standard deviation of the figure over the resamples.
    """

    estimate: float
    low: float
    high: float
    standard_error: float


@dataclass(frozen=True, slots=True)
class MetricIntervals:
    """Intervals of the figures of one set of predictions.

    Attributes
    ----------
    accuracy, cobias, score : Interval
        Accuracy, COBias, and accuracy minus COBias; shares, not points.
    balanced_accuracy, macro_f1, weakest_class : Interval
        As in :class:`ClassificationMetrics`; that of the weakest class is its own, whichever
        class is the weakest in other rows.
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
    """Two sets of predictions on the same rows; every difference is "after minus before".

    Attributes
    ----------
    accuracy, cobias, score : Interval
        Differences of accuracy, COBias, and accuracy minus COBias.
    accuracy_p : float
        Exact McNemar test that neither is more accurate.
    cobias_p : float
        Two-sided bootstrap p-value, not below 1 / (resamples + 1).
    """

    accuracy: Interval
    cobias: Interval
    score: Interval
    accuracy_p: float
    cobias_p: float


def bootstrap_intervals(
    confusion: NDArray[Any], *, resamples: int = _RESAMPLES, seed: int = 0
) -> MetricIntervals:
    """Return 95 % bootstrap intervals for every figure of a confusion matrix.

    Bias-corrected percentile intervals (Efron 1987) for all but COBias. Chance alone makes class
    accuracies differ, so that COBias is overestimated, the more the smaller it is, and resampling
    does so once more. Its interval holds the true values that would make the observed one likely
    (a parametric bootstrap, inverted); it reaches 0 where chance explains the whole of it.

    Parameters
    ----------
    confusion : array of int, shape [N, N]
        Row = true class, column = predicted class.
    resamples : int, optional
        Number of bootstrap samples.
    seed : int, optional
        The same seed gives the same intervals.

    Raises
    ------
    InvalidInputError
        When an argument is not allowed.
    """
    whole_number(resamples, "resamples", least=1)
    estimate = ClassificationMetrics.from_confusion(confusion)
    counts = np.asarray(confusion, dtype=np.int64)
    right = counts.diagonal()
    cells = np.stack([right, counts.sum(axis=1) - right])
    drawn = _resample(cells, resamples, seed)
    shares, accuracy, bias = _figures(drawn[:, 0], drawn.sum(axis=1))
    by_class = tuple(
        _interval(value, shares[:, j]) for j, value in enumerate(estimate.class_accuracies)
    )
    low, high = _cobias_ends(right, cells.sum(axis=0), estimate.cobias, resamples, seed)
    return MetricIntervals(
        accuracy=_interval(estimate.accuracy, accuracy),
        cobias=Interval(estimate.cobias, low, high, float(bias.std())),
        score=_interval(estimate.accuracy - estimate.cobias, accuracy - bias),
        balanced_accuracy=_interval(estimate.balanced_accuracy, np.nanmean(shares, axis=1)),
        macro_f1=_interval(estimate.macro_f1, _macro_f1_drawn(counts, resamples, seed)),
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
        The part of every row: COBias is then the mean of that of the parts, as
        cross-validation judges it.
    resamples : int, optional
        As for :func:`bootstrap_intervals`.

    Raises
    ------
    InvalidInputError
        When an argument is not allowed.
    """
    whole_number(resamples, "resamples", least=1)
    for values in (before, after):
        # Checks labels and predictions.
        confusion_matrix(labels, values, n_classes)
    true = np.asarray(labels, dtype=np.int64)
    ok = [np.asarray(values) == true for values in (before, after)]
    # Parts without rows have no figures.
    part = np.unique(np.zeros_like(true) if parts is None else parts, return_inverse=True)[1]
    key = true + n_classes * (2 * ok[0].astype(np.int64) + ok[1].astype(np.int64) + 4 * part)
    counts = np.bincount(key, minlength=4 * n_classes * (int(part.max()) + 1))
    tables = counts.reshape(-1, 4, n_classes)
    cells = tables.sum(axis=0)
    accuracy, bias, change = np.zeros(resamples), np.zeros(resamples), 0.0
    for i, table in enumerate(tables):
        # The counts themselves, then what is drawn from them.
        drawn = np.concatenate([table[None], _resample(table, resamples, i)])
        rows = drawn.sum(axis=1)
        _, accuracy1, bias1 = _figures(drawn[:, 2] + drawn[:, 3], rows)
        _, accuracy2, bias2 = _figures(drawn[:, 1] + drawn[:, 3], rows)
        accuracy += (accuracy2 - accuracy1)[1:] * (table.sum() / true.size)
        differences = (bias2 - bias1) / len(tables)
        bias += differences[1:]
        change += float(differences[0])
    gain = float(cells[1].sum() - cells[2].sum()) / true.size
    return PairedComparison(
        accuracy=_interval(gain, accuracy),
        cobias=_interval(change, bias),
        score=_interval(gain - change, accuracy - bias),
        accuracy_p=_mcnemar(int(cells[1].sum()), int(cells[2].sum())),
        cobias_p=_two_sided(bias),
    )


def _resample(cells: NDArray[np.int64], resamples: int, seed: int) -> NDArray[np.int64]:
    """Draw `resamples` tables of counts with the total and the proportions of `cells`."""
    total = int(cells.sum())
    generator = np.random.default_rng(seed)
    drawn = generator.multinomial(total, cells.ravel() / total, size=resamples)
    return drawn.reshape(resamples, *cells.shape)


def _macro_f1_drawn(counts: NDArray[np.int64], resamples: int, seed: int) -> NDArray[np.float64]:
    """Return macro-F1 [R] of R tables drawn in the proportions of a confusion matrix [N, N]."""
    # Cells without rows stay so: with many classes that is most of them.
    true, predicted = np.nonzero(counts)
    drawn = _resample(counts[true, predicted], resamples, seed)
    members = np.eye(len(counts))
    right = (drawn * (true == predicted)) @ members[true]
    scores = rates(2 * right, drawn @ (members[true] + members[predicted]))
    return np.asarray(np.nanmean(scores, axis=1), dtype=np.float64)


def _figures(
    right: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return class accuracies [R, N], accuracy [R] and COBias [R] of R tables of counts."""
    shares = rates(right, rows)
    return shares, right.sum(axis=1) / rows.sum(axis=1), mean_distance(shares)


def _cobias_ends(
    right: NDArray[np.int64],
    rows: NDArray[np.int64],
    estimate: float,
    resamples: int,
    seed: int,
) -> tuple[float, float]:
    """Return the ends of the interval of COBias: what would hardly make it so large, so small."""
    known = rows > 0
    right, rows = right[known], rows[known]
    n = rows.size
    if n < 2:
        return estimate, estimate
    shares = right / rows
    # The way the classes lie apart is taken from the data, how far is what is asked for.
    shape = (shares - shares.mean()) / max(estimate, _EVEN)
    if estimate < _EVEN:
        shape = np.linspace(-0.5, 0.5, n) * 3 * (n - 1) / (n + 1)
    # Classes that are always right, or never, may be otherwise in other rows.
    likely = (right + 1) / (rows + 2)
    errors = np.sqrt(likely * (1.0 - likely) / rows)
    noise = np.random.default_rng(seed).standard_normal((resamples, n)) * errors

    def observed(true: float, quantile: float) -> float:
        return float(np.quantile(mean_distance(true * shape + noise), quantile))

    tail = (1.0 - _LEVEL) / 2
    # Less than chance alone makes is luck, or rows that were tuned on.
    least = max(estimate, observed(0.0, 0.5))
    low = _crossing(lambda true: observed(true, 1.0 - tail), estimate, least)
    high = _crossing(lambda true: observed(true, tail), least, least + 4.0 * float(errors.max()))
    # The classes cannot lie farther apart than half of them always right and half never.
    most = 2 * (n // 2) * (n - n // 2) / (n * (n - 1))
    return min(low, estimate), max(min(high, most), estimate)


def _crossing(rising: Callable[[float], float], value: float, high: float) -> float:
    """Return where between 0 and `high` a rising function passes a value, or the nearer end."""
    low = 0.0
    if rising(low) >= value:
        return low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if rising(middle) < value:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _interval(estimate: float, drawn: NDArray[np.float64]) -> Interval:
    known = drawn[~np.isnan(drawn)]
    if math.isnan(estimate) or known.size == 0:
        return Interval(estimate, math.nan, math.nan, math.nan)
    normal = NormalDist()
    # Ties count half: a figure that hardly varies is not biased.
    below = ((known < estimate).sum() + 0.5 * (known == estimate).sum()) / known.size
    edge = 1.0 / (known.size + 1)
    shift = normal.inv_cdf(float(np.clip(below, edge, 1.0 - edge)))
    reach = normal.inv_cdf((1.0 + _LEVEL) / 2)
    low, high = np.quantile(
        known, [normal.cdf(2 * shift - reach), normal.cdf(2 * shift + reach)]
    ).tolist()
    return Interval(estimate, min(low, estimate), max(high, estimate), float(known.std()))


def _two_sided(differences: NDArray[np.float64]) -> float:
    n = differences.size
    smaller = min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    return min(1.0, 2.0 * (smaller + 1) / (n + 1))


def _mcnemar(gained: int, lost: int) -> float:
    """Two-sided sign test on the rows where the two predictions differ in being right."""
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
    """Write a share as ``58.2``, ``58.2 ± 0.3`` or ``58.2 [55.1, 61.0]``.

    Parameters
    ----------
    share : float or None
        A fraction; nothing is written for None and NaN.
    deviation : float, optional
        Its standard deviation; None and NaN are not written.
    interval : tuple of float, optional
        Where it may lie, instead; NaN is not written.
    digits : int
        Places after the point.
    coarse : bool
        Write the ends of the interval in whole percent.
    padded : bool
        Write a blank before ends of one digit, so that the brackets of a column are in line.
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
    """Write a p-value for a column: ``0.035``, ``<0.002``, nothing for None and NaN."""
    if p is None or math.isnan(p):
        return ""
    return f"<{_SMALLEST}" if p < _SMALLEST else f"{p:.3f}"


def sentence_of_chance(p: float) -> str:
    """Write a p-value for a sentence: ``p = 0.035``, ``p < 0.002``."""
    text = chance(p)
    return f"p < {text[1:]}" if text.startswith("<") else f"p = {text}"
