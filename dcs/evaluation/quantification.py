"""Shares of the classes among unlabelled rows, from predictions and their known errors.

The field calls this quantification or prevalence estimation. Predicted shares are biased by the
errors of the classifier. One method removes that bias with the rates at which held-out rows of a
class are predicted as each class, which it takes to be the same among the new rows (label shift).
Another takes the held-out rows to be a random sample of the same rows, and is more precise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.errors import InvalidInputError, check_choice, quoted
from dcs.evaluation.uncertainty import LEVEL, Array, Interval, around

#: Rows that are added to each class (or prediction), spread over the predictions (or classes), and
#: to each predicted class: no rate and no share is known to be 0.
_PRIOR: Final = 0.5


def class_shares(
    confusion: ArrayLike,
    predicted: ArrayLike,
    *,
    classes: Sequence[str],
    method: str = "adjusted",
    resamples: int = 1000,
) -> tuple[Interval, ...]:
    """Estimate the shares of the classes among rows of which only predictions are known.

    Parameters
    ----------
    confusion : array of float, shape [N, N]
        Numbers of held-out rows by true class (row) and predicted class (column), fractions where
        copies count together.
    predicted : array of float, shape [N]
        Number of new rows that are predicted as each class.
    classes : sequence of str
        Names of the classes, for messages.
    method : {"adjusted", "sample"}, optional
        Adjusted counts, the least-squares solution with negative shares clipped (Forman 2008,
        Quantifying counts and costs via classification); or, only if shares are the same as among
        the held-out rows, those of the true classes among the rows of each prediction, weighted by
        how often it occurs (post-stratification; Cochran 1977, Sampling techniques, 5A.9).
    resamples : int, optional
        Number of draws of the rates and of the predicted shares, for 95 % percentile intervals of
        the shares in the population of the new rows: of few rows they are wide.

    Raises
    ------
    InvalidInputError
        If a class has no held-out row whose errors could be known.
    """
    solvers = {"adjusted": _adjusted, "sample": _stratified}
    check_choice("method", method, solvers)
    held, counts = np.asarray(confusion, np.float64), np.asarray(predicted, np.float64)
    rows = held.sum(axis=1)
    absent = [name for name, own in zip(classes, rows, strict=True) if own == 0]
    if absent and method != "sample":
        raise InvalidInputError(
            f"class {quoted(absent)}: no held-out row, so that its errors are unknown; label some"
        )
    if method == "sample":
        held = held.T  # by prediction
    prior = held + _PRIOR / len(held)
    # Predictions that no held-out row has tell nothing without the prior.
    unseen = method != "sample" and counts[~held.any(axis=0)].any()
    known = np.where(held.any(axis=1, keepdims=True) & (not unseen), held, prior)
    solve = solvers[method]
    estimate = solve(_shares(known)[None], _shares(counts)[None])[0]
    rng = np.random.default_rng(0)
    rates = np.stack([rng.dirichlet(own, resamples) for own in prior], axis=1)
    drawn = solve(rates, rng.dirichlet(counts + _PRIOR, resamples))
    tail = 100.0 * (1.0 - LEVEL) / 2
    ends = np.percentile(drawn, [tail, 100.0 - tail], axis=0).T.tolist()
    return tuple(map(around, estimate.tolist(), ends, drawn.T))


def _shares(counts: NDArray[Any]) -> Array:
    return np.asarray(counts / counts.sum(axis=-1, keepdims=True))


def _stratified(rates: Array, shares: Array) -> Array:
    """Return the shares [R, N] of the true classes, given those of the predicted ones."""
    return np.asarray(np.einsum("rj,rjk->rk", shares, rates))


def _adjusted(rates: Array, shares: Array) -> Array:
    """Return the shares [R, N] whose expected predictions are nearest to those observed."""
    found = np.einsum("rij,rj->ri", np.linalg.pinv(rates.transpose(0, 2, 1)), shares)
    return _shares(np.maximum(found, 0.0))
