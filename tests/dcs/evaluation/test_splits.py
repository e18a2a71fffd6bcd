from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from dcs.errors import InvalidInputError
from dcs.evaluation.uncertainty import compare_over_splits


def test_without_overlap_it_is_student_s_test() -> None:
    values = np.random.default_rng(0).normal(0.3, 1.0, 10)
    found, expected = compare_over_splits(values, test_ratio=1e-12), ttest_1samp(values, 0.0)
    interval = expected.confidence_interval()
    assert (found.p, found.low, found.high) == pytest.approx(
        (expected.pvalue, interval.low, interval.high)
    )


def test_level_is_held_where_splits_share_rows() -> None:
    # The difference of two equally good methods on 300 rows, over ten 70/30 splits.
    rng, naive, corrected = np.random.default_rng(1), 0, 0
    for _ in range(400):
        rows = rng.normal(size=300)
        splits = [rows[rng.permutation(300)[:90]].mean() for _ in range(10)]
        naive += ttest_1samp(splits, 0.0).pvalue < 0.05
        corrected += compare_over_splits(splits, test_ratio=3 / 7).p < 0.05
    assert corrected <= 28 < naive


def test_extremes() -> None:
    single = compare_over_splits([1.0], test_ratio=0.5)
    assert single.mean == 1.0 and math.isnan(single.p) and math.isnan(single.low)
    assert compare_over_splits([0.0, 0.0], test_ratio=0.5).p == 1.0
    assert compare_over_splits([1.0, 1.0], test_ratio=0.5).p == 0.0
    for values, ratio in (([], 0.5), ([math.nan], 0.5), ([1.0], 0.0)):
        with pytest.raises(InvalidInputError):
            compare_over_splits(values, test_ratio=ratio)
