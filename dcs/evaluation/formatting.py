"""How figures are shown: in percent with what they may be off by, and how likely chance is."""

from __future__ import annotations

import math
from typing import Final

__all__ = ["chance", "percent", "sentence_of_chance"]

#: A bootstrap of 2,000 samples says no more than this.
_SMALLEST: Final = 0.002


def percent(
    share: float | None,
    deviation: float | None = None,
    *,
    interval: tuple[float, float] | None = None,
    digits: int = 1,
    coarse: bool = False,
    padded: bool = False,
) -> str:
    """Write a share as ``58.2``, ``58.2 ± 0.3`` or ``58.2 [55.1, 61.0]``.

    Parameters
    ----------
    share : float or None
        A fraction; nothing is written for None and NaN.
    deviation : float, optional
        Its standard deviation; None and NaN are not written.
    interval : tuple of float, optional
        Where it may lie, instead; NaN is not written.
    digits : int
        Places after the point.
    coarse : bool
        Write the ends of the interval in whole percent.
    padded : bool
        Write a blank before ends of one digit, so that the brackets of a column are in line.
    """
    if share is None or math.isnan(share):
        return ""
    text = f"{100 * share:.{digits}f}"
    if deviation is not None and not math.isnan(deviation):
        return f"{text} ± {100 * deviation:.{digits}f}"
    if interval is not None and not math.isnan(interval[0]):
        places = 0 if coarse else digits
        width = (3 + places if places else 2) if padded else 0
        low, high = (f"{100 * end:{width}.{places}f}" for end in interval)
        return f"{text} [{low}, {high}]"
    return text


def chance(p: float | None) -> str:
    """Write a p-value for a column: ``0.035``, ``<0.002``, nothing for None and NaN."""
    if p is None or math.isnan(p):
        return ""
    return f"<{_SMALLEST}" if p < _SMALLEST else f"{p:.3f}"


def sentence_of_chance(p: float) -> str:
    """Write a p-value for a sentence: ``p = 0.035``, ``p < 0.002``."""
    text = chance(p)
    return f"p < {text[1:]}" if text.startswith("<") else f"p = {text}"
