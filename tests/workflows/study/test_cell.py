"""What the record of a cell says of the rows that it was not fitted on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dcs.data.table import ProbabilityTable
from dcs.evaluation.drift import compare_rows
from dcs.schemes.scheme import CorrectionScheme
from dcs.selection.front import FittedScheme
from dcs_workflows.study.cell import compute_cell, evidence, failed_record
from dcs_workflows.study.study import Setup
from tests.workflows.conftest import biased_table, toy_cell


def _interval(table: ProbabilityTable) -> tuple[float, float]:
    tables = {"optimization": table, "test": table}
    metrics = compute_cell(toy_cell(table), tables, setup=Setup()).metrics
    return metrics["test/accuracy_low"], metrics["test/accuracy_high"]


def test_copies_of_rows_count_once() -> None:
    once = biased_table(300)
    # Other probabilities, so that only the groups tell.
    probs = np.vstack([once.probs, once.probs**1.001])
    twice = (probs / probs.sum(axis=1, keepdims=True), np.tile(once.labels, 2))
    low, high = _interval(once)
    groups = np.tile(np.arange(300), 2)
    copies = ProbabilityTable.from_arrays(*twice, classes=once.classes, groups=groups)
    assert _interval(copies) == pytest.approx((low, high), abs=0.01)
    first, last = _interval(ProbabilityTable.from_arrays(*twice, classes=once.classes))
    assert last - first == pytest.approx((high - low) / np.sqrt(2.0), rel=0.1)


def test_a_clock_that_goes_back_makes_no_negative_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", iter(range(10**18, 0, -(10**12))).__next__)
    table = biased_table(60)
    cell = toy_cell(table, method="batch")
    record = compute_cell(cell, {"optimization": table, "test": table}, setup=Setup())
    failed = failed_record(cell, ValueError(), sweep="s", started_ms=10**12)
    for each in (record, failed):
        assert 0 <= each.finished_ms - each.started_ms < 60_000


def test_evidence_counts_the_rows_that_only_one_has_right() -> None:
    labels, before, after = np.random.default_rng(0).integers(0, 3, (3, 200))
    found = evidence(None, labels, before, after, 3)
    pairs = list(zip(labels.tolist(), before.tolist(), after.tolist(), strict=True))
    assert found["gained"] == sum(b != label == a for label, b, a in pairs)
    assert found["lost"] == sum(a != label == b for label, b, a in pairs)
    assert np.trace(found["confusion"]) == sum(label == a for label, _, a in pairs)


def test_few_labels_of_some_classes_are_no_alarm_in_new_rows() -> None:
    table = biased_table(900)
    known = (table.labels == 0) & (np.arange(900) < 90) | (np.arange(900) < 45)
    some = replace(table, labels=np.where(known, table.labels, -1))
    cell = toy_cell(some, method="dnip")
    tables = {"optimization": some, "test": biased_table(60)}
    record = compute_cell(cell, tables, setup=Setup())
    scheme = CorrectionScheme.from_dict(record.scheme)
    # What is kept are the rows of the folds and of the test.
    point, test = FittedScheme.from_dict(record.front).chosen, tables["test"]
    held = scheme.provenance["held_out"]
    own = evidence(None, test.labels, test.probs.argmax(1), scheme.predict(test.probs), 3)
    np.testing.assert_array_equal(np.add(own["confusion"], point.confusion), held["confusion"])
    gains = [held[name] - own[name] for name in ("gained", "lost")]
    assert gains == [point.change.gained, point.change.lost] and min(gains) > 0
    batches = [biased_table(300, seed=seed).probs for seed in range(1, 21)]
    reference = scheme.provenance["reference"]
    ps = [compare_rows(reference, probs, scheme.predict(probs)).p for probs in batches]
    assert np.mean(np.array(ps) <= 0.05) <= 0.1
