"""User-correctable errors, and what their lines of text are made of, without secrets.

Everything else is a bug and shows its traceback.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any


class DCSError(Exception):
    """Root of all expected failures.

    Its text is one line: what is wrong (file, key or row, and the value), what is allowed, and
    what to do next. The command line prints it and exits with code 2.
    """


class InvalidInputError(DCSError, ValueError):
    """An argument, array or file has a value that is not allowed."""


class TableError(InvalidInputError):
    """A probability table or an array of one is malformed; names file, row, class and value."""


class ConfigError(InvalidInputError):
    """A configuration key, option or name is not allowed."""


class SchemeError(InvalidInputError):
    """A correction scheme cannot be read, or does not fit the table it is applied to."""


class ScoringError(DCSError):
    """A model cannot be loaded, or a prompt cannot be scored."""


class TrackingError(DCSError):
    """The tracking store cannot be used."""


class MissingDependencyError(DCSError, ImportError):
    """An optional dependency is needed for what was asked."""


_HIDDEN = "***"
_LONGEST = 300

#: What stands before a secret; the secret itself is outside of the group.
_SECRETS = (
    # scheme://user:password@host; a password may hold slashes, but a port and a path are none.
    r"(?i)(\b[a-z][a-z0-9+.-]*://[^/?#\s:@'\"]*:(?!\d{1,5}[/?#]))[^?#\s'\"]+(?=@)",
    # https://TOKEN@host, and of a database, where names of people are shorter.
    r"(?i)(https?://|[a-z][a-z0-9+.-]*://(?=[^/?#\s:@]{20}))[^/?#\s:@'\"]+(?=@)",
    r"(?i)(\b(?:password|passwd|pwd|passfile|sslpassword|token|access_token|api_key|apikey|"
    r"secret|sig|signature|aws_secret_access_key)=)[^&\s'\",;)]+",
    r"(\b(?:Bearer|Basic)\s+)[A-Za-z0-9._~+/=-]{8,}",
    r"(\b(?:sk-|ghp_|xox[bp]-|AKIA))[A-Za-z0-9_-]{16,}",
    # Not Llama-2-7b-hf__task.
    r"(\bhf_)[A-Za-z0-9]{16,}",
)
_WEB_ADDRESS = r"(?i)https?://[^\s'\"]+"
#: Part of its path, query or fragment that may be a token: long, with digits, and no hash.
_RANDOM_WORD = (
    r"(?i)([/?#=&]|%[0-9a-f]{2})(?![0-9a-f-]+(?![\w.~+-]))(?=(?:[a-z_.~+-]*\d){4})[\w.~+-]{20,}"
)
_SECRET_VARIABLE = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD)$", re.IGNORECASE)
_SHORTEST_SECRET = 8


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
        # Short values would hide words of ordinary text.
        if len(value) >= _SHORTEST_SECRET and _SECRET_VARIABLE.search(name):
            text = text.replace(value, _HIDDEN)
    for pattern in _SECRETS:
        text = re.sub(pattern, rf"\1{_HIDDEN}", text)
    return re.sub(
        _WEB_ADDRESS, lambda found: re.sub(_RANDOM_WORD, rf"\1{_HIDDEN}", found[0]), text
    )


def plain_address(address: str) -> str:
    """Return the address of a server, without a slash at its end, fit to be written down.

    Raises
    ------
    ConfigError
        If it is no address of the web, or holds what could be a secret; which is not repeated.
    """
    allowed = "allowed are http:// and https:// addresses without user, query and fragment"
    if any(mark in address for mark in "@?#") or redact(address) != address:
        raise ConfigError(
            f"base_url: its value may hold a key and is not shown here; {allowed}; the key goes "
            "into the environment variable that key_variable names"
        )
    if not re.match(r"https?://[^/\s]+", address):
        raise ConfigError(f"base_url {show(address)}: {allowed}")
    return address.rstrip("/")


def show(value: Any, limit: int = 80) -> str:
    """Quote a value for a one-line message: escaped, and cut when long."""
    if getattr(value, "shape", None) == ():
        value = value.item()  # NumPy's own text names the type, too.
    try:
        text = escaped(repr(value))
    except (RecursionError, ValueError):
        # Too deep, or an integer of thousands of digits.
        text = f"a {type(value).__name__} too large to show"
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def listing(names: Sequence[str], limit: int = 8) -> str:
    """Quote some names for a message."""
    quoted = ", ".join(show(name, 30) for name in names[:limit]) or "none"
    return f"{quoted} and {len(names) - limit} more" if len(names) > limit else quoted


def escaped(text: object) -> str:
    """Escape what would break a message into several lines or hide part of it."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def suggest(name: object, allowed: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the allowed name nearest to `name`, or nothing."""
    nearest = difflib.get_close_matches(str(name), list(allowed), n=1)
    return f" (did you mean {nearest[0]!r}?)" if nearest else ""


def unknown(what: str, value: object, allowed: Iterable[str], more: str = "") -> ConfigError:
    """Return the error that a value is not among those allowed, which lists them."""
    names = tuple(allowed)
    listed = ", ".join(names) or "none"
    return ConfigError(f"{what} {show(value)}{suggest(value, names)}: allowed are {listed}{more}")


def check_choice(what: str, value: object, allowed: Collection[str]) -> None:
    """Raise :func:`unknown` unless a value is among those allowed."""
    if value not in allowed:
        raise unknown(what, value, allowed)


def reason(error: BaseException) -> str:
    """Say in one short line why the system or a library refused."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return escaped(_lines(error)[0])[:160]


def one_line(error: BaseException) -> str:
    """Return all that an error says, without secrets, on one line that is cut when long."""
    text = redact(" ".join(str(error).split())) or type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def named(error: BaseException) -> str:
    """Return the class of an error that is not ours, and what it says on one line."""
    kind = type(error).__name__
    return f"{kind}: {one_line(error)}" if str(error).strip() else kind


def last_line(said: BaseException | str) -> str:
    """Return the last line that says something; for an error without words, its class."""
    return _lines(said)[-1]


def _lines(said: BaseException | str) -> list[str]:
    """Return the lines that say something, at least one."""
    silent = type(said).__name__ if isinstance(said, BaseException) else ""
    return [line.strip()[:_LONGEST] for line in str(said).splitlines() if line.strip()] or [silent]


def hub_advice(error: BaseException) -> str:
    """Return what to do about a model or dataset that cannot be had from the hub."""
    said = ""
    cause: BaseException | None = error
    while cause is not None:
        said += f"{type(cause).__name__} {cause} ".lower()
        cause = cause.__cause__ or cause.__context__
    if "offline" in said:
        return (
            "there is no network, or HF_HUB_OFFLINE is set, and it has not been fetched before: "
            "run once where there is one"
        )
    # The hub answers 401 for a missing repository, too, and its text then speaks of gated ones.
    denied = "notfounderror" not in said and re.search(r"\b40[13]\b", said)
    if denied or "gatedrepoerror" in said:
        return "accept its licence on its page of the hub and set HF_TOKEN"
    return "check the name, the revision after the @ and the network; a private one needs HF_TOKEN"
