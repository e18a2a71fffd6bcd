"""Which model a name means, and loading it: folders, the hub, devices, and what is missing."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from dcs.errors import DCSError, MissingDependencyError, ScoringError
from dcs.scoring import load_scorer, resolve_model
from dcs.scoring.models import load_tokenizer
from tests.dcs.refusals import refuses


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(resolve_model("tiny_lm").location, tmp_path / "copy"))


def change_weights(folder: Path) -> None:
    with (folder / "model.safetensors").open("r+b") as weights:
        weights.seek(-1, os.SEEK_END)
        weights.write(b"\xbf")  # Turns the sign of the last one.


class TestNames:
    def test_revision_is_that_of_the_content(self, folder: Path) -> None:
        found = resolve_model(folder)
        assert found.revision == resolve_model("tiny_lm").revision
        (folder / "notes.md").write_text("no matter")
        assert resolve_model(folder).revision == found.revision
        change_weights(folder)
        assert resolve_model(folder).revision != found.revision

    def test_large_files_are_known_by_samples_from_all_of_them(self, folder: Path) -> None:
        found = set()
        for place in (0, 2**26, 2**27 - 2**22):
            with (folder / "model.safetensors").open("wb") as weights:
                weights.truncate(2**27)
                weights.seek(place)
                weights.write(b"1" * 2**22)
            found.add(resolve_model(folder).revision)
        assert len(found) == 3

    def test_hub_ids_are_not_looked_at_before_loading(self) -> None:
        found = resolve_model("owner/name@refs/pr/7")
        assert (found.location, found.version, found.revision) == ("owner/name", "refs/pr/7", None)


class TestLoading:
    @pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer.json"])
    def test_incomplete_or_damaged_model_folder(self, folder: Path, missing: str) -> None:
        (folder / missing).unlink()
        refuses(ScoringError, load_scorer, folder, names=[folder, "save_pretrained"])
        (folder / missing).write_bytes(b"neither JSON nor tensors")
        refuses(ScoringError, load_scorer, folder, names=[folder])

    NAMES = ("tiny_ml", "owner/name@", "owner/name@a b", "owner/name@/x", "a@b", "no/such/dir")

    @pytest.mark.parametrize(
        ("named", "options"),
        [
            *((name, {"model": name}) for name in NAMES),
            ("'transformers'", {"engine": "transformer"}),
            ("'label_rule'", {"lable_rule": "joint"}),
            ("'dtype'", {"dtype": "int64"}),
            ("cuda:97", {"device": "cuda:97"}),
            ("abacus", {"device": "abacus"}),
        ],
    )
    def test_other_names_and_options(self, named: str, options: dict[str, str]) -> None:
        refuses(DCSError, load_scorer, **{"model": "tiny_lm"} | options, names=[named])

    def test_missing_libraries(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for engine, library, extra in (("transformers", "torch", "models"), ("vllm",) * 3):
            monkeypatch.setitem(sys.modules, library, None)
            names = [f"pip install 'dcs-debias[{extra}]'"]
            refuses(MissingDependencyError, load_scorer, "tiny_lm", engine=engine, names=names)


def test_a_fetched_model_is_used_at_the_revision_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models as the hub's library keeps them on disk, without a network."""
    hub = pytest.importorskip("huggingface_hub")
    main, other = "0123456789abcdef0123456789abcdef01234567", "f" * 40
    folder = tmp_path / "models--owner--name"
    (folder / "refs").mkdir(parents=True)
    for commit, name in ((main, "main"), (other, "v2.0")):
        shutil.copytree(resolve_model("tiny_lm").location, folder / "snapshots" / commit)
        (folder / "refs" / name).write_text(commit)
    change_weights(folder / "snapshots" / other)
    # The library reads HF_HUB_CACHE when it is imported.
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    found = []
    for name, revision in (("", main), ("@v2.0", other), (f"@{main}", main)):
        scorer = load_scorer(f"owner/name{name}", device="cpu")
        assert load_tokenizer(f"owner/name{name}").encode(["a"])
        assert (scorer.model, scorer.revision) == (f"owner/name{name}", revision)
        found.append(scorer.score("", ["Text: a\nLabel:"], ("good", "bad"))[0, 0])
    assert found[0] == found[2] != found[1]
    names = ["'owner/name@v9'", "HF_HUB_OFFLINE"]
    refuses(ScoringError, load_scorer, "owner/name@v9", device="cpu", names=names)
