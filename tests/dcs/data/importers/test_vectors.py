"""The published vectors: lines of text in a folder whose name tells where they came from."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcs.data.importers import import_file, import_tables
from dcs.data.table import Provenance
from dcs.errors import ConfigError, TableError

LINES = "x1 0 1 0.25 0.75\nx2 1 1 0.5 0.5\n"


def folder(root: Path, name: str = "trec_llama-2-13b_hf_shot5_seed3", **files: str) -> Path:
    path = root / name
    path.mkdir()
    for stem, text in files.items():
        (path / f"{stem}.txt").write_text(text)
    return path


def test_one_table_each_with_the_provenance_that_the_name_tells(tmp_path: Path) -> None:
    path = folder(tmp_path, opt=LINES, test="y 1 0 0.9 0.1\n")
    tables = import_tables("vectors", path)
    assert list(tables) == ["optimization", "test"]
    assert tables["optimization"].probs.tolist() == [[0.25, 0.75], [0.5, 0.5]]
    assert tables["optimization"].labels.tolist() == [0, 1]
    assert tables["test"].ids == ("y",)
    assert tables["test"].provenance == Provenance(
        model="llama-2-13b_hf",
        task="trec",
        shots=5,
        demonstration_seed=3,
        split="test",
        source="trec_llama-2-13b_hf_shot5_seed3/test.txt",
    )
    with pytest.raises(ConfigError, match="'optimization', 'test'.*--part"):
        import_file("vectors", path)
    assert import_file("vectors", path, part="test").provenance.split == "test"
    assert import_file("vectors", path / "opt.txt").provenance.split == "optimization"


def test_other_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder(tmp_path, "results", test=LINES)
    assert import_file("vectors", path).provenance == Provenance(split="test", source="test.txt")
    monkeypatch.chdir(folder(tmp_path, "sst5_m_shotN_seed0", opt=LINES))
    provenance = import_file("vectors", "opt.txt").provenance
    assert (provenance.task, provenance.shots) == ("sst5", "N")


def test_folders_refused(tmp_path: Path) -> None:
    path = folder(tmp_path, notes=LINES)
    with pytest.raises(TableError):
        import_file("vectors", path)
    (path / "opt.txt").write_text(LINES)
    (path / "test.txt").write_text("x 0 0 1 0 0\n")
    with pytest.raises(TableError, match="optimization 2, test 3"):
        import_tables("vectors", path)


def test_rounded_numbers_and_names_as_labels(tmp_path: Path) -> None:
    path = folder(tmp_path, test='"x no no 0.333 0.666\n')
    with pytest.raises(TableError):
        import_file("vectors", path, classes=["no", "yes"])
    table = import_file("vectors", path, classes=["no", "yes"], normalise=True)
    assert (table.ids, table.labels.tolist()) == (('"x',), [0])


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "test.txt"),
        ("x 0 0 1\n", "4 fields"),
        (LINES + "\nx3 0 0 1 0 0\n", "line 4"),
        (LINES + "x3 0 0 1 zero\n", "row 2 (id 'x3'), column 'p_1'"),
        (LINES + "x3 0 0 nan 0\n", "row 2 (id 'x3'), class 'class_0'"),
    ],
)
def test_lines_refused(text: str, word: str, tmp_path: Path) -> None:
    with pytest.raises(TableError) as caught:
        import_file("vectors", folder(tmp_path, test=text))
    assert "test.txt: " in str(caught.value)
    assert word in str(caught.value)
