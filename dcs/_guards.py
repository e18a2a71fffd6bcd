"""What holds a search back where rows are few: smoothed labels, and weights to be averaged."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from dcs.corrections import Correction, Weight

__all__ = ["logarithms", "smoothed", "weights_of"]

_MOST_COPIES: Final = 64


def smoothed(
    probs: NDArray[np.float64],
    labels: NDArray[np.int64],
    share: float,
    seed: int,
    copied_rows: int,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Copy the rows so that a share of the labels follows the probabilities themselves.

    A search over labels alone fits their noise; what the calibrated probabilities expect has none.
    The labels of the copies are spread evenly over every row's distribution.
    """
    n_rows, n_classes = probs.shape
    copies = min(_MOST_COPIES, max(4, round(copied_rows / n_rows)))
    expected = round(share * copies)
    if expected == 0:
        return probs, labels
    below = probs.cumsum(axis=1)
    first = np.random.default_rng(seed).random(n_rows)
    targets = [
        np.minimum((((i + first) / expected)[:, None] > below).sum(axis=1), n_classes - 1)
        for i in range(expected)
    ]
    targets += [labels] * (copies - expected)
    return np.tile(probs, (copies, 1)), np.concatenate(targets)


def logarithms(corrections: tuple[Correction, ...]) -> NDArray[np.float64]:
    """Return the logarithms of weights, with mean 0: only their ratios matter."""
    logs = np.log([c.value for c in corrections if isinstance(c, Weight)])
    centred: NDArray[np.float64] = logs - logs.mean()
    return centred


def weights_of(logs: NDArray[np.float64]) -> tuple[Correction, ...]:
    """Return weights of these logarithms, the largest 1; a range above 30 has no use."""
    return tuple(Weight(float(w)) for w in np.exp(np.maximum(logs - logs.max(), -30.0)))
