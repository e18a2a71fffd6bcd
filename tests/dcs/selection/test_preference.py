"""Which point of a front a preference selects, and what the default promises."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcs.schemes.scheme import CorrectionScheme
from dcs.selection.front import FittedScheme
from dcs.selection.preference import (
    Change,
    FrontPoint,
    Prefer,
    Preference,
    conservative_first,
    pareto_front,
    proven,
    select,
)

_ROWS = 2000


def _point(accuracy: float, cobias: float, lost: int = 10, **others: float) -> FrontPoint:
    """Return a point on 2,000 rows, beside uncorrected probabilities of accuracy 0.67."""
    gained = round(_ROWS * (accuracy - 0.67)) + lost
    gained, lost = max(gained, 0), lost - min(gained, 0)
    first, second = round(1000 * (1.0 - accuracy)), round(500 * (1.0 - cobias))
    return FrontPoint(
        settings=({"share": 1.0},),
        accuracy=accuracy,
        cobias=cobias,
        # The other metrics differ from those above, as if they were of other rows.
        confusion=((first, 1000 - first), (1000 - second, second)),
        scheme=CorrectionScheme.identity(("a", "b")),
        noise=0.0,
        change=Change((gained - lost) / _ROWS, 0.01, 0.0, gained, lost, gained + lost),
        **{"doubt": 0.0, **others},
    )


_PLAIN = _point(0.67, 0.4, 0)

_NUMBERS = st.integers(0, 8), st.integers(0, 24), st.integers(0, 400)
_DRAWN = st.builds(lambda a, c, lost: _point(0.62 + a / 100, c / 50, lost), *_NUMBERS)
_POINTS = st.lists(_DRAWN, min_size=1, max_size=12)


@given(_POINTS)
def test_front_is_what_no_point_beats(points: list[FrontPoint]) -> None:
    front = pareto_front(points)

    def beats(a: FrontPoint, b: FrontPoint) -> bool:
        even = (a.accuracy, a.cobias) == (b.accuracy, b.cobias)
        return a.accuracy >= b.accuracy and a.cobias <= b.cobias and not even

    assert {(p.accuracy, p.cobias) for p in front} == {
        (p.accuracy, p.cobias) for p in points if not any(beats(q, p) for q in points)
    }
    assert [p.accuracy for p in front] == sorted((p.accuracy for p in front), reverse=True)


@settings(max_examples=100, deadline=None)
@given(_POINTS)
def test_the_default_is_proven_and_fairer_or_nothing(points: list[FrontPoint]) -> None:
    everything, rule = [*points, _PLAIN], Preference()
    chosen, allowed = select(everything, rule), proven(everything, rule)
    assert allowed == conservative_first(points)[: len(allowed)]
    for point in allowed:
        assert point.test(rule.margin_of(point, _PLAIN) / 100, 0.96).passed
    assert chosen is _PLAIN or (chosen in allowed and chosen.cobias < _PLAIN.cobias)
    balanced = select(everything, Preference("balance"))
    if balanced in allowed and balanced.cobias < _PLAIN.cobias:
        assert chosen is balanced


def test_the_best_accuracy_is_kept_if_it_gains_more_than_half_its_error() -> None:
    for gain, taken in ((0.004, False), (0.006, True)):
        best, fairer = _point(0.67 + gain, 0.3), _point(0.66, 0.1)
        assert (select([best, fairer, _PLAIN], Preference("accuracy")) is best) == taken


@pytest.mark.parametrize(
    ("removed", "rule", "margin"),
    [
        *((0.02, Preference(), 0.5), (0.1, Preference(), 1.0), (0.35, Preference(), 2.0)),
        *((0.35, Preference(margin=0.7), 0.7), (0.05, Preference(rate=0.2), 1.0)),
        (0.05, Preference(rate=0.0), 0.5),
    ],
)
def test_the_margin_is_in_proportion(removed: float, rule: Preference, margin: float) -> None:
    point = _point(0.66, _PLAIN.cobias - removed)
    assert rule.margin_of(point, _PLAIN) == pytest.approx(margin)


def test_a_part_of_the_way_is_safe_if_a_longer_one_is() -> None:
    """Of a reference that costs too much, the first steps of the way to it are taken."""
    reference = _point(0.62, 0.05, 200)
    way = [
        _point(0.67 + gain / _ROWS, 0.4 - share / 2, 2 * abs(gain) + 1, path=share)
        for share, gain in ((0.01, 2), (0.05, 15), (0.2, 60), (0.9, -90))
    ]
    chosen = select([reference, *way, _PLAIN], Preference())
    assert chosen is way[2]
    assert chosen in proven([reference, *way, _PLAIN], Preference())
    # What is more accurate, but not fairer, or costs more than it removes, was not asked for.
    assert select([_point(0.68, 0.4), _PLAIN], Preference()) is _PLAIN
    costly = [_point(0.669, 0.3995, 4), _PLAIN]
    assert costly[0] in proven(costly, Preference()) and select(costly, Preference()) is _PLAIN


_GAINED = st.sampled_from((-9, 0, 0, 1, 5, 40))
_LOST = st.sampled_from((0, 1, 3, 7, 8, 9, 27, 64, 80, 300))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(_GAINED, _LOST), min_size=1, max_size=6))
def test_the_way_is_safe_as_far_as_it_passes_or_a_longer_one_does(steps: Any) -> None:
    even, reference, rule = _point(0.68, 0.4, 1), _point(0.62, 0.05, 200), Preference()
    way = [
        _point(0.67 + gain / _ROWS, 0.4 - k / 20, lost, path=k / 10)
        for k, (gain, lost) in enumerate(steps, 1)
    ]

    def is_safe(point: FrontPoint) -> bool:
        margin, changed = rule.margin_of(point, _PLAIN) / 100, max(1, point.change.changed)
        later = next((p for p in way if p.change.changed >= 8 * changed), way[-1])
        # Half of the margin, in proportion, and a fifth of the level.
        share = min(1.0, 0.5 * margin * later.change.changed / changed)
        return point.test(margin, 0.99).passed or later.test(share, 0.99).passed

    found = proven([reference, *way[::-1], even, _PLAIN], rule)
    assert found == [even, *takewhile(is_safe, way)]


def test_balance_is_the_reference_unless_another_is_clearly_better() -> None:
    reference = _point(0.66, 0.10)
    better = _point(0.67, 0.08, doubt=0.0149)
    assert select([better, reference, _PLAIN], Preference("balance")) is better
    doubtful = replace(better, doubt=0.0151)
    assert select([doubtful, reference, _PLAIN], Preference("balance")) is reference
    for none_better in (_point(0.3, 0.1), _point(0.67, 0.4, 5)):
        assert select([none_better, _PLAIN], Preference("balance")) is _PLAIN


_GOALS = st.sampled_from(sorted({*get_args(Prefer)} - {"offsets"}))


@settings(max_examples=300, deadline=None)
@given(_POINTS, _GOALS, st.sampled_from([0.0, 8.0, 60.0]), st.sampled_from([None, 0.0, 1.5, 2.5]))
def test_limits_are_met(points: list[FrontPoint], prefer: Any, most: float, loss: Any) -> None:
    everything = [*points, _PLAIN]
    fairest = min(everything, key=lambda p: (p.cobias, -p.accuracy))
    pool = [p for p in everything if p.cobias <= most / 100 + 1e-12] or [fairest]
    chosen = select(everything, Preference(prefer, loss, most))
    assert chosen in pool
    least = max(p.accuracy for p in pool) - (100.0 if loss is None else loss) / 100 - 1e-12
    if loss is not None:
        assert chosen.cobias == min(p.cobias for p in pool if p.accuracy >= least)
    elif (rate := {"accuracy": 0.0, "balance": 1.0}.get(prefer)) is not None:
        scores = [p.accuracy - rate * p.cobias for p in (chosen, *pool)]
        assert scores[0] == max(scores)
    goal = prefer.replace("-", "_")
    if hasattr(chosen.estimate, goal) and goal != "accuracy":
        best = select(everything, Preference(prefer)).estimate
        assert getattr(best, goal) == max(getattr(p.estimate, goal) for p in everything)


def test_a_limit_is_held_against_what_lasts() -> None:
    noisy = replace(_point(0.6, 0.05), noise=0.04)
    worse = replace(noisy, cobias=0.045, accuracy=0.1)
    assert noisy.lasting_cobias == pytest.approx(0.03)
    assert select([noisy, worse, _PLAIN], Preference("balance", max_cobias=3.5)) is noisy


def test_copies_count_once_in_the_test() -> None:
    point = _point(0.69, 0.1, 5)
    twice = replace(point, change=replace(point.change, effect=2.0))
    single, double = (each.test(0.005, 0.95).statistic for each in (point, twice))
    assert double == pytest.approx(single / 2**0.5)


def test_rows_that_prove_nothing_leave_the_probabilities_and_say_what_is_missing() -> None:
    fair = _point(0.671, 0.39, 150)
    kept = FittedScheme((fair, _PLAIN), Preference())
    assert kept.chosen is _PLAIN
    needed = fair.test(0.005, 0.96).rows_needed
    assert needed is not None
    more = float(f"{needed - _ROWS:.1g}")
    # Copies are no rows.
    twice = replace(fair, change=replace(fair.change, effect=2.0))
    further = FittedScheme((twice, _PLAIN), Preference()).guarantee
    assert f"about {float(f'{needed - _ROWS / 2:.1g}'):,.0f} more labelled rows" in further
    # What is proven to cost nothing may be no fairer.
    unfair = FittedScheme((_point(0.67, _PLAIN.cobias + 0.1, 1), _PLAIN), Preference())
    assert "no correction" in unfair.guarantee
    only = replace(fair, path=0.5)  # a share of a reference that is none the fairer
    beside = FittedScheme((*unfair.points[:-1], only, _PLAIN), Preference())
    assert "no correction" in beside.guarantee
    assert f"about {more:,.0f} more labelled rows" in kept.guarantee
    # More rows would confirm a loss.
    lossy = FittedScheme((_point(0.669, 0.39, 150), _PLAIN), Preference())
    assert lossy.chosen is _PLAIN and "more labelled rows" not in lossy.guarantee
    assert FittedScheme((fair, _PLAIN), Preference(margin=10.0)).chosen is fair


def test_the_sentence_says_what_was_proven() -> None:
    cautious, fair = _point(0.69, 0.2, 5, doubt=0.5), _point(0.62, 0.02, 100)
    found = FittedScheme((cautious, fair, _PLAIN), Preference())
    assert found.chosen is cautious
    assert "at most 2 points below uncorrected, 0.1 of the 20.0 points" in found.guarantee
    fixed = found.pick(Preference(margin=0.5))
    assert "at most 0.5 points below uncorrected." in fixed.guarantee
    assert found.pick(Preference("balance")).guarantee == ""
