"""Sums of products and softmax, the same to the last bit wherever they are computed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["moments", "product", "softmax"]


def product(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``a @ b`` of [M, K] and [K, N].

    BLAS adds in an order that depends on the processor, its threads and the number of rows, so
    that a row by itself could get other values than among many. Here it is always the same.
    """
    total = np.zeros((a.shape[0], b.shape[1]))
    for column, row in zip(a.T, b, strict=True):
        total += np.multiply.outer(column, row)
    return total


def moments(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``a.T @ b`` of [M, K] and [M, N], in the order of the rows; see :func:`product`."""
    return np.array([(column[:, None] * b).sum(axis=0) for column in a.T])


def softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return probabilities [M, N] of logits; ``-inf`` gives 0, a row needs a finite one."""
    with np.errstate(over="ignore"):
        # Logits further apart than the largest number differ by -inf, and exp(-inf) is right.
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    normalised: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return normalised
