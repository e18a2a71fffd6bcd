"""The points of a fitted front, and the choice of one of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dcs.fitting import Hyperparameters
from dcs.front import Preference, choose
from dcs.metrics import ClassificationMetrics
from dcs.scheme import CorrectionScheme
from dcs.validation import Folds

__all__ = ["FrontPoint", "choose_point"]

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
