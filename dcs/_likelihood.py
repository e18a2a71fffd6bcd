"""Fitting a calibration by maximum likelihood."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcs._minimise import minimise
from dcs._numerics import moments, product

__all__ = ["Form", "diagonal_form", "full_form", "maximum_likelihood", "scale_form"]

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
