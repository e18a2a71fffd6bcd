"""Tables are pivots of the cells, in every form."""

from __future__ import annotations

import json
import math
import posixpath
import re
from dataclasses import replace
from io import StringIO

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcs_tracking.results import sweep_tables as tables
from dcs_tracking.results.cells import Cells
from dcs_tracking.schema import safe_name, task_metric
from tests.tracking.cells import failed_cell, make_cell, paper_cells


def test_sweeps_are_compared_in_settings_that_both_have() -> None:
    partly = paper_cells(tasks=("a",), methods=("dcs",), seeds=(0, 1), objective="err")
    low = {"test/accuracy": 0.1, "test/cobias": 0.4}
    worse = [replace(cell, key=f"x{cell.key}", metrics=low) for cell in partly]
    full = paper_cells(tasks=("a",), methods=("dcs",), seeds=(0, 1))
    for first, second in ((full + worse, worse), (worse, full + worse)):
        compared = tables.compare_sweeps(Cells.of(first), Cells.of(second))
        (row,) = compared.frame.to_dict("records")
        assert row["accuracy_change"] == 0.0 and row["cells"] == 2
        assert "objective" not in compared.about
    unlike = tables.compare_sweeps(Cells.of(full), Cells.of(partly))
    assert "objective changes from full to err" in unlike.about
    # A method without cells of the main settings is shown in its own.
    other = paper_cells(tasks=("a",), methods=("dnip",), objective="err")
    assert "dnip with objective err" in tables.main_results(Cells.of(full + partly + other)).about


def test_main_results_have_mean_and_deviation_over_seeds() -> None:
    cells = paper_cells(tasks=("a",), seeds=(0, 1))
    cells += paper_cells(tasks=("b",), methods=("icl",), seeds=(2,))
    frame = tables.main_results(Cells.of([*cells, failed_cell(9)])).frame
    frame = frame[frame["task"] != "average"].sort_values("task")
    rows = list(zip(frame["task"], frame["method"], frame["seeds"], strict=True))
    assert rows == [("a", "uncorrected", 2), ("a", "dcs", 2), ("b", "uncorrected", 1)]
    assert frame["accuracy_mean"].tolist() == pytest.approx([0.75, 0.75, 0.9])
    spreads = [math.sqrt(0.005)] * 2 + [math.nan]
    assert frame["cobias_std"].tolist() == pytest.approx(spreads, nan_ok=True)
    assert tables.all_tables(Cells.of([failed_cell(1)])) == []


def test_an_average_is_over_the_tasks_that_all_rows_have() -> None:
    cells = paper_cells(tasks=("agnews", "trec", "ddi", "pubmedqa"))
    cells += paper_cells(tasks=("agnews",), methods=("dnip",))
    table = tables.main_results(Cells.of(cells))
    lines = table.text.set_index("method")
    ours, less = lines.loc["DCS"], lines.loc["DNIP"]
    assert (ours["Acc all"], less["Acc all"]) == ("80.0", "")
    assert ours["Acc agnews"] == less["Acc agnews"] == "80.0 ± 10.0"
    assert "Mean ± standard deviation over seeds." in table.about


def test_means_of_different_cells_are_named() -> None:
    cells = paper_cells(tasks=("a", "b"), seeds=(0, 1))
    (*same, last) = [*cells, *paper_cells(tasks=("c",), methods=("icl",))]
    assert "lacks" not in tables.main_results(Cells.of(cells)).about
    assert "lacks" not in tables.main_results(Cells.of([*cells, last])).about
    assert "DCS lacks 3" in Cells.of([*same, last]).uneven(["method"])
    failed = [cell for cell in cells if (cell.who["method"], cell.who["seed"]) != ("dcs", 1)]
    assert "DCS lacks 2" in tables.main_results(Cells.of(failed)).about


def test_tasks_may_be_called_as_their_average() -> None:
    table = tables.main_results(Cells.of(paper_cells(tasks=("all", "average", "trec"))))
    assert len({*table.text.columns}) == len(table.text.columns) == 3 + 2 * 4
    assert table.frame["task"].nunique() == 4
    assert table.contents()


def test_main_results_are_of_one_setting_and_every_other_has_a_table() -> None:
    cells = paper_cells(tasks=("trec",), methods=("dcs",), optimization_size=100)
    cells += [*paper_cells(tasks=("trec",), optimization_size=None), failed_cell(9)]
    table = tables.main_results(Cells.of(cells))
    assert table.frame[["method", "seeds"]].to_numpy().tolist() == [["uncorrected", 3], ["dcs", 3]]
    assert "optimization size full" in table.about

    (table,) = tables.ablation_tables(Cells.of(cells))
    assert table.name == "optimization_size_ablation"
    assert [row[2:4] for row in table.rows] == [("DCS", "100"), ("DCS", "full")]
    assert table.frame["optimization_size"].tolist() == [100, None]
    for trials in (24, 50):
        cells += paper_cells(tasks=("trec",), optimization_size=100, tuner={"trials": trials})
    same, other = tables.ablation_tables(Cells.of(cells))
    assert same.name == table.name
    # It varies only where the size is not the main one.
    assert other.name == "trials_ablation" and "With optimization size 100." in other.about


def test_several_sweeps_have_the_tables_of_each() -> None:
    plain = paper_cells(tasks=("trec",), tuner={"prefer": "no-harm", "trials": 30})
    varied = []
    for value in (100, 10, 30):
        tuner = {"prefer": "balance", "space": {"weight_scale": [value]}}
        varied += paper_cells(tasks=("trec",), methods=("dcs",), tuner=tuner)
    (alone,) = tables.ablation_tables(Cells.of(varied))
    assert alone.text["weight scale"].tolist() == ["10", "30", "100"], "ascending numbers"
    both = {table.name: table for table in tables.ablation_tables(Cells.of([*plain, *varied]))}
    assert both[alone.name].rows == alone.rows
    in_order = Cells.of(varied).estimates(["method", "weight_scale"])
    assert in_order["weight_scale"].dropna().tolist() == [10, 30, 100]


def test_every_table_comes_in_every_form() -> None:
    cells = paper_cells(tasks=("trec", "ddi"), shots=(1, "N"), seeds=(0, 1))
    cells += paper_cells(tasks=("trec", "ddi"), objective="err", seeds=(0, 1))
    made = tables.all_tables(Cells.of(cells))
    names = {table.name for table in made}
    assert names >= {"main_results", "class_accuracies", "objective_ablation"}
    for table in made:
        markdown, csv, mlflow, latex = table.contents().values()
        assert all(len(row) == len(table.text.columns) for row in table.rows)
        assert len({len(line) for line in markdown.splitlines() if line.startswith("|")}) == 1
        formula = replace(table, frame=table.frame.assign(method="=1+1"))
        assert set(pd.read_csv(StringIO(formula.to_csv()))["method"]) == {"'=1+1"}
        assert list(pd.read_csv(StringIO(csv)).columns) == list(table.frame.columns)
        assert pd.DataFrame(**json.loads(mlflow)).shape == table.frame.shape
        assert latex.count(r"\\") == len(table.rows) + 1 and latex.isascii()


def test_what_means_something_to_a_format_is_escaped() -> None:
    who = {"model": "a_b&c%", "task": "x#y<z>|", "shots": "N", "method": "a|b"}
    table = tables.main_results(Cells.of([make_cell(1, identity=who)]))
    assert "a\\|b" in table.to_markdown()
    assert r"a\_b\&c\%" in table.to_latex()


def test_the_best_is_bold_in_latex() -> None:
    cells = [
        replace(cell, metrics={name: value + better for name, value in cell.metrics.items()})
        for method, better in (("icl", 0.0), ("dnip", 0.05), ("dcs", -0.05))
        for cell in paper_cells(tasks=("agnews", "trec"), methods=(method,))
    ]
    lines = tables.all_tables(Cells.of(cells))[0].to_latex().splitlines()
    (line,) = [line for line in lines if "& DNIP &" in line]
    assert [cell.strip() for cell in line.split("&")][3:] == [
        *(r"\textbf{85.0}", r"\textbf{85.0 $\pm$ 10.0}", r"\textbf{85.0 $\pm$ 10.0}"),
        *("25.0", r"25.0 $\pm$ 10.0", r"25.0 $\pm$ 10.0 \\"),
    ]
    (line,) = [line for line in lines if "& DCS &" in line]
    assert r"\textbf{15.0 $\pm$ 10.0}" in line and "75.0 &" in line


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=300))
def test_any_name_becomes_one_that_mlflow_takes(text: str) -> None:
    name = safe_name(text)
    # What MLflow's documentation allows, as a relative path.
    assert re.fullmatch(r"[/\w.\- :]+", name)
    assert posixpath.normpath(name) == name and not name.startswith(("/", ".."))
    assert len(name) <= 250
    good = ["test/accuracy", "opt/z", "test/class_accuracy/World news", "a.b-c_d"]
    assert [*map(safe_name, good)] == good
    # Metrics of tasks whose names become equal are not one.
    odd = (text, f"{text}/", f"{text} ", f"{text}?", f"{text}!", "x" * 240 + text)
    metrics = {task: task_metric("test/cobias", task) for task in odd}
    assert len({*metrics.values()}) == len(metrics)
    assert all(safe_name(each) == each and len(each) <= 250 for each in metrics.values())
