"""Named columns, in text and in Parquet: which column is what, and what it may hold."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dcs.data.importers import import_file
from dcs.errors import TableError

GOOD: dict[str, list[Any]] = {
    "id": ["a", "b", "c"],
    "label": [0, 1, 1],
    "p:no": [0.75, 0.5, 0.125],
    "p:yes": [0.25, 0.5, 0.875],
}
NAN = float("nan")


def save(form: str, folder: Path, **changes: Any) -> Path:
    columns = {key: value for key, value in (GOOD | changes).items() if value is not None}
    path = folder / f"t.{form}"
    if form == "parquet":
        pq.write_table(pa.table(columns), path)
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
    return path


@pytest.mark.parametrize("form", ["csv", "parquet"])
class TestBothForms:
    def test_ids_may_be_left_out(self, form: str, tmp_path: Path) -> None:
        assert import_file(form, save(form, tmp_path, id=None)).ids == ("0", "1", "2")

    @pytest.mark.parametrize("column", ["gold", "4"])
    def test_columns_by_name_or_number(self, form: str, column: str, tmp_path: Path) -> None:
        columns = {"key": [7, 8, 9], "n": GOOD["p:no"], "y": GOOD["p:yes"], "note": ["", "x", ","]}
        path = save(form, tmp_path, **dict.fromkeys(GOOD), **columns, gold=GOOD["label"])
        names = {"id_column": "key", "label_column": column, "class_columns": ["y", "1"]}
        table = import_file(form, path, **names)
        assert table.classes == ("y", "n")
        assert table.ids == ("7", "8", "9")
        assert table.probs[:, 0].tolist() == GOOD["p:yes"]

    @pytest.mark.parametrize(
        ("labels", "classes"),
        [
            (["no", "yes", "yes"], None),
            (["nein", "ja", "ja"], ["nein", "ja"]),
            (["0", " 1", "1"], None),
            (["2", "1", "1"], ["2", "1"]),  # Names go before numbers.
        ],
    )
    def test_labels_as_texts(
        self, form: str, labels: list[str], classes: list[str] | None, tmp_path: Path
    ) -> None:
        path = save(form, tmp_path, label=labels)
        assert import_file(form, path, classes=classes).labels.tolist() == [0, 1, 1]

    @pytest.mark.parametrize(
        ("changes", "word"),
        [
            ({"label": ["no", "yes", "maybe"]}, "row 2 (id 'c')"),
            ({"label": ["no", "1", "1"]}, "row 0 (id 'a')"),
            ({"label": ["0", "1", "2"]}, "row 2 (id 'c')"),
            ({"label": None, "Label": [0, 1, 1]}, "did you mean 'Label'"),
            ({"p:no": None}, "--class-columns"),
            ({"p:no": [0.75, 0.5, NAN]}, "row 2 (id 'c'), class 'no'"),
            ({"p:no": ["0.75", "high", "0"]}, "row 1 (id 'b'), column 'p:no'"),
            ({key: [] for key in GOOD}, "t."),
        ],
    )
    def test_refused(self, form: str, changes: Any, word: str, tmp_path: Path) -> None:
        path = save(form, tmp_path, **changes)
        with pytest.raises(TableError) as caught:
            import_file(form, path)
        assert str(caught.value).startswith(f"{path}: ")
        assert word in str(caught.value)

    def test_scores_are_normalised_on_demand(self, form: str, tmp_path: Path) -> None:
        path = save(form, tmp_path, **{"p:no": [3, 1, 3], "p:yes": [1, 1, 1]})
        assert import_file(form, path, normalise=True).probs[:, 1].tolist() == [0.25, 0.5, 0.25]


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
    with pytest.raises(TableError, match=r"t\.csv: "):
        import_file("csv", tmp_path / "t.csv")


def test_categories_and_single_precision(tmp_path: Path) -> None:
    labels = pa.array(["no", "yes", "yes"]).dictionary_encode()
    path = save(
        "parquet", tmp_path, label=labels, **{"p:no": pa.array(GOOD["p:no"], pa.float32())}
    )
    assert import_file("parquet", path).labels.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    "changes",
    [
        {"label": ["no", None, "yes"]},
        {"p:no": [0.75, None, 0.5]},
        {"label": [0.0, 1.0, 1.0]},
        {"p:no": [[1], [1], [1]]},
        {"id": [0.5, 1.5, 2.5]},
    ],
)
def test_types_that_are_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"t\.parquet: "):
        import_file("parquet", save("parquet", tmp_path, **changes))
