"""What cross-validation says of a setting, and what it chooses."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from dcs.selection.cross_validation import (
    Folds,
    SelectionSettings,
    Threads,
    cobias_noise,
    fit_scheme,
    front_of,
    stratified_folds,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from dcs.evaluation.metrics import ClassificationMetrics
from dcs.evaluation.uncertainty import paired_errors
from dcs.methods.parameters import Hyperparameters, Interpolated, between
from dcs.schemes.calibration import fit_calibration
from dcs.schemes.corrections import Membership, Weight
from dcs.schemes.scheme import CorrectionScheme
from dcs.selection.front import FittedScheme, Preference, pareto_front
from tests.dcs.biased import biased_table, fit_setting, gain

#: Drawn back by nothing: it makes the classes equal on the rows it sees.
_EQUALISER = Hyperparameters(
    calibration="none", beta=1.0, prior_rows=0.0, averages=0, weight_scale=200
)

_TWO_POINTS = SelectionSettings(betas=(0.3, 1.0))

_VECTOR = Hyperparameters(calibration="vector", averages=4)
_QUICK = SelectionSettings(candidates=(_VECTOR,), betas=(0.0, 0.3, 1.0), folds=3)


def _cobias(labels: NDArray[np.int64], predictions: NDArray[np.int64], n_classes: int) -> float:
    return ClassificationMetrics.from_predictions(labels, predictions, n_classes).cobias


def _equalised(per_class: int, seed: int) -> tuple[Folds, *tuple[NDArray[np.int64], ...]]:
    """Return a balanced sample of four classes, and its predictions by the schemes of its folds.

    Then the labels of many other rows, and their predictions by the scheme of the sample.
    """
    probs, labels = biased_table(40_000, 4, seed=seed, bias=0.5)
    chosen = np.concatenate([np.flatnonzero(labels == j)[:per_class] for j in range(4)])
    folds = Folds(probs[chosen], labels[chosen], 5, seed=seed)
    schemes = folds.judge([_EQUALISER])[0].schemes
    scheme = fit_setting(folds.probs, folds.labels, _EQUALISER, seed=seed)
    rest = np.setdiff1d(np.arange(labels.size), chosen)
    return folds, folds.predictions(schemes), labels[rest], scheme.predict(probs[rest])


def test_cobias_over_all_folds_is_too_low_and_within_folds_is_not() -> None:
    figures = []
    for seed in range(5):
        folds, predicted, truth, shown = _equalised(250, seed)
        estimate = folds.metrics(predicted)
        noise = cobias_noise(estimate, folds.counts)
        counted = _cobias(folds.labels, predicted, 4)
        figures.append((counted, _cobias(truth, shown, 4), estimate.cobias, noise))
    counted, true, within, noises = np.transpose(figures)
    lasting = math.sqrt(max(0.0, np.mean(within**2) - np.mean(noises**2)))
    # What many new rows show is about twice what all folds together do ...
    assert counted.mean() < 0.6 * true.mean()
    # ... and what is left within folds once their own noise is taken off.
    assert -0.02 < true.mean() - lasting < 0.015
    assert within.mean() > true.mean()


def test_with_few_rows_what_a_search_cancels_is_added_again() -> None:
    figures = []
    for seed in range(6):
        folds, predicted, truth, shown = _equalised(60, seed)
        # What as many new rows show: the lasting bias and their noise.
        fresh = np.random.default_rng(seed).choice(truth.size, folds.labels.size, replace=False)
        pair = (folds.metrics(predicted), folds.metrics(predicted, _EQUALISER))
        figures.append((*(m.cobias for m in pair), _cobias(truth[fresh], shown[fresh], 4)))
    counted, corrected, true = np.mean(figures, axis=0)
    assert counted < 0.7 * true
    assert corrected == pytest.approx(true, rel=0.3)


def test_noise_is_what_equal_classes_show() -> None:
    rng = np.random.default_rng(0)
    rates, counts = 0.8, np.array([40, 90, 15, 60])
    shown = []
    for _ in range(3000):
        drawn = rng.binomial(counts, rates) / counts
        shown.append(np.abs(drawn[:, None] - drawn)[np.triu_indices(4, 1)].mean())
    metrics = ClassificationMetrics(rates, 0.0, rates, (rates,) * 4, int(counts.sum()))
    assert cobias_noise(metrics, counts) == pytest.approx(np.mean(shown), rel=0.05)
    perfect = ClassificationMetrics(1.0, 0.0, 1.0, (1.0, 1.0, math.nan), 8)
    assert 0.0 < cobias_noise(perfect, [4, 4, 0]) < 0.5
    assert cobias_noise(perfect, [4, 0, 0]) == 0.0


@pytest.mark.parametrize(("n_rows", "parts"), [(600, 5), (599, 1)])
def test_cobias_is_the_mean_over_folds_or_with_few_rows_of_all(n_rows: int, parts: int) -> None:
    probs, labels = biased_table(n_rows, 3)
    setting = Hyperparameters(calibration="batch", corrections="none")
    folds = Folds(probs, labels, 5, seed=3)
    schemes = folds.judge([setting])[0].schemes
    predicted = folds.predictions(schemes)
    assert np.array_equal(np.unique(folds.part), range(parts))
    each = [
        _cobias(labels[rows], predicted[rows], 3)
        for rows in (folds.place % parts == part for part in range(parts))
    ]
    assert folds.metrics(predicted, setting).cobias == pytest.approx(np.mean(each))


def test_settings_keep_their_order_whatever_their_calibration() -> None:
    probs, labels = biased_table(90, 3)
    grid = [
        Hyperparameters(calibration="vector", corrections="none"),
        Hyperparameters(calibration="batch", corrections="none"),
        Hyperparameters(calibration="batch", beta=0.0, averages=0),
        Hyperparameters(calibration="vector", corrections="none", ridge=1.0),
        Hyperparameters(calibration="none", corrections="none"),
    ]
    folds = Folds(probs, labels, 3, seed=0)
    together = [fit.schemes for fit in folds.judge(grid)]
    for setting, schemes in zip(grid, together, strict=True):
        assert folds.judge([setting])[0].schemes == schemes
    assert np.array_equal(folds.predictions(together[-1]), probs.argmax(axis=1))


def test_paired_errors_are_those_of_the_parts() -> None:
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 3, 400)
    before, after = (
        np.where(rng.random(400) < 0.7, labels, rng.integers(0, 3, 400)) for _ in "ab"
    )
    whole, numbered, halves = (
        paired_errors(labels, before, after, 3, parts=parts)
        for parts in (np.zeros(400), np.full(400, 7), np.arange(400) % 2)
    )
    assert whole == numbered
    right = (after == labels).astype(float) - (before == labels)
    assert whole[0] == pytest.approx(right.std() / 20, rel=0.2)
    assert halves[1] != whole[1]


def test_many_nearly_fair_classes_are_not_made_worse() -> None:
    """Twenty accurate classes: what a search finds there is mostly the noise of its rows."""
    rng = np.random.default_rng(1)
    labels = np.arange(9000) % 20
    logits = rng.normal(0.0, 1.0, (9000, 20)) + rng.normal(0.0, 0.2, 20)
    logits[np.arange(9000), labels] += 4.5
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    settings = replace(_TWO_POINTS, candidates=(Hyperparameters(calibration="none"),), folds=3)
    fitted = fit_scheme(probs[:4200], labels[:4200], settings=settings)
    assert sum(gain(fitted.scheme, probs[4200:], labels[4200:])) > -0.005


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=4, max_size=60), st.integers(2, 4), st.integers(0, 9))
def test_folds_are_even_in_every_class(labels: list[int], folds: int, seed: int) -> None:
    place = stratified_folds(labels, folds, seed=seed)
    for rows in [np.full(len(labels), True), *(np.array(labels) == j for j in range(4))]:
        counts = np.bincount(place[rows], minlength=folds)
        assert counts.max() - counts.min() <= 1


def test_fit_scheme_finds_a_front_and_repeats_itself() -> None:
    probs, labels = biased_table(500, 3)
    names = ("a", "b", "c")
    seen: list[float] = []
    found = fit_scheme(probs, labels, settings=_QUICK, seed=4, classes=names, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1.0)
    assert [point.beta for point in found.points[:3]] == list(_QUICK.betas)
    assert all(point in found.points for point in found.front)
    plain = found.points[-1]
    assert plain.setting is None
    assert found.chosen.cobias < plain.cobias
    assert found.scheme.classes == names
    provenance = json.loads(found.scheme.to_json())["provenance"]
    assert provenance["rule"] == {"prefer": "no-harm", "margin": 0.5, "confidence": 0.95}
    assert provenance["estimate"]["cobias"] == found.chosen.cobias
    again = fit_scheme(probs, labels, settings=_QUICK, seed=4, classes=names)
    assert again.scheme == found.scheme
    assert again.points == found.points


def test_numpy_scalars_are_saved_as_numbers(tmp_path: Path) -> None:
    setting = replace(_VECTOR, corrections="none", ridge=np.float32(20), prior_rows=np.int64(100))
    settings = SelectionSettings((setting,), betas=(np.float32(0.5),), folds=np.int64(2))  # type: ignore[arg-type]
    probs, labels = biased_table(40, 2)
    fitted = fit_scheme(probs, labels, settings=settings, seed=np.int64(3))  # type: ignore[arg-type]
    fitted = fitted.pick(Preference(max_cobias=np.float32(5)))  # type: ignore[arg-type]
    fitted.save(tmp_path / "front.json")
    assert FittedScheme.load(tmp_path / "front.json") == fitted


def test_probabilities_stay_as_they_are_when_nothing_is_gained() -> None:
    probs, labels = biased_table(200, 3)
    useless = Hyperparameters(calibration="none", corrections="none")
    found = fit_scheme(probs, labels, settings=replace(_QUICK, candidates=(useless,)))
    assert found.chosen.setting is None
    assert found.scheme.calibration is None


def test_a_sampled_setting_needs_a_significant_advantage() -> None:
    probs, labels = biased_table(600, 3)
    folds = Folds(probs, labels, 3, seed=0)
    useless, good = folds.judge(
        [
            Hyperparameters(calibration="batch", corrections="none"),
            replace(_VECTOR, beta=1.0),
        ]
    )
    names = ("a", "b", "c")
    found = front_of(folds, [useless], [good], settings=_QUICK, classes=names, seed=0)
    assert good.setting in [point.setting for point in found.points]
    none = front_of(folds, [good], [replace(good)], settings=_QUICK, classes=names, seed=0)
    assert [point.setting for point in none.points].count(good.setting) >= 1


def test_threads_keep_the_order_and_take_no_more_than_allowed() -> None:
    taken: list[int] = []

    def source() -> Iterator[int]:
        for i in range(20):
            taken.append(i)
            yield i

    for n, result in enumerate(Threads(4)(lambda i: i * i, source(), ahead=3)):
        assert result == n * n
        assert taken[-1] < n + 3
    assert taken == list(range(20))
    with pytest.raises(ZeroDivisionError):
        list(Threads(2)(lambda i: 1 // i, [1, 0, 1]))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 99), st.floats(0.0, 1.0))
def test_between_two_schemes_logarithms_are_mixed(seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    probs, labels = biased_table(60, 3, seed=seed)
    names = ("a", "b", "c")
    logs = np.log(probs)
    first, second = (
        CorrectionScheme(names, tuple(map(Weight, rng.uniform(0.1, 1.0, 3))), {}, calibration)
        for calibration in (None, fit_calibration(probs, labels, kind="logistic"))
    )
    mixed = between(first, second, share)
    assert mixed is not None
    values = [
        logs + np.log([c.value for c in first.corrections]),
        logs @ np.array(second.calibration.matrix).T
        + second.calibration.offset
        + np.log([c.value for c in second.corrections]),
    ]
    expected = (1.0 - share) * values[0] + share * values[1]
    predicted = mixed.predict(probs)
    best = expected.max(axis=1)
    assert np.allclose(expected[np.arange(60), predicted], best, atol=1e-9)
    curved = replace(first, corrections=(*first.corrections[:2], Membership(0.0, 0.5, 1.0)))
    assert between(curved, second, share) is None


def test_the_default_does_no_harm_where_classes_are_of_unequal_size() -> None:
    """Six classes, few of most: what makes them even costs a quarter of the accuracy."""
    rng = np.random.default_rng(0)
    labels = rng.choice(6, 6000, p=[0.5, 0.2, 0.12, 0.08, 0.06, 0.04])
    x = rng.normal(0.0, 1.0, (6, 4))[labels] + rng.normal(0.0, 1.0, (6000, 4))
    model = LogisticRegression().fit(x[:2000], labels[:2000])
    probs = model.predict_proba(x[2000:])
    fitted, judged = slice(2000), slice(2000, 4000)
    labels = labels[2000:]
    candidates = tuple(Hyperparameters(calibration=kind) for kind in ("none", "logistic"))
    settings = replace(_QUICK, candidates=candidates)
    found = fit_scheme(probs[fitted], labels[fitted], settings=settings)
    plain, default, balance = (
        ClassificationMetrics.from_predictions(labels[judged], s.predict(probs[judged]), 6)
        for s in (
            CorrectionScheme.identity(found.scheme.classes),
            found.scheme,
            found.pick(Preference(prefer="balance")).scheme,
        )
    )
    assert default.accuracy > plain.accuracy - 0.01
    wide = found.pick(Preference(margin=2.0)).scheme.predict(probs[judged])
    wider = ClassificationMetrics.from_predictions(labels[judged], wide, 6)
    assert wider.accuracy > plain.accuracy - 0.02
    assert wider.balanced_accuracy > plain.balanced_accuracy
    assert wider.cobias < plain.cobias
    assert balance.accuracy < plain.accuracy - 0.05
    # The front starts at what is most accurate, and its steps from there are small.
    most = max(point.accuracy for point in found.points)
    ends = [p for p in found.points if not isinstance(p.setting, Interpolated)]
    steps = [
        max(a.accuracy - b.accuracy for a, b in pairwise(front) if a.accuracy > most - 0.05)
        for front in (pareto_front(ends), found.front)
    ]
    assert found.front[0].accuracy == most
    assert steps[0] > 0.02 and steps[1] <= 0.005


@pytest.mark.parametrize(
    ("n_rows", "n_classes", "bias", "least"),
    [(40, 2, 0.0, -0.08), (40, 6, 0.0, -0.08), (10, 4, 0.7, 0.0), (50, 4, 0.7, 0.0)],
)
def test_few_rows_do_no_harm(n_rows: int, n_classes: int, bias: float, least: float) -> None:
    gains = []
    for seed in range(4):
        probs, labels = biased_table(3000, n_classes, seed=seed, bias=bias)
        fitted = fit_scheme(probs[:n_rows], labels[:n_rows], settings=_TWO_POINTS, seed=seed)
        gains.append(gain(fitted.scheme, probs[n_rows:], labels[n_rows:]))
    accuracy, cobias = np.transpose(gains)
    assert np.mean(accuracy) > -0.03
    assert np.min(accuracy + cobias) >= least


def test_missing_class_warns_and_default_fits_two_rows() -> None:
    probs, labels = biased_table(60, 3)
    keep = labels < 2
    with pytest.warns(UserWarning, match="class_2"):
        fit_scheme(probs[keep], labels[keep], settings=_QUICK)
    with pytest.warns(UserWarning):
        found = fit_scheme(probs[:2], labels[:2])
    assert found.chosen.setting is None or np.isfinite(found.scheme.apply(probs)).all()
