"""The one validator of numbers, arrays and names; each failure is one line that says where."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.errors import InvalidInputError, TableError, listing, reason, show

SUM_TOLERANCE: Final = 1e-6
"""How far a row's sum may be from 1 before the row is refused: single precision passes."""

# Rows nearer to 1 than this are left as they are. Dividing them again would change last bits, so
# that a table would not survive a round trip unchanged.
_EXACT: Final = 1e-12

#: Most numbers of one table: as float64 they take 1 GiB, and a few times that at work.
_MOST_VALUES: Final = 2**27


def refuse_too_large(n_rows: int, n_columns: int, *, source: str) -> None:
    """Refuse a table before it is read: a small file may stand for very many rows.

    Raises
    ------
    TableError
        If it has more values than a table may have.
    """
    if n_rows * n_columns > _MOST_VALUES:
        raise TableError(
            f"{source}: {n_rows} rows of {n_columns} columns are too much for one table, which "
            f"holds at most {_MOST_VALUES} values; take fewer rows"
        )


class RowNumbers(Sequence[str]):
    """The row numbers as texts, made when one is asked for."""

    def __init__(self, n_rows: int) -> None:
        self._numbers = range(n_rows)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, row: Any) -> Any:
        found = self._numbers[row]
        return tuple(map(str, found)) if isinstance(found, range) else str(found)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, RowNumbers):
            return len(self) == len(other)
        return isinstance(other, tuple) and tuple(self) == other

    def __hash__(self) -> int:
        return hash(tuple(self))


def finite_number(
    value: Any, name: str, *, positive: bool = False, least: float = -math.inf
) -> float:
    """Return `value` as a float; it must be greater than 0 with `positive`, or at least `least`.

    Raises
    ------
    InvalidInputError
        When it is no number, true or false, not finite, too large for a float, or too small.
    """
    if isinstance(value, Real) and not isinstance(value, bool):
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
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if whole and value >= least and (most is None or value <= most):
        return int(value)
    rule = f"{least} or more" if most is None else f"{least} to {most}"
    raise InvalidInputError(f"{name} {show(value)}: a whole number, {rule}, is needed")


@dataclass(frozen=True, slots=True)
class Named:
    """What messages call an array, its columns and its rows.

    Parameters
    ----------
    source : str
        The file or argument that messages begin with.
    classes : sequence of str
        The names of the columns, their numbers if there are none.
    ids : sequence of str
        The names of the rows, besides their numbers.
    """

    source: str
    classes: Sequence[str] = ()
    ids: Sequence[str] = ()

    def row(self, row: int) -> str:
        """Name a row of the source."""
        known = f" (id {show(self.ids[row], 40)})" if self.ids else ""
        return f"{self.source}: row {row}{known}"

    def refuse(
        self,
        wrong: NDArray[np.bool_],
        values: NDArray[Any] | Sequence[Any],
        rule: str,
        *,
        what: str = "value",
    ) -> None:
        """Refuse values [M] or [M, N] of which some are wrong.

        Raises
        ------
        TableError
            If one is; names the first by row and class, with its value, and counts the others.
        """
        if not wrong.any():
            return
        row, *column = (int(index) for index in np.argwhere(wrong)[0])
        value, place = values[row], self.row(row)
        if column:
            value = value[column[0]]
            place += f", class {show(self.classes[column[0]] if self.classes else column[0])}"
        shown = f"{value:.9g}" if isinstance(value, float | np.floating) else show(value)
        count = int(wrong.sum()) - 1
        others = f" ({count} more like it)" if count else ""
        raise TableError(f"{place}: {what} is {shown}; {rule}{others}")


def checked_rows(
    probs: ArrayLike,
    labels: ArrayLike,
    classes: Sequence[str] | None = None,
    *,
    missing: bool = False,
) -> tuple[NDArray[np.float64], NDArray[np.int64], tuple[str, ...]]:
    """Return probabilities [M, N], their labels [M] and N class names, all checked.

    Labels may be missing as in :func:`checked_labels`.

    Raises
    ------
    TableError
        When one of them is not allowed, or they do not fit together.
    """
    values = checked_probabilities(probs)
    n_rows, n_classes = values.shape
    indices = checked_labels(labels, n_rows=n_rows, n_classes=n_classes, missing=missing)
    return values, indices, checked_classes(classes, n_classes=n_classes)


def checked_shape(
    values: ArrayLike, *, n_classes: int | None = None, source: str = "probs"
) -> NDArray[np.float64]:
    """Return real numbers as float64 [M, N] with M >= 1 rows and N >= 2 (or `n_classes`) columns.

    Raises
    ------
    TableError
        If they are something else. The values themselves are not looked at.
    """
    array = _as_array(values, source)
    if array.dtype.kind not in "fiu":
        raise TableError(f"{source}: type is {array.dtype}; an array of real numbers is needed")
    many = array.ndim == 2 and array.shape[0] > 0 and array.shape[1] > 1
    if not many or n_classes not in (None, array.shape[1]):
        raise TableError(
            f"{source}: shape is {array.shape}; [rows, classes] with at least one row and "
            f"{'at least two' if n_classes is None else n_classes} classes is needed"
        )
    return np.asarray(array, dtype=np.float64)


def checked_probabilities(
    probs: ArrayLike, *, n_classes: int | None = None
) -> NDArray[np.float64]:
    """Return `probs` as float64 [M, N]; its rows may have any sum.

    Raises
    ------
    TableError
        When the shape is wrong, a value is not in 0..1, or a row has no positive value.
    """
    values = checked_shape(probs, n_classes=n_classes)
    # Probabilities that come from float32 exceed 1 by rounding.
    _check_values(values, Named("probs"), most=1.0 + SUM_TOLERANCE, rule="between 0 and 1")
    return values


def normalised_rows(
    values: NDArray[np.float64], names: Named, *, normalise: bool
) -> NDArray[np.float64]:
    """Return a new array of non-negative rows [M, N] that sum to 1.

    Parameters
    ----------
    values : float64 array [M, N]
        Probabilities, or non-negative scores with `normalise`.
    names : Named
        What messages call them.
    normalise : bool
        Divide each row by its sum instead of refusing rows that do not sum to 1.

    Raises
    ------
    TableError
        When a value is not finite or negative, or a row cannot be or is not normalised.
    """
    probs = np.array(values, dtype=np.float64, order="C")
    _check_values(probs, names, most=np.finfo(np.float64).max, rule="finite and at least 0")
    probs += 0.0  # turns -0.0 into 0.0, so that equal tables have equal bytes
    with np.errstate(over="ignore"):
        sums = probs.sum(axis=1)
    if normalise:
        # The largest value first: a sum of values near the limits would over- or underflow.
        rows = np.flatnonzero(np.abs(sums - 1) > _EXACT)
        probs[rows] /= probs[rows].max(axis=1, keepdims=True)
        sums = probs.sum(axis=1)
    else:
        names.refuse(
            np.abs(sums - 1) > SUM_TOLERANCE,
            sums,
            "1 is needed; use --normalise (normalise=True) to divide each row by its sum",
            what="the sum of the probabilities",
        )
    rows = np.flatnonzero(np.abs(sums - 1) > _EXACT)
    probs[rows] /= sums[rows, None]
    return probs


def softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return probabilities [M, N] of logits; ``-inf`` gives 0, a row needs a finite one."""
    with np.errstate(over="ignore"):
        # Logits further apart than the largest number differ by -inf, and exp(-inf) is right.
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    normalised: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return normalised


def _check_values(values: NDArray[np.float64], names: Named, *, most: float, rule: str) -> None:
    names.refuse(~((values >= 0.0) & (values <= most)), values, f"a number {rule} is needed")
    largest = values.max(axis=1)
    names.refuse(
        largest == 0.0,
        largest,
        "every row needs a positive one; score the row again or leave it out",
        what="the largest probability",
    )


def checked_labels(
    labels: ArrayLike,
    *,
    n_rows: int | None = None,
    n_classes: int | None = None,
    names: Named = Named("labels"),
    missing: bool = False,
) -> NDArray[np.int64]:
    """Return `labels` as a new int64 array [M] of class numbers ``0 .. n_classes - 1``.

    With `missing`, rows may be unlabelled: -1, None or NaN, all of which become -1.

    Raises
    ------
    TableError
        If they are not one integer per row, or out of range.
    """
    values = _as_array(labels, names.source)
    if missing and values.ndim == 1 and values.dtype.kind in "fO":
        values = _gaps_filled(values, names.source)
    one_each = values.ndim == 1 and values.size and n_rows in (None, values.size)
    if not one_each or values.dtype.kind not in "iu":
        raise TableError(
            f"{names.source}: labels have shape {values.shape} and type {values.dtype}; one "
            f"integer for each of {'M' if n_rows is None else n_rows} rows is needed"
        )
    if n_classes is not None:
        wrong = (values < (-1 if missing else 0)) | (values >= n_classes)
        rule = f"allowed are 0..{n_classes - 1}"
        if missing:
            rule += ", or -1 (null, an empty field) where there is none"
        names.refuse(wrong, values, rule, what="label")
    return values.astype(np.int64)


def _gaps_filled(labels: NDArray[Any], source: str) -> NDArray[Any]:
    """Return labels with -1 for None and NaN; integers that these made floats are whole again."""
    gaps = [label is None or label != label for label in labels.tolist()]
    given = zip(labels.tolist(), gaps, strict=True)
    filled = _as_array([-1 if gap else label for label, gap in given], source)
    whole = any(gaps) and filled.dtype.kind == "f" and bool((filled % 1 == 0).all())
    return filled.astype(np.int64) if whole else filled


def checked_classes(
    classes: Iterable[Any] | None, *, n_classes: int, source: str = "classes"
) -> tuple[str, ...]:
    """Return N different class names, ``class_0, class_1, ...`` when none are given.

    Raises
    ------
    TableError
        If there are more or fewer, one is no text or empty, or two are equal.
    """
    if classes is None:
        return tuple(f"class_{k}" for k in range(n_classes))
    names = () if isinstance(classes, str) else tuple(classes)
    if len(names) != n_classes:
        raise TableError(
            f"{source}: {show(classes)} are {len(names)} class names; a list of {n_classes}, one "
            "for each column of probabilities, is needed"
        )
    for k, name in enumerate(names):
        if not isinstance(name, str) or not name.strip():
            raise TableError(
                f"{source}: class {k} has the name {show(name)}; a non-empty text is needed"
            )
    _refuse_repeated(names, "classes", source)
    return tuple(str(name) for name in names)


def checked_ids(ids: Iterable[Any] | None, *, n_rows: int, source: str) -> Sequence[str]:
    """Return different row ids as text, the row numbers when none are given.

    Raises
    ------
    TableError
        If there are more or fewer, one is neither text nor integer, or two are equal.
    """
    if ids is None:
        return RowNumbers(n_rows)
    if isinstance(ids, RowNumbers) and len(ids) == n_rows:
        return ids
    given = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
    if len(given) != n_rows:
        raise TableError(f"{source}: {len(given)} ids for {n_rows} rows; give one id per row")
    wrong = [isinstance(value, bool) or not isinstance(value, str | int) for value in given]
    Named(source).refuse(np.array(wrong), given, "a text or an integer is needed", what="id")
    texts = tuple(map(str, given))
    _refuse_repeated(texts, "rows", source, what="id")
    return texts


def _refuse_repeated(names: Sequence[str], kind: str, source: str, what: str = "name") -> None:
    first: dict[str, int] = {}
    for k, name in enumerate(names):
        if first.setdefault(name, k) != k:
            raise TableError(
                f"{source}: {kind} {first[name]} and {k} have the same {what} {show(name)}; "
                f"every {what} must differ"
            )


def warn_of_absent_classes(labels: NDArray[np.int64], classes: tuple[str, ...]) -> None:
    """Warn when a class has no rows: it takes no part in COBias and PMI."""
    counts = np.bincount(labels, minlength=len(classes))
    absent = [name for name, count in zip(classes, counts, strict=True) if count == 0]
    if absent:
        warnings.warn(
            f"no rows are labelled {listing(absent)}: left out of COBias and PMI",
            UserWarning,
            stacklevel=3,
        )


def _as_array(values: ArrayLike, source: str) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except (ValueError, TypeError, OverflowError) as error:
        raise TableError(f"{source}: not one array: {reason(error)}") from None
