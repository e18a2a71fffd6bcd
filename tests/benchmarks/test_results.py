"""Settings, trials and methods over sources: paired by table, by plain arithmetic."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import sem

from benchmarks import importances, results, trials
from dcs.data.table import ProbabilityTable
from dcs.evaluation.uncertainty import compare_over_splits


def _cells(**accuracies: list[float]) -> pd.DataFrame:
    """Return cells of one table and method for each list of accuracies, a split per entry."""
    splits = pd.DataFrame(accuracies).rename_axis("seed").reset_index()
    rows = splits.melt("seed", var_name="method", value_name="accuracy")
    return rows.assign(table="t", texts="x", ratio=3 / 7, p=0.5)


def test_differences_are_tested_over_the_splits_of_a_table() -> None:
    cells = _cells(DCS=[50.0, 52.0, 53.0], uncorrected=[51.0, 51.0, 51.0])
    row = results.differences(cells, "accuracy", "DCS", "uncorrected").iloc[0]
    expected = compare_over_splits([-1.0, 1.0, 2.0], test_ratio=3 / 7)
    assert (row["mean"], row["p"]) == pytest.approx((expected.estimate, expected.p))


def test_a_single_split_is_tested_on_its_rows() -> None:
    cells = _cells(DCS=[50.0], uncorrected=[51.0])
    assert results.differences(cells, "accuracy", "DCS", "uncorrected")["p"].item() == 0.5


def test_tables_of_the_same_texts_count_as_one_observation() -> None:
    values = pd.Series([1.0, 2.0, 4.0, 9.0])
    alone = results.clustered_error(values, pd.Series(["a", "b", "c", "d"]))
    assert alone == pytest.approx(sem(values))
    # Copies of each table add no information.
    twice = pd.concat([values, values], ignore_index=True)
    assert results.clustered_error(twice, pd.Series([*"abcd"] * 2)) == pytest.approx(alone)


def test_rows_apart_are_not_among_the_fitted_ones() -> None:
    probs = np.array([[0.5, 0.5], [0.25, 0.75], [0.250001, 0.749999], [0.9, 0.1]])
    table = ProbabilityTable.from_arrays(probs, [0, 1, 1, 0], classes=("a", "b"))
    fitted, test = table.subset(np.array([0, 1])), table.subset(np.array([2, 3]))
    assert results.are_apart(fitted, test).tolist() == [False, True]


def test_changes_are_paired_by_table_and_split(tmp_path: Path) -> None:
    about = {"ratio": 3 / 7, "judged": 26, "seconds": 1.0, "accuracy": 60.0, "cobias": 5.0}
    lines, gains = [], {"a": 1.0, "b": 0.0}
    for table, seed, number, prefer in product(gains, (0, 1), trials.TRIALS, trials.PREFERENCES):
        names = {"table": table, "texts": table, "seed": seed, "prefer": prefer}
        score = 50.0 + 10.0 * seed + (gains[table] if number == 48 else 0.0)
        lines.append(json.dumps({**about, **names, "trials": number, "score": score}))
    (file := tmp_path / "trials.jsonl").write_text("\n".join(lines) + "\n")
    *_, few, many = trials.table(file).splitlines()
    assert "| +0.00 ± 0.00 | 0 / 4 / 0 | 0 / 0 |" in few
    assert "| +0.50 ± 0.50 | 2 / 2 / 0 | 1 / 0 |" in many


def test_a_parameter_counts_that_exceeds_the_dummy_reliably(tmp_path: Path) -> None:
    lines = []
    for seed in range(4):
        shares = {"beta": 0.4 + 0.01 * seed, "tau": 0.1 * (-1) ** seed + 0.1, "dummy": 0.1}
        about = {"sweep": "s", "table": "t", "seed": seed}
        lines.append(json.dumps({**about, "importances": {"accuracy": shares}}))
    (file := tmp_path / "importances.jsonl").write_text("\n".join(lines) + "\n")
    found = importances.exceeding(file).set_index("parameter")
    assert found["exceeds"].to_dict() == {"beta": True, "tau": False}
    assert found.loc["beta", "share"] == pytest.approx(0.415)
