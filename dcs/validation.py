"""What files and configurations hold, checked by pydantic models: errors of one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from dcs.errors import DCSError
from dcs.messages import escaped, show, suggest

_Model = TypeVar("_Model", bound=BaseModel)


class Strict(BaseModel):
    """Unknown keys are errors: a misspelt key that is ignored costs a night on a cluster."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _only_known_keys(cls, values: Any) -> Any:
        for key in values if isinstance(values, dict) else ():
            if key not in cls.model_fields:
                raise ValueError(
                    f"unknown key {show(key)}{suggest(key, cls.model_fields)}; "
                    f"allowed here: {', '.join(sorted(cls.model_fields))}"
                )
        return values


def validated(model: type[_Model], values: Any, *, source: str, error: type[DCSError]) -> _Model:
    """Return a model made of plain values.

    Parameters
    ----------
    model : type of BaseModel
        What the values are checked against.
    values : mapping
        Values by key.
    source : str
        Where they come from: a file, or ``command line``.
    error : type
        The class to raise.

    Raises
    ------
    DCSError
        The class given, if a key or value is not allowed; names the source and the first such key.
    """
    try:
        return model.model_validate(values)
    except ValidationError as problem:
        raise error(f"{source}: {first_fault(problem)}") from None


def as_value_error(function: Callable[[Any], Any], value: Any) -> Any:
    """Call a function of ours so that pydantic names the place of what it refuses."""
    try:
        return function(value)
    except DCSError as error:
        raise ValueError(str(error)) from None


def first_fault(error: ValidationError) -> str:
    """Say on one line which key does not fit, what is allowed and what is there."""
    faults = error.errors(include_url=False)
    first = faults[0]
    place = ".".join(map(str, first["loc"]))
    said = escaped(first["msg"].removeprefix("Value error, "))
    if first["type"] not in ("value_error", "missing"):
        said += f", got {show(first['input'])}"
    others = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return f"{f'key {place!r}: ' if place else ''}{said}{others}"
