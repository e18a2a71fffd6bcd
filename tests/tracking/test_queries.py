"""Reading a store back, also one that others have been at."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcs.errors import TrackingError
from tracking import Recorder, queries
from tracking.stores import open_client

from .cells import failed_cell, make_cell

SWEEP = {"experiment": "demo", "sweep_key": "s1"}


def test_queries_give_tidy_frames(output: Path, uri: str) -> None:
    with Recorder(output=output, **SWEEP) as rec:
        rec.record(make_cell(1))
        rec.record(failed_cell(2))
    cells = queries.cells(uri, "demo")
    assert cells["seconds"].tolist() == [0.9, 0.9]
    assert cells["status"].tolist() == ["FINISHED", "FAILED"]
    assert cells.loc[0, "test/cobias"] == pytest.approx(0.19)
    assert not [name for name in cells.columns if name.startswith("anneal/")]
    trials = queries.trials(uri, "demo", cell_key="cell0001")
    assert trials["params.weight_scale"].tolist() == ["10", "20"]
    assert queries.trials(uri, "demo", cell_key="cell0002").empty
    schemes = queries.schemes(uri, "demo")
    assert schemes[["class", "kind"]].to_numpy().tolist() == [
        ["Sports", "weight"],
        ["World", "membership"],
    ]
    with pytest.raises(TrackingError, match=r"no experiment 'dem' \(did you mean 'demo'\?\)"):
        queries.cells(uri, "dem")


def test_queries_have_their_columns_also_where_there_is_nothing(output: Path, uri: str) -> None:
    with Recorder(output=output, **SWEEP) as rec:
        rec.record(make_cell(1))
    open_client(uri).create_experiment("empty", artifact_location=output.as_uri())
    for query in (queries.cells, queries.trials, queries.schemes):
        some, none = query(uri, "demo"), query(uri, "empty")
        fixed = list(none.columns)
        assert none.empty
        assert list(some.columns[: len(fixed)]) == fixed
        typed = [name for name in fixed if some[name].dtype.kind in "ifM"]
        assert {n: some[n].dtype for n in typed} == {n: none[n].dtype for n in typed}
    none = queries.cells(uri, "empty")
    assert none.pivot_table(index="task", columns="method", values="test/accuracy").empty
