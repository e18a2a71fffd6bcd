from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcs.errors import TrackingError
from tests.tracking.cells import failed_cell, make_cell
from tracking.archive import Archive
from tracking.store.destinations import Destination, DestinationInfo

INFO = DestinationInfo(tracking_uri=None, experiment="demo", sweep_key="s1")


def test_finished_cells_are_found_again(tmp_path: Path) -> None:
    box = Archive(tmp_path)
    box.write(make_cell(1))
    box.write(failed_cell(2))
    assert Archive(tmp_path).finished() == {"cell0001": make_cell(1)}
    assert set(box.load().records) == {"cell0001", "cell0002"}
    assert set(box.load(["cell0002", "cell0009"]).records) == {"cell0002"}
    assert box.load(slim=True).records["cell0001"].trials == ()


def test_an_empty_folder_is_no_trouble(tmp_path: Path) -> None:
    box = Archive(tmp_path / "none")
    assert (box.finished(), box.destinations(), box.pending()) == ({}, [], 0)
    with pytest.raises(TrackingError, match=r"cell9\.json: there is no record"):
        box.read("cell9")


def test_damaged_files_are_named_and_not_finished(tmp_path: Path) -> None:
    box = Archive(tmp_path)
    for number in (1, 2, 3):
        box.write(make_cell(number))
    whole = box.path("cell0001").read_bytes()
    box.path("cell0001").write_bytes(whole[: len(whole) // 2])
    box.path("cell0002").write_bytes(b"\xff\xfe")
    box.path("cell0003").rename(box.path("cell0004"))
    (box.cells / ".cell0005.json.part").write_bytes(whole)

    contents = box.load()
    assert contents.records == {}
    assert [line.split(":")[0].rpartition("/")[2] for line in contents.damaged] == [
        "cell0001.json",
        "cell0002.json",
        "cell0004.json",
    ]
    box.write(make_cell(1))
    assert list(box.finished()) == ["cell0001"]


def test_a_full_disk_is_said_in_one_line(tmp_path: Path) -> None:
    box = Archive(tmp_path)
    box.cells.parent.mkdir(exist_ok=True)
    box.cells.write_text("a file where the folder should be")
    with pytest.raises(TrackingError, match=r"cell0001\.json: the finished cell cannot be"):
        box.write(make_cell(1))


def test_marks_outlive_the_process(tmp_path: Path) -> None:
    box = Archive(tmp_path)
    with box.destination(INFO) as there:
        there.save()
        assert there.queue("a", "d1")
        assert not there.queue("a", "d1")
        assert there.queue("b", "d2")
        there.mark("a", "d1", run_id="r", parent="p")
    (again,) = Archive(tmp_path).destinations()
    assert again.info == INFO
    assert again.keys == ["a", "b"]
    assert again.pending() == ["b"]
    assert again.pending("p") == ["b"]
    assert again.pending("other") == ["a", "b"], "a mark from a replaced store counted"
    assert Archive(tmp_path).pending() == 1


def test_a_newer_record_of_a_cell_is_pending_again(tmp_path: Path) -> None:
    with Archive(tmp_path).destination(INFO) as there:
        there.queue("a", "old")
        there.mark("a", "old", run_id="r", parent="p")
        assert there.queue("a", "new")
        assert there.pending() == ["a"]
        there.mark("a", "old", run_id="r", parent="p")
        assert there.pending() == ["a"]


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(0, 400))
def test_a_journal_cut_anywhere_loses_marks_but_never_invents_one(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    box = Archive(tmp_path_factory.mktemp("box"))
    with box.destination(INFO) as there:
        for key in "abc":
            there.queue(key, f"digest-{key}")
            there.mark(key, f"digest-{key}", run_id="r", parent="p")
        data = there.journal.read_bytes()
        there.journal.write_bytes(data[:cut])
    with box.destination(INFO) as there:
        arrived = set(there.keys) - set(there.pending())
        whole_lines = [json.loads(line) for line in data[:cut].split(b"\n")[:-1]]
        marked = {line["key"] for line in whole_lines if "recorded" in line}
        # A cut just before the newline leaves the last line whole.
        assert marked <= arrived <= set("abc")
        there.queue("z", "digest-z")
        assert box.destination(INFO).pending()[-1] == "z", "glued to half a line"


def test_only_one_recorder_at_a_time(tmp_path: Path) -> None:
    box = Archive(tmp_path)
    with box.destination(INFO), pytest.raises(TrackingError, match="by another process"):
        box.destination(INFO).acquire()
    with box.destination(INFO):
        pass


def test_a_damaged_description_is_named(tmp_path: Path) -> None:
    box = Archive(tmp_path)
    with box.destination(INFO) as there:
        there.save()
    (there.folder / "sweep.json").write_text("{")
    with pytest.raises(TrackingError, match=r"sweep\.json: not a whole description"):
        box.destinations()


def test_destinations_differ_by_store_experiment_and_sweep() -> None:
    ids = {
        DestinationInfo(tracking_uri=uri, experiment=name, sweep_key=key).id
        for uri in (None, "http://a")
        for name in ("x", "y")
        for key in ("1", "2")
    }
    assert len(ids) == 8
    assert isinstance(Destination, type)
