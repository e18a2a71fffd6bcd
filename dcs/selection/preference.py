"""Which point of a front of accuracy and COBias is preferred."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from dcs.data.checks import finite_number
from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import FIGURES, ClassificationMetrics
from dcs.messages import check_choice

__all__ = ["Figures", "Prefer", "Preference", "choose", "pareto_front"]

Prefer: TypeAlias = Literal[
    "no-harm", "balance", "knee", "accuracy", "balanced-accuracy", "macro-f1", "weakest-class"
]

#: What of the accuracy a harmless point may seem to lose at most.
_HARMLESS: Final = 0.005

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
    prefer : str
        ``"no-harm"``: the lowest COBias among points whose accuracy is not below that of the
        uncorrected probabilities beyond noise, that is, by no more than one standard error of the
        paired difference and no more than 0.5 points, as long as a point of COBias costs no more
        than a point of accuracy there; the highest accuracy where there is no such point.
        ``"balance"``: the highest accuracy minus COBias. ``"knee"``: the point farthest
        from the straight line between the most accurate and the fairest. ``"accuracy"``,
        ``"balanced-accuracy"``, ``"macro-f1"``, ``"weakest-class"``: the highest of these.
    exchange_rate : float, optional
        What a point of COBias is worth in points of accuracy: take the highest accuracy minus
        this many times COBias; ``"balance"`` is a rate of 1. Goes before `prefer`.
    max_accuracy_loss : float, optional
        In points. Take the lowest COBias among points at most this much less accurate than the
        most accurate one. Goes before `exchange_rate`.
    max_cobias : float, optional
        In points. Keep to points with at most this COBias; when there is none, the lowest COBias
        is taken. Goes before everything else.

    Raises
    ------
    InvalidInputError
        When a value is not allowed.
    """

    prefer: Prefer = "no-harm"
    exchange_rate: float | None = None
    max_accuracy_loss: float | None = None
    max_cobias: float | None = None

    def __post_init__(self) -> None:
        check_choice("prefer", self.prefer, get_args(Prefer))
        if self.exchange_rate is not None:
            finite_number(self.exchange_rate, "exchange_rate", least=0.0)
        for name in ("max_accuracy_loss", "max_cobias"):
            value = getattr(self, name)
            if value is not None and finite_number(value, name, least=0.0) > 100.0:
                raise InvalidInputError(
                    f"{name} {value!r}: points between 0 and 100 are needed (0.5 is half a point)"
                )

    @property
    def limited(self) -> bool:
        """Whether a limit takes part."""
        return self.max_accuracy_loss is not None or self.max_cobias is not None

    @property
    def rule(self) -> str:
        """What decides within the limits: `prefer`, or ``"exchange-rate"``."""
        return self.prefer if self.exchange_rate is None else "exchange-rate"

    @property
    def rates(self) -> tuple[float, float] | None:
        """What accuracy counts for and COBias against; None where something else is preferred."""
        return {
            "no-harm": (1.0, 1.0),
            "balance": (1.0, 1.0),
            "knee": (1.0, 1.0),
            "accuracy": (1.0, 0.0),
            "exchange-rate": (1.0, self.exchange_rate or 0.0),
        }.get(self.rule)


@dataclass(frozen=True, slots=True)
class Figures:
    """What a choice between points goes by: estimates on rows that took no part in the fit.

    Attributes
    ----------
    accuracy, cobias, balanced_accuracy, macro_f1, weakest_class : float
        As of :class:`dcs.ClassificationMetrics`, 0..1.
    accuracy_change : float
        Accuracy minus that of the uncorrected probabilities on the same rows.
    accuracy_error : float
        Standard error of this difference.
    """

    accuracy: float
    cobias: float
    balanced_accuracy: float
    macro_f1: float
    weakest_class: float
    accuracy_change: float
    accuracy_error: float

    @classmethod
    def from_predictions(
        cls,
        labels: NDArray[np.int64],
        before: NDArray[np.int64],
        after: NDArray[np.int64],
        n_classes: int,
    ) -> Figures:
        """Judge predictions, of shape [M] each, beside the uncorrected ones of the same rows."""
        metrics = ClassificationMetrics.from_predictions(labels, after, n_classes)
        change = (after == labels) * 1.0 - (before == labels)
        return cls(
            **{name: getattr(metrics, name) for name in FIGURES},
            accuracy_change=float(change.mean()),
            accuracy_error=float(change.std()) / math.sqrt(labels.size),
        )

    @property
    def harmless(self) -> bool:
        """Whether accuracy is not below uncorrected beyond noise; see :class:`Preference`."""
        return self.accuracy_change >= -min(_HARMLESS, self.accuracy_error) - _TIE


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


def choose(figures: Sequence[Figures], preference: Preference) -> int:
    """Return the place of the point that a preference picks.

    Parameters
    ----------
    figures : sequence of Figures
        Those of every point; at least one.
    preference : Preference
        The rule.

    Raises
    ------
    InvalidInputError
        When there are no points.
    """
    if not figures:
        raise InvalidInputError("a front without points has none to choose")
    picked = _picked(list(figures), preference)
    return next(i for i, candidate in enumerate(figures) if candidate is picked)


def _picked(pool: list[Figures], preference: Preference) -> Figures:
    if preference.max_cobias is not None:
        low = [p for p in pool if p.cobias <= preference.max_cobias / 100.0 + _TIE]
        # The front ends with the lowest COBias, which is what is left when none is low enough.
        pool = low or [pareto_front(pool)[-1]]
    front = pareto_front(pool)
    if preference.max_accuracy_loss is not None:
        least = front[0].accuracy - preference.max_accuracy_loss / 100.0 - _TIE
        return [p for p in front if p.accuracy >= least][-1]
    rates = preference.rates
    if rates is None:
        # Of equals the one on the front comes first.
        return max((*front, *pool), key=lambda p: getattr(p, preference.prefer.replace("-", "_")))
    if preference.rule == "no-harm":
        # Were fairness all, its noise would decide between points far apart in accuracy.
        front = pareto_front([p for p in pool if p.harmless]) or front[:1]
    if preference.rule == "knee" and len(front) > 2:
        return _knee(front)
    return max(front, key=lambda p: rates[0] * p.accuracy - rates[1] * p.cobias)


def _knee(front: Sequence[Figures]) -> Figures:
    figures: NDArray[Any] = np.array([(p.accuracy, p.cobias) for p in front])
    figures = (figures - figures[-1]) / (figures[0] - figures[-1])
    # Both axes now run from the fairest (0, 0) to the most accurate (1, 1); a good point is more
    # accurate than its COBias on the straight line between the two would pay for.
    return front[int(np.argmax(figures[:, 0] - figures[:, 1]))]
