"""A file is there whole or not at all, and read with a word on what is wrong."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dcs.errors import ConfigError
from dcs.io import atomic_path, atomic_write, inert, read_json, read_yaml, write_together
from tests.dcs.refusals import refuses


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    atomic_write(tmp_path / "new" / "a.bin", b"\x00\xff")
    with atomic_path(tmp_path / "new" / ("é" * 127)) as temporary:
        atomic_write(temporary, "é\n")
    assert (tmp_path / "new" / "a.bin").read_bytes() == b"\x00\xff"
    assert (tmp_path / "new" / ("é" * 127)).read_text(encoding="utf-8") == "é\n"
    assert len(os.listdir(tmp_path / "new")) == 2


def test_files_are_written_together_or_not_at_all(tmp_path: Path) -> None:
    old = {tmp_path / name: f"old {name}" for name in "abc"}
    write_together(dict(old))
    (tmp_path / "b").chmod(0o600)

    def fill_disk(path: Path) -> None:
        path.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    a, b, c = old
    with pytest.raises(OSError, match="No space") as refusal:
        write_together({a: "new", b: fill_disk, c: None})
    assert refusal.value.filename == str(b)
    assert {path: path.read_text() for path in tmp_path.iterdir()} == old
    write_together({a: "new", b: lambda path: atomic_write(path, "new"), c: None})
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "new", "b": "new"}
    assert b.stat().st_mode & 0o777 == 0o600


def test_no_file_takes_the_place_of_a_device() -> None:
    refuses(OSError, atomic_write, "/dev/null", "x", names=["/dev/null"])
    assert not Path("/dev/null").is_file()


BROKEN = (b"{", b"\xff\xfe{\x00", b'{"a": NaN}{', b'{"a": ["\\ud800"]}')
NOT_PLAIN = (b"a: 1\na: 3\n", b"a: !!python/name:os.system\n", b"a: 2026-13-41", b"a: !x y")


@pytest.mark.parametrize("content", [*BROKEN, *NOT_PLAIN])
@pytest.mark.parametrize("read", [read_json, read_yaml])
def test_files_that_are_refused_by_name(read, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(content)
    refuses(ConfigError, read, path, error=ConfigError, names=[f"{path}: "])


def test_numbers_of_either_sign_are_no_formulas() -> None:
    cells = ("+1", "-1.5", "=1+1", "-x", "@a", "a", 7)
    assert [*map(inert, cells)] == ["+1", "-1.5", "'=1+1", "'-x", "'@a", "a", 7]


def test_yaml_holds_plain_values(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a: [1, 2.5, ä]\nb: {c: null}\n", encoding="utf-8-sig")
    assert read_yaml(tmp_path / "f", error=ConfigError) == {"a": [1, 2.5, "ä"], "b": {"c": None}}
    for number, read in (("010", "8"), ("1:30", "90")):
        (tmp_path / "f").write_text(f"a: {number}\n")
        refuses(ConfigError, read_yaml, tmp_path / "f", error=ConfigError, names=[number, read])


def test_what_could_make_a_small_file_large(tmp_path: Path) -> None:
    for text, name in (("a: &a {x: 1}\nb: *a\n", "alias *a"), ("[" * 200, "nested")):
        (tmp_path / "f").write_text(text)
        refuses(ConfigError, read_yaml, tmp_path / "f", error=ConfigError, names=[name])
