"""Stratified splits and samples of rows, with similar class proportions in every part."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.checks import checked_labels, whole_number
from dcs.errors import InvalidInputError, show
from dcs.seeds import derive_generator


def stratified_split(
    labels: ArrayLike, fractions: Mapping[str, float], *, seed: int
) -> dict[str, NDArray[np.int64]]:
    """Split rows at random into named parts, stratified by class.

    Parameters
    ----------
    labels : array-like of int [M]
        The class of every row.
    fractions : mapping of str to float
        Share of the rows in each part, positive; relative to their sum.
    seed : int
        Non-negative; the same seed gives the same parts.

    Returns
    -------
    dict of str to int64 array
        Row numbers of each part, ascending, in the order of `fractions`. Every row is in exactly
        one part.

    Raises
    ------
    InvalidInputError
        If labels or seed are invalid, or a part would be empty.

    Notes
    -----
    A class with n rows contributes ``floor(f n)`` or ``ceil(f n)`` rows to a part of fraction f,
    chosen such that the sizes of the parts stay as close to their fractions as possible. Two rules
    take precedence:

    - A class with at least as many rows as there are parts has a row in every part; the row is
      taken from the part that exceeds its fraction most.
    - A class with fewer rows than parts contributes one row to each of the largest parts.
    """
    classes = checked_labels(labels)
    names = tuple(fractions)
    shares = np.array([*fractions.values()]) / math.fsum(fractions.values())
    generator = derive_generator(seed, "stratified_split")
    part_of = np.empty(classes.size, dtype=np.int64)
    targets = np.zeros(len(names))
    sizes = np.zeros(len(names), dtype=np.int64)
    for label in np.unique(classes):
        rows = generator.permutation(np.flatnonzero(classes == label))
        targets += shares * rows.size
        counts = _allocate(rows.size, shares, targets - sizes)
        sizes += counts
        part_of[rows] = np.repeat(np.arange(len(names)), counts)
    if not sizes.all():
        raise InvalidInputError(
            f"split part {show(names[sizes.argmin()])} would be empty: {classes.size} rows of "
            f"{np.unique(classes).size} classes are too few for {len(names)} parts; "
            "use more rows or fewer parts"
        )
    return {name: np.flatnonzero(part_of == part) for part, name in enumerate(names)}


def stratified_choice(labels: ArrayLike, size: int, *, seed: int) -> NDArray[np.int64]:
    """Sample rows at random, stratified by class.

    A smaller sample is a subset of a larger one with the same seed, so that results on increasing
    numbers of rows differ by the added rows only.

    Parameters
    ----------
    labels : array-like of int [M]
        The class of every row.
    size : int
        Number of rows, 1 to M.
    seed : int
        Non-negative; the same seed gives the same rows.

    Returns
    -------
    int64 array [size]
        Row numbers in ascending order.

    Raises
    ------
    InvalidInputError
        If labels, size or seed are invalid.

    Notes
    -----
    The first rows are one of each class, the most frequent class first. Each further row is of the
    class that is furthest below its proportion.
    """
    classes = checked_labels(labels)
    size = whole_number(size, "size", least=1, most=classes.size)
    generator = derive_generator(seed, "stratified_choice")
    names, counts = np.unique(classes, return_counts=True)
    # Position of each row in the order of selection: (k + 1/2) / n for row k of n of a class.
    positions = np.empty(classes.size)
    for name, count in zip(names, counts, strict=True):
        order = generator.permutation(np.flatnonzero(classes == name))
        positions[order] = (np.arange(count) + 0.5) / count
        positions[order[0]] = -float(count)
    chosen = np.argsort(positions, kind="stable")[:size]
    return np.sort(chosen).astype(np.int64)


#: With fewer different rows, probabilities are too coarse to tell which rows are duplicates.
_FEWEST_DISTINCT: Final = 50


def identical_rows(probs: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the group of identical rows of every row, numbered by their first rows.

    The copies of a row must not be divided between fitted and held-out rows. A table with fewer
    than 50 different rows has coarse probabilities, which are equal by chance: every row is a
    group.

    Parameters
    ----------
    probs : array of float, shape [M, N]
        Class probabilities.
    """
    distinct, first, group = np.unique(probs, axis=0, return_index=True, return_inverse=True)
    if len(distinct) < _FEWEST_DISTINCT:
        return np.arange(len(probs))
    return np.asarray(np.argsort(np.argsort(first))[group.ravel()], dtype=np.int64)


def _allocate(
    n_rows: int, shares: NDArray[np.float64], missing: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Allocate the rows of a class to the parts, of which `missing` is the number each lacks."""
    if n_rows < shares.size:
        counts = np.zeros(shares.size, dtype=np.int64)
        counts[np.argsort(-shares, kind="stable")[:n_rows]] = 1
        return counts
    # Round first: 0.07 * 100 is slightly above 7, which must not count as a remainder.
    ideal = np.round(shares * n_rows, 9)
    counts = np.floor(ideal).astype(np.int64)
    order = np.lexsort((-shares, counts - missing, ideal == counts))
    counts[order[: n_rows - int(counts.sum())]] += 1
    for part in np.flatnonzero(counts == 0):
        donor = int(np.argmax(np.where(counts > 1, counts - ideal, -np.inf)))
        counts[donor] -= 1
        counts[part] += 1
    return counts
