"""A small random stream that compiled and plain Python code can both produce.

SplitMix64 (Steele, Lea and Flood, 2014): one 64-bit word of state, so a stream is an array with
one entry, results do not depend on the version of any library, and the tests can follow a search
draw by draw.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dcs._kernels._compile import compiled

__all__ = ["below", "uniform"]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)
_DROP = np.uint64(11)
_UNIT = 2.0**-53


@compiled
def uniform(stream: NDArray[np.uint64]) -> float:
    """Draw a number in [0, 1) and move the stream on."""
    stream[0] += _STEP
    z = stream[0]
    z = (z ^ (z >> _SHIFT_1)) * _MIX_1
    z = (z ^ (z >> _SHIFT_2)) * _MIX_2
    z = z ^ (z >> _SHIFT_3)
    return float(z >> _DROP) * _UNIT


@compiled
def below(stream: NDArray[np.uint64], n: int) -> int:
    """Draw a whole number in 0 .. n - 1."""
    return int(uniform(stream) * n)
