"""Correction functions, and the ordered sets that a search chooses from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.checks import finite_number, whole_number
from dcs.errors import InvalidInputError
from dcs.schemes.apply import evaluated, triangle, weight

#: Minimum width of a side: steeper slopes overflow or amplify rounding errors.
_MIN_WIDTH: Final = 1e-6

#: Maximum value of a weight.
LARGEST_WEIGHT: Final = 1e6


@dataclass(frozen=True, slots=True)
class Membership:
    """Triangular membership function, a correction per sample (equation 2 of the paper).

    Parameters
    ----------
    a, b, c : float
        Left foot, peak and right foot, ``0 <= a <= b <= c <= 1``. A vertical side is only allowed
        at the ends of the unit interval: ``a = b`` at 0, ``b = c`` at 1.

    Raises
    ------
    InvalidInputError
        If the three numbers do not describe such a triangle.
    """

    #: Kind of the correction in scheme files.
    kind: ClassVar = "membership"
    a: float
    b: float
    c: float

    def __post_init__(self) -> None:
        a, b, c = (finite_number(getattr(self, name), f"membership {name}") for name in "abc")
        for name, value in zip("abc", (a, b, c), strict=True):
            object.__setattr__(self, name, value)
        ordered = 0.0 <= a <= b <= c <= 1.0 and a < c
        steep = 0.0 < b - a < _MIN_WIDTH or 0.0 < c - b < _MIN_WIDTH
        if not ordered or steep or (a == b and a != 0.0) or (b == c and c != 1.0):
            raise InvalidInputError(
                f"membership a={a}, b={b}, c={c}: expected 0 <= a <= b <= c <= 1 with a < c, "
                f"a = b only at 0, b = c only at 1, and sides at least {_MIN_WIDTH:g} wide"
            )

    @property
    def effect(self) -> str:
        """Return a description of the effect on the probabilities of the class."""
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
        """The coefficients ``(left, rise, right, fall)`` of the common formula."""
        return triangle(self.a, self.b, self.c)

    def __call__(self, p: ArrayLike) -> NDArray[np.float64]:
        """Correct the probabilities `p` (any shape, values 0..1)."""
        return evaluated(self.coefficients, np.asarray(p, dtype=np.float64))

    def to_dict(self) -> dict[str, Any]:
        """Return the representation in scheme files.

        Returns
        -------
        dict
            ``kind``, ``a``, ``b`` and ``c``.
        """
        return {"kind": self.kind, "a": self.a, "b": self.b, "c": self.c}


@dataclass(frozen=True, slots=True)
class Weight:
    """Weight coefficient, a correction per class (equation 3 of the paper).

    Parameters
    ----------
    value : float
        Factor of all probabilities of the class, ``0 < value <= 1000000``. The paper uses values
        up to 1; only a larger one can raise a class above a membership function.

    Raises
    ------
    InvalidInputError
        If the value is out of range.
    """

    #: Kind of the correction in scheme files.
    kind: ClassVar = "weight"
    value: float

    def __post_init__(self) -> None:
        value = finite_number(self.value, "weight value", positive=True, most=LARGEST_WEIGHT)
        object.__setattr__(self, "value", value)

    @property
    def effect(self) -> str:
        """Return a description of the effect on the probabilities of the class."""
        if self.value == 1.0:
            return "probabilities stay as they are (weight 1)"
        return f"every probability is multiplied by {self.value:.4g}"

    @property
    def coefficients(self) -> tuple[float, float, float, float]:
        """The coefficients ``(left, rise, right, fall)`` of the common formula."""
        return weight(self.value)

    def __call__(self, p: ArrayLike) -> NDArray[np.float64]:
        """Correct the probabilities `p` (any shape, values 0..1)."""
        return evaluated(self.coefficients, np.asarray(p, dtype=np.float64))

    def to_dict(self) -> dict[str, Any]:
        """Return the representation in scheme files.

        Returns
        -------
        dict
            ``kind`` and ``value``.
        """
        return {"kind": self.kind, "value": self.value}


Correction: TypeAlias = Membership | Weight

#: Membership function that leaves probabilities unchanged.
DONT_CHANGE: Final = Membership(0.0, 1.0, 1.0)


_SLOPES: Final = (2, 4, 8)

#: Number of published membership functions: D_F in the paper.
MEMBERSHIP_COUNT: Final = sum(slope + 1 for slope in _SLOPES) + 2


@dataclass(frozen=True, slots=True)
class CorrectionSet:
    """Ordered set of corrections that a search chooses from (Psi in the paper).

    Parameters
    ----------
    corrections : tuple of Membership or Weight
        At least two corrections, including one that changes nothing: the membership
        ``(0, 1, 1)`` or the weight 1.

    Raises
    ------
    InvalidInputError
        If there are fewer than two, or none of them changes nothing.
    """

    corrections: tuple[Correction, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "corrections", tuple(self.corrections))
        if len(self.corrections) < 2:
            raise InvalidInputError(
                f"corrections contain {len(self.corrections)} function; at least two are required"
            )
        if DONT_CHANGE not in self.corrections and Weight(1.0) not in self.corrections:
            raise InvalidInputError(
                "corrections contain no function that changes nothing, from which searches start; "
                "add Membership(0, 1, 1) or Weight(1.0)"
            )

    @classmethod
    def dcs(cls, weight_scale: int = 30) -> CorrectionSet:
        """Return the 19 memberships and the weights ``i / weight_scale``, in published order.

        Parameters
        ----------
        weight_scale : int, optional
            Number of weights, D_W.

        Returns
        -------
        CorrectionSet
            ``19 + weight_scale`` corrections.
        """
        return cls(_memberships() + _weights(weight_scale))

    @classmethod
    def dnip(cls, weight_scale: int = 30) -> CorrectionSet:
        """Return the weights ``i / weight_scale`` only (the DNIP method).

        Parameters
        ----------
        weight_scale : int, optional
            Number of weights, D_W; 2 or more.

        Returns
        -------
        CorrectionSet
            `weight_scale` corrections.
        """
        return cls(_weights(weight_scale))

    @classmethod
    def furud(cls) -> CorrectionSet:
        """Return the 19 memberships only (the FuRud method)."""
        return cls(_memberships())

    @classmethod
    def logarithmic(
        cls, *, count: int, smallest: float, largest: float = 1.0, memberships: bool = False
    ) -> CorrectionSet:
        """Return logarithmically spaced weights that include the weight 1.

        Linear spacing is coarse for small weights: from 1/30 to 2/30 the weight doubles.

        Parameters
        ----------
        count : int
            Number of weights, 2 or more.
        smallest, largest : float
            Approximate limits, ``0 < smallest < 1 <= largest``.
        memberships : bool, optional
            Whether the 19 membership functions come first.

        Raises
        ------
        InvalidInputError
            If an argument is invalid.
        """
        count = whole_number(count, "count", least=2)
        if not 0.0 < smallest < 1.0 <= largest <= LARGEST_WEIGHT:
            raise InvalidInputError(
                f"weights from {smallest} to {largest}: expected 0 < smallest < 1 <= largest "
                f"<= {LARGEST_WEIGHT:.0f}"
            )
        step = (math.log(largest) - math.log(smallest)) / (count - 1)
        # An integer number of steps below 1, so that the weight 1 is included exactly.
        below = max(1, min(count - 1, round(-math.log(smallest) / step)))
        weights = tuple(Weight(math.exp((i - below) * step)) for i in range(count))
        return cls((_memberships() if memberships else ()) + weights)

    def limited(self, memberships: int | None) -> CorrectionSet:
        """Return the set with fewer of the membership functions of :meth:`furud`.

        They are ordered from coarse to fine, so that a smaller set is always contained in a larger
        one: Don't Change, its mirror, then the three of slope 2, the five of slope 4 and the nine
        of slope 8. With 2, 5, 10 and 19 of them all slopes are complete. The other corrections
        and the order of the set do not change.

        Parameters
        ----------
        memberships : int or None
            Number of membership functions, 0 to 19; None for all. Without Don't Change, searches
            start from the weight 1.

        Returns
        -------
        CorrectionSet
            The smaller set.

        Raises
        ------
        InvalidInputError
            If the number is invalid, or leaves fewer than two corrections.
        """
        if memberships is None:
            return self
        count = whole_number(memberships, "memberships", least=0, most=MEMBERSHIP_COUNT)
        published = _memberships()
        nested = (published[-2], published[-1], *published[:-2])
        left_out = set(nested[count:])
        return CorrectionSet(tuple(c for c in self.corrections if c not in left_out))

    def __len__(self) -> int:
        return len(self.corrections)

    def __getitem__(self, k: int) -> Correction:
        return self.corrections[k]

    def __iter__(self) -> Iterator[Correction]:
        return iter(self.corrections)

    @property
    def identity(self) -> int:
        """The index of the correction that changes nothing, from which searches start."""
        unchanged = DONT_CHANGE if DONT_CHANGE in self.corrections else Weight(1.0)
        return self.corrections.index(unchanged)

    @property
    def coefficients(self) -> NDArray[np.float64]:
        """The four coefficients of every correction, float64 [D, 4]."""
        return np.array([c.coefficients for c in self.corrections], dtype=np.float64)


def _memberships() -> tuple[Correction, ...]:
    functions: list[Correction] = []
    for slope in _SLOPES:
        for peak in range(slope + 1):
            low, high = max(peak - 1, 0), min(peak + 1, slope)
            functions.append(Membership(low / slope, peak / slope, high / slope))
    return (*functions, DONT_CHANGE, Membership(0.0, 0.0, 1.0))


def _weights(weight_scale: int) -> tuple[Correction, ...]:
    scale = whole_number(weight_scale, "weight_scale", least=1)
    return tuple(Weight(i / scale) for i in range(1, scale + 1))
