"""A front that was found: stored, read again, and picked from again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from dcs.errors import SchemeError
from dcs.methods.parameters import Hyperparameters
from dcs.selection.compare import SelectionSettings, fit_scheme
from dcs.selection.front import FittedScheme
from dcs.selection.preference import Prefer, Preference
from tests.dcs.biased import biased_table

_PREFERENCES = [
    *(Preference(prefer=prefer) for prefer in get_args(Prefer)),
    Preference(max_accuracy_loss=1.0),
    Preference(max_cobias=8.0),
]
_SETTINGS = SelectionSettings(
    candidates=(Hyperparameters(calibration="linear"),), betas=(0.0, 0.3, 1.0), folds=3
)


_PROBS, _LABELS = biased_table(600, 3)


@pytest.fixture(scope="module")
def fitted() -> FittedScheme:
    return fit_scheme(_PROBS, _LABELS, settings=_SETTINGS)


def test_picking_again_is_picking(fitted: FittedScheme, tmp_path: Path) -> None:
    fitted.save(tmp_path / "front.json")
    stored = FittedScheme.load(tmp_path / "front.json")
    assert stored == fitted
    for preference in _PREFERENCES:
        again = stored.pick(preference)
        assert again == fitted.pick(preference)
        assert again.pick(Preference()) == fitted
    assert again == fit_scheme(_PROBS, _LABELS, settings=replace(_SETTINGS, preference=preference))


def test_offsets_alone_on_request(fitted: FittedScheme) -> None:
    assert not fitted.points[0].scheme.adds_offsets
    assert fitted.pick(Preference("offsets")).chosen is fitted.points[-1]
    candidates = (
        Hyperparameters(calibration="linear"),
        Hyperparameters(calibration="none"),
        Hyperparameters(calibration="batch", corrections="none"),
    )
    wanted = replace(_SETTINGS, candidates=candidates, preference=Preference("offsets"))
    found = fit_scheme(_PROBS, _LABELS, settings=wanted)
    assert found.chosen is not found.points[-1]
    assert all(point.scheme.adds_offsets for point in found.points)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *((("format",), "dcs-scheme"), (("points",), []), (("preference", "prefer"), "speed")),
        *((("points", 0, "scheme"), {}), (("points", 0, "confusion"), [[1, 2], [3]])),
        (("points", 0, "path"), "far"),
    ],
)
def test_what_is_no_front_is_refused(fitted: FittedScheme, path: Any, value: Any) -> None:
    data = json.loads(json.dumps(fitted.to_dict()))
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(SchemeError):
        FittedScheme.from_dict(data)
