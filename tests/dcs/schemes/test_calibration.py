"""Calibrations as values: their shapes, and how they are applied."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dcs.errors import InvalidInputError
from dcs.methods.calibrations import CALIBRATIONS
from dcs.schemes.calibration import Calibration
from dcs.schemes.scheme import CorrectionScheme
from tests.dcs.biased import biased_table

_PROBS, _LABELS = biased_table(400, 4)


def test_products_are_stored() -> None:
    found = CALIBRATIONS["products"].fit(_PROBS, _LABELS, ridge=10.0, anchor=0.0)
    scheme = CorrectionScheme.identity(tuple("abcd"), calibration=found)
    assert CorrectionScheme.from_dict(json.loads(scheme.to_json())) == scheme
    with pytest.raises(InvalidInputError):
        Calibration("x", found.matrix, found.offset)


def test_a_row_by_itself_is_calibrated_as_among_others() -> None:
    found = CALIBRATIONS["linear"].fit(_PROBS, _LABELS, ridge=10.0, anchor=0.0)
    alone = np.concatenate([found.apply(row[None]) for row in _PROBS])
    assert np.array_equal(found.apply(_PROBS), alone)
