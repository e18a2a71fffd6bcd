"""A file is there whole or not at all."""

from __future__ import annotations

import os
import stat

import pytest

from dcs.io import atomic_path, atomic_write_bytes, atomic_write_text


def test_what_is_written_is_read_back(tmp_path):
    atomic_write_bytes(tmp_path / "new" / "a.bin", b"\x00\xff")
    atomic_write_text(tmp_path / "new" / "b.txt", "é\n")
    assert (tmp_path / "new" / "a.bin").read_bytes() == b"\x00\xff"
    assert (tmp_path / "new" / "b.txt").read_text(encoding="utf-8") == "é\n"
    assert sorted(os.listdir(tmp_path / "new")) == ["a.bin", "b.txt"]


def test_an_error_leaves_the_old_content_and_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    atomic_write_text(path, "old")
    with pytest.raises(RuntimeError, match="half way"), atomic_path(path) as temporary:
        temporary.write_text("new", encoding="utf-8")
        raise RuntimeError("half way")
    assert path.read_text(encoding="utf-8") == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_written_file_is_as_readable_as_any_other(tmp_path):
    ordinary = tmp_path / "ordinary"
    ordinary.touch()
    atomic_write_text(tmp_path / "ours", "x")
    assert stat.S_IMODE((tmp_path / "ours").stat().st_mode) == stat.S_IMODE(
        ordinary.stat().st_mode
    )
