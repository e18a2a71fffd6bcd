"""Which tokens stand for a label word, and what a row of logits says of the classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from dcs.errors import ScoringError
from dcs.scoring.chat import Tokenizer
from dcs.scoring.labels import LabelRule, class_probabilities, read_label_words
from tests.dcs.refusals import refuses


def read(words: Sequence[str], rule: LabelRule) -> tuple[tuple[tuple[int, ...], ...], LabelRule]:
    # A tokenizer of one token per character, 1 at the start of every text.
    characters = Tokenizer(
        encode=lambda texts: [[1, *map(ord, text)] for text in texts], describe=chr
    )
    return read_label_words(characters, "\n", words, rule)


@pytest.mark.parametrize(
    ("words", "rule", "ids", "settled"),
    [
        (("aba", "c"), "auto", ((97, 98), (99,)), "mean"),  # the first tokens differ
        (("aba", "ac"), "auto", ((97, 98, 97), (97, 99)), "joint"),  # they collide
        (("abb", "cb"), "mean", ((97, 98), (99, 98)), "mean"),  # later ones may be shared
        (("abb", "cb"), "first", ((97,), (99,)), "first"),
    ],
)
def test_tokens(words: Sequence[str], rule: LabelRule, ids: object, settled: LabelRule) -> None:
    assert read(words, rule) == (ids, settled)


def test_leading_space_belongs_to_the_word() -> None:
    assert read((" a",), "mean")[0] == ((ord(" "), ord("a")),)


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (("aba", "ac"), "mean"),
        (("aba", "ac"), "first"),
        (("ab", "ba"), "mean"),  # the same tokens in another order
        (("ab", "abc"), "auto"),  # one begins the other
        (("ab", "abc"), "joint"),
        (("a", ""), "mean"),  # no token at all
    ],
)
def test_words_that_cannot_be_read_are_refused(words: Sequence[str], rule: LabelRule) -> None:
    refuses(ScoringError, read, words, rule, names=[repr(words[1])])


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

    def test_a_probability_of_zero(self) -> None:
        probs = class_probabilities(np.array([[-np.inf, -3.0]]), ((3,), (5,)))
        assert probs.tolist() == [[0.0, 1.0]]

    @pytest.mark.parametrize("values", [(np.nan, 0), (np.inf, 0), (-np.inf, -np.inf)])
    def test_values_without_probabilities(self, values: tuple[float, float]) -> None:
        logits = np.zeros((3, 2))
        logits[1] = values
        probs = class_probabilities(logits, ((3,), (5,)))
        assert np.isnan(probs).tolist() == [[False] * 2, [True] * 2, [False] * 2]
