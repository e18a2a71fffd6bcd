"""A store of scored prompts, and an output folder, with anything in the place of their files."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcs.scoring.cache import ShardStore, query_hash
from tests.hardening.commands import checked, leftovers
from tests.hardening.corpus import brief, damaged, record, scheme, spoiled, table
from tracking import Archive

_SETTINGS = {
    "model": "m",
    "revision": "r",
    "scorer": "transformers",
    "scorer_version": "1",
    "prefix": "Name it.",
    "label_words": ["a", "b"],
}
_HASHES = [query_hash("one"), query_hash("two")]


def _filled(folder: Path) -> Path:
    """Make a store of one group with one shard; returns the folder of the group."""
    group = ShardStore(folder).group(_SETTINGS)
    group.write(_HASHES, np.array([[0.25, 0.75], [0.5, 0.5]]))
    return folder / group.key


def _archive(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _everything(folder: Path, key: str) -> None:
    """Use the store in every way; only whole rows may come out."""
    for row in ShardStore(folder).group(_SETTINGS).rows.values():
        assert np.isfinite(row).all()
        assert row.shape == (2,)
    for words in (("ls",), ("show", key[:8]), ("verify",), ("gc", "--dry-run"), ("gc",), ("ls",)):
        checked("store", *words, "--store", folder)
    assert leftovers(folder) == []


@brief
@given(data=st.data())
def test_damaged_shards(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        group = _filled(Path(name))
        (shard,) = group.glob("*.npz")
        content = data.draw(damaged(shard.read_bytes()))
        shard.unlink()
        # Under the name of its content, as if somebody had meant it.
        renamed = data.draw(st.booleans())
        stem = hashlib.sha256(content).hexdigest()[:32] if renamed else shard.stem
        (group / f"{stem}.npz").write_bytes(content)
        _everything(Path(name), group.name)


@pytest.mark.parametrize(
    "probs",
    [
        np.full((2, 2), np.nan),
        np.array([[np.inf, 0.0], [0.5, 0.5]]),
        np.array([[-1.0, 2.0], [0.5, 0.5]]),
        np.zeros((2, 3)),
        np.zeros(2),
        np.array(0.5),
        np.array([["a", "b"], ["c", "d"]]),
        np.zeros((3, 2)),
        np.zeros((2, 2), dtype=complex),
    ],
)
def test_shards_that_are_whole_but_hold_something_else(probs: Any, tmp_path: Path) -> None:
    group = _filled(tmp_path)
    queries = np.frombuffer(b"".join(_HASHES), dtype=np.uint8).reshape(2, 16)
    content = _archive(queries=queries, probs=probs)
    (group / f"{hashlib.sha256(content).hexdigest()[:32]}.npz").write_bytes(content)
    _everything(tmp_path, group.name)


@brief
@given(data=st.data())
def test_other_settings(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        group = _filled(Path(name))
        content = json.dumps(data.draw(spoiled(_SETTINGS))).encode()
        (group / "settings.json").write_bytes(data.draw(st.sampled_from((content, content[:-3]))))
        _everything(Path(name), group.name)


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
