"""Correction functions: what can be done to the probability of one class.

Every correction, membership or weight, is computed by the one formula ::

    value(p) = max(0, min((p - left) * rise, (right - p) * fall))

in this order of operations, in float64. The compiled kernels use the same four numbers, so ties
between corrected values fall the same way everywhere. For a membership with ``a < b < c`` they
are ``left = a``, ``rise = 1 / (b - a)``, ``right = c`` and ``fall = 1 / (c - b)``; a side without
slope (``a = b = 0`` or ``b = c = 1``) lies infinitely far off, so that the other decides; a weight
has ``left = 0``, ``rise = w`` and no right side, which leaves exactly ``p * w``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs._numbers import finite_number
from dcs.errors import InvalidInputError

__all__ = [
    "DONT_CHANGE",
    "LARGEST_WEIGHT",
    "Correction",
    "Membership",
    "Weight",
    "correction_from_dict",
]

_NARROWEST: Final = 1e-6
#: The largest factor that a weight may be.
LARGEST_WEIGHT: Final = 1e6


@dataclass(frozen=True, slots=True)
class Membership:
    """A triangular membership function, a correction per sample (equation 2 of the paper).

    Parameters
    ----------
    a, b, c : float
        Left foot, peak and right foot, ``0 <= a <= b <= c <= 1``. A vertical side is allowed at
        the ends of the unit interval only: ``a = b`` at 0, ``b = c`` at 1.

    Raises
    ------
    InvalidInputError
        When the three numbers do not describe such a triangle.
    """

    a: float
    b: float
    c: float

    def __post_init__(self) -> None:
        for name in ("a", "b", "c"):
            object.__setattr__(
                self, name, finite_number(getattr(self, name), f"membership {name}")
            )
        a, b, c = self.a, self.b, self.c
        ordered = 0.0 <= a <= b <= c <= 1.0 and a < c
        # A narrower side has a slope that overflows, or that turns rounding errors into values.
        steep = 0.0 < b - a < _NARROWEST or 0.0 < c - b < _NARROWEST
        if not ordered or steep or (a == b and a != 0.0) or (b == c and c != 1.0):
            raise InvalidInputError(
                f"membership a={a}, b={b}, c={c}: needs 0 <= a <= b <= c <= 1 with a < c, "
                f"a = b only at 0, b = c only at 1, and sides at least {_NARROWEST:g} wide"
            )

    @property
    def kind(self) -> Literal["membership"]:
        """The word that names this sort of correction in a scheme."""
        return "membership"

    @property
    def name(self) -> str:
        """Return a short name that people can read."""
        if self == DONT_CHANGE:
            return "Don't Change"
        if (self.a, self.b, self.c) == (0.0, 0.0, 1.0):
            return "Mirror"
        if self.a == self.b:
            return f"Low {self.a:g}-{self.c:g}"
        if self.b == self.c:
            return f"High {self.a:g}-{self.c:g}"
        return f"Peak {self.a:g}-{self.b:g}-{self.c:g}"

    @property
    def effect(self) -> str:
        """What it does to the probabilities of its class, in words."""
        a, b, c = self.a, self.b, self.c
        if self == DONT_CHANGE:
            return "probabilities stay as they are (Don't Change)"
        if a == b:
            end = "" if c == 1.0 else " and above"
            return f"low probabilities win: 0 becomes 1, falling to 0 at {c:g}{end}"
        if b == c:
            return f"only probabilities above {a:g} count, rising from 0 to 1"
        return f"only probabilities from {a:g} to {c:g} count, most of all near {b:g}"

    @property
    def coefficients(self) -> tuple[float, float, float, float]:
        """The four numbers ``(left, rise, right, fall)`` of the common formula."""
        left, rise = (-math.inf, 1.0) if self.a == self.b else (self.a, 1.0 / (self.b - self.a))
        right, fall = (math.inf, 1.0) if self.b == self.c else (self.c, 1.0 / (self.c - self.b))
        return (left, rise, right, fall)

    def __call__(self, p: ArrayLike) -> NDArray[np.float64]:
        """Correct the probabilities `p` (any shape, values 0..1)."""
        return _evaluate(self.coefficients, p)

    def to_dict(self) -> dict[str, Any]:
        """Return the form a scheme file holds.

        Returns
        -------
        dict
            ``kind``, ``a``, ``b``, ``c`` and ``name``.
        """
        return {"kind": self.kind, "a": self.a, "b": self.b, "c": self.c, "name": self.name}


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight coefficient, a correction per class (equation 3 of the paper).

    Parameters
    ----------
    value : float
        What every probability of the class is multiplied by, ``0 < value <= 1000000``. The paper
        uses values up to 1; only a larger one can lift a class above a membership function.

    Raises
    ------
    InvalidInputError
        When the value is not in that range.
    """

    value: float

    def __post_init__(self) -> None:
        value = finite_number(self.value, "weight value")
        object.__setattr__(self, "value", value)
        if not 0.0 < value <= LARGEST_WEIGHT:
            raise InvalidInputError(
                f"weight value {value}: needs 0 < value <= {LARGEST_WEIGHT:.0f}"
            )

    @property
    def kind(self) -> Literal["weight"]:
        """The word that names this sort of correction in a scheme."""
        return "weight"

    @property
    def name(self) -> str:
        """Return a short name that people can read."""
        return f"Weight {self.value:.4g}"

    @property
    def effect(self) -> str:
        """What it does to the probabilities of its class, in words."""
        if self.value == 1.0:
            return "probabilities stay as they are (weight 1)"
        return f"every probability is multiplied by {self.value:.4g}"

    @property
    def coefficients(self) -> tuple[float, float, float, float]:
        """The four numbers ``(left, rise, right, fall)`` of the common formula."""
        return (0.0, self.value, math.inf, 1.0)

    def __call__(self, p: ArrayLike) -> NDArray[np.float64]:
        """Correct the probabilities `p` (any shape, values 0..1)."""
        return _evaluate(self.coefficients, p)

    def to_dict(self) -> dict[str, Any]:
        """Return the form a scheme file holds.

        Returns
        -------
        dict
            ``kind`` and ``value``.
        """
        return {"kind": self.kind, "value": self.value}


Correction: TypeAlias = Membership | Weight

#: The membership that leaves every probability as it is.
DONT_CHANGE: Final = Membership(0.0, 1.0, 1.0)

_FIELDS: Final[dict[str, tuple[str, ...]]] = {"membership": ("a", "b", "c"), "weight": ("value",)}


def correction_from_dict(data: Mapping[str, Any]) -> Correction:
    """Read a correction from the form that `to_dict` writes.

    Raises
    ------
    InvalidInputError
        When the kind is unknown, a key is missing or unknown, or a value is not allowed.
    """
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise InvalidInputError(f"key 'kind' is {kind!r}; allowed are 'membership' and 'weight'")
    needed = _FIELDS[kind]
    allowed = {"kind", *needed} | ({"name"} if kind == "membership" else set())
    for key in data:
        if key not in allowed:
            raise InvalidInputError(
                f"unknown key {key!r} for a {kind}; allowed are {', '.join(sorted(allowed))}"
            )
    for key in needed:
        if key not in data:
            raise InvalidInputError(f"key {key!r} is missing; a {kind} needs {', '.join(needed)}")
    if kind == "weight":
        return Weight(data["value"])
    return Membership(data["a"], data["b"], data["c"])


def _evaluate(
    coefficients: tuple[float, float, float, float], p: ArrayLike
) -> NDArray[np.float64]:
    left, rise, right, fall = coefficients
    values = np.asarray(p, dtype=np.float64)
    corrected = np.minimum((values - left) * rise, (right - values) * fall)
    return np.asarray(np.maximum(0.0, corrected), dtype=np.float64)
