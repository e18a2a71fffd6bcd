"""Numbers and arrays that people give."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dcs.data.checks import checked_rows, finite_number, softmax, whole_number
from dcs.errors import InvalidInputError, TableError


@pytest.mark.parametrize("value", [1, 1.0, np.int64(1), np.float32(1.0)])
def test_numbers_become_plain(value: Any) -> None:
    assert type(finite_number(value, "x")) is float
    if not isinstance(value, float | np.floating):
        assert type(whole_number(value, "x", least=1, most=1)) is int


@pytest.mark.parametrize("value", [True, None, "1", math.nan, -math.inf, 10**400, [1]])
def test_what_is_no_finite_number_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInputError, match="^x "):
        finite_number(value, "x")


@pytest.mark.parametrize("value", [False, None, "1", 1.0, math.nan, 0, 4, [1]])
def test_what_is_no_whole_number_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInputError, match="^x "):
        whole_number(value, "x", least=1, most=3)


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
