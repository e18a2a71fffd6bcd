"""Sums of products and softmax: what NumPy gives, in one order."""

from __future__ import annotations

import numpy as np
import pytest

from dcs.numerics import moments, product, softmax

_RNG = np.random.default_rng(0)


@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (1, 5, 3), (70, 6, 6), (300, 20, 2)])
def test_products_are_those_of_matrices(m: int, k: int, n: int) -> None:
    a, b, c = _RNG.normal(size=(m, k)), _RNG.normal(size=(k, n)), _RNG.normal(size=(m, n))
    np.testing.assert_allclose(product(a, b), a @ b, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(moments(a, c), a.T @ c, rtol=1e-12, atol=1e-12)


def test_a_row_by_itself_is_as_among_others() -> None:
    a, b = _RNG.normal(size=(50, 9)), _RNG.normal(size=(9, 9))
    assert np.array_equal(product(a, b), np.concatenate([product(row[None], b) for row in a]))


def test_softmax_of_logits_far_apart() -> None:
    logits = np.array([[0.0, -np.inf], [1e308, -1e308], [-1e308, -1e308], [0.0, np.log(3.0)]])
    expected = [[1.0, 0.0], [1.0, 0.0], [0.5, 0.5], [0.25, 0.75]]
    np.testing.assert_allclose(softmax(logits), expected)
