"""What all calibrations have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcs.schemes.calibration import Calibration

Array: TypeAlias = NDArray[np.float64]
Labels: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class FittedCalibration(ABC):
    """A calibration that can be fitted to labelled rows.

    Parameters
    ----------
    name : str
        Name in settings and schemes.
    needs_labels : bool
        Whether labels determine it. Its output is then a posterior under equal class shares.
    adds_offsets : bool
        Whether it only adds an offset to the log-probability of each class.
    version : int
        Raised if its results change, so that cells that use it are computed again.
    """

    name: str
    needs_labels: bool = True
    adds_offsets: bool = False
    version: int = 1

    @abstractmethod
    def fit(
        self,
        probs: Array,
        labels: Labels,
        fitted: NDArray[np.bool_],
        *,
        ridge: float,
        anchor: float,
    ) -> Calibration | None:
        """Fit the calibration; None if it changes nothing.

        Parameters
        ----------
        probs : array of float, shape [M, N]
            Class probabilities of all rows, the mean of which may be used.
        labels : array of int, shape [M]
            True class indices, -1 for unlabelled rows.
        fitted : array of bool, shape [M]
            Rows whose labels may be used.
        ridge : float
            Strength of the penalty, in rows.
        anchor : float
            Share of the batch-calibrated log-probabilities towards which the penalty shrinks, 0
            for uniform probabilities.
        """
