"""What a search and a scheme demand of bare arrays of probabilities, labels and class names."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.errors import InvalidInputError

__all__ = [
    "checked_classes",
    "checked_labels",
    "checked_probabilities",
    "checked_rows",
    "warn_of_absent_classes",
]

# Probabilities that come from float32 exceed 1 by rounding.
_SLACK = 1e-6


def checked_rows(
    probs: ArrayLike, labels: ArrayLike, classes: Sequence[str] | None = None
) -> tuple[NDArray[np.float64], NDArray[np.int64], tuple[str, ...]]:
    """Return labelled probabilities [M, N], their labels [M] and N class names, all checked.

    Raises
    ------
    InvalidInputError
        When one of them is not allowed, or they do not fit together.
    """
    values = checked_probabilities(probs)
    n_rows, n_classes = values.shape
    indices = checked_labels(labels, n_rows=n_rows, n_classes=n_classes)
    return values, indices, checked_classes(classes, n_classes=n_classes)


def checked_probabilities(
    probs: ArrayLike, *, n_classes: int | None = None
) -> NDArray[np.float64]:
    """Return `probs` as float64 [M, N] after checking every value.

    Raises
    ------
    InvalidInputError
        When the shape is wrong, there are no rows or fewer than two classes, a value is not in
        0..1, or a row has no positive value. The message names row, class and value.
    """
    try:
        values = np.asarray(probs, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            "probs cannot be read as an array of numbers [rows, classes]"
        ) from error
    if values.ndim != 2:
        raise InvalidInputError(f"probs has shape {values.shape}; [rows, classes] is needed")
    if n_classes is not None and values.shape[1] != n_classes:
        raise InvalidInputError(
            f"probs has {values.shape[1]} classes but {n_classes} are expected"
        )
    if values.shape[1] < 2:
        raise InvalidInputError(f"probs has {values.shape[1]} class; at least two are needed")
    if values.shape[0] == 0:
        raise InvalidInputError("probs has no rows; at least one is needed")
    good = (values >= 0.0) & (values <= 1.0 + _SLACK)
    if not good.all():
        row, column = (int(i) for i in np.argwhere(~good)[0])
        raise InvalidInputError(
            f"probs: row {row}, class {column} has {values[row, column]}; "
            "a probability between 0 and 1 is needed"
        )
    empty = np.flatnonzero(values.max(axis=1) == 0.0)
    if empty.size:
        raise InvalidInputError(
            f"probs: row {int(empty[0])} is all zeros; every row needs a positive probability, "
            "so drop such rows first"
        )
    return values


def checked_labels(labels: ArrayLike, *, n_rows: int, n_classes: int) -> NDArray[np.int64]:
    """Return `labels` as int64 [M] after checking length and range."""
    values = np.asarray(labels)
    if values.shape != (n_rows,):
        raise InvalidInputError(f"labels has shape {values.shape}; probs has {n_rows} rows")
    if not np.issubdtype(values.dtype, np.integer):
        raise InvalidInputError(
            f"labels has type {values.dtype}; integer class indices are needed"
        )
    values = values.astype(np.int64)
    wrong = np.flatnonzero((values < 0) | (values >= n_classes))
    if wrong.size:
        row = int(wrong[0])
        raise InvalidInputError(
            f"labels: row {row} has class index {values[row]}; allowed are 0..{n_classes - 1}"
        )
    return values


def checked_classes(classes: Sequence[str] | None, *, n_classes: int) -> tuple[str, ...]:
    """Return the class names, ``"0", "1", ...`` when none are given; they must differ."""
    if classes is None:
        return tuple(str(j) for j in range(n_classes))
    if isinstance(classes, str):
        raise InvalidInputError(
            f"classes is the text {classes!r}; a list of class names is needed"
        )
    names = tuple(classes)
    if len(names) != n_classes:
        raise InvalidInputError(f"classes has {len(names)} names; probs has {n_classes} classes")
    seen: set[str] = set()
    for j, name in enumerate(names):
        if not isinstance(name, str) or not name:
            raise InvalidInputError(f"classes[{j}] is {name!r}; a non-empty text is needed")
        if name in seen:
            raise InvalidInputError(f"classes holds {name!r} twice; class names must differ")
        seen.add(name)
    return names


def warn_of_absent_classes(labels: NDArray[np.int64], classes: tuple[str, ...]) -> None:
    """Warn when a class has no rows: it takes no part in COBias and PMI."""
    counts = np.bincount(labels, minlength=len(classes))
    absent = [name for name, count in zip(classes, counts, strict=True) if count == 0]
    if absent:
        shown = ", ".join(repr(name) for name in absent[:5]) + (", ..." if len(absent) > 5 else "")
        warnings.warn(
            f"no rows are labelled {shown}: left out of COBias and PMI",
            UserWarning,
            stacklevel=3,
        )
