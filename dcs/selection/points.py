"""Points of the trade-off between accuracy and COBias, and the order of a front."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Final, Protocol, TypeVar

import numpy as np
from pydantic import PlainValidator

from dcs.evaluation.metrics import ClassificationMetrics
from dcs.evaluation.uncertainty import NonInferiority
from dcs.schemes.scheme import CorrectionScheme

_TIE: Final = 1e-12


class _Point(Protocol):
    @property
    def accuracy(self) -> float: ...
    @property
    def cobias(self) -> float: ...


_P = TypeVar("_P", bound=_Point)


def pareto_front(
    points: Sequence[_P], cobias: Callable[[_P], float] = lambda p: p.cobias
) -> tuple[_P, ...]:
    """Return the Pareto-optimal points in accuracy and COBias, the most accurate first.

    Of points that are equal in both, the first is returned.
    """
    front: list[_P] = []
    for point in sorted(points, key=lambda p: (-p.accuracy, cobias(p))):
        if not front or cobias(point) < cobias(front[-1]) - _TIE:
            front.append(point)
    return tuple(front)


@dataclass(frozen=True, slots=True)
class Change:
    """Changes of a point relative to the uncorrected probabilities, on the same rows.

    Attributes
    ----------
    accuracy : float
        Difference of accuracy, after minus before, -1..1.
    accuracy_error, score_error : float
        Standard errors of the differences of accuracy, and of accuracy minus COBias.
    gained, lost, changed : int
        Numbers of rows that only these predictions or only the uncorrected ones have right, and
        of rows on which they differ.
    effect : float
        Factor by which copies of rows increase the variance, 1 or more.
    """

    accuracy: float
    accuracy_error: float
    score_error: float
    gained: int
    lost: int
    changed: int
    effect: float = 1.0


def _read_scheme(data: Any) -> CorrectionScheme:
    return data if isinstance(data, CorrectionScheme) else CorrectionScheme.from_dict(data)


@dataclass(frozen=True)
class FrontPoint:
    """One point of the trade-off between accuracy and COBias.

    Attributes
    ----------
    settings : tuple
        The settings that the scheme is the mean of, as values by name; none of the uncorrected
        probabilities.
    accuracy, cobias : float
        Cross-validated, 0..1: every row is predicted by a scheme fitted without it.
    confusion : array of int, shape [N, N]
        Confusion matrix of the cross-validated predictions; row = true class.
    scheme : CorrectionScheme
        The scheme for new rows.
    beta : float
        Weight of COBias at which the settings were the best.
    noise : float
        Expected COBias of an unbiased scheme on as many rows.
    change : Change
        Changes relative to the uncorrected probabilities.
    doubt : float
        Standard error of accuracy minus COBias, relative to the reference of ``"balance"``, which
        has none.
    path : float, optional
        Share of the reference, for a point on the straight way to it from the uncorrected
        probabilities.
    unlabelled : int
        Number of unlabelled rows in the fit.
    """

    settings: tuple[dict[str, Any], ...]
    accuracy: float
    cobias: float
    confusion: tuple[tuple[int, ...], ...]
    scheme: Annotated[CorrectionScheme, PlainValidator(_read_scheme)]
    beta: float
    noise: float
    change: Change
    doubt: float
    path: float | None = None
    unlabelled: int = 0

    def __post_init__(self) -> None:
        # Raises if the confusion matrix is invalid.
        ClassificationMetrics.from_confusion(np.array(self.confusion))

    @cached_property
    def estimate(self) -> ClassificationMetrics:
        """All cross-validated metrics."""
        counted = ClassificationMetrics.from_confusion(np.array(self.confusion))
        return replace(counted, accuracy=self.accuracy, cobias=self.cobias)

    @property
    def score(self) -> float:
        """Accuracy minus COBias."""
        return self.accuracy - self.cobias

    @property
    def lasting_cobias(self) -> float:
        """Estimate of COBias without sampling noise."""
        return math.sqrt(max(0.0, self.cobias**2 - self.noise**2))

    def test(self, margin: float, confidence: float) -> NonInferiority:
        """Return the test of accuracy against the uncorrected one; copies count once.

        Parameters
        ----------
        margin : float
            Largest acceptable loss, as a fraction.
        confidence : float
            One minus the level of the test.
        """
        effect = self.change.effect
        return NonInferiority(
            gained=self.change.gained / effect,
            lost=self.change.lost / effect,
            n_rows=self.estimate.n_rows / effect,
            margin=margin,
            confidence=confidence,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the point as stored in a front."""
        confusion = [list(row) for row in self.confusion]
        return asdict(self) | {"confusion": confusion, "scheme": self.scheme.to_dict()}
