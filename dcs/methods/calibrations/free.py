"""Calibrations that need no labels, and the adjustment to the class shares of labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.checks import checked_probabilities, checked_rows
from dcs.methods.calibrations.base import Array, FittedCalibration, Labels
from dcs.schemes.calibration import DEFAULT_FLOOR, Calibration, from_offset


@dataclass(frozen=True)
class Uncalibrated(FittedCalibration):
    """No calibration."""

    def fit(
        self,
        probs: Array,
        labels: Labels,
        fitted: NDArray[np.bool_],
        *,
        ridge: float,
        anchor: float,
    ) -> None:
        """Return None."""


@dataclass(frozen=True)
class Batch(FittedCalibration):
    """Division by the mean probability of each class over all rows."""

    def fit(
        self,
        probs: Array,
        labels: Labels,
        fitted: NDArray[np.bool_],
        *,
        ridge: float,
        anchor: float,
    ) -> Calibration:
        """Return the batch calibration of all rows."""
        return batch_calibration(probs)


NONE: Final = Uncalibrated("none", needs_labels=False, adds_offsets=True)
BATCH: Final = Batch("batch", needs_labels=False, adds_offsets=True)


def batch_calibration(probs: ArrayLike) -> Calibration:
    """Divide by the mean probability of each class over the rows; labels are not needed.

    Source: batch calibration, Zhou et al. 2024, arXiv 2309.17249.
    """
    return from_offset("batch", -log_means(checked_probabilities(probs)))


def prior_reweighting(probs: ArrayLike, labels: ArrayLike) -> Calibration:
    """Multiply each class by its label frequency divided by its mean probability.

    Adjusts the share of each class in the mean prediction to its share of the labels. One row is
    added to each class, so that a class without rows has a positive weight. The mean prediction
    includes unlabelled rows (-1).
    """
    values, indices, names = checked_rows(probs, labels, missing=True)
    shares = smooth_shares(indices[indices >= 0], len(names))
    return from_offset("prior", np.log(shares) - log_means(values))


def smooth_shares(labels: Labels, n_classes: int) -> Array:
    """Return the share of each class in the labels, with one row added to each."""
    counts = np.bincount(labels, minlength=n_classes) + 1.0
    return np.asarray(counts / counts.sum())


def log_means(probs: Array) -> Array:
    """Return the logarithms of the mean probabilities of the classes."""
    return np.asarray(np.log(np.maximum(probs.mean(axis=0), DEFAULT_FLOOR)))
