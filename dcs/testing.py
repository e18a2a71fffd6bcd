"""Contracts that what is written to an interface of this package must keep, to be run by tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dcs.data.columns import PREFIX, Reading
from dcs.data.forms import FORMS, Form
from dcs.data.reader import open_source

if TYPE_CHECKING:
    import pandas as pd

    from dcs.data.table import ProbabilityTable


def check_form(
    form: Form, frame: pd.DataFrame, table: ProbabilityTable, given: Reading | None = None
) -> None:
    """Assert that a form reads rows as a known table, in any order, labelled or not.

    Parameters
    ----------
    form : Form
        The form.
    frame : DataFrame
        Rows of this form, one per record of the file.
    table : ProbabilityTable
        What they are.
    given : Reading, optional
        What the user must specify.

    Raises
    ------
    AssertionError
        If the form, or one that is tried before it, breaks the contract.
    """
    import pandas as pd

    before, hint = frame.copy(deep=True), given or Reading()
    columns = dict(zip(table.classes, table.probs.T, strict=True))
    plain = pd.DataFrame(columns).add_prefix(PREFIX)
    assert not form.sniff(plain, Reading()), f"{form.name}: recognises a column per class"
    for step in (1, -1):
        for rows in (frame[::step].reset_index(drop=True), frame[::step][frame.columns[::-1]]):
            first = next((each for each in FORMS if each.sniff(rows, hint)), None)
            assert first is form, f"{form.name}: recognised as {first and first.name}"
            found = open_source(rows, hint).table.with_classes(table.classes)
            np.testing.assert_allclose(found.probs, table.probs[::step], atol=1e-6)
            np.testing.assert_array_equal(found.labels, table.labels[::step])
    # New rows need no labels.
    known = open_source(frame, hint).reading
    rows = frame.drop(columns=[name for name in frame if name == known.label])
    found = open_source(rows, known=known).table.with_classes(table.classes)
    np.testing.assert_allclose(found.probs, table.probs, atol=1e-6)
    pd.testing.assert_frame_equal(frame, before)
