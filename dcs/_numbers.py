"""Numbers that people give: plain Python ones, or a refusal on one line."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dcs._messages import show
from dcs.errors import InvalidInputError

__all__ = ["finite_number", "whole_number"]


def finite_number(
    value: Any, name: str, *, positive: bool = False, least: float = -math.inf
) -> float:
    """Return `value` as a float; it must be greater than 0 with `positive`, or at least `least`.

    Raises
    ------
    InvalidInputError
        When it is no number, true or false, not finite, too large for a float, or too small.
    """
    if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number) and number >= least and (number > 0.0 or not positive):
            return number
    rule = " greater than 0" if positive else f", {least:g} or more," if least > -math.inf else ""
    raise InvalidInputError(f"{name} {show(value)}: a finite number{rule} is needed")


def whole_number(value: Any, name: str, *, least: int, most: int | None = None) -> int:
    """Return `value` as an int.

    Raises
    ------
    InvalidInputError
        When it is no whole number, true or false, less than `least`, or more than `most`.
    """
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if whole and value >= least and (most is None or value <= most):
        return int(value)
    rule = f"{least} or more" if most is None else f"{least} to {most}"
    raise InvalidInputError(f"{name} {show(value)}: a whole number, {rule}, is needed")
