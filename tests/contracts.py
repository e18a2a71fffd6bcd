"""What every calibration and every form of files must keep."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from dcs.data.columns import PREFIX, Reading
from dcs.data.forms.plain import Form
from dcs.data.reader import FORMS, open_source
from dcs.data.table import ProbabilityTable
from dcs.methods.calibrations import FittedCalibration
from tests.workflows.conftest import biased_table


def check_calibration(calibration: FittedCalibration) -> None:
    """Check that a calibration is what its flags say."""
    table = biased_table(120)
    probs, labels = table.probs, np.where(np.arange(120) % 4 > 0, table.labels, -1)

    def apply(given: NDArray[np.int64]) -> NDArray[np.float64]:
        found = calibration.fit(probs, given, ridge=10.0, anchor=1.0)
        return probs if found is None else found.apply(probs)

    found = apply(labels)
    assert found.shape == probs.shape
    assert_allclose(found.sum(axis=1), 1.0, atol=1e-9)
    assert (apply(labels) == found).all()
    assert calibration.needs_labels or (apply(labels[::-1]) == found).all()
    if calibration.adds_offsets:
        offsets = np.log(found) - np.log(probs)
        offsets -= offsets[:, :1]
        assert_allclose(offsets, np.tile(offsets[0], (120, 1)), atol=1e-6)


def check_form(
    form: Form, frame: pd.DataFrame, table: ProbabilityTable, given: Reading | None = None
) -> None:
    """Check that a form alone recognises rows, and reads them in any order, labelled or not."""
    before, hint = frame.copy(deep=True), given or Reading()
    plain = pd.DataFrame(dict(zip(table.classes, table.probs.T, strict=True))).add_prefix(PREFIX)
    assert not form.sniff(plain, Reading())
    for step in (1, -1):
        for rows in (frame[::step].reset_index(drop=True), frame[::step][frame.columns[::-1]]):
            assert next((each for each in FORMS if each.sniff(rows, hint)), None) is form
            found = open_source(rows, hint).table.with_classes(table.classes)
            assert_allclose(found.probs, table.probs[::step], atol=1e-6)
            assert (found.labels == table.labels[::step]).all()
    known = open_source(frame, hint).reading
    rows = frame.drop(columns=[name for name in frame if name == known.label])
    found = open_source(rows, known=known).table.with_classes(table.classes)
    assert_allclose(found.probs, table.probs, atol=1e-6)
    pd.testing.assert_frame_equal(frame, before)
