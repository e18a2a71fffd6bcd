"""The normalised objective Z = error + beta * COBias + tau * PMI."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcs.data.checks import finite_number
from dcs.evaluation.metrics import accuracy, cobias

__all__ = ["Objective"]


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
    Classes without rows are left out of COBias and PMI.

    Parameters
    ----------
    beta, tau : float
        Weights of COBias and of PMI, 0 or more.
    error_weight : float
        Weight of the error rate, 0 or more.
    pseudo_count : float
        k above, greater than 0: without it a class that is never predicted gives log 0.

    Raises
    ------
    InvalidInputError
        When a value is not a finite number in its range.
    """

    beta: float = 1.0
    tau: float = 0.2
    error_weight: float = 1.0
    pseudo_count: float = 4000.0

    def __post_init__(self) -> None:
        for field in fields(self):
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
        pmi = self._negative_pmi(np.asarray(confusion, dtype=np.float64))
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
