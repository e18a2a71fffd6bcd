"""Plain JSON values: checked, from whatever a computation gives, to text and back without loss."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dcs._messages import show
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


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Refuse what is not one of a few words."""
    if value not in allowed:
        raise InvalidInputError(f"{name} is {show(value)}; allowed: {', '.join(allowed)}")


def integer(name: str, value: Any) -> int:
    """Return a whole number, or say what is not one."""
    try:
        if int(value) == value:
            return int(value)
    except (TypeError, ValueError, OverflowError):
        pass  # Said below, together with every other value that is not a whole number.
    raise InvalidInputError(f"{name} is {show(value)}; a whole number is needed")


def number(name: str, value: Any) -> float:
    """Return a number, or say what is not one."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInputError(f"{name} is {show(value)}; a number is needed") from None


def numbers(values: Mapping[str, Any], name: str) -> dict[str, float]:
    """Return numbers by name."""
    return {str(key): number(f"{name}[{key!r}]", value) for key, value in values.items()}


def class_columns(table: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the columns of class accuracies, all of one length; None for NaN."""
    found = {str(name): plain(list(values), str(name)) for name, values in table.items()}
    for name, values in found.items():
        found[name] = [
            None if isinstance(value, float) and math.isnan(value) else value for value in values
        ]
    if found and not {"class", "before", "after"} <= set(found):
        raise InvalidInputError(
            f"class_accuracies has the columns {', '.join(found)}; class, before and after "
            "are needed"
        )
    if len({len(values) for values in found.values()}) > 1:
        sizes = ", ".join(f"{name}: {len(values)}" for name, values in found.items())
        raise InvalidInputError(f"class_accuracies has columns of unequal length ({sizes})")
    return found
