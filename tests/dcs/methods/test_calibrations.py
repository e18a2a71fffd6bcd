"""Calibrations fitted to labels: their limits, invariances and optimum."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from dcs.evaluation.metrics import ClassificationMetrics
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


def test_the_surrogate_gains_accuracy_minus_cobias_on_its_start() -> None:
    kept = [np.flatnonzero(np.equal(_LABELS, j))[: 100 // 2**j] for j in range(4)]
    rows = np.sort(np.concatenate(kept))

    def score(kind: LinearMap) -> float:
        fitted = kind.fit(_PROBS[rows], _LABELS[rows], ridge=10.0, anchor=1.0)
        predicted = fitted.apply(_PROBS[rows]).argmax(axis=1)
        found = ClassificationMetrics.from_predictions(_LABELS[rows], predicted, 4)
        return found.accuracy - found.cobias

    assert score(SURROGATE) > score(CALIBRATIONS["products"]) + 0.1


def test_without_a_penalty_it_is_balanced_logistic_regression() -> None:
    thorough = replace(CALIBRATIONS["linear"], steps=500, most_rows=None)
    found = thorough.fit(_PROBS, _LABELS, ridge=1e-6, anchor=0.0)
    logs = np.log(_PROBS)
    logs -= logs.mean(axis=1, keepdims=True)
    regression = LogisticRegression(C=1e6, class_weight="balanced", tol=1e-8, max_iter=5000)
    expected = regression.fit(logs, _LABELS).predict_proba(logs)
    np.testing.assert_allclose(found.apply(_PROBS), expected, atol=2e-3)


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
