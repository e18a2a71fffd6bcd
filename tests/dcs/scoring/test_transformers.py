"""The Transformers engine against forward passes with nothing clever."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray

from dcs.errors import ScoringError
from dcs.prompting.files import get_task
from dcs.prompting.tasks import (
    PromptPrefix,
    Shots,
    render_prefix,
    render_query,
    select_demonstrations,
)
from dcs.scoring import Scorer, load_scorer, resolve_model
from dcs.scoring.labels import LabelRule
from dcs.scoring.models import LoadedModel
from dcs.scoring.transformers import TransformersScorer
from tests.dcs.refusals import refuses

TINY = resolve_model("tiny_lm").location
TASK = get_task("helpdesk")
QUERIES = [render_query(TASK, e.text) for e in TASK.examples("test")[:12]]
QUERIES[3] = render_query(TASK, "Help.")
WORDS = ("good", "quixotry", "zebra crossing", "zebra stripes")


def prefix_of(shots: Shots) -> PromptPrefix:
    return render_prefix(TASK, select_demonstrations(TASK, shots, seed=1))


def plain_forward(
    folder: str, prompts: Sequence[str], words: Sequence[str], rule: LabelRule
) -> NDArray[np.float64]:
    """Score one whole prompt at a time: the next token, or word by word."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    labels = [tokenizer(f" {word}", add_special_tokens=False)["input_ids"] for word in words]

    def log_softmax(ids: list[int]) -> Any:
        with torch.no_grad():
            return model(torch.tensor([ids])).logits[0].double().log_softmax(-1)

    def log_joint(ids: list[int]) -> NDArray[np.float64]:
        steps = [log_softmax(ids + label)[len(ids) - 1 : -1] for label in labels]
        logs = [sum(s[k, t] for k, t in enumerate(ls)) for s, ls in zip(steps, labels)]  # noqa: B905
        return np.array([float(value) for value in logs])

    rows = []
    for prompt in prompts:
        ids = tokenizer(prompt)["input_ids"]
        if rule == "joint":
            rows.append(np.exp(log_joint(ids)).tolist())
        else:
            last = log_softmax(ids)[-1].exp()
            rows.append([float(last[label].mean()) for label in labels])
    probs = np.array(rows)
    return np.asarray(probs / probs.sum(axis=1, keepdims=True))


def check(folder: str, prefix: str | PromptPrefix, words: Sequence[str], rule: LabelRule) -> None:
    queries = QUERIES[2:6] if rule == "joint" else QUERIES
    expected = plain_forward(folder, [f"{prefix}{q}" for q in queries], words, rule)
    for budget in (1536, 100, 1):
        with mock.patch.dict("dcs.scoring.transformers._TOKEN_BUDGET", cpu=budget):
            scorer = load_scorer(folder, device="cpu", label_rule=rule)
        probs = scorer.score(prefix, queries, words)
        np.testing.assert_allclose(probs, expected, atol=1e-5, err_msg=str(budget))


@pytest.mark.parametrize(
    ("shots", "words", "rule"),
    [
        *((shots, TASK.label_words, "mean") for shots in (0, "N")),
        (0, ("quixotry", "abbreviation", "zebra crossing"), "mean"),
        (1, WORDS, "joint"),
    ],
)
def test_equals_the_plain_forward(shots: Shots, words: Sequence[str], rule: LabelRule) -> None:
    check(TINY, prefix_of(shots), words, rule)


@pytest.mark.parametrize(("rule", "words"), [("mean", TASK.label_words), ("joint", WORDS)])
def test_of_other_architectures(other_model: Path, rule: LabelRule, words: Sequence[str]) -> None:
    check(str(other_model), prefix_of(2), words, rule)


def test_prefix_and_query_may_share_a_token(tiny_scorer: Scorer) -> None:
    whole = tiny_scorer.score("", [f"A network cable. {q}" for q in QUERIES], TASK.label_words)
    split = tiny_scorer.score("A netw", [f"ork cable. {q}" for q in QUERIES], TASK.label_words)
    np.testing.assert_allclose(split, whole, atol=1e-6)


def in_memory(name: str) -> LoadedModel:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    kinds = (AutoModelForCausalLM, AutoTokenizer)
    return LoadedModel(*(kind.from_pretrained(TINY) for kind in kinds), name)


def test_a_model_in_memory(tiny_scorer: Scorer) -> None:
    scorer = TransformersScorer(in_memory("mine"))
    assert (scorer.model, scorer.revision) == ("mine", "unknown")
    assert scorer.settings == tiny_scorer.settings
    probs = [each.score("", QUERIES, TASK.label_words) for each in (scorer, tiny_scorer)]
    np.testing.assert_array_equal(*probs)


def test_a_cache_has_the_name_that_the_model_accepts(tiny_scorer: Scorer) -> None:
    model, given = in_memory("m"), []
    plain = model.weights.forward
    own = "cache" if "cache" in inspect.signature(plain).parameters else "past_key_values"

    def renamed(cache: Any = None, **inputs: Any) -> Any:
        given.append(cache)
        output = plain(**{own: cache}, **inputs)
        return SimpleNamespace(logits=output.logits, cache=getattr(output, own))

    model.weights.forward = renamed
    asked = prefix_of(2), QUERIES, TASK.label_words
    found = TransformersScorer(model).score(*asked)
    np.testing.assert_allclose(found, tiny_scorer.score(*asked), atol=1e-6)
    # Only the shared prefix of these prompts is run without one.
    assert given[-2] is None and given[-1] is not None


@pytest.mark.parametrize("fault", ["refuses", "ignores"])
def test_prompts_run_whole_if_a_model_continues_no_cache(fault: str, tiny_scorer: Scorer) -> None:
    model = in_memory("m")
    plain = model.weights.forward

    def forward(past_key_values: Any = None, **inputs: Any) -> Any:
        assert past_key_values is None or fault == "ignores"
        return plain(**inputs)

    model.weights.forward = forward
    asked = prefix_of(2), QUERIES, TASK.label_words
    found = TransformersScorer(model).score(*asked)
    np.testing.assert_allclose(found, tiny_scorer.score(*asked), atol=1e-6)


@pytest.mark.parametrize("name", ["Electra", "ProphetNet"])
def test_models_whose_scores_depend_on_later_tokens_are_refused(name: str) -> None:
    import transformers

    tokenizer = in_memory("m").tokenizer
    size = {"vocab_size": len(tokenizer), "hidden_size": 32, "is_decoder": name != "Electra"}
    config = getattr(transformers, f"{name}Config")(**size, initializer_range=0.4, init_std=0.4)
    other = LoadedModel(transformers.AutoModelForCausalLM.from_config(config), tokenizer, name)
    refuses(ScoringError, TransformersScorer, other, names=[repr(name), "causal"])


def test_closed_scorer() -> None:
    scorer = load_scorer("tiny_lm", device="cpu")
    scorer.close()
    refuses(ScoringError, scorer.score, "", QUERIES, TASK.label_words, names=["closed"])


def failing(error: Exception, most: int = 0, **options: Any) -> TransformersScorer:
    """Return a scorer whose model fails so on batches of more than `most` prompts."""
    model = in_memory("small")
    forward = model.weights.forward

    def limited(*args: Any, **inputs: Any) -> Any:
        if inputs["input_ids"].shape[0] > most:
            raise error
        return forward(*args, **inputs)

    scorer = TransformersScorer(model, **options)
    model.weights.forward = limited
    return scorer


class TestOutOfMemory:
    @pytest.mark.parametrize("said", ["", "CUBLAS_STATUS_ALLOC_FAILED", "can't allocate memory"])
    def test_halves_the_batch_and_goes_on(
        self, said: str, tiny_scorer: Scorer, caplog: pytest.LogCaptureFixture
    ) -> None:
        import torch

        error = RuntimeError(said) if said else torch.OutOfMemoryError("full")
        asked, steps = (prefix_of(1), QUERIES, TASK.label_words), list[int]()
        expected = tiny_scorer.score(*asked)
        probs = failing(error, 2).score(*asked, progress=steps.append)
        np.testing.assert_allclose(probs, expected, atol=1e-5)
        assert sum(steps) == len(QUERIES)
        assert "out of memory" in caplog.text

    def test_other_failures_and_one_prompt_that_does_not_fit(self) -> None:
        with pytest.raises(ScoringError, match="'small'.*other shapes"):
            failing(RuntimeError("other shapes")).score("", QUERIES, TASK.label_words)
        with pytest.raises(ScoringError):
            failing(RuntimeError("can't allocate memory")).score("", QUERIES, TASK.label_words)

    def test_a_model_that_does_not_fit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch

        def full(*args: Any, **kwargs: Any) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 20 GiB")

        monkeypatch.setattr(torch.nn.Module, "to", full)
        refuses(ScoringError, load_scorer, "tiny_lm", device="cpu", names=["'tiny_lm'"])


@pytest.mark.parametrize("end", ["$A </s>", "<s> $A </s> </s>", "<s> $A"])
def test_tokens_that_a_tokenizer_appends(end: str, tiny_scorer: Scorer) -> None:
    from tokenizers.processors import TemplateProcessing

    model, expected = in_memory("m"), in_memory("m").tokenizer
    tokenizer = model.tokenizer
    special = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("<s>", "</s>")]
    if "<s>" not in end:
        expected.backend_tokenizer.post_processor = None
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(end, special_tokens=special)
    for words in (("good", "bad"), WORDS):
        probs = [
            TransformersScorer(LoadedModel(model.weights, each, "m")).score("", QUERIES, words)
            for each in (tokenizer, expected)
        ]
        np.testing.assert_array_equal(*probs)
    if end == "<s> $A":
        np.testing.assert_allclose(probs[0], tiny_scorer.score("", QUERIES, WORDS), atol=1e-6)
