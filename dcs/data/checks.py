"""Validation of numbers, arrays and names; every error is one line that names the location."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from numbers import Integral, Real
from os.path import commonprefix
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.labels import TELLING, as_text, below_chance, read_labels
from dcs.errors import InvalidInputError, Named, TableError, quoted, show
from dcs.io import readable

#: Largest allowed difference between a row's sum and 1; it admits float32 rounding.
SUM_TOLERANCE: Final = 1e-6

# Rows whose sum is closer to 1 than this are not divided: dividing them again would change their
# last bits, and a table would not survive a round trip unchanged.
_EXACT: Final = 1e-12

#: Marks that end the common prefix of columns.
SEPARATORS: Final = ":_.-/| "

#: Maximum number of values per table: 1 GiB as float64, and several times that during processing.
MOST_VALUES: Final = 2**27


#: Maximum number of columns: a mistaken separator or orientation fails at once.
_MOST_COLUMNS: Final = 20_000


def refuse_too_large(n_rows: int, n_columns: int, *, source: str) -> None:
    """Check the size of a table before it is read: a small compressed file can hold many rows.

    Raises
    ------
    TableError
        If it has more than the maximum number of columns, or of values.
    """
    if n_columns > _MOST_COLUMNS or n_rows * n_columns > MOST_VALUES:
        size = f"{n_rows} rows of {n_columns:,} columns"
        most = f"at most {MOST_VALUES:,} values in {_MOST_COLUMNS:,} columns are read"
        raise TableError(f"{source}: {size}; {most}; is it turned?")


def finite_number(
    value: Any,
    name: str,
    *,
    positive: bool = False,
    least: float = -math.inf,
    most: float = math.inf,
) -> float:
    """Return `value` as a float between `least` and `most`, greater than 0 if `positive`.

    Raises
    ------
    InvalidInputError
        If it is not a real number, is a bool, is not finite, overflows a float, or is out of
        range.
    """
    number = math.nan
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):
            number = float(value)
    if math.isfinite(number) and least <= number <= most and (number > 0.0 or not positive):
        return number
    rule = " greater than 0" if positive else f" >= {least:g}" if least > -math.inf else ""
    rule += f" and <= {most:g}" if most < math.inf else ""
    raise InvalidInputError(f"{name} {show(value)}: must be a finite number{rule}")


def whole_number(value: Any, name: str, *, least: int, most: int | None = None) -> int:
    """Return `value` as an int.

    Raises
    ------
    InvalidInputError
        If it is not an integer, is a bool, is less than `least`, or greater than `most`.
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if whole and value >= least and (most is None or value <= most):
        return int(value)
    rule = f">= {least}" if most is None else f"between {least} and {most}"
    raise InvalidInputError(f"{name} {show(value)}: must be an integer {rule}")


def checked_rows(
    probs: ArrayLike,
    labels: ArrayLike,
    classes: Iterable[str] | None = None,
    *,
    missing: bool = False,
    doubt: bool = False,
) -> tuple[NDArray[np.float64], NDArray[np.int64], tuple[str, ...]]:
    """Return validated probabilities [M, N], labels [M] and N class names.

    The columns of a data frame are put in the order of `classes`, or name the classes. Labels can
    be class names, and be missing as in :func:`checked_labels`. Whole numbers beside an array are
    positions; with `doubt`, unless the predictions show that they are something else.

    Raises
    ------
    TableError
        If one of them is invalid, or their shapes or names are inconsistent.
    """
    refuse_other_order(probs, labels=labels)
    given = _as_array(labels, "labels")
    columns = column_names(probs)
    probs, classes = named_columns(probs, classes, given.ravel().tolist())
    values = checked_probabilities(probs)
    n_rows, n_classes = values.shape
    texts = given.dtype.kind in "OU" and any(isinstance(each, str) for each in given.flat)
    names = checked_classes(classes, n_classes=n_classes)
    # Whole numbers can only be names if they are no positions.
    positions = given.dtype.kind in "iu" and (not given.size or given.max() < n_classes)
    read = texts or columns is not None or doubt or (classes is not None and not positions)
    if read and given.shape == (n_rows,) and given.dtype.kind in "biufOSU":
        named = Named("labels", names)
        documented = columns is None
        given, _ = read_labels(given.tolist(), values, named, documented=documented, option=False)
    indices = checked_labels(given, n_rows=n_rows, n_classes=n_classes, missing=missing)
    return values, indices, names


def refuse_other_order(first: Any, /, **others: Any) -> None:
    """Refuse data frames and series whose indices have the same rows at different places.

    An index that counts from 0 may have been made anew, if the other one has other rows as well.

    Raises
    ------
    TableError
        As rows could be matched by place or by index.
    """
    index: Any = getattr(first, "index", None)
    for name, each in others.items():
        other: Any = getattr(each, "index", None)
        if not (hasattr(index, "equals") and hasattr(other, "equals")) or index.equals(other):
            continue
        rows = ({*index}, {*other})
        made = any([*own] == [*range(len(own))] for own in (index, other))
        if len(index) == len(other) and (rows[0] == rows[1] or (rows[0] & rows[1] and not made)):
            fault = "its index has rows of the other at other places"
            ways = f"give {name}.loc[other.index], or {name}.to_numpy()"
            raise TableError(f"{name}: {fault}: are rows matched by place or by index; {ways}")


def column_names(values: Any) -> list[str] | None:
    """Return the column names of a data frame; None for an array, or for columns 0, 1, ..."""
    columns = columns_of(values)
    return None if [*columns] == [*range(len(columns))] else flat_names(columns)


def refuse_other_columns(values: Any, names: Sequence[str], what: str) -> None:
    """Refuse a data frame whose columns, counted or named, are `names` in another order.

    Raises
    ------
    TableError
        As columns could be matched by place or by name; `what` says whose names these are.
    """
    columns = flat_names(columns_of(values))
    found = spellings(columns, names) if len(columns) == len(names) else []
    if found and [*found[0]] != columns:
        orders = f"{quoted(columns)} are in another order than {what}, {quoted(names)}"
        advice = "put them in this order, or give an array without names if they are"
        raise TableError(f"columns {orders}; {advice}")


def columns_of(values: Any) -> Any:
    """Return the columns of a data frame, which may be numbers; none of an array."""
    return getattr(values, "column_names", getattr(values, "columns", ()))


def flat_names(columns: Iterable[Any]) -> list[str]:
    """Return the names of columns as text in Unicode NFC; several levels are joined by a colon."""
    return [
        ":".join(filter(None, map(as_text, name))) if isinstance(name, tuple) else as_text(name)
        for name in columns
    ]


def classes_of(names: Sequence[str], labels: Sequence[Any] = ()) -> list[str]:
    """Return the classes that columns are named by, with a prefix or suffix that labels show."""
    told = [*dict.fromkeys(text for text in map(as_text, labels) if text)]
    found = affixes(names, [each for each in told if each != "-1"])
    # Otherwise, they have a common beginning up to its last separator.
    shared = commonprefix(list(names))
    prefix = shared[: max(shared.rfind(mark) for mark in SEPARATORS) + 1]
    start, end = next(iter(affixes(names, told) or found), (prefix, ""))
    return [name.removeprefix(start).removesuffix(end) for name in names]


def named_columns(
    values: Any, classes: Iterable[str] | None, labels: Sequence[Any] = ()
) -> tuple[Any, Sequence[str] | None]:
    """Return the columns of a data frame in the order of the classes, which they name if None.

    Arrays and classes without a data frame are as they are.

    Raises
    ------
    TableError
        As of :func:`column_order`.
    """
    names = None if classes is None else tuple(classes)
    columns = column_names(values)
    if columns is None:
        refuse_other_columns(values, names or (), "the classes")
        return values, names
    if names is None:
        return np.asarray(values), classes_of(columns, labels)
    return np.asarray(values)[:, column_order(columns, names, "classes")], names


def column_order(names: Sequence[str], classes: Sequence[str], option: str) -> list[int]:
    """Return the place of the column of every class, given one column per class.

    Parameters
    ----------
    names : sequence of str
        Column names: the classes, perhaps all with the same prefix or suffix.
    classes : sequence of str
        Class names.
    option : str
        What gives the order of the classes, for the message.

    Raises
    ------
    TableError
        If the names are other ones.
    """
    found = spellings(names, flat_names(classes))
    if not found or len(names) != len(classes):
        fault = f"columns {quoted(names)} are not named by the classes {quoted(classes)}"
        needed = "one column per class, named by it, or an array without names"
        raise TableError(f"{fault}; give {needed}, in the order of {option}")
    return [*map(list(names).index, found[0])]


def affixes(names: Sequence[str], classes: Sequence[str]) -> list[tuple[str, str]]:
    """Return each prefix and suffix with which all classes are names of columns."""
    there, found = set(names), []
    longest = max(classes, key=len, default="")
    for name in names if longest else ():
        for match in re.finditer(re.escape(longest), name):
            start, end = name[: match.start()], name[match.end() :]
            if all(f"{start}{each}{end}" in there for each in classes):
                found.append((start, end))
    return sorted(dict.fromkeys(found), key=lambda pair: len("".join(pair)))


def spellings(names: Sequence[str], classes: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the columns that the classes name, with each of their prefixes and suffixes."""
    found = affixes(names, classes)
    return [tuple(f"{start}{each}{end}" for each in classes) for start, end in found]


def checked_shape(
    values: ArrayLike, *, n_classes: int | None = None, source: str = "probs"
) -> NDArray[np.float64]:
    """Return real numbers as float64 [M, N] with M >= 1 rows and N >= 2 (or `n_classes`) columns.

    Raises
    ------
    TableError
        If type or shape is invalid. The values themselves are not checked.
    """
    array = _as_array(values, source)
    if array.dtype.kind not in "fiu":
        raise TableError(f"{source}: type is {array.dtype}; must be an array of real numbers")
    many = array.ndim == 2 and array.shape[0] > 0 and array.shape[1] > 1
    if not many or n_classes not in (None, array.shape[1]):
        number = "at least two" if n_classes is None else n_classes
        needed = f"[rows, classes] with at least one row and {number} classes"
        raise TableError(f"{source}: shape is {array.shape}; must be {needed}")
    return np.asarray(array, dtype=np.float64)


def checked_probabilities(
    probs: ArrayLike, *, n_classes: int | None = None
) -> NDArray[np.float64]:
    """Return `probs` as float64 [M, N]; rows need not sum to 1.

    Raises
    ------
    TableError
        If the shape is invalid, a value is outside 0..1, or a row has no positive value.
    """
    values = checked_shape(probs, n_classes=n_classes)
    # Probabilities converted from float32 can exceed 1 by rounding.
    _check_values(values, Named("probs"), most=1.0 + SUM_TOLERANCE, rule="between 0 and 1")
    return values


def normalised_rows(values: NDArray[np.float64], names: Named) -> NDArray[np.float64]:
    """Return a new array [M, N] of probabilities whose rows sum to 1 exactly.

    Raises
    ------
    TableError
        If a value is negative or not finite, or the sum of a row is not 1 within `SUM_TOLERANCE`.
    """
    probs = np.array(values, dtype=np.float64, order="C")
    _check_values(probs, names, most=np.finfo(np.float64).max, rule="finite and at least 0")
    probs += 0.0  # converts -0.0 to 0.0, so that equal tables have equal bytes
    with np.errstate(over="ignore"):
        sums = probs.sum(axis=1)
    wrong, rule = np.abs(sums - 1) > SUM_TOLERANCE, "must be 1; divide each row by its sum"
    names.refuse(wrong, sums, rule, what="the sum of the probabilities")
    rows = np.flatnonzero(np.abs(sums - 1) > _EXACT)
    probs[rows] /= sums[rows, None]
    return probs


def _check_values(values: NDArray[np.float64], names: Named, *, most: float, rule: str) -> None:
    names.refuse(~((values >= 0.0) & (values <= most)), values, f"must be a number {rule}")
    largest = values.max(axis=1)
    rule = "every row needs a positive value; score the row again or drop it"
    names.refuse(largest == 0.0, largest, rule, what="the largest probability")


_LABELS: Final = Named("labels")


def checked_labels(
    labels: ArrayLike,
    *,
    n_rows: int | None = None,
    n_classes: int | None = None,
    names: Named = _LABELS,
    missing: bool = False,
) -> NDArray[np.int64]:
    """Return `labels` as a new int64 array [M] of class indices ``0 .. n_classes - 1``.

    With `missing`, rows can be unlabelled: -1, None and NaN are all converted to -1.

    Raises
    ------
    TableError
        If they are not one integer per row, or out of range.
    """
    values = _as_array(labels, names.source)
    if missing and values.ndim == 1 and values.dtype.kind in "fO":
        import pandas as pd

        with suppress(TypeError, ValueError):  # Other values are refused below.
            values = pd.array(values, dtype="Int64").fillna(-1).to_numpy(np.int64)
    one_per_row = values.ndim == 1 and values.size and n_rows in (None, values.size)
    if not one_per_row or values.dtype.kind not in "iu":
        fault = f"{names.source}: labels have shape {values.shape} and type {values.dtype}"
        raise TableError(f"{fault}; must be one integer for each of {n_rows or 'M'} rows")
    if n_classes is not None:
        wrong = (values < (-1 if missing else 0)) | (values >= n_classes)
        rule = f"must be in 0..{n_classes - 1}"
        if missing:
            rule += ", or -1 (null, an empty field) if unlabelled"
        names.refuse(wrong, values, rule, what="label")
    return values.astype(np.int64)


def checked_classes(
    classes: Iterable[Any] | None, *, n_classes: int | None = None, source: str = "classes"
) -> tuple[str, ...]:
    """Return N unique class names, by default ``class_0, class_1, ...``.

    Raises
    ------
    TableError
        If their number is not N, or a name is not a string, is empty or is repeated.
    """
    if classes is None:
        return tuple(f"class_{k}" for k in range(n_classes or 0))
    names = () if isinstance(classes, str) else tuple(classes)
    if n_classes is not None and len(names) != n_classes:
        fault = f"{show(classes)} has {len(names)} class names"
        raise TableError(f"{source}: {fault}; must be {n_classes}")
    for k, name in enumerate(names):
        if not isinstance(name, str) or not name.strip() or re.search("[\ud800-\udfff]", name):
            fault = f"class {k} has the name {show(name)}"
            raise TableError(f"{source}: {fault}; must be a text that is not empty")
    _refuse_repeated(names, "classes", source)
    return tuple(str(name) for name in names)


def checked_ids(ids: Iterable[Any] | None, *, n_rows: int, source: str) -> Sequence[str]:
    """Return unique row ids as strings, by default the row numbers.

    Raises
    ------
    TableError
        If there is not one per row, or an id is neither str nor int, or is repeated.
    """
    if ids is None:
        return tuple(map(str, range(n_rows)))
    values = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
    if len(values) != n_rows:
        raise TableError(f"{source}: {len(values)} ids for {n_rows} rows; give one id per row")
    wrong = [isinstance(v, bool) or not isinstance(v, str | int) or v == "" for v in values]
    Named(source).refuse(np.array(wrong), values, "must be a string or an integer", what="id")
    names = tuple(map(str, values))
    _refuse_repeated(names, "rows", source, what="id")
    return names


def checked_groups(groups: NDArray[Any], *, n_rows: int, source: str) -> NDArray[np.int64]:
    """Return groups of rows, numbered in order of first appearance; by default each is its own.

    Raises
    ------
    TableError
        If there is not one integer per row.
    """
    numbers = groups if groups.size else np.arange(n_rows)
    if numbers.shape != (n_rows,) or not np.issubdtype(numbers.dtype, np.integer):
        fault = f"groups are {numbers.dtype} of shape {numbers.shape}"
        raise TableError(f"{source}: {fault}; must be an integer for each of {n_rows} rows")
    _, first, group = np.unique(numbers, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[group.ravel()].astype(np.int64)


def _refuse_repeated(names: Sequence[str], kind: str, source: str, what: str = "name") -> None:
    first: dict[str, int] = {}
    for k, name in enumerate(names):
        if first.setdefault(name, k) != k:
            both = f"{kind} {first[name]} and {k}"
            raise TableError(f"{source}: {both} have the same {what} {show(name)}; change one")


def warn_of_absent_classes(labels: NDArray[np.int64], classes: tuple[str, ...]) -> None:
    """Warn if a class has no rows, since macro-F1, COBias and PMI then ignore it."""
    present = {*labels.tolist()}
    if absent := [name for k, name in enumerate(classes) if k not in present]:
        message = f"no rows are labelled {quoted(absent)}; macro-F1, COBias and PMI ignore them"
        warnings.warn(message, UserWarning, stacklevel=3)


def doubts_about(
    labels: NDArray[np.int64],
    probs: NDArray[np.float64],
    fewest: int = TELLING,
    classes: Sequence[str] = (),
) -> list[str]:
    """Return why labels may be predictions, or those of other columns; and `classes` without any.

    In words.
    """
    found = []
    if are_predictions(labels, probs, fewest):
        # No metric of a model without errors can improve.
        advice = "if they are the predictions of the model, give the true classes"
        found.append(f"labels name the most probable class of every row; {advice}")
    if (own := below_chance(labels, probs)) is not None:
        fault = f"{own} of {(labels >= 0).sum()} labels are predicted, fewer than by chance"
        found.append(f"{fault}; are the classes in the order of the columns?")
    absent = [name for k, name in enumerate(classes) if k not in labels]
    if absent and (labels >= 0).any():
        effect = "no metric counts the class, and a scheme may hardly predict it"
        found.append(f"no row is labelled {quoted(absent)}: {effect}")
    return found


def are_predictions(
    labels: NDArray[np.int64], probs: NDArray[np.float64], fewest: int = TELLING
) -> bool:
    """Whether enough labels are known, and all name a most probable class of their rows."""
    known = labels >= 0
    own, most = probs[known, labels[known]], probs[known].max(axis=1, initial=0.0)
    return bool(known.sum() >= fewest and (own == most).all())


def _as_array(values: ArrayLike, source: str) -> NDArray[Any]:
    if np.ma.is_masked(values):
        raise TableError(f"{source}: values are masked; fill them in, or leave these rows out")
    with readable(source, "give an array", error=TableError):
        return np.asarray(values)
