"""What looks like a password, token or key is not shown."""

from __future__ import annotations

import pytest

from dcs.messages import redact


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql+psycopg://u:p@ss@h:5/db?x=1", "postgresql+psycopg://u:***@h:5/db?x=1"),
        ("mysql://h/db?user=a&password=x&x=1", "mysql://h/db?user=a&password=***&x=1"),
        ("https://abcdefghijklmnopqrstuvwxyz@h/v1", "https://***@h/v1"),
        ("Authorization: Bearer abcdefghij", "Authorization: Bearer ***"),
        ("http://127.0.0.1:5000/x@y", "http://127.0.0.1:5000/x@y"),
        ("sqlite:////a/b:c@d.db", "sqlite:////a/b:c@d.db"),
        ("key 'beta': 0.5", "key 'beta': 0.5"),
    ],
)
def test_what_is_redacted(text: str, shown: str) -> None:
    assert redact(f"before {text} after") == f"before {shown} after"
    assert redact(shown) == shown


def test_values_of_secret_variables_are_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "planted-0123")
    assert redact("it said planted-0123") == "it said ***"
