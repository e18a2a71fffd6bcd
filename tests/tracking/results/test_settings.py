"""What the cells of an ablation differ in, and which of them the main results are of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dcs_tracking.records import CellRecord
from dcs_tracking.results import settings
from dcs_tracking.store.views import cell_name
from dcs_workflows.config.sweep import value_label
from tests.tracking.cells import failed_cell, make_cell, paper_cells

_TASKS = ("trec", "ddi")


def tuned(
    *, methods: tuple[str, ...] = ("dcs",), optimization_size: Any = None, **tuner: Any
) -> list[CellRecord]:
    """Cells as sweeps record them: the tuner's settings are a part of the identity."""
    usual = {"trials": 30, "objective": "full", "weight_scale": None, "memberships": None}
    identity = {"optimization_size": optimization_size, "tuner": usual | tuner}
    return paper_cells(tasks=_TASKS, methods=methods, **identity)


def plain() -> list[CellRecord]:
    """Uncorrected cells: nothing was tuned, so that they are there once in any ablation."""
    cells = paper_cells(tasks=_TASKS, methods=("icl",), optimization_size=None, tuner=None)
    return [replace(cell, trials=()) for cell in cells]


def test_cells_of_one_setting_have_no_axes() -> None:
    cells = [*plain(), *tuned(methods=("dnip", "dcs")), failed_cell(1)]
    assert settings.axes_of(cells) == []
    assert settings.main_cells(cells) == cells
    assert {settings.objective_label(cell) for cell in plain()} == {None}
    # Different tables with different settings are no ablation, nor is what a record does not say.
    apart = [c for c in tuned(trials=10) if c.identity["task"] == "ddi"]
    apart += [c for c in tuned(trials=90) if c.identity["task"] == "trec"]
    short = paper_cells(tasks=("trec",), tuner={"trials": 30})
    for alike in (apart, [*short, *tuned()]):
        assert settings.axes_of(alike) == []


def test_each_setting_that_differs_is_an_axis_of_the_methods_it_differs_for() -> None:
    cells = [*plain(), *tuned(methods=("dnip", "dcs")), *tuned(objective="err")]
    cells += tuned(methods=("dnip", "dcs"), optimization_size=100)
    axes = settings.axes_of(cells)
    assert [(axis.name, axis.values, axis.methods) for axis in axes] == [
        ("objective", ("full", "err"), ("dcs",)),
        ("optimization_size", (None, 100), ("dnip", "dcs")),
    ]
    words = {(cell.who["method"], settings.setting(cell, axes)) for cell in cells}
    size = "optimization size 100"
    small = {(method, words) for method in ("dnip", "dcs") for words in ("", size)}
    assert words == small | {("uncorrected", ""), ("dcs", "objective err")}


def test_main_cells_are_the_usual_ones_and_what_the_ablation_does_not_touch() -> None:
    main = [*plain(), *tuned(methods=("dnip", "dcs"))]
    small, other = tuned(optimization_size=100), tuned(objective="err+pmi", weight_scale=30)
    cells = [*other, *small, *main]
    assert settings.main_cells(cells) == main
    assert settings.main_cells(cells, but=("optimization_size",)) == [*small, *main]


@pytest.mark.parametrize(
    ("name", "values", "main", "in_order", "short"),
    [
        ("weight_scale", (60, None, 10), None, [10, 60, None], ["10", "60", "tuned"]),
        ("memberships", (5, 2), 5, [2, 5], ["2", "5"]),
        ("optimization_size", (100, None), None, [100, None], ["100", "full"]),
        ("prefer", ("accuracy", "balance"), "balance", ["accuracy", "balance"], None),
        (
            "objective",
            ("err+pmi", "err+cobias", "full", "err"),
            "full",
            ["full", "err", "err+pmi", "err+cobias"],
            None,
        ),
    ],
)
def test_the_values_of_an_axis(
    name: str, values: tuple[Any, ...], main: Any, in_order: list[Any], short: list[str] | None
) -> None:
    cells = [cell for value in values for cell in tuned(**{name: value})]
    (axis,) = settings.axes_of(cells)
    assert (axis.main, axis.in_order) == (main, in_order)
    assert [axis.short(value) for value in axis.in_order] == (short or in_order)


def test_bounds_have_the_words_that_only_accepts() -> None:
    spaces: list[dict[str, Any]] = [{"weight_scale": each} for each in ([10, 120], [10, 30], [30])]
    cells = [cell for space in spaces for cell in tuned(space=space)]
    (axis,) = settings.axes_of(cells)
    assert {*map(axis.short, axis.values)} == {
        value_label("weight_scale", value) for value in (None, (10, 30), 30)
    }
    assert axis.short(axis.main) == "tuned"


def test_names_of_runs_differ_where_mlflow_shows_them() -> None:
    methods = ("icl", "dnip", "logistic", "logistic-balanced", "published-long")
    cells = []
    for objective in ("full", "err+pmi", "err+cobias"):
        cells += tuned(methods=methods, objective=objective, space={"weight_scale": [30]})
    names = [cell_name(cell, ("method", "objective", "task", "seed")) for cell in cells]
    assert len({name[:20] for name in names}) == len(cells)
    assert "(logistic-balanced, " in names[3 * 3] and "objective full" in names[3 * 3]
    (cell, *_) = tuned(space={"weight_scale": [10]}, memberships=5)
    name = cell_name(cell, ("weight_scale", "memberships"))
    assert name == "10 5 (weight scale 10, memberships 5)"


def test_runs_are_named_by_what_is_known_of_them() -> None:
    who = {"model": "org/some-model", "task": "news/own.yaml", "shots": None, "seed": 3}
    tables = {"tables": {"test": {"task": "headlines"}}}
    cell = make_cell(identity={**who, "method": "icl"}, provenance=tables)
    assert cell_name(cell) == "uncorrected headlines seed 3 some-model"
    short = cell_name(cell, ["seed", "task", "method"])
    assert short == "uncorrec headline s3 (uncorrected, headlines, seed 3)"
    assert cell_name(make_cell(identity={**who, "method": "icl"})).startswith("uncorrected own ")
