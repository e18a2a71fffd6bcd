"""The Pareto front of accuracy and COBias, and which of its points is preferred."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from dcs.errors import InvalidInputError
from dcs.messages import check_choice

if TYPE_CHECKING:
    from dcs.schemes.scheme import CorrectionScheme
    from dcs.search.annealing import AnnealingResult

__all__ = ["Fitted", "Prefer", "Preference", "Trial", "choose", "pareto_front"]

Prefer: TypeAlias = Literal["accuracy", "balance", "knee"]

_TIE: Final = 1e-12


class _Point(Protocol):
    @property
    def accuracy(self) -> float: ...
    @property
    def cobias(self) -> float: ...


_P = TypeVar("_P", bound=_Point)


@dataclass(frozen=True, slots=True)
class Preference:
    """Which point of a front to take.

    Parameters
    ----------
    prefer : {"balance", "accuracy", "knee"}
        The highest accuracy minus COBias; the highest accuracy; or the point farthest from the
        straight line between the most accurate and the fairest point.
    max_accuracy_loss : float, optional
        Take the lowest COBias among points at most this much less accurate than the most accurate
        one. A share: 0.005 is half a point. Goes before `prefer`.
    max_cobias : float, optional
        Keep to points with at most this COBias, a share; when there is none, the lowest COBias is
        taken. Goes before everything else.

    Raises
    ------
    InvalidInputError
        When a value is not allowed.
    """

    prefer: Prefer = "balance"
    max_accuracy_loss: float | None = None
    max_cobias: float | None = None

    def __post_init__(self) -> None:
        check_choice("prefer", self.prefer, get_args(Prefer))
        for name in ("max_accuracy_loss", "max_cobias"):
            value = getattr(self, name)
            if value is not None and (not math.isfinite(value) or not 0.0 <= value <= 1.0):
                raise InvalidInputError(
                    f"{name} {value!r}: a share between 0 and 1 is needed (0.005 is half a point)"
                )


@dataclass(frozen=True, slots=True)
class Trial:
    """One setting that a method tried.

    Attributes
    ----------
    number : int
        Its place among the trials, from 0.
    params : mapping of str to float
        What was set.
    accuracy, cobias : float
        On development rows, 0..1.
    seconds : float
        Time of its search.
    """

    number: int
    params: Mapping[str, float]
    accuracy: float
    cobias: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Fitted:
    """What :meth:`dcs.selection.methods.Method.fitted` gives back.

    Attributes
    ----------
    scheme : CorrectionScheme
        The chosen scheme.
    trials : tuple of Trial
        What was tried, in order; empty if there was nothing to choose.
    best : Trial or None
        The trial that the scheme is from.
    annealing : AnnealingResult or None
        The search that found the scheme, where it was one search.
    """

    scheme: CorrectionScheme
    trials: tuple[Trial, ...] = ()
    best: Trial | None = None
    annealing: AnnealingResult | None = None


def pareto_front(points: Sequence[_P]) -> tuple[_P, ...]:
    """Return the points that no other beats in both figures, the most accurate first.

    Of points that are alike in both, the first stays.
    """
    ordered = sorted(range(len(points)), key=lambda i: (-points[i].accuracy, points[i].cobias, i))
    front: list[_P] = []
    for i in ordered:
        if not front or points[i].cobias < front[-1].cobias - _TIE:
            front.append(points[i])
    return tuple(front)


def choose(points: Sequence[_P], preference: Preference) -> _P:
    """Return the point that a preference picks.

    Parameters
    ----------
    points : sequence
        Anything with `accuracy` and `cobias`, shares; at least one.
    preference : Preference
        The rule.

    Raises
    ------
    InvalidInputError
        When there are no points.
    """
    if not points:
        raise InvalidInputError("a front without points has none to choose")
    front = list(pareto_front(points))
    if preference.max_cobias is not None:
        # The front ends with the lowest COBias, which is what is left when none is low enough.
        low = [p for p in front if p.cobias <= preference.max_cobias + _TIE]
        front = low or front[-1:]
    if preference.max_accuracy_loss is not None:
        best = front[0].accuracy
        return [p for p in front if p.accuracy >= best - preference.max_accuracy_loss - _TIE][-1]
    if preference.prefer == "accuracy":
        return front[0]
    if preference.prefer == "balance":
        return max(front, key=lambda p: p.accuracy - p.cobias)
    return _knee(front)


def _knee(front: list[_P]) -> _P:
    if len(front) < 3:
        return max(front, key=lambda p: p.accuracy - p.cobias)
    figures: NDArray[Any] = np.array([(p.accuracy, p.cobias) for p in front])
    figures = (figures - figures[-1]) / (figures[0] - figures[-1])
    # Both axes now run from the fairest (0, 0) to the most accurate (1, 1); a good point is more
    # accurate than its COBias on the straight line between the two would pay for.
    return front[int(np.argmax(figures[:, 0] - figures[:, 1]))]
