"""The door to the importers, and what holds for every format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dcs.data.importers import IMPORTERS, import_file, read_tables, table_sources
from dcs.data.table import ProbabilityTable
from dcs.errors import ConfigError, TableError
from tests.dcs.data.importers.test_lm_eval import log, sample
from tests.dcs.data.importers.test_numbers import GOOD, save, saved, vectors
from tests.dcs.refusals import refuses

IDS, LABELS, *COLUMNS = GOOD.values()
PROBS = np.transpose(COLUMNS).tolist()

formats = pytest.mark.parametrize("name", [importer.name for importer in IMPORTERS])


def written(name: str, folder: Path) -> Path:
    """Write the same good rows in a format."""
    rows = list(zip(IDS, LABELS, PROBS, strict=True))
    if name == "npz":
        return saved(folder, probs=PROBS, labels=LABELS, ids=IDS)
    if name == "vectors":
        lines = [f"{row} {label} 0 {no} {yes}\n" for row, label, (no, yes) in rows]
        (folder / "all.txt").write_text("".join(lines))
        return folder / "all.txt"
    if name == "lm-eval":
        return log(folder, *(sample(i, str(k), [np.log(p) for p in row]) for i, k, row in rows))
    return save(name, folder)


@formats
class TestEveryFormat:
    def test_reads_the_same_table(self, name: str, tmp_path: Path) -> None:
        table = import_file(name, written(name, tmp_path))
        np.testing.assert_allclose(table.probs, PROBS, rtol=0, atol=1e-15)
        assert table.labels.tolist() == LABELS
        assert table.ids == tuple(IDS)
        assert table.provenance.source == written(name, tmp_path).name

    def test_options_name_classes_model_and_task(self, name: str, tmp_path: Path) -> None:
        table = import_file(name, written(name, tmp_path), classes=["x", "y"], model="m", task="t")
        assert table.classes == ("x", "y")
        assert (table.provenance.model, table.provenance.task) == ("m", "t")

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
        others = {"logits": True, "normalise": True, "label_column": "y", "targets": "text"}
        for option, value in others.items():
            if option not in heeded:
                with pytest.raises(ConfigError, match=f"format {name} {option!r}"):
                    import_file(name, written(name, tmp_path), **{option: value})


@pytest.mark.parametrize("name", ["npz", "csv", "parquet", "vectors"])
def test_logits(name: str, tmp_path: Path) -> None:
    table = import_file(name, written(name, tmp_path), logits=True)
    weights = np.exp(PROBS)
    np.testing.assert_allclose(table.probs, weights / weights.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("name", ["csv", "parquet"])
@pytest.mark.parametrize("classes", [("p:odd", "odd"), ("a, b", "c; d"), ("p:a", "p:b")])
def test_odd_class_names(name: str, classes: tuple[str, ...], tmp_path: Path) -> None:
    none = dict.fromkeys(GOOD)
    prefixed = {f"p:{key}": column for key, column in zip(classes, COLUMNS, strict=True)}
    table = import_file(name, save(name, tmp_path, **none, **prefixed))
    table.write(tmp_path / "again.parquet")
    assert ProbabilityTable.read(tmp_path / "again.parquet").classes == table.classes == classes
    path = save(name, tmp_path, **none, **dict(zip(classes, COLUMNS, strict=True)))
    if not all(one.startswith("p:") for one in classes):
        assert import_file(name, path, class_columns=classes).classes == classes


@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("npy", {}),
        ("lm-eval", {"targets": "maybe"}),
        ("npz", {"part": "test"}),
        ("npz", {"classes": "no,yes"}),
    ],
)
def test_names_that_are_refused(format: str, options: dict[str, Any], tmp_path: Path) -> None:
    named = repr(next(iter(options.values()), format))
    refuses(ConfigError, import_file, format, written("npz", tmp_path), **options, names=[named])


class TestSources:
    def test_a_pair_of_either_form(self, tmp_path: Path) -> None:
        path = written("npz", tmp_path)
        table = import_file("npz", path, classes=["no", "yes"])
        ours = tmp_path / "ours"
        table.write(ours / "optimization.parquet")
        table.write(ours / "test.parquet")
        lines = written("vectors", ours).read_text()
        published = vectors(tmp_path, opt=lines, test=lines)
        for folder in (ours, published):
            tables = read_tables(folder)
            assert list(tables) == ["optimization", "test"]
            assert tables["test"].probs.tolist() == PROBS
        (tmp_path / "notes.txt").write_text("none")
        sources = (ours, path, published)
        assert table_sources(tmp_path) == sources
        assert [table_sources(source) for source in sources] == [(source,) for source in sources]
        assert read_tables(path)["optimization"].ids == tuple(IDS)
        assert list(read_tables(ours / "test.parquet")) == ["optimization"]
        table.with_classes(["yes", "no"]).write(ours / "test.parquet")
        with pytest.raises(TableError, match="ours: .*'no', 'yes'.*'yes', 'no'"):
            read_tables(ours)

    def test_others_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "opt.txt").write_text("x 0 0 0.5 0.5")
        for read in (read_tables, table_sources):
            with pytest.raises(TableError, match=str(tmp_path)):
                read(tmp_path)
        with pytest.raises(TableError, match=r"a\.csv"):
            read_tables(tmp_path / "a.csv")
