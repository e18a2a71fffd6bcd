"""What a correction scheme computes: this file, NumPy and a scheme file are all it takes.

The package applies schemes by this code, every logged model contains a copy of this file, and
docs/serving.md shows it, so that all of them return the same numbers::

    with open("scheme.json") as file:
        scheme = json.load(file)
    corrected = apply(scheme, [[0.5, 0.3, 0.2]])  # rows of class probabilities
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Step(NamedTuple):
    """A calibration, or the combination of several tables, as arrays."""

    weights: Array  # [terms, N]
    offset: Array  # [N]
    floor: float
    products: bool


def as_step(calibration: Mapping[str, Any]) -> Step:
    """Return the arrays of a calibration of a scheme file."""
    weights = np.ascontiguousarray(np.array(calibration["matrix"], np.float64).T)
    offset = np.array(calibration["offset"], np.float64)
    return Step(weights, offset, calibration["floor"], calibration.get("products", False))


def weight(value: float) -> tuple[float, float, float, float]:
    """Return the coefficients of a weight: left, rise, right and fall of two lines."""
    return (0.0, value, np.inf, 1.0)


def triangle(a: float, b: float, c: float) -> tuple[float, float, float, float]:
    """Return the coefficients of a triangle with feet `a` and `c` and peak `b`."""
    left, rise = (-np.inf, 1.0) if a == b else (a, 1.0 / (b - a))
    right, fall = (np.inf, 1.0) if b == c else (c, 1.0 / (c - b))
    return (left, rise, right, fall)


def evaluated(coefficients: Sequence[float], values: Array) -> Array:
    """Return the smaller of two lines, at least 0."""
    left, rise, right, fall = coefficients
    return np.asarray(np.maximum(0.0, np.minimum((values - left) * rise, (right - values) * fall)))


def product(a: Array, b: Array) -> Array:
    """Return ``a @ b`` of [M, K] and [K, N], of at least two columns.

    BLAS adds in an order that depends on the processor, its threads and the number of rows, so
    that results of a row could depend on the other rows. Here the order is always the same.
    """
    # Not optimised, and of contiguous rows, einsum adds multiples of the rows of `b` one by one.
    rows, columns = np.ascontiguousarray(a), np.ascontiguousarray(b)
    return np.asarray(np.einsum("mk,kn->mn", rows, columns, optimize=False))


def softmax(values: Array) -> Array:
    """Return probabilities [M, N] of finite logits."""
    weights = np.exp(values - _over_columns(np.maximum, values))
    return np.asarray(weights / _over_columns(np.add, weights))


def _over_columns(combine: np.ufunc, values: Array) -> Array:
    # NumPy reduces few columns slowly, row by row, and adds up to 7 of them in the same order.
    if values.shape[1] > 7:
        return np.asarray(combine.reduce(values, axis=1, keepdims=True))
    return np.asarray(reduce(combine, values.T))[:, None]


def terms_of(logs: Array, products: bool) -> Array:
    """Return the logarithms [M, N], followed by their products in pairs if so requested."""
    if not products:
        return logs
    first, second = np.triu_indices(logs.shape[1])
    return np.hstack([logs, logs[:, first] * logs[:, second]])


def logits(values: Array, step: Step) -> Array:
    """Return calibrated logits: sums of the terms of the logarithms of probabilities."""
    terms = terms_of(np.log(np.maximum(values, step.floor)), step.products)
    return np.asarray(product(terms, step.weights) + step.offset)


def calibrated(values: Array, step: Step) -> Array:
    """Return calibrated probabilities, the softmax of calibrated logits."""
    return softmax(logits(values, step))


def corrected(
    values: Array, steps: Sequence[Step], coefficients: Sequence[Sequence[float]]
) -> Array:
    """Return the corrected values [M, N] of probabilities, which are not normalised.

    There are coefficients for each class. A row that corrects to all zeros keeps its values from
    before the corrections.
    """
    for step in steps:
        values = calibrated(values, step)
    found = np.empty(values.shape)
    for k, each in enumerate(coefficients):
        found[:, k] = evaluated(each, values[:, k])
    lost = ~found.any(axis=1)
    found[lost] = values[lost]
    return found


def normalised(values: Array) -> Array:
    """Return rows divided by their sums."""
    return np.asarray(values / values.sum(axis=1, keepdims=True))


def correct(scheme: Mapping[str, Any], probs: Any) -> Array:
    """Return the values [M, N] of which the largest is the corrected prediction.

    Parameters
    ----------
    scheme : mapping
        Content of a scheme file.
    probs : array of float, shape [M, N]
        Class probabilities in the order of the classes; for a scheme of K tables, K such arrays.
        They are not checked.
    """
    parts = [scheme.get("combination"), scheme.get("calibration")]
    functions = [
        weight(each["value"])
        if each["kind"] == "weight"
        else triangle(each["a"], each["b"], each["c"])
        for each in scheme["corrections"]
    ]
    tables = [np.asarray(each, np.float64) for each in (probs if parts[0] else [probs])]
    steps = [as_step(part) for part in parts if part]
    return corrected(np.hstack(tables), steps, functions)


def apply(scheme: Mapping[str, Any], probs: Any) -> Array:
    """Return the corrected probabilities [M, N], whose rows sum to 1; see :func:`correct`."""
    return normalised(correct(scheme, probs))


def predict(scheme: Mapping[str, Any], probs: Any) -> list[str]:
    """Return the corrected labels; ties go to the first class. See :func:`correct`."""
    names = [each["class"] for each in scheme["corrections"]]
    return [names[index] for index in correct(scheme, probs).argmax(axis=1)]
