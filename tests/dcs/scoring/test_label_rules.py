"""The three ways to read a label word, against forward passes with nothing clever."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dcs.errors import ScoringError
from dcs.prompting import get_task, render_prefix, render_query, select_demonstrations
from dcs.scoring import load_scorer, resolve_model
from dcs.scoring.label_words import LabelRule, label_token_ids, read_label_words
from dcs.scoring.transformers import TransformersScorer

TASK = get_task("helpdesk")
PREFIX = render_prefix(TASK, select_demonstrations(TASK, 1, seed=0))
QUERIES = [render_query(TASK, e.text) for e in TASK.examples("test")[:10]]
QUERIES[3] = render_query(TASK, "Help.")
WORDS = ("good", "quixotry", "zebra crossing", "zebra stripes")


def joint_forward(folder: str, words: Sequence[str]) -> NDArray[np.float64]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    rows = []
    for query in QUERIES:
        prompt = tokenizer(PREFIX + query)["input_ids"]
        scores = []
        for word in words:
            ids = tokenizer(f" {word}", add_special_tokens=False)["input_ids"]
            with torch.no_grad():
                logits = model(torch.tensor([prompt + ids])).logits[0].double()
            steps = logits.log_softmax(-1)[len(prompt) - 1 : -1]
            scores.append(float(sum(steps[k, token] for k, token in enumerate(ids))))
        rows.append(scores)
    probs = np.exp(np.array(rows))
    return np.asarray(probs / probs.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("settings", [{}, {"reuse_prefix": False}, {"token_budget": 100}])
def test_joint_equals_the_plain_forward(settings: dict[str, Any]) -> None:
    scorer = TransformersScorer("tiny_lm", device="cpu", label_rule="joint", **settings)
    probs = scorer.score(PREFIX, QUERIES, WORDS)
    expected = joint_forward(resolve_model("tiny_lm").location, WORDS)
    np.testing.assert_allclose(probs, expected, atol=1e-6)


def test_joint_of_other_architectures(other_model: Path) -> None:
    scorer = TransformersScorer(other_model, device="cpu", label_rule="joint")
    steps: list[int] = []
    probs = scorer.score(PREFIX, QUERIES, WORDS, progress=steps.append)
    np.testing.assert_allclose(probs, joint_forward(str(other_model), WORDS), atol=1e-6)
    assert sum(steps) == len(QUERIES)


def test_first_token_alone() -> None:
    words = ("good", "quixotry", "zebra")
    scorer = TransformersScorer("tiny_lm", device="cpu", label_rule="first")
    whole = TransformersScorer("tiny_lm", device="cpu", label_rule="joint")
    ids = label_token_ids(
        PREFIX + QUERIES[0],
        words,
        encode=lambda text: scorer._encode([text])[0],
        describe=str,
        rule="first",
    )
    assert [len(word) for word in ids] == [1, 1, 1]
    single = scorer.score(PREFIX, QUERIES, words)
    assert np.abs(single - whole.score(PREFIX, QUERIES, words)).max() > 1e-3


def test_a_model_in_memory() -> None:
    loaded = TransformersScorer("tiny_lm", device="cpu")
    scorer = TransformersScorer.from_model(loaded._runner.model, loaded._tokenizer, name="mine")
    assert (scorer.model, scorer.revision) == ("mine", "unknown")
    assert scorer.settings == loaded.settings
    np.testing.assert_array_equal(
        scorer.score(PREFIX, QUERIES, TASK.label_words),
        loaded.score(PREFIX, QUERIES, TASK.label_words),
    )


class TestChoice:
    @staticmethod
    def read(words: Sequence[str], rule: LabelRule) -> tuple[Any, LabelRule]:
        # A tokenizer of one token per character, 1 at the start of every text.
        return read_label_words(
            "\n", words, encode=lambda text: [1, *map(ord, text)], describe=chr, rule=rule
        )

    def test_auto_is_the_mean_where_first_tokens_differ(self) -> None:
        assert self.read(("aba", "c"), "auto") == (((97, 98), (99,)), "mean")

    def test_auto_is_joint_where_they_collide(self) -> None:
        assert self.read(("aba", "ac"), "auto") == (((97, 98, 97), (97, 99)), "joint")

    @pytest.mark.parametrize("rule", ["mean", "first"])
    def test_collisions_are_refused(self, rule: LabelRule) -> None:
        with pytest.raises(ScoringError, match="'aba' .* and 'ac' .* first tokens"):
            self.read(("aba", "ac"), rule)

    @pytest.mark.parametrize("rule", ["auto", "joint"])
    def test_a_word_that_begins_another_is_refused(self, rule: LabelRule) -> None:
        with pytest.raises(ScoringError, match="'ab' .* and 'abc' "):
            self.read(("ab", "abc"), rule)


class TestOutOfMemory:
    @staticmethod
    def scorer(most: int, monkeypatch: pytest.MonkeyPatch, **options: Any) -> TransformersScorer:
        """Return a scorer whose memory holds batches of `most` rows."""
        import torch

        scorer = TransformersScorer("tiny_lm", device="cpu", **options)
        forward = scorer._runner.model.forward

        def limited(*args: Any, **inputs: Any) -> Any:
            if inputs["input_ids"].shape[0] > most:
                raise torch.OutOfMemoryError("out of memory")
            return forward(*args, **inputs)

        monkeypatch.setattr(scorer._runner.model, "forward", limited)
        return scorer

    def test_halves_the_batch_and_goes_on(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        expected = load_scorer("tiny_lm", device="cpu").score(PREFIX, QUERIES, TASK.label_words)
        steps: list[int] = []
        with caplog.at_level(logging.WARNING):
            probs = self.scorer(2, monkeypatch).score(
                PREFIX, QUERIES, TASK.label_words, progress=steps.append
            )
        np.testing.assert_allclose(probs, expected, atol=1e-5)
        assert sum(steps) == len(QUERIES)
        assert max(steps) <= 2
        assert "out of memory" in caplog.text

    @pytest.mark.parametrize("message", ["CUBLAS_STATUS_ALLOC_FAILED", "can't allocate memory"])
    def test_other_words_for_it(self, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
        scorer = self.scorer(10, monkeypatch)
        forward, failures = scorer._runner.model.forward, [RuntimeError(f"error: {message}")]

        def limited(*args: Any, **inputs: Any) -> Any:
            if inputs["input_ids"].shape[0] > 1 and failures:
                raise failures.pop()
            return forward(*args, **inputs)

        monkeypatch.setattr(scorer._runner.model, "forward", limited)
        expected = load_scorer("tiny_lm", device="cpu").score(PREFIX, QUERIES, TASK.label_words)
        probs = scorer.score(PREFIX, QUERIES, TASK.label_words)
        np.testing.assert_allclose(probs, expected, atol=1e-5)
        assert not failures

    def test_whole_words_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = load_scorer("tiny_lm", device="cpu", label_rule="joint")
        expected = whole.score(PREFIX, QUERIES, WORDS)
        scorer = self.scorer(3, monkeypatch, label_rule="joint")
        np.testing.assert_allclose(scorer.score(PREFIX, QUERIES, WORDS), expected, atol=1e-5)

    def test_other_failures_are_not_taken_for_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        scorer = self.scorer(10, monkeypatch)

        def broken(*args: Any, **inputs: Any) -> Any:
            raise RuntimeError("shapes do not match")

        monkeypatch.setattr(scorer._runner.model, "forward", broken)
        with pytest.raises(RuntimeError, match="shapes do not match"):
            scorer.score(PREFIX, QUERIES, TASK.label_words)

    def test_a_model_that_does_not_fit_is_one_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch

        def full(*args: Any, **kwargs: Any) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 20 GiB")

        monkeypatch.setattr(torch.nn.Module, "to", full)
        with pytest.raises(ScoringError, match="'tiny_lm' does not fit .*tensor_parallel") as e:
            load_scorer("tiny_lm", device="cpu")
        assert "\n" not in str(e.value)

    def test_a_single_prompt_too_large_is_one_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(ScoringError, match="ran out of memory on cpu with a single prompt"):
            self.scorer(0, monkeypatch).score(PREFIX, QUERIES, TASK.label_words)
