from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracking.cells import failed_cell, make_cell
from tracking.results import tables
from tracking.schema import safe_names


def _cell(number: int, method: str, task: str, accuracy: float):  # type: ignore[no-untyped-def]
    who = {"model": "m", "task": task, "shots": "N", "seed": number, "method": method}
    return make_cell(
        number, identity=who, metrics={"test/accuracy": accuracy, "test/cobias": accuracy / 2}
    )


def test_leaderboard_has_mean_and_deviation_over_seeds() -> None:
    records = [
        _cell(0, "icl", "a", 0.4),
        _cell(1, "icl", "b", 0.9),
        _cell(2, "dcs", "a", 0.6),
        _cell(3, "icl", "a", 0.5),
        failed_cell(4),
    ]
    frame = tables.leaderboard(records)
    assert list(frame.columns) == list(tables.LEADERBOARD_COLUMNS)
    assert list(zip(frame["task"], frame["method"], frame["seeds"], strict=True)) == [
        ("a", "icl", 2),
        ("a", "dcs", 1),
        ("b", "icl", 1),
    ]
    first = frame.iloc[0]
    assert first["accuracy_mean"] == pytest.approx(0.45)
    assert first["accuracy_std"] == pytest.approx(math.sqrt(0.005))
    assert first["cobias_mean"] == pytest.approx(0.225)
    assert math.isnan(frame.iloc[1]["accuracy_std"])
    text = tables.leaderboard_markdown(records)
    assert "45.0 ± 7.1" in text
    assert "| 60.0 " in text or " 60.0 |" in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(line) for line in table}) == 1, "columns are not aligned"
    assert text.splitlines()[len(table) :] == ["", "Mean ± standard deviation over seeds."]


def test_tables_without_cells_are_empty_but_whole() -> None:
    assert tables.leaderboard([]).empty
    assert list(tables.class_accuracy_table([]).columns) == list(tables.CLASS_COLUMNS)
    assert list(tables.scheme_table([]).columns) == list(tables.SCHEME_COLUMNS)
    assert tables.leaderboard_markdown([failed_cell(1)]) == "No finished cells.\n"


def test_class_accuracies_before_and_after() -> None:
    frame = tables.class_accuracy_table([make_cell(0), failed_cell(1), make_cell(2)])
    assert list(frame["class"]) == ["Sports", "World"] * 2
    assert frame.iloc[0]["change"] == pytest.approx(-0.1)
    assert math.isnan(frame.iloc[1]["before"])
    assert math.isnan(frame.iloc[1]["change"])
    assert frame.iloc[1]["after"] == 0.5


def test_scheme_table_has_a_row_for_each_class() -> None:
    frame = tables.scheme_table([make_cell(3), failed_cell(4)])
    assert list(frame["kind"]) == ["weight", "membership"]
    assert frame.iloc[0]["value"] == 0.8
    assert frame.iloc[1]["b"] == 0.25
    assert list(frame["seed"]) == [3, 3]


def test_markdown_of_any_table() -> None:
    frame = tables.class_accuracy_table([make_cell(0)])[["class", "before", "after"]]
    frame.loc[0, "class"] = "a|b"
    assert tables.to_markdown(frame, digits=2) == (
        "| class | before | after |\n"
        "|-------|-------:|------:|\n"
        "| a\\|b  |   0.90 |  0.80 |\n"
        "| World |        |  0.50 |\n"
    )


@given(st.lists(st.text(max_size=300), unique=True, max_size=8))
def test_any_name_becomes_one_that_mlflow_takes(names: list[str]) -> None:
    from mlflow.utils.validation import _validate_metric_name

    safe = safe_names(names)
    assert set(safe) == set(names)
    assert len(set(safe.values())) == len(names)
    for name in safe.values():
        _validate_metric_name(name)
        assert len(name) <= 250


def test_good_names_stay_as_they_are() -> None:
    good = ["test/accuracy", "opt/z", "test/class_accuracy/World news", "a.b-c_d"]
    assert safe_names(good) == {name: name for name in good}
