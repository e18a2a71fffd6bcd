"""What a message says of values, names and errors stands on one line and hides secrets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcs.messages import escaped, first_line, last_line, named, one_line, reason, show, suggest


@pytest.mark.parametrize(
    ("name", "answer"), [("dsc", " (did you mean 'dcs'?)"), ("zzzz", ""), (7, "")]
)
def test_the_nearest_name_is_suggested(name, answer):
    assert suggest(name, ["icl", "dnip", "furud", "dcs"]) == answer


@given(st.text())
def test_every_text_makes_one_line(text):
    error = RuntimeError(text)
    for said in (show(text), escaped(text), reason(error), one_line(error), named(error)):
        assert len(said.splitlines()) <= 1
    for said in (one_line(error), first_line(error), last_line(error)):
        assert 0 < len(said) <= 300


def test_the_lines_of_an_error():
    error = ValueError("\n  the first\nthe  second\n\n")
    assert first_line(error) == "the first"
    assert last_line(error) == "the  second"
    assert one_line(error) == "the first the second"
    assert named(error) == "ValueError: the first the second"
    assert reason(FileNotFoundError(2, "No such file", "a")) == "No such file"


def test_an_error_without_words_is_named():
    for say in (first_line, last_line, one_line, named, reason):
        assert say(TimeoutError()) == "TimeoutError"
    assert last_line("") == ""


def test_secrets_are_hidden():
    error = ConnectionError("https://user:a-long-password@host is away")
    assert one_line(error) == "https://user:***@host is away"
