from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binomtest, norm

from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import ClassificationMetrics
from dcs.evaluation.uncertainty import compare_predictions, metric_intervals
from tests.dcs.refusals import refuses

_CONFUSION = np.array([[80, 15, 5], [30, 60, 10], [20, 20, 60]])


def _rows(confusion: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    true, predicted = np.indices(confusion.shape).reshape(2, -1)
    return np.repeat(true, confusion.ravel()), np.repeat(predicted, confusion.ravel())


def test_agrees_with_resampling_the_rows() -> None:
    labels, predictions = _rows(_CONFUSION)
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(800):
        rows = rng.integers(0, labels.size, labels.size)
        m = ClassificationMetrics.from_predictions(labels[rows], predictions[rows], 3)
        drawn.append((m.accuracy, m.cobias, m.balanced_accuracy, m.macro_f1, *m.class_accuracies))
    spread = np.std(drawn, axis=0)
    found = metric_intervals(_CONFUSION)
    whole = (found.accuracy, found.cobias, found.balanced_accuracy, found.macro_f1)
    errors = [item.standard_error for item in (*whole, *found.class_accuracies)]
    np.testing.assert_allclose(errors, spread, rtol=0.12)


def test_class_accuracies_have_exact_intervals() -> None:
    found = metric_intervals(_CONFUSION)
    tests = [binomtest(int(right), 100) for right in _CONFUSION.diagonal()]
    exact = [test.proportion_ci() for test in tests]
    ends = [(each.low, each.high) for each in found.class_accuracies]
    np.testing.assert_allclose(ends, exact)
    # The lowest of three true accuracies is above an end only if all three are.
    level = 1.0 - 2.0 * (1.0 - 0.975 ** (1 / 3))
    high = min(test.proportion_ci(level).high for test in tests)
    weakest = found.weakest_class
    assert (weakest.low, weakest.high) == pytest.approx((min(low for low, _ in exact), high))


def test_the_bias_of_the_bootstrap_is_corrected() -> None:
    confusion = np.eye(6, dtype=int) + np.eye(6, k=1, dtype=int)
    intervals = metric_intervals(confusion, resamples=20000)
    drawn = np.random.default_rng(1).multinomial(11, confusion.ravel() / 11, size=5000)
    tables = drawn.reshape(-1, 6, 6)
    metrics = [ClassificationMetrics.from_confusion(each) for each in tables]
    for name in ("accuracy", "macro_f1"):
        found, scores = getattr(intervals, name), np.array([getattr(m, name) for m in metrics])
        below = np.mean(scores < found.estimate) + np.mean(scores == found.estimate) / 2
        levels = norm.cdf(2.0 * norm.ppf(below) + norm.ppf([0.025, 0.975]))
        ends = tuple(np.quantile(scores, levels))
        assert (found.low, found.high) == pytest.approx(ends, abs=0.02)


@pytest.mark.parametrize("spread", [0.02, 0.1])
def test_covers_the_true_cobias_where_the_bootstrap_does_not(spread: float) -> None:
    rng = np.random.default_rng(0)
    true = 0.6 + spread * np.array([1, -1, 0, 0])
    truth = ClassificationMetrics.from_confusion(
        np.diag((true * 1e6).astype(int)) + np.roll(np.diag(((1 - true) * 1e6).astype(int)), 1, 1)
    ).cobias
    covered = score_covered = 0
    for i in range(60):
        right = rng.binomial(400, true)
        confusion = np.diag(right) + np.roll(np.diag(400 - right), 1, 1)
        found = metric_intervals(confusion, seed=i, resamples=500)
        covered += found.cobias.low <= truth <= found.cobias.high
        score_covered += found.score.low <= true.mean() - truth <= found.score.high
    assert covered >= 55
    assert score_covered >= 55


def test_what_chance_explains_reaches_down_to_no_bias() -> None:
    noisy = metric_intervals(np.array([[52, 48], [50, 50]])).cobias
    assert noisy.low == 0.0 < noisy.estimate < noisy.high
    even = metric_intervals(np.array([[50, 50, 0], [0, 50, 50], [50, 0, 50]])).cobias
    assert even.low == even.estimate == 0.0
    assert 0.05 < even.high < 0.2, "more even than chance allows says nothing more"
    assert metric_intervals(np.array([[9, 1], [0, 0]])).cobias.high == 0.0


@pytest.mark.parametrize("n_classes", [2, 3, 4, 5])
def test_no_interval_holds_more_cobias_than_there_can_be(n_classes: int) -> None:
    confusion = np.zeros((n_classes, n_classes), np.int64)
    # Half of the classes are always right, the others never.
    confusion[np.arange(n_classes), (np.arange(n_classes) | 1) % n_classes] = 3
    found = metric_intervals(confusion).cobias
    assert found.high == pytest.approx(found.estimate)


def test_class_without_rows_has_no_interval() -> None:
    found = metric_intervals(np.array([[5, 1, 0], [0, 0, 0], [2, 0, 9]]))
    assert math.isnan(found.class_accuracies[1].low) and not math.isnan(found.cobias.high)
    assert found.weakest_class.estimate == found.class_accuracies[2].estimate


def test_a_clear_gain_is_seen_and_swapping_turns_it_round() -> None:
    labels, before = _rows(_CONFUSION)
    after = before.copy()
    wrong = np.flatnonzero((before != labels) & (labels == 1))
    after[wrong[:25]] = 1
    pair = compare_predictions(labels, before, after, 3)
    assert pair.accuracy.estimate == pytest.approx(25 / 300)
    assert pair.accuracy.low > 0.0
    assert pair.accuracy_p == pytest.approx(2 * 0.5**25)
    back = compare_predictions(labels, after, before, 3)
    assert back.accuracy.estimate == -pair.accuracy.estimate
    assert back.cobias.estimate == -pair.cobias.estimate
    refuses(InvalidInputError, compare_predictions, labels, before[1:], after, 3)
    same = compare_predictions(labels, after, after, 3)
    assert same.accuracy.low == -same.accuracy.high < 0.0  # None differs, of few rows.
    assert same.accuracy_p == same.cobias_p == 1.0
    assert same.cobias.standard_error == 0.0, "the two vary together"


def test_the_tail_of_many_differences_is_exact() -> None:
    labels, before, after = np.zeros((3, 2400), np.int64)
    before[:560], after[560:1060] = 1, 1
    pair = compare_predictions(labels, before, after, 2)
    exact = 2 * sum(math.comb(1060, k) for k in range(501)) / 2**1060
    assert pair.accuracy_p == pytest.approx(exact)
