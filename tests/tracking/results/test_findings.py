"""Settings over sources: paired by source and split, by plain arithmetic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dcs.errors import InvalidInputError
from tests.tracking.cells import make_cell
from tracking.records import CellRecord
from tracking.results.findings import finding_figure, finding_tables
from tracking.results.style import figure_bytes

_SOURCES = ("a", "b", "c")
#: What the accuracy of a method and search is above that of DNIP by heat bath, by source.
_ABOVE = {
    ("dnip", "heat-bath"): (0.0, 0.0, 0.0),
    ("dcs", "heat-bath"): (0.01, 0.02, -0.03),
    ("dnip", "published"): (-0.1, -0.1, -0.1),
    ("dcs", "published"): (-0.1, -0.2, -0.1),
}


def _cell(number: int, source: int, seed: int, method: str, search: str) -> CellRecord:
    plain = make_cell(number)
    tuner: dict[str, Any] = {"protocol": "study", "search": search}
    weight, chosen = (plain.scheme or {})["corrections"]
    if (method, search) != ("dcs", "published"):
        chosen = {**chosen, "b": 1.0, "c": 1.0, "name": "Don't Change"}
    accuracy = 0.5 + source / 10 + seed / 100 + _ABOVE[method, search][source]
    identity = {**plain.identity, "task": _SOURCES[source], "seed": seed, "method": method}
    return replace(
        plain,
        identity={**identity, "tuner": tuner},
        metrics={"test/accuracy": accuracy, "test/cobias": 0.1, "opt/z": 0.3 - accuracy / 10},
        scheme={**(plain.scheme or {}), "corrections": [weight, chosen]},
        class_accuracies={"class": ["Sports", "World"], "before": [0.9, 0.2], "after": [0.5, 0.0]},
    )


@pytest.fixture
def cells() -> list[CellRecord]:
    who = [(s, seed, *each) for s in range(3) for seed in range(2) for each in _ABOVE]
    return [_cell(number, *each) for number, each in enumerate(who)]


def test_changes_are_paired_by_source_and_split(cells: list[CellRecord]) -> None:
    untuned = {**cells[0].identity, "method": "batch", "tuner": None}
    methods, settings = finding_tables([*cells, replace(cells[0], key="b", identity=untuned)])
    by_method = methods.frame.set_index(["method", "search"])
    change = by_method.loc[("dcs", "heat-bath")]
    assert change["change"] == pytest.approx(0.0, abs=1e-12)
    assert (change["ahead"], change["behind"]) == (2, 1)
    assert change["low"] < 0.0 < change["high"]
    assert by_method.loc[("dcs", "published"), "change"] == pytest.approx(-0.1 / 3)
    # Nothing is compared with itself.
    assert by_method.loc["dnip", "change"].isna().all()
    by_setting = settings.frame.set_index(["method", "search"])
    assert by_setting.loc[("dnip", "published"), "change"] == pytest.approx(-0.1)
    assert by_setting.loc[("dcs", "published"), "change"] == pytest.approx(-0.4 / 3)
    assert by_setting.loc[("dnip", "published"), "p"] == pytest.approx(0.25)
    assert by_setting["cells"].tolist() == [6] * 4


def test_memberships_count_where_they_change_something(cells: list[CellRecord]) -> None:
    frame = finding_tables(cells)[1].frame.set_index(["method", "search"])
    assert frame.loc[("dcs", "heat-bath"), "membership_share"] == 0.0
    chosen = frame.loc[("dcs", "published")]
    assert (chosen["membership_share"], chosen["weak"], chosen["lost"]) == (0.5, 1.0, 0.5)


def test_a_cell_that_lacks_its_partner_is_not_compared(cells: list[CellRecord]) -> None:
    whole = finding_tables(cells)[0].frame.set_index(["method", "search"])["change"]
    alone = [c for c in cells if (c.who["task"], c.who["method"]) != ("c", "dnip")]
    left = finding_tables(alone)[0].frame.set_index(["method", "search"])["change"]
    assert whole["dcs", "heat-bath"] == pytest.approx(0.0, abs=1e-12)
    assert left["dcs", "heat-bath"] == pytest.approx(0.015)


def test_the_legend_of_a_figure_knows_all_rows(cells: list[CellRecord]) -> None:
    """Beside numbers pandas makes not-a-number of what stands for all of them."""
    sized = [
        replace(
            cell,
            key=f"{cell.key}{size}{weight}",
            identity=cell.identity
            | {"optimization_size": size, "tuner": {"protocol": "study", "weight_scale": weight}},
        )
        for cell in cells
        if cell.identity["tuner"]["search"] == "published"
        for size in (None, 300)
        for weight in (10, 30, 90)
    ]
    (legend,) = finding_figure([cell for cell in sized if cell.who["method"] == "dcs"]).legends
    said = {text.get_text() for text in legend.get_texts()}
    assert said == {"DCS, all rows", "DCS, 300 rows"}


def test_settings_of_one_source_or_none_make_no_finding(cells: list[CellRecord]) -> None:
    of_one = [cell for cell in cells if cell.who["task"] == "a"]
    alike = [cell for cell in cells if cell.identity["tuner"]["search"] == "published"]
    for few in (of_one, alike):
        assert finding_tables(few) == []
        with pytest.raises(InvalidInputError):
            finding_figure(few)


def test_the_figure_has_a_panel_for_each_question(cells: list[CellRecord]) -> None:
    figure = finding_figure(cells)
    assert len(figure.axes) == 6
    assert figure_bytes(figure, "svg") == figure_bytes(finding_figure(cells), "svg")
