"""Methods over many sources: means by plain arithmetic, and who is less accurate or fairest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.tracking.cells import make_cell
from tracking.records import CellRecord
from tracking.results.comparison import method_tables

#: Accuracy and COBias by source and method, the mean of three seeds.
FIGURES = {
    ("a", "icl"): (0.60, 0.40),
    ("a", "dcs"): (0.61, 0.10),
    ("a", "batch"): (0.50, 0.05),
    ("b", "icl"): (0.70, 0.30),
    ("b", "dcs"): (0.70, 0.20),
    ("b", "batch"): (0.72, 0.15),
}


def cell(number: int, task: str, method: str, seed: int) -> CellRecord:
    accuracy, bias = FIGURES[task, method]
    spread = (-0.01, 0.0, 0.01)[seed]
    plain = make_cell(number)
    return make_cell(
        number,
        identity={**plain.identity, "task": task, "method": method, "seed": seed},
        metrics={
            "test/accuracy": accuracy + spread,
            "test/cobias": bias - spread,
            "test/balanced_accuracy": 0.4,
            "uncorrected/test/accuracy": FIGURES[task, "icl"][0],
        },
    )


@pytest.fixture
def cells() -> list[CellRecord]:
    who = [(task, method, seed) for task, method in FIGURES for seed in range(3)]
    return [cell(number, *each) for number, each in enumerate(who)]


def test_means_and_verdicts(cells: list[CellRecord]) -> None:
    means, by_source = method_tables(cells)
    rows = means.frame.set_index("method")
    assert rows.loc["DCS", ["accuracy", "cobias", "score"]].tolist() == pytest.approx(
        [0.655, 0.15, 0.505]
    )
    assert rows["balanced_accuracy"].tolist() == pytest.approx([0.4] * 3)
    # The spread over three seeds is 0.01 on both sources: 0.01 / sqrt(3) / sqrt(2).
    assert rows["accuracy_error"].tolist() == pytest.approx([0.01 / 6**0.5] * 3)
    assert rows["less_accurate"].to_dict() == {"uncorrected": 0, "DCS": 0, "Batch calibration": 1}
    assert rows["fairest"].to_dict() == {"uncorrected": 0, "DCS": 1, "Batch calibration": 1}
    assert by_source.text["Batch calibration"].str.endswith("↓").tolist() == [True, False]


def test_sources_that_lack_a_method_are_left_out(cells: list[CellRecord]) -> None:
    lacking = [c for c in cells if (c.identity["task"], c.identity["method"]) != ("b", "batch")]
    assert method_tables(lacking) == []
    third = [
        make_cell(100 + i, identity={**c.identity, "task": "c"}, metrics=c.metrics)
        for i, c in enumerate(cells)
        if c.identity["task"] == "a"
    ]
    _, by_source = method_tables(lacking + third)
    assert len(by_source.rows) == 2


def test_a_front_is_compared_at_the_accuracy_of_others(cells: list[CellRecord]) -> None:
    front = ((0.62, 0.42), (0.55, 0.08), (0.40, 0.02))
    with_fronts = [
        replace(
            c,
            trials=tuple(
                replace(trial, metrics={"test/accuracy": accuracy, "test/cobias": bias})
                for trial, (accuracy, bias) in zip(make_cell(trials=3).trials, front, strict=True)
            ),
        )
        if c.identity["method"] == "dcs" and c.identity["task"] == "a"
        else c
        for c in cells
    ]
    *_, compared = method_tables(with_fronts)
    rows = compared.frame.set_index("method")
    # Batch calibration has COBias 0.05 at 0.50, where the front has 0.06, beyond the spread of
    # seeds; at 0.60, where uncorrected has 0.40, it has 0.323.
    assert rows.loc["uncorrected"].tolist() == [1, 0, 0, 0]
    assert rows.loc["Batch calibration"].tolist() == [0, 0, 1, 0]
    assert rows.loc["all"].sum() == 2
