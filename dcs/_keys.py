"""Naming things by what they are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

__all__ = ["content_key"]


def content_key(content: Mapping[str, Any]) -> str:
    """Return the hash of the canonical JSON of `content`: 32 hexadecimal digits.

    Parameters
    ----------
    content : mapping
        Plain JSON values.

    Returns
    -------
    str
        The same on every machine.
    """
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:32]
