"""Fronts of accuracy and COBias, and which point of them is taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcs.errors import InvalidInputError
from dcs.selection.front import Preference, choose, pareto_front


@dataclass(frozen=True)
class _Point:
    accuracy: float
    cobias: float


_FRONT = [_Point(0.70, 0.30), _Point(0.69, 0.12), _Point(0.66, 0.06), _Point(0.60, 0.04)]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.builds(_Point, st.integers(0, 8).map(float), st.integers(0, 8).map(float)),
        min_size=1,
        max_size=12,
    )
)
def test_front_is_what_no_point_beats(points: list[_Point]) -> None:
    front = pareto_front(points)

    def beats(a: _Point, b: _Point) -> bool:
        return a.accuracy >= b.accuracy and a.cobias <= b.cobias and a != b

    assert {(p.accuracy, p.cobias) for p in front} == {
        (p.accuracy, p.cobias) for p in points if not any(beats(q, p) for q in points)
    }
    assert [p.accuracy for p in front] == sorted((p.accuracy for p in front), reverse=True)


@pytest.mark.parametrize(
    ("preference", "index"),
    [
        (Preference(), 2),
        (Preference(prefer="accuracy"), 0),
        (Preference(prefer="knee"), 1),
        (Preference(max_accuracy_loss=0.0), 0),
        (Preference(max_accuracy_loss=0.01), 1),
        (Preference(max_accuracy_loss=0.05), 2),
        (Preference(max_cobias=0.05), 3),
        (Preference(max_cobias=0.2, prefer="accuracy"), 1),
        (Preference(max_cobias=0.01), 3),
        (Preference(max_cobias=0.2, max_accuracy_loss=0.03), 2),
    ],
)
def test_rules_choose(preference: Preference, index: int) -> None:
    dominated = [_Point(0.68, 0.2), _Point(0.5, 0.5)]
    assert choose([*dominated, *_FRONT[::-1]], preference) is _FRONT[index]


def test_a_single_point_is_chosen_by_every_rule() -> None:
    for prefer in ("accuracy", "balance", "knee"):
        assert choose(_FRONT[:1], Preference(prefer=prefer)) is _FRONT[0]


@pytest.mark.parametrize(
    "arguments",
    [{"prefer": "speed"}, {"max_cobias": 5.0}, {"max_accuracy_loss": -0.1}],
)
def test_bad_preferences_are_named(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(arguments))):
        Preference(**arguments)
