"""The checks behind a probability table. Each failure is one line that names where it is."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.errors import InvalidInputError, TableError
from dcs.messages import reason, show

__all__ = [
    "checked_classes",
    "checked_labels",
    "checked_probabilities",
    "checked_rows",
    "finite_number",
    "warn_of_absent_classes",
    "whole_number",
]


def finite_number(
    value: Any, name: str, *, positive: bool = False, least: float = -math.inf
) -> float:
    """Return `value` as a float; it must be greater than 0 with `positive`, or at least `least`.

    Raises
    ------
    InvalidInputError
        When it is no number, true or false, not finite, too large for a float, or too small.
    """
    if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number) and number >= least and (number > 0.0 or not positive):
            return number
    rule = " greater than 0" if positive else f", {least:g} or more," if least > -math.inf else ""
    raise InvalidInputError(f"{name} {show(value)}: a finite number{rule} is needed")


def whole_number(value: Any, name: str, *, least: int, most: int | None = None) -> int:
    """Return `value` as an int.

    Raises
    ------
    InvalidInputError
        When it is no whole number, true or false, less than `least`, or more than `most`.
    """
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if whole and value >= least and (most is None or value <= most):
        return int(value)
    rule = f"{least} or more" if most is None else f"{least} to {most}"
    raise InvalidInputError(f"{name} {show(value)}: a whole number, {rule}, is needed")


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


SUM_TOLERANCE = 1e-6

"""How far a row's sum may be from 1 before the row is refused: single precision passes."""

_EXACT = 1e-12

# Rows nearer to 1 than this are left as they are. Dividing them again would change last bits, so
# that a table would not survive a round trip unchanged.


def listing(names: Sequence[str], limit: int = 8) -> str:
    """Quote some names for a message."""
    quoted = ", ".join(show(name, 30) for name in names[:limit]) or "none"
    return f"{quoted} and {len(names) - limit} more" if len(names) > limit else quoted


def check_classes(
    classes: Iterable[Any] | None, n_classes: int, *, source: str
) -> tuple[str, ...]:
    """Return the class names, ``class_0 ...`` when none are given."""
    if classes is None:
        return tuple(f"class_{k}" for k in range(n_classes))
    if isinstance(classes, str):
        raise TableError(
            f"{source}: classes is the text {show(classes)}; a list of {n_classes} names is needed"
        )
    names = tuple(classes)
    if len(names) != n_classes:
        raise TableError(
            f"{source}: {len(names)} class names for {n_classes} columns of probabilities; "
            "give one name per column"
        )
    seen: dict[str, int] = {}
    for k, name in enumerate(names):
        if not isinstance(name, str) or not name.strip():
            raise TableError(
                f"{source}: class {k} has the name {show(name)}; a non-empty text is needed"
            )
        if not _encodable(name):
            raise TableError(f"{source}: class {k} has the name {show(name)}, not valid Unicode")
        if name in seen:
            raise TableError(
                f"{source}: classes {seen[name]} and {k} have the same name {show(name)}; "
                "class names must differ"
            )
        seen[name] = k
    return tuple(str(name) for name in names)


def check_ids(ids: Iterable[Any] | None, n_rows: int, *, source: str) -> tuple[str, ...]:
    """Return the row ids as text, the row numbers when none are given."""
    if ids is None:
        return tuple(map(str, range(n_rows)))
    given = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
    if len(given) != n_rows:
        raise TableError(f"{source}: {len(given)} ids for {n_rows} rows; give one id per row")
    for row, value in enumerate(given):
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise TableError(
                f"{source}: row {row}: id is {show(value)}; a text or an integer is needed"
            )
        if isinstance(value, str) and not value.isascii() and not _encodable(value):
            raise TableError(f"{source}: row {row}: id is {show(value)}, not valid Unicode")
    texts = tuple(map(str, given))
    if len(set(texts)) != n_rows:
        first: dict[str, int] = {}
        for row, text in enumerate(texts):
            if text in first:
                raise TableError(
                    f"{source}: rows {first[text]} and {row} have the same id {show(text)}; "
                    "ids must differ"
                )
            first[text] = row
    return texts


def check_labels(
    labels: ArrayLike, n_classes: int, ids: Sequence[str], *, source: str
) -> NDArray[np.int64]:
    """Return the labels as a new int64 array ``[M]`` with values ``0 .. n_classes - 1``."""
    array = _as_array(labels, "labels", source=source)
    if array.ndim != 1:
        raise TableError(
            f"{source}: labels has shape {array.shape}; one integer per row is needed"
        )
    if len(array) != len(ids):
        raise TableError(f"{source}: {len(array)} labels for {len(ids)} rows; give one per row")
    if array.dtype.kind not in "iu":
        raise TableError(
            f"{source}: labels are {_kind(array)}; integers 0..{n_classes - 1} are needed"
        )
    wrong = np.flatnonzero((array < 0) | (array >= n_classes))
    if wrong.size:
        row = int(wrong[0])
        raise TableError(
            f"{source}: {at(row, ids)}: label {show(array[row])} is out of range; "
            f"{n_classes} classes allow 0..{n_classes - 1}{more(wrong.size)}"
        )
    return array.astype(np.int64)


def check_shape(probs: ArrayLike, *, source: str) -> NDArray[Any]:
    """Return `probs` as a numeric array ``[M, N]`` with M >= 1 rows and N >= 2 classes."""
    array = _as_array(probs, "probabilities", source=source)
    if array.dtype.kind not in "fiu":
        raise TableError(f"{source}: probabilities are {_kind(array)}; real numbers are needed")
    if array.ndim != 2:
        raise TableError(
            f"{source}: probabilities have shape {array.shape}; "
            "[rows, classes] with two dimensions is needed"
        )
    if array.shape[1] < 2:
        raise TableError(
            f"{source}: {array.shape[1]} class(es) of probabilities; at least 2 are needed"
        )
    if array.shape[0] < 1:
        raise TableError(f"{source}: no rows; at least 1 is needed")
    return array


def check_probabilities(
    array: NDArray[Any],
    *,
    classes: Sequence[str],
    ids: Sequence[str],
    normalise: bool,
    source: str,
) -> NDArray[np.float64]:
    """Return a new float64 array of non-negative rows that sum to 1."""
    probs = np.array(array, dtype=np.float64, order="C")
    refuse_cells(
        ~np.isfinite(probs) | (probs < 0),
        probs,
        classes=classes,
        ids=ids,
        source=source,
        rule="every probability must be finite and at least 0",
    )
    probs += 0.0  # turns -0.0 into 0.0, so that equal tables have equal bytes
    top = probs.max(axis=1)
    empty = np.flatnonzero(top == 0)
    if empty.size:
        raise TableError(
            f"{source}: {at(int(empty[0]), ids)}: all {len(classes)} probabilities are 0, which "
            f"cannot be normalised; score the row again or leave it out{more(empty.size)}"
        )
    if normalise:
        # The largest value first: a sum of values near the limits would over- or underflow.
        rows = np.flatnonzero(np.abs(_sums(probs) - 1) > _EXACT)
        probs[rows] /= top[rows, None]
    else:
        sums = _sums(probs)
        off = np.flatnonzero(np.abs(sums - 1) > SUM_TOLERANCE)
        if off.size:
            row = int(off[0])
            raise TableError(
                f"{source}: {at(row, ids)}: the {len(classes)} probabilities sum to "
                f"{sums[row]:.9g}, not 1; use --normalise (normalise=True) to divide each row by "
                f"its sum{more(off.size)}"
            )
    sums = _sums(probs)
    rows = np.flatnonzero(np.abs(sums - 1) > _EXACT)
    probs[rows] /= sums[rows, None]
    return probs


def refuse_cells(
    wrong: NDArray[np.bool_],
    values: NDArray[np.float64],
    *,
    classes: Sequence[str],
    ids: Sequence[str],
    source: str,
    rule: str,
) -> None:
    """Raise TableError naming the first cell where `wrong` is true, if there is one."""
    if not wrong.any():
        return
    row, column = (int(index) for index in np.argwhere(wrong)[0])
    raise TableError(
        f"{source}: {at(row, ids)}, class {show(classes[column])}: value is "
        f"{values[row, column]:.9g}; {rule}{more(int(wrong.sum()))}"
    )


def at(row: int, ids: Sequence[str]) -> str:
    """Name a row by its number and its id."""
    return f"row {row} (id {show(ids[row], 40)})"


def more(count: int) -> str:
    """Say how many faults of the same kind were not named."""
    return f" ({count - 1} more like it)" if count > 1 else ""


def _sums(probs: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):
        return np.asarray(probs.sum(axis=1), dtype=np.float64)


def _as_array(values: ArrayLike, what: str, *, source: str) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except (ValueError, TypeError, OverflowError) as error:
        raise TableError(f"{source}: {what} are not one array: {reason(error)}") from None


def _kind(array: NDArray[Any]) -> str:
    kinds = {"O": "Python objects", "U": "texts", "S": "bytes", "b": "true/false values"}
    return kinds.get(array.dtype.kind, f"of type {array.dtype}")


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
