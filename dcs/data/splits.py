"""Stratified splits and samples of rows, with similar class proportions in every part."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.checks import checked_labels, whole_number
from dcs.errors import InvalidInputError, show
from dcs.seeds import derive_generator


def stratified_split(
    labels: ArrayLike,
    fractions: Mapping[str, float],
    *,
    seed: int,
    groups: ArrayLike | None = None,
    placed: ArrayLike | None = None,
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
    groups : array of int, shape [M], optional
        Group of every row; the rows of a group stay together. A group belongs to the class of its
        first row. The rows that are alone then make up for the sizes of the groups.
    placed : array of int, shape [M], optional
        Number of the part of every row that has one already, and its group with it; -1 for rows to
        be divided, which make up for them.

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
    part_of = np.full(classes.size, -1) if placed is None else np.array(placed, dtype=np.int64)
    targets = np.zeros(len(names))
    sizes = np.zeros(len(names), dtype=np.int64)
    members = np.arange(classes.size) if groups is None else np.asarray(groups)
    _divide_groups(classes, members, shares, generator, part_of)
    together = part_of >= 0
    for label in np.unique(classes):
        own = classes == label
        rows = generator.permutation(np.flatnonzero(own & ~together))
        targets += shares * own.sum()
        taken = np.bincount(part_of[own & together], minlength=len(names))
        counts = _allocate(int(own.sum()), shares, targets - sizes)
        sizes += counts
        part_of[rows] = np.repeat(np.arange(len(names)), _fill(counts - taken, rows.size))
    filled = np.bincount(part_of, minlength=len(names))
    if not filled.all():
        size = f"{classes.size} rows ({np.unique(members).size} different ones)"
        fault = f"split part {show(names[filled.argmin()])} would be empty: {size}"
        raise InvalidInputError(f"{fault} for {len(names)} parts; use more rows or fewer parts")
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


#: Copies are told from coincidences by how often rows repeat: rows of values that coincide, as do
#: those of votes or trees, repeat more often on average, or in larger groups.
_MOST_REPEATS: Final = 3.0
_LARGEST_SHARE: Final = 0.005
_FEWEST_LARGE: Final = 10

#: Probabilities of no more decimals coincide by chance; those of two classes, which are a single
#: number, more often.
_DECIMALS: Final = 5
_DECIMALS_OF_TWO: Final = 6

#: Share of values that are rounded, or differ between rows, in tables that are mostly so.
_TYPICAL: Final = 0.9

#: Rows that are this close to certain are equal by chance: models round them to 1.
_CERTAIN: Final = 1e-5

#: Shares of votes are multiples of a step: their number, and the size of the step.
_MOST_VOTES: Final = 1000
_LEAST_STEP: Final = 1e-4


def copied_rows(
    probs: NDArray[np.float64], groups: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Return the group of copies of every row, numbered by their first rows.

    The copies of a row must not be divided between fitted and held-out rows. Rows with equal
    probabilities are copies unless these can coincide by chance: if all probabilities of the table
    have few decimals or are shares of a number of votes, if rows repeat more than three times on
    average but not all equally often, if a row is certain of its class, or if it is one of very
    many that are equal. Then every row is a group.

    Parameters
    ----------
    probs : array of float, shape [M, N]
        Class probabilities.
    groups : array of int, shape [M], optional
        Numbers that are equal in rows of the same id or text, which are copies as well.
    """
    equal = _equal_rows(probs)
    return equal if groups is None else joined(equal, groups)


def joined(*groupings: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the groups of rows that are together in any of some groupings, directly or not."""
    alone = np.arange(groupings[0].size)
    firsts = [each for each in map(_first_rows, groupings) if (each != alone).any()]
    if len(firsts) < 2:
        return firsts[0] if firsts else alone
    # Imported here, since they take longer than the rest and are rarely needed.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ends = np.tile(alone, len(firsts)), np.concatenate(firsts)
    graph = coo_array((np.ones(ends[0].size), ends), shape=(alone.size, alone.size))
    return _first_rows(connected_components(graph, directed=False)[1])


def _first_rows(grouping: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the first row of the group of every row."""
    _, first, group = np.unique(grouping, return_index=True, return_inverse=True)
    return np.asarray(first[group.ravel()], dtype=np.int64)


def _equal_rows(probs: NDArray[np.float64]) -> NDArray[np.int64]:
    n_rows = len(probs)
    alone = np.arange(n_rows)
    # Equal up to the rounding of their normalisation.
    different, first, group, counts = np.unique(
        probs.round(9), axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    group = group.ravel()
    if counts.size == n_rows or _is_coarse(probs, different):
        return alone
    if n_rows > _MOST_REPEATS * counts.size and counts.min() < counts.max():
        return alone
    certain = probs.max(axis=1) > 1.0 - _CERTAIN
    return np.where(are_common(counts, n_rows)[group] | certain, alone, first[group])


def are_common(counts: NDArray[np.int64], n_rows: int) -> NDArray[np.bool_]:
    """Return whether groups of equal rows are so large, unlike others, that these coincide."""
    if counts.min() == counts.max():
        return np.zeros(counts.size, np.bool_)
    return np.asarray(counts > max(_FEWEST_LARGE, _LARGEST_SHARE * n_rows))


def _is_coarse(probs: NDArray[np.float64], rows: NDArray[np.float64]) -> bool:
    """Whether probabilities are rounded, or shares of a number of votes, so that they coincide.

    `rows` are the different ones.
    """
    inner = probs[(probs > _CERTAIN) & (probs < 1.0 - _CERTAIN)]
    decimals = _DECIMALS_OF_TWO if probs.shape[1] == 2 else _DECIMALS
    if not inner.size or np.mean(np.abs(inner - inner.round(decimals)) < 1e-9) > _TYPICAL:
        return True
    values = np.unique(rows)
    if 2 < values.size <= _MOST_VOTES:
        steps = np.diff(values)
        least = steps.min()
        multiples = steps / least
        if least > _LEAST_STEP and np.abs(multiples - multiples.round()).max() < 1e-3:
            return True
    if probs.shape[1] == 2:
        return False
    # Of three classes or more, different rows have few equal values unless these are coarse.
    within = (rows > _CERTAIN) & (rows < 1.0 - _CERTAIN)
    columns = [(column[own], own.sum()) for column, own in zip(rows.T, within.T, strict=True)]
    shares = [np.unique(column).size / number for column, number in columns if number]
    return float(np.median(shares)) < _TYPICAL


def _groups_of(groups: ArrayLike) -> tuple[NDArray[np.intp], ...]:
    """Return the first row of every group, the group of every row, and the sizes of the groups."""
    return np.unique(groups, return_index=True, return_inverse=True, return_counts=True)[1:]


def stratified_folds(
    labels: ArrayLike, folds: int, *, seed: int, groups: ArrayLike
) -> NDArray[np.int64]:
    """Return the fold of every row, with similar class proportions in every fold.

    Parameters
    ----------
    labels : array of int, shape [M]
        True class indices.
    folds : int
        Number of folds.
    seed : int
        Random seed.
    groups : array of int, shape [M]
        Group of every row; the rows of a group are in one fold. A group belongs to the class of
        its first row.
    """
    values = np.asarray(labels, dtype=np.int64)
    first, of_row, sizes = _groups_of(groups)
    shuffled = derive_generator(seed, "folds").permutation(first.size)
    # Deal out the largest groups of each class first, so that the folds are of similar size.
    order = shuffled[np.lexsort((-sizes[shuffled], values[first][shuffled]))]
    places = np.empty(first.size, dtype=np.int64)
    places[order] = np.arange(first.size) % folds
    return np.asarray(places[of_row])


def _divide_groups(
    classes: NDArray[np.int64],
    groups: NDArray[Any],
    shares: NDArray[np.float64],
    generator: np.random.Generator,
    part_of: NDArray[np.int64],
) -> None:
    """Put groups of several rows into parts.

    Each group, the largest first, goes to the part that lacks most rows of the class, or to that
    in which one of its rows is.
    """
    first, of_row, counts = _groups_of(groups)
    members = np.argsort(of_row, kind="stable")
    starts = np.concatenate([[0], np.cumsum(counts)])
    lacking = {
        label: shares * (classes == label).sum()
        - np.bincount(part_of[(classes == label) & (part_of >= 0)], minlength=shares.size)
        for label in np.unique(classes)
    }
    shuffled = generator.permutation(np.flatnonzero(counts > 1))
    for group in shuffled[np.argsort(-counts[shuffled], kind="stable")]:
        lack = lacking[classes[first[group]]]
        rows = members[starts[group] : starts[group + 1]]
        free = part_of[rows] < 0
        # In proportion to the shares, so that a small part gets groups as well.
        part = int(np.argmax(lack / shares)) if free.all() else int(part_of[rows].max())
        part_of[rows[free]] = part
        lack[part] -= free.sum()


def _fill(counts: NDArray[np.int64], n_rows: int) -> NDArray[np.int64]:
    """Return the number of rows that each part still takes, with the sum `n_rows`."""
    counts = np.maximum(counts, 0)
    while (excess := int(counts.sum()) - n_rows) != 0:
        part = int(np.argmax(counts))
        counts[part] -= min(excess, counts[part]) if excess > 0 else excess
    return counts


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
