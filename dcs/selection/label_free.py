"""What can be done without labels: schemes from the class probabilities alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from numpy.typing import ArrayLike

from dcs.data.checks import checked_rows
from dcs.schemes.calibration import batch_calibration
from dcs.schemes.corrections import DONT_CHANGE
from dcs.schemes.scheme import CorrectionScheme

__all__ = ["FEWEST_LABELS", "label_free_scheme"]

#: With fewer labelled rows nothing can be cross-validated.
FEWEST_LABELS: Final = 2


def label_free_scheme(
    probs: ArrayLike, labels: ArrayLike, *, classes: Sequence[str] | None = None
) -> CorrectionScheme:
    """Return the scheme that needs no labels: batch calibration.

    It makes the mean probabilities of all classes alike. That is fair where the classes are about
    as frequent as each other; without labels nobody can tell whether accuracy rises or falls.

    Parameters
    ----------
    probs : array of float, shape [M, N]
        Class probabilities.
    labels : array of int, shape [M]
        True class indices, -1 for unlabelled rows; only counted.
    classes : sequence of str, optional
        Class names, by default ``"class_0", "class_1", ...``.

    Returns
    -------
    CorrectionScheme
        Its provenance says how many rows had labels, and holds no estimate.

    Raises
    ------
    InvalidInputError
        When an argument is not allowed.

    Notes
    -----
    Source: batch calibration, Zhou et al. 2024, arXiv 2309.17249.
    """
    values, indices, names = checked_rows(probs, labels, classes, missing=True)
    origin = {"method": "batch", "rows": indices.size, "labelled": int((indices >= 0).sum())}
    return CorrectionScheme(names, (DONT_CHANGE,) * len(names), origin, batch_calibration(values))
