from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcs.errors import InvalidInputError
from dcs.schemes.corrections import (
    DONT_CHANGE,
    Correction,
    CorrectionSet,
    Membership,
    Weight,
)
from tests.dcs.published import load_rules


def test_every_function_equals_the_published_one() -> None:
    grid, rules = load_rules()
    corrections = CorrectionSet.dcs(weight_scale=30)
    assert len(corrections) == len(rules) == 49
    for correction, expected in zip(corrections, rules, strict=True):
        np.testing.assert_allclose(correction(grid), expected, rtol=0, atol=1e-9)


def _piecewise(m: Membership, p: float) -> float:
    if m.a == m.b == 0.0:
        return (m.c - p) / m.c if p <= m.c else 0.0
    if m.b == m.c == 1.0:
        return (p - m.a) / (1.0 - m.a) if p >= m.a else 0.0
    if p <= m.a or p > m.c:
        return 0.0
    return (p - m.a) / (m.b - m.a) if p <= m.b else (m.c - p) / (m.c - m.b)


def _is_triangle(abc: list[float]) -> bool:
    a, b, c = abc
    return a > 0 and c < 1 and b - a > 1e-4 and c - b > 1e-4


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(*[st.floats(0, 1)] * 3).map(sorted).filter(_is_triangle),
    st.floats(0, 1),
)
def test_membership_follows_the_papers_equation(abc: list[float], p: float) -> None:
    membership = Membership(*abc)
    expected = _piecewise(membership, p)
    assert float(membership(p)) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_order_and_size_of_the_three_sets() -> None:
    full = CorrectionSet.dcs(weight_scale=8)
    assert tuple(full) == tuple(CorrectionSet.furud()) + tuple(CorrectionSet.dnip(weight_scale=8))
    assert full[17] == DONT_CHANGE
    assert full.identity == 17
    assert CorrectionSet.dnip(weight_scale=8).identity == 7
    assert full[19 + 3] == Weight(0.5)
    assert full.coefficients.shape == (27, 4)


@pytest.mark.parametrize(
    "build",
    [
        *(
            partial(Membership, *abc)
            for abc in [(0, 0, 0), (0.2, 0.2, 1), (0, 0.5, 0.5), (-0.1, 0, 1), (0, 1, 2)]
        ),
        partial(Membership, math.nan, 0, 1),
    ],
)
def test_bad_corrections_are_refused(build: Callable[[], Correction]) -> None:
    with pytest.raises(InvalidInputError):
        build()


@pytest.mark.parametrize(
    "build",
    [
        lambda: CorrectionSet.dnip(weight_scale=1),
        lambda: CorrectionSet((DONT_CHANGE,)),
        lambda: CorrectionSet((Weight(0.1), Weight(0.2))),
        lambda: CorrectionSet((DONT_CHANGE, Weight(0.1), Weight(0.1))),
        lambda: CorrectionSet.furud().limited(1),
    ],
)
def test_a_search_needs_a_choice_and_a_start(build: Callable[[], CorrectionSet]) -> None:
    with pytest.raises(InvalidInputError):
        build()


def test_logarithmic_weights() -> None:
    for count, smallest, largest in ((2, 0.5, 1.0), (40, 0.01, 1.0), (30, 0.1, 2.0)):
        some = CorrectionSet.logarithmic(count=count, smallest=smallest, largest=largest)
        values = [c.value for c in some if isinstance(c, Weight)]
        assert len(values) == count
        assert 1.0 in values
        ratios = np.diff(np.log(values))
        np.testing.assert_allclose(ratios, ratios[0])
        assert ratios[0] == pytest.approx(np.log(largest / smallest) / (count - 1))


def test_fewer_memberships_are_nested_from_coarse_to_fine() -> None:
    full = CorrectionSet.furud()
    previous: set[Correction] = set()
    for count in range(2, len(full) + 1):
        some = full.limited(count)
        assert len(some) == count
        assert previous < set(some)
        assert DONT_CHANGE in some.corrections
        # The published order stays, so that ties fall the same way.
        assert list(some) == [c for c in full if c in some.corrections]
        previous = set(some)
    assert DONT_CHANGE in CorrectionSet.dcs().limited(1).corrections
    for count, sloped in ((2, 0), (5, 3), (10, 8), (19, 17)):
        whole = {*full.corrections[:sloped], *full.corrections[17:]}
        assert set(full.limited(count)) == whole
