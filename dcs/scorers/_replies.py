"""What a server's reply says: log-probabilities of tokens, an error, when to come again."""

from __future__ import annotations

import email.utils
import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from dcs.errors import ScoringError

__all__ = [
    "best_token",
    "error_message",
    "pause_asked",
    "refuse_prefixes",
    "retry_after",
    "shown_tokens",
    "word_log_probability",
]

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
#: How tokenizers write a space where a server shows their raw tokens.
_SPACES = str.maketrans({"\u2581": " ", "\u0120": " "})


def shown_tokens(answer: Any) -> dict[str, float]:
    """Return the next tokens that an answer shows, with their log-probabilities.

    Of either interface: completions show a mapping, chat shows entries.

    Raises
    ------
    ValueError
        If it shows none.
    """
    try:
        logprobs = answer["choices"][0]["logprobs"]
        if "top_logprobs" in logprobs:
            pairs = dict(logprobs["top_logprobs"][0]).items()
        else:
            entries = logprobs["content"][0]["top_logprobs"]
            pairs = {entry["token"]: entry["logprob"] for entry in entries}.items()
        return {str(token): float(value) for token, value in pairs}
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(str(error)) from None


def word_log_probability(answer: Any, prompt: str, word: str) -> float:
    """Return the log-probability of a label word at the end of an echoed prompt.

    Parameters
    ----------
    answer : object
        The answer to the prompt and the word, echoed with its log-probabilities, and at most one
        token more.
    prompt, word : str
        The prompt without the word, and the word.

    Raises
    ------
    ValueError
        If the answer does not show the prompt's log-probabilities, or its last tokens do not make
        up the word.
    """
    try:
        logprobs = answer["choices"][0]["logprobs"]
        tokens = [str(token).translate(_SPACES) for token in logprobs["tokens"]]
        values = logprobs["token_logprobs"]
        length = int((answer.get("usage") or {}).get("prompt_tokens", len(tokens) - 1))
    except (KeyError, IndexError, TypeError, AttributeError):
        raise ValueError("it shows no log-probabilities of the prompt") from None
    if not 1 < length <= len(tokens) == len(values):
        raise ValueError("it shows no log-probabilities of the prompt")
    wanted, text, start = word.strip(), "", length
    while text.strip() != wanted:
        start -= 1
        text = tokens[start] + text
        if start < 1 or len(text.strip()) > len(wanted) or not wanted.endswith(text.strip()):
            raise ValueError(f"the prompt ends with the tokens {tokens[start:length]}")
    if text[:1] != " " and not prompt[-1:].isspace() and not tokens[start - 1].strip(" "):
        start -= 1  # the space before the word is a token of its own
    found = [float("nan") if value is None else float(value) for value in values[start:length]]
    total = sum(found)
    if not math.isfinite(total):
        raise ValueError(f"the log-probabilities of the word are {found}")
    return total


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


def pause_asked(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a server wants no requests for, if it says so.

    It may say so when it refuses (``Retry-After``, ``retry-after-ms``) or beforehand, when the
    last request or token that it allows is spent (``x-ratelimit-remaining-...: 0`` and
    ``x-ratelimit-reset-...``).
    """
    pauses = [retry_after(headers.get("Retry-After"))]
    milliseconds = headers.get("retry-after-ms", "")
    if milliseconds.replace(".", "", 1).isdigit():
        pauses.append(float(milliseconds) / 1000)
    for what in ("requests", "tokens"):
        if headers.get(f"x-ratelimit-remaining-{what}", "").strip() in ("0", "0.0"):
            parts = _DURATION.findall(headers.get(f"x-ratelimit-reset-{what}", ""))
            pauses.append(sum(float(number) * _SECONDS[unit] for number, unit in parts))
    return max((pause for pause in pauses if pause is not None), default=None)


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
