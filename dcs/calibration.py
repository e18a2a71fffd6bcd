"""Calibrations: maps of class probabilities that are linear in their logarithms.

Every calibration here has one form, ::

    calibrated = softmax(matrix @ log(max(probabilities, floor)) + offset)

Batch and contextual calibration and class-prior reweighting choose the offset, temperature and
vector scaling the diagonal, logistic regression the whole matrix. A correction scheme may hold one
and apply its corrections on top.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs._arrays import checked_probabilities, checked_rows
from dcs._likelihood import diagonal_form, full_form, maximum_likelihood, scale_form
from dcs._numbers import finite_number
from dcs._numerics import product, softmax
from dcs.errors import InvalidInputError

__all__ = [
    "Calibration",
    "CalibrationKind",
    "batch_calibration",
    "contextual_calibration",
    "fit_calibration",
    "prior_reweighting",
]

#: What `fit_calibration` can fit.
CalibrationKind: TypeAlias = Literal[
    "none", "batch", "prior", "temperature", "vector", "logistic", "balanced"
]

#: Probabilities below this count as this: an exact zero has no logarithm.
DEFAULT_FLOOR: Final = 1e-4

#: No fit comes near it, and sums of products with logarithms stay finite.
_LARGEST: Final = 1e9

_KEYS: Final = ("name", "matrix", "offset", "floor")


@dataclass(frozen=True, slots=True)
class Calibration:
    """A map of class probabilities that is linear in their logarithms.

    Parameters
    ----------
    name : str
        How it came about, e.g. ``"vector"``.
    matrix : tuple of tuple of float
        N x N; row j gives the calibrated logit of class j.
    offset : tuple of float
        N numbers added to the logits.
    floor : float, optional
        Smaller probabilities count as this one, ``0 < floor <= 0.01``.

    Raises
    ------
    InvalidInputError
        When a size does not match or a value is not a finite number in its range.
    """

    name: str
    matrix: tuple[tuple[float, ...], ...]
    offset: tuple[float, ...]
    floor: float = DEFAULT_FLOOR

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidInputError(f"calibration name {self.name!r}: a text is needed")
        matrix, offset, level = (
            _numbers(value, self.name) for value in (self.matrix, self.offset, self.floor)
        )
        if offset.ndim != 1 or matrix.shape != (offset.size, offset.size):
            raise InvalidInputError(
                f"calibration {self.name!r}: matrix has shape {matrix.shape} and offset "
                f"{offset.shape}; [N, N] and [N] are needed"
            )
        if not (np.abs(matrix) <= _LARGEST).all() or not (np.abs(offset) <= _LARGEST).all():
            raise InvalidInputError(
                f"calibration {self.name!r}: matrix and offset need finite numbers, at most "
                f"{_LARGEST:.0e}"
            )
        if level.ndim:
            raise InvalidInputError(f"calibration {self.name!r}: floor must be one number")
        floor = float(level)
        if not math.isfinite(floor) or not 0.0 < floor <= 0.01:
            raise InvalidInputError(
                f"calibration {self.name!r}: floor {floor} must be above 0 and at most 0.01"
            )
        object.__setattr__(self, "matrix", tuple(tuple(row) for row in matrix.tolist()))
        object.__setattr__(self, "offset", tuple(offset.tolist()))
        object.__setattr__(self, "floor", floor)

    @property
    def n_classes(self) -> int:
        """The number of classes N."""
        return len(self.offset)

    def logits(self, probs: ArrayLike) -> NDArray[np.float64]:
        """Return the calibrated logits of probabilities [M, N]."""
        values = checked_probabilities(probs, n_classes=self.n_classes)
        logs = np.log(np.maximum(values, self.floor))
        logits: NDArray[np.float64] = product(logs, np.array(self.matrix).T) + self.offset
        return logits

    def apply(self, probs: ArrayLike) -> NDArray[np.float64]:
        """Return calibrated probabilities, shape [M, N], every row with sum 1.

        Raises
        ------
        InvalidInputError
            When a value is not a probability or the number of classes differs.
        """
        return softmax(self.logits(probs))

    def permuted(self, order: list[int]) -> Calibration:
        """Return the calibration with class ``order[j]`` in place j."""
        matrix = tuple(tuple(self.matrix[i][j] for j in order) for i in order)
        return Calibration(self.name, matrix, tuple(self.offset[i] for i in order), self.floor)

    def to_dict(self) -> dict[str, Any]:
        """Return the form a scheme file holds."""
        return {
            "name": self.name,
            "matrix": [list(row) for row in self.matrix],
            "offset": list(self.offset),
            "floor": self.floor,
        }

    @classmethod
    def from_dict(cls, data: Any) -> Calibration:
        """Read what :meth:`to_dict` gives.

        Raises
        ------
        InvalidInputError
            When a key is missing or unknown, or a value is not allowed.
        """
        if not isinstance(data, Mapping):
            raise InvalidInputError("an object with name, matrix, offset and floor is needed")
        for key in data:
            if key not in _KEYS:
                raise InvalidInputError(
                    f"unknown key {key!r}; allowed are {', '.join(sorted(_KEYS))}"
                )
        for key in _KEYS:
            if key not in data:
                raise InvalidInputError(f"key {key!r} is missing")
        return cls(data["name"], data["matrix"], data["offset"], data["floor"])


def _numbers(value: Any, name: str) -> NDArray[np.float64]:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        array = np.array(None)
    # Texts and truth values would pass for numbers otherwise.
    if array.dtype.kind not in "fiu":
        raise InvalidInputError(f"calibration {name!r}: matrix, offset and floor must be numbers")
    return array.astype(np.float64)


def from_offset(
    name: str, offset: NDArray[np.float64], *, floor: float = DEFAULT_FLOOR
) -> Calibration:
    """Return the calibration that only adds `offset` [N] to the logarithms."""
    return from_arrays(name, np.eye(offset.size), offset, floor=floor)


def from_arrays(
    name: str,
    matrix: NDArray[np.float64],
    offset: NDArray[np.float64],
    *,
    floor: float = DEFAULT_FLOOR,
) -> Calibration:
    """Return the calibration of a matrix [N, N] and an offset [N]."""
    return Calibration(name, tuple(map(tuple, matrix.tolist())), tuple(offset.tolist()), floor)


def batch_calibration(probs: ArrayLike, *, floor: float = DEFAULT_FLOOR) -> Calibration:
    """Divide by the mean probability of every class over the rows (needs no labels).

    Source: batch calibration, Zhou et al. 2024, arXiv 2309.17249.
    """
    values = checked_probabilities(probs)
    return from_offset("batch", -np.log(np.maximum(values.mean(axis=0), floor)), floor=floor)


def contextual_calibration(
    content_free: ArrayLike, *, floor: float = DEFAULT_FLOOR
) -> Calibration:
    """Divide by the probabilities that the model gives to content-free inputs.

    Parameters
    ----------
    content_free : array of float, shape [N] or [K, N]
        Class probabilities of one or several inputs such as ``"N/A"``; several are averaged.
    floor : float, optional
        Smaller probabilities count as this one.

    Notes
    -----
    Source: contextual calibration, Zhao et al. 2021, arXiv 2102.09690.
    """
    values = checked_probabilities(np.atleast_2d(np.asarray(content_free, dtype=np.float64)))
    mean = np.maximum(values.mean(axis=0), floor)
    return from_offset("contextual", -np.log(mean), floor=floor)


def prior_reweighting(
    probs: ArrayLike, labels: ArrayLike, *, floor: float = DEFAULT_FLOOR
) -> Calibration:
    """Multiply by label frequency over mean probability, class by class.

    Moves the share of every class in the mean prediction to its share in the labels; one row is
    added to every class, so that a class without rows keeps a weight.
    """
    values, indices, names = checked_rows(probs, labels)
    counts = np.bincount(indices, minlength=len(names)) + 1.0
    frequency = counts / counts.sum()
    mean = np.maximum(values.mean(axis=0), floor)
    return from_offset("prior", np.log(frequency) - np.log(mean), floor=floor)


def fit_calibration(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    kind: CalibrationKind,
    ridge: float = 10.0,
    floor: float = DEFAULT_FLOOR,
) -> Calibration | None:
    """Fit a calibration by maximum likelihood, held back towards changing nothing.

    Minimises ``-sum log q(label) + ridge / 2 * |matrix - I|^2 + ridge / 20 * |offset|^2``: with
    few rows the probabilities stay nearly as they are, with many the ridge no longer counts.

    Parameters
    ----------
    probs : array of float, shape [M, N]
        Class probabilities.
    labels : array of int, shape [M]
        True class indices.
    kind : {"none", "batch", "prior", "temperature", "vector", "logistic", "balanced"}
        Nothing, the mean probabilities, those moved to the shares of the labels, one scale, a
        scale and an offset per class, the whole matrix with an offset, or the same with every
        class weighing alike.
    ridge : float, optional
        Strength of the pull, 0 or more; not used by ``"batch"`` and ``"prior"``.
    floor : float, optional
        Smaller probabilities count as this one.

    Returns
    -------
    Calibration or None
        None for the kind ``"none"``.

    Raises
    ------
    InvalidInputError
        When an argument is not allowed.
    """
    values, indices, names = checked_rows(probs, labels)
    ridge = finite_number(ridge, "ridge", least=0.0)
    if kind not in get_args(CalibrationKind):
        allowed = ", ".join(get_args(CalibrationKind))
        raise InvalidInputError(f"calibration {kind!r}: allowed are {allowed}")
    if kind == "none":
        return None
    if kind == "batch":
        return batch_calibration(values, floor=floor)
    if kind == "prior":
        return prior_reweighting(values, indices, floor=floor)
    logs = np.log(np.maximum(values, floor))
    row_weights = np.ones(indices.size)
    if kind == "balanced":
        counts = np.bincount(indices, minlength=len(names))
        row_weights = indices.size / (np.count_nonzero(counts) * counts[indices])
    if kind == "temperature":
        form = scale_form(logs)
    elif kind == "vector":
        form = diagonal_form(logs, ridge)
    else:
        form = full_form(logs, row_weights, ridge)
    matrix, offset = maximum_likelihood(logs, indices, row_weights, form)
    return from_arrays(kind, matrix, offset, floor=floor)
