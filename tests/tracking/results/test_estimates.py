"""How sure the figures of tables are: over seeds, or of a single one."""

from __future__ import annotations

import math

import pytest

from dcs.evaluation.formatting import chance, percent, sentence_of_chance
from tests.tracking.cells import make_cell
from tracking.records import CellRecord
from tracking.results import tables
from tracking.results.class_tables import class_accuracies_by_seed
from tracking.results.comparison import compare_records
from tracking.results.frames import Estimate, class_intervals
from tracking.results.paper_tables import main_results

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


def _cell(number: int = 0, method: str = "dcs", **changes: object) -> CellRecord:
    who = {"model": "m", "task": "t", "shots": 1, "seed": number, "method": method}
    classes = {
        "class": ["Sports", "World"],
        "before": [0.9, 0.1],
        "after": [0.8, float("nan")],
        "after_low": [0.7, float("nan")],
        "after_high": [0.9, float("nan")],
    }
    values = {"identity": who, "metrics": _SURE, "class_accuracies": classes} | changes
    return make_cell(number, **values)


def test_one_seed_has_an_interval_and_several_a_deviation() -> None:
    one = Estimate.of([_cell()], "test/accuracy")
    assert (one.low, one.high, one.p) == (0.45, 0.56, 0.0001)
    assert one.percent() == "50.0 [45.0, 56.0]"
    assert one.marked() == "50.0 [45.0, 56.0]*"
    assert one.reach == pytest.approx((0.05, 0.06))
    assert Estimate.of([_cell()], "test/cobias").percent(padded=True) == "9.0 [ 4.1, 12.0]"
    assert Estimate.of([_cell(method="icl")], "test/accuracy").marked() == "50.0 [45.0, 56.0]"

    other = _cell(1, metrics=_SURE | {"test/accuracy": 0.6})
    several = Estimate.of([_cell(), other], "test/accuracy")
    assert several.percent() == "55.0 ± 7.1" == several.marked()
    assert several.reach == pytest.approx((math.sqrt(0.005),) * 2)


def test_what_earlier_versions_recorded_is_shown_without_an_interval() -> None:
    old = _cell(
        metrics={"test/accuracy": 0.5, "test/cobias": 0.1},
        class_accuracies={"class": ["Sports"], "before": [0.9], "after": [0.8]},
    )
    assert Estimate.of([old], "test/accuracy").percent() == "50.0"
    assert [each.percent() for each in class_intervals(old)] == ["80.0"]
    assert tables.leaderboard_markdown([old]).splitlines()[-1].startswith("|")
    assert main_results([old]).note == ""


def test_every_table_of_one_seed_says_how_sure_it_is() -> None:
    cells = [_cell(method="icl"), _cell()]
    text = tables.leaderboard_markdown(cells)
    assert "| 50.0 [45.0, 56.0] | <0.002 | 9.0 [4.1, 12.0] | 0.250 |" in text
    assert text.rstrip().endswith("p: paired test against ICL on the same rows.")

    main = main_results(cells)
    icl, dcs = main.rows
    assert icl[-2:] == ("50.0 [45.0, 56.0]", "9.0 [4.1, 12.0]")
    assert dcs[-2:] == ("50.0 [45.0, 56.0]*", "9.0 [4.1, 12.0]")
    assert "95 % interval" in main.note and "p < 0.05" in main.note
    assert main.frame["cobias_high"].tolist() == [0.12, 0.12]
    assert main.frame["cobias_p"].tolist()[1] == 0.25

    (classes,) = class_accuracies_by_seed(cells)
    assert classes.rows[1][-4:] == (
        "50.0 [45.0, 56.0]*",
        "9.0 [4.1, 12.0]",
        "80.0 [70, 90]",
        "",
    )
    assert classes.frame["low"].tolist()[0] == 0.7

    frame = tables.class_accuracy_table(cells)
    assert frame["after_high"].tolist()[0] == 0.9
    assert math.isnan(frame["after_high"].tolist()[1])


def test_two_cells_are_compared_with_their_intervals_and_chances() -> None:
    compared = compare_records(_cell(method="icl"), _cell())
    results = {row.name: (row.first, row.second) for row in compared.results}
    assert results["test/accuracy, %"] == ("50.0 [45.0, 56.0]", "50.0 [45.0, 56.0]")
    assert results["test/accuracy, p against ICL"] == ("", "<0.002")
    assert not [name for name in results if name.endswith(("_low", "_high", "_p"))]
    sports, world = compared.classes
    assert sports.second == "80.0 [70.0, 90.0]"
    assert (world.second, world.difference) == ("", "")


def test_figures_for_people() -> None:
    assert percent(None) == percent(math.nan) == chance(None) == chance(math.nan) == ""
    assert percent(0.5, 0.013) == "50.0 ± 1.3"
    assert percent(0.5, math.nan, interval=(math.nan, math.nan)) == "50.0"
    assert percent(0.5, interval=(0.4, 0.6), coarse=True) == "50.0 [40, 60]"
    assert percent(0.05, interval=(0.04, 0.6), digits=0, padded=True) == "5 [ 4, 60]"
    assert [chance(p) for p in (0.0, 0.0019, 0.002, 0.0349, 1.0)] == [
        *("<0.002", "<0.002", "0.002", "0.035", "1.000")
    ]
    assert [sentence_of_chance(p) for p in (0.0, 0.5)] == ["p < 0.002", "p = 0.500"]
