"""One contract: what goes in comes out, and nothing malformed gets in."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dcs.data.table import ProbabilityTable, Provenance
from dcs.errors import DCSError, TableError

quick = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

PROVENANCE = Provenance(
    model="tiny_lm",
    revision="abc",
    task="helpdesk",
    shots="N",
    demonstration_seed=3,
    split="test",
    prompt_hash="ff",
    scorer="transformers",
    scorer_version="1",
    source="a.npz",
)


def make(n_rows: int = 6, n_classes: int = 3, seed: int = 0, **options: Any) -> ProbabilityTable:
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.ones(n_classes), n_rows)
    return ProbabilityTable.from_arrays(probs, rng.integers(0, n_classes, n_rows), **options)


def written(path: Path, change: dict[str, Any] | None = None, *, header: bool = False) -> Path:
    """Write a small table by hand, with some columns changed (None drops one)."""
    columns: dict[str, Any] = {
        "id": ["a", "b", "c"],
        "label": pa.array([0, 1, 1]),
        "p:no": [0.5, 0.25, 1.0],
        "p:yes": [0.5, 0.75, 0.0],
    }
    columns.update(change or {})
    table = pa.table({key: value for key, value in columns.items() if value is not None})
    if header:
        fields = {
            "format": "dcs-probability-table",
            "version": 1,
            "classes": ["no", "yes"],
            "provenance": {},
        }
        table = table.replace_schema_metadata({"dcs": json.dumps(fields)})
    pq.write_table(table, path)
    return path


class TestRoundTrip:
    def test_everything_comes_back(self, tmp_path: Path) -> None:
        table = make(provenance=PROVENANCE, classes=["x", "y", "z"], ids=list("abcdef"))
        table.write(tmp_path / "t.parquet")
        back = ProbabilityTable.read(tmp_path / "t.parquet")
        np.testing.assert_array_equal(back.probs, table.probs)
        np.testing.assert_array_equal(back.labels, table.labels)
        assert (back.classes, back.ids) == (table.classes, table.ids)
        assert back.provenance == PROVENANCE
        assert back.digest == table.digest

    @quick
    @given(
        names=st.lists(
            st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip),
            min_size=2,
            max_size=6,
            unique=True,
        )
    )
    def test_any_class_names_and_ids(self, names: list[str], tmp_path: Path) -> None:
        table = make(len(names), len(names), classes=names, ids=names)
        table.write(tmp_path / "t.parquet")
        back = ProbabilityTable.read(tmp_path / "t.parquet")
        assert back.classes == back.ids == tuple(names)
        assert back.digest == table.digest

    @quick
    @given(
        scores=hnp.arrays(
            np.float64, (4, 3), elements=st.floats(0, 1.7e308, allow_subnormal=True)
        ).filter(lambda array: bool((array.max(axis=1) > 0).all()))
    )
    def test_normalised_rows_stay_bit_for_bit(
        self, scores: np.ndarray[Any, Any], tmp_path: Path
    ) -> None:
        table = ProbabilityTable.from_arrays(scores, [0, 1, 2, 0], normalise=True)
        np.testing.assert_allclose(table.probs.sum(axis=1), 1, atol=1e-12)
        assert (table.probs >= 0).all()
        table.write(tmp_path / "t.parquet")
        assert ProbabilityTable.read(tmp_path / "t.parquet").digest == table.digest
        again = ProbabilityTable.from_arrays(table.probs, table.labels)
        assert again.digest == table.digest

    def test_single_precision_is_accepted(self) -> None:
        probs = np.random.default_rng(0).dirichlet(np.ones(20), 200).astype(np.float32)
        table = ProbabilityTable.from_arrays(probs, np.zeros(200, np.int16))
        assert table.probs.dtype == np.float64
        assert table.labels.dtype == np.int64
        np.testing.assert_allclose(table.probs, probs, atol=1e-6)

    def test_equal_tables_have_equal_bytes(self, tmp_path: Path) -> None:
        for name in ("a", "b"):
            make(provenance=PROVENANCE).write(tmp_path / name)
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()

    def test_writing_replaces_and_leaves_nothing_else(self, tmp_path: Path) -> None:
        path = tmp_path / "deep" / "er" / "t.parquet"
        make(seed=1).write(path)
        make(seed=2).write(path)
        assert ProbabilityTable.read(path).digest == make(seed=2).digest
        assert os.listdir(path.parent) == ["t.parquet"]

    def test_pickles(self) -> None:
        table = make(provenance=PROVENANCE)
        back = pickle.loads(pickle.dumps(table))
        assert back.digest == table.digest
        assert back.provenance == PROVENANCE


class TestDigest:
    @pytest.mark.parametrize(
        "other",
        [
            make(seed=1),
            make(classes=["a", "b", "c"]),
            make(ids=range(1, 7)),
            make(7),
        ],
    )
    def test_content_changes_it(self, other: ProbabilityTable) -> None:
        assert other.digest != make().digest

    def test_provenance_does_not(self) -> None:
        assert make(provenance=PROVENANCE).digest == make().digest

    def test_is_stable_over_versions(self) -> None:
        table = ProbabilityTable.from_arrays([[0.25, 0.75], [1, 0]], [1, 0], classes=["é", "b"])
        assert table.digest == DIGEST

    def test_negative_zero_is_zero(self) -> None:
        one, other = (
            ProbabilityTable.from_arrays([[zero, 1.0]], [1]).digest for zero in (0.0, -0.0)
        )
        assert one == other


DIGEST = "b0d1c685b97fdb79eb4c0f248f65b0985ae3f3fdfa9968e52ed523ed3354596b"


class TestValue:
    def test_arrays_are_read_only_copies(self) -> None:
        probs, labels = np.full((3, 2), 0.5), np.array([0, 1, 0])
        table = ProbabilityTable.from_arrays(probs, labels)
        probs[:], labels[:] = 9, 9
        assert table.probs.max() == 0.5
        assert table.labels.max() == 1
        for array in (table.probs, table.labels):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0

    def test_the_constructor_checks_too(self) -> None:
        with pytest.raises(TableError, match="label 2"):
            ProbabilityTable(np.full((1, 2), 0.5), np.array([2]), ("a", "b"), ("0",))

    def test_defaults(self) -> None:
        table = make()
        assert table.classes == ("class_0", "class_1", "class_2")
        assert table.ids == ("0", "1", "2", "3", "4", "5")
        assert table.provenance == Provenance()
        assert (table.n_rows, table.n_classes) == (6, 3)

    def test_repr_is_short(self) -> None:
        assert len(repr(make(5000, 50, provenance=PROVENANCE))) < 500


class TestSubset:
    def test_rows_in_the_order_given(self) -> None:
        table = make(provenance=PROVENANCE)
        part = table.subset([4, 1], split="development")
        np.testing.assert_array_equal(part.probs, table.probs[[4, 1]])
        assert part.ids == ("4", "1")
        assert part.provenance.split == "development"
        assert part.provenance.model == "tiny_lm"

    def test_mask_is_the_same_as_its_rows(self) -> None:
        table = make()
        mask = np.array([True, False, True, False, False, True])
        assert table.subset(mask).digest == table.subset([0, 2, 5]).digest

    def test_all_rows_are_the_same_table(self) -> None:
        assert make().subset(np.arange(6)).digest == make().digest

    @pytest.mark.parametrize(
        ("rows", "words"),
        [
            ([], "non-empty"),
            ([6], r"row 6 .* 0\.\.5"),
            ([-1], r"row -1 .* 0\.\.5"),
            ([1, 1], "same id '1'"),
            ([0.5], "float64"),
            ([[0]], r"\(1, 1\)"),
            ([True], "bool"),
        ],
    )
    def test_refuses(self, rows: Any, words: str) -> None:
        with pytest.raises(TableError, match=words):
            make().subset(rows)


NAN, INF = float("nan"), float("inf")
CORRUPTIONS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "nan": ({"probs": [[NAN, 1], [0, 1]]}, ["row 0 (id 'i')", "'no'", "nan", "finite"]),
    "inf": ({"probs": [[1, 0], [0, INF]]}, ["row 1 (id 'j')", "'yes'", "inf", "finite"]),
    "negative": ({"probs": [[1.1, -0.1], [0, 1]]}, ["row 0 (id 'i')", "'yes'", "-0.1"]),
    "several": ({"probs": [[NAN, NAN], [NAN, 1]]}, ["row 0 (id 'i')", "2 more"]),
    "sum": ({"probs": [[1, 0], [0.5, 0.6]]}, ["row 1 (id 'j')", "sum to 1.1", "--normalise"]),
    "huge sum": ({"probs": [[1, 0], [1.5e308, 1.5e308]]}, ["sum to inf", "--normalise"]),
    "zero row": ({"probs": [[0, 0], [0, 1]]}, ["row 0 (id 'i')", "all 2 probabilities are 0"]),
    "label high": ({"labels": [0, 2]}, ["row 1 (id 'j')", "label 2", "0..1"]),
    "label negative": ({"labels": [-1, 0]}, ["row 0 (id 'i')", "label -1", "0..1"]),
    "label huge": (
        {"labels": np.array([2**64 - 1, 0], np.uint64)},
        ["label 18446744073709551615"],
    ),
    "label float": ({"labels": [0.0, 1.0]}, ["labels are of type float64", "0..1"]),
    "label text": ({"labels": ["no", "yes"]}, ["labels are texts", "0..1"]),
    "label missing": ({"labels": [None, 1]}, ["labels are Python objects"]),
    "labels too few": ({"labels": [0]}, ["1 labels for 2 rows"]),
    "labels two-dimensional": ({"labels": [[0, 1]]}, ["(1, 2)"]),
    "duplicate classes": ({"classes": ["a", "a"]}, ["classes 0 and 1", "'a'"]),
    "empty class": ({"classes": ["a", " "]}, ["class 1", "' '", "non-empty"]),
    "class not text": ({"classes": ["a", 1]}, ["class 1", "1"]),
    "class not unicode": ({"classes": ["a", "\ud800"]}, ["class 1", "Unicode"]),
    "class count": ({"classes": ["a"]}, ["1 class names for 2 columns"]),
    "classes one text": ({"classes": "ab"}, ["'ab'", "list"]),
    "duplicate ids": ({"ids": ["k", "k"]}, ["rows 0 and 1", "'k'"]),
    "id kind": ({"ids": ["k", 1.5]}, ["row 1", "1.5"]),
    "id missing": ({"ids": [None, "k"]}, ["row 0", "None"]),
    "id not unicode": ({"ids": ["\ud800", "k"]}, ["row 0", "Unicode"]),
    "id count": ({"ids": ["k"]}, ["1 ids for 2 rows"]),
    "one class": ({"probs": [[1], [1]]}, ["1 class", "at least 2"]),
    "no rows": ({"probs": np.empty((0, 2)), "labels": [], "ids": []}, ["no rows"]),
    "one dimension": ({"probs": [0.5, 0.5]}, ["(2,)", "[rows, classes]"]),
    "ragged": ({"probs": [[1, 0], [1]]}, ["probabilities are not one array"]),
    "text": ({"probs": [["a", "b"]] * 2}, ["probabilities are texts"]),
    "complex": ({"probs": [[1j, 0]] * 2}, ["complex128"]),
    "true and false": ({"probs": [[True, False]] * 2}, ["true/false"]),
    "objects": ({"probs": [[None, {}]] * 2}, ["Python objects"]),
}


class TestRefusals:
    @pytest.mark.parametrize("name", CORRUPTIONS)
    def test_one_line_that_names_it(self, name: str) -> None:
        change, words = CORRUPTIONS[name]
        good: dict[str, Any] = {
            "probs": [[1, 0], [0, 1]],
            "labels": [0, 1],
            "classes": ["no", "yes"],
            "ids": ["i", "j"],
        }
        with pytest.raises(TableError) as caught:
            ProbabilityTable.from_arrays(**{**good, **change}, source="my\nfile.npz")
        message = str(caught.value)
        assert message.startswith("my\\nfile.npz: ")
        assert "\n" not in message
        for word in words:
            assert word in message

    def test_normalising_does_not_hide_other_faults(self) -> None:
        for row in ([NAN, 1], [-1, 2], [0, 0], [INF, 1]):
            with pytest.raises(TableError, match="row 0"):
                ProbabilityTable.from_arrays([row], [0], normalise=True)

    def test_long_values_are_cut(self) -> None:
        with pytest.raises(TableError) as caught:
            ProbabilityTable.from_arrays([[0.5, 0.5]] * 2, [0, 1], ids=["x" * 9999] * 2)
        assert len(str(caught.value)) < 300

    @pytest.mark.parametrize(
        ("field", "value"),
        [("model", 1), ("shots", 1.5), ("demonstration_seed", "1"), ("task", True)],
    )
    def test_provenance_values(self, field: str, value: Any) -> None:
        with pytest.raises(TableError, match=f"{field} is {value!r}"):
            Provenance(**{field: value})

    def test_provenance_must_be_one(self) -> None:
        with pytest.raises(TableError, match="a Provenance is needed"):
            make(provenance={"model": "m"})


class TestHandMadeFiles:
    def test_column_order_and_extra_columns_do_not_matter(self, tmp_path: Path) -> None:
        path = written(tmp_path / "t.parquet")
        first = ProbabilityTable.read(path)
        table = pq.read_table(path).append_column("note", pa.array(["x", "y", "z"]))
        pq.write_table(table.select(["note", "p:no", "label", "p:yes", "id"]), path)
        assert ProbabilityTable.read(path).digest == first.digest

    def test_classes_keep_the_order_that_the_metadata_names(self, tmp_path: Path) -> None:
        path = tmp_path / "t.parquet"
        make(classes=["z", "y", "x"]).write(path)
        table = pq.read_table(path)
        pq.write_table(table.select(sorted(table.column_names)), path)
        assert ProbabilityTable.read(path).classes == ("z", "y", "x")

    def test_integer_ids_categories_and_single_precision(self, tmp_path: Path) -> None:
        change = {
            "id": pa.array(["a", "b", "c"]).dictionary_encode(),
            "label": pa.array([0, 1, 1], pa.uint8()),
            "p:no": pa.array([0.5, 0.25, 1.0], pa.float32()),
        }
        table = ProbabilityTable.read(written(tmp_path / "t.parquet", change))
        assert table.ids == ("a", "b", "c")
        assert ProbabilityTable.read(written(tmp_path / "t.parquet", {"id": [7, 8, 9]})).ids == (
            "7",
            "8",
            "9",
        )

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"id": None}, ["no column 'id'", "label and one"]),
            ({"label": None}, ["no column 'label'"]),
            ({"p:no": None, "p:yes": None}, ["no p:<class> column", "'id', 'label'"]),
            ({"p:no": None, "p:yes": [1.0, 1.0, 1.0]}, ["1 class", "at least 2"]),
            ({"label": pa.array([0, None, 1])}, ["row 1 (id 'b')", "'label'", "no value"]),
            ({"label": ["no", "yes", "no"]}, ["'label' has type string", "dcs import parquet"]),
            ({"label": [0.0, 1.0, 0.0]}, ["'label' has type double", "0..N-1"]),
            ({"label": [0, 1, 7]}, ["row 2 (id 'c')", "label 7", "0..1"]),
            ({"id": [0.5, 1.0, 2.0]}, ["'id' has type double"]),
            ({"id": ["a", None, "c"]}, ["row 1", "None"]),
            ({"id": ["a", "b", "a"]}, ["rows 0 and 2", "'a'"]),
            ({"p:no": ["a", "b", "c"]}, ["'p:no' has type string"]),
            ({"p:no": [[1.0], [1.0], [1.0]]}, ["'p:no' has type list"]),
            ({"p:no": [0.5, None, 1.0]}, ["row 1 (id 'b')", "'p:no'", "no value"]),
            ({"p:no": [0.5, 0.25, NAN]}, ["row 2 (id 'c')", "'no'", "nan"]),
            ({"p:no": [0.5, 0.35, 1.0]}, ["row 1 (id 'b')", "sum to 1.1"]),
            ({"p:": [0.5, 0.35, 1.0]}, ["class 2", "''", "non-empty"]),
        ],
    )
    def test_refused_with_names(
        self, change: dict[str, Any], words: list[str], tmp_path: Path
    ) -> None:
        path = written(tmp_path / "t.parquet", change)
        with pytest.raises(TableError) as caught:
            ProbabilityTable.read(path)
        message = str(caught.value)
        assert message.startswith(f"{path}: ")
        assert "\n" not in message
        for word in words:
            assert word in message

    def test_no_rows(self, tmp_path: Path) -> None:
        pq.write_table(pq.read_table(written(tmp_path / "t.parquet")).slice(0, 0), tmp_path / "e")
        with pytest.raises(TableError, match="no rows"):
            ProbabilityTable.read(tmp_path / "e")

    def test_duplicate_column_names(self, tmp_path: Path) -> None:
        table = pq.read_table(written(tmp_path / "t.parquet"))
        table = table.rename_columns(["id", "label", "p:no", "p:no"])
        pq.write_table(table, tmp_path / "t.parquet")
        with pytest.raises(TableError, match="2 columns are named 'p:no'"):
            ProbabilityTable.read(tmp_path / "t.parquet")

    @pytest.mark.parametrize(
        ("change", "words"),
        [({"p:no": None}, "no column 'p:no'"), ({"p:new": [0.0] * 3}, "'p:new' is of no class")],
    )
    def test_columns_that_do_not_fit_the_metadata(
        self, change: dict[str, Any], words: str, tmp_path: Path
    ) -> None:
        with pytest.raises(TableError, match=words):
            ProbabilityTable.read(written(tmp_path / "t.parquet", change, header=True))

    @pytest.mark.parametrize(
        ("header", "words"),
        [
            (b"{", "not JSON"),
            (b"\xff", "not JSON"),
            (b"[" * 100_000, "not JSON"),
            (b"[]", "file format is"),
            (b'{"format": "dcs-scheme"}', "'dcs-scheme'"),
            (b'{"version": 2}', "newer"),
            (b'{"version": "1"}', "version is '1'"),
            (b'{"classes": "no"}', "classes is 'no'"),
            (b'{"classes": [1, 2]}', "classes is"),
            (b'{"provenance": []}', "provenance is"),
            (b'{"provenance": {"modle": "x"}}', "'modle'"),
            (b'{"provenance": {"model": 1}}', "model is 1"),
        ],
    )
    def test_metadata(self, header: bytes, words: str, tmp_path: Path) -> None:
        if header.startswith(b'{"'):
            base = {"format": "dcs-probability-table", "version": 1, "classes": ["no", "yes"]}
            header = json.dumps({**base, **json.loads(header)}).encode()
        table = pq.read_table(written(tmp_path / "t.parquet"))
        pq.write_table(table.replace_schema_metadata({"dcs": header}), tmp_path / "t.parquet")
        with pytest.raises(TableError, match=words):
            ProbabilityTable.read(tmp_path / "t.parquet")


class TestFiles:
    def test_missing_folder_and_pipe(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "loop").symlink_to(tmp_path / "loop")
        for name, words in [
            ("none.parquet", "no such file"),
            ("", "is a folder"),
            ("pipe", "not a regular file"),
            ("loop", "cannot be read"),
            ("a\0b", "cannot be read"),
        ]:
            with pytest.raises(TableError, match=words):
                ProbabilityTable.read(tmp_path / name)

    def test_other_files_are_told_how_to_import(self, tmp_path: Path) -> None:
        path = tmp_path / "t.npz"
        np.savez(path, probs=np.eye(2), labels=np.arange(2))
        with pytest.raises(TableError, match="not a Parquet file; .*dcs import npz"):
            ProbabilityTable.read(path)

    def test_every_truncation_is_refused(self, tmp_path: Path) -> None:
        make(provenance=PROVENANCE).write(tmp_path / "t.parquet")
        data = (tmp_path / "t.parquet").read_bytes()
        cut = tmp_path / "cut.parquet"
        for size in range(0, len(data), 37):
            cut.write_bytes(data[:size])
            with pytest.raises(TableError, match=r"cut\.parquet: .*Parquet file"):
                ProbabilityTable.read(cut)

    @quick
    @given(data=st.data())
    def test_damage_is_refused_or_harmless(self, data: st.DataObject, tmp_path: Path) -> None:
        table = make(40, provenance=PROVENANCE)
        path = tmp_path / "t.parquet"
        table.write(path)
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(content)
        try:
            back = ProbabilityTable.read(path)
        except DCSError as error:
            assert "\n" not in str(error)
        else:
            assert np.isfinite(back.probs).all()

    @quick
    @given(content=st.binary(max_size=300), wrap=st.booleans())
    def test_random_bytes(self, content: bytes, wrap: bool, tmp_path: Path) -> None:
        path = tmp_path / "t.parquet"
        path.write_bytes(b"PAR1" + content + b"PAR1" if wrap else content)
        with pytest.raises(TableError):
            ProbabilityTable.read(path)

    def test_a_few_bytes_cannot_stand_for_a_huge_table(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from dcs.data import parquet as _table_parquet

        monkeypatch.setattr(_table_parquet, "memory_bound", lambda: 3 * 4 * 8 - 1)
        with pytest.raises(TableError, match="3 rows need"):
            ProbabilityTable.read(written(tmp_path / "t.parquet"))

    def test_unwritable_places(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        (tmp_path / "folder").mkdir()
        for path in (tmp_path / "file" / "t.parquet", tmp_path / "folder"):
            with pytest.raises(TableError, match="cannot be written"):
                make().write(path)
        assert sorted(os.listdir(tmp_path)) == ["file", "folder"]
