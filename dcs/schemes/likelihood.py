"""Compiled loss of a calibration."""

from __future__ import annotations

import math

import numba
import numpy as np
from numpy.typing import NDArray


@numba.njit(nogil=True, cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def weighted_loss(
    design: NDArray[np.float64],
    start: NDArray[np.float64],
    departure: NDArray[np.float64],
    labels: NDArray[np.int64],
    row_weights: NDArray[np.float64],
    slope: NDArray[np.float64],
) -> float:
    """Return ``-sum w log q(label)`` and store its gradient in `slope`.

    The logits [M, N] are ``start + design @ departure``, `design` being [M, P] and `departure` and
    `slope` [P, N]. Sums are in the order of the rows, on any processor.
    """
    n_rows, n_features = design.shape
    n_classes = start.shape[1]
    q = np.empty(n_classes)
    for f in range(n_features):
        for i in range(n_classes):
            slope[f, i] = 0.0
    loss = 0.0
    for m in range(n_rows):
        for i in range(n_classes):
            q[i] = start[m, i]
        for f in range(n_features):
            x = design[m, f]
            for i in range(n_classes):
                q[i] += x * departure[f, i]
        top = q[0]
        for i in range(n_classes):
            top = max(top, q[i])
        label, weight, total = labels[m], row_weights[m], 0.0
        loss -= weight * (q[label] - top)
        for i in range(n_classes):
            q[i] = math.exp(q[i] - top)
            total += q[i]
        loss += weight * math.log(total)
        for i in range(n_classes):
            q[i] *= weight / total
        q[label] -= weight
        for f in range(n_features):
            x = design[m, f]
            for i in range(n_classes):
                slope[f, i] += x * q[i]
    return loss
