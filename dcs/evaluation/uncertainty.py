"""Confidence intervals and paired tests of metrics, and their formatting.

Accuracy, class accuracies and COBias depend on the rows only through the numbers of correct and
wrong rows per class, so that these are resampled instead of the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, betaincinv, gammainc, gammaincc, ndtri, stdtr, stdtrit

from dcs.data.checks import finite_number
from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import METRICS, ClassificationMetrics, mean_distance, rates

Array = NDArray[np.float64]

_RESAMPLES: Final = 2000

#: Enough for standard errors with a relative error of about 5 %.
_FEW_RESAMPLES: Final = 200

#: Number of simulated samples of COBias, of which only two moments are used.
_SIMULATED: Final = 400

#: Smallest p-value shown.
_MIN_P: Final = 0.002

#: Coverage of the intervals.
LEVEL: Final = 0.95

#: Smaller differences of class accuracies are rounding errors.
_ROUNDING: Final = 1e-9

#: Number of bisection steps of a p-value, and of the end of a score interval.
_BISECTIONS: Final = 20
_END_BISECTIONS: Final = 60

#: Fewest splits of which the spread is estimated: of two it is often small by chance.
_FEWEST_SPLITS: Final = 3

#: Smaller probabilities are not distinguished.
_LEAST_P: Final = 1e-9

#: Positions at which COBias is simulated: shares of the way from none to the observed one, and
#: standard deviations beyond it.
_INWARD: Final = np.linspace(0.0, 1.0, 9)
_OUTWARD: Final = (0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)


@dataclass(frozen=True, slots=True)
class Interval:
    """Estimate with a confidence interval.

    Attributes
    ----------
    estimate, low, high : float
        Metric and the ends of its interval; NaN for a class without rows.
    standard_error : float
        Standard deviation of the metric over the resamples; NaN if a class lacks rows in some.
    p : float
        Two-sided p-value of a difference of zero; NaN if it is not tested.
    """

    estimate: float
    low: float
    high: float
    standard_error: float
    p: float = math.nan

    def widened(self, effect: float) -> Interval:
        """Return the interval of a metric whose variance is `effect` times as large."""
        factor = math.sqrt(effect)
        # A missing value stays one.
        low = max(self.estimate - factor * (self.estimate - self.low), 0.0)
        high = min(self.estimate + factor * (self.high - self.estimate), 1.0)
        return Interval(self.estimate, low, high, factor * self.standard_error)


@dataclass(frozen=True, slots=True)
class MetricIntervals:
    """Confidence intervals of the metrics of one set of predictions.

    Attributes
    ----------
    metrics : mapping of str to Interval
        Those of :data:`dcs.evaluation.metrics.METRICS`, by name, as fractions. The interval of the
        weakest class is for the lowest of the true class accuracies, whichever class has it.
    class_accuracies : tuple of Interval
        One per class.
    corrected_cobias : float
        COBias without the part that sampling adds on average: the value at which an estimate as
        high as the observed one is as likely as a lower one; 0 if sampling explains all of it.
    """

    metrics: Mapping[str, Interval]
    class_accuracies: tuple[Interval, ...]
    corrected_cobias: float


def metric_intervals(
    confusion: NDArray[Any], *, resamples: int = _RESAMPLES, effect: float = 1.0
) -> MetricIntervals:
    """Return 95 % confidence intervals of all metrics of a confusion matrix.

    Exact intervals (Clopper and Pearson 1934) for accuracy, also that of classes; for the weakest
    class, the smallest of their lower ends, and of the upper ends at a level corrected for the
    number of classes (Sidak 1967). Bias-corrected bootstrap intervals (Efron 1987) for all
    other metrics but COBias: of length 0 if all predictions are right, or all wrong.

    By chance alone class accuracies differ, so that COBias is overestimated. Its interval contains
    the values at which the observed one is not unlikely, simulated for the most likely class
    accuracies of each value. `benchmarks/calibration.py` simulates the coverage.

    Parameters
    ----------
    confusion : array of int, shape [N, N]
        Row = true class, column = predicted class.
    resamples : int, optional
        Number of bootstrap samples.
    effect : float, optional
        Factor by which copies of rows increase variances; see `design_effect`.

    Raises
    ------
    InvalidInputError
        If an argument is invalid.
    """
    estimate = ClassificationMetrics.from_confusion(confusion)
    counts = np.asarray(confusion, dtype=np.int64)
    right, rows = counts.diagonal(), counts.sum(axis=1)
    drawn = _resample(np.stack([right, rows - right]), resamples)
    shares, accuracies, biases = _metrics(drawn[:, 0], drawn.sum(axis=1))
    lows, highs = (each.tolist() for each in _exact_ends(right, rows, LEVEL))
    errors = shares.std(axis=0).tolist()
    by_class = map(Interval, estimate.class_accuracies, lows, highs, errors)
    curve = _CobiasCurve(right, rows, effect)
    lowest, ends = np.nanmin(shares, axis=1), _weakest(right, rows)
    low, high = map(float, _exact_ends(right.sum(), rows.sum(), LEVEL))
    metrics = {
        "accuracy": around(estimate.accuracy, (low, high), accuracies),
        "balanced_accuracy": _bootstrap(estimate.balanced_accuracy, np.nanmean(shares, axis=1)),
        "macro_f1": _bootstrap(estimate.macro_f1, _resample_f1(counts, resamples)),
        "weakest_class": around(estimate.weakest_class, ends, lowest),
    }
    for name in METRICS.keys() - {*metrics, "cobias"}:
        others = _resample_metric(counts, name, resamples)
        metrics[name] = _bootstrap(getattr(estimate, name), others)
    widened = {name: each.widened(effect) for name, each in metrics.items()}
    # Copies add to the COBias that sampling causes, so that its curve knows of them.
    widened["cobias"] = around(estimate.cobias, curve.ends(LEVEL), math.sqrt(effect) * biases)
    classes = tuple(each.widened(effect) for each in by_class)
    return MetricIntervals(widened, classes, curve.centre)


def compare_predictions(
    labels: ArrayLike,
    before: ArrayLike,
    after: ArrayLike,
    n_classes: int,
    *,
    groups: ArrayLike | None = None,
) -> dict[str, Interval]:
    """Compare two sets of predictions on the same rows, e.g. uncorrected and corrected.

    COBias is overestimated by an amount that depends on the noise of the predictions, so that the
    plain difference can differ from 0 although the true values are equal. Interval and p-value of
    COBias are therefore derived from the intervals of both values (Zou and Donner 2008).

    Parameters
    ----------
    labels, before, after : array of int, shape [M]
        True classes and the two predictions.
    n_classes : int
        Number of classes N.
    groups : array of int, shape [M], optional
        Group of copies of every row, which counts once in variances; by default no row is a copy.

    Returns
    -------
    dict of str to Interval
        The differences "after - before" of ``accuracy``, with the exact McNemar test of equal
        accuracy, and of ``cobias``: the plain difference, with an interval for the true values,
        and one minus the largest confidence at which it excludes 0.

    Raises
    ------
    InvalidInputError
        If an argument is invalid.
    """
    cells = paired_counts(labels, before, after, n_classes)
    n_rows, rows = int(cells.sum()), cells.sum(axis=0)
    _, (bias1, bias2) = _both_metrics(_resample(cells, _RESAMPLES))
    correlation = _correlation(bias1, bias2)
    changed = np.asarray(before) != np.asarray(after)
    effect = 1.0 if groups is None else design_effect(groups, changed)
    spread = math.sqrt(effect)
    curves = [_CobiasCurve(cells[first] + cells[3], rows, effect) for first in (2, 1)]
    change = curves[1].observed - curves[0].observed

    def ends(level: float) -> tuple[float, float]:
        one, two = ((curve.centre, *curve.ends(level)) for curve in curves)
        return _difference(two, one, correlation)

    gained, lost = int(cells[1].sum()), int(cells[2].sum())
    gain = (gained - lost) / n_rows
    error = math.sqrt(effect * max(0.0, gained + lost - n_rows * gain**2)) / n_rows
    reached = accuracy_difference(gained / effect, lost / effect, n_rows / effect)
    cobias = around(change, ends(LEVEL), spread * (bias2 - bias1))
    return {
        "accuracy": Interval(gain, *reached, error, mcnemar_p(gained, lost, effect=effect)),
        "cobias": replace(cobias, p=_inverted_p(ends) if change else 1.0),
    }


def paired_errors(cells: NDArray[np.int64]) -> tuple[float, float]:
    """Return bootstrap standard errors of the differences between two sets of predictions.

    They are those of accuracy, and of accuracy minus COBias.

    Parameters
    ----------
    cells : array of int, shape [4, N]
        What :func:`paired_counts` returns.
    """
    drawn = _resample(cells, _FEW_RESAMPLES)
    accuracy, bias = (after - before for before, after in _both_metrics(drawn))
    return float(accuracy.std()), float((accuracy - bias).std())


def design_effect(groups: ArrayLike, changed: ArrayLike | None = None) -> float:
    """Return the factor by which copies increase the variance of a mean, 1 or more.

    Copies of a row are predicted alike, so that a group of them counts once: the factor is the
    mean size of the group of a changed row, or of any row if none is changed.

    Parameters
    ----------
    groups : array of int, shape [M]
        Group of copies of every row.
    changed : array of bool, shape [M], optional
        Rows on which the two sets of predictions differ; by default all, for a single set.
    """
    own = np.asarray(groups)
    chosen = own[np.asarray(changed)] if changed is not None and np.any(changed) else own
    sizes = np.unique(chosen, return_counts=True)[1]
    return float((sizes**2).sum() / sizes.sum()) if sizes.size else 1.0


def paired_counts(
    labels: ArrayLike, before: ArrayLike, after: ArrayLike, n_classes: int
) -> NDArray[np.int64]:
    """Count rows by class, and by which of two sets of predictions have them right.

    Parameters
    ----------
    labels, before, after : array of int, shape [M]
        True classes and the two predictions.
    n_classes : int
        Number of classes N.

    Returns
    -------
    array of int64, shape [4, N]
        Rows that neither has right, only the second, only the first, and both.
    """
    for values in (before, after):
        # Validates labels and predictions.
        ClassificationMetrics.from_predictions(labels, values, n_classes)
    true = np.asarray(labels, dtype=np.int64)
    first, second = (np.asarray(each) == true for each in (before, after))
    key = true + n_classes * (2 * first.astype(np.int64) + second)
    return np.bincount(key, minlength=4 * n_classes).reshape(4, n_classes)


def _both_metrics(drawn: NDArray[np.int64]) -> tuple[Array, Array]:
    """Return accuracy [2, R] and COBias [2, R] of both predictions from R paired counts."""
    right = np.stack([drawn[:, k] + drawn[:, 3] for k in (2, 1)])
    return _metrics(right, drawn.sum(axis=1))[1:]


def _resample(cells: NDArray[np.int64], resamples: int) -> NDArray[np.int64]:
    """Draw `resamples` tables of counts with the total and the proportions of `cells`."""
    total = int(cells.sum())
    drawn = np.random.default_rng(0).multinomial(total, cells.ravel() / total, size=resamples)
    return drawn.reshape(resamples, *cells.shape)


def _resample_f1(counts: NDArray[np.int64], resamples: int) -> Array:
    """Return macro-F1 [R] of R resamples of a confusion matrix [N, N]."""
    # Empty cells, most of them with many classes, remain empty and are skipped.
    true, predicted = np.nonzero(counts)
    drawn = _resample(counts[true, predicted], resamples)
    members = np.eye(len(counts))
    right = (drawn * (true == predicted)) @ members[true]
    rows = drawn @ members[true]
    scores = rates(2 * right, np.where(rows > 0, rows + drawn @ members[predicted], 0))
    return np.asarray(np.nanmean(scores, axis=1), dtype=np.float64)


def _resample_metric(counts: NDArray[np.int64], name: str, resamples: int) -> Array:
    """Return any metric [R] of R resamples of a confusion matrix [N, N]."""
    drawn = map(ClassificationMetrics.from_confusion, _resample(counts, resamples))
    return np.array([getattr(each, name) for each in drawn])


def _metrics(right: NDArray[Any], rows: NDArray[Any]) -> tuple[Array, Array, Array]:
    """Return class accuracies [..., N], accuracy and COBias [...] of tables of counts."""
    rows = np.broadcast_to(rows, right.shape)
    shares = rates(right, rows)
    return shares, right.sum(axis=-1) / rows.sum(axis=-1), mean_distance(shares)


class _CobiasCurve:
    """How likely an observed COBias is for each true one.

    For each true value, the class accuracies are the most likely ones with that COBias. In the
    order of the observed accuracies COBias is linear, so that they are an isotonic regression of
    the observed ones, shifted towards each other, or apart, in proportion to their variances.
    """

    def __init__(self, right: NDArray[np.int64], rows: NDArray[np.int64], effect: float) -> None:
        known = rows > 0
        right, rows = right[known], rows[known]
        # Copies count once.
        different = np.maximum(1, np.rint(rows / effect)).astype(np.int64)
        self.observed = float(mean_distance(right / rows))
        end = 1.0
        while mean_distance(_shifted(right, rows, end)) > _ROUNDING:
            end *= 2.0
        found: list[tuple[float, float, float, float]] = []
        # An observed COBias below that of chance alone is luck or the result of tuning on the
        # rows; it is no evidence against larger values than chance allows.
        luck = _sample(different, _shifted(right, rows, end))
        least = max(self.observed, float(np.median(luck)))
        # COBias is largest if half of the classes are always correct and half never.
        for position in (*(end * (1.0 - _INWARD)), *(-each for each in _OUTWARD)):
            accuracies = _shifted(right, rows, position)
            above, below = _tails(_sample(different, accuracies), self.observed, least)
            found.append((float(mean_distance(accuracies)), position, above, below))
            if position < 0.0 and below < _ROUNDING:
                break
        # True values, ascending.
        self.values, _, above, below = np.array(sorted(found)).T
        # The moments are simulated; the probabilities are monotone.
        rising, falling = np.maximum.accumulate(above), np.minimum.accumulate(below)
        # Normal quantiles of the probabilities of a COBias at least, and at most, as large as the
        # observed one: smoother than the probabilities themselves, between which they interpolate.
        clipped = (np.clip(each, _LEAST_P, 1.0 - _LEAST_P) for each in (rising, falling))
        self.above, self.below = map(ndtri, clipped)

    @property
    def centre(self) -> float:
        """The value at which a larger observed COBias is as likely as a smaller one."""
        return self._crossing(self.above, 0.0)

    def ends(self, level: float) -> tuple[float, float]:
        """Return the ends of the confidence interval at a level."""
        tail = float(ndtri((1.0 - level) / 2))
        low, high = self._crossing(self.above, tail), self._crossing(-self.below, -tail)
        return low, max(high, low)

    def _crossing(self, rising: Array, target: float) -> float:
        """Return the value at which a rising curve reaches a target, or the nearer end."""
        return float(np.interp(target, rising, self.values))


def _shifted(right: NDArray[np.int64], rows: NDArray[np.int64], position: float) -> Array:
    """Return the class accuracies at a position: 0 for the observed ones, above 0 fairer."""
    from scipy.optimize import isotonic_regression  # Takes longer than all of NumPy.

    n, shares = rows.size, right / rows
    # One variance for all classes, so that the mean over the rows does not change; with a row
    # more of each kind, since classes that are always correct may differ in other rows.
    mean = (right.sum() + 1) / (rows.sum() + 2)
    variances = mean * (1.0 - mean) / rows
    order = np.argsort(shares, kind="stable")
    slope = (2.0 * np.arange(n) - (n - 1)) / max(1.0, n * (n - 1) / 2)
    spread = math.sqrt(float((variances[order] * slope**2).sum()))
    step = variances[order] * slope / max(spread, _LEAST_P)
    fitted = isotonic_regression(shares[order] - position * step, weights=rows[order]).x
    accuracies = np.empty(n)
    accuracies[order] = np.clip(fitted, 0.0, 1.0)
    return accuracies


def _sample(rows: NDArray[np.int64], accuracies: Array) -> Array:
    """Draw COBias [R] of classes with these numbers of rows and true accuracies."""
    drawn = np.random.default_rng(0).binomial(rows, accuracies, size=(_SIMULATED, rows.size))
    return mean_distance(drawn / rows)


def _tails(sample: Array, least: float, most: float) -> tuple[float, float]:
    """Return the probabilities of a value of at least `least`, and of at most `most`.

    The squares have a gamma distribution for two classes of equal accuracy, and nearly a normal
    one, which it approaches, if COBias is large; their moments determine it.
    """
    squares = sample**2
    mean, variance = float(squares.mean()), float(squares.var())
    if variance <= 0.0:
        return float(mean >= least**2), float(mean <= most**2)
    shape, scale = mean**2 / variance, variance / mean
    # Without errors a sample is 0, which no gamma distribution is.
    below = max(gammainc(shape, most**2 / scale), (sample <= _ROUNDING).mean())
    return float(gammaincc(shape, least**2 / scale)), float(below)


def _correlation(a: Array, b: Array) -> float:
    spread = float(a.std() * b.std())
    return float(np.mean((a - a.mean()) * (b - b.mean())) / spread) if spread > 0.0 else 0.0


def _difference(
    first: tuple[float, float, float], second: tuple[float, float, float], correlation: float
) -> tuple[float, float]:
    """Return the interval of a difference from two estimates with their intervals.

    Source: Zou and Donner 2008, Construction of confidence limits about effect measures.
    """
    (a, a_low, a_high), (b, b_low, b_high) = first, second

    def reach(x: float, y: float) -> float:
        return math.sqrt(max(0.0, x * x + y * y - 2.0 * correlation * x * y))

    return a - b - reach(a - a_low, b_high - b), a - b + reach(a_high - a, b - b_low)


def _inverted_p(ends: Callable[[float], tuple[float, float]]) -> float:
    """Return the largest p at which the interval at the level 1 - p contains 0, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        first, last = ends(1.0 - middle)
        low, high = (middle, high) if first <= 0.0 <= last else (low, middle)
    return (low + high) / 2


def _exact_ends(right: NDArray[Any], rows: NDArray[Any], level: float) -> tuple[Array, Array]:
    """Return the exact confidence limits of the success rates of binomial counts."""
    tail = (1.0 - level) / 2
    low = betaincinv(np.maximum(right, 1), rows - right + 1, tail)
    high = betaincinv(right + 1, np.maximum(rows - right, 1), 1.0 - tail)
    low, high = np.where(right == 0, 0.0, low), np.where(right == rows, 1.0, high)
    absent = rows == 0
    return np.where(absent, np.nan, low), np.where(absent, np.nan, high)


def _weakest(right: NDArray[Any], rows: NDArray[Any]) -> tuple[float, float]:
    """Return the confidence limits of the lowest of the true class accuracies."""
    known = rows > 0
    right, rows = right[known], rows[known]
    tail = (1.0 - LEVEL) / 2
    # The true minimum is below the lower limit of its class with the probability of that class
    # alone, and above one of the upper limits only if all classes are above it.
    corrected = 1.0 - (1.0 - tail) ** (1.0 / rows.size)
    low = _exact_ends(right, rows, LEVEL)[0].min()
    return float(low), float(_exact_ends(right, rows, 1.0 - 2.0 * corrected)[1].min())


def around(estimate: float, ends: tuple[float, float], drawn: Array) -> Interval:
    """Return an interval that contains its estimate, given the metric [R] of resamples."""
    low, high = ends
    return Interval(estimate, min(low, estimate), max(high, estimate), float(drawn.std()))


def _bootstrap(estimate: float, drawn: Array) -> Interval:
    normal = NormalDist()
    # Ties count half, so that a metric that hardly varies is not considered biased.
    below = ((drawn < estimate).sum() + 0.5 * (drawn == estimate).sum()) / drawn.size
    edge = 1.0 / (drawn.size + 1)
    shift = normal.inv_cdf(float(np.clip(below, edge, 1.0 - edge)))
    reach = normal.inv_cdf((1.0 + LEVEL) / 2)
    tails = [normal.cdf(2 * shift - reach), normal.cdf(2 * shift + reach)]
    low, high = np.quantile(drawn, tails).tolist()
    return around(estimate, (low, high), drawn)


def mcnemar_p(gained: int, lost: int, *, effect: float = 1.0) -> float:
    """Return the p-value of McNemar's test, a sign test on the rows where one is correct.

    Parameters
    ----------
    gained, lost : int
        Numbers of rows that only the second or only the first set of predictions has right.
    effect : float, optional
        Factor by which copies of rows increase variances, by which these numbers are divided.
    """
    rows = math.floor((gained + lost) / effect + _ROUNDING)
    fewer = min(rows, math.ceil(min(gained, lost) / effect - _ROUNDING))
    return min(1.0, 2.0 * float(bdtr(fewer, rows, 0.5)))


@dataclass(frozen=True, slots=True)
class NonInferiority:
    """One-sided score test of paired accuracies on the same rows (Tango 1998).

    The null hypothesis is that the true accuracy decreases by the margin or more. The variance is
    estimated under this hypothesis, so that few or no differing rows prove nothing. The rows may
    be cross-validated: for stable fits, the variance over all held-out rows is valid for the mean
    of the folds (Bayle et al. 2020, arXiv 2007.12671). `benchmarks/calibration.py` simulates it.

    Parameters
    ----------
    gained, lost : float
        Numbers of rows that only the second or only the first set of predictions has right;
        fractions where copies count together.
    n_rows : float
        Number of rows.
    margin : float
        Largest acceptable loss of accuracy, as a fraction.
    confidence : float
        One minus the level of the test.
    """

    gained: float
    lost: float
    n_rows: float
    margin: float
    confidence: float = 0.95

    @property
    def statistic(self) -> float:
        """Standardised excess of the accuracy difference over minus the margin."""
        n, loss = self.n_rows, self.margin
        excess = self.gained - self.lost + n * loss
        # Maximum likelihood estimate of the probability of a loss if the hypothesis is true.
        b = -self.gained - self.lost - (2 * n - self.gained + self.lost) * loss
        c = self.lost * loss * (1.0 + loss)
        losses = (math.sqrt(max(0.0, b * b - 8.0 * n * c)) - b) / (4.0 * n)
        variance = n * (2.0 * losses - loss * (1.0 + loss))
        if variance <= 0.0:
            return math.inf if excess > 0.0 else -math.inf
        return excess / math.sqrt(variance)

    @property
    def critical(self) -> float:
        """Value that the statistic must reach."""
        return NormalDist().inv_cdf(self.confidence)

    @property
    def passed(self) -> bool:
        """Whether a loss of the margin or more is rejected."""
        return self.statistic >= self.critical

    @property
    def rows_needed(self) -> int | None:
        """Number of rows at which the same rates pass; None if they lose the margin or more."""
        statistic = self.statistic
        if statistic <= 0.0:
            return None
        return math.ceil(self.n_rows * max(1.0, (self.critical / statistic) ** 2))


def accuracy_difference(
    gained: float, lost: float, n_rows: float, *, confidence: float = 0.95
) -> tuple[float, float]:
    """Return the score interval of a difference of paired accuracies (Tango 1998).

    Parameters
    ----------
    gained, lost : float
        Numbers of rows that only the second or only the first set of predictions has right;
        fractions where copies count together.
    n_rows : float
        Number of rows.
    confidence : float, optional
        Coverage of the interval.

    Returns
    -------
    low, high : float
        Ends of the interval of the second accuracy minus the first, -1..1.
    """
    critical = NormalDist().inv_cdf((1.0 + confidence) / 2.0)

    def lower(gained: float, lost: float) -> float:
        low, high = -1.0, (gained - lost) / n_rows
        for _ in range(_END_BISECTIONS):
            middle = (low + high) / 2.0
            rejected = NonInferiority(gained, lost, n_rows, -middle).statistic > critical
            low, high = (middle, high) if rejected else (low, middle)
        return low

    return lower(gained, lost), -lower(lost, gained)


def compare_over_splits(differences: ArrayLike, *, test_ratio: float) -> Interval:
    """Compare two methods by the corrected resampled t-test.

    Splits of the same rows overlap, so that their results are correlated and the standard error
    over splits is too small. The correction adds the ratio of test to fitted rows to the inverse
    of the number of splits.

    Parameters
    ----------
    differences : array of float, shape [S]
        Differences of a metric between two methods, one per split.
    test_ratio : float
        Number of test rows divided by the number of fitted rows: 3 / 7 for 70/30 splits.

    Returns
    -------
    Interval
        Mean, corrected standard error, and of three splits or more the interval and p-value; of
        equal differences other than zero there is no p-value.

    Raises
    ------
    InvalidInputError
        If there is no difference, or a value is not finite.

    Notes
    -----
    Source: Nadeau and Bengio 2003, Inference for the generalization error, Machine Learning 52.
    """
    values = np.asarray(differences, dtype=np.float64)
    if values.ndim != 1 or values.size == 0 or not np.isfinite(values).all():
        raise InvalidInputError("differences: must be at least one finite number per split")
    ratio = finite_number(test_ratio, "test_ratio", positive=True)
    mean, n = float(values.mean()), values.size
    if n < _FEWEST_SPLITS:
        return Interval(mean, math.nan, math.nan, math.nan)
    error = math.sqrt((1.0 / n + ratio) * float(values.var(ddof=1)))
    reach = float(stdtrit(n - 1, 0.975)) * error
    without_spread = 1.0 if mean == 0.0 else math.nan
    p = 2.0 * float(stdtr(n - 1, -abs(mean) / error)) if error > 0.0 else without_spread
    return Interval(mean, mean - reach, mean + reach, error, p)


def percent(
    share: float | None,
    deviation: float | None = None,
    *,
    interval: tuple[float, float] | None = None,
    digits: int = 1,
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
    padded : bool
        Whether to pad ends of one digit with a blank, to align the brackets of a column.
    """
    if share is None or math.isnan(share):
        return ""
    text = f"{100 * share:.{digits}f}"
    if deviation is not None and not math.isnan(deviation):
        return f"{text} ± {100 * deviation:.{digits}f}"
    if interval is not None and not math.isnan(interval[0]):
        low, high = (f"{100 * end:{4 if padded else 0}.1f}" for end in interval)
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
