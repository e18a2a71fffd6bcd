"""The door to the importers, and what holds for every format."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dcs.data.importers import (
    IMPORTERS,
    import_file,
    read_tables,
    table_sources,
)
from dcs.data.table import ProbabilityTable
from dcs.errors import ConfigError, TableError
from tests.dcs.refusals import refuses

PROBS = [[0.75, 0.25], [0.5, 0.5], [0.125, 0.875]]
LABELS = [0, 1, 1]
IDS = ["a", "b", "c"]


NO, YES = np.array(PROBS).T
FRAME = pd.DataFrame({"id": IDS, "label": LABELS, "p:no": NO, "p:yes": YES})


def write_lm_eval(path: Path) -> None:
    scores = [[[str(np.log(value)), "False"] for value in row] for row in PROBS]
    keys = ("doc_id", "target", "filtered_resps")
    samples = zip(IDS, map(str, LABELS), scores, strict=True)
    path.write_text("\n".join(json.dumps(dict(zip(keys, s, strict=True))) for s in samples))


WRITERS: dict[str, Callable[[Path], object]] = {
    "npz": lambda path: np.savez(path, probs=PROBS, labels=LABELS, ids=IDS),
    "csv": lambda path: FRAME.to_csv(path, index=False),
    "parquet": lambda path: FRAME.to_parquet(path, index=False),
    "vectors": lambda path: FRAME.assign(n=0)[["id", "label", "n", "p:no", "p:yes"]].to_csv(
        path, sep=" ", header=False, index=False
    ),
    "lm-eval": write_lm_eval,
}
SUFFIX = {"npz": ".npz", "csv": ".csv", "parquet": ".parquet", "vectors": ".txt"}

formats = pytest.mark.parametrize("name", [importer.name for importer in IMPORTERS])


def written(name: str, folder: Path) -> Path:
    path = folder / f"data{SUFFIX.get(name, '.jsonl')}"
    WRITERS[name](path)
    return path


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
        for path, classes in [
            (written(name, tmp_path), ["x", "y", "z"]),
            (tmp_path / "none", None),
            (tmp_path / "empty", None),
            (tmp_path, None),
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
    frame = FRAME.rename(columns={"p:no": f"p:{classes[0]}", "p:yes": f"p:{classes[1]}"})
    getattr(frame, f"to_{name}")(tmp_path / "t", index=False)
    table = import_file(name, tmp_path / "t")
    table.write(tmp_path / "again.parquet")
    assert ProbabilityTable.read(tmp_path / "again.parquet").classes == table.classes == classes
    plain = FRAME.rename(columns={"p:no": classes[0], "p:yes": classes[1]})
    getattr(plain, f"to_{name}")(tmp_path / "t", index=False)
    if not all(one.startswith("p:") for one in classes):
        assert import_file(name, tmp_path / "t", class_columns=classes).classes == classes


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
        table = import_file("npz", written("npz", tmp_path), classes=["no", "yes"])
        ours = tmp_path / "ours"
        published = tmp_path / "sst5_llama-2-13b_shotN_seed4"
        published.mkdir()
        for part, stem in (("optimization", "opt"), ("test", "test")):
            table.write(ours / f"{part}.parquet")
            WRITERS["vectors"](published / f"{stem}.txt")
        for folder in (ours, published):
            tables = read_tables(folder)
            assert list(tables) == ["optimization", "test"]
            assert tables["test"].probs.tolist() == PROBS
        told = tables["optimization"].provenance
        assert (told.task, told.model, told.shots, told.demonstration_seed) == (
            "sst5",
            "llama-2-13b",
            "N",
            4,
        )
        (tmp_path / "notes.txt").write_text("none")
        sources = (tmp_path / "data.npz", ours, published)
        assert table_sources(tmp_path) == sources
        assert [table_sources(source) for source in sources] == [(source,) for source in sources]
        assert read_tables(tmp_path / "data.npz")["optimization"].ids == tuple(IDS)
        ProbabilityTable.read(ours / "test.parquet").write(tmp_path / "one.parquet")
        assert list(read_tables(tmp_path / "one.parquet")) == ["optimization"]

        import_file("npz", tmp_path / "data.npz", classes=["yes", "no"]).write(
            ours / "test.parquet"
        )
        with pytest.raises(TableError, match="ours: .*'no', 'yes'.*'yes', 'no'"):
            read_tables(ours)

    def test_others_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "opt.txt").write_text("x 0 0 0.5 0.5")
        for read in (read_tables, table_sources):
            with pytest.raises(TableError, match=str(tmp_path)):
                read(tmp_path)
        with pytest.raises(TableError, match=r"a\.csv"):
            read_tables(tmp_path / "a.csv")
