"""The paper's numbers as data, and its tables from cells."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from io import StringIO

import pandas as pd
import pytest

from tests.tracking.cells import failed_cell, make_cell
from tests.tracking.paper_cells import paper_cells
from tracking.records import CellRecord
from tracking.results.class_tables import class_accuracies_by_seed, scheme_summary
from tracking.results.paper import (
    BIOMEDICAL,
    GENERAL,
    paper_ablation,
    paper_class_accuracies,
    paper_model,
    paper_result,
    paper_rows,
    paper_task,
)
from tracking.results.paper_tables import ablation_table, ablation_tables, main_results
from tracking.results.tables import ResultTable
from tracking.results.timing import timing_table


def _results() -> pd.DataFrame:
    frame = pd.DataFrame(paper_rows("paper_results"))
    numbers = ["accuracy", "cobias"]
    return frame.astype(dict.fromkeys(numbers, float))


def test_the_papers_data_is_complete() -> None:
    frame = _results()
    prompts = frame.groupby("model")["shots"].unique().map(sorted).to_dict()
    assert prompts == {
        "llama-2-13b": ["1", "5", "N"],
        "llama-2-70b": ["1"],
        "gemma-2-2b": ["1"],
    }
    assert len(frame) == 5 * 4 * 10
    assert not frame.duplicated(["model", "shots", "method", "task"]).any()
    assert len(paper_rows("paper_ablation")) == 3 * 3 * 7
    assert len(paper_rows("paper_class_accuracies")) == 2 * 2 * 3 * 5
    assert [row["task"] for row in paper_rows("paper_schemes")] == [*GENERAL, *BIOMEDICAL]


def test_printed_averages_are_the_means_of_the_printed_figures() -> None:
    groups = {"general": GENERAL, "biomedical": BIOMEDICAL, "all": (*GENERAL, *BIOMEDICAL)}
    for _, rows in _results().groupby(["model", "shots", "method"]):
        values = rows.set_index("task")[["accuracy", "cobias"]]
        for name, tasks in groups.items():
            gap = (values.loc[list(tasks)].mean() - values.loc[f"average_{name}"]).abs()
            assert gap.max() <= 0.1001, (rows.iloc[0].to_dict(), name)


def test_the_full_objective_of_the_ablation_is_the_main_result() -> None:
    for task in (*GENERAL, *BIOMEDICAL):
        for shots in (1, 5, "N"):
            main = paper_result(model="Llama-2-13B", task=task, shots=shots, method="dcs")
            full = paper_ablation(model="Llama-2-13B", task=task, shots=shots, objective="full")
            assert main is not None and full is not None
            assert (main.accuracy, main.cobias) == (full.accuracy, full.cobias)


def test_published_means_agree_with_published_class_accuracies() -> None:
    for model in ("llama-2-13b", "llama-2-70b"):
        for method in ("icl", "dcs"):
            biases = []
            for seed in (0, 1, 2):
                values = list(
                    paper_class_accuracies(
                        model=model, task="ddi", shots=1, seed=seed, method=method
                    ).values()
                )
                pairs = [abs(a - b) for i, a in enumerate(values) for b in values[:i]]
                biases.append(sum(pairs) / len(pairs))
            result = paper_result(model=model, task="ddi", shots=1, method=method)
            assert result is not None
            assert sum(biases) / 3 == pytest.approx(result.cobias, abs=0.001)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("meta-llama/Llama-2-13b-hf", "llama-2-13b"),
        ("/models/Llama-2-13b-hf/", "llama-2-13b"),
        ("Llama-2-70B", "llama-2-70b"),
        ("google/gemma-2-2b", "gemma-2-2b"),
        ("google/gemma-2-2b-it", None),
        ("Llama-2-13b-chat-hf", None),
        ("tiny_lm", None),
        (None, None),
    ],
)
def test_models_are_recognised(name: str | None, known: str | None) -> None:
    assert paper_model(name) == known


@pytest.mark.parametrize(
    ("name", "known"),
    [("SST-5", "sst5"), ("ag_news", "agnews"), ("PubMedQA", "pubmedqa"), ("helpdesk", None)],
)
def test_tasks_are_recognised(name: str, known: str | None) -> None:
    assert paper_task(name) == known


def _line(table: ResultTable, **where: str) -> dict[str, str]:
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    found = [row for row in rows if where.items() <= row.items()]
    assert len(found) == 1, found
    return found[0]


def test_measured_and_published_stand_side_by_side() -> None:
    table = main_results([*paper_cells(), failed_cell(99)])
    ours = _line(table, method="DCS")
    theirs = _line(table, method="DCS, paper")
    assert table.columns[3:7] == ("Acc all", "Acc general", "Acc biomedical", "Acc AGN")
    assert ours["Acc AGN"] == "80.0 ± 10.0"
    assert theirs["Acc AGN"] == "88.2 ± 1.0"
    assert theirs["Acc all"] == "72.2"
    assert theirs["COBias DDI"] == "16.4 ± 13.5"
    differences = [row for row in table.rows if row[2] == "difference"]
    assert len(differences) == 2
    at = table.columns.index("Acc AGN")
    assert [row[at] for row in differences] == ["+0.1", "−8.2"]
    tidy = table.frame[(table.frame.method == "dcs") & (table.frame.task == "agnews")].iloc[0]
    assert tidy["accuracy_difference"] == pytest.approx(0.8 - 0.882)


def test_a_published_average_needs_all_of_its_tasks() -> None:
    table = main_results(paper_cells(tasks=("agnews", "trec", "ddi", "pubmedqa")))
    ours, theirs = (_line(table, method=name) for name in ("DCS", "DCS, paper"))
    assert ours["Acc all"] == ours["Acc general"] == "80.0"
    assert theirs["Acc all"] == theirs["Acc general"] == ""
    assert theirs["Acc biomedical"] == "58.1"


def test_an_average_over_fewer_tasks_than_the_others_is_left_out() -> None:
    cells = paper_cells(tasks=("agnews", "trec"))
    cells += paper_cells(tasks=("agnews",), methods=("dnip",))
    table = main_results(cells, paper_too=False)
    assert _line(table, method="DNIP")["Acc all"] == ""
    assert _line(table, method="DCS")["Acc all"] == "80.0"
    assert "paper" not in table.to_markdown()


def _sizes() -> list[CellRecord]:
    cells = paper_cells(tasks=("trec",), methods=("dcs",), optimization_size=100)
    return cells + paper_cells(tasks=("trec",), optimization_size=None)


def test_main_results_are_of_one_setting_and_name_it() -> None:
    table = main_results(_sizes())
    assert [row[2] for row in table.rows if row[2] in ("ICL", "DCS")] == ["ICL", "DCS"]
    assert table.frame["seeds"].tolist() == [3, 3]
    assert "Of the settings tried: all rows" in table.note


def test_every_other_setting_has_a_table_of_its_own() -> None:
    assert ablation_tables(paper_cells(tasks=("trec",))) == []
    (table,) = ablation_tables([*_sizes(), failed_cell(9)])
    assert table.name == "optimization_size_ablation"
    assert table.columns[:4] == ("model", "shots", "method", "optimization size")
    assert [row[2:4] for row in table.rows] == [("DCS", "100"), ("DCS", "all")]
    values = table.frame["optimization_size"].tolist()
    assert values[0] == 100 and math.isnan(values[1])


def test_ablation_rows_are_the_terms_of_the_objective() -> None:
    cells = paper_cells(tasks=("trec",), objective={"beta": 0.0, "tau": 0.0})
    cells += paper_cells(tasks=("trec",), objective="err+pmi")
    cells += paper_cells(tasks=("trec",), objective={"beta": 0.5, "tau": 0.1})
    cells += paper_cells(tasks=("trec",))
    table = ablation_table(cells)
    assert [row[2] for row in table.rows if "difference" not in row] == [
        "full objective",
        "full objective, paper",
        "Z_err",
        "Z_err, paper",
        "Z_err + Z_pmi",
        "Z_err + Z_pmi, paper",
        "beta=0.5 tau=0.1",
        "beta=0.5 tau=0.1, paper",
    ]
    assert _line(table, objective="Z_err, paper")["Acc TREC"] == "80.6"
    assert ablation_tables(cells)[0].rows == table.rows
    assert {row[2] for row in main_results(cells).rows} == {
        "ICL",
        "DCS",
        "ICL, paper",
        "DCS, paper",
        "difference",
    }


def test_another_objective_alone_is_not_the_papers_main_result() -> None:
    table = main_results(paper_cells(tasks=("trec",), methods=("dcs",), objective="err"))
    assert [row[2] for row in table.rows] == ["DCS"]
    fixed = {"beta": 1.0, "tau": 0.2}
    table = main_results(paper_cells(tasks=("trec",), methods=("dcs",), objective=fixed))
    assert [row[2] for row in table.rows] == ["DCS", "DCS, paper", "difference"]


def test_schemes_are_counted_and_the_weakest_class_is_followed() -> None:
    table = scheme_summary(paper_cells(tasks=("trec",), shots=("N",)))
    ours, theirs, gaps = table.rows
    assert table.kinds == ("measured", "paper", "difference")
    assert ours[3:8] == ("2", "1.0", "1.0", "1.00", "1/1/1")
    assert ours[8].startswith("0: World (M) 0.30 → 0.60; 1: World (M) 0.30 → 0.70")
    assert theirs[1] == "TREC, paper"
    assert theirs[3:] == ("6", "5", "1", "0.20", "0/2/1", "2: Entity (M) 0.04 → 0.76")
    assert gaps[4:7] == ("−4.0", "+0.0", "+0.80")
    assert table.frame["before"].tolist() == pytest.approx([0.3] * 3)


def test_class_accuracies_by_seed_with_the_published_ones() -> None:
    (table,) = class_accuracies_by_seed(
        [
            make_cell(
                seed,
                identity={
                    "model": "llama-2-70b",
                    "task": "DDI",
                    "shots": 1,
                    "seed": seed,
                    "method": "dcs",
                },
                class_accuracies={
                    "class": ["negative", "effect", "mechanism", "advice", "interaction"],
                    "before": [0.1] * 5,
                    "after": [None, 0.5, 0.5, 0.5, 0.5],
                },
            )
            for seed in (0, 7)
        ]
    )
    assert [row[2:4] for row in table.rows] == [
        ("DCS", "0"),
        ("DCS, paper", "0"),
        ("difference", "0"),
        ("DCS", "7"),
    ]
    assert table.rows[0][6:] == ("", "50.0", "50.0", "50.0", "50.0")
    assert table.rows[1][6:] == ("69.9", "34.4", "19.9", "18.6", "47.9")
    assert table.rows[2][6:] == ("", "+15.6", "+30.1", "+31.4", "+2.1")
    assert table.frame["paper_accuracy"].notna().sum() == 5


def test_time_against_the_search_space() -> None:
    row, theirs = timing_table(paper_cells(tasks=("trec",))).rows
    assert row[4:] == ("2", "10,000", "98", "1,000", "0.25 ± 0.00", "0.90 ± 0.00")
    assert theirs[6:9] == ("49·N", "", "46 (5.4 to 96.6)")
    (row,) = timing_table(paper_cells(model="tiny_lm", tasks=("trec",))).rows


def test_the_search_itself_is_timed_where_it_was() -> None:
    timed = [
        make_cell(
            seed,
            identity={**cell.identity, "tuner": {"weight_scale": 10, "memberships": 4}},
            metrics={**cell.metrics, "opt/seconds": 1.5 + seed},
        )
        for seed, cell in enumerate(paper_cells(tasks=("trec",), methods=("dcs",), seeds=(0, 1)))
    ]
    timed = [replace(cell, params={}) for cell in timed]
    (row, _) = timing_table(timed).rows
    assert row[6] == "28", "2 classes, 10 weights and 4 memberships"
    assert row[8] == "2.00 ± 0.71"


@pytest.fixture(params=["main", "ablation", "timing", "schemes", "classes"])
def table(request: pytest.FixtureRequest) -> ResultTable:
    makers = {
        "main": main_results,
        "ablation": ablation_table,
        "timing": timing_table,
        "schemes": scheme_summary,
        "classes": lambda cells: class_accuracies_by_seed(cells)[0],
    }
    cells: list[CellRecord] = paper_cells(tasks=("trec", "ddi"), shots=(1, "N"))
    return makers[request.param](cells)


def test_every_table_comes_in_every_form(
    table: ResultTable, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert table.rows and all(len(row) == len(table.columns) for row in table.rows)
    lines = [line for line in table.to_markdown().splitlines() if line.startswith("|")]
    assert len({len(line) for line in lines}) == 1, "columns are not aligned"
    latex = table.to_latex()
    assert latex.count("&") == (len(table.rows) + 1) * (len(table.columns) - 1)
    assert latex.count(r"\midrule") >= 1 and latex.count("{") == latex.count("}")
    assert not set(latex) - set(map(chr, range(128))), "not plain ASCII"
    again = pd.read_csv(StringIO(table.to_csv()))
    assert list(again.columns) == list(table.frame.columns)
    assert len(again) == len(table.frame)
    stored = json.loads(table.to_mlflow_json())
    assert pd.DataFrame(**stored).shape == table.frame.shape
    written = table.write(str(tmp_path))
    assert {path.suffix for path in written} == {".md", ".tex", ".csv", ".json"}


def test_tables_without_cells_are_empty() -> None:
    for make in (main_results, ablation_table, timing_table, scheme_summary):
        empty = make([failed_cell(1)])
        assert empty.rows == () and empty.frame.empty
        assert empty.to_markdown() and empty.to_latex()
    assert class_accuracies_by_seed([]) == []


def test_latex_escapes_what_means_something_to_it() -> None:
    cells = [
        make_cell(1, identity={"model": "a_b&c%", "task": "x#y", "shots": "N", "method": "dcs"})
    ]
    latex = main_results(cells).to_latex()
    assert r"a\_b\&c\%" in latex and r"x\#y" in latex
    assert not math.isnan(main_results(cells).frame["accuracy_mean"].iloc[0])
