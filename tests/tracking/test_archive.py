from __future__ import annotations

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
    for number in (0, 3):
        archive.write(make_cell(number))
    assert archive.finished() == {f"cell000{number}": make_cell(number) for number in (0, 3)}


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    for folder in ("cells", "sweeps"):
        (tmp_path / folder).write_text("a file where the folder should be")
    archive = Archive(tmp_path)
    writers = {
        "cell0001.json": lambda: archive.write(make_cell(1)),
        "s1.json": lambda: archive.save_sweep(SWEEP),
        "s1.cells": lambda: archive.add("s1", "cell0001"),
    }
    for name, write in writers.items():
        with pytest.raises(TrackingError, match=name):
            write()


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
