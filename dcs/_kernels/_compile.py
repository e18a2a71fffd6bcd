"""The one way functions are compiled here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

__all__ = ["compiled"]

_F = TypeVar("_F", bound=Callable[..., object])


def compiled(function: _F) -> _F:
    """Compile `function` without the GIL and keep the machine code on disk.

    ``error_model="numpy"`` leaves out the checks for division by zero, which would keep the loops
    from being vectorised. Fast-math stays off: results must equal NumPy's bit for bit.
    """
    return cast(_F, numba.njit(nogil=True, cache=True, error_model="numpy")(function))
