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
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dcs.data.reader import read_table
from dcs.data.table import ProbabilityTable, Provenance
from dcs.data.values import to_shares
from dcs.errors import TableError
from tests.dcs.data.test_formats import save
from tests.dcs.refusals import refuses

quick = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

PROVENANCE = Provenance(model="m", task="t", shots="N", demonstration_seed=3, split="test")
NAN, INF = float("nan"), float("inf")


def make(n_rows: int = 6, n_classes: int = 3, seed: int = 0, **options: Any) -> ProbabilityTable:
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.ones(n_classes), n_rows)
    return ProbabilityTable.from_arrays(probs, rng.integers(0, n_classes, n_rows), **options)


def header(**change: Any) -> bytes:
    fields = {"format": "dcs-probability-table", "version": 1, "classes": ["no", "yes"]}
    return json.dumps({**fields, **change}).encode()


def test_a_small_file_of_very_many_rows(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    metadata = {"dcs": header(classes=["a", "b"])}
    schema = pa.schema([(name, pa.int8()) for name in ("id", "label", "p:a", "p:b")], metadata)
    group = pa.table([pa.nulls(2 * 10**6, pa.int8())] * 4, schema=schema)
    with pq.ParquetWriter(path, schema) as writer:
        for _ in range(17):
            writer.write_table(group)
    assert path.stat().st_size < 10**6
    for read in (ProbabilityTable.read, read_table):
        refuses(TableError, read, path, names=["34000000 rows"])


@st.composite
def tables(draw: st.DrawFn) -> ProbabilityTable:
    name = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)
    names = draw(st.lists(name, min_size=2, max_size=6, unique=True))
    shape, values = (len(names), len(names)), st.floats(0, 1.7e308, allow_subnormal=True)
    scores = draw(hnp.arrays(np.float64, shape, elements=values))
    assume(scores.max(axis=1).min() > 0)
    label = st.integers(-1, len(names) - 1)
    return ProbabilityTable.from_arrays(
        to_shares(scores, "scores"),
        draw(st.lists(label, min_size=len(names), max_size=len(names))),
        classes=names,
        ids=names,
        provenance=PROVENANCE,
    )


@quick
@given(table=tables())
def test_whatever_is_written_comes_back_bit_for_bit(
    table: ProbabilityTable, tmp_path: Path
) -> None:
    np.testing.assert_allclose(table.probs.sum(axis=1), 1, atol=1e-12)
    path = tmp_path / "deep" / "er" / "t.parquet"
    table.write(path)
    nulls = pq.read_table(path)["label"]
    gaps = [label if label >= 0 else None for label in table.labels.tolist()]
    assert nulls.to_pylist() == gaps
    same = [table.labels, *([gaps, np.array(gaps, float), nulls.to_pandas()] * (None in gaps))]
    parts = {"classes": table.classes, "ids": table.ids, "provenance": PROVENANCE}
    for back in (
        ProbabilityTable.read(path),
        pickle.loads(pickle.dumps(table)),
        *(ProbabilityTable.from_arrays(table.probs, labels, **parts) for labels in same),
    ):
        np.testing.assert_array_equal(back.probs, table.probs)
        np.testing.assert_array_equal(back.labels, table.labels)
        assert (back.classes, back.ids) == (table.classes, table.ids)
        assert back.provenance == PROVENANCE
        assert back.digest == table.digest
    assert table.labelled.tolist() == [gap is not None for gap in gaps]
    assert os.listdir(path.parent) == ["t.parquet"]


class TestValue:
    def test_the_digest_is_that_of_the_content(self) -> None:
        # A literal: cell keys depend on it, so that it must be stable over versions.
        table = ProbabilityTable.from_arrays([[0.25, 0.75], [1, 0]], [1, 0], classes=["é", "b"])
        assert table.digest == "b0d1c685b97fdb79eb4c0f248f65b0985ae3f3fdfa9968e52ed523ed3354596b"
        changes: list[dict[str, Any]] = [{"classes": ["a", "b", "c"]}, {"ids": range(1, 7)}]
        tables = (make(), make(seed=1), make(7), *(make(**each) for each in changes))
        assert len({other.digest for other in tables}) == 5
        # Row numbers stand in for ids.
        for same in (make(provenance=PROVENANCE), make(ids=map(str, range(6)))):
            assert same.digest == make().digest

    def test_arrays_are_read_only_copies(self) -> None:
        probs, labels = np.full((3, 2), 0.5), np.array([0, 1, 0])
        table = ProbabilityTable.from_arrays(probs, labels)
        probs[:], labels[:] = 9, 9
        assert table.probs.max() == 0.5
        assert table.labels.max() == 1
        assert not (table.probs.flags.writeable or table.labels.flags.writeable)

    def test_subsets(self) -> None:
        table = make(provenance=PROVENANCE)
        part = table.subset([4, 1], split="development")
        np.testing.assert_array_equal(part.probs, table.probs[[4, 1]])
        assert part.ids == ("4", "1")
        assert (part.provenance.split, part.provenance.model) == ("development", "m")
        mask = np.array([True, False, True, False, False, True])
        assert table.subset(mask).digest == table.subset([0, 2, 5]).digest
        assert table.subset(np.arange(6)).digest == table.digest
        for wrong in (np.arange(0), [1, 1], [-1], [6], [0.5], mask[:3]):
            refuses(TableError, table.subset, wrong)


#: What is changed in a good table, and what the message names besides the file.
CORRUPTIONS: list[tuple[dict[str, Any], list[str]]] = [
    ({"probs": [[NAN, 1], [0, 1]]}, ["row 0 (id 'i')", "'no'", "nan"]),
    ({"probs": [[1, 0], [0, INF]]}, ["row 1 (id 'j')", "'yes'", "inf"]),
    ({"probs": [[1.1, -0.1], [0, 1]]}, ["row 0 (id 'i')", "'yes'", "-0.1"]),
    ({"probs": [[1, 0], [0.5, 0.6]]}, ["row 1 (id 'j')", "1.1"]),
    ({"probs": [[0, 0], [0, 1]]}, ["row 0 (id 'i')"]),
    ({"probs": [[1], [1]]}, ["(2, 1)"]),
    ({"probs": np.empty((0, 2)), "labels": [], "ids": []}, ["(0, 2)"]),
    ({"labels": [0, 2]}, ["row 1 (id 'j')", "2", "0..1"]),
    ({"labels": [-2, 0]}, ["row 0 (id 'i')", "-2", "0..1"]),
    ({"labels": [None, 0.5]}, ["labels"]),
    ({"classes": ["a", "a"]}, ["classes 0 and 1", "'a'"]),
    ({"classes": ["a", " "]}, ["class 1", "' '"]),
    ({"classes": ["a"]}, ["'a'", "2"]),
    ({"ids": ["k", "k"]}, ["rows 0 and 1", "'k'"]),
    ({"ids": [None, "k"]}, ["row 0", "None"]),
    ({"groups": [0, 1, 1]}, ["groups", "2 rows"]),
]


@pytest.mark.parametrize(("change", "words"), CORRUPTIONS)
def test_what_is_wrong_is_named(change: dict[str, Any], words: list[str]) -> None:
    good: dict[str, Any] = {"probs": [[1, 0], [0, 1]], "labels": [0, 1], "source": "my\nfile.npz"}
    good |= {"classes": ["no", "yes"], "ids": ["i", "j"], **change}
    refuses(TableError, ProbabilityTable.from_arrays, names=["my\\nfile.npz: ", *words], **good)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"header": b""}, "read_table"),
        ({"p:no": [0.5, None, 1.0]}, "row 1 (id 'b')"),
        ({"p:no": ["a", "b", "c"]}, "could not convert"),
        ({"p:no": None}, "p:no"),
        ({"label": None}, "label"),
        ({"header": header(format="dcs-scheme")}, "'dcs-scheme'"),
        ({"header": header(version=2)}, "version"),
    ],
)
def test_files_that_are_refused(change: Any, word: str, tmp_path: Path) -> None:
    path = save(tmp_path, **{"header": header(), **change})
    refuses(TableError, ProbabilityTable.read, path, names=[f"{path}: ", word])


class TestFiles:
    def test_what_is_no_file(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        for name in ("none.parquet", "", "pipe", "a\0b"):
            refuses(TableError, ProbabilityTable.read, tmp_path / name)

    def test_unwritable_places(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        (tmp_path / "folder").mkdir()
        for path in (tmp_path / "file" / "t.parquet", tmp_path / "folder"):
            refuses(TableError, make().write, path)
        assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


class TestCounts:
    def test_become_smoothed_probabilities(self) -> None:
        votes = [[19, 1, 0], [0, 0, 0], [3, 3, 14]]
        table = ProbabilityTable.from_counts(votes, [0, 1, 2], classes=["a", "b", "c"])
        np.testing.assert_allclose(table.probs[0], np.array([19 + 1 / 3, 1 + 1 / 3, 1 / 3]) / 21)
        np.testing.assert_allclose(table.probs[1], 1 / 3)
        some = ProbabilityTable.from_arrays(table.probs, [0, -1, 2], classes=["a", "b", "c"])
        assert some.with_classes(["c", "a", "b"]).labels.tolist() == [1, -1, 0]
        assert some.sample == some.row_hashes()

    @pytest.mark.parametrize("wrong", [-1, 0.5, NAN, INF, 2.0**60])
    def test_are_whole_numbers(self, wrong: float) -> None:
        votes = [[1, 2], [3, wrong]]
        refuses(TableError, ProbabilityTable.from_counts, votes, None, names=["row 1"])
