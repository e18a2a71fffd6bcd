"""All corrections of one class, judged in one pass over the rows.

With the other classes fixed, row m goes to class j exactly when the corrected value exceeds a
threshold that does not depend on the correction, and otherwise to the best other class. So the
pass needs, for every correction, the number of rows it wins per *key*: the class that has the row
otherwise, and whether the label is that class, or j, or another. Weights are monotone: the first
one that wins a row decides for all larger ones, and a histogram of these holds every count. The
other corrections are compared one by one, all of them side by side in the lanes of the processor.
"""

from __future__ import annotations

import numpy as np

from dcs._kernels._compile import compiled
from dcs._kernels._table import BLOCK, Scratch, State, Table, z_of

__all__ = ["counts_of", "judge_class"]


@compiled
def _thresholds(
    table: Table, state: State, scratch: Scratch, j: int, start: int, stop: int
) -> None:
    """Fill threshold and key for the rows of one block."""
    threshold, bits, key = scratch.threshold, scratch.threshold_bits, scratch.key
    first = state.first[start:stop]
    second = state.second[start:stop]
    first_class = state.first_class[start:stop]
    second_class = state.second_class[start:stop]
    labels = table.labels[start:stop]
    jj = np.int16(j)
    for m in range(first.size):
        threshold[m] = second[m] if first_class[m] == jj else first[m]
    for m in range(first.size):
        rival = second_class[m] if first_class[m] == jj else first_class[m]
        label = labels[m]
        key[m] = (
            np.int32(3) * np.int32(rival)
            + np.int32(label == rival)
            + np.int32(2) * np.int32((label == jj) & (rival != jj))
        )
    # A tie goes to the lower class. One step down in the bits of a positive number is the next
    # smaller number, so that "greater than" afterwards means "greater or equal" before.
    for m in range(first.size):
        rival = second_class[m] if first_class[m] == jj else first_class[m]
        bits[m] -= np.int64((jj < rival) & (bits[m] > 0))


@compiled
def _count_direct(table: Table, scratch: Scratch, j: int, start: int, stop: int) -> None:
    """Count, per key, the rows of a block that each direct correction wins."""
    column = table.columns[j, start:stop]
    threshold, key = scratch.threshold, scratch.key
    f0, f1, f2 = table.lanes[0], table.lanes[1], table.lanes[2]
    f3, f4, f5 = table.lanes[3], table.lanes[4], table.lanes[5]
    for m in range(column.size):
        p, t = column[m], threshold[m]
        wins = scratch.wins[key[m]]
        for lane in range(wins.size):
            left = (p - f0[lane]) * f1[lane] + f2[lane]
            right = (f3[lane] - p) * f4[lane] + f5[lane]
            v = left if left < right else right
            wins[lane] += v > t


@compiled
def _count_weights(table: Table, scratch: Scratch, j: int, start: int, stop: int) -> None:
    """Count, per key, the rows of a block by the first weight that wins them."""
    column = table.columns[j, start:stop]
    threshold, key, slot = scratch.threshold, scratch.key, scratch.slot
    weights, bins = table.weights, table.bins
    n_bins = np.float64(bins.size - 1)
    for m in range(column.size):
        x = threshold[m] / column[m] * n_bins
        # Also false where p is 0 and the quotient is not a number: no weight wins there.
        x = x if x < n_bins else n_bins
        slot[m] = bins[np.int32(x)]
    for m in range(column.size):
        p, t = column[m], threshold[m]
        g = slot[m]
        slot[m] = (
            g
            + np.int32(p * weights[g] <= t)
            + np.int32(p * weights[g + 1] <= t)
            + np.int32(p * weights[g + 2] <= t)
        )
    for m in range(column.size):
        scratch.reached[key[m], slot[m]] += 1


@compiled
def judge_class(table: Table, state: State, scratch: Scratch, j: int) -> None:
    """Leave Z of every correction of class j in `scratch.values`; the state stays as it is."""
    scratch.wins[:] = 0
    scratch.reached[:] = 0
    n_rows = table.labels.size
    n_weights = table.weighed.size
    for start in range(0, n_rows, BLOCK):
        stop = min(start + BLOCK, n_rows)
        _thresholds(table, state, scratch, j, start, stop)
        _count_direct(table, scratch, j, start, stop)
        if n_weights > 0:
            _count_weights(table, scratch, j, start, stop)
    _losing_counts(table, scratch)
    for lane in range(table.direct.size):
        counts_of(table, scratch, j, lane)
        scratch.values[table.direct[lane]] = z_of(
            table, scratch, scratch.correct, scratch.predicted
        )
    if n_weights > 0:
        reached = scratch.reached
        for key in range(reached.shape[0]):
            total = 0
            for w in range(n_weights):
                total += reached[key, w]
                reached[key, w] = total
        for w in range(n_weights):
            counts_of(table, scratch, j, table.direct.size + w)
            scratch.values[table.weighed[w]] = z_of(
                table, scratch, scratch.correct, scratch.predicted
            )


@compiled
def _losing_counts(table: Table, scratch: Scratch) -> None:
    """Count predictions as they are when the class wins no row at all."""
    always = table.direct.size
    for i in range(scratch.base_correct.size):
        other = scratch.wins[3 * i, always]
        own = scratch.wins[3 * i + 1, always]
        mine = scratch.wins[3 * i + 2, always]
        scratch.base_correct[i] = own
        scratch.base_predicted[i] = other + own + mine


@compiled
def counts_of(table: Table, scratch: Scratch, j: int, lane: int) -> None:
    """Leave the counts of one judged correction in `scratch.correct` and `scratch.predicted`.

    Lanes count the direct corrections first, then the weights.
    """
    n_direct = table.direct.size
    correct, predicted = scratch.correct, scratch.predicted
    gained = np.int64(0)
    right = np.int64(0)
    for i in range(correct.size):
        if i == j:
            # Rows that fall back to j itself stay with it whether it wins them or not.
            continue
        if lane < n_direct:
            other = np.int64(scratch.wins[3 * i, lane])
            own = np.int64(scratch.wins[3 * i + 1, lane])
            mine = np.int64(scratch.wins[3 * i + 2, lane])
        else:
            other = np.int64(scratch.reached[3 * i, lane - n_direct])
            own = np.int64(scratch.reached[3 * i + 1, lane - n_direct])
            mine = np.int64(scratch.reached[3 * i + 2, lane - n_direct])
        correct[i] = scratch.base_correct[i] - own
        predicted[i] = scratch.base_predicted[i] - other - own - mine
        gained += other + own + mine
        right += mine
    correct[j] = scratch.base_correct[j] + right
    predicted[j] = scratch.base_predicted[j] + gained
