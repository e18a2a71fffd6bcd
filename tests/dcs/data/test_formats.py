"""Columns of text and Parquet, the published vectors, NumPy archives: what they may hold."""

from __future__ import annotations

import pickle
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.feather import write_feather

from dcs.data.reader import open_sources, read_table, source_files
from dcs.errors import TableError
from tests.dcs.refusals import refuses

GOOD: dict[str, list[Any]] = {
    "id": ["a", "b", "c"],
    "label": [0, 1, 1],
    "p:no": [0.75, 0.5, 0.125],
    "p:yes": [0.25, 0.5, 0.875],
}


def save(folder: Path, header: bytes = b"", **changes: Any) -> Path:
    """Write good rows, with some columns changed (None drops one)."""
    columns = {key: value for key, value in (GOOD | changes).items() if value is not None}
    path = folder / "t.parquet"
    metadata = {"dcs": header} if header else None
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), path)
    return path


TEXT = ["no", "yes", "yes"]
#: Columns of odd types that are labels.
READABLE: dict[str, Any] = {
    "dictionary": pa.array(TEXT).dictionary_encode(),
    "string view": pa.array(TEXT, pa.string_view()),
    "binary view": pa.array([text.encode() for text in TEXT], pa.binary_view()),
    "runs": pa.RunEndEncodedArray.from_arrays(pa.array([1, 3], pa.int32()), TEXT[:2]),
    "half": pa.array(np.array([0, 1, 1], np.float16)),
    "decimal": pa.array([0, 1, 1], pa.decimal256(50, 2)),
    "json": pa.ExtensionArray.from_storage(pa.json_(), pa.array(TEXT)),
}
#: Columns that are read beside labels, but are none.
OTHERS: dict[str, Any] = {
    "list": pa.array([["no"]] * 3),
    "numbers": pa.array([[1, 2]] * 3, pa.list_(pa.int64(), 2)),
    "struct": pa.array([{"k": 1.0}] * 3),
    "map": pa.array([[("k", 1.0)]] * 3, pa.map_(pa.string(), pa.float64())),
    "bytes": pa.array([b"\xff"] * 3),
    "interval": pa.array([pa.MonthDayNano([1, 2, 3])] * 3),
    "time": pa.array([1] * 3, pa.time64("us")),
}
#: Columns that Python cannot represent.
REFUSED: dict[str, Any] = {
    "far date": pa.array([2**31 - 1] * 3, pa.int32()).cast(pa.date32()),
    "far moment": pa.array([2**62] * 3, pa.timestamp("s")),
    "zone": pa.array([1] * 3, pa.timestamp("us", tz="Nowhere/City")),
    "duration": pa.array([2**62] * 3, pa.duration("s")),
    "text that is not UTF-8": pa.array([b"\xff"] * 3).view(pa.string()),
}


@pytest.mark.parametrize("name", [*READABLE, *OTHERS, *REFUSED])
def test_types_of_arrow(name: str, tmp_path: Path) -> None:
    column = (READABLE | OTHERS | REFUSED)[name]
    path = tmp_path / "t.feather"
    others = {"p:no": pa.array(GOOD["p:no"], pa.float32()), "p:yes": GOOD["p:yes"]}
    for columns, readable in (
        ({"label": TEXT, "x": column}, name not in REFUSED),
        ({"label": column}, name in READABLE),
    ):
        write_feather(pa.table({**columns, **others}), path, "uncompressed")
        if readable:
            assert read_table(path).labels.tolist() == [0, 1, 1]
        else:
            refuses(TableError, read_table, path, names=["t.feather: ", [*columns][-1]])


def test_a_name_of_a_column_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.feather"
    write_feather(pa.table({"label": TEXT, "note": TEXT}), path, "uncompressed")
    path.write_bytes(path.read_bytes().replace(b"note", b"\xffote"))
    refuses(TableError, read_table, path, names=["t.feather: ", "UTF-8"])


LINES = "x1 0 1 0.25 0.75\nx2 1 1 0.5 0.5\n"


def vectors(root: Path, **files: str) -> Path:
    path = root / "trec_llama-2-13b_hf_shot5_seed3"
    path.mkdir()
    for stem, text in files.items():
        (path / f"{stem}.txt").write_text(text)
    return path


ARRAYS: dict[str, Any] = {
    "probs": np.array([[0.75, 0.25], [0.5, 0.5]], np.float32),
    "labels": np.array([0, 1], np.int16),
}


def saved(folder: Path, **changes: Any) -> Path:
    arrays = {key: value for key, value in {**ARRAYS, **changes}.items() if value is not None}
    np.savez(folder / "t.npz", **arrays)
    return folder / "t.npz"


class Trap:
    """Fails the test if it is ever unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return pytest.fail, ("unpickled",)


class TestNpz:
    def test_class_names_ids_and_labels_as_names(self, tmp_path: Path) -> None:
        path = saved(tmp_path, classes=["no", "yes"], ids=[7, 8], labels=["yes", "no"])
        table = read_table(path)
        assert (table.classes, table.ids) == (("no", "yes"), ("7", "8"))
        assert table.labels.tolist() == [1, 0]
        refuses(TableError, read_table, saved(tmp_path, labels=["yes", "no"]), names=["row 0"])

    def test_logits_by_their_key(self, tmp_path: Path) -> None:
        logits = [[0.0, -np.inf], [1e308, -1e308], [-8e307, -8e307], [0.0, np.log(3.0)]]
        table = read_table(saved(tmp_path, probs=None, logits=logits, labels=None))
        np.testing.assert_allclose(table.probs, [[1, 0], [1, 0], [0.5, 0.5], [0.25, 0.75]])

    @pytest.mark.parametrize(
        "changes",
        [
            {"probs": None, "logits": [[0, np.nan], [0, 0]]},
            {"probs": [[0.5, np.nan], [1, 0]]},
            {"probs": None, "logits": [[0, 0], [-np.inf, -np.inf]]},
            {"probs": None},
            {"logits": [[1, 2]]},
            *({key: np.array([print], dtype=object)} for key in (*ARRAYS, "classes", "ids")),
        ],
    )
    def test_refused(self, changes: dict[str, Any], tmp_path: Path) -> None:
        refuses(TableError, read_table, saved(tmp_path, **changes), names=["t.npz: "])

    def test_arrays_that_are_too_large_are_not_unpacked(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("dcs.data.files.MOST_VALUES", 16)
        refuses(TableError, read_table, saved(tmp_path), names=["too large"])

    def test_no_pickle_is_loaded(self, tmp_path: Path) -> None:
        with zipfile.ZipFile(saved(tmp_path, labels=None), "a") as archive:
            archive.writestr("labels.npy", pickle.dumps(Trap()))
        refuses(TableError, read_table, tmp_path / "t.npz")
        objects = np.array([[Trap(), Trap()]], dtype=object)
        np.save(tmp_path / "t.npy", objects, allow_pickle=True)
        for path in (saved(tmp_path, labels=objects[0]), tmp_path / "t.npy"):
            refuses(TableError, read_table, path)

    def test_the_option_goes_before_the_file(self, tmp_path: Path) -> None:
        assert read_table(saved(tmp_path, classes=["a", "b"])).classes == ("a", "b")
        assert read_table(saved(tmp_path), classes=["x", "y"]).classes == ("x", "y")
        turned = read_table(saved(tmp_path, classes=["a", "b"]), classes=["b", "a"])
        assert (turned.classes, turned.labels.tolist()) == (("a", "b"), [0, 1])


def test_pairs_and_folders(tmp_path: Path) -> None:
    path = saved(tmp_path, classes=["no", "yes"])
    table, ours = read_table(path), tmp_path / "ours"
    table.write(ours / "optimization.parquet")
    pd.DataFrame(GOOD | {"id": [*"xyz"]}).to_csv(ours / "test.csv", index=False)
    published = vectors(tmp_path, opt=LINES, dev=LINES, test="y 1 0 0.9 0.1\n")
    (tmp_path / "notes.txt").write_text("none")
    sources = (ours, path, published)
    assert source_files(tmp_path) == sources
    assert [source_files(source) for source in sources] == [(source,) for source in sources]
    for source in (ours, published):
        assert list(open_sources(source)) == ["optimization", "test"]
    assert list(open_sources(ours / "test.csv")) == ["optimization"]
    test = open_sources(published)["test"].table
    assert test.ids == ("y",)
    told = test.provenance.to_dict()
    assert told.pop("reading")["label"] == "label"
    assert told == {"split": "test", "source": "test.txt"}
    (ours / "test.csv").unlink()
    other = table.with_probs(table.probs[::-1])
    other.with_classes(["yes", "no"]).write(ours / "test.parquet")
    assert open_sources(ours)["test"].table.digest == other.digest
    table.write(ours / "test.parquet")
    refuses(TableError, open_sources, ours, names=["the rows to be fitted"])
    replace(table, classes=("yes", "maybe")).write(ours / "test.parquet")
    with pytest.raises(TableError, match="test.parquet: .*'yes', 'maybe'.*'no', 'yes'"):
        open_sources(ours)
    (empty := tmp_path / "empty").mkdir()
    (empty / "opt.txt").write_text("x 0 0 0.5 0.5")
    for read in (open_sources, source_files):
        refuses(TableError, read, empty, names=[str(empty)])
    refuses(TableError, open_sources, empty / "a.csv", names=["a.csv"])
    (folder := tmp_path / "folder").mkdir()
    refuses(TableError, open_sources, folder, names=[f"{folder}: "])


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("t.csv", 'label,a,b\na,"1,500",500\nb,200,"1,800"\n', [[0.75, 0.25], [0.1, 0.9]]),
        ("t.csv", 'label,a,b\na,"1,000","3,000"\nb,"3,000","1,000"\n', [[1, 3], [3, 1]]),
        ("t.csv", "label;a;b\na;0,125;0,875\nb;0,5;0,5\n", [[0.125, 0.875], [0.5, 0.5]]),
        ("t.csv", "label;a;b\na;1,500;2,000\n", "decimal=, or --read decimal=."),
        ("t.csv", "label;a;b\na;1.500,5;2,5\nb;1,5;2,5\n", "row 0"),
        ("t.tsv", 'label\ta\tb\tx\na\t.1\t.9\t"one\nb\t.8\t.2\t"two\n', [[0.1, 0.9], [0.8, 0.2]]),
        ("t.tsv", 'label\ta\tb\tx\na\t.1\t.9\t"1\nb\t.8\t.2\t2"\n', "quoting=double or =none"),
        ("t.csv", "label,a,b\na,.1,.9,\nb,.8,.2\n", "line 2: 4 fields, the first line has 3"),
        ("t.csv", "label,a,b\na,,.9\nb,.8,.2\n", "row 0, a is empty"),
        ("t.csv", "label,a,a\n0,1,0\n", "not unique"),
        ("t.csv", 'label,a,b\n0,"1,0\n', "columns="),
        ("t.csv", "0,0.5,0.5\n", "column names"),
        ("t.csv", "label,1,2\n1,.9,.1\n2,.2,.8\n1,.6,.4\n", [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]),
        ("t.csv", "n,prob_a,prob_b\n7,.9,.1\n2,.2,.8\n", [[0.9, 0.1], [0.2, 0.8]]),
        ("t", "", "cannot be read"),
        ("test.txt", "", "cannot be read"),
        ("test.txt", "x 0 0 1\n", "at least 2"),
        ("test.txt", f"{LINES}\nx3 0 0 1 0 0\n", "line 4"),
        ("test.txt", f"{LINES}x3 0 0 1 zero\n", "row 2"),
        ("t.json", '{"label": "a", "a": 0.5, "a": 0.1, "b": 0.5}', "twice"),
        ("t.json", '{"label": ["a", "b"], "a": [0.1, 1], "b": [0.9, 0]}', [[0.1, 0.9], [1, 0]]),
        ("t.json", '[[{"label": "a", "score": 1}, {"label": "b", "score": 0}]]', [[1, 0]]),
    ],
)
def test_numbers_rows_and_records(name: str, text: str, expected: Any, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    if isinstance(expected, str):
        refuses(TableError, read_table, path, names=[f"{name}: ", *expected.split(" or ")])
        return
    # The votes are thousands, so that one more in the prior changes little.
    shares = np.divide(expected, np.sum(expected, axis=1, keepdims=True))
    np.testing.assert_allclose(read_table(path).probs, shares, atol=1e-3)
