"""Simulated worlds can be repeated; the test of COBias holds its level in a small simulation."""

from __future__ import annotations

import pandas as pd
import pytest

from benchmarks import calibration


@pytest.mark.slow
def test_the_level_and_the_coverage_hold_in_one_setting() -> None:
    # 14 close classes and 200 rows; the number of draws leaves much to chance.
    rows = [row for number in (36, 111) for row in calibration.draw_intervals(number)]
    frame = pd.DataFrame(rows)
    assert set(frame["classes"]) == {14}
    draws = frame["draws"].sum()
    assert frame["rejected"].sum() <= 0.2 * draws
    for name in ("cobias", "weakest"):
        assert frame[name].sum() >= 0.8 * 2 * draws
    assert "all" in calibration.intervals_table(frame)


def test_claims_broken_are_counted() -> None:
    rows = [
        {
            "rule": rule,
            "kind": kind,
            "accuracy": accuracy,
            "cobias": -2.0,
            "margin": 0.5,
            "unchanged": False,
            "estimate": 0.0,
            "error": 0.6,
        }
        for rule in ("default", "balance")
        for kind, accuracy in (("calibrated", -0.6), ("shifted", 1.0), ("copies", -0.4))
    ]
    text = calibration.guarantee_table(pd.DataFrame(rows))
    assert "default: claim broken in 1 of 3 all worlds, 33.3 %" in text
    assert "default: claim broken in 1 of 2 regular worlds, 50.0 %" in text
    assert "Share of the gain in COBias: 100%" in text
