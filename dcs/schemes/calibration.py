"""Calibrations: maps of class probabilities that are linear in their logarithms.

Every calibration here has one form, ::

    calibrated = softmax(matrix @ log(max(probabilities, floor)) + offset)

Batch and contextual calibration and class-prior reweighting choose the offset, temperature and
vector scaling the diagonal, logistic regression the whole matrix. A correction scheme may hold one
and apply its corrections on top.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.checks import checked_probabilities, checked_rows, finite_number
from dcs.errors import InvalidInputError
from dcs.numerics import moments, product, softmax

__all__ = [
    "Calibration",
    "CalibrationKind",
    "Form",
    "batch_calibration",
    "contextual_calibration",
    "diagonal_form",
    "fit_calibration",
    "full_form",
    "maximum_likelihood",
    "minimise",
    "prior_reweighting",
    "scale_form",
]


_MEMORY: Final = 12

_SUFFICIENT: Final = 1e-4

_CURVATURE: Final = 1e-12

_MOST_HALVINGS: Final = 40

Vector = NDArray[np.float64]


def minimise(
    function: Callable[[Vector], tuple[float, Vector]],
    start: Vector,
    *,
    iterations: int = 200,
    tolerance: float = 1e-6,
) -> Vector:
    """Return where `function` is least.

    Parameters
    ----------
    function : callable
        Gives value and gradient.
    start : array of float64
        Where to start.
    iterations : int, optional
        At most so many steps.
    tolerance : float, optional
        Stop when no entry of the gradient is larger.

    Returns
    -------
    array of float64
        The best point found.
    """
    x = start.copy()
    value, gradient = function(x)
    pairs: deque[tuple[Vector, Vector, float]] = deque(maxlen=_MEMORY)
    for _ in range(iterations):
        if np.abs(gradient).max() <= tolerance:
            break
        direction = -_times_inverse_hessian(gradient, pairs)
        slope = _dot(gradient, direction)
        if slope >= 0.0:
            pairs.clear()
            direction = -gradient
            slope = -_dot(gradient, gradient)
        # Without curvature pairs the gradient has no scale of its own.
        step = 1.0 if pairs else min(1.0, 1.0 / float(np.abs(gradient).sum()))
        for _ in range(_MOST_HALVINGS):
            new_value, new_gradient = function(x + step * direction)
            if new_value <= value + _SUFFICIENT * step * slope:
                break
            step *= 0.5
        else:
            break
        moved, turned = step * direction, new_gradient - gradient
        curvature = _dot(moved, turned)
        if curvature > _CURVATURE:
            pairs.append((moved, turned, curvature))
        x, value, gradient = x + moved, new_value, new_gradient
    return x


def _times_inverse_hessian(gradient: Vector, pairs: deque[tuple[Vector, Vector, float]]) -> Vector:
    """Multiply by the approximate inverse Hessian (the two-loop recursion)."""
    result = gradient.copy()
    shares: list[float] = []
    for moved, turned, curvature in reversed(pairs):
        share = _dot(moved, result) / curvature
        shares.append(share)
        result -= share * turned
    if pairs:
        moved, turned, curvature = pairs[-1]
        result *= curvature / _dot(turned, turned)
    for (moved, turned, curvature), share in zip(pairs, reversed(shares), strict=True):
        result += (share - _dot(turned, result) / curvature) * moved
    return result


def _dot(a: Vector, b: Vector) -> float:
    # BLAS would add in an order that depends on the processor.
    return float((a * b).sum())


Array: TypeAlias = NDArray[np.float64]

#: Of the largest curvature: what a direction without any, as of a constant column, is given.
_LEAST_CURVATURE = 1e-9


@dataclass(frozen=True, slots=True)
class Form:
    """How a calibration departs from changing nothing: by parameters x, all 0 where it does not.

    Attributes
    ----------
    size : int
        Number of parameters.
    change : callable
        What x adds to the logits, [M, N].
    slope : callable
        What a slope in the logits, [M, N], is in x.
    pull : callable
        The ridge times x.
    unpack : callable
        Matrix [N, N] and offset [N] of x, less those that change nothing.
    """

    size: int
    change: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    pull: Callable[[Array], Array]
    unpack: Callable[[Array], tuple[Array, Array]]


def maximum_likelihood(
    logs: Array, labels: NDArray[np.int64], row_weights: Array, form: Form
) -> tuple[Array, Array]:
    """Return the matrix [N, N] and offset [N] of ``softmax(matrix @ logs + offset)``.

    Minimises ``-sum w log q(label)`` plus half the ridge times the squares of the parameters.
    """
    n_rows, n_classes = logs.shape
    rows = np.arange(n_rows)

    def loss(x: Array) -> tuple[float, Array]:
        logits = logs + form.change(x)
        logits -= logits.max(axis=1, keepdims=True)
        residual = np.exp(logits)
        total = residual.sum(axis=1)
        value = float((row_weights * (np.log(total) - logits[rows, labels])).sum())
        residual /= total[:, None]
        residual[rows, labels] -= 1.0
        residual *= row_weights[:, None]
        pulled = form.pull(x)
        value += 0.5 * float((x * pulled).sum())
        return value / n_rows, (form.slope(residual) + pulled) / n_rows

    matrix, offset = form.unpack(minimise(loss, np.zeros(form.size)))
    return np.eye(n_classes) + matrix, offset


def scale_form(logs: Array) -> Form:
    """Return one scale for all classes, without offsets and ridge."""
    n = logs.shape[1]
    return Form(
        1,
        change=lambda x: logs * x,
        slope=lambda residual: np.array([(logs * residual).sum()]),
        pull=lambda x: 0.0 * x,
        unpack=lambda x: (x[0] * np.eye(n), np.zeros(n)),
    )


def diagonal_form(logs: Array, ridge: float) -> Form:
    """Return a scale and an offset for every class; the ridge of an offset is a tenth."""
    n = logs.shape[1]
    ridges = np.repeat([ridge, ridge / 10], n)
    return Form(
        2 * n,
        change=lambda x: logs * x[:n] + x[n:],
        slope=lambda residual: np.append((logs * residual).sum(axis=0), residual.sum(axis=0)),
        pull=lambda x: ridges * x,
        unpack=lambda x: (np.diag(x[:n]), x[n:]),
    )


def full_form(logs: Array, row_weights: Array, ridge: float) -> Form:
    """Return a whole matrix and an offset for every class; the ridge of an offset is a tenth.

    The parameters are coordinates in which the loss is curved about alike in all directions. The
    log-probabilities of a sure model are large and go together: as they are, hundreds of steps
    would not find the optimum, and rounding would choose where they end. The curvature is at most
    half the second moments of the features, plus the ridge (Böhning, 1992); of its Cholesky
    factor L, the columns of ``L^-T`` are the coordinates.
    """
    n_rows, n = logs.shape
    features = np.column_stack([logs, np.ones(n_rows)])
    ridges = np.append(np.full(n, ridge), ridge / 10)
    curvature = moments(features, features * row_weights[:, None]) / 2 + np.diag(ridges)
    curvature += _LEAST_CURVATURE * curvature.max() * np.eye(n + 1)
    turn = _inverse_factor(curvature).T * math.sqrt(n_rows)
    design = product(features, turn)
    turned_ridges = product(turn.T, ridges[:, None] * turn)

    def unpack(x: Array) -> tuple[Array, Array]:
        departure = product(turn, x.reshape(n + 1, n))
        return departure[:n].T, departure[n]

    return Form(
        n * (n + 1),
        change=lambda x: product(design, x.reshape(n + 1, n)),
        slope=lambda residual: moments(design, residual).ravel(),
        pull=lambda x: product(turned_ridges, x.reshape(n + 1, n)).ravel(),
        unpack=unpack,
    )


def _inverse_factor(matrix: Array) -> Array:
    """Return the inverse of the lower Cholesky factor of a positive definite matrix."""
    rest, inverse = matrix.copy(), np.eye(len(matrix))
    for j in range(len(matrix)):
        column = rest[j:, j] / math.sqrt(rest[j, j])
        rest[j:, j:] -= np.multiply.outer(column, column)
        inverse[j] /= column[0]
        inverse[j + 1 :] -= np.multiply.outer(column[1:], inverse[j])
    return inverse


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
