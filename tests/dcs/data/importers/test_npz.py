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


def test_class_names_ids_and_labels_as_names(tmp_path: Path) -> None:
    path = saved(tmp_path, classes=["no", "yes"], ids=[7, 8], labels=["yes", "no"])
    table = import_file("npz", path)
    assert (table.classes, table.ids) == (("no", "yes"), ("7", "8"))
    assert table.labels.tolist() == [1, 0]
    path = saved(tmp_path, labels=["yes", "no"])
    with pytest.raises(TableError, match="--classes"):
        import_file("npz", path)
    assert import_file("npz", path, classes=["no", "yes"]).labels.tolist() == [1, 0]


def test_logits_by_their_key(tmp_path: Path) -> None:
    logits = np.array([[0.0, -np.inf], [800.0, -800.0]])
    table = import_file("npz", saved(tmp_path, probs=None, logits=logits))
    np.testing.assert_array_equal(table.probs, [[1, 0], [1, 0]])


@pytest.mark.parametrize(
    "changes",
    [
        {"probs": None, "logits": [[0, np.nan], [0, 0]]},
        {"probs": None, "logits": [[0, 0], [np.inf, 0]]},
        {"probs": None, "logits": [[0, 0], [-np.inf, -np.inf]]},
        {"probs": None},
        {"logits": [[1, 2]]},
        {"labels": None, "label": [0, 1]},
        {"labels": [0, 1, 1]},
        {"ids": [["a", "b"]]},
        *({key: np.array([print, None], dtype=object)} for key in GOOD | {"classes": 0, "ids": 0}),
    ],
)
def test_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"t\.npz: "):
        import_file("npz", saved(tmp_path, **changes))


class Trap:
    """Fails the test if it is ever unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return pytest.fail, ("unpickled",)


def test_no_pickle_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    path.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(TableError):
        import_file("npz", path)
    with zipfile.ZipFile(saved(tmp_path, labels=None), "a") as archive:
        archive.writestr("labels", pickle.dumps(Trap()))
    with pytest.raises(TableError):
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

    @pytest.mark.parametrize("content", ["{", "{}", "[1]", '[{"file": 1}]'])
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
