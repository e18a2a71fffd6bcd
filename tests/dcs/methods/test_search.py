"""One setting: what its search finds, and how far it follows the labels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dcs.evaluation.metrics import Objective, confusion_matrix
from dcs.methods.parameters import Hyperparameters
from dcs.methods.search import correction_set, search
from dcs.schemes.corrections import CorrectionSet
from dcs.schemes.scheme import CorrectionScheme
from dcs.search.schedule import Schedule
from tests.dcs.biased import biased_table, fit_setting
from tests.dcs.solutions import least

#: Drawn back by nothing.
_FREE = Hyperparameters(calibration="none", prior_rows=0.0)


def test_without_guards_it_is_the_plain_search() -> None:
    probs, labels = biased_table(300, 2)
    setting = replace(_FREE, corrections="both", spacing="linear", weight_scale=20)
    setting = replace(setting, beta=0.5, tau=0.1, schedule=Schedule())
    corrections, objective = CorrectionSet.dcs(weight_scale=20), Objective(beta=0.5, tau=0.1)
    best = least(probs, labels, corrections, objective)
    chosen, moves = search(probs, labels, setting, seed=0)
    found = CorrectionScheme(("a", "b"), chosen).predict(probs)
    assert objective.value(confusion_matrix(labels, found, 2)) == pytest.approx(best, abs=1e-12)
    assert moves > 0


@pytest.mark.parametrize("calibration", ["none", "batch"])
@pytest.mark.parametrize(("beta", "fair"), [(0.0, 0.0), (0.15, 0.5), (1.0, 1.0)])
def test_without_evidence_fairness_decides(calibration: str, beta: float, fair: float) -> None:
    probs, labels = biased_table(300, 3)
    labels[::2] = 0
    setting = replace(_FREE, calibration=calibration, beta=beta, prior_rows=1e12)
    chosen, _ = search(probs, labels, setting, seed=0)
    found = CorrectionScheme(tuple("abc"), chosen).offsets
    # Calibrated classes are equally frequent.
    expected = (1.0 - fair) * np.log(np.bincount(labels) + 1.0)
    if calibration == "none":
        expected = -fair * np.log(probs.mean(axis=0))
    np.testing.assert_allclose(found, expected - expected.mean(), atol=1e-6)
    # Nor do the labels of rows count for other corrections.
    setting = replace(setting, corrections="memberships")
    assert search(probs, labels, setting, seed=0) == search(probs, labels[::-1], setting, seed=0)


@pytest.mark.parametrize(("corrections", "largest"), [("weights", 1.0), ("both", 2.0)])
def test_weights_reach_as_far_as_the_odds_of_most_rows(corrections: Any, largest: float) -> None:
    logs = np.log(biased_table(300, 3)[0])
    odds = np.quantile(logs.max(axis=1, keepdims=True) - logs, 0.9)
    for power in (0.01, 1.0, 9.0):
        found = correction_set(np.exp(power * logs), replace(_FREE, corrections=corrections))
        about = {"smallest": np.exp(-np.clip(1.5 * power * odds, 0.1, 6.0)), "largest": largest}
        some = CorrectionSet.logarithmic(count=80, memberships=largest > 1.0, **about)
        np.testing.assert_allclose(found.coefficients, some.coefficients)


@pytest.mark.parametrize(
    ("calibration", "corrections"),
    [
        *(("mixture", "weights"), ("none", "memberships"), ("batch", "both")),
        *(("offsets", "none"), ("linear", "weights"), ("drops", "both")),
    ],
)
def test_every_setting_fits_on_very_few_rows(calibration: Any, corrections: Any) -> None:
    probs, labels = biased_table(9, 3)
    setting = Hyperparameters(calibration=calibration, corrections=corrections)
    assert np.isfinite(fit_setting(probs, labels, setting).apply(probs)).all()


@pytest.mark.parametrize(
    ("setting", "share"),
    [
        (Hyperparameters(calibration="batch", corrections="none"), 0.0),
        (_FREE, 1.0),
        (Hyperparameters(prior_rows=25.0), 0.25),
        (Hyperparameters(prior_rows=25.0, corrections="memberships"), 0.5),
    ],
)
def test_how_far_a_search_follows_the_labels(setting: Hyperparameters, share: float) -> None:
    assert setting.follows(100, 4) == pytest.approx(share)
