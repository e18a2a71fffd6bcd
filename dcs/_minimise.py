"""A small limited-memory BFGS minimiser for smooth convex functions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["minimise"]

_MEMORY: Final = 12
_SUFFICIENT: Final = 1e-4
_CURVATURE: Final = 1e-12
_MOST_HALVINGS: Final = 40

Vector = NDArray[np.float64]


def minimise(
    function: Callable[[Vector], tuple[float, Vector]],
    start: Vector,
    *,
    iterations: int = 200,
    tolerance: float = 1e-6,
) -> Vector:
    """Return where `function` is least.

    Parameters
    ----------
    function : callable
        Gives value and gradient.
    start : array of float64
        Where to start.
    iterations : int, optional
        At most so many steps.
    tolerance : float, optional
        Stop when no entry of the gradient is larger.

    Returns
    -------
    array of float64
        The best point found.
    """
    x = start.copy()
    value, gradient = function(x)
    pairs: deque[tuple[Vector, Vector, float]] = deque(maxlen=_MEMORY)
    for _ in range(iterations):
        if np.abs(gradient).max() <= tolerance:
            break
        direction = -_times_inverse_hessian(gradient, pairs)
        slope = _dot(gradient, direction)
        if slope >= 0.0:
            pairs.clear()
            direction = -gradient
            slope = -_dot(gradient, gradient)
        # Without curvature pairs the gradient has no scale of its own.
        step = 1.0 if pairs else min(1.0, 1.0 / float(np.abs(gradient).sum()))
        for _ in range(_MOST_HALVINGS):
            new_value, new_gradient = function(x + step * direction)
            if new_value <= value + _SUFFICIENT * step * slope:
                break
            step *= 0.5
        else:
            break
        moved, turned = step * direction, new_gradient - gradient
        curvature = _dot(moved, turned)
        if curvature > _CURVATURE:
            pairs.append((moved, turned, curvature))
        x, value, gradient = x + moved, new_value, new_gradient
    return x


def _times_inverse_hessian(gradient: Vector, pairs: deque[tuple[Vector, Vector, float]]) -> Vector:
    """Multiply by the approximate inverse Hessian (the two-loop recursion)."""
    result = gradient.copy()
    shares: list[float] = []
    for moved, turned, curvature in reversed(pairs):
        share = _dot(moved, result) / curvature
        shares.append(share)
        result -= share * turned
    if pairs:
        moved, turned, curvature = pairs[-1]
        result *= curvature / _dot(turned, turned)
    for (moved, turned, curvature), share in zip(pairs, reversed(shares), strict=True):
        result += (share - _dot(turned, result) / curvature) * moved
    return result


def _dot(a: Vector, b: Vector) -> float:
    # BLAS would add in an order that depends on the processor.
    return float((a * b).sum())
