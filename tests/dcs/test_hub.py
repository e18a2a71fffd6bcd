"""Models and datasets of the hub, by stand-ins: its own folders, without a network."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dcs.errors import ConfigError
from dcs.io import hub_advice
from dcs.prompting import texts
from dcs.prompting.task_files import _FOLDER, read_task_file
from dcs.scoring import resolve_model

# What the hub's datasets call the columns, and a label of each class in the task's order.
COLUMNS: dict[str, tuple[tuple[str, ...], str, tuple[int, ...]]] = {
    "agnews": (("text",), "label", (0, 1, 2, 3)),
    "dbpedia": (("title", "content"), "label", tuple(range(14))),
    "sst5": (("text",), "label", (0, 1, 2, 3, 4)),
    "trec": (("text",), "coarse_label", (5, 4, 3, 2, 1, 0)),
    "rte": (("sentence1", "sentence2"), "label", (0, 1)),
}


def write_dataset(folder: Path, name: str) -> None:
    columns, label, labels = COLUMNS[name]
    place = read_task_file(_FOLDER / f"{name}.yaml").hub
    assert place is not None
    for split in (place.optimization, place.test):
        path = folder / (place.config or "data") / f"{split}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = {column: [f"{column} {k} of {split}" for k in labels] for column in columns}
        pq.write_table(pa.table(rows | {label: list(labels)}), path)
    files = [
        {"split": split, "path": f"{place.config or 'data'}/{split}.parquet"}
        for split in (place.optimization, place.test)
    ]
    configs = [{"config_name": place.config or "default", "data_files": files}]
    (folder / "README.md").write_text(f"---\n{json.dumps({'configs': configs})}\n---\n")


class TestDatasets:
    @pytest.mark.parametrize("name", COLUMNS)
    def test_fields_and_labels_are_mapped(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        datasets = pytest.importorskip("datasets")
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
        write_dataset(tmp_path / "hub", name)
        file = read_task_file(_FOLDER / f"{name}.yaml")
        assert file.hub is not None
        place = dataclasses.replace(file.hub, dataset=str(tmp_path / "hub"))
        file = dataclasses.replace(file, hub=place)
        for split in ("optimization", "test"):
            examples = texts.read_examples(file, split)  # type: ignore[arg-type]
            assert [e.label for e in examples] == list(range(len(file.classes)))
            assert getattr(place, split) in examples[0].text
            columns = COLUMNS[name][0]
            assert all(column in examples[0].text for column in columns if column != "title")

    def test_what_is_asked_of_the_library(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[tuple[Any, ...]] = []

        def load_dataset(*args: Any, **kwargs: Any) -> list[dict[str, Any]]:
            asked.append((args, kwargs))
            return [{"sentence1": "a", "sentence2": "b", "label": k % 2} for k in range(4)]

        monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
        monkeypatch.setattr(texts, "_has_datasets", lambda: True)
        texts._read.cache_clear()
        file = read_task_file(_FOLDER / "rte.yaml")
        examples = texts.read_examples(file, "test")
        texts._read.cache_clear()
        assert asked == [(("nyu-mll/glue", "rte"), {"split": "validation", "revision": None})]
        assert [e.label for e in examples] == [0, 1, 0, 1]
        assert examples[0].text == "a\nquestion:\nb\nTrue or False?"

    def test_out_of_reach_is_one_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def load_dataset(*args: Any, **kwargs: Any) -> None:
            raise ConnectionError("Couldn't reach it\n(OfflineModeIsEnabled)")

        monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
        monkeypatch.setattr(texts, "_has_datasets", lambda: True)
        with pytest.raises(ConfigError, match="unset it .*, or give --data DIR$") as caught:
            texts.read_examples(read_task_file(_FOLDER / "agnews.yaml"), "test")
        assert "\n" not in str(caught.value)


class TestModels:
    COMMIT = "0123456789abcdef0123456789abcdef01234567"
    OTHER = "f" * 40
    CODE = """
import json, sys
from dcs.errors import ScoringError
from dcs.scoring import load_scorer
from dcs.scoring.models import load_tokenizer
told = []
for name in sys.argv[1:]:
    try:
        scorer = load_scorer(name, device="cpu")
        told.append([scorer.model, scorer.revision, len(load_tokenizer(name))])
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
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode == 0, answer.stderr
        *found, missing = json.loads(answer.stdout)
        assert [revision for _, revision, _ in found] == [self.COMMIT, self.OTHER, self.COMMIT]
        assert [name for name, *_ in found] == names[:3]
        assert "'owner/name@v9' cannot be loaded from the model hub" in missing
        assert "HF_HUB_OFFLINE is set" in missing
        assert "\n" not in missing

    @pytest.mark.parametrize("name", ["owner/name@", "owner/name@a b", "owner/name@/x", "a@b"])
    def test_names_that_are_none(self, name: str) -> None:
        with pytest.raises(Exception, match="not found"):
            resolve_model(name)

    def test_a_revision_is_kept_apart_from_the_name(self) -> None:
        found = resolve_model("owner/name@refs/pr/7")
        assert (found.location, found.version, found.revision) == (
            "owner/name",
            "refs/pr/7",
            None,
        )


class GatedRepoError(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (GatedRepoError("x"), "accept its licence .* HF_TOKEN"),
        (OSError("401 Client Error"), "accept its licence"),
        (OSError("Repository Not Found: 404"), "check the name; a private one"),
        (OSError("a is not a valid git identifier: Invalid rev id"), "revision after the @"),
        (OSError("Name or service not known"), "check the name and the network"),
    ],
)
def test_advice(error: Exception, advice: str) -> None:
    import re

    assert re.search(advice, hub_advice(error))
    wrapped = RuntimeError("cannot load")
    wrapped.__cause__ = error
    assert re.search(advice, hub_advice(wrapped))
