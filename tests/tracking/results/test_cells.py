"""Frames of cells, and how sure their figures are: over seeds, or of a single one."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest

from dcs_tracking.records import CellRecord
from dcs_tracking.results import cells
from dcs_tracking.results.cells import Cells, marked, reach
from tests.tracking.cells import failed_cell, make_cell

_SURE = {
    "test/accuracy": 0.5,
    "test/accuracy_low": 0.45,
    "test/accuracy_high": 0.56,
    "test/accuracy_p": 0.0001,
    "test/cobias": 0.09,
    "test/cobias_low": 0.041,
    "test/cobias_high": 0.12,
    "test/cobias_p": 0.25,
}


def _cell(number: int = 0, method: str = "dcs", **metrics: float) -> CellRecord:
    who = {"model": "m", "task": "t", "shots": 1, "seed": number, "method": method}
    classes = {"class": ["Sports"], "before": [0.9], "after": [0.8]}
    classes |= {"after_low": [0.7], "after_high": [0.9]}
    return make_cell(number, identity=who, metrics=_SURE | metrics, class_accuracies=classes)


def _estimate(*cells: CellRecord) -> dict[Any, Any]:
    (row,) = Cells.of(cells).estimates(("model", "task")).to_dict("records")
    return row


def test_a_row_per_cell_and_class() -> None:
    found = Cells.of([make_cell(1), make_cell(0), failed_cell(2)])
    frame = found.frame
    assert list(frame["key"]) == ["cell0000", "cell0001"]
    assert frame["test/accuracy"].tolist() == pytest.approx([0.5, 0.51])
    classes = found.classes
    assert list(classes["class"]) == ["Sports", "World"] * 2
    assert classes["after"].iloc[0] == pytest.approx(0.8)
    assert math.isnan(classes["before"].iloc[1])


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_frame_in_parts_is_that_of_all_cells(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [_cell(), _cell(1, method="icl"), _cell(2, **{"test/other": 0.5}), make_cell(3)]
    whole = Cells.of(records)
    expected = whole.frame, whole.classes
    monkeypatch.setattr(cells, "_PART", size)
    parts = Cells.of(records)
    for frame, wanted in zip((parts.frame, parts.classes), expected, strict=True):
        pd.testing.assert_frame_equal(frame, wanted)


def test_one_seed_has_an_interval_and_several_a_deviation() -> None:
    one = _estimate(_cell())
    assert one["accuracy_p"] == 0.0001
    assert marked(one, "accuracy") == "50.0 [45.0, 56.0]*"
    assert reach(one, "accuracy") == pytest.approx((0.05, 0.06))
    assert marked(_estimate(_cell(method="icl")), "accuracy") == "50.0 [45.0, 56.0]"

    several = _estimate(_cell(), _cell(1, **{"test/accuracy": 0.6}))
    assert marked(several, "accuracy") == "55.0 ± 7.1"
    assert reach(several, "accuracy") == pytest.approx((math.sqrt(0.005),) * 2)


def test_what_another_table_buys_has_an_error_over_tasks_only() -> None:
    def cell(task: str, tables: int, seed: int, score: float) -> CellRecord:
        who = {"model": f"{tables} tables", "task": task, "seed": seed, "method": "dcs"}
        told = {"optimization": {"rows": 10, "labelled": 10, "tables": tables}}
        metrics = {"test/accuracy": score + 0.1, "test/cobias": 0.1}
        return make_cell(seed, identity=who, metrics=metrics, provenance={"tables": told})

    def gains(tasks: dict[str, float]) -> dict[Any, Any]:
        records = [cell(task, 1, seed, 0.5 + seed / 10) for task in tasks for seed in range(2)]
        records += [cell(task, 3, 0, 0.55 + 2 * gain) for task, gain in tasks.items()]
        return Cells.of(records).by_tables.to_dict("records")[1]

    alone, both = gains({"a": 0.02}), gains({"a": 0.02, "b": 0.06})
    assert alone["gain"] == pytest.approx(0.02) and math.isnan(alone["gain_error"])
    assert [both["gain"], both["gain_error"]] == pytest.approx([0.04, 0.02])
    assert Cells.of([cell("a", 1, 0, 0.5)]).by_tables.empty
