"""What is read from likely tokens, from sampled texts, and from the logits of label words."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcs.errors import ScoringError
from dcs.scoring.chat import Tokenizer
from dcs.scoring.labels import (
    LabelRule,
    Shown,
    class_probabilities,
    fill_missing,
    label_masses,
    parse_distribution,
    parse_vote,
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

    def test_case_counts_if_it_distinguishes_labels(self) -> None:
        np.testing.assert_allclose(label_masses(logs(us=0.3, _US=0.2), ("us", "US")), [0.3, 0.2])

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
            assert (
                label_masses(shown, words).tolist() == (0.5 * np.eye(len(words))[owner]).tolist()
            )


def test_missing_labels() -> None:
    filled = fill_missing(np.array([0.6, 0.2, 0.0, 0.0]), logs(a=0.6, b=0.2))
    np.testing.assert_allclose(filled, [0.6, 0.2, 0.1, 0.1])


@given(st.lists(st.floats(1e-6, 1.0), min_size=3, max_size=8), st.integers(1, 7))
def test_a_missing_label_is_never_above_a_returned_one(weights: list[float], top: int) -> None:
    masses = np.sort(np.array(weights) / sum(weights))[::-1]
    shown = [(str(k), math.log(mass)) for k, mass in enumerate(masses[:top])]
    filled = fill_missing(np.where(np.arange(masses.size) < top, masses, 0.0), shown)
    assert math.isclose(filled.sum(), 1.0)
    assert (np.diff(filled) <= 1e-12).all()


@pytest.mark.parametrize(
    ("text", "vote"),
    [
        (" World", 0),
        ('**"Sports"**', 1),
        ("The category is World.", 0),
        ('{"label": "New York"}', 2),
        ("York, not New York", 3),
        ("not Sports but World", None),
        ("", None),
        ("<think>Sports? no</think>\n\nWorld", 0),
        ("<think>surely Sports", None),
        ("no tag: Sports</think> World", 0),
        ("<|channel|>analysis<|message|>Sports?<|end|><|channel|>final<|message|>World", 0),
        ("<|channel|>analysis<|message|>Sports", None),
        # Lists, questions and shares are not answers.
        ("World/Sports", None),
        ("Sports and World", None),
        ("World or Sports? Sports.", None),
        ("World: 0.1, Sports: 0.9", None),
        ('{"World": false, "Sports": true}', 1),
        ("Sports? No, not quite.", None),
        # Nor is what an answer denies.
        ("This is not a piece on Sports.", None),
        ("non-Sports", None),
        ("far from Sports", None),
        ("World, not Sports", 0),
    ],
)
def test_votes(text: str, vote: int | None) -> None:
    assert parse_vote(text, WORDS) == vote


@pytest.mark.parametrize(
    ("text", "words", "vote"),
    [
        ("答案是正面", ("正面", "负面"), 0),
        ("这不是正面,是负面", ("正面", "负面"), None),
        ("不正面", ("正面", "负面"), None),
        ("是的", ("是", "否"), 0),
        ("不是", ("是", "否"), None),
        ("不是", ("是", "不是"), 1),
        ("答案是A", ("A", "B"), 0),
        ("긍정입니다", ("긍정", "부정"), 0),
        ("iyi", ("İyi", "Kötü"), 0),
        ("Cevap: İYİ.", ("iyi", "kötü"), 0),
        ("KO\u0308TU\u0308", ("iyi", "k\u00f6t\u00fc"), 1),
        ("STRASSE", ("Straße", "Haus"), 0),
        ("A", ("a", "A"), 1),
        ("Non-toxic", ("toxic", "non-toxic"), 1),
        ("It isn't toxic.", ("toxic", "harmless"), None),
        ("I think a good answer is B", ("A", "B"), 1),
        ("A good question. The answer is B.", ("A", "B"), None),
        ("A is right", ("A", "B"), 0),
        ("Yes, since there is no doubt", ("yes", "no"), 0),
        ("Yes and no", ("yes", "no"), None),
        ("Answer: Yes. I have no doubt.", ("yes", "no"), None),
        ("−1", ("-1", "0", "1"), 0),
        ("Non\u2011toxic", ("toxic", "non-toxic"), 1),
        ("It is non\u2011toxic.", ("toxic", "non-toxic"), 1),
        ("new\u00a0york", ("York", "New York"), 1),
        ("ｐｏｓｉｔｉｖｅ", ("positive", "negative"), 0),
        ("I don’t know", ("I know", "I don't know"), 1),
        ("-1", ("0", "1"), None),
        ("2.5", ("2", "3"), None),
        ("2.0", ("2", "3"), 0),
        ("2-3", ("2", "3"), None),
        ("3/5", ("3", "5"), 0),
        ("ポジティブではない", ("ポジティブ", "ネガティブ"), None),
        ("긍정이 아닙니다", ("긍정", "부정"), None),
    ],
)
def test_votes_in_any_script(text: str, words: tuple[str, ...], vote: int | None) -> None:
    assert parse_vote(text, words) == vote


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ('```json\n{"a": 0.7, "b": .2, "c": 0.1}```', [0.7, 0.2, 0.1]),
        ("**A** - 70\n**B** - 20\n**C** - 10", [0.7, 0.2, 0.1]),
        ("A=62,5%; B=37,5%; C=0%", [0.625, 0.375, 0.0]),
        ("A: 70 %, B: 20 %", [0.7, 0.2, 0.1]),
        ("A: 100%", [1.0, 0.0, 0.0]),
        ("A: 33 %, B: 33 %, C: 33 %", [1 / 3] * 3),
        ("A: 100 %, B: 0, C: 0", [1.0, 0.0, 0.0]),
        ("A: 0.7, B: 0.2, C: 0.1 (confidence: 90 %)", [0.7, 0.2, 0.1]),
        ("<think>A: 1 %?</think>A: 0.7, B: 0.2, C: 0.1", [0.7, 0.2, 0.1]),
        # Not guessed.
        ("A: 70 %", None),
        ("A: 70 %, B: 70 %, C: 10 %", None),
        ("A: 70 %, A: 60 %, B: 20 %, C: 10 %", None),
        ("A: -5 %, B: 100 %, C: 5 %", None),
        ("A: 1.2.3, B: 0.5, C: 0.5", None),
        ("A: 70-80 %, B: 20 %, C: 5 %", None),
        ("A: 7 out of 10; B: 3 out of 10", None),
        ("A: 7, B: 2", None),
        ("A: 0.5, B: 0.5 %", None),
        ("A: 0, B: 0, C: 0", None),
        ("probably A", None),
        ("<think>A: 70 %, B: 20 %, C: 10 %", None),
    ],
)
def test_distributions(text: str, shares: list[float] | None) -> None:
    found = parse_distribution(text, ("A", "B", "C"))
    if shares is None or found is None:
        assert found is shares
    else:
        np.testing.assert_allclose(found, shares)


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
