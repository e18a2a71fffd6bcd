"""The checks behind a probability table. Each failure is one line that names where it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs._messages import reason, show
from dcs.errors import TableError

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
