"""Numbers that people give."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dcs.data.checks import finite_number, whole_number
from dcs.errors import InvalidInputError
from dcs.evaluation.objective import Objective
from dcs.search.annealing import Schedule, anneal


@pytest.mark.parametrize("value", [1, 1.0, np.int64(1), np.float32(1.0)])
def test_numbers_become_plain(value: Any) -> None:
    assert type(finite_number(value, "x")) is float
    if not isinstance(value, float | np.floating):
        assert type(whole_number(value, "x", least=1)) is int


@pytest.mark.parametrize("value", [True, None, "1", math.nan, -math.inf, 10**400, [1]])
def test_what_is_no_finite_number_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^x .*: a finite number is needed$"):
        finite_number(value, "x")


@pytest.mark.parametrize("value", [False, None, "1", 1.0, math.nan, 0, [1]])
def test_what_is_no_whole_number_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^x .*: a whole number, 1 or more, is needed$"):
        whole_number(value, "x", least=1)


def test_what_is_too_large_is_refused() -> None:
    assert whole_number(3, "x", least=1, most=3) == 3
    with pytest.raises(InvalidInputError, match=r"^x 4: a whole number, 1 to 3, is needed$"):
        whole_number(4, "x", least=1, most=3)


@pytest.mark.parametrize(
    ("bounds", "said"),
    [({"positive": True}, "greater than 0 is"), ({"least": 0.5}, "0.5 or more, is")],
)
def test_what_is_too_small_is_refused(bounds: dict[str, Any], said: str) -> None:
    assert finite_number(0.75, "x", **bounds) == 0.75
    with pytest.raises(InvalidInputError, match=said):
        finite_number(0.0, "x", **bounds)


def test_integers_too_large_for_a_float_are_no_traceback() -> None:
    for make in (
        lambda: Objective(beta=10**400),
        lambda: Schedule(initial_temperature=10**400),
        lambda: anneal([[0.5, 0.5]] * 2, [0, 1], seed=-(10**400)),
    ):
        with pytest.raises(InvalidInputError, match="number"):
            make()
