"""Whatever happens while a file is written: the old one is there, or the whole new one."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dcs.errors import DCSError
from dcs.io import atomic_write
from dcs.schemes.scheme import CorrectionScheme
from tests.workflows.conftest import biased_table

#: By file name: what writes version 1 or 2 of it into a folder.
WRITERS: dict[str, Callable[[Path, int], object]] = {
    "t.txt": lambda path, n: atomic_write(path, f"{n}" * 3000),
    "t.parquet": lambda path, n: biased_table(400 * n).write(path),
    "s.json": lambda path, n: CorrectionScheme.identity(
        [f"class {k}" for k in range(100 * n)]
    ).save(path),
}


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let no file grow beyond so many bytes, as on a disk that is nearly full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("name", WRITERS)
def test_the_old_version_stays_whole_until_the_new_one_is(name: str, tmp_path: Path) -> None:
    """Also on a full disk. Nothing is written over it: who has it open reads all of it."""
    path = tmp_path / name
    WRITERS[name](path, 1)
    before = path.read_bytes()
    for size in (0, 300):
        with largest_file(size), pytest.raises((DCSError, OSError)):
            WRITERS[name](path, 2)
        assert os.listdir(tmp_path) == [name]
        assert path.read_bytes() == before
    with path.open("rb") as old:
        WRITERS[name](path, 2)
        assert old.read() == before
    assert path.read_bytes() != before
