"""Methods are compared by table, and by the texts that tables share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import sem

from benchmarks import results
from dcs.data.table import ProbabilityTable
from dcs.evaluation.uncertainty import compare_over_splits


def _cells(**accuracies: list[float]) -> pd.DataFrame:
    """Return cells of one table and method for each list of accuracies, a split per entry."""
    rows: list[dict[str, Any]] = []
    for name, values in accuracies.items():
        for seed, value in enumerate(values):
            rows += [
                {"table": "t", "texts": "x", "method": name, "seed": seed, "accuracy": value}
                | {"ratio": 3 / 7, "p": 0.5}
            ]
    return pd.DataFrame(rows)


def test_differences_are_tested_over_the_splits_of_a_table() -> None:
    cells = _cells(DCS=[50.0, 52.0, 53.0], uncorrected=[51.0, 51.0, 51.0])
    row = results.differences(cells, "accuracy", "DCS", "uncorrected").iloc[0]
    expected = compare_over_splits([-1.0, 1.0, 2.0], test_ratio=3 / 7)
    assert (row["mean"], row["p"]) == pytest.approx((expected.mean, expected.p))


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


@pytest.mark.slow
def test_cells_are_read_from_a_sweep(dcs: Any, tmp_path: Path, output: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(300) % 2
    probs = rng.dirichlet([2.0, 2.0], 300)
    np.savez(tmp_path / "m__t.npz", probs=probs, labels=labels)
    sweep = ["sweep", "results", "--tables", str(tmp_path / "m__t.npz"), "--output", str(output)]
    dcs(*sweep, "--only", "methods=icl,batch", "--set", "seeds=[0, 1]")
    cells = results.read_cells(output, "results")
    assert len(cells) == 4
    assert cells.loc[cells["method"] == "uncorrected", "unchanged"].all()
