"""Settings over sources: paired by source and split, by plain arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from benchmarks.findings import finding_figure, finding_tables
from dcs.errors import InvalidInputError
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
