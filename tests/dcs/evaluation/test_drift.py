from __future__ import annotations

import json

import numpy as np
import pytest

from dcs.data.columns import to_shares
from dcs.data.table import ProbabilityTable
from dcs.errors import SchemeError
from dcs.evaluation.drift import LEVEL, Drift, compare_rows, summarized
from tests.dcs.biased import biased_table

_PROBS, _LABELS = biased_table(40_000, 4)


def _sample(rng: np.random.Generator, n_rows: int) -> ProbabilityTable:
    rows = rng.choice(_LABELS.size, n_rows, replace=False)
    return ProbabilityTable.from_arrays(_PROBS[rows], _LABELS[rows])


def _compared(first: ProbabilityTable, second: ProbabilityTable) -> dict[str, Drift]:
    reference = json.loads(summarized(first).model_dump_json())
    return {each.subject: each for each in compare_rows(reference, second)}


@pytest.mark.parametrize("n_rows", [20, 500])
def test_rows_that_are_alike_are_flagged_no_oftener_than_stated(n_rows: int) -> None:
    rng, flagged, smallest = np.random.default_rng(0), 0, []
    for _ in range(200):
        found = _compared(_sample(rng, 1000), _sample(rng, n_rows)).values()
        flagged += any(each.drifted for each in found)
        smallest.append(min(each.p for each in found))
    # 200 draws at this level: more than eight have a chance below 1 in 4,000.
    assert flagged <= 8
    # And the tests are not idle: their smallest p-values are not all 1.
    assert np.mean(np.array(smallest) < 0.5) > 0.2
    assert LEVEL == 0.01


def test_other_class_shares_are_found_with_and_without_labels() -> None:
    rng = np.random.default_rng(1)
    first = _sample(rng, 2000)
    kept = np.flatnonzero((_LABELS != 2) | (rng.random(_LABELS.size) < 0.3))[:2000]
    for labels in (_LABELS[kept], None):
        table = ProbabilityTable.from_arrays(_PROBS[kept], labels)
        found = _compared(first, table)
        assert ("true classes" in found) is (labels is not None)
        moved = found["predicted classes"]
        assert moved.drifted and moved.now[2] < moved.before[2]
        apart = np.abs(np.subtract(moved.before, moved.now))
        assert moved.distance == pytest.approx(apart.sum() / 2)
        assert found["mean probability of class_2"].drifted


def test_another_confidence_is_found_where_predictions_stay() -> None:
    rng = np.random.default_rng(2)
    first, second = _sample(rng, 2000), _sample(rng, 2000)
    flat = ProbabilityTable.from_arrays(to_shares(np.sqrt(second.probs), "scores"), second.labels)
    found = _compared(first, flat)
    assert found["confidence"].drifted and not found["predicted classes"].drifted


def test_trifles_and_constant_columns_are_no_drift() -> None:
    same = ProbabilityTable.from_arrays(np.tile([0.6, 0.4], (50, 1)), np.zeros(50, int))
    assert not any(each.drifted for each in _compared(same, same).values())
    other = ProbabilityTable.from_arrays(np.tile([0.3, 0.7], (50, 1)), None)
    assert any(each.drifted for each in _compared(same, other).values())
    many = np.tile(_PROBS, (3, 1))
    big, shifted = (
        ProbabilityTable.from_arrays(to_shares(many * factors, "scores"), None)
        for factors in ([1, 1, 1, 1], [1.05, 1, 1, 1])
    )
    found = _compared(big, shifted).values()
    assert min(each.p for each in found) < LEVEL
    assert not any(each.drifted for each in found)


def test_what_is_no_summary_is_refused() -> None:
    table = _sample(np.random.default_rng(3), 50)
    good = summarized(table).model_dump()
    two = ProbabilityTable.from_arrays([[0.5, 0.5]], None)
    for reference, rows in (({}, table), (good | {"means": "x"}, table), (good, two)):
        with pytest.raises(SchemeError):
            compare_rows(reference, rows)
