"""The method ``steep``: memberships of one more slope, and weights in equal ratios."""

from __future__ import annotations

from collections.abc import Sequence

from numpy.typing import ArrayLike

from dcs import CorrectionSet, Membership, anneal
from dcs.schemes.scheme import CorrectionScheme
from dcs.selection.methods import Method

SLOPE = 16


def steep(weight_scale: int = 30) -> CorrectionSet:
    """Return triangles of slope 16, Don't Change, and weights from 1/30 to 1 in equal ratios."""
    triangles = [
        Membership(max(peak - 1, 0) / SLOPE, peak / SLOPE, min(peak + 1, SLOPE) / SLOPE)
        for peak in range(SLOPE + 1)
    ]
    weights = CorrectionSet.logarithmic(count=weight_scale, smallest=1 / 30)
    return CorrectionSet((*triangles, Membership(0, 1, 1), *weights))


def fit_steep(
    probs: ArrayLike, labels: ArrayLike, *, classes: Sequence[str] | None, seed: int
) -> CorrectionScheme:
    """Search the family once, with the default objective and schedule."""
    return anneal(probs, labels, corrections=steep(), seed=seed, classes=classes).scheme


STEEP = Method(
    name="steep",
    title="Steep DCS",
    fitter=fit_steep,
)
