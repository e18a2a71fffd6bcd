"""Plain JSON values: from whatever a computation gives, and to text and back without loss."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dcs.errors import InvalidInputError

# JSON has no such numbers; Python would write them bare, which other readers refuse.
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def plain(value: Any, name: str) -> Any:
    """Return `value` made of dict, list, str, int, float, bool and None only."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item, f"{name}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{name}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    # NumPy scalars and arrays, without importing NumPy.
    convert = getattr(value, "tolist", None)
    if callable(convert):
        return plain(convert(), name)
    raise InvalidInputError(
        f"{name} is a {type(value).__name__}; only text, numbers, truth values, None, lists and "
        "mappings of them can be recorded"
    )


def encode(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def decode(value: Any) -> Any:
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value


def decode_numbers(values: dict[str, Any]) -> dict[str, Any]:
    return {key: decode(value) for key, value in values.items()}
