"""Keeping passwords and tokens out of what is printed, logged and recorded."""

from __future__ import annotations

import os
import re

__all__ = ["redact"]

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
