"""Which model a name means, and loading it: folders, the hub, devices, and what is missing."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
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

    @pytest.mark.parametrize(
        "name", ["tiny_ml", "owner/name@", "owner/name@a b", "owner/name@/x", "a@b", "no/such/dir"]
    )
    def test_other_names(self, name: str) -> None:
        refuses(ScoringError, load_scorer, name, names=[name])

    @pytest.mark.parametrize(
        ("named", "options"),
        [
            ("'transformers'", {"engine": "transformer"}),
            ("'label_rule'", {"lable_rule": "joint"}),
            ("'joint'", {"label_rule": "jiont"}),
            ("'float13'", {"dtype": "float13"}),
            ("dtype 'int64'", {"dtype": "int64"}),
            ("cuda:97", {"device": "cuda:97"}),
            ("abacus", {"device": "abacus"}),
        ],
    )
    def test_other_options(self, named: str, options: dict[str, str]) -> None:
        refuses(DCSError, load_scorer, "tiny_lm", **options, names=[named])

    def test_missing_torch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "torch", None)
        refuses(MissingDependencyError, load_scorer, "tiny_lm", names=["dcs-debias[models]"])


def load_each(names: list[str]) -> list[object]:
    told: list[object] = []
    for name in names:
        try:
            scorer = load_scorer(name, device="cpu")
            assert load_tokenizer(name).encode(["a"])
            probs = scorer.score("", ["Text: a\nLabel:"], ("good", "bad"))
            told.append((scorer.model, scorer.revision, probs[0, 0]))
        except ScoringError as error:
            told.append(str(error))
    return told


def test_a_fetched_model_is_used_at_the_revision_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models as the hub's library keeps them on disk, without a network."""
    main, other = "0123456789abcdef0123456789abcdef01234567", "f" * 40
    folder = tmp_path / "hub/models--owner--name"
    (folder / "refs").mkdir(parents=True)
    for commit, name in ((main, "main"), (other, "v2.0")):
        shutil.copytree(resolve_model("tiny_lm").location, folder / "snapshots" / commit)
        (folder / "refs" / name).write_text(commit)
    change_weights(folder / "snapshots" / other)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    names = ["owner/name", "owner/name@v2.0", f"owner/name@{main}", "owner/name@v9"]
    # The library reads the variables when it is imported.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        *found, missing = pool.submit(load_each, names).result()
    models, revisions, (first, second, third) = zip(*found, strict=True)
    assert (models, revisions) == (tuple(names[:3]), (main, other, main))
    assert first == third != second
    assert "'owner/name@v9'" in missing
    assert "HF_HUB_OFFLINE" in missing
    assert "\n" not in missing
