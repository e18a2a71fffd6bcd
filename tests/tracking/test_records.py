"""Records come back as they were, from text and from the files of an output folder."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcs.errors import TrackingError
from dcs_tracking.archive import Archive, Sweep
from dcs_tracking.records import CellRecord, TrialRecord, sealed, text_digest
from tests.dcs.refusals import refuses

from .cells import failed_cell, make_cell

SWEEP = Sweep(experiment="demo", sweep_key="s1")
numbers = st.floats(allow_nan=True, allow_infinity=True, width=64)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | numbers | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(
    metrics=st.dictionaries(st.text(max_size=10), numbers, max_size=5),
    params=st.dictionaries(st.text(max_size=10), plain, max_size=4),
    value=st.none() | numbers,
)
def test_json_round_trip_is_canonical(
    metrics: dict[str, float], params: dict[str, Any], value: float | None
) -> None:
    trial = TrialRecord(
        number=1, params={}, metrics=metrics, state="FAIL", seconds=0.5, started_ms=3, value=value
    )
    record = replace(make_cell(metrics=metrics, params=params), trials=(trial,))
    text = record.to_json()
    again = CellRecord.from_json(text)
    assert again.to_json() == CellRecord.from_json(sealed(text)).to_json() == text
    assert replace(record, params=dict(reversed(params.items()))).to_json() == text
    assert again.digest == record.digest == text_digest(text) == text_digest(sealed(text))
    json.loads(text, parse_constant=lambda name: pytest.fail(f"bare {name} in JSON"))
    for name, number in metrics.items():
        assert again.metrics[name] == number or math.isnan(number)
        assert again.trials[0].metrics[name] == number or math.isnan(number)


def test_numpy_values_are_stored_as_plain_ones() -> None:
    record = make_cell(
        params={"weight_scale": np.int64(3), "on": np.bool_(True), "grid": np.arange(2)},
        metrics={"test/accuracy": np.float64(0.5)},
        importances={"weight_scale": np.float64(1)},
        class_accuracies={
            "class": ["a", "b"],
            "before": np.array([np.nan, 0.5]),
            "after": (np.float64(1), None),
        },
        finished_ms=np.int64(5),
    )
    assert record.params == {"weight_scale": 3, "on": True, "grid": [0, 1]}
    assert record.class_accuracies["before"] == [None, 0.5]
    assert type(record.metrics["test/accuracy"]) is float
    assert CellRecord.from_json(sealed(record.to_json())) == record


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"status": "DONE"}, "status"),
        ({"metrics": {"test/accuracy": "high"}}, "test/accuracy"),
        ({"params": {"a": {"b": object()}}}, "params"),
    ],
)
def test_values_that_cannot_be_kept_are_named(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=key):
        make_cell(**changes)


@pytest.mark.parametrize(
    ("name", "value"),
    [("format", "cell"), ("format", "x"), ("version", 0), ("version", 5), ("colour", "red")],
)
def test_text_of_another_form_is_refused_by_name(name: str, value: Any) -> None:
    text = json.dumps(json.loads(make_cell().to_json()) | {name: value})
    with pytest.raises(TrackingError, match=r"^cells/x\.json: "):
        CellRecord.from_json(text, source="cells/x.json")


def test_finished_cells_are_found_again(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.write(make_cell(1))
    archive.write(failed_cell(2))
    assert Archive(tmp_path).finished() == {"cell0001": make_cell(1)}
    assert set(archive.load()) == {"cell0001", "cell0002"}
    assert set(archive.load(["cell0002", "cell0009"])) == {"cell0002"}
    assert archive.digest("cell0001") == make_cell(1).digest
    assert archive.digest("cell0009") is None
    empty = Archive(tmp_path / "none")
    assert (empty.finished(), empty.sweeps(), empty.keys("s1")) == ({}, [], [])
    refuses(TrackingError, empty.read, "cell9", names=["cell9.json"])


def test_damaged_files_are_named_and_not_finished(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archive = Archive(tmp_path)
    cut, coded, renamed, edited = [archive.write(make_cell(number)) for number in range(4)]
    whole = cut.read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    coded.write_bytes(b"\xff\xfe")
    renamed.rename(archive.path("cell0004"))
    edited.write_text(edited.read_text().replace('"test/accuracy":0.53', '"test/accuracy":0.93'))
    (archive.cells / ".cell0005.json.part").write_bytes(whole)

    assert archive.load() == {}
    named = [Path(line.split(":")[0]).stem for line in caplog.messages]
    assert named == ["cell0000", "cell0001", "cell0003", "cell0004"]
    assert caplog.text.count("delete it to compute the cell again") == 3
    for number in (0, 3):
        archive.write(make_cell(number))
    assert archive.finished() == {f"cell000{number}": make_cell(number) for number in (0, 3)}


def test_cells_of_one_sweep_and_of_several(tmp_path: Path) -> None:
    archive, other = Archive(tmp_path), Sweep(experiment="demo", sweep_key="s2")
    for sweep, added in ((SWEEP, (1, 2)), (other, (2, 3))):
        archive.save_sweep(sweep)
        for number in added:
            archive.write(make_cell(number))
            archive.add(sweep.sweep_key, f"cell000{number}")
    assert archive.own_keys([SWEEP]) == ["cell0001"]
    assert archive.own_keys([SWEEP, other]) == ["cell0001", "cell0002", "cell0003"]
    archive.remove_sweep(SWEEP)
    assert archive.sweeps() == [other]


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    for folder in ("cells", "sweeps"):
        (tmp_path / folder).write_text("a file where the folder should be")
    archive = Archive(tmp_path)
    for write in (
        lambda: archive.write(make_cell(1)),
        lambda: archive.save_sweep(SWEEP),
        lambda: archive.add("s1", "cell0001"),
    ):
        refuses(OSError, write, names=[str(tmp_path)])


@given(cut=st.integers(0, 40))
def test_a_list_of_cells_cut_anywhere_names_only_cells_that_are_there(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    archive = Archive(tmp_path_factory.mktemp("archive"))
    archive.save_sweep(SWEEP)
    for number in (1, 2, 3):
        archive.add("s1", f"cell000{number}")
        archive.write(make_cell(number))
    (path,) = archive.output.glob("sweeps/*.cells")
    path.write_bytes(path.read_bytes()[:cut])
    before = archive.keys("s1")
    assert before == [f"cell000{i}" for i in (1, 2, 3)][: cut // 9]
    archive.add("s1", "cell0003")
    assert archive.keys("s1") == list(dict.fromkeys([*before, "cell0003"]))


def test_the_index_of_records_gives_what_they_give(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    for number in range(4):
        archive.write(make_cell(number))
    archive.index()
    before = archive.load(summaries=True)
    assert before == {key: record.summary for key, record in archive.load().items()}
    shared = {id(record.identity["objective"]) for record in before.values()}
    names = {id(name) for record in before.values() for name in record.metrics}
    assert (len(shared), len(names)) == (1, 5), "thousands of cells have these once"
    # A record that is changed, deleted or added later takes precedence.
    archive.write(make_cell(0, params={"beta": 0.25}))
    archive.remove("cell0001")
    archive.write(make_cell(9))
    index = (tmp_path / "cells.parquet").read_bytes()
    flipped = [index[:k] + bytes([index[k] ^ 1]) + index[k + 1 :] for k in range(0, len(index), 9)]
    for kept in (b"PAR1", index[: len(index) // 2], *flipped, index):
        (tmp_path / "cells.parquet").write_bytes(kept)
        now = Archive(tmp_path)
        summaries = now.load(summaries=True)
        assert [*summaries] == ["cell0000", "cell0002", "cell0003", "cell0009"]
        assert summaries["cell0000"].params == {"beta": 0.25}
        digests = {key: record.digest for key, record in now.load().items()}
        assert {key: now.digest(key) for key in digests} == digests
    assert now.with_scheme(summaries["cell0009"]) == make_cell(9)
    Archive(tmp_path).index()
    assert Archive(tmp_path).load(summaries=True) == summaries
