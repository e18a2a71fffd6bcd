"""What is read from likely tokens, and from the logits of label words."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcs.data.forms.logs import fill_missing
from dcs.errors import ScoringError
from dcs.scoring.chat import Tokenizer
from dcs.scoring.labels import (
    LabelRule,
    Shown,
    class_probabilities,
    label_masses,
    read_label_words,
)
from tests.dcs.refusals import refuses

WORDS = ("World", "Sports", "New York", "York")


def logs(**shown: float) -> Shown:
    return [(token.replace("_", " "), math.log(mass)) for token, mass in shown.items()]


class TestLabelMasses:
    def test_spellings_are_summed(self) -> None:
        shown = logs(_World=0.4, World=0.1, _world=0.05, WORLD=0.01, _Wor=0.2, the=0.1)
        masses = label_masses(shown, ("World", "Sports"))
        np.testing.assert_allclose(masses, [0.56, 0.0])

    def test_a_token_of_two_words_counts_for_neither(self) -> None:
        shown = logs(_A=0.3, _Ar=0.2, _Ath=0.1, _=0.1)
        np.testing.assert_allclose(label_masses(shown, ("Artist", "Athlete")), [0.2, 0.1])
        # Unless that is what the model is about to write.
        likely, words = logs(_A=0.4, _Ar=0.2, _Bo=0.1), ("Artist", "Athlete", "Book")
        refuses(ScoringError, label_masses, likely, words, names=["'Artist'", "'Athlete'"])

    def test_case_counts_if_it_distinguishes_labels(self) -> None:
        np.testing.assert_allclose(label_masses(logs(us=0.3, _US=0.2), ("us", "US")), [0.3, 0.2])
        names = ["'A'", "'apple'"]  # No token would be the first one's.
        refuses(ScoringError, label_masses, logs(a=0.3), ("apple", "A"), names=names)

    @pytest.mark.parametrize(
        ("tokens", "words", "owners"),
        [
            (["▁Yes", "▁No"], ("Yes", "No"), [0, 1]),
            (["ĠYes", "No", "Ċ"], ("Yes", "No"), [0, 1]),
            (["<0x59>", "<0x4E>"], ("Yes", "No"), [0, 1]),
            (["Ġnon", "Ã©t", "ĠÃ©t"], ("non", "été"), [0, 1, 1]),
            (["æĤª", "<0xE8>", "bytes:\\xe6\\x82"], ("悪い", "良い"), [0, 1, 0]),
            # Letters of the label words and of texts, no marks.
            (["Ġust", "ust"], ("Ġust", "ust"), [0, 1]),
            (["čes", "ano", "é"], ("česky", "ano"), [0, 1]),
            ([" Yes", "ĠNo"], ("Yes", "No"), [0]),
        ],
    )
    def test_pieces_of_a_vocabulary(
        self, tokens: list[str], words: tuple[str, ...], owners: list[int]
    ) -> None:
        for token, owner in zip(tokens, owners, strict=False):
            shown = [(other, math.log(0.5) if other == token else -math.inf) for other in tokens]
            expected = 0.5 * np.eye(len(words))[owner]
            assert label_masses(shown, words).tolist() == expected.tolist()


def test_missing_labels() -> None:
    filled = fill_missing(np.array([0.6, 0.2, 0.0, 0.0]), [0.6, 0.2])
    np.testing.assert_allclose(filled, [0.6, 0.2, 0.1, 0.1])


@given(st.lists(st.floats(1e-6, 1.0), min_size=3, max_size=8), st.integers(1, 7))
def test_a_missing_label_is_never_above_a_returned_one(weights: list[float], top: int) -> None:
    masses = np.sort(np.array(weights) / sum(weights))[::-1]
    shown = masses[:top].tolist()
    filled = fill_missing(np.where(np.arange(masses.size) < top, masses, 0.0), shown)
    assert math.isclose(filled.sum(), 1.0)
    assert (np.diff(filled) <= 1e-12).all()


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
        (("a", "bac"), "auto", ((97,), (98, 97, 99)), "joint"),  # one is in the other, "not good"
        (("abb", "cb"), "mean", ((97, 98), (99, 98)), "mean"),  # later ones may be shared
        (("abb", "cb"), "first", ((97,), (99,)), "first"),
        ((" a",), "mean", ((32, 97),), "mean"),  # the space belongs to the word
    ],
)
def test_tokens(words: Sequence[str], rule: LabelRule, ids: object, settled: LabelRule) -> None:
    assert read(words, rule) == (ids, settled)


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (("aba", "ac"), "mean"),
        (("aba", "ac"), "first"),
        (("ab", "cba"), "mean"),  # the first token of one is in the other
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
        expected = np.array([[0.075, 0.3], [0.3, 0.2]])
        expected /= expected.sum(axis=1, keepdims=True)
        for constant in (0.0, 500.0, -900.0):
            probs = class_probabilities(logits + constant, ((7, 9), (8,)))
            np.testing.assert_allclose(probs, expected)

    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            ((-np.inf, -3.0), [0.0, 1.0]),
            ((-900.0, -1800.0), [1.0, 0.0]),
            *((values, [np.nan] * 2) for values in ((np.nan, 0.0), (np.inf, 0.0), (-np.inf,) * 2)),
        ],
    )
    def test_values_far_apart_or_without_probabilities(
        self, values: tuple[float, float], expected: list[float]
    ) -> None:
        probs = class_probabilities(np.array([(0.0, 0.0), values]), ((3,), (5,)))
        np.testing.assert_array_equal(probs, [[0.5, 0.5], expected])
