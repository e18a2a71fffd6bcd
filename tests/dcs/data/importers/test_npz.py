"""NumPy archives, with and without an index beside them."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dcs.data.importers import import_file
from dcs.errors import TableError

SHARED = Path(__file__).parents[4] / "../shared/data/probabilities"

GOOD: dict[str, Any] = {
    "probs": np.array([[0.75, 0.25], [0.5, 0.5]], np.float32),
    "labels": np.array([0, 1], np.int16),
}


def saved(folder: Path, **changes: Any) -> Path:
    arrays = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    np.savez(folder / "t.npz", **arrays)
    return folder / "t.npz"


def index(folder: Path, **entry: Any) -> None:
    entries = [{"file": "other.npz", "task": "other"}, {"file": "t.npz", **entry}]
    (folder / "index.json").write_text(json.dumps(entries))


class TestContent:
    def test_class_names_and_ids(self, tmp_path: Path) -> None:
        table = import_file("npz", saved(tmp_path, classes=["no", "yes"], ids=[7, 8]))
        assert table.classes == ("no", "yes")
        assert table.ids == ("7", "8")

    def test_labels_as_names(self, tmp_path: Path) -> None:
        path = saved(tmp_path, classes=["no", "yes"], labels=["yes", "no"])
        assert import_file("npz", path).labels.tolist() == [1, 0]

    def test_labels_as_names_need_class_names(self, tmp_path: Path) -> None:
        path = saved(tmp_path, labels=["yes", "no"])
        with pytest.raises(TableError, match=r"row 0 \(id '0'\): label 'yes' .*--classes"):
            import_file("npz", path)
        assert import_file("npz", path, classes=["no", "yes"]).labels.tolist() == [1, 0]

    def test_logits_by_their_key(self, tmp_path: Path) -> None:
        logits = np.array([[0.0, -np.inf], [800.0, -800.0]])
        table = import_file("npz", saved(tmp_path, probs=None, logits=logits))
        np.testing.assert_array_equal(table.probs, [[1, 0], [1, 0]])

    @pytest.mark.parametrize(
        ("logits", "words"),
        [
            ([[0, np.nan], [0, 0]], r"row 0 \(id '0'\), class 'class_1': value is nan"),
            ([[0, 0], [np.inf, 0]], r"row 1 \(id '1'\), class 'class_0': value is inf"),
            ([[0, 0], [-np.inf, -np.inf]], r"row 1 \(id '1'\): all 2 logits are -inf"),
        ],
    )
    def test_logits_that_are_none(self, logits: Any, words: str, tmp_path: Path) -> None:
        with pytest.raises(TableError, match=words):
            import_file("npz", saved(tmp_path, probs=None, logits=logits))

    def test_scores_are_normalised_on_demand(self, tmp_path: Path) -> None:
        path = saved(tmp_path, probs=[[3, 1], [1, 1]])
        with pytest.raises(TableError, match="sum to 4, not 1; use --normalise"):
            import_file("npz", path)
        table = import_file("npz", path, normalise=True)
        np.testing.assert_array_equal(table.probs, [[0.75, 0.25], [0.5, 0.5]])

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"probs": None}, "neither 'probs' nor 'logits'.*'labels'"),
            ({"logits": [[1, 2]]}, "both 'probs' and 'logits'"),
            ({"labels": None, "label": [0, 1]}, r"no 'labels'.*did you mean 'label'"),
            ({"labels": [0, 1, 1]}, "3 labels for 2 rows"),
            ({"labels": [[0], [1]]}, r"labels has shape \(2, 1\)"),
            ({"labels": [0.0, 1.0]}, "labels are of type float64"),
            ({"probs": [0.5, 0.5]}, r"shape \(2,\)"),
            ({"probs": [[[0.5, 0.5]]]}, r"shape \(1, 1, 2\)"),
            ({"probs": [[1.0], [1.0]]}, "1 class"),
            ({"ids": [["a", "b"]]}, r"'ids' has shape \(1, 2\)"),
            ({"ids": ["a", "a"]}, "rows 0 and 1 have the same id 'a'"),
            ({"classes": [1, 2]}, "class 0 has the name 1"),
            ({"classes": ["a", "b", "c"]}, "3 class names for 2 columns"),
        ],
    )
    def test_refused(self, changes: dict[str, Any], words: str, tmp_path: Path) -> None:
        with pytest.raises(TableError, match=rf"t\.npz: .*{words}"):
            import_file("npz", saved(tmp_path, **changes))


class TestNoPickle:
    @pytest.mark.parametrize("key", ["probs", "labels", "classes", "ids"])
    def test_objects(self, key: str, tmp_path: Path) -> None:
        path = saved(tmp_path, **{key: np.array([Trap(), None], dtype=object)})
        with pytest.raises(TableError, match=f"'{key}' holds Python objects"):
            import_file("npz", path)

    def test_a_pickle_by_another_name(self, tmp_path: Path) -> None:
        (tmp_path / "t.npz").write_bytes(pickle.dumps(Trap()))
        with pytest.raises(TableError, match="looks like a pickle, which is never loaded"):
            import_file("npz", tmp_path / "t.npz")

    def test_a_pickle_inside_the_archive(self, tmp_path: Path) -> None:
        path = saved(tmp_path, labels=None)
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("labels", pickle.dumps(Trap()))
        with pytest.raises(TableError, match="labels"):
            import_file("npz", path)


class Trap:
    """Fails the test if it is ever unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return pytest.fail, ("a pickle was loaded",)


class TestOtherFiles:
    def test_bare_array(self, tmp_path: Path) -> None:
        np.save(tmp_path / "t.npy", np.eye(2))
        with pytest.raises(TableError, match="one bare array"):
            import_file("npz", tmp_path / "t.npy")

    def test_cut_short(self, tmp_path: Path) -> None:
        path = saved(tmp_path)
        path.write_bytes(path.read_bytes()[:-30])
        with pytest.raises(TableError, match="damaged npz archive"):
            import_file("npz", path)

    def test_an_array_that_claims_to_be_huge(self, tmp_path: Path) -> None:
        path = saved(tmp_path, probs=None)
        header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000, 2), }"
        header = header.ljust(117) + b"\n"
        size = len(header).to_bytes(2, "little")
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("probs.npy", b"\x93NUMPY\x01\x00" + size + header)
        with pytest.raises(TableError, match="damaged npz archive"):
            import_file("npz", path)


class TestIndex:
    def test_names_classes_model_and_task(self, tmp_path: Path) -> None:
        index(tmp_path, classes=["no", "yes"], model="m", task="t", licence="MIT")
        table = import_file("npz", saved(tmp_path))
        assert table.classes == ("no", "yes")
        assert (table.provenance.model, table.provenance.task) == ("m", "t")

    def test_options_and_the_file_itself_go_before_it(self, tmp_path: Path) -> None:
        index(tmp_path, classes=["no", "yes"], model="m")
        assert import_file("npz", saved(tmp_path, classes=["a", "b"])).classes == ("a", "b")
        table = import_file("npz", saved(tmp_path), classes=["x", "y"], model="n")
        assert (table.classes, table.provenance.model) == (("x", "y"), "n")

    def test_classes_that_do_not_fit(self, tmp_path: Path) -> None:
        index(tmp_path, classes=["no", "yes", "maybe"])
        with pytest.raises(TableError, match=r"index\.json: classes of 't\.npz' .* 2 columns"):
            import_file("npz", saved(tmp_path))
        assert import_file("npz", saved(tmp_path), classes=["x", "y"]).n_classes == 2

    @pytest.mark.parametrize("content", ["", "{", "{}", "[1]", '[{"file": 1}]', "[" * 100_000])
    def test_an_index_of_something_else_is_no_matter(self, content: str, tmp_path: Path) -> None:
        (tmp_path / "index.json").write_text(content)
        assert import_file("npz", saved(tmp_path)).classes == ("class_0", "class_1")


@pytest.mark.skipif(not SHARED.is_dir(), reason="the development data is not here")
def test_all_development_files() -> None:
    for entry in json.loads((SHARED / "index.json").read_text()):
        table = import_file("npz", SHARED / entry["file"])
        assert (table.n_rows, table.n_classes) == (entry["M"], entry["N"])
        assert (table.provenance.model, table.provenance.task) == (entry["model"], entry["task"])
        if entry["classes"]:
            assert table.classes == tuple(entry["classes"])
        np.testing.assert_array_equal(np.bincount(table.labels), entry["class_counts"])
        hits = (table.probs.argmax(axis=1) == table.labels).mean()
        assert hits == pytest.approx(entry["acc"], abs=5e-4)
