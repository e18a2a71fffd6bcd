"""What is wrong with a configuration, on one line that names the place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from dcs.errors import ConfigError, DCSError
from dcs.messages import show, suggest

__all__ = ["Strict", "as_value_error", "validated"]

Model = TypeVar("Model", bound=BaseModel)


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


def as_value_error(function: Callable[[Any], Any], value: Any) -> Any:
    """Call a function of ours so that pydantic names the place of what it refuses."""
    try:
        return function(value)
    except DCSError as error:
        raise ValueError(str(error)) from None


def validated(model: type[Model], values: Any, *, source: str) -> Model:
    """Return settings made of plain values.

    Parameters
    ----------
    model : type of BaseModel
        What the values are checked against.
    values : mapping
        Settings by name.
    source : str
        Where they come from, for the error: a file, or ``command line``.

    Raises
    ------
    ConfigError
        A key or value is not allowed; names the source and the first such key.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        details = error.errors()
        first = details[0]
        path = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] not in ("value_error", "missing"):
            message += f", got {show(first['input'])}"
        where = f"key {path!r}: " if path else ""
        more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
        raise ConfigError(f"{source}: {where}{message}{more}") from None
