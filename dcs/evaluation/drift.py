"""Whether unlabelled rows are still those that a scheme was fitted on: one test of their moments.

Compared are the mean class probabilities, the shares of the predicted classes, and the mean
confidence. The fit keeps means and variances only, so that its rows need not be at hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from dcs.evaluation.uncertainty import Array, design_effect

#: The kinds of change, in the order of the features.
_KINDS: Final = ("class probabilities", "predicted shares", "confidence")

#: Number of draws of the test, whose smallest p-value is one over it.
_DRAWS: Final = 4000

#: Fewest rows of a class, in both samples, whose share is compared alone.
_FEWEST: Final = 10.0


@dataclass(frozen=True, slots=True)
class Shift:
    """Comparison of rows with those of the fit.

    Attributes
    ----------
    p : float
        p-value of no change of any kind, corrected for their number.
    kinds : dict of str to float
        p-value of each kind of change alone.
    """

    p: float
    kinds: dict[str, float]


def describe_rows(
    probs: ArrayLike, predictions: ArrayLike, copies: ArrayLike | None = None
) -> dict[str, Any]:
    """Return the means and variances of rows, as plain JSON.

    Parameters
    ----------
    probs : array of float, shape [M, N]
        Uncorrected class probabilities.
    predictions : array of int, shape [M]
        Predicted classes, corrected.
    copies : array of int, shape [M], optional
        Group of copies of every row, which count once; by default no row is a copy.
    """
    values = _features(probs, predictions)
    means, variances = values.mean(axis=0), values.var(axis=0)
    rows = len(values) if copies is None else len(values) / design_effect(copies)
    return {"rows": rows, "means": means.tolist(), "variances": variances.tolist()}


def _features(probs: ArrayLike, predictions: ArrayLike) -> Array:
    """Return class probabilities, predicted classes and confidence side by side, [M, 2 N + 1]."""
    given = np.asarray(probs, np.float64)
    chosen = np.eye(given.shape[1])[np.asarray(predictions)]
    return np.column_stack([given, chosen, given.max(axis=1)])


def compare_rows(
    reference: Mapping[str, Any],
    probs: ArrayLike,
    predictions: ArrayLike,
    copies: ArrayLike | None = None,
) -> Shift:
    """Compare rows with those of a fit.

    Every mean is standardised. The statistic of a kind is the sum of the squares; its distribution
    without a change, and that of the smallest p-value of all kinds (Westfall and Young 1993), are
    simulated by normal means with the correlations of the rows. `benchmarks/production.py`
    simulates level and power.

    Parameters
    ----------
    reference : mapping
        What :func:`describe_rows` returned for the fitted rows.
    probs, predictions, copies
        As in :func:`describe_rows`; at least two rows.
    """
    from scipy.stats import rankdata  # Takes longer than all of the others here.

    values = _features(probs, predictions)
    here = describe_rows(probs, predictions, copies)
    m, n, n_classes = here["rows"], reference["rows"], values.shape[1] // 2
    before, spread = (np.array(reference[name]) for name in ("means", "variances"))
    now = values.mean(axis=0)
    pooled = (n * spread + m * values.var(axis=0)) / (n + m)
    shares = (n * before + m * now)[n_classes:-1] / (n + m)
    pooled[n_classes:-1] = shares * (1.0 - shares)
    errors = np.maximum(np.sqrt(pooled * (1.0 / n + 1.0 / m)), 1e-12)
    kinds = np.repeat(_KINDS, [n_classes, n_classes, 1])
    used = (errors > 1e-12) | (np.abs(now - before) > 1e-9)
    used[n_classes:-1] &= (n + m) * np.minimum(shares, 1.0 - shares) >= _FEWEST
    observed = ((now - before)[used] / errors[used]) ** 2
    # A mean without variance in these rows is independent of the others.
    own = values[:, used] - now[used]
    scales = np.maximum(own.std(axis=0), 1e-12)
    correlations = (own.T @ own) / (len(own) * np.outer(scales, scales))
    correlations[np.diag_indices_from(correlations)] = 1.0
    roots, axes = np.linalg.eigh(correlations)
    normal = np.random.default_rng(0).standard_normal((_DRAWS, len(roots)))
    drawn = ((normal * np.sqrt(np.maximum(roots, 0.0))) @ axes.T) ** 2
    ps, alone = {}, []
    for name in dict.fromkeys(kinds[used].tolist()):
        own = kinds[used] == name
        sums, total = drawn[:, own].sum(axis=1), float(observed[own].sum())
        ps[name] = (1 + int((sums >= total).sum())) / (1 + _DRAWS)
        alone.append((_DRAWS + 1 - rankdata(sums)) / _DRAWS)
    if not ps:
        return Shift(1.0, {})
    least = np.min(alone, axis=0)
    p = (1 + int((least <= min(ps.values())).sum())) / (1 + _DRAWS)
    return Shift(p, ps)
