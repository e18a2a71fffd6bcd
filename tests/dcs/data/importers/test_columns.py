"""Named columns, in text and in Parquet: which column is what, and what it may hold."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dcs.data.importers import import_file
from dcs.data.table import ProbabilityTable
from dcs.errors import TableError

GOOD: dict[str, list[Any]] = {
    "id": ["a", "b", "c"],
    "label": [0, 1, 1],
    "p:no": [0.75, 0.5, 0.125],
    "p:yes": [0.25, 0.5, 0.875],
}


def save(form: str, folder: Path, columns: dict[str, list[Any]]) -> Path:
    path = folder / f"t.{form}"
    if form == "parquet":
        pq.write_table(pa.table(columns), path)
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
    return path


def change(**changes: Any) -> dict[str, list[Any]]:
    return {key: value for key, value in {**GOOD, **changes}.items() if value is not None}


@pytest.mark.parametrize("form", ["csv", "parquet"])
class TestBothForms:
    def test_default_names(self, form: str, tmp_path: Path) -> None:
        table = import_file(form, save(form, tmp_path, GOOD))
        assert table.classes == ("no", "yes")
        assert table.ids == ("a", "b", "c")
        assert table.probs[:, 1].tolist() == GOOD["p:yes"]

    def test_ids_may_be_left_out(self, form: str, tmp_path: Path) -> None:
        assert import_file(form, save(form, tmp_path, change(id=None))).ids == ("0", "1", "2")

    @pytest.mark.parametrize("column", ["gold", "4"])
    def test_columns_by_name_or_number(self, form: str, column: str, tmp_path: Path) -> None:
        columns = {"key": [7, 8, 9], "n": GOOD["p:no"], "y": GOOD["p:yes"], "note": ["", "x", ","]}
        path = save(form, tmp_path, {**columns, "gold": GOOD["label"]})
        table = import_file(
            form, path, id_column="key", label_column=column, class_columns=["y", "1"]
        )
        assert table.classes == ("y", "n")
        assert table.ids == ("7", "8", "9")
        assert table.probs[:, 0].tolist() == GOOD["p:yes"]

    def test_labels_as_names(self, form: str, tmp_path: Path) -> None:
        path = save(form, tmp_path, change(label=["no", "yes", "yes"]))
        assert import_file(form, path).labels.tolist() == [0, 1, 1]

    def test_labels_as_the_names_that_replace_the_columns(self, form: str, tmp_path: Path) -> None:
        path = save(form, tmp_path, change(label=["nein", "ja", "ja"]))
        table = import_file(form, path, classes=["nein", "ja"])
        assert table.labels.tolist() == [0, 1, 1]

    def test_labels_as_digits_in_texts(self, form: str, tmp_path: Path) -> None:
        path = save(form, tmp_path, change(label=["0", " 1", "1"]))
        assert import_file(form, path).labels.tolist() == [0, 1, 1]

    def test_names_that_are_digits_go_before_numbers(self, form: str, tmp_path: Path) -> None:
        columns = {"label": ["2", "1", "1"], "p:1": GOOD["p:no"], "p:2": GOOD["p:yes"]}
        assert import_file(form, save(form, tmp_path, columns)).labels.tolist() == [1, 0, 0]

    @pytest.mark.parametrize(
        ("labels", "words"),
        [
            (["no", "yes", "maybe"], r"row 2 \(id 'c'\): label 'maybe' is not one of"),
            (["0", "yes", "maybe"], r"row 2 \(id 'c'\): label 'maybe' is not one of"),
            (["no", "1", "1"], r"row 0 \(id 'a'\): label 'no' is not"),
            (["0", "1", "2"], r"row 2 \(id 'c'\): label '2' is not .* 0\.\.1"),
            (["0", "1", "-1"], r"row 2 \(id 'c'\): label '-1'"),
        ],
    )
    def test_labels_that_are_neither(
        self, form: str, labels: list[str], words: str, tmp_path: Path
    ) -> None:
        with pytest.raises(TableError, match=words):
            import_file(form, save(form, tmp_path, change(label=labels)))

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"label": None, "Label": [0, 1, 1]}, "no column 'label' .did you mean 'Label'"),
            ({"p:no": None}, r"1 column\(s\) of class probabilities.*--class-columns"),
            ({"id": ["a", "b", "a"]}, "rows 0 and 2 have the same id 'a'"),
            ({"p:no": [0.75, 0.5, float("nan")]}, r"row 2 \(id 'c'\), class 'no': value is nan"),
            ({"p:no": [0.75, 0.6, 0.125]}, r"row 1 \(id 'b'\): the 2 probabilities sum to 1\.1"),
            ({"p:no": ["0.75", "high", "0"]}, "'p:no'.*number"),
        ],
    )
    def test_refused(self, form: str, changes: dict[str, Any], words: str, tmp_path: Path) -> None:
        with pytest.raises(TableError, match=words):
            import_file(form, save(form, tmp_path, change(**changes)))

    def test_no_rows(self, form: str, tmp_path: Path) -> None:
        with pytest.raises(TableError, match="no rows|has type null"):
            import_file(form, save(form, tmp_path, {key: [] for key in GOOD}))

    def test_scores_are_normalised_on_demand(self, form: str, tmp_path: Path) -> None:
        path = save(form, tmp_path, {**GOOD, "p:no": [3, 1, 3], "p:yes": [1, 1, 1]})
        assert import_file(form, path, normalise=True).probs[:, 1].tolist() == [0.25, 0.5, 0.25]


class TestCsv:
    @pytest.mark.parametrize("separator", [",", ";", "\t"])
    @pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
    def test_separators_and_byte_order_marks(
        self, separator: str, encoding: str, tmp_path: Path
    ) -> None:
        lines = ["id label p:größer p:b", "a 0 0.5 0.5", "", "b 1 0.25 0.75", ""]
        text = "\r\n".join(lines).replace(" ", separator)
        (tmp_path / "t.csv").write_bytes(text.encode(encoding))
        table = import_file("csv", tmp_path / "t.csv")
        assert table.classes == ("größer", "b")
        assert table.labels.tolist() == [0, 1]

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b"label,p:a,p:b\n0,1,0\n1,0\n", "line 3 has 2 fields, the header line has 3"),
            (b"label,p:a,p:b\n0,,1\n", r"row 0 \(id '0'\), column 'p:a': value is ''"),
            (b"label,p:a,p:a\n0,1,0\n", "classes 0 and 1 have the same name 'a'"),
            (b"label,label,p:a,p:b\n0,1,0,1\n", "2 columns are named 'label'"),
            (b'label,p:a,p:b\n0,"1,0\n', "cannot be read as CSV"),
            (b"label,p:a,p:b\n0,1,0\0\n", "cannot be read as CSV|number is needed"),
            ("label,p:a,p:b\n0,1,0\n".encode("utf-16"), "not UTF-8"),
            ("label,p:\u00e9,p:b\n0,1,0\n".encode("latin-1"), "not UTF-8"),
            (b"\n\n", "empty file"),
            (b"0,0.5,0.5\n", "no column 'label'"),
        ],
    )
    def test_refused(self, content: bytes, words: str, tmp_path: Path) -> None:
        (tmp_path / "t.csv").write_bytes(content)
        with pytest.raises(TableError, match=words):
            import_file("csv", tmp_path / "t.csv")


class TestParquet:
    @pytest.mark.parametrize("name", ["p:a.b", "p:", "p:.", "p:a:b", "p:\n", "p:é"])
    def test_odd_names(self, name: str, tmp_path: Path) -> None:
        columns = {"label": GOOD["label"], name: GOOD["p:no"], "p:yes": GOOD["p:yes"]}
        path = save("parquet", tmp_path, columns)
        assert import_file("parquet", path, classes=["no", "yes"]).n_rows == 3

    def test_categories_and_single_precision(self, tmp_path: Path) -> None:
        columns: dict[str, Any] = {
            **GOOD,
            "label": pa.array(["no", "yes", "yes"]).dictionary_encode(),
            "p:no": pa.array(GOOD["p:no"], pa.float32()),
        }
        assert import_file("parquet", save("parquet", tmp_path, columns)).labels.tolist() == [
            0,
            1,
            1,
        ]

    def test_reads_what_a_table_writes(self, tmp_path: Path) -> None:
        table = import_file("csv", save("csv", tmp_path, GOOD))
        table.write(tmp_path / "t.parquet")
        assert import_file("parquet", tmp_path / "t.parquet").digest == table.digest
        assert ProbabilityTable.read(tmp_path / "t.parquet").digest == table.digest

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"label": ["no", None, "yes"]}, r"row 1 \(id '1'\): column 'label' has no value"),
            ({"p:no": [0.75, None, 0.5]}, r"row 1 \(id 'b'\): column 'p:no' has no value"),
            ({"label": [0.0, 1.0, 1.0]}, "'label' has type double; texts or integers"),
            ({"p:no": [[1], [1], [1]]}, "'p:no' has type list"),
            ({"id": [0.5, 1.5, 2.5]}, "'id' has type double"),
        ],
    )
    def test_refused(self, changes: dict[str, Any], words: str, tmp_path: Path) -> None:
        with pytest.raises(TableError, match=words):
            import_file("parquet", save("parquet", tmp_path, change(**changes)))

    def test_columns_of_one_name(self, tmp_path: Path) -> None:
        path = save("parquet", tmp_path, GOOD)
        names = ["id", "label", "p:no", "p:no"]
        pq.write_table(pq.read_table(path).rename_columns(names), path)
        with pytest.raises(TableError, match="two columns are named 'p:no'"):
            import_file("parquet", path)
