from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dcs.errors import ScoringError
from dcs.prompting import Shots, get_task, render_prefix, render_query, select_demonstrations
from dcs.scoring import resolve_model
from dcs.scoring.label_words import class_probabilities, label_token_ids
from dcs.scoring.transformers import TransformersScorer

TASK = get_task("helpdesk")
QUERIES = [render_query(TASK, e.text) for e in TASK.examples("test")[:12]]
QUERIES[3] = render_query(TASK, "Help.")


def plain_forward(
    folder: str, prompts: Sequence[str], label_words: Sequence[str]
) -> NDArray[np.float64]:
    """Return what the field notes ask for, one whole prompt at a time, with nothing clever."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = [tokenizer(f" {word}", add_special_tokens=False)["input_ids"] for word in label_words]
    rows = []
    for prompt in prompts:
        with torch.no_grad():
            logits = model(torch.tensor([tokenizer(prompt)["input_ids"]])).logits[0, -1]
        softmax = torch.softmax(logits.double(), dim=-1)
        rows.append([float(softmax[label].mean()) for label in ids])
    probs = np.array(rows)
    return np.asarray(probs / probs.sum(axis=1, keepdims=True))


def check_against_the_plain_forward(folder: str, prefix: str) -> None:
    expected = plain_forward(folder, [prefix + q for q in QUERIES], TASK.label_words)
    for settings in ({}, {"reuse_prefix": False}, {"token_budget": 100}, {"token_budget": 1}):
        scorer = TransformersScorer(folder, device="cpu", **settings)  # type: ignore[arg-type]
        probs = scorer.score(prefix, QUERIES, TASK.label_words)
        np.testing.assert_allclose(probs, expected, atol=1e-5, err_msg=str(settings))


@pytest.mark.parametrize("shots", [0, 1, "N"])
def test_equals_the_plain_forward(shots: Shots) -> None:
    prefix = render_prefix(TASK, select_demonstrations(TASK, shots, seed=1))
    check_against_the_plain_forward(resolve_model("tiny_lm").location, prefix)


def test_equals_the_plain_forward_of_other_architectures(other_model: Path) -> None:
    prefix = render_prefix(TASK, select_demonstrations(TASK, 2, seed=1))
    check_against_the_plain_forward(str(other_model), prefix)


def test_label_words_of_several_tokens() -> None:
    words = ("quixotry", "abbreviation", "zebra crossing")
    scorer = TransformersScorer("tiny_lm", device="cpu")
    expected = plain_forward(resolve_model("tiny_lm").location, QUERIES, words)
    np.testing.assert_allclose(scorer.score("", QUERIES, words), expected, atol=1e-5)


def test_prefix_and_query_may_share_a_token() -> None:
    scorer = TransformersScorer("tiny_lm", device="cpu")
    whole = scorer.score("", [f"A network cable. {q}" for q in QUERIES], TASK.label_words)
    split = scorer.score("A netw", [f"ork cable. {q}" for q in QUERIES], TASK.label_words)
    np.testing.assert_allclose(split, whole, atol=1e-6)


@pytest.mark.parametrize(
    "words",
    [
        ("abbreviation", "entity", "description", "human", "location", "number"),
        ("world", "sports", "business", "technology"),
        ("true", "false"),
        ("yes", "no", "maybe"),
        ("ja", "nein", "vielleicht"),
    ],
)
def test_tiny_lm_takes_label_words_of_other_tasks(words: tuple[str, ...]) -> None:
    probs = TransformersScorer("tiny_lm", device="cpu").score("", ["Text: a b\nLabel:"], words)
    assert np.isfinite(probs).all()


def test_closed_scorer() -> None:
    scorer = TransformersScorer("tiny_lm", device="cpu")
    scorer.close()
    with pytest.raises(ScoringError, match="has been closed"):
        scorer.score("", QUERIES, TASK.label_words)


class TestLabelTokens:
    @staticmethod
    def find(words: Sequence[str], prompt: str = "Label:") -> tuple[tuple[int, ...], ...]:
        # A tokenizer of one token per character, 1 at the start of every text.
        return label_token_ids(
            prompt, words, encode=lambda text: [1, *map(ord, text)], describe=chr
        )

    def test_leading_space_belongs_to_the_word(self) -> None:
        assert self.find(("a",), prompt="Label:\n") == ((ord("a"),),)

    def test_same_first_token(self) -> None:
        # Every word starts with the space, which is a token of its own here.
        with pytest.raises(ScoringError, match=r"'ab' \(' ', 'a', 'b'\) and 'cd' \(' ', 'c'"):
            self.find(("ab", "cd"))

    def test_same_tokens_in_another_order(self) -> None:
        with pytest.raises(ScoringError, match="'ab' .* and 'ba' "):
            self.find(("ab", "ba"), prompt="\n")

    def test_shared_later_tokens_are_fine(self) -> None:
        assert self.find(("abb", "cb"), prompt="\n") == ((97, 98), (99, 98))

    def test_a_word_without_tokens(self) -> None:
        with pytest.raises(ScoringError, match="label word 'b' has no token"):
            label_token_ids("a", ("b",), encode=lambda text: [1], describe=chr)


class TestClassProbabilities:
    def test_mean_of_tokens_then_normalised(self) -> None:
        logits = np.log([[0.1, 0.3, 0.05], [0.2, 0.2, 0.4]])
        probs = class_probabilities(logits, ((7, 9), (8,)))
        expected = np.array([[0.075, 0.3], [0.3, 0.2]])
        np.testing.assert_allclose(probs, expected / expected.sum(axis=1, keepdims=True))

    def test_a_constant_changes_nothing_and_far_values_stay_finite(self) -> None:
        logits = np.array([[-900.0, -1800.0], [900.0, 899.0]])
        probs = class_probabilities(logits, ((3,), (5,)))
        np.testing.assert_allclose(probs, class_probabilities(logits + 500.0, ((3,), (5,))))
        assert np.isfinite(probs).all()

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_values_that_are_not_finite(self, value: float) -> None:
        logits = np.zeros((3, 2))
        logits[1, 0] = value
        with pytest.raises(ScoringError, match="query 1: the model gives"):
            class_probabilities(logits, ((3,), (5,)))
