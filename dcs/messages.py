"""Putting values, names and errors into messages of one line."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable

__all__ = [
    "escaped",
    "first_line",
    "last_line",
    "named",
    "one_line",
    "reason",
    "redact",
    "show",
    "suggest",
]


_HIDDEN = "***"

#: ``scheme://user:password@host``; a password may hold slashes, a port and a path are none.
_USER_INFO = re.compile(
    r"(?P<head>\b(?:https?://[^/?#\s:@'\"]*:(?!\d{1,5}[/?#])|"
    r"(?!https?:)[a-z][a-z0-9+.-]*://[^/?#\s:@'\"]*:))[^?#\s'\"]+(?=@)",
    re.IGNORECASE,
)

#: A token in place of the user: ``https://TOKEN@host``. Names of people are shorter.
_TOKEN_USER = re.compile(r"(?P<head>[A-Za-z][A-Za-z0-9+.-]*://)[^/?#\s:@'\"]{20,}(?=@)")

#: ``password=...`` in the query of an address or in the words of a database driver.
_NAMED = re.compile(
    r"(?P<head>\b(?:password|passwd|pwd|passfile|sslpassword|token|access_token|api_key|apikey|"
    r"secret|sig|signature|aws_secret_access_key)=)[^&\s'\",;)]+",
    re.IGNORECASE,
)

#: ``Authorization: Bearer ...`` and the keys of well-known services.
_BEARER = re.compile(r"(?P<head>\b(?:Bearer|Basic)\s+)[A-Za-z0-9._~+/=-]{8,}")

_KEYS = re.compile(r"\b(?P<head>sk-|hf_|ghp_|xox[bp]-|AKIA)[A-Za-z0-9_-]{16,}")

#: Variables whose values are secrets. Short values would hide words of ordinary text.
_SECRET_VARIABLE = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD)$", re.IGNORECASE)

_SHORTEST = 8


def redact(text: str, *, environment: bool = True) -> str:
    """Return `text` with what looks like a password, token or key replaced by ``***``.

    A net below the code that does not print secrets in the first place: errors of drivers and
    servers repeat the addresses and headers they were given.

    Parameters
    ----------
    text : str
        Any text.
    environment : bool
        Also replace the values of environment variables that are named as secrets.
    """
    for name, value in os.environ.items() if environment else ():
        if len(value) >= _SHORTEST and _SECRET_VARIABLE.search(name):
            text = text.replace(value, _HIDDEN)
    for pattern in (_USER_INFO, _TOKEN_USER, _NAMED, _BEARER, _KEYS):
        text = pattern.sub(lambda match: f"{match['head']}{_HIDDEN}", text)
    return text


_LONGEST = 300


def show(value: object, limit: int = 80) -> str:
    """Quote a value for a one-line message: escaped, and cut when long."""
    item = getattr(value, "item", None)
    try:
        # The scalars of NumPy say what they are; what they hold is wanted.
        text = repr(item() if callable(item) and getattr(value, "shape", None) == () else value)
    except (RecursionError, ValueError):
        # Too deep, or an integer of thousands of digits.
        text = f"a {type(value).__name__} too large to show"
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def escaped(text: object) -> str:
    """Escape what would break a message into several lines or hide part of it."""
    plain = str(text)
    if plain.isprintable():
        return plain
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in plain)


def suggest(name: object, allowed: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the allowed name nearest to `name`, or nothing."""
    nearest = difflib.get_close_matches(str(name), list(allowed), n=1)
    return f" (did you mean {nearest[0]!r}?)" if nearest else ""


def reason(error: BaseException) -> str:
    """Say in one short line why the system or a library refused."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return escaped(first_line(error))[:160]


def one_line(error: BaseException) -> str:
    """Return all that an error says, without secrets, on one line that is cut when long."""
    text = redact(" ".join(str(error).split())) or type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def named(error: BaseException) -> str:
    """Return the class of an error that is not ours, and what it says on one line."""
    kind = type(error).__name__
    return f"{kind}: {one_line(error)}" if str(error).strip() else kind


def first_line(said: BaseException | str) -> str:
    """Return the first line that says something; for an error without words, its class."""
    return _lines(said)[0]


def last_line(said: BaseException | str) -> str:
    """Return the last line that says something; for an error without words, its class."""
    return _lines(said)[-1]


def _lines(said: BaseException | str) -> list[str]:
    silent = type(said).__name__ if isinstance(said, BaseException) else ""
    lines = [line.strip()[:_LONGEST] for line in str(said).splitlines() if line.strip()]
    return lines or [silent]
