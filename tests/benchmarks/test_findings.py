"""Settings, trials and methods over sources: paired by table, by plain arithmetic."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import sem

from benchmarks import importances, results, trials
from benchmarks.findings import finding_figure, finding_tables
from dcs.data.table import ProbabilityTable
from dcs.errors import InvalidInputError
from dcs.evaluation.uncertainty import compare_over_splits
from dcs.schemes.corrections import Membership, Weight
from dcs.schemes.scheme import CorrectionScheme
from dcs_tracking.records import CellRecord
from dcs_tracking.results.sweep_tables import ResultTable
from tests.tracking.cells import make_cell

#: What the accuracy of a method and search is above that of DNIP by heat bath, by source.
_ABOVE = {
    ("dnip", "tuned"): (0.0, 0.0, 0.0),
    ("dcs", "tuned"): (0.01, 0.02, -0.03),
    ("dnip", "published"): (-0.1, -0.1, -0.1),
    ("dcs", "published"): (-0.1, -0.2, -0.1),
}


def _cell(number: int, source: int, seed: int, method: str, search: str) -> CellRecord:
    changes = (method, search) == ("dcs", "published")
    chosen = Membership(0.0, 0.25, 0.5) if changes else Membership(0.0, 1.0, 1.0)
    accuracy = 0.5 + source / 10 + seed / 100 + _ABOVE[method, search][source]
    who = {"model": "m", "task": "abc"[source], "shots": 1, "seed": seed, "method": method}
    return make_cell(
        number,
        identity={**who, "tuner": {"search": {"schedule": search}}},
        metrics={"test/accuracy": accuracy, "test/cobias": 0.1, "opt/z": 0.3 - accuracy / 10},
        scheme=CorrectionScheme(("Sports", "World"), (Weight(0.8), chosen)).to_dict(),
        class_accuracies={"class": ["Sports", "World"], "before": [0.9, 0.2], "after": [0.5, 0.0]},
    )


@pytest.fixture
def cells() -> list[CellRecord]:
    who = [(s, seed, *each) for s in range(3) for seed in range(2) for each in _ABOVE]
    return [_cell(number, *each) for number, each in enumerate(who)]


def _settings(table: ResultTable) -> pd.DataFrame:
    return table.frame.set_index(["method", "schedule"])


def test_changes_are_paired_by_source_and_split(cells: list[CellRecord]) -> None:
    untuned = {**cells[0].identity, "method": "batch", "tuner": None}
    methods, settings = finding_tables([*cells, replace(cells[0], key="b", identity=untuned)])
    by_method = _settings(methods)
    change = by_method.loc[("dcs", "tuned")]
    assert change["change"] == pytest.approx(0.0, abs=1e-12)
    assert (change["ahead"], change["behind"]) == (2, 1)
    assert change["low"] < 0.0 < change["high"]
    assert by_method.loc[("dcs", "published"), "change"] == pytest.approx(-0.1 / 3)
    # Nothing is compared with itself.
    assert by_method.loc["dnip", "change"].isna().all()
    by_setting = _settings(settings)
    assert by_setting.loc[("dnip", "published"), "change"] == pytest.approx(-0.1)
    assert by_setting.loc[("dcs", "published"), "change"] == pytest.approx(-0.4 / 3)
    assert by_setting.loc[("dnip", "published"), "p"] == pytest.approx(0.25)
    assert by_setting["cells"].tolist() == [6] * 4


def test_memberships_count_where_they_change_something(cells: list[CellRecord]) -> None:
    frame = _settings(finding_tables(cells)[1])
    assert frame.loc[("dcs", "tuned"), "membership_share"] == 0.0
    chosen = frame.loc[("dcs", "published")]
    assert (chosen["membership_share"], chosen["weak"], chosen["lost"]) == (0.5, 1.0, 0.5)


def test_a_cell_that_lacks_its_partner_is_not_compared(cells: list[CellRecord]) -> None:
    alone = [c for c in cells if (c.who["task"], c.who["method"]) != ("c", "dnip")]
    for found, change in ((cells, 0.0), (alone, 0.015)):
        compared = _settings(finding_tables(found)[0])
        assert compared.loc[("dcs", "tuned"), "change"] == pytest.approx(change, abs=1e-12)


def test_settings_of_one_source_or_none_make_no_finding(cells: list[CellRecord]) -> None:
    of_one = [cell for cell in cells if cell.who["task"] == "a"]
    alike = [cell for cell in cells if cell.identity["tuner"]["search"]["schedule"] == "published"]
    for few in (of_one, alike):
        assert finding_tables(few) == []
        with pytest.raises(InvalidInputError):
            finding_figure(few)


def test_the_figure_has_a_panel_for_each_question(cells: list[CellRecord]) -> None:
    assert len(finding_figure(cells).axes) == 6


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
    lines = []
    for table, gain in (("a", 1.0), ("b", 0.0)):
        for seed in (0, 1):
            for number in trials.TRIALS:
                for prefer in trials.PREFERENCES:
                    names = {"table": table, "texts": table, "seed": seed, "prefer": prefer}
                    score = 50.0 + 10.0 * seed + (gain if number == 256 else 0.0)
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
