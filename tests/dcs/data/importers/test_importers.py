"""What holds for every format that is imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dcs.data.importers import import_tables, the_table
from dcs.errors import ConfigError, TableError
from tests.dcs.data.importers.test_lm_eval import log, sample
from tests.dcs.data.test_formats import GOOD, LINES, save, vectors
from tests.dcs.refusals import refuses

IDS, LABELS, *COLUMNS = GOOD.values()
PROBS = np.transpose(COLUMNS).tolist()

NAMES = {"table": ("no", "yes"), "lm-eval": ("x", "y")}
ORIGIN: dict[str, Any] = {"model": "m", "task": "t", "shots": "N", "demonstration_seed": 3}

formats = pytest.mark.parametrize("name", ["table", "lm-eval"])


def written(name: str, folder: Path) -> Path:
    """Write the same good rows in a format."""
    rows = list(zip(IDS, LABELS, PROBS, strict=True))
    if name == "lm-eval":
        return log(folder, *(sample(i, str(k), [np.log(p) for p in row]) for i, k, row in rows))
    return save("csv", folder)


@formats
class TestEveryFormat:
    def test_reads_the_same_table(self, name: str, tmp_path: Path) -> None:
        table = import_tables(name, written(name, tmp_path))["all"]
        np.testing.assert_allclose(table.probs, PROBS, rtol=0, atol=1e-15)
        assert table.labels.tolist() == LABELS
        assert table.ids == tuple(IDS)
        assert table.provenance.source == written(name, tmp_path).name

    def test_options_name_classes_model_and_task(self, name: str, tmp_path: Path) -> None:
        path = written(name, tmp_path)
        table = import_tables(name, path, ORIGIN, classes=NAMES[name])["all"]
        assert table.classes == NAMES[name]
        found = table.provenance.to_dict()
        assert {key: found[key] for key in ORIGIN} == ORIGIN

    def test_what_is_refused(self, name: str, tmp_path: Path) -> None:
        (tmp_path / "empty").touch()
        (tmp_path / "folder").mkdir()
        for path, classes in [
            (written(name, tmp_path), ["x", "y", "z"]),
            (tmp_path / "none", None),
            (tmp_path / "empty", None),
            (tmp_path / "folder", None),
        ]:
            refuses(TableError, import_tables, name, path, classes=classes, names=[f"{path}: "])


@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("npy", {}),
        ("lm-eval", {"targets": "maybe"}),
        ("table", {"targets": "text"}),
        ("lm-eval", {"label": "y"}),
        ("table", {"path": "y"}),
        ("table", {"classes": "no,yes"}),
    ],
)
def test_names_that_are_refused(format: str, options: dict[str, Any], tmp_path: Path) -> None:
    named = next(iter(options), format)
    path = written("table", tmp_path)
    refuses(ConfigError, import_tables, format, path, **options, names=[named])


def test_a_folder_has_its_parts(tmp_path: Path) -> None:
    path = vectors(tmp_path, opt=LINES, dev=LINES, test=LINES)
    tables = import_tables("table", path)
    assert list(tables) == ["optimization", "development", "test"]
    with pytest.raises(ConfigError, match="--part.*optimization, development, test"):
        the_table(tables, None, path)
    assert the_table(tables, "test", path).provenance.split == "test"
