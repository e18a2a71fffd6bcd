from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar
from scipy.special import xlogy
from scipy.stats import binomtest, norm, t

from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import METRICS, ClassificationMetrics, Metric, mean_distance
from dcs.evaluation.uncertainty import (
    NonInferiority,
    accuracy_difference,
    chance,
    compare_over_splits,
    compare_predictions,
    design_effect,
    metric_intervals,
    paired_counts,
    paired_errors,
    percent,
    sentence_of_chance,
)
from tests.dcs.refusals import refuses

_CONFUSION = np.array([[80, 15, 5], [30, 60, 10], [20, 20, 60]])


def _rows(confusion: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    true, predicted = np.indices(confusion.shape).reshape(2, -1)
    return np.repeat(true, confusion.ravel()), np.repeat(predicted, confusion.ravel())


@pytest.mark.parametrize("right", [(80, 60, 60), (100, 1, 0)], ids=str)
def test_class_accuracies_have_exact_intervals(right: tuple[int, ...]) -> None:
    found = metric_intervals(np.diag(right) + np.roll(np.diag(np.subtract(100, right)), 1, 1))
    tests = [binomtest(each, 100) for each in right]
    exact = [test.proportion_ci() for test in tests]
    ends = [(each.low, each.high) for each in found.class_accuracies]
    np.testing.assert_allclose(ends, exact)
    # The lowest of three true accuracies is above an end only if all three are.
    level = 1.0 - 2.0 * (1.0 - 0.975 ** (1 / 3))
    high = min(test.proportion_ci(level).high for test in tests)
    weakest = found.metrics["weakest_class"]
    assert (weakest.low, weakest.high) == pytest.approx((min(low for low, _ in exact), high))


def test_the_bias_of_the_bootstrap_is_corrected() -> None:
    confusion = np.eye(6, dtype=int) + np.eye(6, k=1, dtype=int)
    intervals = metric_intervals(confusion, resamples=20000)
    drawn = np.random.default_rng(1).multinomial(11, confusion.ravel() / 11, size=5000)
    metrics = [ClassificationMetrics.from_confusion(each) for each in drawn.reshape(-1, 6, 6)]
    found, scores = intervals.metrics["macro_f1"], np.array([each.macro_f1 for each in metrics])
    below = np.mean(scores < found.estimate) + np.mean(scores == found.estimate) / 2
    levels = norm.cdf(2.0 * norm.ppf(below) + norm.ppf([0.025, 0.975]))
    ends = tuple(np.quantile(scores, levels))
    assert (found.low, found.high) == pytest.approx(ends, abs=0.02)


_UNEVEN = [([90, 140], [120, 160]), ([45, 42, 30, 35, 20], [50, 60, 40, 70, 80])]


@pytest.mark.parametrize(("right", "rows"), _UNEVEN, ids=["two", "five"])
def test_beyond_the_ends_of_the_interval_of_cobias_the_observed_one_is_unlikely(
    right: list[int], rows: list[int]
) -> None:
    shares, n = np.divide(right, rows), len(rows)
    order = np.argsort(shares)
    slopes = (2.0 * np.argsort(order) - n + 1.0) / (n * (n - 1) / 2)
    told = metric_intervals(np.diag(right) + np.roll(np.diag(np.subtract(rows, right)), 1, 1))
    found = told.metrics["cobias"]
    for value, reach in ((found.low, -1.96), (told.corrected_cobias, 0.0), (found.high, 1.96)):
        # The most likely accuracies with a COBias are the nearest, in the order of the observed.
        limits = [{"type": "ineq", "fun": lambda p: np.diff(p[order])}]
        limits += [{"type": "eq", "fun": lambda p, value=value: slopes @ p - value}]
        true = minimize(lambda p: rows @ (p - shares) ** 2 / 100, shares, constraints=limits).x
        drawn = np.random.default_rng(1).binomial(rows, true, (20_000, n))
        higher = np.mean(mean_distance(drawn / rows) >= found.estimate)
        assert norm.ppf(higher) == pytest.approx(reach, abs=0.2)


def test_what_chance_explains_reaches_down_to_no_bias() -> None:
    noisy = metric_intervals(np.array([[52, 48], [50, 50]])).metrics["cobias"]
    assert noisy.low == 0.0 < noisy.estimate < noisy.high
    even = metric_intervals(np.array([[50, 50, 0], [0, 50, 50], [50, 0, 50]])).metrics["cobias"]
    assert even.low == even.estimate == 0.0
    assert 0.05 < even.high < 0.2, "more even than chance allows says nothing more"
    assert metric_intervals(np.array([[9, 1], [0, 0]])).metrics["cobias"].high == 0.0


@pytest.mark.parametrize("n_classes", [2, 3, 4, 5])
def test_no_interval_holds_more_cobias_than_there_can_be(n_classes: int) -> None:
    confusion = np.zeros((n_classes, n_classes), np.int64)
    # Half of the classes are always right, the others never.
    confusion[np.arange(n_classes), (np.arange(n_classes) | 1) % n_classes] = 3
    found = metric_intervals(confusion).metrics["cobias"]
    assert found.high == pytest.approx(found.estimate)


def test_rows_that_are_there_twice_count_once() -> None:
    once, twice = metric_intervals(_CONFUSION), metric_intervals(2 * _CONFUSION, effect=2.0)
    pairs = [(once.metrics[name], twice.metrics[name]) for name in once.metrics]
    pairs += zip(once.class_accuracies, twice.class_accuracies, strict=True)
    assert twice.corrected_cobias == pytest.approx(once.corrected_cobias, abs=0.01)
    labels, before = _rows(_CONFUSION)
    after = np.where(np.arange(labels.size) % 7 == 0, labels, np.roll(before, 30))
    same = (labels, before, after)
    single = compare_predictions(*same, 3)
    double = compare_predictions(*(np.tile(each, 2) for each in same), 3, groups=[*range(300)] * 2)
    pairs += zip(single.values(), double.values(), strict=True)
    for one, other in pairs:
        assert one.low <= one.estimate <= one.high
        assert other.estimate == pytest.approx(one.estimate)
        assert (other.low, other.high) == pytest.approx((one.low, one.high), abs=0.02)
        assert other.standard_error == pytest.approx(one.standard_error, rel=0.1)
    assert double["accuracy"].p == pytest.approx(single["accuracy"].p)
    assert double["cobias"].p == pytest.approx(single["cobias"].p, abs=0.2)
    wide = metric_intervals(_CONFUSION, effect=999.0)
    figures = [wide.metrics["accuracy"], *wide.class_accuracies]
    assert {(each.low, each.high) for each in figures} == {(0.0, 1.0)}


def test_the_design_effect_is_the_size_of_the_group_of_a_changed_row() -> None:
    groups = [5, 5, 5, 9, 9, 2, 2]
    assert design_effect(groups) == pytest.approx((9 + 4 + 4) / 7)
    assert design_effect(groups, [True, True, False, False, False, True, False]) == 5 / 3
    assert design_effect(groups, np.zeros(7, dtype=bool)) == design_effect(groups)


def test_errors_of_differences_are_those_of_new_samples() -> None:
    rng = np.random.default_rng(3)
    names = ("accuracy", "cobias")
    # Rows of the worse class are gained, which makes its COBias less.
    shares = np.array([[0.05, 0.02, 0.02, 0.41], [0.2, 0.15, 0.02, 0.13]])
    found = []
    for _ in range(200):
        labels, kind = np.divmod(rng.choice(8, 400, p=shares.ravel()), 4)
        both = [np.where(right, labels, 1 - labels) for right in (kind // 2, kind % 2)]
        metrics = [ClassificationMetrics.from_predictions(labels, each, 2) for each in both]
        gain, change = (getattr(metrics[1], n) - getattr(metrics[0], n) for n in names)
        found.append((gain, gain - change, change))
    told = compare_predictions(labels, *both, 2)
    assert told["accuracy"].standard_error == pytest.approx(np.std(kind % 2 - kind // 2) / 20)
    expected = [*paired_errors(paired_counts(labels, *both, 2)), told["cobias"].standard_error]
    np.testing.assert_allclose(np.std(found, axis=0), expected, rtol=0.2)


def test_class_without_rows_has_no_interval() -> None:
    found = metric_intervals(np.array([[5, 1, 0], [0, 0, 0], [2, 0, 9]]))
    assert math.isnan(found.class_accuracies[1].low)
    assert not math.isnan(found.metrics["cobias"].high)
    assert found.metrics["weakest_class"].estimate == found.class_accuracies[2].estimate


def test_a_clear_gain_is_seen_and_swapping_turns_it_round() -> None:
    labels, before = _rows(_CONFUSION)
    after = before.copy()
    wrong = np.flatnonzero((before != labels) & (labels == 1))
    after[wrong[:25]] = 1
    pair = compare_predictions(labels, before, after, 3)
    assert pair["accuracy"].estimate == pytest.approx(25 / 300)
    assert pair["accuracy"].low > 0.0
    assert pair["accuracy"].p == pytest.approx(2 * 0.5**25)
    back = compare_predictions(labels, after, before, 3)
    assert [each.estimate for each in back.values()] == [-each.estimate for each in pair.values()]
    refuses(InvalidInputError, compare_predictions, labels, before[1:], after, 3)
    same = compare_predictions(labels, after, after, 3)
    assert same["accuracy"].low == -same["accuracy"].high < 0.0  # None differs, of few rows.
    assert same["accuracy"].p == same["cobias"].p == 1.0
    assert same["cobias"].standard_error == 0.0, "the two vary together"
    assert 0.0 < same["cobias"].high < 0.01


def test_the_p_value_of_a_change_of_cobias_is_small_where_its_interval_excludes_none() -> None:
    labels, before = _rows(_CONFUSION)
    wrong = np.flatnonzero((before != labels) & (labels > 0))
    found = []
    for number in range(0, wrong.size, 8):
        after = np.where(np.isin(np.arange(labels.size), wrong[:number]), labels, before)
        found.append(compare_predictions(labels, before, after, 3)["cobias"])
        assert (found[-1].p < 0.05) == (not found[-1].low <= 0.0 <= found[-1].high)
    assert min(each.p for each in found) < 0.05 < max(each.p for each in found[1:])


@pytest.mark.parametrize("n_rows", [200, 1000, 5000])
@pytest.mark.parametrize("changed", [0.02, 0.1, 0.4])
def test_level_is_held_at_the_margin(n_rows: int, changed: float) -> None:
    loss = (changed + 0.005) / 2
    drawn = np.random.default_rng(0).multinomial(n_rows, [loss - 0.005, loss, 1 - changed], 4000)
    passed = [NonInferiority(*own[:2], n_rows, 0.005).passed for own in drawn.tolist()]
    assert np.mean(passed) <= 0.06


@pytest.mark.parametrize(("gained", "lost"), [(12, 10), (0, 7), (9, 0), (60, 80)])
def test_the_statistic_is_the_score_at_the_most_likely_losses(gained: int, lost: int) -> None:
    n, margin = 500, 0.02

    def unlikely(p: float) -> float:
        rest = xlogy(n - gained - lost, 1.0 - 2.0 * p + margin)
        return -float(xlogy(gained, p - margin) + xlogy(lost, p) + rest)

    p = minimize_scalar(unlikely, bounds=(margin, 0.51), options={"xatol": 1e-10}).x
    expected = (gained - lost + n * margin) / np.sqrt(n * (2.0 * p - margin - margin**2))
    assert NonInferiority(gained, lost, n, margin).statistic == pytest.approx(expected, rel=1e-4)


def test_power_grows_with_rows_and_is_told_in_advance() -> None:
    few = NonInferiority(gained=12, lost=10, n_rows=400, margin=0.005)
    assert not few.passed
    assert (needed := few.rows_needed) is not None and needed > 400
    scale = needed / 400
    more = NonInferiority(round(12 * scale), round(10 * scale), needed, 0.005)
    assert more.statistic == pytest.approx(more.critical, rel=0.05)
    assert NonInferiority(1, 30, 400, 0.005).rows_needed is None
    assert NonInferiority(10, 20, 1000, 0.01).rows_needed is None
    assert NonInferiority(30, 0, 1000, 0.01).rows_needed == 1000
    # No difference on few rows proves nothing, and all can be lost only at a margin of all.
    assert [NonInferiority(0, 0, n, 0.005).passed for n in (100, 1000)] == [False, True]
    assert [NonInferiority(0, 0, 9, margin).passed for margin in (0.0, 1.0)] == [False, True]


def test_the_interval_is_what_the_score_test_does_not_reject() -> None:
    low, high = accuracy_difference(30, 12, 700)
    assert low < 18 / 700 < high
    assert NonInferiority(30, 12, 700, -low).statistic == pytest.approx(1.96, abs=1e-3)
    assert NonInferiority(12, 30, 700, high).statistic == pytest.approx(1.96, abs=1e-3)
    assert accuracy_difference(12, 30, 700) == pytest.approx((-high, -low))
    # No differing row is some evidence, and not proof, of no difference.
    low, high = accuracy_difference(0, 0, 700)
    assert -low == pytest.approx(high)
    assert 0.0 < high < 0.01


@pytest.mark.parametrize("ratio", [1e-12, 3 / 7])
def test_it_is_student_s_test_with_an_error_that_grows_by_the_rows_shared(ratio: float) -> None:
    values = np.random.default_rng(0).normal(0.3, 1.0, 10)
    error = values.std(ddof=1) * math.sqrt(1 / 10 + ratio)
    found, expected = compare_over_splits(values, test_ratio=ratio), t(9, values.mean(), error)
    ends = expected.interval(0.95)
    assert (found.p, found.low, found.high) == pytest.approx((2.0 * expected.cdf(0.0), *ends))


def test_extremes_of_splits() -> None:
    for few in ([1.0], [0.9, 1.1]):
        found = compare_over_splits(few, test_ratio=0.5)
        assert found.estimate == 1.0 and math.isnan(found.p) and math.isnan(found.low)
    assert compare_over_splits([0.0] * 3, test_ratio=0.5).p == 1.0
    assert math.isnan(compare_over_splits([1.0] * 3, test_ratio=0.5).p)
    for values, ratio in (([], 0.5), ([math.nan], 0.5), ([1.0], 0.0)):
        refuses(InvalidInputError, compare_over_splits, values, test_ratio=ratio)


def test_a_further_metric_has_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = property(lambda found: 1.0 - found.accuracy)
    monkeypatch.setattr(ClassificationMetrics, "errors", errors, raising=False)
    monkeypatch.setitem(METRICS, "errors", Metric("errors", "errors", maximize=False))
    found = metric_intervals(np.array([[60, 20], [10, 110]])).metrics
    own, accuracy = found["errors"], found["accuracy"]
    assert own.estimate == pytest.approx(0.15)
    assert [own.low, own.high] == pytest.approx([1 - accuracy.high, 1 - accuracy.low], abs=0.01)


def test_figures_for_people() -> None:
    assert percent(None) == percent(math.nan) == chance(None) == chance(math.nan) == ""
    assert percent(0.5, 0.013) == "50.0 ± 1.3"
    assert percent(0.5, math.nan, interval=(math.nan, math.nan)) == "50.0"
    assert percent(0.05, interval=(0.04, 0.6), padded=True) == "5.0 [ 4.0, 60.0]"
    shown = ["<0.002", "<0.002", "0.002", "0.035", "1.000"]
    assert [*map(chance, (0.0, 0.0019, 0.002, 0.0349, 1.0))] == shown
    assert [sentence_of_chance(p) for p in (0.0, 0.5)] == ["p < 0.002", "p = 0.500"]
