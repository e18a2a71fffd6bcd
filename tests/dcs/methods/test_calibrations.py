"""Calibrations fitted to labels: their limits, invariances and optimum."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from dcs.methods.calibrations import (
    CALIBRATIONS,
    DROPS,
    SURROGATE,
    LinearMap,
    batch_calibration,
    prior_reweighting,
)
from tests.dcs.biased import biased_table

_PROBS, _LABELS = biased_table(400, 4)
# None so small that the floor would change it.
_PROBS = np.maximum(_PROBS, 0.001)
_PROBS /= _PROBS.sum(axis=1, keepdims=True)
_MAPS = [each for each in CALIBRATIONS.values() if isinstance(each, LinearMap)]


def test_offsets_multiply() -> None:
    even = _PROBS / _PROBS.mean(axis=0)
    shares = (np.bincount(_LABELS) + 1) / (_LABELS.size + 4)
    for found, expected in (
        (batch_calibration(_PROBS), even),
        (prior_reweighting(_PROBS, _LABELS), even * shares),
    ):
        expected = expected / expected.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(found.apply(_PROBS), expected)


@pytest.mark.parametrize("kind", [each for each in _MAPS if each is not DROPS], ids=str)
def test_maps_run_from_batch_calibration_to_a_fit(kind: LinearMap) -> None:
    batch = batch_calibration(_PROBS).apply(_PROBS)
    fits = [kind.fit(_PROBS, _LABELS, ridge=ridge, anchor=1.0) for ridge in (1e9, 1e4, 100.0, 1.0)]
    far = [np.abs(fit.apply(_PROBS) - batch).mean() for fit in fits]
    assert far == sorted(far)
    # The steps on the surrogate have a smaller penalty.
    assert far[0] < 1e-3 < 0.01 < far[-1]


@pytest.mark.parametrize(("name", "degree"), [("linear", 1), ("products", 2)])
def test_it_is_balanced_logistic_regression_with_a_ridge_in_rows(name: str, degree: int) -> None:
    thorough = replace(CALIBRATIONS[name], steps=500, most_rows=None)
    known = np.arange(400) % 4 > 0
    found = thorough.fit(_PROBS, np.where(known, _LABELS, -1), ridge=5.0, anchor=0.0)
    logs = np.log(_PROBS)
    terms = PolynomialFeatures(degree, include_bias=False)
    features = StandardScaler().fit_transform(terms.fit_transform(logs - logs.mean(1)[:, None]))
    # Offsets have a tenth of the ridge.
    features = np.column_stack([features, np.full(400, np.sqrt(10.0))])
    options = {"class_weight": "balanced", "tol": 1e-8, "max_iter": 5000, "fit_intercept": False}
    regression = LogisticRegression(C=1 / 5.0, **options).fit(features[known], _LABELS[known])
    np.testing.assert_allclose(found.apply(_PROBS), regression.predict_proba(features), atol=1e-3)
    # Few steps are enough.
    both = [k.fit(_PROBS, _LABELS, ridge=1.0, anchor=1.0) for k in (thorough, CALIBRATIONS[name])]
    np.testing.assert_allclose(*(each.apply(_PROBS) for each in both), atol=1e-3)


def test_the_surrogate_is_smallest_at_its_offsets() -> None:
    found = replace(SURROGATE, steps=1000).fit(_PROBS, _LABELS, ridge=30.0, anchor=1.0)

    def surrogate(added: NDArray[np.float64]) -> float:
        right = softmax((found.logits(_PROBS) + added) / 0.25, axis=1)[np.arange(400), _LABELS]
        rates = np.bincount(_LABELS, right) / np.bincount(_LABELS)
        gaps = (rates[:, None] - rates)[np.triu_indices(4, 1)]
        return 1.0 - float(right.mean()) + float(np.sqrt(gaps**2 + 1e-3).mean())

    slopes = [surrogate(step) - surrogate(-step) for step in 0.005 * np.eye(4)]
    np.testing.assert_allclose(np.array(slopes) / 0.01, 0.0, atol=7e-4)


def test_the_worst_class_is_as_well_predicted_as_offsets_can_do() -> None:
    probs, labels = biased_table(240, 3)

    def worst(logits: NDArray[np.float64]) -> float:
        right = logits.argmax(axis=1) == labels
        return float((np.bincount(labels, right) / np.bincount(labels)).min())

    found = DROPS.fit(probs, labels, ridge=2.0, anchor=0.0).logits(probs)
    steps = np.linspace(-2.0, 2.0, 81)
    assert worst(found) > max(worst(found + [0.0, a, b]) for a in steps for b in steps) - 0.01


@pytest.mark.parametrize("kind", _MAPS, ids=lambda kind: kind.name)
def test_the_order_of_rows_and_classes_does_not_matter(kind: LinearMap) -> None:
    rng = np.random.default_rng(0)
    rows, turn = rng.permutation(_LABELS.size), rng.permutation(4)
    found = kind.fit(_PROBS, _LABELS, ridge=10.0, anchor=1.0)
    again = kind.fit(_PROBS[rows], _LABELS[rows], ridge=10.0, anchor=1.0)
    np.testing.assert_allclose(again.apply(_PROBS), found.apply(_PROBS), atol=0.02)
    turned = kind.fit(_PROBS[:, turn], np.argsort(turn)[_LABELS], ridge=10.0, anchor=1.0)
    expected = found.apply(_PROBS)[:, turn]
    np.testing.assert_allclose(turned.apply(_PROBS[:, turn]), expected, atol=0.02)


@pytest.mark.parametrize("kind", CALIBRATIONS.values(), ids=[*CALIBRATIONS])
@pytest.mark.parametrize("n_classes", [2, 11])
def test_every_calibration_stays_finite(kind: LinearMap, n_classes: int) -> None:
    probs, labels = biased_table(40, n_classes)
    probs = np.where(probs < 0.1, 0.0, probs)
    probs /= probs.sum(axis=1, keepdims=True)
    labels[labels == 1] = 0
    found = kind.fit(probs, np.where(np.arange(40) < 5, labels, -1), ridge=2.0, anchor=0.5)
    assert found is None or np.isfinite(found.apply(probs)).all()
