"""Dividing a table's rows into parts that each hold the same mix of classes."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.checks import checked_labels, finite_number, whole_number
from dcs.errors import InvalidInputError, show
from dcs.seeds import derive_generator


def stratified_split(
    labels: ArrayLike, fractions: Mapping[str, float], *, seed: int
) -> dict[str, NDArray[np.int64]]:
    """Divide rows into named parts, class by class, at random.

    Parameters
    ----------
    labels : array-like of int [M]
        The class of every row.
    fractions : mapping of str to float
        The share of each part; positive, sum 1.
    seed : int
        Non-negative; the same seed gives the same parts.

    Returns
    -------
    dict of str to int64 array
        For each part, in the order of `fractions`, its row numbers in ascending order. Every row
        is in exactly one part.

    Raises
    ------
    InvalidInputError
        If the fractions are not shares, the labels not integers, or a part would be empty.

    Notes
    -----
    A class with n rows gives a part of share f either ``floor(f n)`` or ``ceil(f n)`` rows, such
    that the totals of the parts stay as near to their shares as that allows. Two rules go before:

    - A class with at least as many rows as there are parts has a row in every part; the row is
      taken from the part that is most above its share.
    - A class with fewer rows than parts gives one row each to the parts of largest share.
    """
    classes = checked_labels(labels)
    names = tuple(fractions)
    shares = np.array(
        [
            finite_number(share, f"split fraction of {show(name)}", positive=True)
            for name, share in fractions.items()
        ]
    )
    if abs(math.fsum(shares) - 1) > 1e-9:
        raise InvalidInputError(f"split fractions {show(dict(fractions))} do not sum to 1")
    shares /= math.fsum(shares)
    generator = derive_generator(whole_number(seed, "split seed", least=0), "stratified_split")
    part_of = np.empty(classes.size, dtype=np.int64)
    wanted = np.zeros(len(names))
    given = np.zeros(len(names), dtype=np.int64)
    for label in np.unique(classes):
        rows = generator.permutation(np.flatnonzero(classes == label))
        wanted += shares * rows.size
        counts = _allocate(rows.size, shares, wanted - given)
        given += counts
        part_of[rows] = np.repeat(np.arange(len(names)), counts)
    if not given.all():
        raise InvalidInputError(
            f"split part {show(names[given.argmin()])} would be empty: {classes.size} rows of "
            f"{np.unique(classes).size} classes are too few for {len(names)} parts; "
            "use more rows or fewer parts"
        )
    return {name: np.flatnonzero(part_of == part) for part, name in enumerate(names)}


def stratified_choice(labels: ArrayLike, size: int, *, seed: int) -> NDArray[np.int64]:
    """Choose rows at random such that they hold about the same mix of classes as all.

    A smaller choice with the same seed is part of a larger one, so that results on more and more
    rows differ by the rows that were added and not by a new draw.

    Parameters
    ----------
    labels : array-like of int [M]
        The class of every row.
    size : int
        How many rows, 1 to M.
    seed : int
        Non-negative; the same seed gives the same rows.

    Returns
    -------
    int64 array [size]
        Row numbers in ascending order.

    Raises
    ------
    InvalidInputError
        If the labels are not integers, or there are not so many rows.

    Notes
    -----
    The first rows are one of each class, the most frequent class first; from then on a class gets
    its next row when it is the furthest behind its share.
    """
    classes = checked_labels(labels)
    size = whole_number(size, "size", least=1, most=classes.size)
    generator = derive_generator(whole_number(seed, "split seed", least=0), "stratified_choice")
    names, counts = np.unique(classes, return_counts=True)
    # When each row's turn is: the k-th of n rows of a class comes at (k + 1/2) / n.
    turns = np.empty(classes.size)
    for name, count in zip(names, counts, strict=True):
        order = generator.permutation(np.flatnonzero(classes == name))
        turns[order] = (np.arange(count) + 0.5) / count
        turns[order[0]] = -float(count)
    chosen = np.argsort(turns, kind="stable")[:size]
    return np.sort(chosen).astype(np.int64)


def _allocate(
    n_rows: int, shares: NDArray[np.float64], behind: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Count a class's rows for each part. `behind` is how many rows each part is yet owed."""
    if n_rows < shares.size:
        counts = np.zeros(shares.size, dtype=np.int64)
        counts[np.argsort(-shares, kind="stable")[:n_rows]] = 1
        return counts
    # Rounding first: 0.07 * 100 is a little more than 7, which must not count as a remainder.
    ideal = np.round(shares * n_rows, 9)
    counts = np.floor(ideal).astype(np.int64)
    order = np.lexsort((-shares, counts - behind, ideal == counts))
    counts[order[: n_rows - int(counts.sum())]] += 1
    for part in np.flatnonzero(counts == 0):
        donor = int(np.argmax(np.where(counts > 1, counts - ideal, -np.inf)))
        counts[donor] -= 1
        counts[part] += 1
    return counts
