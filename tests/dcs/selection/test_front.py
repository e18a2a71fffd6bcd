"""A front that was found: stored, read again, and picked from without fitting."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from dcs.errors import SchemeError
from dcs.selection.cross_validation import SelectionSettings, fit_scheme
from dcs.selection.front import Change, FittedScheme, Prefer, Preference
from dcs.selection.settings import Hyperparameters
from tests.dcs.biased import biased_table

_PREFERENCES = [
    *(Preference(prefer=prefer) for prefer in get_args(Prefer)),
    Preference(exchange_rate=0.25),
    Preference(max_accuracy_loss=1.0),
    Preference(max_cobias=8.0),
]
_SETTINGS = SelectionSettings(
    candidates=(Hyperparameters(calibration="vector", averages=4),), betas=(0.0, 0.3, 1.0), folds=3
)


@pytest.fixture(scope="module")
def fitted() -> FittedScheme:
    probs, labels = biased_table(600, 3)
    return fit_scheme(probs, labels, settings=_SETTINGS)


@pytest.mark.parametrize("preference", _PREFERENCES)
def test_picking_again_is_picking(
    fitted: FittedScheme, preference: Preference, tmp_path: Path
) -> None:
    probs, labels = biased_table(600, 3)
    fitted.save(tmp_path / "front.json")
    stored = FittedScheme.load(tmp_path / "front.json")
    assert stored == fitted
    again = stored.pick(preference)
    anew = fit_scheme(probs, labels, settings=replace(_SETTINGS, preference=preference))
    assert again == anew
    assert again.scheme == anew.scheme
    assert again.pick(Preference()) == fitted


def test_fitting_again_on_the_same_rows_is_much_the_same(fitted: FittedScheme) -> None:
    probs, labels = biased_table(600, 3)
    for preference in _PREFERENCES:
        again = fitted.pick(preference)
        scheme = again.refit(probs, labels)
        # The searches of a front start from each other.
        assert np.mean(scheme.predict(probs) == again.scheme.predict(probs)) > 0.97
    kept = replace(fitted, chosen=fitted.points[-1])
    assert kept.refit(probs[::2], labels[::2]).changes_nothing


def test_a_limit_is_held_against_what_lasts(fitted: FittedScheme) -> None:
    first = fitted.points[0]
    noisy = replace(first, cobias=0.05, noise=0.04)
    worse = replace(noisy, cobias=0.045, accuracy=0.0)
    worst = replace(worse, cobias=0.9, accuracy=0.0)
    assert noisy.lasting_cobias == pytest.approx(0.03)
    preference = Preference(prefer="balance", max_cobias=3.5)
    assert FittedScheme.picked([noisy, worse, worst], preference).chosen is noisy


def test_noise_of_an_exchange_lies_between_those_of_its_parts() -> None:
    # Independent differences: their variances add up.
    change = Change(0.0, 1.0, accuracy_error=0.03, cobias_error=0.04, score_error=0.05)
    assert change.error(1.0, 0.0) == pytest.approx(0.03)
    assert change.error(0.0, 1.0) == pytest.approx(0.04)
    assert change.error(1.0, 1.0) == pytest.approx(0.05)
    assert change.error(2.0, 0.5) == pytest.approx((0.06**2 + 0.02**2) ** 0.5)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("format",), "dcs-scheme"),
        (("points",), []),
        (("preference", "prefer"), "speed"),
        (("preference", "colour"), "red"),
        (("points", 0, "scheme"), {}),
        (("points", 0, "confusion"), [[1, 2], [3]]),
        (("points", 0, "setting", "schedule"), {"colour": "red"}),
        (("points", 0, "setting", "colour"), "red"),
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
