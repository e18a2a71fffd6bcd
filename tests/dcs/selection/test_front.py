"""A front that was found: stored, read again, and which point of it a preference picks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dcs.errors import SchemeError
from dcs.methods.parameters import Hyperparameters
from dcs.schemes.scheme import CorrectionScheme
from dcs.selection.compare import SelectionSettings, fit_scheme
from dcs.selection.front import (
    Change,
    FittedScheme,
    FrontPoint,
    Prefer,
    Preference,
    choose,
    conservative_first,
    pareto_front,
    proven,
)
from tests.dcs.biased import biased_table

_PREFERENCES = [
    *(Preference(prefer=prefer) for prefer in get_args(Prefer)),
    Preference(max_accuracy_loss=1.0),
    Preference(max_cobias=8.0),
]
_SETTINGS = SelectionSettings(
    candidates=(Hyperparameters(calibration="vector", averages=4),), betas=(0.0, 0.3, 1.0), folds=3
)


_PROBS, _LABELS = biased_table(600, 3)


@pytest.fixture(scope="module")
def fitted() -> FittedScheme:
    return fit_scheme(_PROBS, _LABELS, settings=_SETTINGS)


@pytest.mark.parametrize("preference", _PREFERENCES)
def test_picking_again_is_picking(
    fitted: FittedScheme, preference: Preference, tmp_path: Path
) -> None:
    fitted.save(tmp_path / "front.json")
    stored = FittedScheme.load(tmp_path / "front.json")
    assert stored == fitted
    again = stored.pick(preference)
    anew = fit_scheme(_PROBS, _LABELS, settings=replace(_SETTINGS, preference=preference))
    assert again == anew
    assert again.scheme == anew.scheme
    assert again.pick(Preference()) == fitted


def test_offsets_alone_on_request(fitted: FittedScheme) -> None:
    assert not fitted.points[0].scheme.adds_offsets
    assert fitted.pick(Preference("offsets")).chosen is fitted.points[-1]
    candidates = (
        Hyperparameters(calibration="vector", averages=4),
        Hyperparameters(calibration="none", averages=4),
        Hyperparameters(calibration="batch", corrections="none"),
    )
    wanted = replace(_SETTINGS, candidates=candidates, preference=Preference("offsets"))
    found = fit_scheme(_PROBS, _LABELS, settings=wanted)
    assert found.chosen is not found.points[-1]
    assert all(point.scheme.adds_offsets for point in found.points)
    few = fit_scheme(
        _PROBS[:60], _LABELS[:60], settings=SelectionSettings(preference=wanted.preference)
    )
    assert all(point.scheme.adds_offsets for point in few.points)


def test_a_limit_is_held_against_what_lasts(fitted: FittedScheme) -> None:
    first = fitted.points[0]
    noisy = replace(first, cobias=0.05, noise=0.04)
    worse = replace(noisy, cobias=0.045, accuracy=0.0)
    worst = replace(worse, cobias=0.9, accuracy=0.0)
    assert noisy.lasting_cobias == pytest.approx(0.03)
    preference = Preference(prefer="balance", max_cobias=3.5)
    assert FittedScheme.picked([noisy, worse, worst], preference).chosen is noisy


@pytest.mark.parametrize(
    ("preference", "kept"),
    [
        (Preference("accuracy"), True),
        (Preference("balance"), False),
    ],
)
def test_rows_without_labels_speak_for_fairness_and_not_for_accuracy(
    fitted: FittedScheme, preference: Preference, kept: bool
) -> None:
    first, plain = fitted.points[0], fitted.points[-1]
    shrunk = Hyperparameters(calibration="shrunk")
    worse = replace(first, setting=shrunk, accuracy=plain.accuracy - 0.01, cobias=plain.cobias)
    assert (FittedScheme.picked([worse, plain], preference).chosen is plain) == kept


@pytest.mark.parametrize(("accuracy", "kept"), [(-0.02, True), (0.0, False)])
def test_what_costs_accuracy_must_gain_more(
    fitted: FittedScheme, accuracy: float, kept: bool
) -> None:
    first, plain = fitted.points[0], fitted.points[-1]
    errors = {"accuracy_error": 0.01, "cobias_error": 0.02, "score_error": 0.02}
    change = replace(first.change, accuracy=accuracy, **errors)
    fairer = replace(first, accuracy=plain.accuracy, cobias=plain.cobias - 0.015, change=change)
    found = FittedScheme.picked([fairer, plain], Preference("balance"))
    assert (found.chosen is plain) == kept


def test_noise_of_an_exchange_lies_between_those_of_its_parts() -> None:
    # Variances of independent differences add up; these have a covariance of 0.00045.
    errors = {"accuracy_error": 0.03, "cobias_error": 0.04, "score_error": 0.04}
    change = Change(0.0, **errors, gained=0, lost=0, changed=0)
    assert change.error(0.0) == pytest.approx(0.03)
    assert change.error(1.0) == pytest.approx(0.04)
    assert change.error(0.5) == pytest.approx((0.03**2 + 0.02**2 - 0.00045) ** 0.5)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("format",), "dcs-scheme"),
        (("points",), []),
        (("preference", "prefer"), "speed"),
        (("points", 0, "scheme"), {}),
        (("points", 0, "confusion"), [[1, 2], [3]]),
        (("points", 0, "setting", "schedule"), {"restarts": 0}),
    ],
)
def test_what_is_no_front_is_refused(
    fitted: FittedScheme, path: tuple[Any, ...], value: Any
) -> None:
    data = json.loads(json.dumps(fitted.to_dict()))
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(SchemeError):
        FittedScheme.from_dict(data)


def _point(accuracy: float, cobias: float, lost: int = 10) -> FrontPoint:
    """Return a point on 2,000 rows, beside uncorrected probabilities of accuracy 0.67."""
    gained = round(2000 * (accuracy - 0.67)) + lost
    gained, lost = max(gained, 0), lost - min(gained, 0)
    first, second = round(1000 * (1.0 - accuracy)), round(500 * (1.0 - cobias))
    return FrontPoint(
        setting=None,
        accuracy=accuracy,
        cobias=cobias,
        # The other metrics differ from those above, as if they were of other rows.
        confusion=((first, 1000 - first), (1000 - second, second)),
        scheme=CorrectionScheme.identity(("a", "b")),
        beta=0.0,
        noise=0.0,
        change=Change(0.0, 0.0, 0.0, 0.0, gained, lost, gained + lost),
        doubt=0.0,
    )


_FRONT = [_point(0.70, 0.30), _point(0.69, 0.12), _point(0.668, 0.06), _point(0.60, 0.04)]

_POINTS = st.lists(
    st.builds(
        lambda a, c, lost: _point(0.62 + a / 100, c / 50, lost),
        st.integers(0, 8),
        st.integers(0, 8),
        st.integers(0, 400),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=50, deadline=None)
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
def test_the_default_stops_at_the_first_point_that_is_not_proven(points: list[FrontPoint]) -> None:
    chosen = choose(points, Preference())
    allowed = proven(points, Preference())
    assert allowed == conservative_first(points)[: len(allowed)]
    assert all(p.test(Preference()).passed for p in allowed)
    if allowed:
        assert chosen in allowed
        assert chosen.cobias == min(p.cobias for p in allowed)
    else:
        assert chosen.accuracy == max(p.accuracy for p in points)


@settings(max_examples=20, deadline=None)
# Fits take "offsets" for "balance" among some of the points, before they choose.
@given(_POINTS, st.sampled_from(sorted({*get_args(Prefer)} - {"offsets"})), st.floats(0, 20))
def test_goals_and_limits_are_met(points: list[FrontPoint], prefer: Any, limit: float) -> None:
    goal = prefer.replace("-", "_")
    chosen = choose(points, Preference(prefer=prefer)).estimate
    if hasattr(chosen, goal):
        assert getattr(chosen, goal) == max(getattr(p.estimate, goal) for p in points)
    balanced = choose(points, Preference(prefer="balance"))
    most = max(p.accuracy - p.cobias for p in points)
    assert balanced.accuracy - balanced.cobias == pytest.approx(most)
    low = [p for p in points if p.cobias <= limit / 100]
    assume(low)
    assert choose(points, Preference(prefer=prefer, max_cobias=limit)) in low


@pytest.mark.parametrize(
    ("preference", "index"),
    [
        (Preference(prefer="balance"), 2),
        (Preference(max_accuracy_loss=0.0), 0),
        (Preference(max_accuracy_loss=5.0), 2),
        (Preference(max_cobias=20.0, prefer="accuracy"), 1),
        (Preference(max_cobias=1.0), 3),
        (Preference(max_cobias=12.0, prefer="accuracy"), 1),
        (Preference(max_cobias=11.95, prefer="accuracy"), 2),
        (Preference(max_cobias=20.0, max_accuracy_loss=3.0), 2),
    ],
)
def test_rules_choose(preference: Preference, index: int) -> None:
    points = [_point(0.68, 0.2), *_FRONT[::-1]]
    assert choose(points, preference) is _FRONT[index]


def test_rows_that_prove_nothing_leave_the_probabilities_and_say_what_is_missing(
    fitted: FittedScheme,
) -> None:
    first, plain = fitted.points[0], fitted.points[-1]
    fair = replace(first, change=replace(first.change, gained=4, lost=4, changed=9))
    kept = FittedScheme.picked([fair, plain], Preference())
    assert kept.chosen is plain
    needed = fair.test(Preference()).rows_needed
    assert needed is not None
    more = float(f"{needed - fair.estimate.n_rows:.1g}")
    assert f"about {more:,.0f} more labelled rows" in kept.guarantee
    assert FittedScheme.picked([fair, plain], Preference(margin=10.0)).chosen is fair
