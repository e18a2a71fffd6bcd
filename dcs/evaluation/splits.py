"""Paired comparison of methods over repeated random splits of the same rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dcs.data.checks import finite_number
from dcs.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class SplitComparison:
    """Mean difference of two methods over splits.

    Attributes
    ----------
    mean : float
        Mean of the differences, in their units.
    standard_error : float
        Corrected standard error of the mean; NaN for a single split.
    low, high : float
        95 % confidence interval; NaN for a single split.
    p : float
        Two-sided p-value of a mean of zero; NaN for a single split.
    n_splits : int
        Number of splits.
    """

    mean: float
    standard_error: float
    low: float
    high: float
    p: float
    n_splits: int


def compare_over_splits(differences: ArrayLike, *, test_ratio: float) -> SplitComparison:
    """Compare two methods by the corrected resampled t-test.

    Splits of the same rows overlap, so that their results are correlated and the standard error
    over splits is too small. The correction adds the ratio of test to fitted rows to the inverse
    of the number of splits.

    Parameters
    ----------
    differences : array of float, shape [S]
        Differences of a metric between two methods, one per split.
    test_ratio : float
        Number of test rows divided by the number of fitted rows: 3 / 7 for 70/30 splits.

    Returns
    -------
    SplitComparison
        Mean, corrected standard error, interval and p-value.

    Raises
    ------
    InvalidInputError
        If there is no difference, or a value is not finite.

    Notes
    -----
    Source: Nadeau and Bengio 2003, Inference for the generalization error, Machine Learning 52.
    """
    values = np.asarray(differences, dtype=np.float64)
    if values.ndim != 1 or values.size == 0 or not np.isfinite(values).all():
        raise InvalidInputError("differences: must be at least one finite number per split")
    ratio = finite_number(test_ratio, "test_ratio", positive=True)
    mean, n = float(values.mean()), values.size
    if n == 1:
        return SplitComparison(mean, math.nan, math.nan, math.nan, math.nan, 1)
    # Imported here: slow to import, and needed for tables only.
    from scipy.special import stdtr, stdtrit

    error = math.sqrt((1.0 / n + ratio) * float(values.var(ddof=1)))
    reach = float(stdtrit(n - 1, 0.975)) * error
    p = 2.0 * float(stdtr(n - 1, -abs(mean) / error)) if error > 0.0 else float(mean == 0.0)
    return SplitComparison(mean, error, mean - reach, mean + reach, p, n)
