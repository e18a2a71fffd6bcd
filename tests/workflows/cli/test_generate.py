"""``dcs generate``, with the packaged model and texts of our own."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcs.data.table import ProbabilityTable
from dcs.prompting.tasks import SPLITS
from dcs.schemes.scheme import CorrectionScheme
from dcs.scoring.base import TokenEngine
from dcs.scoring.models import load_tokenizer
from dcs_workflows.cli.sweeps import table_name
from dcs_workflows.config.scoring import ScoringSettings
from dcs_workflows.sources.scored import StoredTables, TableRequest
from tests.dcs.prompting.test_files import OWN, write_own
from tests.packages import install
from tests.workflows.conftest import biased_table, done, refused


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Return texts in the form of the TREC files."""
    root = tmp_path_factory.mktemp("data")
    (root / "trec").mkdir()
    kinds = ("NUM:date", "LOC:city", "HUM:ind", "DESC:def", "ENTY:food", "ABBR:exp")
    for split, count in (("train", 60), ("test", 30)):
        questions = [f"{kinds[k % 6]} What {split} is it {k} ?\n" for k in range(count)]
        (root / f"trec/{split}.txt").write_text("".join(questions))
    return root


def test_six_tables_are_written_and_not_scored_again(data, tmp_path):
    asked = "generate --model tiny_lm --task trec --shots 1 --seeds 0,1,2 --set scoring.device=cpu"
    command = (*asked.split(), "--data", data, "-o", tmp_path)
    assert "6 tables written" in done(*command).out
    paths = sorted(tmp_path.glob("tables/trec_tiny_lm_shot1_seed?/*.parquet"))
    assert len(paths) == 6
    for path in paths:
        table = ProbabilityTable.read(path)
        assert table.n_rows == (59 if path.stem == "optimization" else 30)
        assert table.classes[0] == "Number"
        assert table.provenance.split == path.stem
        assert table.provenance.demonstration_seed == int(path.parent.name[-1])
    before = {path: path.read_bytes() for path in paths}
    paths[0].unlink()
    again = done(*command).out
    assert "0 prompts scored" in again and again.count("(scored earlier)") == 3
    assert {path: path.read_bytes() for path in paths} == before


def test_a_row_that_fails_is_listed_and_tried_again(data, tmp_path, monkeypatch):
    asked = "generate --model tiny_lm --task trec --shots 0 --limit 30 --set scoring.device=cpu"
    command = (*asked.split(), "--data", data, "-o", tmp_path)

    def fail(engine: TokenEngine, tokens: list[list[int]], word: int) -> dict[int, str]:
        return {7: "too long"} if len(tokens) > 7 else {}

    with monkeypatch.context() as patched:
        patched.setattr(TokenEngine, "_unfit", fail)
        out = done(*command).out
    assert "1 of 60 rows are missing" in out and "trec-optimization-00007: too long" in out
    (path,) = tmp_path.glob("tables/*/optimization.parquet")
    table = ProbabilityTable.read(path)
    assert (table.n_rows, table.provenance.missing_rows) == (29, 1)
    out = done(*command).out
    assert "1 prompts scored" in out and "missing" not in out
    table = ProbabilityTable.read(path)
    assert (table.n_rows, table.provenance.missing_rows) == (30, None)
    assert "(scored earlier)" in done(*command).out


def test_texts_are_read_as_the_task_says_now(tmp_path):
    folder = tmp_path / "tables" / "moods_tiny_lm_shot0_seed0"
    for name in ("old", "new"):
        files = OWN["files"] | {"fields": {"text": name}}
        task = write_own(tmp_path, disjoint=True, files=files)
        for texts in tmp_path.glob("*.jsonl"):
            texts.write_text(texts.read_text().replace('"text":', f'"{name}":'))
        asked = ("--task", task, "--model", "tiny_lm", "--shots", 0, "-o", tmp_path)
        out = done("generate", *asked).out
        assert ("21 prompts scored" in out) == (name == "old") and "earlier" not in out
        done("tune", folder, "--method", "batch", "-o", tmp_path)
    scheme = CorrectionScheme.load(tmp_path / f"{folder.name}-batch")
    assert scheme.provenance["table"]["prompt"]["task"]["files"]["fields"] == {"text": "new"}


def test_tables_of_another_commit_of_a_hub_model_are_not_complete(tmp_path):
    tables = {split: biased_table(9) for split in SPLITS}
    old = StoredTables(tmp_path, "k", {"revision": "1"})
    old.write(tables, seconds=1.0, gpus=0.0, scorer={"revision": "1"})
    assert old.complete and StoredTables(tmp_path, "k").complete
    assert not StoredTables(tmp_path, "k", {"revision": "2"}).complete


def test_tasks_are_listed_and_a_prompt_is_shown_with_its_tokens(data):
    assert {"helpdesk", "reviews", "trec"} <= {*done("tasks").out.split()}
    outcome = done("tasks", "show", "trec", "--shots", 5, "--seed", 1, "--data", data)
    assert outcome.out.count("Answer Type:") == 6
    prompt = outcome.out.partition("\n\nprompt: ")[0]
    count = len(load_tokenizer("tiny_lm").encode([prompt])[0])
    assert f"number of tokens: {count}" in outcome.out
    assert "label tokens (joint): " in outcome.out and "'L' 'o' 'cation'" in outcome.out
    assert "trec-optimization-" in outcome.out


@pytest.mark.parametrize("model", ["../../evil", "/etc/passwd", "a/../../b", "~root", "a\nb"])
def test_names_of_models_lead_nowhere_else(model, tmp_path):
    request = TableRequest(model=model, task="helpdesk", shots=1, seed=0, limit=None)
    folder = tmp_path / "tables" / table_name(request)
    assert folder.resolve().parent == (tmp_path / "tables").resolve()


def test_an_engine_of_a_package_may_ask_a_server(tmp_path, monkeypatch):
    (tmp_path / "asking.py").write_text(
        "import numpy as np\n"
        "from dcs.io import Strict\n"
        "class Options(Strict):\n"
        "    tone: str = 'flat'\n"
        "    cards: int = 1\n"
        "    depth: int = 0\n"
        "class Asking:\n"
        "    name, version, revision, settings, served = 'asking', '1', 'unknown', {}, True\n"
        "    options, indecisive, gpu_option = Options, frozenset({'tone'}), 'cards'\n"
        "    def __init__(self, model, *, tone='flat', cards=1, depth=0):\n"
        "        self.model, self.settings = model, {'depth': str(depth)}\n"
        "    def score(self, prefix, queries, label_words, *, progress=None):\n"
        "        return np.full((len(queries), len(label_words)), 1 / len(label_words))\n"
        "    def close(self):\n"
        "        pass\n"
    )
    install(tmp_path, "asking", {"dcs.engines": {"asking": "asking:Asking"}})
    monkeypatch.syspath_prepend(tmp_path)
    served = ("--engine", "asking", "--model", "some-model", "--task", "reviews", "--limit", 3)
    outcome = done("generate", *served, "-o", tmp_path / "out")
    assert "some-model at asking: about 6 requests" in outcome.out
    # Its own options are those of a sweep.
    deep = ("--set", "scoring.depth=2", "-o", tmp_path / "out")
    assert "6 prompts scored" in done("generate", *served, *deep).out
    assert "0 prompts scored" in done("generate", *served, *deep, "--set", "scoring.tone=x").out
    refused("generate", *served, "--set", "scoring.dept=2", says=["'dept'", "depth"])
    settings = ScoringSettings.model_validate({"engine": "asking", "cards": 3, "depth": 1})
    assert settings.gpus == 3 and settings.options == {"cards": 3, "depth": 1}
    assert ScoringSettings.model_validate_json(settings.model_dump_json()) == settings
