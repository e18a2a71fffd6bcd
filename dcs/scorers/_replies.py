"""What a server's reply says: the token of a label word, an error, when to come again."""

from __future__ import annotations

import email.utils
import json
import time
from collections.abc import Mapping, Sequence

from dcs.errors import ScoringError

__all__ = ["best_token", "error_message", "refuse_prefixes", "retry_after"]


def best_token(
    shown: Mapping[str, float], word: str, label_words: Sequence[str], spaced: bool
) -> float | None:
    """Return the largest log-probability of a token that begins this label word alone."""
    values = []
    for token, value in shown.items():
        bare = token.strip()
        if not bare or (spaced and token[:1] != " ") or not word.strip().startswith(bare):
            continue
        if sum(other.strip().startswith(bare) for other in label_words) == 1:
            values.append(value)
    return max(values, default=None)


def refuse_prefixes(label_words: Sequence[str]) -> None:
    """Refuse label words of which one begins another."""
    words = [word.strip() for word in label_words]
    for later, word in enumerate(words):
        for other in words[:later]:
            if word.startswith(other) or other.startswith(word):
                raise ScoringError(
                    f"label words {other!r} ({f' {other}'!r}) and {word!r} ({f' {word}'!r}) "
                    "collide: one begins the other, so that their tokens cannot be told apart; "
                    "choose other words"
                )


def error_message(text: str) -> str:
    """Return the message of an error reply in one line, cut to a readable length."""
    try:
        content = json.loads(text)
        text = str(content["error"]["message"])
    except (ValueError, TypeError, KeyError):
        pass  # not in the usual form: shown as it is
    return " ".join(text.split())[:300]


def retry_after(value: str | None) -> float | None:
    """Return the seconds of a Retry-After header: a number, or a date."""
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        moment = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, moment.timestamp() - time.time())
