"""Detection of drift between new rows and those used to fit a scheme, by two-sample tests.

A scheme is chosen for the class shares and probabilities of its rows. It stores a small summary of
them, against which new rows can be tested without access to the original rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from dcs.data.table import ProbabilityTable
from dcs.errors import SchemeError
from dcs.io import validated

LEVEL: Final = 0.01
"""Significance level over all tests: the false positive rate for rows without drift."""

LEAST: Final = 0.02
"""Minimum distance of drift: with very many rows any difference is significant."""

_BINS: Final = 10


class Summary(BaseModel):
    """Summary statistics of the rows of a table.

    Attributes
    ----------
    labels, predictions : list of int
        Number of rows per class; unlabelled rows are ignored in `labels`.
    edges, confidence : list
        Deciles of the largest probability of a row, and the number of rows per bin.
    means, deviations : list of float
        Mean and standard deviation of the probability of each class.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    labels: list[int]
    predictions: list[int]
    edges: list[float]
    confidence: list[int]
    means: list[float]
    deviations: list[float]


@dataclass(frozen=True, slots=True)
class Drift:
    """One comparison of new rows with those used to fit a scheme.

    Attributes
    ----------
    subject : str
        Name of the compared quantity.
    distance : float
        Total variation distance of the shares, or absolute difference of the means.
    p : float
        Two-sided p-value, adjusted for the number of comparisons by Holm's method.
    before, now : tuple of float
        Shares of classes or of bins, or the two means.
    """

    subject: str
    distance: float
    p: float
    before: tuple[float, ...]
    now: tuple[float, ...]

    @property
    def drifted(self) -> bool:
        """Whether the difference is significant and not negligible."""
        return self.p < LEVEL and self.distance >= LEAST


def summarized(table: ProbabilityTable, *, edges: NDArray[np.float64] | None = None) -> Summary:
    """Return the summary of the rows of a table.

    Parameters
    ----------
    table : ProbabilityTable
        Rows, labelled or not.
    edges : array of float, optional
        Edges of the bins of the confidence, by default its deciles.
    """
    n_classes, confidence = table.n_classes, table.probs.max(axis=1)
    if edges is None:
        edges = np.unique(np.quantile(confidence, np.arange(1, _BINS) / _BINS))
    bins = np.searchsorted(edges, confidence, side="right")
    return Summary(
        labels=np.bincount(table.labels[table.labelled], minlength=n_classes).tolist(),
        predictions=np.bincount(table.probs.argmax(axis=1), minlength=n_classes).tolist(),
        edges=edges.tolist(),
        confidence=np.bincount(bins, minlength=edges.size + 1).tolist(),
        means=table.probs.mean(axis=0).tolist(),
        deviations=table.probs.std(axis=0).tolist(),
    )


def compare_rows(reference: Mapping[str, Any], table: ProbabilityTable) -> list[Drift]:
    """Compare rows with the summary of those used to fit a scheme.

    Parameters
    ----------
    reference : mapping
        The values of a :class:`Summary`.
    table : ProbabilityTable
        New rows, with the classes in the same order. Labels are compared if available.

    Returns
    -------
    list of Drift
        Labels, predictions, confidence, and the mean probability of each class. Counts are
        compared by a chi-squared test, means by Student's t-test. The p-values are adjusted by
        Holm's method, so that rows without drift are flagged with probability at most `LEVEL`;
        for a few rows the tests are approximate.

    Raises
    ------
    SchemeError
        If the summary is invalid, or has another number of classes.
    """
    then = validated(Summary, dict(reference), source="reference", error=SchemeError)
    if len(then.means) != table.n_classes:
        raise SchemeError(f"reference: expected {table.n_classes} classes, got {len(then.means)}")
    now = summarized(table, edges=np.array(then.edges))
    found = [*_compare_counts(then, now), *_compare_means(then, now, table.classes)]
    ps = np.array([each.p for each in found])
    order = np.argsort(ps, kind="stable")
    ps[order] = np.maximum.accumulate(np.minimum(1.0, np.arange(ps.size, 0, -1) * ps[order]))
    return [replace(each, p=p) for each, p in zip(found, ps.tolist(), strict=True)]


def _compare_counts(then: Summary, now: Summary) -> Iterator[Drift]:
    from scipy.stats import chi2_contingency

    for subject, name in (
        ("true classes", "labels"),
        ("predicted classes", "predictions"),
        ("confidence", "confidence"),
    ):
        counts = np.array([getattr(then, name), getattr(now, name)])
        if (counts.sum(axis=1) == 0).any():
            continue
        shares = counts / counts.sum(axis=1, keepdims=True)
        counts = counts[:, counts.any(axis=0)]
        p = float(chi2_contingency(counts).pvalue) if counts.shape[1] > 1 else 1.0
        distance = float(np.abs(shares[0] - shares[1]).sum() / 2)
        yield Drift(subject, distance, p, *map(tuple, shares.tolist()))


def _compare_means(then: Summary, now: Summary, classes: tuple[str, ...]) -> Iterator[Drift]:
    from scipy.stats import ttest_ind_from_stats

    before, after = ((s.means, s.deviations, sum(s.predictions)) for s in (then, now))
    with np.errstate(invalid="ignore", divide="ignore"):
        # Equal variances hold without drift; a few rows cannot estimate their own variance.
        ps = ttest_ind_from_stats(*before, *after).pvalue.tolist()
    for name, mean, other, p in zip(classes, then.means, now.means, ps, strict=True):
        # p is NaN if neither sample varies.
        p = float(mean == other) if np.isnan(p) else p
        yield Drift(f"mean probability of {name}", abs(mean - other), p, (mean,), (other,))
