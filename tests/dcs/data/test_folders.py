"""Tables of a path: a file of any form, or a folder of parts."""

from __future__ import annotations

from pathlib import Path

from dcs.data.reader import as_reading, open_sources
from dcs.errors import ConfigError, TableError
from tests.dcs.data.test_formats import LINES, vectors
from tests.dcs.refusals import refuses


def test_what_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    for name in ("none", "empty", "folder"):
        refuses(TableError, open_sources, tmp_path / name, names=[f"{tmp_path / name}: "])
    refuses(ConfigError, as_reading, {"classes": "no,yes"}, names=["classes"])


def test_a_folder_has_its_parts(tmp_path: Path) -> None:
    path = vectors(tmp_path, opt=LINES, dev=LINES, test=LINES)
    tables = open_sources(path)
    assert [*tables] == ["optimization", "test"]
    assert tables["test"].table.provenance.split == "test"
