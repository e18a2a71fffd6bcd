"""What a cell records of its rows."""

from __future__ import annotations

import numpy as np

from dcs.data.table import ProbabilityTable
from tests.tracking.cells import SCHEME
from workflows.tuning.cell import class_histograms


def test_histograms_count_every_row_once_in_the_order_of_the_scheme() -> None:
    table = ProbabilityTable.from_arrays(
        np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [1.0, 0.0]]),
        np.array([0, 1, 1, 0]),
        classes=("World", "Sports"),
    )
    counts = class_histograms(table, SCHEME)
    assert [sum(of_class) for of_class in counts["all"]] == [4, 4]
    sports, world = (np.flatnonzero(of_class).tolist() for of_class in counts["own"])
    assert sports == [16, 32], "0.4 and 0.8 in 40 bins"
    assert world == [36, 39], "1 lies in the last bin"
