"""Tables of a path: a file of any form, or a folder of parts."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from dcs.data.reader import as_reading, open_sources, refuse_shared_texts
from dcs.errors import ConfigError, TableError
from tests.dcs.refusals import refuses


def test_what_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    for name in ("none", "empty", "folder"):
        refuses(TableError, open_sources, tmp_path / name, names=[f"{tmp_path / name}: "])
    refuses(ConfigError, as_reading, {"classes": "no,yes"}, names=["classes"])


def _write(path: Path, ids: list[str], share: float) -> Path:
    rows = {"p:a": share, "p:b": 1.0 - share, "label": ["a", "b", "a"], "id": ids}
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


@pytest.mark.parametrize("shared", [["x", "y", "z"], ["1", "2", "90"], ["7", "8", "9"]])
def test_shared_ids_are_refused_unless_they_number_the_rows(
    shared: list[str], tmp_path: Path
) -> None:
    fitted = _write(tmp_path / "a.csv", shared, 0.2)
    test = _write(tmp_path / "b.csv", ["u", "v", shared[2]], 0.7)
    refuses(TableError, open_sources, fitted, test=test, names=["b.csv", "1 of 3 ids"])
    numbered = [_write(tmp_path / f"{k}.csv", ["1", "2", "3"], k / 10) for k in (2, 7)]
    assert [*open_sources(numbered[0], test=numbered[1])] == ["optimization", "test"]


def test_one_shared_text_in_a_hundred_is_chance() -> None:
    test = [f"text {k}" for k in range(100)]
    assert refuse_shared_texts(test[:1], test, "t") != ""
    assert refuse_shared_texts(["another"], test, "t") == ""
    refuses(TableError, refuse_shared_texts, test[:2], test, "t", names=["2 of 100 texts"])
