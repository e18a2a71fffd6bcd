"""Methods over many sources, by plain arithmetic, and schemes on tables of others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dcs.io import content_key
from tests.tracking.cells import make_cell
from tests.tracking.paper_cells import paper_cells
from tracking.records import CellRecord
from tracking.results import comparison

#: Accuracy and COBias by source and method, the mean of three seeds.
FIGURES = {
    ("a", "icl"): (0.60, 0.40),
    ("a", "dcs"): (0.61, 0.10),
    ("a", "batch"): (0.50, 0.05),
    ("b", "icl"): (0.70, 0.30),
    ("b", "dcs"): (0.69, 0.20),
    ("b", "batch"): (0.72, 0.15),
}


def _cell(metrics: Any = None, **identity: Any) -> CellRecord:
    """Return a cell with another identity, and with other metrics if given."""
    plain = make_cell()
    who = {**plain.identity, **identity}
    judged = plain.metrics if metrics is None else metrics
    return replace(plain, key=content_key(who), identity=who, metrics=judged)


def _judged(task: str, method: str, seed: int, **identity: Any) -> CellRecord:
    (accuracy, bias), (plain, _) = FIGURES[task, method], FIGURES[task, "icl"]
    spread = (seed - 1) / 100
    metrics = {
        "test/accuracy": accuracy + spread,
        "test/cobias": bias - spread,
        "test/balanced_accuracy": 0.4,
        "uncorrected/test/accuracy": plain,
    }
    who = {"task": task, "method": method, "seed": seed, **identity}
    return _cell(metrics=metrics, **who)


@pytest.fixture
def cells() -> list[CellRecord]:
    return [_judged(*each, seed) for each in FIGURES for seed in range(3)]


def test_means_and_verdicts(cells: list[CellRecord]) -> None:
    means, by_source = comparison.method_tables(cells)
    rows = means.frame.set_index("method")
    assert rows.loc["DCS", ["accuracy", "cobias", "score"]].tolist() == pytest.approx(
        [0.65, 0.15, 0.5]
    )
    assert rows["balanced_accuracy"].tolist() == pytest.approx([0.4] * 3)
    # The spread over three seeds is 0.01 on both sources: 0.01 / sqrt(3) / sqrt(2).
    assert rows["accuracy_error"].tolist() == pytest.approx([0.01 / 6**0.5] * 3)
    assert rows["less_accurate"].to_dict() == {"uncorrected": 0, "DCS": 0, "Batch calibration": 1}
    assert rows["fairest"].to_dict() == {"uncorrected": 0, "DCS": 1, "Batch calibration": 1}
    assert by_source.text["Batch calibration"].str.endswith("↓").tolist() == [True, False]


def test_sources_that_lack_a_method_are_left_out(cells: list[CellRecord]) -> None:
    lacking = [c for c in cells if (c.who["task"], c.who["method"]) != ("b", "batch")]
    assert comparison.method_tables(lacking) == []
    third = [_judged(*each, 0, shots="5") for each in FIGURES if each[0] == "a"]
    _, by_source = comparison.method_tables(lacking + third)
    assert len(by_source.rows) == 2


def _labelled(methods: tuple[str, ...], size: int | None, kept: bool | None) -> list[CellRecord]:
    """Cells of two sources; accuracy is a tenth of the digits of the number of labels."""
    tuner = None if kept is None else {"keep_unlabelled": kept}
    found = paper_cells(
        tasks=("a", "b"), methods=methods, seeds=(0, 1), optimization_size=size, tuner=tuner
    )
    accuracy = len(str(size or 1000)) / 10
    bias = {"a": 0.1, "b": 0.1} if kept else {"a": 0.2, "b": 0.3}
    return [
        replace(c, metrics={"test/accuracy": accuracy, "test/cobias": bias[c.who["task"]]})
        for c in found
    ]


def test_methods_by_labelled_rows_with_and_without_the_others() -> None:
    cells = _labelled(("icl", "batch"), None, None) + _labelled(("dcs", "dnip"), None, False)
    for size in (10, 100):
        cells += _labelled(("batch",), size, None)
        cells += _labelled(("dcs",), size, False) + _labelled(("dcs",), size, True)
    scores, gains = comparison.label_tables(cells)
    assert scores.columns == ("method", "rows used", "10", "100", "all")
    rows = {row[:2]: row[2:] for row in scores.rows}
    assert {method for method, _ in rows} == {"uncorrected", "Batch calibration", "DCS"}
    # Over sources 0.2 - 0.2 and 0.2 - 0.3; the rows without labels bring COBias to 0.1.
    assert rows["DCS", "labelled rows alone"] == ("-5.0 ± 5.0", "5.0 ± 5.0", "15.0 ± 5.0")
    assert rows["DCS", "with unlabelled rows"][:2] == ("10.0 ± 0.0", "20.0 ± 0.0")
    assert set(rows["Batch calibration", "all, without labels"]) == {"15.0 ± 5.0"}
    gained = {row[:2]: row[2:] for row in gains.rows}
    assert gained["DCS", "with unlabelled rows"][1] == "+5.0 ± 5.0"
    whole = [c for c in cells if c.identity["optimization_size"] is None]
    assert comparison.label_tables(whole) == []


def test_an_ensemble_is_compared_with_the_best_of_its_tables(cells: list[CellRecord]) -> None:
    def judged(score: float, seed: int, *tables: str) -> CellRecord:
        origins = {name: {"model": name, "split": "optimization"} for name in tables}
        metrics = {"test/accuracy": score + 0.1, "test/cobias": 0.1}
        cell = _cell(metrics=metrics, model=" + ".join(tables), seed=seed)
        if len(tables) == 1:
            told = {"optimization": origins[tables[0]] | {"rows": 10, "labelled": 10}}
            return replace(cell, provenance={"tables": told})
        return replace(cell, scheme={**(cell.scheme or {}), "provenance": {"tables": origins}})

    alone = {"m": (0.5, 0.7), "n": (0.6, 0.6), "o": (0.9, 0.9)}
    records = [judged(own[seed], seed, m) for m, own in alone.items() for seed in range(2)]
    records += [judged(0.62, 0, "m", "n"), judged(0.66, 1, "m", "n")]
    (table,) = comparison.ensemble_tables(records)
    row = table.frame.iloc[0]
    # Both have 0.6 on the mean; the first of them is taken. What is not in the group is not.
    assert (row["best"], row["seeds"]) == ("m", 2)
    assert row["gain"] == pytest.approx((0.12 - 0.04) / 2)
    assert row["gain_error"] == pytest.approx(0.08)
    assert table.rows[0][1:5] == ("DCS", "74.0 / 10.0", "70.0 / 10.0", "m")
    assert comparison.ensemble_tables(cells) == []
