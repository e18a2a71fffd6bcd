"""Arrays that people give."""

from __future__ import annotations

import numpy as np
import pytest

from dcs.data.checks import checked_rows, softmax
from dcs.errors import TableError


def test_rows_need_not_sum_to_one_and_are_not_copied() -> None:
    probs = np.array([[0.25, 0.25], [1.0 + 1e-7, 0.0]])
    values, labels, classes = checked_rows(probs, [0, 1])
    assert values is probs
    assert labels.tolist() == [0, 1]
    assert classes == ("class_0", "class_1")
    with pytest.raises(TableError):
        checked_rows([[0.5, 1.1]], [0])


def test_softmax_of_logits_far_apart() -> None:
    logits = np.array([[0.0, -np.inf], [1e308, -1e308], [-1e308, -1e308], [0.0, np.log(3.0)]])
    expected = [[1.0, 0.0], [1.0, 0.0], [0.5, 0.5], [0.25, 0.75]]
    np.testing.assert_allclose(softmax(logits), expected)
