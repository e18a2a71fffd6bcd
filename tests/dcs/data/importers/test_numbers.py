"""Columns of text and Parquet, the published vectors, NumPy archives: what they may hold."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dcs.data.importers import import_file, import_tables
from dcs.data.table import Provenance
from dcs.errors import ConfigError, TableError
from tests.dcs.refusals import refuses

GOOD: dict[str, list[Any]] = {
    "id": ["a", "b", "c"],
    "label": [0, 1, 1],
    "p:no": [0.75, 0.5, 0.125],
    "p:yes": [0.25, 0.5, 0.875],
}
NAN = float("nan")


def save(form: str, folder: Path, header: bytes = b"", **changes: Any) -> Path:
    """Write good rows in a form, with some columns changed (None drops one)."""
    columns = {key: value for key, value in (GOOD | changes).items() if value is not None}
    path = folder / f"t.{form}"
    if form == "parquet":
        metadata = {"dcs": header} if header else None
        pq.write_table(pa.table(columns).replace_schema_metadata(metadata), path)
    else:
        pd.DataFrame(columns, dtype=object).to_csv(path, index=False)
    return path


@pytest.mark.parametrize("form", ["csv", "parquet"])
class TestColumns:
    @pytest.mark.parametrize("column", ["gold", "4"])
    def test_columns_by_name_or_number(self, form: str, column: str, tmp_path: Path) -> None:
        columns = {"key": [7, 8, 9], "n": GOOD["p:no"], "y": GOOD["p:yes"], "note": ["", "x", ","]}
        path = save(form, tmp_path, **dict.fromkeys(GOOD), **columns, gold=GOOD["label"])
        names = {"id_column": "key", "label_column": column, "class_columns": ["y", "1"]}
        table = import_file(form, path, **names)
        assert (table.classes, table.ids) == (("y", "n"), ("7", "8", "9"))
        assert table.probs[:, 0].tolist() == GOOD["p:yes"]
        with pytest.raises(TableError, match="y"):
            import_file(form, path, **names | {"class_columns": ["n", "y", "y"]})
        for absent in ("5", "0000000005", "9" * 5000):
            with pytest.raises(TableError, match="label-column"):
                import_file(form, path, **names | {"label_column": absent})

    @pytest.mark.parametrize(
        ("told", "classes", "labels"),
        [
            (["no", "yes", "yes"], None, [0, 1, 1]),
            (["NA", "None", "None"], ["NA", "None"], [0, 1, 1]),
            (["0", " 1", "1"], None, [0, 1, 1]),
            (["2", "1", "1"], ["2", "1"], [0, 1, 1]),  # Names go before numbers.
            (["no", "", "yes"], None, [0, -1, 1]),
            ([" 0", "-1", "1"], None, [0, -1, 1]),
            (["0", None, "1"], None, [0, -1, 1]),
            ([None] * 3, None, [-1] * 3),
            (None, None, [-1] * 3),
        ],
    )
    def test_labels(self, form: str, told: Any, classes: Any, labels: Any, tmp_path: Path) -> None:
        path = save(form, tmp_path, label=told)
        assert import_file(form, path, classes=classes).labels.tolist() == labels
        assert import_file(form, save(form, tmp_path, id=None)).ids == ("0", "1", "2")

    @pytest.mark.parametrize(
        ("changes", "word"),
        [
            ({"label": ["no", "yes", "maybe"]}, "row 2 (id 'c')"),
            ({"label": ["no", "1", "1"]}, "row 0 (id 'a')"),
            ({"label": ["0", "1", "2"]}, "row 2 (id 'c')"),
            ({"label": None, "Label": [0, 1, 1]}, "did you mean 'Label'"),
            ({"p:no": None}, "--class-columns"),
            ({"p:no": [0.75, 0.5, NAN]}, "row 2 (id 'c'), class 'no'"),
            ({"p:no": ["0.75", "high", "0"]}, "row 1 (id 'b'), class 'no'"),
        ],
    )
    def test_refused(self, form: str, changes: Any, word: str, tmp_path: Path) -> None:
        path = save(form, tmp_path, **changes)
        refuses(TableError, import_file, form, path, names=[f"{path}: ", word])


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_separators_and_byte_order_marks(separator: str, encoding: str, tmp_path: Path) -> None:
    lines = ["id label p:größer p:b", "01 0 0.5 0.5", "", "b 1 0.25 0.75", ""]
    text = "\r\n".join(lines).replace(" ", separator)
    (tmp_path / "t.csv").write_bytes(text.encode(encoding))
    table = import_file("csv", tmp_path / "t.csv")
    assert (table.classes, table.ids) == (("größer", "b"), ("01", "b"))
    assert table.labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    "content",
    [
        b"label,p:a,p:b\n0,1,0\n1,0\n",
        b"label,p:a,p:b\n0,1,0,0\n",
        b"label,p:a,p:b\n0,,1\n",
        b"label,p:a,p:a\n0,1,0\n",
        b'label,p:a,p:b\n0,"1,0\n',
        "label,p:a,p:b\n0,1,0\n".encode("utf-16"),
        b"0,0.5,0.5\n",
    ],
)
def test_text_that_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    refuses(TableError, import_file, "csv", tmp_path / "t.csv", names=["t.csv: "])


def test_types_of_parquet_columns(tmp_path: Path) -> None:
    labels = pa.array(["no", "yes", "yes"]).dictionary_encode()
    single = pa.array(GOOD["p:no"], pa.float32())
    path = save("parquet", tmp_path, label=labels, **{"p:no": single})
    assert import_file("parquet", path).labels.tolist() == [0, 1, 1]
    for changes in (
        {"p:no": [0.75, None, 0.5]},
        {"label": [0.0, 1.0, 1.0]},
        {"p:no": [[1], [1], [1]]},
        {"id": [0.5, 1.5, 2.5]},
    ):
        path = save("parquet", tmp_path, **changes)
        refuses(TableError, import_file, "parquet", path, names=["t.parquet: "])


LINES = "x1 0 1 0.25 0.75\nx2 1 1 0.5 0.5\n"


def vectors(root: Path, name: str = "trec_llama-2-13b_hf_shot5_seed3", **files: str) -> Path:
    path = root / name
    path.mkdir()
    for stem, text in files.items():
        (path / f"{stem}.txt").write_text(text)
    return path


class TestVectors:
    def test_one_table_each_with_the_provenance_that_the_name_tells(self, tmp_path: Path) -> None:
        path = vectors(tmp_path, opt=LINES, test="y 1 0 0.9 0.1\n")
        tables = import_tables("vectors", path)
        assert list(tables) == ["optimization", "test"]
        assert tables["test"].ids == ("y",)
        assert tables["test"].provenance == Provenance(
            model="llama-2-13b_hf",
            task="trec",
            shots=5,
            demonstration_seed=3,
            split="test",
            source="trec_llama-2-13b_hf_shot5_seed3/test.txt",
        )
        with pytest.raises(ConfigError, match="--part.*optimization, test"):
            import_file("vectors", path)
        assert import_file("vectors", path, part="test").provenance.split == "test"
        assert import_file("vectors", path / "opt.txt").provenance.split == "optimization"

    def test_other_names(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = vectors(tmp_path, "results", test=LINES)
        told = import_file("vectors", path).provenance
        assert told == Provenance(split="test", source="test.txt")
        monkeypatch.chdir(vectors(tmp_path, "sst5_m_shotN_seed0", opt=LINES))
        provenance = import_file("vectors", "opt.txt").provenance
        assert (provenance.task, provenance.shots) == ("sst5", "N")

    def test_rounded_numbers_and_names_as_labels(self, tmp_path: Path) -> None:
        path = vectors(tmp_path, test='"x no no 0.333 0.666\n')
        with pytest.raises(TableError):
            import_file("vectors", path, classes=["no", "yes"])
        table = import_file("vectors", path, classes=["no", "yes"], normalise=True)
        assert (table.ids, table.labels.tolist()) == (('"x',), [0])

    @pytest.mark.parametrize(
        ("text", "word"),
        [
            ("", "cannot be read"),
            ("x 0 0 1\n", "at least 2"),
            (LINES + "\nx3 0 0 1 0 0\n", "line 4"),
            (LINES + "x3 0 0 1 zero\n", "row 2 (id 'x3'), class 'class_1'"),
        ],
    )
    def test_lines_refused(self, text: str, word: str, tmp_path: Path) -> None:
        path = vectors(tmp_path, test=text)
        refuses(TableError, import_file, "vectors", path, names=["test.txt: ", word])


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
        table = import_file("npz", path)
        assert (table.classes, table.ids) == (("no", "yes"), ("7", "8"))
        assert table.labels.tolist() == [1, 0]
        path = saved(tmp_path, labels=["yes", "no"])
        with pytest.raises(TableError, match="--classes"):
            import_file("npz", path)
        assert import_file("npz", path, classes=["no", "yes"]).labels.tolist() == [1, 0]

    def test_logits_by_their_key(self, tmp_path: Path) -> None:
        logits = np.array([[0.0, -np.inf], [800.0, -800.0]])
        table = import_file("npz", saved(tmp_path, probs=None, logits=logits))
        np.testing.assert_array_equal(table.probs, [[1, 0], [1, 0]])

    @pytest.mark.parametrize(
        "changes",
        [
            {"probs": None, "logits": [[0, np.nan], [0, 0]]},
            {"probs": None, "logits": [[0, 0], [-np.inf, -np.inf]]},
            {"probs": None},
            {"logits": [[1, 2]]},
            *({key: np.array([print], dtype=object)} for key in (*ARRAYS, "classes", "ids")),
        ],
    )
    def test_refused(self, changes: dict[str, Any], tmp_path: Path) -> None:
        refuses(TableError, import_file, "npz", saved(tmp_path, **changes), names=["t.npz: "])

    def test_a_misspelt_array_is_not_suggested_as_its_own_correction(self, tmp_path: Path) -> None:
        with pytest.raises(TableError, match="'label'; .*'labels'"):
            import_file("npz", saved(tmp_path, labels=None, label=[0, 1]))

    def test_an_array_without_rows_and_columns_is_one_value(self, tmp_path: Path) -> None:
        with pytest.raises(TableError, match="1 class names"):
            import_file("npz", saved(tmp_path, classes="a"))
        path = saved(tmp_path, probs=np.array([[0.5, 0.5]]), labels=0)
        assert import_file("npz", path).labels.tolist() == [0]

    @pytest.mark.parametrize("key", ["probs", "labels", "ids", "classes"])
    def test_a_small_file_of_a_large_array(self, key: str, tmp_path: Path) -> None:
        path = saved(tmp_path, **{key: None})
        shape = (3 * 10**8, 2) if key == "probs" else (3 * 10**8,)
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        with zipfile.ZipFile(path, "a") as archive, archive.open(f"{key}.npy", "w") as member:
            np.lib.format.write_array_header_1_0(member, header)
        with pytest.raises(TableError, match="300000000 rows"):
            import_file("npz", path)

    def test_no_pickle_is_loaded(self, tmp_path: Path) -> None:
        path = tmp_path / "t.npz"
        path.write_bytes(pickle.dumps(Trap()))
        with pytest.raises(TableError):
            import_file("npz", path)
        with zipfile.ZipFile(saved(tmp_path, labels=None), "a") as archive:
            archive.writestr("labels", pickle.dumps(Trap()))
        with pytest.raises(TableError):
            import_file("npz", path)

    def test_an_index_names_classes_model_and_task(self, tmp_path: Path) -> None:
        entry = {"file": "t.npz", "classes": ["no", "yes"], "model": "m", "task": "t"}
        entries = [{"file": "other.npz", "task": "other"}, entry]
        (tmp_path / "index.json").write_text(json.dumps(entries))
        table = import_file("npz", saved(tmp_path))
        assert table.classes == ("no", "yes")
        assert (table.provenance.model, table.provenance.task) == ("m", "t")
        # The file itself and the options go before it.
        assert import_file("npz", saved(tmp_path, classes=["a", "b"])).classes == ("a", "b")
        table = import_file("npz", saved(tmp_path), classes=["x", "y"], model="n")
        assert (table.classes, table.provenance.model) == (("x", "y"), "n")

    @pytest.mark.parametrize("content", ["{", "{}", "[1]"])
    def test_an_index_of_something_else_is_no_matter(self, content: str, tmp_path: Path) -> None:
        (tmp_path / "index.json").write_text(content)
        assert import_file("npz", saved(tmp_path)).classes == ("class_0", "class_1")
