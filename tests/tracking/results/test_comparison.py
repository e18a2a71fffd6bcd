"""Methods over many sources, by plain arithmetic, and schemes on tables of others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dcs.data.table import ProbabilityTable
from dcs.schemes.corrections import Weight
from dcs.schemes.scheme import CorrectionScheme
from tests.tracking.cells import make_cell
from tracking.records import CellRecord
from tracking.results.comparison import method_tables, transfer_tables

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


CLASSES = ("Sports", "World")


def _scheme_cell(number: int, weight: float, **identity: object) -> CellRecord:
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
    cells = [
        _scheme_cell(0, 0.4),
        _scheme_cell(1, 0.9),
        _scheme_cell(2, 0.6, task="other"),
        _scheme_cell(3, 0.5, seed=5),
    ]
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
    cells = [_scheme_cell(0, 0.4), _scheme_cell(1, 0.4, task="other")]
    assert transfer_tables(cells, {cell.key: _table(0) for cell in cells}) == []
