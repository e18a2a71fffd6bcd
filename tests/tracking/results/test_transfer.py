"""Schemes on tables that they were not fitted on."""

from __future__ import annotations

import numpy as np
import pytest

from dcs.data.table import ProbabilityTable
from dcs.schemes.corrections import Weight
from dcs.schemes.scheme import CorrectionScheme
from tests.tracking.cells import make_cell
from tracking.records import CellRecord
from tracking.results.comparison import transfer_tables

CLASSES = ("Sports", "World")


def _cell(number: int, weight: float, **identity: object) -> CellRecord:
    plain = make_cell(number)
    scheme = CorrectionScheme(CLASSES, (Weight(weight), Weight(1.0)))
    return make_cell(number, identity={**plain.identity, **identity}, scheme=scheme.to_dict())


def _table(seed: int, *, first: int = 0) -> ProbabilityTable:
    labels = np.arange(80) % 2
    probs = np.random.default_rng(seed).dirichlet([2.0, 1.5], 80)
    return ProbabilityTable.from_arrays(
        probs, labels, classes=CLASSES, ids=range(first, first + 80)
    )


def test_each_scheme_is_judged_on_the_tables_of_the_others() -> None:
    cells = [_cell(0, 0.4), _cell(1, 0.9), _cell(2, 0.6, task="other"), _cell(3, 0.5, seed=5)]
    tests = {c.key: _table(i) for i, c in enumerate(cells[:3])}
    tests[cells[3].key] = _table(3, first=40)
    (table,) = transfer_tables([*cells, make_cell(7)], tests)
    found = table.frame.set_index(["fitted on", "judged on"])["accuracy"]
    first, second, third = (f"tiny_lm, 1-shot, seed {seed}" for seed in (0, 1, 5))
    for fitted, weight in ((first, 0.4), (second, 0.9), ("uncorrected", 1.0)):
        rows = tests[cells[1].key]
        predictions = (rows.probs * [weight, 1.0]).argmax(axis=1)
        assert found[fitted, second] == pytest.approx((predictions == rows.labels).mean())
    # Of other rows, some may have been fitted on.
    assert np.isnan(found[first, third]) and np.isnan(found[third, first])
    assert not np.isnan(found[third, third])
    assert table.columns == ("fitted on", first, second, third)
    assert [row[0] for row in table.rows] == ["uncorrected", first, second, third]


def test_one_table_has_nothing_to_transfer_to() -> None:
    cells = [_cell(0, 0.4), _cell(1, 0.4, task="other")]
    assert transfer_tables(cells, {cell.key: _table(0) for cell in cells}) == []
