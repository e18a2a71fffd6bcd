"""The front of DCS beside other methods, and schemes on tables of others, by plain arithmetic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.comparison import (
    ensemble_tables,
    front_comparison,
    label_tables,
    transfer_tables,
)
from dcs.data.table import ProbabilityTable
from dcs.io import content_key
from dcs.schemes.corrections import Weight
from dcs.schemes.scheme import CorrectionScheme
from dcs_tracking.records import CellRecord
from tests.tracking.cells import make_cell
from tests.tracking.paper_cells import paper_cells

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


def test_a_front_is_compared_at_the_accuracy_of_others(cells: list[CellRecord]) -> None:
    front = tuple(
        replace(make_cell().trials[0], metrics={"test/accuracy": accuracy, "test/cobias": bias})
        for accuracy, bias in ((0.62, 0.42), (0.55, 0.08), (0.40, 0.02))
    )
    fronts = {("a", "dcs"): front, ("b", "dcs"): front[1:]}
    with_fronts = [
        replace(c, trials=fronts.get((c.who["task"], c.who["method"]), ())) for c in cells
    ]
    compared = front_comparison(with_fronts)
    assert compared is not None
    # Batch calibration has COBias 0.05 at 0.50, where the front has 0.06, beyond the spread of
    # seeds; at 0.60, where uncorrected has 0.40, it has 0.323. All of b is above 0.55.
    assert compared.rows == (
        ("uncorrected", "1", "0", "0", "1"),
        ("Batch calibration", "0", "0", "1", "1"),
        ("all", "1", "0", "1", "2"),
    )


CLASSES = ("Sports", "World")


def _scheme_cell(weight: float, **identity: object) -> CellRecord:
    scheme = CorrectionScheme(CLASSES, (Weight(weight), Weight(1.0)))
    return replace(_cell(**identity), scheme=scheme.to_dict())


def _table(seed: int, *, first: int = 0) -> ProbabilityTable:
    labels = np.arange(80) % 2
    probs = np.random.default_rng(seed).dirichlet([2.0, 1.5], 80)
    return ProbabilityTable.from_arrays(
        probs, labels, classes=CLASSES, ids=range(first, first + 80)
    )


def test_each_scheme_is_judged_on_the_tables_of_the_others() -> None:
    whose = ({"seed": 0}, {"seed": 1}, {"task": "other"}, {"seed": 5})
    weights = (0.4, 0.9, 0.6, 0.5)
    cells = [_scheme_cell(weight, **who) for weight, who in zip(weights, whose, strict=True)]
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
    scores, gains = label_tables(cells)
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
    assert label_tables(whole) == []


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
    (table,) = ensemble_tables(records)
    row = table.frame.iloc[0]
    # Both have 0.6 on the mean; the first of them is taken. What is not in the group is not.
    assert (row["best"], row["seeds"]) == ("m", 2)
    assert row["gain"] == pytest.approx((0.12 - 0.04) / 2)
    assert row["gain_error"] == pytest.approx(0.08)
    assert table.rows[0][1:5] == ("DCS", "74.0 / 10.0", "70.0 / 10.0", "m")
    assert ensemble_tables(cells) == []
