from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcs.errors import TrackingError
from tests.tracking.cells import failed_cell, make_cell
from tracking.records import Archive, Sweep

SWEEP = Sweep(experiment="demo", sweep_key="s1")


def test_finished_cells_are_found_again(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.write(make_cell(1))
    archive.write(failed_cell(2))
    assert Archive(tmp_path).finished() == {"cell0001": make_cell(1)}
    assert set(archive.load()) == {"cell0001", "cell0002"}
    assert set(archive.load(["cell0002", "cell0009"])) == {"cell0002"}
    assert archive.digest("cell0001") == make_cell(1).digest
    assert archive.digest("cell0009") is None


def test_an_empty_folder_is_no_trouble(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "none")
    assert (archive.finished(), archive.sweeps(), archive.keys("s1")) == ({}, [], [])
    with pytest.raises(TrackingError, match=r"cell9\.json"):
        archive.read("cell9")


def test_figures_stay_with_their_record(tmp_path: Path) -> None:
    archive, figures = Archive(tmp_path), {"figures/scheme.png": b"drawn"}
    archive.write(make_cell(1), figures)
    archive.write(make_cell(1))
    assert archive.figures("cell0001") == figures
    archive.write(make_cell(1, trials=1))
    assert archive.figures("cell0001") == {}, "of another record"


def test_damaged_files_are_named_and_not_finished(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archive = Archive(tmp_path)
    for number in (1, 2, 3):
        archive.write(make_cell(number))
    whole = archive.path("cell0001").read_bytes()
    archive.path("cell0001").write_bytes(whole[: len(whole) // 2])
    archive.path("cell0002").write_bytes(b"\xff\xfe")
    archive.path("cell0003").rename(archive.path("cell0004"))
    (archive.cells / ".cell0005.json.part").write_bytes(whole)

    assert archive.load() == {}
    assert [line.split(":")[0].rpartition("/")[2] for line in caplog.messages] == [
        "cell0001.json",
        "cell0002.json",
        "cell0004.json",
    ]
    archive.write(make_cell(1))
    assert list(archive.finished()) == ["cell0001"]


def test_an_edited_record_is_not_believed(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    path = archive.write(make_cell(1))
    path.write_text(path.read_text().replace('"test/accuracy":0.51', '"test/accuracy":0.91'))
    with pytest.raises(TrackingError, match=r"cell0001\.json: was changed"):
        archive.read("cell0001")
    archive.write(make_cell(1))
    assert archive.finished() == {"cell0001": make_cell(1)}


def test_a_pipe_in_the_place_of_a_record_is_refused(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.cells.mkdir()
    os.mkfifo(archive.path("cell0001"))
    assert archive.digest("cell0001") is None
    assert archive.load() == {}
    with pytest.raises(TrackingError, match="regular file"):
        archive.write(make_cell(1))


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (lambda archive: archive.write(make_cell(1)), "cell0001.json"),
        (lambda archive: archive.save_sweep(SWEEP), "s1.json"),
        (lambda archive: archive.add("s1", "cell0001"), "s1.cells"),
    ],
)
def test_what_cannot_be_written_is_named(
    tmp_path: Path, write: Callable[[Archive], object], name: str
) -> None:
    for folder in ("cells", "sweeps"):
        (tmp_path / folder).write_text("a file where the folder should be")
    with pytest.raises(TrackingError, match=name):
        write(Archive(tmp_path))


@settings(max_examples=30, deadline=None)
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


def test_only_one_process_records_a_sweep(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    with archive.lock(SWEEP), pytest.raises(TrackingError, match="'demo'"):
        Archive(tmp_path).lock(SWEEP)
    archive.lock(SWEEP).release()
