"""What becomes of tables of one's own before they are tuned."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcs.errors import ConfigError
from workflows.plan import called


def test_tables_of_one_name_are_told_apart_by_words_that_files_can_have() -> None:
    assert [*called([Path("a/x.parquet"), Path("b/y.npz")])] == ["x", "y"]
    paths = [Path("a/x.parquet"), Path("/b/../x.parquet"), Path("a/y/x.parquet")]
    found = called(paths)
    assert [*found.values()] == paths
    assert all("/" not in name for name in found)
    with pytest.raises(ConfigError):
        called([*paths, paths[0]])
