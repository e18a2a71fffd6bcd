"""What is read from answers in words."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from dcs.data.answers import parse_distribution, parse_vote
from dcs.data.reader import read_table
from dcs.errors import TableError

WORDS = ("World", "Sports", "New York", "York")


#: Answers to `WORDS`, and the place of the one that each names.
VOTES: dict[str, int | None] = {
    " World": 0,
    '**"Sports"**': 1,
    "The category is World.": 0,
    '{"label": "New York"}': 2,
    "York, not New York": 3,
    "not Sports but World": None,
    "": None,
    "<think>Sports? no</think>\n\nWorld": 0,
    "<think>surely Sports": None,
    "no tag: Sports</think> World": 0,
    "<|channel|>analysis<|message|>Sports?<|end|><|channel|>final<|message|>World": 0,
    "<|channel|>analysis<|message|>Sports": None,
    # Lists, questions and shares are not answers.
    "World/Sports": None,
    "Sports and World": None,
    "World or Sports? Sports.": None,
    "World: 0.1, Sports: 0.9": None,
    '{"World": false, "Sports": true}': 1,
    "Sports? No, not quite.": None,
    # Nor is what an answer denies.
    "This is not a piece on Sports.": None,
    "non-Sports": None,
    "far from being a piece on Sports": None,
    "anything but Sports": None,
    "the opposite of Sports": None,
    "I doubt that it is Sports": None,
    "Without a doubt, Sports": 1,
    "It cannot be Sports.": None,
    "everything except for Sports": None,
    "Sports is wrong": None,
    "Sports doesn't apply": None,
    "nothing but Sports": 1,
    "Sports. It is not World": 1,
    "World, not Sports": 0,
    # A label that is an ordinary word, before another one.
    "World news first. Category: Sports": None,
    "World... no, Sports": None,
    "World\n\nIt has words on Sports.": 0,
    "World (Sports is a minor topic)": 0,
    "World because Sports is a minor topic": 0,
    # Lists with verdicts.
    "World: ❌\nSports: ✅": None,
    "❌ World ✅ Sports": None,
    "[ ] World\n[x] Sports": None,
    "World (0), Sports (1)": None,
    "World. wrong\nSports. right": None,
    "World - no\nSports - yes": None,
    "World\nSports": None,
    '{"World": null, "Sports": 1}': None,
    "~~World~~ Sports": None,
    # The whole clause is denied.
    "I don't think that this long article is about Sports": None,
    "It does not, as far as I can see, concern Sports": None,
    "It has no pictures, so it is Sports": 1,
    "not (Sports)": None,
    "non - Sports": None,
    "0% Sports": None,
    "The Sports class does not apply.": None,
}


@pytest.mark.parametrize(
    ("text", "words", "vote"),
    [
        *((text, WORDS, vote) for text, vote in VOTES.items()),
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
        ("Answer: Yes. I have no doubt.", ("yes", "no"), 0),
        ("−1", ("-1", "0", "1"), 0),
        ("It is non\u2011toxic.", ("toxic", "non-toxic"), 1),
        ("new\u00a0york", ("York", "New York"), 1),
        ("ｐｏｓｉｔｉｖｅ", ("positive", "negative"), 0),
        ("I don’t know", ("I know", "I don't know"), 1),
        ("-1", ("0", "1"), None),
        ("2.5", ("2", "3"), None),
        ("2.0", ("2", "3"), 0),
        ("2-3", ("2", "3"), None),
        ("3/5", ("3", "5"), 0),
        ("1. The food is praised. Rating: 4", ("1", "4"), 1),
        ("1) The food is praised.", ("1", "4"), None),
        ("4.\nThe food is praised.", ("1", "4"), 1),
        ("It is about Sales.", ("IT", "Sales"), 1),
        ("It is a refund.", ("IT", "Sales"), None),
        ("It is IT.", ("IT", "Sales"), 0),
        ("May be negative", ("negative", "may"), None),
        ("Negative. It starts positive.", ("positive", "negative"), 1),
        ("Positive. Negative.", ("positive", "negative"), None),
        ("good. Bad is the answer", ("good", "bad"), None),
        ("Good: neither bad nor okay", ("good", "bad", "okay"), 0),
        ("Correct answer: incorrect", ("correct", "incorrect"), None),
        ("in-correct", ("correct", "incorrect"), None),
        ("No doubt, yes.", ("yes", "no"), None),
        ("No es un comentario positivo", ("positivo", "negativo"), None),
        ("O texto não parece ser positivo", ("positivo", "negativo"), None),
        ("O tom no texto é positivo", ("positivo", "negativo"), 0),
        ("het is niet erg positief", ("positief", "negatief"), None),
        ("nie jest pozytywny", ("pozytywny", "negatywny"), None),
        ("det är inte positiv", ("positiv", "negativ"), None),
        ("Das ist positiv nicht", ("positiv", "negativ"), None),
        ("Ich glaube nicht, dass es positiv ist", ("positiv", "negativ"), None),
        ("я не думаю, что он положительный", ("положительный", "иной"), None),
        ("olumlu değil", ("olumlu", "olumsuz"), None),
        ("ليس إيجابي", ("إيجابي", "سلبي"), None),
        ("ini tidak bisa positif", ("positif", "negatif"), None),
        ("不属于正面", ("正面", "负面"), None),
        ("非常正面", ("正面", "负面"), 0),
        ("긍정이라고 할 수 없다", ("긍정", "부정"), None),
        ("ポジティブとは言えない", ("ポジティブ", "ネガティブ"), None),
        ("ポジティブではない", ("ポジティブ", "ネガティブ"), None),
        ("긍정이 아닙니다", ("긍정", "부정"), None),
    ],
)
def test_votes(text: str, words: tuple[str, ...], vote: int | None) -> None:
    assert parse_vote(text, words) == vote


def test_an_answer_that_was_cut_may_be_a_thought() -> None:
    assert (
        parse_vote("A tale of Sports", WORDS) == parse_vote("Sports. A tale", WORDS, cut=True) == 1
    )
    assert parse_vote("A tale of Sports", WORDS, cut=True) is None


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
        ("1. A: 70 %\n2. B: 20 %", [0.7, 0.2, 0.1]),
        # Not guessed.
        ("not A: 70 %, B: 20 %, C: 10 %", None),
        ("non-A: 0.7, B: 0.2, C: 0.1", None),
        ("A: 0.5, B: 0.3, other: 0.2", None),
        ("A: 50 %, B: 30 %, 20 % other", None),
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


def test_answers_in_files_are_read_alike() -> None:
    said = {"answer_1": ["No.", "**Yes**"], "answer_2": ["Yes", "No, since ..."]}
    said |= {"answer_3": ["no", "yes or no?"], "label": ["Yes", "No"]}
    frame = pd.concat([pd.DataFrame(said)] * 10, ignore_index=True)
    with pytest.raises(TableError):
        read_table(frame)
    table = read_table(frame, classes=["No", "Yes"])
    # Smoothed by half a vote for each class.
    np.testing.assert_allclose(table.probs[0], [2.5 / 4, 1.5 / 4])
    np.testing.assert_allclose(table.probs[1], [0.5, 0.5])
