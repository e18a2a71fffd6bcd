"""The points of a fitted front, and the choice of one of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import ClassificationMetrics
from dcs.schemes.scheme import CorrectionScheme
from dcs.selection.cross_validation import Folds
from dcs.selection.settings import Hyperparameters

__all__ = [
    "FrontPoint",
    "Prefer",
    "Preference",
    "choose",
    "choose_point",
    "pareto_front",
]

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
        if self.prefer not in get_args(Prefer):
            allowed = ", ".join(get_args(Prefer))
            raise InvalidInputError(f"prefer {self.prefer!r}: allowed are {allowed}")
        for name in ("max_accuracy_loss", "max_cobias"):
            value = getattr(self, name)
            if value is not None and (not math.isfinite(value) or not 0.0 <= value <= 1.0):
                raise InvalidInputError(
                    f"{name} {value!r}: a share between 0 and 1 is needed (0.005 is half a point)"
                )


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


#: The point that stands where the rows are too few to choose one, and how many are few.
_MIDDLE_BETA: Final = 0.3

_CAUTIOUS_ROWS: Final = 100.0


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """One point of the trade-off between accuracy and COBias.

    Attributes
    ----------
    setting : Hyperparameters or None
        What was fitted; None for the uncorrected probabilities.
    estimate : ClassificationMetrics
        Cross-validated: every row is judged by a scheme fitted without it, COBias within each
        fold (see :func:`cross_validate`); no better than `scheme` is on the rows it was fitted on.
    scheme : CorrectionScheme
        The setting fitted on all rows.
    beta : float
        The weight of COBias at which the setting was the best.
    noise : float
        COBias that a scheme without any would show on rows as few as those of a fold.
    """

    setting: Hyperparameters | None
    estimate: ClassificationMetrics
    scheme: CorrectionScheme
    beta: float = 0.0
    noise: float = 0.0

    @property
    def accuracy(self) -> float:
        """Cross-validated accuracy, 0..1."""
        return self.estimate.accuracy

    @property
    def cobias(self) -> float:
        """Cross-validated COBias, 0..1, as measured on rows as few as those of a fold."""
        return self.estimate.cobias

    @property
    def lasting_cobias(self) -> float:
        """What of the COBias is not due to the folds being small: that of very many rows."""
        return math.sqrt(max(0.0, self.cobias**2 - self.noise**2))


def choose_point(
    points: Sequence[FrontPoint],
    predictions: Sequence[NDArray[np.int64]],
    *,
    folds: Folds,
    preference: Preference,
    keep_uncorrected: bool,
) -> FrontPoint:
    """Pick a point; what cross-validation cannot tell apart is decided by caution.

    With few rows the best of many estimates is mostly luck: the point of middle beta stays unless
    another is better by more than the noise of the difference. And the probabilities stay as they
    are unless correcting them is an improvement beyond noise.

    Parameters
    ----------
    points : sequence of FrontPoint
        At least two; the last is that of the uncorrected probabilities.
    predictions : sequence of array of int, shape [M]
        Cross-validated predictions of every point.
    folds : Folds
        The rows, and the folds they were predicted in.
    preference : Preference
        The rule.
    keep_uncorrected : bool
        Whether the last point may be chosen.
    """
    corrected, plain = points[:-1], points[-1]
    if preference.max_cobias is not None or preference.max_accuracy_loss is not None:
        # A limit is meant for many rows; the noise of small folds would use up most of it.
        among = [
            replace(p, estimate=replace(p.estimate, cobias=p.lasting_cobias))
            for p in (points if keep_uncorrected else corrected)
        ]
        found = choose(among, preference)
        return points[next(i for i, point in enumerate(among) if point is found)]
    best = choose(corrected, preference)
    at = {id(point): p for point, p in zip(points, predictions, strict=True)}

    def beats(a: FrontPoint, b: FrontPoint, errors: float) -> bool:
        accuracy, score = folds.standard_errors(at[id(b)], at[id(a)])
        gain = a.accuracy - b.accuracy
        if preference.prefer == "accuracy":
            return gain > errors * accuracy
        return gain - a.cobias + b.cobias > errors * score

    if preference.prefer == "balance":
        middle = min(corrected, key=lambda p: abs(p.beta - _MIDDLE_BETA))
        share = _CAUTIOUS_ROWS / (_CAUTIOUS_ROWS + folds.labels.size)
        if not beats(best, middle, 1.5 * share):
            best = middle
    if keep_uncorrected:
        # The best of many points flatters itself; where it costs accuracy it must show more.
        accuracy, _ = folds.standard_errors(at[id(plain)], at[id(best)])
        costs = best.accuracy - plain.accuracy < -accuracy
        if not beats(best, plain, 1.0 if costs else 0.5):
            return plain
    return best
