"""How sure a figure is: bootstrap intervals and paired tests, from counts alone.

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

from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import ClassificationMetrics, class_accuracies, confusion_matrix

__all__ = [
    "Interval",
    "MetricIntervals",
    "PairedComparison",
    "bootstrap_intervals",
    "compare_predictions",
]

_RESAMPLES: Final = 2000
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
    class_accuracies : tuple of Interval
        One per class.
    level : float
        Coverage, e.g. 0.95.
    """

    accuracy: Interval
    cobias: Interval
    score: Interval
    class_accuracies: tuple[Interval, ...]
    level: float


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
    confusion: NDArray[Any],
    *,
    level: float = 0.95,
    resamples: int = _RESAMPLES,
    seed: int = 0,
) -> MetricIntervals:
    """Return bootstrap intervals for every figure of a confusion matrix.

    Bias-corrected percentile intervals (Efron 1987) for all but COBias. Chance alone makes class
    accuracies differ, so that COBias is overestimated, the more the smaller it is, and resampling
    does so once more. Its interval holds the true values that would make the observed one likely
    (a parametric bootstrap, inverted); it reaches 0 where chance explains the whole of it.

    Parameters
    ----------
    confusion : array of int, shape [N, N]
        Row = true class, column = predicted class.
    level : float, optional
        Coverage, between 0 and 1.
    resamples : int, optional
        Number of bootstrap samples.
    seed : int, optional
        The same seed gives the same intervals.

    Raises
    ------
    InvalidInputError
        When an argument is not allowed.
    """
    _check(level, resamples)
    estimate = ClassificationMetrics.from_confusion(confusion)
    counts = np.asarray(confusion, dtype=np.int64)
    right = counts.diagonal()
    cells = np.stack([right, counts.sum(axis=1) - right])
    drawn = _resample(cells, resamples, seed)
    rates, accuracy, bias = _figures(drawn[:, 0], drawn.sum(axis=1))
    low, high = _cobias_ends(right, counts.sum(axis=1), estimate.cobias, level, resamples, seed)
    return MetricIntervals(
        accuracy=_interval(estimate.accuracy, accuracy, level),
        cobias=Interval(estimate.cobias, low, high, float(bias.std())),
        score=_interval(estimate.accuracy - estimate.cobias, accuracy - bias, level),
        class_accuracies=tuple(
            _interval(value, rates[:, j], level)
            for j, value in enumerate(class_accuracies(confusion).tolist())
        ),
        level=level,
    )


def compare_predictions(
    labels: ArrayLike,
    before: ArrayLike,
    after: ArrayLike,
    n_classes: int,
    *,
    parts: ArrayLike | None = None,
    level: float = 0.95,
    resamples: int = _RESAMPLES,
    seed: int = 0,
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
    level, resamples, seed
        As for :func:`bootstrap_intervals`.

    Raises
    ------
    InvalidInputError
        When an argument is not allowed.
    """
    _check(level, resamples)
    true = np.asarray(labels, dtype=np.int64)
    ok = [np.asarray(values) == true for values in (before, after)]
    # Parts without rows have no figures.
    part = np.unique(np.zeros_like(true) if parts is None else parts, return_inverse=True)[1]
    # Checks labels and predictions too.
    first, second = (
        ClassificationMetrics.from_confusion(confusion_matrix(labels, values, n_classes))
        for values in (before, after)
    )
    key = true + n_classes * (2 * ok[0].astype(np.int64) + ok[1].astype(np.int64) + 4 * part)
    counts = np.bincount(key, minlength=4 * n_classes * (int(part.max()) + 1))
    tables = counts.reshape(-1, 4, n_classes)
    cells = tables.sum(axis=0)
    accuracy, bias, change = np.zeros(resamples), np.zeros(resamples), 0.0
    for i, table in enumerate(tables):
        # The counts themselves, then what is drawn from them.
        drawn = np.concatenate([table[None], _resample(table, resamples, seed + i)])
        rows = drawn.sum(axis=1)
        _, accuracy1, bias1 = _figures(drawn[:, 2] + drawn[:, 3], rows)
        _, accuracy2, bias2 = _figures(drawn[:, 1] + drawn[:, 3], rows)
        accuracy += (accuracy2 - accuracy1)[1:] * (table.sum() / true.size)
        differences = (bias2 - bias1) / len(tables)
        bias += differences[1:]
        change += float(differences[0])
    gain = second.accuracy - first.accuracy
    return PairedComparison(
        accuracy=_interval(gain, accuracy, level),
        cobias=_interval(change, bias, level),
        score=_interval(gain - change, accuracy - bias, level),
        accuracy_p=_mcnemar(int(cells[1].sum()), int(cells[2].sum())),
        cobias_p=_two_sided(bias),
    )


def _check(level: float, resamples: int) -> None:
    if not 0.0 < level < 1.0:
        raise InvalidInputError(f"level {level!r}: a number between 0 and 1 is needed")
    if resamples < 1:
        raise InvalidInputError(f"resamples {resamples!r}: 1 or more are needed")


def _resample(cells: NDArray[np.int64], resamples: int, seed: int) -> NDArray[np.int64]:
    """Draw `resamples` tables of counts with the total and the proportions of `cells`."""
    total = int(cells.sum())
    generator = np.random.default_rng(seed)
    drawn = generator.multinomial(total, cells.ravel() / total, size=resamples)
    return drawn.reshape(resamples, *cells.shape)


def _figures(
    right: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return class accuracies [R, N], accuracy [R] and COBias [R] of R tables of counts."""
    rates = np.full(rows.shape, np.nan)
    np.divide(right, rows, out=rates, where=rows > 0)
    accuracy = right.sum(axis=1) / rows.sum(axis=1)
    # NaN sorts last, so a class without rows falls behind those that count.
    ordered = np.sort(rates, axis=1)
    present = (rows > 0).sum(axis=1)[:, None]
    ranks = np.arange(rows.shape[1])[None, :]
    factors = np.where(ranks < present, 2.0 * ranks - (present - 1), 0.0)
    pairs = np.maximum(present[:, 0] * (present[:, 0] - 1) / 2, 1)
    bias = (factors * np.nan_to_num(ordered)).sum(axis=1) / pairs
    return rates, accuracy, bias


def _cobias_ends(
    right: NDArray[np.int64],
    rows: NDArray[np.int64],
    estimate: float,
    level: float,
    resamples: int,
    seed: int,
) -> tuple[float, float]:
    """Return the ends of the interval of COBias: what would hardly make it so large, so small."""
    known = rows > 0
    right, rows = right[known], rows[known]
    n = rows.size
    if n < 2:
        return estimate, estimate
    rates = right / rows
    # The way the classes lie apart is taken from the data, how far is what is asked for.
    shape = (rates - rates.mean()) / max(estimate, _EVEN)
    if estimate < _EVEN:
        shape = np.linspace(-0.5, 0.5, n) * 3 * (n - 1) / (n + 1)
    # Classes that are always right, or never, may be otherwise in other rows.
    likely = (right + 1) / (rows + 2)
    errors = np.sqrt(likely * (1.0 - likely) / rows)
    noise = np.random.default_rng(seed).standard_normal((resamples, n)) * errors
    factors = (2.0 * np.arange(n) - (n - 1)) / (n * (n - 1) / 2)

    def observed(true: float, quantile: float) -> float:
        return float(np.quantile(np.sort(true * shape + noise, axis=1) @ factors, quantile))

    tail = (1.0 - level) / 2
    # Less than chance alone makes is luck, or rows that were tuned on.
    least = max(estimate, observed(0.0, 0.5))
    low = _crossing(lambda true: observed(true, 1.0 - tail), estimate, least)
    high = _crossing(lambda true: observed(true, tail), least, least + 4.0 * float(errors.max()))
    return min(low, estimate), max(high, estimate)


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


def _interval(estimate: float, drawn: NDArray[np.float64], level: float) -> Interval:
    known = drawn[~np.isnan(drawn)]
    if math.isnan(estimate) or known.size == 0:
        return Interval(estimate, math.nan, math.nan, math.nan)
    normal = NormalDist()
    # Ties count half: a figure that hardly varies is not biased.
    below = ((known < estimate).sum() + 0.5 * (known == estimate).sum()) / known.size
    edge = 1.0 / (known.size + 1)
    shift = normal.inv_cdf(float(np.clip(below, edge, 1.0 - edge)))
    reach = normal.inv_cdf((1.0 + level) / 2)
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
    n, k = gained + lost, min(gained, lost)
    if n == 0:
        return 1.0
    if n > 1000:
        spread = math.sqrt(n) / 2
        return min(1.0, 2.0 * NormalDist().cdf((k + 0.5 - n / 2) / spread))
    tail = sum(math.comb(n, i) for i in range(k + 1))
    return min(1.0, 2.0 * float(tail / 2**n))
