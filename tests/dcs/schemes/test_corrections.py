from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dcs.errors import InvalidInputError
from dcs.schemes.corrections import DONT_CHANGE, Correction, CorrectionSet, Membership, Weight
from tests.dcs.solutions import published_figures


def test_every_function_equals_the_published_one() -> None:
    figures = published_figures()
    grid, rules = figures["grid"], figures["rules"]
    corrections = CorrectionSet.dcs(weight_scale=30)
    assert len(corrections) == len(rules) == 49
    for correction, expected in zip(corrections, rules, strict=True):
        np.testing.assert_allclose(correction(grid), expected, rtol=0, atol=1e-9)


def test_order_and_size_of_the_three_sets() -> None:
    full, weights = CorrectionSet.dcs(weight_scale=8), CorrectionSet.dnip(weight_scale=8)
    assert [*full] == [*CorrectionSet.furud(), *weights]
    assert full[full.identity] == full[17] == DONT_CHANGE
    assert weights[weights.identity] == Weight(1.0)
    assert all(isinstance(each.effect, str) for each in full)


@pytest.mark.parametrize(
    ("build", "arguments"),
    [
        *((Membership, corners) for corners in ((0, 0, 0), (0.2, 0.2, 1), (0, 0.5, 0.5))),
        *((Membership, corners) for corners in ((-0.1, 0, 1), (0, 1, 2), (math.nan, 0, 1))),
        # Sides that are too steep.
        *((Membership, corners) for corners in ((0, 0.5, 0.5 + 1e-15), (0.5 - 1e-15, 0.5, 1))),
        # A search needs a choice and a start.
        (CorrectionSet.dnip, (1,)),
        (CorrectionSet, ((Weight(0.1), Weight(0.2)),)),
        (CorrectionSet.furud().limited, (1,)),
    ],
)
def test_bad_corrections_are_refused(build: Callable[..., object], arguments: Any) -> None:
    with pytest.raises(InvalidInputError):
        build(*arguments)


def test_logarithmic_weights() -> None:
    for smallest, largest in ((0.1, 2e6), (0.1, 0.9), (-0.1, 2), (0.0, 2), (1.0, 2), (1.5, 2)):
        with pytest.raises(InvalidInputError, match="1000000"):
            CorrectionSet.logarithmic(count=5, smallest=smallest, largest=largest)
    for count, smallest, largest in ((2, 0.5, 1.0), (40, 0.01, 1.0), (30, 0.1, 2.0)):
        some = CorrectionSet.logarithmic(count=count, smallest=smallest, largest=largest)
        values = [c.value for c in some if isinstance(c, Weight)]
        assert len(values) == count
        assert 1.0 in values
        ratios = np.diff(np.log(values))
        np.testing.assert_allclose(ratios, ratios[0])
        assert ratios[0] == pytest.approx(np.log(largest / smallest) / (count - 1))
        assert abs(np.log(values[0] / smallest)) <= 0.5001 * ratios[0], "the nearest that has 1"


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
        assert {*full.limited(count)} == {*full.corrections[:sloped], *full.corrections[17:]}
