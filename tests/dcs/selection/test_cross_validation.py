"""What cross-validation says of COBias, against tables whose truth is known."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from dcs.evaluation.metrics import ClassificationMetrics, cobias, confusion_matrix
from dcs.evaluation.uncertainty import compare_predictions
from dcs.schemes.scheme import CorrectionScheme
from dcs.selection.cross_validation import (
    Folds,
    FrontPoint,
    SelectionSettings,
    choose_point,
    cobias_noise,
    cross_validate,
    fit_scheme,
)
from dcs.selection.front import Preference
from dcs.selection.settings import Hyperparameters
from tests.dcs.biased import biased_table, fit_setting, gain

#: Drawn back by nothing: it makes the classes equal on the rows it sees.
_EQUALISER = Hyperparameters(
    calibration="none", beta=1.0, prior_rows=0.0, averages=0, weight_scale=200
)

_TWO_POINTS = SelectionSettings(betas=(0.3, 1.0))


def _split_table(
    n_classes: int, per_class: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """Return a balanced sample of so many rows per class, and a much larger one."""
    probs, labels = biased_table(40_000, n_classes, seed=seed, bias=0.5)
    chosen = np.concatenate([np.flatnonzero(labels == j)[:per_class] for j in range(n_classes)])
    rest = np.setdiff1d(np.arange(labels.size), chosen)
    return probs[chosen], labels[chosen], probs[rest], labels[rest]


def test_cobias_over_all_folds_is_too_low_and_within_folds_is_not() -> None:
    counted, within, noise, true = [], [], [], []
    for seed in range(5):
        probs, labels, many, truth = _split_table(4, 250, seed)
        folds = Folds(probs, labels, 5, seed)
        predicted = folds.predictions([_EQUALISER])[0]
        counted.append(ClassificationMetrics.from_predictions(labels, predicted, 4).cobias)
        estimate = folds.metrics(predicted)
        within.append(estimate.cobias)
        noise.append(folds.noise(estimate))
        scheme = fit_setting(probs, labels, _EQUALISER, seed=seed)
        true.append(ClassificationMetrics.from_predictions(truth, scheme.predict(many), 4).cobias)
    lasting = math.sqrt(max(0.0, np.mean(np.square(within)) - np.mean(np.square(noise))))
    # What many new rows show is about twice what all folds together do ...
    assert np.mean(counted) < 0.6 * np.mean(true)
    # ... and what is left within folds once their own noise is taken off.
    assert np.mean(true) < lasting + 0.015
    assert np.mean(true) > lasting - 0.02
    assert np.mean(within) > np.mean(true)


def test_a_scheme_that_is_not_searched_is_judged_alike_both_ways() -> None:
    probs, labels, many, truth = _split_table(3, 2000, seed=1)
    folds = Folds(probs, labels, 5, 0)
    plain = probs.argmax(axis=1)
    estimate = folds.metrics(plain)
    true = ClassificationMetrics.from_predictions(truth, many.argmax(axis=1), 3).cobias
    assert estimate.cobias == pytest.approx(true, abs=0.02)
    assert estimate.accuracy == pytest.approx((plain == labels).mean())


def test_noise_is_what_equal_classes_show() -> None:
    rng = np.random.default_rng(0)
    rates, counts = 0.8, np.array([40, 90, 15, 60])
    shown = []
    for _ in range(3000):
        drawn = rng.binomial(counts, rates) / counts
        shown.append(np.abs(drawn[:, None] - drawn)[np.triu_indices(4, 1)].mean())
    metrics = ClassificationMetrics(rates, 0.0, (rates,) * 4, int(counts.sum()))
    assert cobias_noise(metrics, counts) == pytest.approx(np.mean(shown), rel=0.05)


def test_noise_of_perfect_or_absent_classes_is_finite() -> None:
    metrics = ClassificationMetrics(1.0, 0.0, (1.0, 1.0, math.nan), 8)
    assert 0.0 < cobias_noise(metrics, [4, 4, 0]) < 0.5
    assert cobias_noise(metrics, [4, 0, 0]) == 0.0


def test_few_rows_are_counted_together() -> None:
    probs, labels = biased_table(600, 3)
    many, few = Folds(probs, labels, 5, 0), Folds(probs[:599], labels[:599], 5, 0)
    assert not many.few
    assert set(many.part) == set(range(5))
    assert few.few
    plain = few.probs.argmax(axis=1)
    together = ClassificationMetrics.from_predictions(few.labels, plain, 3)
    assert few.metrics(plain) == together


def test_cross_validation_is_the_mean_over_folds() -> None:
    probs, labels = biased_table(700, 2)
    folds = Folds(probs, labels, 4, 3)
    setting = Hyperparameters(calibration="batch", corrections="none")
    predicted = folds.predictions([setting])[0]
    each = [
        ClassificationMetrics.from_predictions(labels[rows], predicted[rows], 2).cobias
        for rows in (folds.place == fold for fold in range(4))
    ]
    judged = cross_validate(probs, labels, setting, folds=4, seed=3)
    assert judged.cobias == pytest.approx(np.mean(each))


def test_settings_keep_their_order_whatever_their_calibration() -> None:
    probs, labels = biased_table(90, 3)
    grid = [
        Hyperparameters(calibration="vector", corrections="none"),
        Hyperparameters(calibration="batch", corrections="none"),
        Hyperparameters(calibration="batch", beta=0.0, averages=0),
        Hyperparameters(calibration="vector", corrections="none", ridge=1.0),
        Hyperparameters(calibration="none", corrections="none"),
    ]
    folds = Folds(probs, labels, 3, 0)
    together = folds.predictions(grid)
    for setting, predicted in zip(grid, together, strict=True):
        assert np.array_equal(folds.predictions([setting])[0], predicted)
    assert np.array_equal(together[-1], probs.argmax(axis=1))


def test_paired_differences_are_those_of_the_parts() -> None:
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 3, 400)
    before, after = (
        np.where(rng.random(400) < 0.7, labels, rng.integers(0, 3, 400)) for _ in "ab"
    )
    parts = np.arange(400) % 4
    pair = compare_predictions(labels, before, after, 3, parts=parts, resamples=50)

    biases = [
        [cobias(confusion_matrix(labels[k::4], some[k::4], 3)) for k in range(4)]
        for some in (before, after)
    ]
    assert pair.cobias.estimate == pytest.approx(np.mean(biases[1]) - np.mean(biases[0]))
    assert pair.accuracy.estimate == pytest.approx(
        ((after == labels) * 1.0 - (before == labels)).mean()
    )
    one = compare_predictions(labels, before, after, 3, parts=np.full(400, 7), resamples=50)
    assert one == compare_predictions(labels, before, after, 3, resamples=50)


def test_a_limit_is_held_against_what_lasts() -> None:
    probs, labels = biased_table(600, 3)
    folds = Folds(probs, labels, 5, 0)
    plain = probs.argmax(axis=1)
    estimate = folds.metrics(plain)
    identity = CorrectionScheme.identity(("0", "1", "2"))
    noisy = FrontPoint(None, replace(estimate, cobias=0.05), identity, 0.3, 0.04, plain)
    worse = replace(noisy, estimate=replace(estimate, cobias=0.045, accuracy=0.0), beta=1.0)
    assert noisy.lasting_cobias == pytest.approx(0.03)
    chosen = choose_point(
        [noisy, worse, replace(worse, estimate=replace(estimate, cobias=0.9, accuracy=0.0))],
        folds,
        SelectionSettings(preference=Preference(max_cobias=0.035)),
    )
    assert chosen is noisy


def test_many_nearly_fair_classes_are_not_made_worse() -> None:
    """Twenty accurate classes: what a search finds there is mostly the noise of its rows."""
    rng = np.random.default_rng(1)
    labels = np.arange(9000) % 20
    logits = rng.normal(0.0, 1.0, (9000, 20)) + rng.normal(0.0, 0.2, 20)
    logits[np.arange(9000), labels] += 4.5
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    settings = replace(_TWO_POINTS, candidates=(Hyperparameters(calibration="none"),))
    fitted = fit_scheme(probs[:4200], labels[:4200], settings=settings)
    assert sum(gain(fitted.scheme, probs[4200:], labels[4200:])) > -0.005


@pytest.mark.parametrize("n_classes", [2, 6])
def test_few_rows_of_a_fair_model_are_left_nearly_as_they_are(n_classes: int) -> None:
    changes = []
    for seed in range(4):
        probs, labels = biased_table(3000, n_classes, seed=seed, bias=0.0)
        fitted = fit_scheme(probs[:40], labels[:40], settings=_TWO_POINTS, seed=seed)
        changes.append(gain(fitted.scheme, probs[40:], labels[40:])[0])
    assert np.mean(changes) > -0.03


def test_with_few_rows_what_a_search_cancels_is_added_again() -> None:
    counted, corrected, true = [], [], []
    for seed in range(6):
        probs, labels, many, truth = _split_table(4, 60, seed)
        folds = Folds(probs, labels, 5, seed)
        assert folds.few
        predicted = folds.predictions([_EQUALISER])[0]
        counted.append(folds.metrics(predicted).cobias)
        corrected.append(folds.metrics(predicted, _EQUALISER).cobias)
        scheme = fit_setting(probs, labels, _EQUALISER, seed=seed)
        # What as many new rows show: the lasting bias and their noise.
        fresh = np.random.default_rng(seed).choice(truth.size, labels.size, replace=False)
        shown = scheme.predict(many[fresh])
        true.append(ClassificationMetrics.from_predictions(truth[fresh], shown, 4).cobias)
    assert np.mean(counted) < 0.7 * np.mean(true)
    assert np.mean(corrected) == pytest.approx(np.mean(true), rel=0.3)


@pytest.mark.parametrize(
    ("setting", "share"),
    [
        (Hyperparameters(corrections="none"), 0.0),
        (_EQUALISER, 1.0),
        (Hyperparameters(prior_rows=100.0), 0.25),
        (Hyperparameters(prior_rows=100.0, corrections="memberships"), 0.5),
    ],
)
def test_how_far_a_search_follows_the_labels(setting: Hyperparameters, share: float) -> None:
    assert setting.follows(100) == pytest.approx(share)
