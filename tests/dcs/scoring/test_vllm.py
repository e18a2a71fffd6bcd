"""The vLLM engine. What needs vLLM itself runs in an environment of its own: make test-vllm."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dcs.errors import ScoringError
from dcs.prompting.files import get_task
from dcs.prompting.tasks import PromptPrefix, render_prefix, render_query, select_demonstrations
from dcs.scoring import Scorer, load_scorer, resolve_model
from dcs.scoring.models import load_tokenizer
from dcs.scoring.openai import OpenAIScorer
from tests.dcs.scoring.test_chat import TEMPLATES
from tests.dcs.scoring.test_contract import PREFIX, QUERIES, TASK, ScorerContract
from tests.servers import free_port, running

# Of a GPU a part is enough: up to four engines of one process and its server share it.
MEMORY = 0.2 if shutil.which("nvidia-smi") else None


def agrees(scorer: Scorer, prefix: PromptPrefix, queries: list[str], words: Sequence[str]) -> None:
    expected = load_scorer("tiny_lm", device="cpu").score(prefix, queries, words)
    np.testing.assert_allclose(scorer.score(prefix, queries, words), expected, atol=1e-3)


@pytest.fixture(scope="module")
def engine() -> Iterator[Scorer]:
    pytest.importorskip("vllm")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    # What is compared is computed in float32.
    scorer = load_scorer("tiny_lm", engine="vllm", dtype="float32", memory=MEMORY)
    yield scorer
    scorer.close()
    with pytest.raises(ScoringError, match="closed"):
        scorer.score("", ["a"], ("b", "c"))


@pytest.mark.vllm
class TestContract(ScorerContract):
    @pytest.fixture(scope="class")
    @classmethod
    def scorer(cls, engine: Scorer) -> Scorer:
        return engine


@pytest.mark.vllm
@pytest.mark.parametrize("name", ["helpdesk", "reviews"])
@pytest.mark.parametrize("shots", [0, 1, "N"])
def test_agrees_with_transformers(engine: Scorer, name: str, shots: Any) -> None:
    task = get_task(name)
    prefix = render_prefix(task, select_demonstrations(task, shots, seed=0))
    queries = [render_query(task, e.text) for e in task.examples("test")[:64]]
    agrees(engine, prefix, queries, task.label_words)


WORDS = ("good", "quixotry", "zebra crossing", "zebra stripes")


@pytest.mark.vllm
@pytest.mark.parametrize("words", [("quixotry", "abbreviation", "zebra crossing"), WORDS])
def test_label_words_of_several_tokens(engine: Scorer, words: tuple[str, ...]) -> None:
    # Some of the latter begin alike: `auto` reads them whole.
    agrees(engine, PREFIX, QUERIES, words)


@pytest.mark.vllm
@pytest.mark.parametrize("head", ["", "zebra "])  # the latter begin alike: read whole
def test_more_label_tokens_than_vllm_returns_at_once(engine: Scorer, head: str) -> None:
    tokenizer = load_tokenizer("tiny_lm")
    # Words of one token each.
    tokens = map(tokenizer.describe, range(3, 999))
    words = [text[1:] for text in tokens if text[:1] == " " and text[1:].isalpha()]
    assert len(words) >= 140
    agrees(engine, PREFIX, QUERIES[:8], [f"{head}{word}" for word in words[:140]])


# Within one process, closing an engine ends what others need: this has its own, and comes last.
@pytest.mark.vllm
def test_chat(tmp_path: Path) -> None:
    shutil.copytree(resolve_model("tiny_lm").location, tmp_path, dirs_exist_ok=True)
    (tmp_path / "chat_template.jinja").write_text(TEMPLATES["no system"])
    options: dict[str, Any] = {"label_rule": "joint"}
    scorer = load_scorer(tmp_path, engine="vllm", dtype="float32", memory=MEMORY, **options)
    expected = load_scorer(tmp_path, device="cpu", **options)
    probs = scorer.score(PREFIX, QUERIES, WORDS)
    scorer.close()
    np.testing.assert_allclose(probs, expected.score(PREFIX, QUERIES, WORDS), atol=1e-3)


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """Return the address of vLLM's own server with tiny_lm."""
    pytest.importorskip("vllm")
    port = free_port()
    options = ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "tiny_lm"]
    options += ["--dtype", "float32", "--enforce-eager"]
    if MEMORY:
        options += ["--gpu-memory-utilization", str(MEMORY)]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *options]
    command += ["--model", resolve_model("tiny_lm").location]
    env = {**os.environ, "TRITON_F32_DEFAULT": "ieee"}  # float32 on a GPU too
    with running(command, f"http://127.0.0.1:{port}/health", env=env):
        yield f"http://127.0.0.1:{port}/v1"


@pytest.mark.vllm
def test_its_server_agrees_with_transformers(served: str) -> None:
    words = TASK.label_words
    queries = [query for row, query in enumerate(QUERIES) if row not in (5, 9)]  # odd ones
    expected = load_scorer("tiny_lm", device="cpu").score(PREFIX, queries, words)
    scorer = OpenAIScorer("tiny_lm", base_url=served)
    np.testing.assert_allclose(scorer.score(PREFIX, queries, words), expected, atol=1e-4)
    assert scorer.settings["log-probabilities"] == "exact"


@pytest.mark.vllm
def test_its_server_samples_votes(served: str) -> None:
    scorer = OpenAIScorer("tiny_lm", base_url=served, votes=7, max_tokens=4)
    assert scorer.score(PREFIX, QUERIES[:2], TASK.label_words).sum() == scorer.counts["parsed"] > 7
