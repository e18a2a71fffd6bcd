"""What every engine must do, run over every engine and architecture at hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dcs.errors import ScoringError
from dcs.prompting.files import get_task
from dcs.prompting.tasks import render_prefix, render_query, select_demonstrations
from dcs.scoring import Scorer, load_scorer
from dcs.scoring.base import RowsError
from dcs.testing import check_scorer
from tests.dcs.refusals import refuses

TASK = get_task("reviews")
PREFIX = render_prefix(TASK, select_demonstrations(TASK, 2, seed=0))
QUERIES = [render_query(TASK, e.text) for e in TASK.examples("test")[:24]]
QUERIES[5] = render_query(TASK, "Fine.")  # lengths far apart need padding
QUERIES[9] = render_query(TASK, "Ünlikely wörds, such as quixotry — 字! " * 3)


class ScorerContract:
    """Subclasses give the fixture `scorer`, of a class."""

    def test_keeps_the_contract(self, scorer: Scorer) -> None:
        check_scorer(scorer)

    def test_rows_of_any_length_depend_on_their_own_prompt_alone(self, scorer: Scorer) -> None:
        probs = scorer.score(PREFIX, QUERIES, TASK.label_words)
        assert np.unique(probs.round(6), axis=0).shape[0] > 12
        for row in (0, 5, 9):
            alone = scorer.score(PREFIX, [QUERIES[row]], TASK.label_words)
            np.testing.assert_allclose(alone[0], probs[row], atol=1e-5)
        assert np.abs(scorer.score("", QUERIES, TASK.label_words) - probs).max() > 1e-3

    @pytest.mark.parametrize("words", [("good", "bad", "good"), ("good", "good enough")])
    def test_colliding_words_are_refused(self, scorer: Scorer, words: tuple[str, ...]) -> None:
        names = [repr(words[0]), repr(words[-1])]
        refuses(ScoringError, scorer.score, PREFIX, QUERIES, words, names=names)

    too_long = "query 1: its prompt has .* tokens"

    def test_too_long_a_prompt_costs_its_row(self, scorer: Scorer) -> None:
        queries = [QUERIES[0], "long " * 5000, QUERIES[1]]
        steps: list[int] = []
        with pytest.raises(RowsError, match=self.too_long) as caught:
            scorer.score(PREFIX, queries, TASK.label_words, progress=steps.append)
        assert ([*caught.value.reasons], sum(steps)) == ([1], 3)
        assert np.isnan(caught.value.probs[1]).all()
        expected = scorer.score(PREFIX, QUERIES[:2], TASK.label_words)
        np.testing.assert_allclose(caught.value.probs[[0, 2]], expected, atol=1e-5)
        with pytest.raises(RowsError, match=r"\(and 1 more prompts\)"):
            scorer.score("", [queries[1]] * 2, TASK.label_words)


class TestTinyLM(ScorerContract):
    @pytest.fixture(scope="class", params=["auto", "joint"])
    @classmethod
    def scorer(cls, request: pytest.FixtureRequest) -> Scorer:
        return load_scorer("tiny_lm", device="cpu", label_rule=request.param)


class TestOtherArchitecture(ScorerContract):
    @pytest.fixture(scope="class")
    @classmethod
    def scorer(cls, other_model: Path) -> Scorer:
        return load_scorer(other_model, device="cpu")
