"""The door to the importers, and what holds for every format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dcs.data.importers import IMPORTERS, import_file, import_tables
from dcs.errors import ConfigError, TableError
from tests.dcs.data.importers.test_lm_eval import log, sample
from tests.dcs.data.test_formats import GOOD, LINES, save, vectors
from tests.dcs.refusals import refuses

IDS, LABELS, *COLUMNS = GOOD.values()
PROBS = np.transpose(COLUMNS).tolist()

NAMES = {"table": ("no", "yes"), "lm-eval": ("x", "y")}
ORIGIN: dict[str, Any] = {"model": "m", "task": "t", "shots": "N", "demonstration_seed": 3}

formats = pytest.mark.parametrize("name", [importer.name for importer in IMPORTERS])


def written(name: str, folder: Path) -> Path:
    """Write the same good rows in a format."""
    rows = list(zip(IDS, LABELS, PROBS, strict=True))
    if name == "lm-eval":
        return log(folder, *(sample(i, str(k), [np.log(p) for p in row]) for i, k, row in rows))
    return save("csv", folder)


@formats
class TestEveryFormat:
    def test_reads_the_same_table(self, name: str, tmp_path: Path) -> None:
        table = import_file(name, written(name, tmp_path))
        np.testing.assert_allclose(table.probs, PROBS, rtol=0, atol=1e-15)
        assert table.labels.tolist() == LABELS
        assert table.ids == tuple(IDS)
        assert table.provenance.source == written(name, tmp_path).name

    def test_options_name_classes_model_and_task(self, name: str, tmp_path: Path) -> None:
        table = import_file(name, written(name, tmp_path), classes=NAMES[name], **ORIGIN)
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
            refuses(TableError, import_file, name, path, classes=classes, names=[f"{path}: "])

    def test_options_of_other_formats_are_refused(self, name: str, tmp_path: Path) -> None:
        heeded = {item.name: item.options for item in IMPORTERS}[name]
        others = {"label": "y", "targets": "text"}
        for option, value in others.items():
            if option not in heeded:
                with pytest.raises(ConfigError, match=f"format {name} {option!r}"):
                    import_file(name, written(name, tmp_path), **{option: value})


@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("npy", {}),
        ("lm-eval", {"targets": "maybe"}),
        ("table", {"part": "test"}),
        ("table", {"classes": "no,yes"}),
    ],
)
def test_names_that_are_refused(format: str, options: dict[str, Any], tmp_path: Path) -> None:
    named = repr(next(iter(options.values()), format))
    refuses(ConfigError, import_file, format, written("table", tmp_path), **options, names=[named])


def test_a_folder_has_its_parts(tmp_path: Path) -> None:
    path = vectors(tmp_path, opt=LINES, dev=LINES, test=LINES)
    assert list(import_tables("table", path)) == ["optimization", "development", "test"]
    with pytest.raises(ConfigError, match="--part.*optimization, development, test"):
        import_file("table", path)
    assert import_file("table", path, part="test").provenance.split == "test"
