"""Tables of a path: a file of any form, or a folder of parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dcs.data.reader import as_reading, read_tables, the_table
from dcs.errors import ConfigError, TableError
from tests.dcs.data.test_formats import LINES, save, vectors
from tests.dcs.refusals import refuses

ORIGIN: dict[str, Any] = {"model": "m", "task": "t", "shots": "N", "demonstration_seed": 3}


def test_options_name_classes_model_and_task(tmp_path: Path) -> None:
    table = read_tables(save("csv", tmp_path), as_reading({"classes": ("no", "yes")}), **ORIGIN)
    found = table["all"].provenance.to_dict()
    assert {key: found[key] for key in ORIGIN} == ORIGIN


def test_what_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    for name in ("none", "empty", "folder"):
        refuses(TableError, read_tables, tmp_path / name, names=[f"{tmp_path / name}: "])
    refuses(ConfigError, as_reading, {"classes": "no,yes"}, names=["classes"])


def test_a_folder_has_its_parts(tmp_path: Path) -> None:
    path = vectors(tmp_path, opt=LINES, dev=LINES, test=LINES)
    tables = read_tables(path)
    assert list(tables) == ["optimization", "development", "test"]
    with pytest.raises(ConfigError, match="--part.*optimization, development, test"):
        the_table(tables, None, path)
    assert the_table(tables, "test", path).provenance.split == "test"
