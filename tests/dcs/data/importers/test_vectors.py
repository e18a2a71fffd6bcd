"""The published vectors: lines of text in a folder whose name tells where they came from."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcs.data.importers import ImportOptions, import_file, import_tables
from dcs.data.table import Provenance
from dcs.errors import ConfigError, TableError

LINES = "x1 0 1 0.25 0.75\nx2 1 1 0.5 0.5\n"


def folder(root: Path, name: str = "trec_llama-2-13b_hf_shot5_seed3", **files: str) -> Path:
    path = root / name
    path.mkdir()
    for stem, text in files.items():
        (path / f"{stem}.txt").write_text(text)
    return path


class TestFolder:
    def test_one_table_each(self, tmp_path: Path) -> None:
        tables = import_tables("vectors", folder(tmp_path, opt=LINES, test="y 1 0 0.9 0.1\n"))
        assert list(tables) == ["optimization", "test"]
        assert tables["optimization"].probs.tolist() == [[0.25, 0.75], [0.5, 0.5]]
        assert tables["optimization"].labels.tolist() == [0, 1]
        assert tables["test"].ids == ("y",)

    def test_its_name_is_the_provenance(self, tmp_path: Path) -> None:
        tables = import_tables("vectors", folder(tmp_path, opt=LINES, test=LINES))
        assert tables["test"].provenance == Provenance(
            model="llama-2-13b_hf",
            task="trec",
            shots=5,
            demonstration_seed=3,
            split="test",
            source="trec_llama-2-13b_hf_shot5_seed3/test.txt",
        )

    def test_one_demonstration_per_class(self, tmp_path: Path) -> None:
        path = folder(tmp_path, "sst5_m_shotN_seed0", test=LINES)
        assert import_file("vectors", path).provenance.shots == "N"

    def test_another_name_tells_nothing(self, tmp_path: Path) -> None:
        path = folder(tmp_path, "results", test=LINES)
        assert import_file("vectors", path).provenance == Provenance(
            split="test", source="test.txt"
        )

    def test_a_part_must_be_chosen_for_one_table(self, tmp_path: Path) -> None:
        path = folder(tmp_path, opt=LINES, test=LINES)
        with pytest.raises(ConfigError, match="'optimization', 'test'.*--part"):
            import_file("vectors", path)
        assert import_file("vectors", path, part="test").provenance.split == "test"
        assert import_file("vectors", path / "opt.txt").provenance.split == "optimization"

    def test_a_file_from_inside_its_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(folder(tmp_path, opt=LINES))
        assert import_file("vectors", "opt.txt").provenance.task == "trec"

    def test_refused(self, tmp_path: Path) -> None:
        path = folder(tmp_path, notes=LINES)
        with pytest.raises(TableError, match="neither opt.txt nor test.txt"):
            import_file("vectors", path)
        (path / "opt.txt").write_text(LINES)
        (path / "test.txt").write_text("x 0 0 1 0 0\n")
        with pytest.raises(TableError, match=r"opt\.txt 2, test\.txt 3"):
            import_tables("vectors", path)


class TestLines:
    def test_labels_as_names(self, tmp_path: Path) -> None:
        path = folder(
            tmp_path, test=LINES.replace(" 0 1 ", " no yes ").replace(" 1 1 ", " yes a ")
        )
        with pytest.raises(TableError, match="label 'no' .*--classes"):
            import_file("vectors", path)
        assert import_file("vectors", path, classes=["no", "yes"]).labels.tolist() == [0, 1]

    def test_rounded_numbers_are_normalised_on_demand(self, tmp_path: Path) -> None:
        path = folder(tmp_path, test="x 0 0 0.333 0.666\n")
        with pytest.raises(TableError, match=r"row 0 \(id 'x'\): .* sum to 0\.999"):
            import_file("vectors", path)
        options = ImportOptions(normalise=True)
        assert import_tables("vectors", path, options)["test"].probs.sum() == pytest.approx(1)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "no lines"),
            ("x 0 0 1\n", "line 1 has 4 fields"),
            (LINES + "\nx3 0 0 1 0 0\n", "line 4 has 3 probabilities, .* have 2"),
            (LINES + "x3 0 0 1 zero\n", "line 3: p_1 is 'zero'"),
            (LINES + "x3 0 0 nan 0\n", r"row 2 \(id 'x3'\), class 'class_0': value is nan"),
            (LINES + "x3 2 0 1 0\n", r"row 2 \(id 'x3'\): label '2'"),
            (LINES + "x1 0 0 1 0\n", "rows 0 and 2 have the same id 'x1'"),
        ],
    )
    def test_refused(self, text: str, words: str, tmp_path: Path) -> None:
        with pytest.raises(TableError, match=rf"test\.txt: .*{words}"):
            import_file("vectors", folder(tmp_path, test=text))
