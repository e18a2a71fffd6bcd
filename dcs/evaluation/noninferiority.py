"""Test of non-inferiority of paired accuracies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist


@dataclass(frozen=True, slots=True)
class NonInferiority:
    """One-sided score test of paired accuracies on the same rows (Tango 1998).

    The null hypothesis is that the true accuracy decreases by the margin or more. The variance is
    estimated under this hypothesis, so that few or no differing rows prove nothing. The rows may
    be cross-validated: for stable fits, the variance over all held-out rows is valid for the mean
    of the folds (Bayle et al. 2020, arXiv 2007.12671). `benchmarks/calibration.py` simulates it.

    Parameters
    ----------
    gained, lost : float
        Numbers of rows that only the second or only the first set of predictions has right;
        fractions where copies count together.
    n_rows : float
        Number of rows.
    margin : float
        Largest acceptable loss of accuracy, as a fraction.
    confidence : float
        One minus the level of the test.
    """

    gained: float
    lost: float
    n_rows: float
    margin: float
    confidence: float = 0.95

    @property
    def statistic(self) -> float:
        """Standardised excess of the accuracy difference over minus the margin."""
        n, loss = self.n_rows, self.margin
        excess = self.gained - self.lost + n * loss
        # Maximum likelihood estimate of the probability of a loss if the hypothesis is true.
        b = -self.gained - self.lost - (2 * n - self.gained + self.lost) * loss
        c = self.lost * loss * (1.0 + loss)
        losses = (math.sqrt(max(0.0, b * b - 8.0 * n * c)) - b) / (4.0 * n)
        variance = n * (2.0 * losses - loss * (1.0 + loss))
        if variance <= 0.0:
            return math.inf if excess > 0.0 else -math.inf
        return excess / math.sqrt(variance)

    @property
    def critical(self) -> float:
        """Value that the statistic must reach."""
        return NormalDist().inv_cdf(self.confidence)

    @property
    def passed(self) -> bool:
        """Whether a loss of the margin or more is rejected."""
        return self.statistic >= self.critical

    @property
    def rows_needed(self) -> int | None:
        """Number of rows at which the same rates pass; None if they lose the margin or more."""
        statistic = self.statistic
        if statistic <= 0.0:
            return None
        return math.ceil(self.n_rows * max(1.0, (self.critical / statistic) ** 2))


#: Number of bisection steps of the end of an interval.
_BISECTIONS = 60


def accuracy_difference(
    gained: float, lost: float, n_rows: float, *, confidence: float = 0.95
) -> tuple[float, float]:
    """Return the score interval of a difference of paired accuracies (Tango 1998).

    Parameters
    ----------
    gained, lost : float
        Numbers of rows that only the second or only the first set of predictions has right;
        fractions where copies count together.
    n_rows : float
        Number of rows.
    confidence : float, optional
        Coverage of the interval.

    Returns
    -------
    low, high : float
        Ends of the interval of the second accuracy minus the first, -1..1.
    """
    critical = NormalDist().inv_cdf((1.0 + confidence) / 2.0)

    def lower(gained: float, lost: float) -> float:
        low, high = -1.0, (gained - lost) / n_rows
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2.0
            rejected = NonInferiority(gained, lost, n_rows, -middle).statistic > critical
            low, high = (middle, high) if rejected else (low, middle)
        return low

    return lower(gained, lost), -lower(lost, gained)
