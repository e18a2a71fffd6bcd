"""The normalised objective Z = error + beta * COBias + tau * PMI."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy

from dcs.data.checks import finite_number
from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import accuracy, cobias

PmiTerm = Literal["published", "normalised"]


@dataclass(frozen=True, slots=True)
class Objective:
    """What a search minimises (section "Mathematical Model" and the appendix on the objective).

    Z is normalised: it uses the error *rate*, so its size and the temperatures of a search do not
    depend on the number of rows M. The published code minimises ``M * Z``.

    With a pseudo-count k, M rows, N classes, and for class j with n_j labels, q_j predictions and
    d_j correct predictions, ::

        PMI_j = log[ (d_j + k) / (M + k N^2)
                     / ( (q_j + k) / (M + k N) * (n_j + k) / (M + k N) ) ]

    that is, k rows are added to every cell of the joint table and to every cell of the marginals.
    The term is minus the sum of PMI_j, which has no bound: it grows with N, and how much a class
    counts depends on k.

    The normalised term is bounded and needs no pseudo-count. It takes the mutual information I_j
    (Cover & Thomas 2006, section 2.3) of "the label is j" and "the prediction is j", as a share
    of the entropy H_j of the former (Theil's uncertainty coefficient), and is minus ::

        mean over j of sign(d_j M - n_j q_j) I_j / H_j

    of which every summand lies in -1..1: 1 where class j is predicted perfectly, 0 where its
    predictions, or their absence, tell nothing of the label, below 0 where they mislead.

    Classes without rows are left out of COBias and PMI.

    Parameters
    ----------
    beta, tau : float
        Weights of COBias and of PMI, 0 or more.
    error_weight : float
        Weight of the error rate, 0 or more.
    pseudo_count : float
        k above, greater than 0: without it a class that is never predicted gives log 0.
    pmi : {"published", "normalised"}
        Which of the two terms above has the weight tau.

    Raises
    ------
    InvalidInputError
        When a value is not a finite number in its range.
    """

    beta: float = 1.0
    tau: float = 0.2
    error_weight: float = 1.0
    pseudo_count: float = 4000.0
    pmi: PmiTerm = "published"

    def __post_init__(self) -> None:
        if self.pmi not in get_args(PmiTerm):
            allowed = ", ".join(get_args(PmiTerm))
            raise InvalidInputError(f"objective pmi {self.pmi!r}: allowed are {allowed}")
        for field in fields(self):
            if field.name == "pmi":
                continue
            value, name = getattr(self, field.name), f"objective {field.name}"
            positive = field.name == "pseudo_count"
            number = finite_number(value, name, least=0.0, positive=positive)
            object.__setattr__(self, field.name, number)

    def value(self, confusion: NDArray[Any]) -> float:
        """Return Z for a confusion matrix [N, N].

        Parameters
        ----------
        confusion : array of int, shape [N, N]
            Counts; row = true class, column = predicted class.

        Returns
        -------
        float
            The weighted sum.

        Raises
        ------
        InvalidInputError
            When the matrix is not square or counts no rows.
        """
        error, bias = 1.0 - accuracy(confusion), cobias(confusion)
        counts = np.asarray(confusion, dtype=np.float64)
        pmi = self._negative_pmi(counts) if self.pmi == "published" else -_shared(counts)
        return self.error_weight * error + self.beta * bias + self.tau * pmi

    def _negative_pmi(self, counts: NDArray[np.float64]) -> float:
        """Return minus the sum of PMI_j over classes: lower is better, like the other terms."""
        k = self.pseudo_count
        n_rows, n_classes = counts.sum(), counts.shape[0]
        labelled = counts.sum(axis=1)
        present = labelled > 0
        joint = (counts.diagonal() + k) / (n_rows + k * n_classes**2)
        predicted = (counts.sum(axis=0) + k) / (n_rows + k * n_classes)
        true = (labelled + k) / (n_rows + k * n_classes)
        return -float(np.log(joint / (predicted * true))[present].sum())


def _shared(counts: NDArray[np.float64]) -> float:
    """Return the mean share of the entropy of "the label is j" that predictions explain."""
    n_rows, hits, labelled = counts.sum(), counts.diagonal(), counts.sum(axis=1)
    predicted = counts.sum(axis=0)
    cells = (hits, predicted - hits, labelled - hits, n_rows - predicted - labelled + hits)
    known = sum(xlogy(cell, cell) for cell in cells) + xlogy(n_rows, n_rows)
    apart = sum(xlogy(n, n) + xlogy(n_rows - n, n_rows - n) for n in (labelled, predicted))
    entropy = xlogy(n_rows, n_rows) - xlogy(labelled, labelled)
    entropy -= xlogy(n_rows - labelled, n_rows - labelled)
    sign = np.sign(hits * n_rows - labelled * predicted)
    # With a single class there is nothing to explain.
    shares = sign * (known - apart) / np.where(entropy > 0.0, entropy, 1.0)
    return float(shares[labelled > 0].mean())
