"""Evaluation of all corrections of one class at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dcs.search.kernels.table import BLOCK, LANES, Room, Table, compiled, corrected, z_of

#: Maximum number of rows that one byte can count.
_BYTE = 255


@compiled
def eval_class(
    table: Table,
    room: Room,
    j: int,
    rival_value: NDArray[np.float64],
    rival_class: NDArray[np.int16],
) -> None:
    """Store Z of every correction of class j in `room.values`.

    `rival_value` and `rival_class` [M] are the maxima over all other classes.
    """
    room.wins[:] = 0
    room.reached[:] = 0
    n_rows = table.labels.shape[1]
    for start in range(0, n_rows, BLOCK):
        stop = min(start + BLOCK, n_rows)
        _fill_thresholds(table, room, j, rival_value[start:stop], rival_class[start:stop], start)
        column = table.columns[j, start:stop]
        _count_direct(table, room, column)
        if table.weights.size > 0:
            _count_weights(table, room, column)
    _eval_counts(table, room, j)


@compiled
def _fill_thresholds(
    table: Table,
    room: Room,
    j: int,
    rival_value: NDArray[np.float64],
    rival_class: NDArray[np.int16],
    start: int,
) -> None:
    """Compute the thresholds of the rows of one block, and the keys of their labels."""
    threshold, bits = room.threshold, room.threshold_bits
    jj = np.int16(j)
    for m in range(rival_value.size):
        threshold[m] = rival_value[m]
    # Ties go to the lower class. Decrementing the bits of a positive number gives the next smaller
    # number, so that "greater than" the new threshold means "greater or equal" to the old one.
    for m in range(rival_value.size):
        bits[m] -= np.int64((jj < rival_class[m]) & (bits[m] > 0))
    for c in range(table.labels.shape[0]):
        key, labels = room.key[c], table.labels[c, start : start + rival_value.size]
        for m in range(rival_value.size):
            rival = rival_class[m]
            label = labels[m]
            key[m] = (
                np.int32(3) * np.int32(rival)
                + np.int32(label == rival)
                + np.int32(2) * np.int32((label == jj) & (rival != jj))
            )


@compiled
def _count_direct(table: Table, room: Room, column: NDArray[np.float64]) -> None:
    """Count the labels of a block won by each direct correction, per key."""
    n_rows = column.size
    n_groups = room.packed.shape[1]
    threshold, wide = room.threshold, room.wide
    for group in range(n_groups):
        # One slice per line: slicing all lines at once gives strided views, a few percent slower.
        lanes = slice(LANES * group, LANES * group + LANES)
        left, rise = table.lanes[0, lanes], table.lanes[1, lanes]
        right, fall = table.lanes[2, lanes], table.lanes[3, lanes]
        # Bits are collected in 64-bit lanes, as wide as the compared numbers, and packed later.
        for m in range(n_rows):
            p, t = column[m], threshold[m]
            bits = np.int64(0)
            for lane in range(LANES):
                v = corrected(p, left[lane], rise[lane], right[lane], fall[lane])
                bits |= (np.int64(1) << lane) if v > t else np.int64(0)
            wide[m] = bits
        masks = room.masks[group]
        for m in range(n_rows):
            masks[m] = wide[m]
    packed, spread, masks = room.packed, room.spread, room.masks
    wins_line, packed_bytes = room.wins_line, room.packed_bytes
    for c in range(room.key.shape[0]):
        for start in range(0, n_rows, _BYTE):
            stop = min(start + _BYTE, n_rows)
            packed[:] = 0
            key = room.key[c, start:stop]
            for group in range(n_groups):
                mask = masks[group, start:stop]
                for m in range(key.size):
                    packed[key[m], group] += spread[mask[m]]
            for i in range(wins_line.size):
                wins_line[i] += packed_bytes[i]


@compiled
def _count_weights(table: Table, room: Room, column: NDArray[np.float64]) -> None:
    """Count the labels of a block by the smallest weight that wins their row, per key."""
    threshold, slot = room.threshold, room.slot
    weights, bins, reached = table.weights, table.bins, room.reached
    last = np.float64(bins.size - 1)
    scale = (last - 1.0) / max(1.0, weights[-1])
    for m in range(column.size):
        x = threshold[m] / column[m] * scale
        # Also false if p is 0 and the quotient is NaN: no weight wins such a row.
        x = x if x < last else last
        slot[m] = np.uint32(x)
    for m in range(column.size):
        slot[m] = bins[np.uint32(slot[m])]
    for m in range(column.size):
        g = slot[m]
        if g < 0:
            g = -1 - g
            while g < weights.size and column[m] * weights[g] <= threshold[m]:
                g += 1
            slot[m] = g
    for c in range(room.key.shape[0]):
        key = room.key[c]
        for m in range(column.size):
            reached[key[m], slot[m]] += 1


@compiled
def _eval_counts(table: Table, room: Room, j: int) -> None:
    """Compute Z of every correction from the counts per key."""
    wins, reached = room.wins, room.reached
    always = table.direct.size
    for i in range(room.base_correct.size):
        room.base_correct[i] = wins[3 * i + 1, always]
        room.base_predicted[i] = (
            wins[3 * i, always] + wins[3 * i + 1, always] + wins[3 * i + 2, always]
        )
    for lane in range(table.direct.size):
        room.values[table.direct[lane]] = _z_of_lane(table, room, j, wins, lane)
    if table.weights.size > 0:
        for key in range(reached.shape[0]):
            row = reached[key]
            for w in range(1, row.size):
                row[w] += row[w - 1]
        for w in range(table.weights.size):
            room.values[table.weighed[w]] = _z_of_lane(table, room, j, reached, w)


@compiled
def _z_of_lane(table: Table, room: Room, j: int, won: NDArray[np.int32], lane: int) -> float:
    """Return Z if class j wins the rows counted in column `lane` of `won`."""
    correct, predicted = room.correct, room.predicted
    gained, right = 0, 0
    for i in range(correct.size):
        own, mine = won[3 * i + 1, lane], won[3 * i + 2, lane]
        rows = won[3 * i, lane] + own + mine
        # Rows that fall back to j itself remain with it whether it wins them or not.
        taken = i != j
        correct[i] = room.base_correct[i] - taken * own
        predicted[i] = room.base_predicted[i] - taken * rows
        gained += taken * rows
        right += taken * mine
    correct[j] += right
    predicted[j] += gained
    return z_of(table, room, correct, predicted)
