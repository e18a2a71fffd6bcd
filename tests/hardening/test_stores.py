"""An output folder with anything in the place of their files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hardening.commands import checked, leftovers
from tests.hardening.corpus import brief, damaged, record, scheme, spoiled, table
from tracking import Archive


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, one_recorded: Path) -> Path:
    """An output folder with an MLflow database and one recorded cell, to be spoiled."""
    return shutil.copytree(one_recorded, tmp_path_factory.mktemp("spoiled") / "recorded")


@brief
@given(data=st.data())
def test_an_output_folder_with_a_spoiled_file(data: st.DataObject, recorded: Path) -> None:
    files = [
        path
        for path in sorted(recorded.rglob("*.json*"))
        if "mlartifacts" not in path.parts and path.is_file()
    ]
    path = data.draw(st.sampled_from(files))
    good = path.read_bytes()
    try:
        if path.suffix == ".json" and data.draw(st.booleans()):
            path.write_text(json.dumps(data.draw(spoiled(json.loads(good)))))
        else:
            path.write_bytes(data.draw(damaged(good)))
        for words in (
            ("table", "e", "--runs", recorded),
            ("table", "e", "classes", "--runs", recorded),
            ("compare", "abc1", "abc123", "--runs", recorded),
            ("sync", "-o", recorded),
        ):
            checked(*words)
        assert leftovers(recorded) == []
    finally:
        path.write_bytes(good)


def test_tables_that_were_scored_and_are_damaged_now(tmp_path: Path) -> None:
    from tests.hardening.test_writes import WRITERS

    write, read = WRITERS["tables"]
    write(tmp_path, 1)
    path = tmp_path / "k" / "test.parquet"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(Exception, match=r"test\.parquet"):
        read(tmp_path)


def test_a_record_that_was_tampered_with_is_not_taken_for_another(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    path = archive.write(record())
    path.rename(path.with_name("other.json"))
    contents = archive.load()
    assert contents.records == {}
    assert "other.json" in contents.damaged[0]


def test_a_scheme_is_refused_by_a_table_whose_classes_merely_look_alike(tmp_path: Path) -> None:
    table(classes=("Anger", "Fear", "Joy ")).write(tmp_path / "t.parquet")
    scheme().save(tmp_path / "s.json")
    outcome = checked("evaluate", tmp_path / "t.parquet", "--scheme", tmp_path / "s.json")
    assert outcome.code == 2
