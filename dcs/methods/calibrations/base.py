"""What all calibrations have in common, and those that need no labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcs.schemes.calibration import DEFAULT_FLOOR, Array, Calibration, from_offset

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
        self, probs: Array, labels: Labels, *, ridge: float, anchor: float
    ) -> Calibration | None:
        """Fit the calibration; None if it changes nothing.

        Parameters
        ----------
        probs : array of float, shape [M, N]
            Class probabilities of all rows, the mean of which may be used.
        labels : array of int, shape [M]
            True class indices, -1 for rows whose labels are missing or must not be used.
        ridge : float
            Strength of the penalty, in rows.
        anchor : float
            Share of the batch-calibrated log-probabilities towards which the penalty shrinks, 0
            for uniform probabilities.
        """


def batch_calibration(probs: Array) -> Calibration:
    """Divide by the mean probability of each class over the rows; labels are not needed.

    Source: batch calibration, Zhou et al. 2024, arXiv 2309.17249.
    """
    return from_offset("batch", -log_means(probs))


def prior_reweighting(probs: Array, labels: Labels) -> Calibration:
    """Multiply each class by its label frequency divided by its mean probability.

    Adjusts the share of each class in the mean prediction to its share of the labels. One row is
    added to each class, so that a class without rows has a positive weight. The mean prediction
    includes unlabelled rows (-1).
    """
    shares = smooth_shares(labels[labels >= 0], probs.shape[1])
    return from_offset("prior", np.log(shares) - log_means(probs))


def smooth_shares(labels: Labels, n_classes: int) -> Array:
    """Return the share of each class in the labels, with one row added to each."""
    counts = np.bincount(labels, minlength=n_classes) + 1.0
    return np.asarray(counts / counts.sum())


def log_means(probs: Array) -> Array:
    """Return the logarithms of the mean probabilities of the classes."""
    return np.asarray(np.log(np.maximum(probs.mean(axis=0), DEFAULT_FLOOR)))


@dataclass(frozen=True)
class LabelFree(FittedCalibration):
    """A calibration that labels do not determine.

    Parameters
    ----------
    make : callable
        Returns it for the probabilities of all rows.
    """

    needs_labels: bool = False
    adds_offsets: bool = True
    make: Callable[[Array], Calibration | None] = field(kw_only=True)

    def fit(
        self, probs: Array, labels: Labels, *, ridge: float, anchor: float
    ) -> Calibration | None:
        """Fit the calibration to all rows; see :class:`FittedCalibration`."""
        return self.make(probs)


FREE: Final = (
    LabelFree("none", make=lambda probs: None),
    LabelFree("batch", make=batch_calibration),
)
"""Those that need no labels, in the order of pages."""
