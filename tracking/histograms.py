"""How often each probability occurs in each class: what correction functions are drawn over."""

from __future__ import annotations

import numpy as np

from dcs.probabilities import ProbabilityTable
from dcs.scheme import CorrectionScheme

__all__ = ["BINS", "class_histograms"]

BINS = 40
"""Bars between 0 and 1."""


def class_histograms(
    table: ProbabilityTable, scheme: CorrectionScheme
) -> dict[str, list[list[int]]]:
    """Count how often the probabilities of each class occur, before its correction.

    Parameters
    ----------
    table : ProbabilityTable
        The rows, of the scheme's classes in any order.
    scheme : CorrectionScheme
        Its calibration, where it has one, comes before the corrections and so before the counts.

    Returns
    -------
    dict of str to list of list of int
        ``all`` and ``own``: for each class of the scheme, in its order, rows by probability in
        `BINS` bins of equal width; of all rows, and of the rows that belong to the class.
    """
    scheme_order = [table.classes.index(name) for name in scheme.classes]
    # The calibration mixes classes, in the order of the scheme.
    probs = table.probs[:, scheme_order]
    if scheme.calibration is not None:
        probs = scheme.calibration.apply(probs)
    edges = np.linspace(0.0, 1.0, BINS + 1)
    counts: dict[str, list[list[int]]] = {"all": [], "own": []}
    for column, index in enumerate(scheme_order):
        values = probs[:, column]
        for name, chosen in (("all", values), ("own", values[table.labels == index])):
            counts[name].append(np.histogram(chosen, bins=edges)[0].tolist())
    return counts
