"""User-correctable errors, and helpers that format their messages without secrets.

Any other exception is a bug and shows its traceback.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
import warnings
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from traceback import format_exception
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class DCSError(Exception):
    """Base class of all expected failures.

    The message is one line: what is wrong (file, key or row, and the value), what is allowed, and
    what to do next. The command line prints it and exits with code 2.
    """


class InvalidInputError(DCSError, ValueError):
    """An argument, array or file has a value that is not allowed."""


class TableError(InvalidInputError):
    """A probability table or its array is malformed; names the file, row, class and value."""


class ConfigError(InvalidInputError):
    """A configuration key, option or name is not allowed."""


class SchemeError(InvalidInputError):
    """A correction scheme cannot be read, or does not fit the table it is applied to."""


class ScoringError(DCSError):
    """A model cannot be loaded, or a prompt cannot be scored."""


class TrackingError(DCSError):
    """The tracking store cannot be used."""


class MissingDependencyError(DCSError, ImportError):
    """The requested feature needs an optional dependency that is not installed."""


_REDACTED = "***"
_MAX_LENGTH = 300

#: Patterns of secrets: the group captures the prefix, which is preserved.
_SECRET_PATTERNS = (
    # scheme://user:password@host; a password may contain slashes, but is not a port and a path.
    r"(?i)(\b[a-z][a-z0-9+.-]*://[^/?#\s:@'\"]*:(?!\d{1,5}[/?#]))[^?#\s'\"]+(?=@)",
    # https://TOKEN@host; for databases only if long, because user names are shorter.
    r"(?i)(https?://|[a-z][a-z0-9+.-]*://(?=[^/?#\s:@]{20}))[^/?#\s:@'\"]+(?=@)",
    r"(?i)(\b(?:password|passwd|pwd|passfile|sslpassword|token|access_token|api_key|apikey|"
    r"secret|sig|signature|aws_secret_access_key)=)[^&\s'\",;)]+",
    r"(\b(?:Bearer|Basic)\s+)[A-Za-z0-9._~+/=-]{8,}",
    r"(\b(?:sk-|ghp_|xox[bp]-|AKIA))[A-Za-z0-9_-]{16,}",
    # Must not match Llama-2-7b-hf__task.
    r"(\bhf_)[A-Za-z0-9]{16,}",
)
_URL = r"(?i)https?://[^\s'\"]+"
#: Part of a URL's path, query or fragment that may be a token: long, with digits, not a hash.
_URL_PART = (
    r"(?i)([/?#=&]|%[0-9a-f]{2})(?![0-9a-f-]+(?![\w.~+-]))(?=(?:[a-z_.~+-]*\d){4})[\w.~+-]{20,}"
)
_SECRET_VARIABLE = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD)$", re.IGNORECASE)
_MIN_SECRET_LENGTH = 8


def redact(text: str, *, environment: bool = True) -> str:
    """Return `text` with everything that looks like a password, token or key replaced by ``***``.

    A safety net: errors of drivers and servers repeat the URLs and headers they were given.

    Parameters
    ----------
    text : str
        Text that may contain secrets.
    environment : bool
        Whether to also replace the values of environment variables whose names suggest secrets.
    """
    for name, value in os.environ.items() if environment else ():
        # Replacing short values would hide ordinary words.
        if len(value) >= _MIN_SECRET_LENGTH and _SECRET_VARIABLE.search(name):
            text = text.replace(value, _REDACTED)
    for pattern in _SECRET_PATTERNS:
        text = re.sub(pattern, rf"\1{_REDACTED}", text)
    return re.sub(_URL, lambda url: re.sub(_URL_PART, rf"\1{_REDACTED}", url[0]), text)


def plain_address(address: str) -> str:
    """Return the base URL of a server without a trailing slash, safe to be recorded.

    Raises
    ------
    ConfigError
        If it is not an HTTP URL, or may contain a secret; the message omits the value.
    """
    if not re.fullmatch(r"https?://[^/\s@?#]+[^@?#]*", address) or redact(address) != address:
        raise ConfigError(
            "base_url: must be an http:// or https:// URL without user, query and fragment; the "
            "value is not shown, as it may contain a key: give that in the environment variable "
            "named by key_variable"
        )
    return address.rstrip("/")


#: Path of an API version, which contains no key and tells servers of one host apart.
_API_PATH = re.compile(r"(?:/(?:api|openai|inference|compatible-mode|v\d{1,2}(?:beta)?))*")


def origin(address: str) -> str:
    """Return scheme, host and port of a URL, with its path if that is only an API version."""
    parts = urlsplit(address)
    path = parts.path.rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path if _API_PATH.fullmatch(path) else ''}"


def served_revision(address: str, revision: str | None) -> tuple[str, str]:
    """Return the revision of a served model, and its address as it is recorded and shown.

    Raises
    ------
    ConfigError
        If there is no revision and the path of the address cannot be recorded, so that models
        under two paths of a host would be taken for the same one.
    """
    shown = origin(address)
    if revision is None and shown != address.rstrip("/"):
        raise ConfigError(
            f"base_url {shown}/...: its path may contain a key and is not recorded; specify which "
            "model this is by revision (--set scoring.revision=NAME)"
        )
    return revision or shown, shown


def show(value: Any, limit: int = 80) -> str:
    """Format a value for a one-line message: escaped, and truncated if longer than `limit`."""
    if getattr(value, "shape", None) == ():
        value = value.item()  # The repr of a NumPy scalar includes its type.
    try:
        text = escaped(repr(value))
    except (RecursionError, ValueError):
        # Nested too deeply, or an integer of thousands of digits.
        text = f"a {type(value).__name__} too large to show"
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def quoted(names: Sequence[str], limit: int = 8) -> str:
    """Return at most `limit` names in quotes for a message, with the number of the others."""
    shown = ", ".join(show(name, 30) for name in names[:limit]) or "none"
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown


@dataclass(frozen=True, slots=True)
class Named:
    """Names of an array, its columns and its rows in error messages.

    Parameters
    ----------
    source : str
        File or argument with which messages begin.
    classes : sequence of str
        Column names; column numbers are used if it is empty.
    ids : sequence of str
        Row names, shown in addition to the row numbers.
    """

    source: str
    classes: Sequence[str] = ()
    ids: Sequence[str] = ()

    def refuse(
        self,
        wrong: NDArray[np.bool_],
        values: NDArray[Any] | Sequence[Any],
        rule: str,
        *,
        what: str = "value",
    ) -> None:
        """Raise an error if some of the values [M] or [M, N] are marked as wrong.

        Raises
        ------
        TableError
            If any is; names row, class and value of the first, and counts the others.
        """
        if not wrong.any():
            return
        row, *column = (int(index[0]) for index in wrong.nonzero())
        value, place = values[row], f"{self.source}: row {row}"
        if self.ids:
            place += f" (id {show(self.ids[row], 40)})"
        if column:
            value = value[column[0]]
            place += f", class {show(self.classes[column[0]] if self.classes else column[0])}"
        fraction = isinstance(value, Real) and not isinstance(value, Integral)
        shown = f"{value:.9g}" if fraction else show(value)
        count = int(wrong.sum()) - 1
        others = f" (and {count} more)" if count else ""
        raise TableError(f"{place}: {what} is {shown}; {rule}{others}")


def redact_output() -> None:
    """Redact the warnings and tracebacks of this process, and print warnings on one line."""
    sys.excepthook = lambda *error: sys.stderr.write(redact("".join(format_exception(*error))))
    warnings.formatwarning = lambda message, *about: f"dcs: warning: {redact(escaped(message))}\n"


def escaped(text: object) -> str:
    """Escape characters that would break a message into several lines or hide part of it."""
    plain = str(text)
    if plain.isprintable():  # As most of the thousands of cells of a long table.
        return plain
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in plain)


def suggest(name: object, allowed: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the allowed name closest to `name`, or an empty text."""
    nearest = difflib.get_close_matches(str(name), list(allowed), n=1)
    return f" (did you mean {nearest[0]!r}?)" if nearest else ""


def unknown(what: str, value: object, allowed: Iterable[str], more: str = "") -> ConfigError:
    """Return the error for a value that is not allowed, which lists the allowed values."""
    names = tuple(allowed)
    known, nearest = ", ".join(names) or "none", suggest(value, names)
    return ConfigError(f"{what} {show(value)}{nearest}: must be one of {known}{more}")


def check_choice(what: str, value: object, allowed: Collection[str]) -> None:
    """Raise the error of :func:`unknown` unless a value is allowed."""
    if value not in allowed:
        raise unknown(what, value, allowed)


def reason(error: BaseException) -> str:
    """Return the reason given by the operating system or a library, in one short line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return escaped(one_line(error))[:160]


def one_line(error: BaseException) -> str:
    """Return the whole message of an error on one line, without secrets and truncated."""
    text = redact(" ".join(str(error).split())) or type(error).__name__
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 1]}…"


def named(error: BaseException) -> str:
    """Return the class of a third-party error and its message on one line."""
    kind = type(error).__name__
    return f"{kind}: {one_line(error)}" if str(error).strip() else kind


def last_line(text: BaseException | str) -> str:
    """Return the last non-empty line; for an error without a message, the name of its class."""
    lines = [line.strip()[:_MAX_LENGTH] for line in str(text).splitlines() if line.strip()]
    return lines[-1] if lines else type(text).__name__


#: Advice for a model or dataset that cannot be downloaded from the hub.
HUB_ADVICE = (
    "check the name, the revision after the @, the network and HF_HUB_OFFLINE; a private or gated "
    "one needs HF_TOKEN and an accepted licence"
)
