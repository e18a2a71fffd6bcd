"""The door to the importers, and what holds for every format."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dcs.data.importers import IMPORTERS, ImportOptions, format_names, import_file, import_tables
from dcs.errors import ConfigError, DCSError, TableError

PROBS = [[0.75, 0.25], [0.5, 0.5], [0.125, 0.875]]
LABELS = [0, 1, 1]
IDS = ["a", "b", "c"]


def write_npz(path: Path) -> None:
    np.savez(path, probs=PROBS, labels=LABELS, ids=IDS)


def write_csv(path: Path) -> None:
    rows = [f"{i},{label},{p[0]},{p[1]}" for i, label, p in zip(IDS, LABELS, PROBS, strict=True)]
    path.write_text("\n".join(["id,label,p:no,p:yes", *rows]))


def write_parquet(path: Path) -> None:
    probs = np.array(PROBS)
    pq.write_table(
        pa.table({"id": IDS, "label": LABELS, "p:no": probs[:, 0], "p:yes": probs[:, 1]}), path
    )


def write_vectors(path: Path) -> None:
    lines = [
        f"{i} {label} 0 {p[0]} {p[1]}" for i, label, p in zip(IDS, LABELS, PROBS, strict=True)
    ]
    path.write_text("\n".join(lines))


def write_lm_eval(path: Path) -> None:
    lines = [
        {
            "doc_id": i,
            "target": str(label),
            "filtered_resps": [[str(np.log(value)), "False"] for value in p],
        }
        for i, label, p in zip(IDS, LABELS, PROBS, strict=True)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))


WRITERS: dict[str, Callable[[Path], None]] = {
    "npz": write_npz,
    "csv": write_csv,
    "parquet": write_parquet,
    "vectors": write_vectors,
    "lm-eval": write_lm_eval,
}
SUFFIX = {"npz": ".npz", "csv": ".csv", "parquet": ".parquet", "vectors": ".txt"}

formats = pytest.mark.parametrize("name", format_names())


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

    def test_wrong_number_of_class_names(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(TableError, match="3 class names for 2 columns"):
            import_file(name, written(name, tmp_path), classes=["x", "y", "z"])

    def test_missing_file_and_folder(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(TableError, match="no such file"):
            import_file(name, tmp_path / "none")
        with pytest.raises(TableError, match="is a folder|holds neither"):
            import_file(name, tmp_path)

    def test_empty_file(self, name: str, tmp_path: Path) -> None:
        (tmp_path / "empty").touch()
        with pytest.raises(TableError, match="empty: "):
            import_file(name, tmp_path / "empty")

    def test_options_of_other_formats_are_refused(self, name: str, tmp_path: Path) -> None:
        heeded = {item.name: item.options for item in IMPORTERS}[name]
        others: dict[str, Any] = {
            "logits": True,
            "normalise": True,
            "label_column": "y",
            "filter": "none",
            "targets": "text",
        }
        for option, value in others.items():
            if option not in heeded:
                with pytest.raises(ConfigError, match=f"{name} has no option {option}"):
                    import_file(name, written(name, tmp_path), **{option: value})

    @settings(
        max_examples=40,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(
        content=st.binary(max_size=200)
        | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")),
        head=st.sampled_from([b"", b"PK\x03\x04", b"PK\x05\x06", b"PAR1", b"{", b"id,label\n"]),
    )
    def test_random_bytes(self, name: str, content: bytes, head: bytes, tmp_path: Path) -> None:
        path = tmp_path / "random"
        path.write_bytes(head + content)
        with pytest.raises(DCSError) as caught:
            import_file(name, path)
        assert "\n" not in str(caught.value)

    @settings(
        max_examples=60,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(data=st.data())
    def test_damaged_files(self, name: str, data: st.DataObject, tmp_path: Path) -> None:
        path = written(name, tmp_path)
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 3))):
            start = data.draw(st.integers(0, len(content)))
            length = data.draw(st.integers(0, 4))
            content[start : start + length] = data.draw(st.binary(max_size=4))
        path.write_bytes(content)
        try:
            table = import_file(name, path)
        except DCSError as error:
            assert "\n" not in str(error)
        else:
            np.testing.assert_allclose(table.probs.sum(axis=1), 1, atol=1e-9)


@pytest.mark.parametrize("name", ["npz", "csv", "parquet", "vectors"])
class TestLogits:
    def test_softmax(self, name: str, tmp_path: Path) -> None:
        table = import_file(name, written(name, tmp_path), logits=True)
        weights = np.exp(PROBS)
        np.testing.assert_allclose(table.probs, weights / weights.sum(axis=1, keepdims=True))


class TestDoor:
    def test_unknown_format(self) -> None:
        with pytest.raises(
            ConfigError, match=r"'npy' \(did you mean 'npz'\?\); allowed: npz, csv"
        ):
            import_file("npy", "x")

    def test_unknown_kind_of_targets(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="'maybe'; allowed: auto, index, text"):
            import_tables("lm-eval", tmp_path, ImportOptions(targets="maybe"))  # type: ignore[arg-type]

    def test_unknown_part(self, tmp_path: Path) -> None:
        path = written("npz", tmp_path)
        with pytest.raises(ConfigError, match="no part 'test'; parts here: 'all'"):
            import_file("npz", path, part="test")

    def test_a_text_is_no_list_of_names(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="classes is the text 'no,yes'"):
            import_file("npz", written("npz", tmp_path), classes="no,yes")

    def test_formats_load_when_used(self) -> None:
        code = (
            "import sys, dcs.data.importers\n"
            "loaded = [name for name in sys.modules if name.startswith('dcs.data.importers.')]\n"
            "assert loaded == ['dcs.data.importers.common'], loaded\n"
            "assert 'pyarrow' not in sys.modules\n"
        )
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
