"""Simulated worlds can be repeated, and the claims that they break are counted."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from benchmarks import calibration


def test_calibrated_worlds_are_and_can_be_repeated() -> None:
    kind, draw = calibration.world(7)
    (probs, labels, groups), (fresh, truth, _) = draw
    assert kind == "calibrated" and np.unique(groups).size == len(probs)
    # Of the calibrated rows, as many belong to the predicted class as the probabilities say.
    right = (fresh.argmax(axis=1) == truth).mean()
    assert right == pytest.approx(fresh.max(axis=1).mean(), abs=0.01)
    again, _ = calibration.world(7)[1]
    np.testing.assert_array_equal(again[0], probs)
    np.testing.assert_array_equal(again[1], labels)


def test_texts_are_repeated_with_other_probabilities() -> None:
    kind, draw = calibration.world(6, calibration.TEXTS)
    probs, labels, groups = next(draw)
    assert kind == "copies of texts" and np.unique(groups).size < len(probs)
    assert len(np.unique(probs, axis=0)) == len(probs)
    assert len({*zip(groups.tolist(), labels.tolist(), strict=True)}) == np.unique(groups).size


def test_claims_broken_are_counted() -> None:
    kinds = {"kind": ["calibrated", "shifted", "copies"], "accuracy": [-0.6, 1.0, -0.4]}
    rows = pd.DataFrame({"rule": ["default", "balance"]}).merge(pd.DataFrame(kinds), how="cross")
    about = {"cobias": -2.0, "margin": 0.5, "unchanged": False, "estimate": 0.0, "error": 0.6}
    text = calibration.guarantee_table(rows.assign(**about))
    assert "default: claim broken in 1 of 3 all worlds, 33.3 %" in text
    assert "default: claim broken in 1 of 2 regular worlds, 50.0 %" in text
    assert "Share of the gain in COBias: 100%" in text
