"""What a message says of values, names and errors stands on one line and hides secrets."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dcs.errors import (
    ConfigError,
    escaped,
    last_line,
    named,
    one_line,
    plain_address,
    reason,
    redact,
    show,
)


@given(st.text())
@example("\u202egnp.exe\u2066\u200f\x1b[31m")
def test_every_text_makes_one_line(text):
    error = RuntimeError(text)
    for said in (show(text), escaped(text), reason(error), one_line(error), named(error)):
        assert len(said.splitlines()) <= 1
    for said in (show(text), escaped(text), reason(error)):
        # Nothing that turns the direction of what is read, hides it or moves the cursor.
        assert said.isprintable()
    for said in (one_line(error), last_line(error)):
        assert 0 < len(said) <= 300


def test_addresses_of_servers_are_kept_unless_they_may_hold_a_key():
    for address in ("http://127.0.0.1:8000/v1/", "https://host/v1"):
        assert plain_address(address) == address.rstrip("/")
    others = ("ftp://host/v1", "host:8000", "https://", "https://h/v1?k=1", "https://me@h")
    for address in (*others, "https://h/v1#k", "https://h/hf_planted0123456789/v1"):
        with pytest.raises(ConfigError):
            plain_address(address)


@given(st.text() | st.lists(st.text()) | st.integers(), st.integers(10, 100))
def test_a_shown_value_is_no_longer_than_its_limit(value, limit):
    assert len(show(value, limit)) <= limit


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://user:a-long/password@host is away", "https://user:***@host is away"),
        ("postgresql+psycopg://u:p@ss@h:5/db?x=1", "postgresql+psycopg://u:***@h:5/db?x=1"),
        ("mysql://h/db?user=a&password=x&x=1", "mysql://h/db?user=a&password=***&x=1"),
        ("https://abcdefghijklmnopqrstuvwxyz@h/v1", "https://***@h/v1"),
        ("https://short@h/v1", "https://***@h/v1"),
        ("postgresql://people@h/db", "postgresql://people@h/db"),
        ("https://h/planted0123456789abcd/ml", "https://h/***/ml"),
        ("https://h/ml#planted0123456789abcd", "https://h/ml#***"),
        ("https://h/ml?k=planted0123456789abcd&a=1", "https://h/ml?k=***&a=1"),
        (
            f"http://h/#/experiments/1/runs/{'0a1b' * 8}",
            f"http://h/#/experiments/1/runs/{'0a1b' * 8}",
        ),
        ("Authorization: Bearer abcdefghij", "Authorization: Bearer ***"),
        ("key sk-0123456789abcdef0 refused", "key sk-*** refused"),
        ("http://127.0.0.1:5000/x@y", "http://127.0.0.1:5000/x@y"),
        ("sqlite:////a/b:c@d.db", "sqlite:////a/b:c@d.db"),
        ("key 'beta': 0.5", "key 'beta': 0.5"),
        ("it said planted-0123", "it said ***"),
        ("it said eight008 and seven07", "it said *** and seven07"),
        ("key hf_abcdefghijklmnopqrstuvwxyz", "key hf_***"),
        ("Llama-2-7b-hf__emotion4_task_icl1", "Llama-2-7b-hf__emotion4_task_icl1"),
    ],
)
def test_secrets_are_hidden(text, shown, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "planted-0123")
    monkeypatch.setenv("SOME_TOKEN", "eight008")
    monkeypatch.setenv("SOME_PASSWORD", "seven07")
    assert one_line(ValueError(text)) == redact(text) == redact(shown) == shown
