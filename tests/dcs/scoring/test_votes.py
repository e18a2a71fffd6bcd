"""Votes of engines that run the model in this process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dcs.errors import ScoringError
from dcs.scoring import Scorer, load_scorer
from dcs.scoring.base import RowsError
from dcs.scoring.chat import ChatTemplate, opened_thought
from tests.dcs.refusals import refuses
from tests.dcs.scoring.test_chat import TEMPLATES, tokenizer_with
from tests.dcs.scoring.test_contract import PREFIX, QUERIES, TASK

WORDS = TASK.label_words


def votes_of(scorer: Scorer, queries: list[str]) -> list[list[int]]:
    return scorer.score(PREFIX, queries, WORDS).astype(int).tolist()


class VotesContract:
    """Subclasses give the fixture `voter`: tiny_lm with 40 votes of at most 4 tokens."""

    def test_votes_follow_the_probabilities(self, voter: Scorer, tiny_scorer: Scorer) -> None:
        votes = voter.score(PREFIX, QUERIES, WORDS)
        assert votes.shape == (len(QUERIES), 5)
        assert (votes == votes.round()).all()
        assert (votes.sum(axis=1) <= 40).all()
        named = votes.any(axis=1)  # odd prompts may have no vote
        assert named.sum() >= 22
        expected = tiny_scorer.score(PREFIX, QUERIES, WORDS)[named]
        shares = votes[named] / votes[named].sum(axis=1, keepdims=True)
        # 960 votes: the mean share of a class has a standard error below 0.02.
        np.testing.assert_allclose(shares.mean(axis=0), expected.mean(axis=0), atol=0.08)
        assert voter.settings["votes"] == "40"
        assert "label_rule" not in voter.settings

    def test_votes_of_a_prompt_are_its_own(self, voter: Scorer) -> None:
        whole = votes_of(voter, QUERIES[:2])
        assert votes_of(voter, QUERIES[:2][::-1]) == whole[::-1]
        assert votes_of(voter, QUERIES[1:2]) == whole[1:]


class TestTransformers(VotesContract):
    @pytest.fixture(scope="class")
    @classmethod
    def voter(cls) -> Scorer:
        return load_scorer("tiny_lm", device="cpu", votes=40, max_tokens=4)

    def test_most_answers_name_no_label(self, other_model: Path) -> None:
        scorer = load_scorer(other_model, device="cpu", votes=2, max_tokens=2)
        words, said = ("quixotry", "abbreviation"), "query 0: no label word is in the answer"
        with pytest.raises(ScoringError, match=said) as caught:
            scorer.score(PREFIX, QUERIES, words)
        assert not isinstance(caught.value, RowsError)
        # Of a few prompts nobody can tell.
        refuses(RowsError, scorer.score, PREFIX, QUERIES[:4], words, names=[said])

    def test_answers_that_state_no_distribution_are_missing(self) -> None:
        scorer = load_scorer("tiny_lm", device="cpu", answer="distribution", max_tokens=2)
        names = ["query 0: its answer states no share", "(and 1 more prompts)"]
        refuses(RowsError, scorer.score, PREFIX, QUERIES[:2], WORDS, names=names)
        assert scorer.settings["answer"] == "distribution" and "votes" not in scorer.settings


def test_a_model_that_votes_may_think() -> None:
    tokenizer = tokenizer_with(TEMPLATES["thinking"])
    ((text, *_), _) = ChatTemplate(tokenizer, "m", thinking=True).render(PREFIX, QUERIES)
    assert text.endswith("<|im_start|>assistant\n")
    opened = tokenizer_with("{% for m in messages %}{{ m.content }}{% endfor %}[THINK]")
    ((text, *_), _) = ChatTemplate(opened, "m", thinking=True).render("", QUERIES)
    assert opened_thought(text) == "[THINK]"
