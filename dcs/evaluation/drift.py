"""Whether rows are still like those that a scheme was fitted on, by two-sample tests.

A scheme is chosen for the class shares and probabilities of its rows. It keeps a small summary of
them, against which any later rows can be tested, without the rows themselves.
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
"""How often rows that are alike are said to have drifted, over all tests together."""

LEAST: Final = 0.02
"""Share of the rows that must have moved: with very many rows any difference is no chance."""

_BINS: Final = 10


class Summary(BaseModel):
    """What is kept of the rows of a table.

    Attributes
    ----------
    labels, predictions : list of int
        Rows by class; of the labels those that are known.
    edges, confidence : list
        Deciles of the largest probability of a row, and the rows between them.
    means, deviations : list of float
        Of the probability of each class.
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
    """One comparison of rows with those that a scheme was fitted on.

    Attributes
    ----------
    subject : str
        What is compared.
    distance : float
        Share of the rows that would have to change for both to be alike (total variation), or
        the difference of means.
    p : float
        Two-sided, times the number of comparisons that it was the smallest among (Holm).
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
        """Whether this is more than chance, and more than a trifle."""
        return self.p < LEVEL and self.distance >= LEAST


def summarized(table: ProbabilityTable, *, edges: NDArray[np.float64] | None = None) -> Summary:
    """Return what is kept of the rows of a table.

    Parameters
    ----------
    table : ProbabilityTable
        The rows, labelled or not.
    edges : array of float, optional
        Where the bins of the confidence end, by default at the deciles.
    """
    n_classes, surest = table.n_classes, table.probs.max(axis=1)
    if edges is None:
        edges = np.unique(np.quantile(surest, np.arange(1, _BINS) / _BINS))
    bins = np.searchsorted(edges, surest, side="right")
    return Summary(
        labels=np.bincount(table.labels[table.labelled], minlength=n_classes).tolist(),
        predictions=np.bincount(table.probs.argmax(axis=1), minlength=n_classes).tolist(),
        edges=edges.tolist(),
        confidence=np.bincount(bins, minlength=edges.size + 1).tolist(),
        means=table.probs.mean(axis=0).tolist(),
        deviations=table.probs.std(axis=0).tolist(),
    )


def compare_rows(reference: Mapping[str, Any], table: ProbabilityTable) -> list[Drift]:
    """Compare rows with the summary of those that a scheme was fitted on.

    Parameters
    ----------
    reference : mapping
        The values of a :class:`Summary`.
    table : ProbabilityTable
        The rows, with the classes in the same order; where they have labels these are compared
        too.

    Returns
    -------
    list of Drift
        Labels, predictions, confidence, and the mean probability of every class. Counts are
        compared by a chi-squared test, means by Student's t-test; the p-values are adjusted by
        Holm's method, so that rows that are alike are flagged with probability `LEVEL` at most.

    Raises
    ------
    SchemeError
        The summary is none, or of another number of classes.
    """
    then = validated(Summary, dict(reference), source="reference", error=SchemeError)
    if len(then.means) != table.n_classes:
        raise SchemeError(
            f"reference: of {len(then.means)} classes; the table has {table.n_classes}"
        )
    now = summarized(table, edges=np.array(then.edges))
    found = [*_counted(then, now), *_means(then, now, table.classes)]
    ps = np.array([each.p for each in found])
    order = np.argsort(ps, kind="stable")
    ps[order] = np.maximum.accumulate(np.minimum(1.0, np.arange(ps.size, 0, -1) * ps[order]))
    return [replace(each, p=p) for each, p in zip(found, ps.tolist(), strict=True)]


def _counted(then: Summary, now: Summary) -> Iterator[Drift]:
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


def _means(then: Summary, now: Summary, classes: tuple[str, ...]) -> Iterator[Drift]:
    from scipy.stats import ttest_ind_from_stats

    before, after = ((s.means, s.deviations, sum(s.predictions)) for s in (then, now))
    with np.errstate(invalid="ignore", divide="ignore"):
        # Rows that are alike have one variance, which a few rows by themselves do not show.
        ps = ttest_ind_from_stats(*before, *after).pvalue.tolist()
    for name, mean, other, p in zip(classes, then.means, now.means, ps, strict=True):
        # Without any spread there is nothing to test.
        p = float(mean == other) if np.isnan(p) else p
        yield Drift(f"mean probability of {name}", abs(mean - other), p, (mean,), (other,))
