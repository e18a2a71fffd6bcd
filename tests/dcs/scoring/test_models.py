"""Which model a name means, and loading it: folders, the hub, devices, and what is missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dcs.errors import ConfigError, DCSError, MissingDependencyError, ScoringError
from dcs.scoring import load_scorer, resolve_model
from dcs.scoring.models import load_tokenizer
from tests.dcs.refusals import refuses


def refused(kind: type[DCSError], name: object, *parts: object, **options: str) -> None:
    """Assert that loading a model fails, naming all parts."""
    refuses(kind, load_scorer, str(name), names=parts, **options)


class TestNames:
    def test_revision_is_that_of_the_content(self, tmp_path: Path) -> None:
        folder = tmp_path / "copy"
        shutil.copytree(resolve_model("tiny_lm").location, folder)
        found = resolve_model(folder)
        assert found.revision == resolve_model("tiny_lm").revision
        assert found.is_local
        (folder / "notes.md").write_text("no matter")
        assert resolve_model(folder).revision == found.revision
        weights = folder / "model.safetensors"
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        weights.write_bytes(data)
        assert resolve_model(folder).revision != found.revision

    def test_hub_ids_are_not_looked_at_before_loading(self) -> None:
        found = resolve_model("owner/name@refs/pr/7")
        assert (found.location, found.version, found.revision) == ("owner/name", "refs/pr/7", None)

    @pytest.mark.parametrize(
        "name", ["tiny_ml", "owner/name@", "owner/name@a b", "owner/name@/x", "a@b", "no/such/dir"]
    )
    def test_other_names(self, name: str) -> None:
        refused(ScoringError, name, name)

    def test_unknown_engine_and_option(self) -> None:
        refused(ConfigError, "tiny_lm", "'transformers'", engine="transformer")
        refused(ConfigError, "tiny_lm", "'label_rule'", lable_rule="joint")
        refused(ConfigError, "tiny_lm", "'float13'", dtype="float13")
        refused(ConfigError, "tiny_lm", "'jiont'", "'joint'", label_rule="jiont")


class TestLoading:
    @pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer.json"])
    def test_incomplete_or_damaged_model_folder(self, tmp_path: Path, missing: str) -> None:
        folder = tmp_path / "copy"
        shutil.copytree(resolve_model("tiny_lm").location, folder)
        (folder / missing).unlink()
        refused(ScoringError, folder, str(folder), "save_pretrained")
        (folder / missing).write_bytes(b"neither JSON nor tensors")
        refused(ScoringError, folder, str(folder))

    def test_hub_out_of_reach(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import huggingface_hub.constants

        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        refused(ScoringError, "some-owner/no-such-model", "some-owner/no-such-model")

    def test_missing_torch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "torch", None)
        refused(MissingDependencyError, "tiny_lm", "pip install torch")

    @pytest.mark.parametrize("device", ["cuda:97", "abacus"])
    def test_device_that_is_not_there(self, device: str) -> None:
        refused(ScoringError, "tiny_lm", device, device=device)


def test_the_tokenizer_of_a_packaged_model_is_that_of_its_folder() -> None:
    own, whole = map(load_tokenizer, ("tiny_lm", resolve_model("tiny_lm").location))
    for text in ("Text: a\n\nLabel:", "Ünlikely wörds — 字!", "", " two  spaces "):
        ids = own.encode(text)
        assert ids == whole.encode(text)
        assert list(map(own.describe, ids)) == list(map(whole.describe, ids))


class TestHub:
    """Models as the hub's library keeps them on disk, without a network."""

    COMMIT = "0123456789abcdef0123456789abcdef01234567"
    OTHER = "f" * 40
    CODE = """
import json, sys
from dcs.errors import ScoringError
from dcs.scoring import load_scorer
from dcs.scoring.models import load_tokenizer
from tests.dcs.refusals import refuses
told = []
for name in sys.argv[1:]:
    try:
        scorer = load_scorer(name, device="cpu")
        told.append([scorer.model, scorer.revision, len(load_tokenizer(name).encode("a"))])
        assert scorer.score("", ["Text: a\\nLabel:"], ("good", "bad")).shape == (1, 2)
    except ScoringError as error:
        told.append(str(error))
print(json.dumps(told))
"""

    def test_a_fetched_model_is_used_at_the_revision_named(self, tmp_path: Path) -> None:
        folder = tmp_path / "hub/models--owner--name"
        (folder / "refs").mkdir(parents=True)
        for commit, name in ((self.COMMIT, "main"), (self.OTHER, "v2.0")):
            shutil.copytree(resolve_model("tiny_lm").location, folder / "snapshots" / commit)
            (folder / "refs" / name).write_text(commit)
        names = ["owner/name", "owner/name@v2.0", f"owner/name@{self.COMMIT}", "owner/name@v9"]
        environment = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
        answer = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", self.CODE, *names],
            env=environment,
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode == 0, answer.stderr
        *found, missing = json.loads(answer.stdout)
        assert [revision for _, revision, _ in found] == [self.COMMIT, self.OTHER, self.COMMIT]
        assert [name for name, *_ in found] == names[:3]
        assert "'owner/name@v9'" in missing
        assert "HF_HUB_OFFLINE" in missing
        assert "\n" not in missing
