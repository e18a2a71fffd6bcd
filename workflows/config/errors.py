"""What is wrong with a configuration, on one line that names the place."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from dcs.errors import DCSError
from dcs.messages import show, suggest

__all__ = ["as_value_error", "first_mistake"]

#: What YAML calls the types that pydantic asks for.
_CONTAINERS = {
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}


def as_value_error(function: Callable[[Any], Any], value: Any) -> Any:
    """Call a function of ours so that pydantic names the place of what it refuses."""
    try:
        return function(value)
    except DCSError as error:
        raise ValueError(str(error)) from None


def first_mistake(error: ValidationError, model: type[BaseModel]) -> str:
    """Render the first problem; the rest are counted, since one mistake often causes several."""
    # A misspelt key is also one that is missing; how it is written is the better clue.
    details = sorted(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    return _describe(details[0], model) + more


def _describe(detail: ErrorDetails, model: type[BaseModel]) -> str:
    location = detail["loc"]
    path = ".".join(str(part) for part in location)
    if detail["type"] == "extra_forbidden":
        allowed = sorted(_fields_at(location[:-1], model))
        if location == ("axes", "objective"):
            return "key 'axes.objective': objectives have a list of their own, objectives: [...]"
        return (
            f"unknown key {path!r}; allowed here: {', '.join(allowed)}"
            f"{suggest(location[-1], allowed)}"
        )
    if detail["type"] == "missing":
        return f"key {path!r} is missing"
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] in _CONTAINERS:
        message = f"{_CONTAINERS[detail['type']]} is needed"
    if detail["type"] == "value_error":
        return f"key {path!r}: {message}" if path else message
    near = ""
    if detail["type"] == "literal_error":
        names = re.findall(r"'([^']*)'", str(detail.get("ctx", {}).get("expected", "")))
        near = suggest(detail["input"], names) if isinstance(detail["input"], str) else ""
    return f"key {path!r}: {message}, got {show(detail['input'])}{near}"


def _fields_at(location: tuple[int | str, ...], model: type[BaseModel]) -> list[str]:
    from workflows.config.axes import ABLATED
    from workflows.config.tuner import FixedObjective

    for part in location:
        if part == "axes":
            return list(ABLATED)
        if part in ("objective", "objectives"):
            return list(FixedObjective.model_fields)
        annotation = model.model_fields[str(part)].annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
    return list(model.model_fields)
