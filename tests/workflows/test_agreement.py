"""A record against the same cell computed again: what must be equal, and what need not be."""

from __future__ import annotations

from dataclasses import replace

from tests.tracking.cells import make_cell
from workflows.reproduce import compare_results

_SURE = {"after_low": [0.7, 0.4], "after_high": [0.9, 0.6]}


def test_what_an_earlier_version_did_not_record_is_not_missed() -> None:
    old = make_cell(1)
    now = replace(
        old,
        metrics={**old.metrics, "test/accuracy_low": 0.4},
        class_accuracies={**old.class_accuracies, **_SURE},
        started_ms=old.started_ms + 1,
    )
    assert all(row.same for row in compare_results(old, now))
    assert [row.name for row in compare_results(now, old) if not row.same] == [
        *("class accuracies", "test/accuracy_low")
    ]


def test_other_class_accuracies_are_no_agreement() -> None:
    old = make_cell(1)
    other = {**old.class_accuracies, "after": [0.8, 0.4], **_SURE}
    rows = compare_results(old, replace(old, class_accuracies=other))
    assert [row.name for row in rows if not row.same] == ["class accuracies"]
