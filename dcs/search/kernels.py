"""Compiled inner loops of the searches.

All of them are in one file: Numba's cache knows machine code by the content of the file of its
function, and would not notice that another function, which is compiled into it, has changed.

All functions release the GIL, write only to arrays allocated for them, and do not modify their
tables. Corrected values are computed by the formula of `dcs.schemes.corrections`, in the same
order of operations, so that ties are broken as in `CorrectionScheme.predict`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from dcs.evaluation.metrics import Objective
from dcs.schemes.corrections import CorrectionSet, Weight

# Input of the kernels, and Z from counts.
#
# A `Table` is immutable and may be shared between threads. A `State` belongs to one search.

_F = TypeVar("_F", bound=Callable[..., object])


def compiled(function: _F, *, inline: bool = False) -> _F:
    """Compile `function` without the GIL; machine code of this file is cached on disk.

    ``error_model="numpy"`` omits the checks for division by zero, which would prevent
    vectorisation. Fast-math stays off: results must be bit-identical to NumPy. With `inline`, the
    function is compiled into its callers: a call passes each array of a table and of a state
    separately, which takes longer than a short function itself.
    """
    # Machine code of another file would stay if a function of this one, compiled into it, changed.
    kept = function.__module__ == __name__
    options = {"nogil": True, "cache": kept, "error_model": "numpy", "forceinline": inline}
    try:
        return cast(_F, numba.njit(**options)(function))
    except RuntimeError:
        # Neither this package nor a home can be written to. Said once, since always of this line.
        warnings.warn(
            "machine code cannot be kept and is compiled by each process; set NUMBA_CACHE_DIR to "
            "a folder that only you can write to",
            UserWarning,
            stacklevel=1,
        )
        return cast(_F, numba.njit(**options | {"cache": False})(function))


@compiled
def copy(source: NDArray[Any], target: NDArray[Any]) -> None:
    """Copy an array: Numba takes seconds to compile ``target[:] = source`` with its checks."""
    for i in range(target.size):
        target[i] = source[i]


#: Number of corrections evaluated in parallel: their results are the bits of one byte.
LANES = 8

_BINS = 4096


class Table(NamedTuple):
    """Read-only arrays of a search."""

    columns: NDArray[np.float64]  # [N, M] probabilities, class by class
    labels: NDArray[np.int16]  # [C, M] one or several labels of every row
    fallback: NDArray[np.int16]  # [M] uncorrected prediction
    functions: NDArray[np.float64]  # [D, 4] coefficients of every correction
    direct: NDArray[np.int64]  # [D1] corrections evaluated one by one
    lanes: NDArray[np.float64]  # [4, L] their coefficients, padded by functions that always win
    weighed: NDArray[np.int64]  # [D2] weights evaluated by threshold, in ascending order
    weights: NDArray[np.float64]  # [D2] their weights
    bins: NDArray[np.int32]  # [B + 2] smallest winning weight, by the ratio to exceed
    class_rows: NDArray[np.float64]  # [N] labels per class
    present: NDArray[np.int64]  # classes with labels
    logs: NDArray[np.float64]  # [C * M + 1] log(count + pseudo-count)
    factors: NDArray[np.float64]  # error weight / labels, beta / pairs, tau, constant part of Z


def make_table(
    probs: NDArray[np.float64],
    labels: NDArray[np.int64],
    corrections: CorrectionSet,
    objective: Objective,
) -> Table:
    """Prepare validated arrays ([M, N], and [M] or [C, M]) for the kernels."""
    n_classes = probs.shape[1]
    class_rows = np.bincount(labels.ravel(), minlength=n_classes).astype(np.float64)
    present = np.flatnonzero(class_rows)
    direct, weighed, bins = _split_corrections(corrections)
    functions = corrections.coefficients
    # At least one padding lane always wins: it counts the rows of each key.
    n_lanes = -(-(direct.size + 1) // LANES) * LANES
    lanes = np.tile(np.array([[-np.inf], [1.0], [np.inf], [1.0]]), (1, n_lanes))
    lanes[:, : direct.size] = functions[direct].T
    table = Table(
        columns=np.ascontiguousarray(probs.T),
        labels=np.atleast_2d(labels.astype(np.int16)),
        fallback=probs.argmax(axis=1).astype(np.int16),
        functions=functions,
        direct=direct,
        lanes=lanes,
        weighed=weighed,
        weights=functions[weighed, 1],
        bins=bins,
        class_rows=class_rows,
        present=present,
        logs=np.log(np.arange(labels.size + 1) + objective.pseudo_count),
        factors=_factors(objective, labels.size, n_classes, class_rows[present]),
    )
    # All read-only, so that all tables have the same type for the compiler.
    for array in table:
        array.setflags(write=False)
    return table


def _factors(
    objective: Objective, n_rows: int, n_classes: int, class_rows: NDArray[np.float64]
) -> NDArray[np.float64]:
    k = objective.pseudo_count
    joint, marginal = np.log(n_rows + k * n_classes**2), np.log(n_rows + k * n_classes)
    constant = (2 * marginal - joint) * class_rows.size - np.log(class_rows + k).sum()
    pairs = max(1.0, class_rows.size * (class_rows.size - 1) / 2)
    return np.array(
        [
            objective.error_weight / n_rows,
            objective.beta / pairs,
            objective.tau,
            objective.error_weight - objective.tau * constant,
        ]
    )


def _split_corrections(
    corrections: CorrectionSet,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
    """Split the corrections into those evaluated one by one and weights evaluated by histogram.

    Bin b holds the smallest weight that wins a row if the weight must exceed a ratio in
    ``[b, b + 1) / 4096``, times the largest weight if that is above 1. If the ratio is too close
    to a weight to be decided despite rounding, or several weights are in the bin, it holds
    ``-1 - g``, and a linear search starts at weight g.
    """
    is_weight = np.array([isinstance(c, Weight) for c in corrections])
    values = corrections.coefficients[:, 1]
    direct, weighed = np.flatnonzero(~is_weight), np.flatnonzero(is_weight)
    weighed = weighed[np.argsort(values[weighed])]
    bins_per_unit = _BINS / values[weighed].max(initial=1.0)
    weights = values[weighed]
    edges = np.arange(_BINS + 2) / bins_per_unit
    low = np.searchsorted(weights, edges - 1e-9)
    high = np.searchsorted(weights, edges + (1 / bins_per_unit + 1e-9))
    # The last bin holds NaN and all ratios above the largest weight: no weight wins.
    low[-1] = high[-1] = weights.size
    bins = np.where(low == high, low, -1 - low).astype(np.int32)
    return direct.astype(np.int64), weighed.astype(np.int64), bins


@compiled
def corrected(p: float, left: float, rise: float, right: float, fall: float) -> float:
    """Return the corrected probability by the common formula of all corrections."""
    up = (p - left) * rise
    down = (right - p) * fall
    return up if up < down else down


@partial(compiled, inline=True)
def z_of(
    table: Table, state: State, correct: NDArray[np.int64], predicted: NDArray[np.int64]
) -> float:
    """Return the objective from the counts of correct and of all predictions, in O(N).

    COBias is a sum over sorted accuracies. The order is preserved between calls, and insertion
    sort of an almost sorted list takes linear time.
    """
    order, accuracy = state.order, state.accuracy
    n_present = order.size
    hits = 0
    logs = 0.0
    for i in range(n_present):
        j = table.present[i]
        hits += correct[j]
        logs += table.logs[correct[j]] - table.logs[predicted[j]]
        accuracy[j] = correct[j] / table.class_rows[j]
    for i in range(1, n_present):
        j = order[i]
        at = i - 1
        while at >= 0 and accuracy[order[at]] > accuracy[j]:
            order[at + 1] = order[at]
            at -= 1
        order[at + 1] = j
    distance = 0.0
    for i in range(n_present):
        distance += (2 * i - (n_present - 1)) * accuracy[order[i]]
    f = table.factors
    z: float = f[3] - f[0] * hits + f[1] * distance - f[2] * logs
    return z


# Evaluation of all corrections of one class at once.

#: Maximum number of rows that one byte can count.
_BYTE = 255


#: The bits of a byte, expanded to eight bytes.
_SPREAD = np.unpackbits(np.arange(256, dtype=np.uint8), bitorder="little").view(np.uint64)


@compiled
def eval_class(table: Table, state: State, j: int) -> None:
    """Store Z of every correction of class j in `state.values`, the others as they are."""
    threshold, key = _thresholds(table, state, j)
    won = _count_direct(table, threshold, key, j)
    base = np.zeros((2, state.choice.size), np.int64)
    for i in range(state.choice.size):
        own, others = won[3 * i + 1, -1], won[3 * i, -1] + won[3 * i + 2, -1]
        base[0, i], base[1, i] = own, own + others
    for lane in range(table.direct.size):
        state.values[table.direct[lane]] = _z_of_lane(table, state, j, base, won, lane)
    if table.weights.size > 0:
        won = _count_weights(table, threshold, key, j)
        for w in range(table.weights.size):
            state.values[table.weighed[w]] = _z_of_lane(table, state, j, base, won, w)


@compiled
def _thresholds(
    table: Table, state: State, j: int
) -> tuple[NDArray[np.float64], NDArray[np.uint32]]:
    """Return the values [M] that class j must exceed, and the keys [C, M] of the labels.

    A key is the rival class of the row, and whether the label is that class, class j, or neither.
    """
    first, second = state.first, state.second
    first_class, second_class = state.first_class, state.second_class
    threshold, rivals = np.empty(first.size), np.empty(first.size, np.int16)
    keys = np.empty(table.labels.shape, np.uint32)
    bits, jj = threshold.view(np.int64), np.int16(j)
    # Separate loops: a loop that writes to several arrays is not vectorised.
    for m in range(first.size):
        best, runner_up = first[m], second[m]
        threshold[m] = runner_up if first_class[m] == jj else best
    for m in range(first.size):
        best_class, runner_up_class = first_class[m], second_class[m]
        rivals[m] = runner_up_class if best_class == jj else best_class
    # Ties go to the lower class. Decrementing the bits of a positive number gives the next smaller
    # number, so that "greater than" the new threshold means "greater or equal" to the old one.
    for m in range(first.size):
        bits[m] -= np.int64((jj < rivals[m]) & (bits[m] > 0))
    for c in range(table.labels.shape[0]):
        key, labels = keys[c], table.labels[c]
        for m in range(first.size):
            rival = rivals[m]
            label = labels[m]
            key[m] = (
                np.int32(3) * np.int32(rival)
                + np.int32(label == rival)
                + np.int32(2) * np.int32((label == jj) & (rival != jj))
            )
    return threshold, keys


@compiled
def _count_direct(
    table: Table, threshold: NDArray[np.float64], keys: NDArray[np.uint32], j: int
) -> NDArray[np.int32]:
    """Return the labels [3 N, L] won by each direct correction, per key."""
    column, n_rows, n_lanes = table.columns[j], threshold.size, table.lanes.shape[1]
    n_groups, n_keys = n_lanes // LANES, 3 * table.columns.shape[0]
    # The direct corrections that win the row, one bit each.
    masks = np.empty((n_groups, n_rows), np.uint8)
    for group in range(n_groups):
        # One slice per line: slicing all lines at once gives strided views, a few percent slower.
        lanes = slice(LANES * group, LANES * group + LANES)
        left, rise = table.lanes[0, lanes], table.lanes[1, lanes]
        right, fall = table.lanes[2, lanes], table.lanes[3, lanes]
        mask = masks[group]
        for m in range(n_rows):
            p, t = column[m], threshold[m]
            bits = np.int64(0)
            for lane in range(LANES):
                v = corrected(p, left[lane], rise[lane], right[lane], fall[lane])
                bits |= (np.int64(1) << lane) if v > t else np.int64(0)
            mask[m] = bits
    wins = np.zeros((n_keys, n_lanes), np.int32)
    packed = np.zeros((n_keys, n_groups), np.uint64)  # Eight counters to a word.
    wins_line, packed_bytes = wins.reshape(-1), packed.reshape(-1).view(np.uint8)
    for c in range(keys.shape[0]):
        for start in range(0, n_rows, _BYTE):
            stop = min(start + _BYTE, n_rows)
            packed[:] = 0
            key = keys[c, start:stop]
            for group in range(n_groups):
                mask = masks[group, start:stop]
                for m in range(key.size):
                    packed[key[m], group] += _SPREAD[mask[m]]
            for i in range(wins_line.size):
                wins_line[i] += packed_bytes[i]
    return wins


@compiled
def _count_weights(
    table: Table, threshold: NDArray[np.float64], keys: NDArray[np.uint32], j: int
) -> NDArray[np.int32]:
    """Return the labels [3 N, D2 + 1] won by each weight, per key."""
    column, weights, bins = table.columns[j], table.weights, table.bins
    slot = np.empty(column.size, np.int32)  # The smallest weight that wins the row.
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
    reached = np.zeros((3 * table.columns.shape[0], weights.size + 1), np.int32)
    for c in range(keys.shape[0]):
        key = keys[c]
        for m in range(column.size):
            reached[key[m], slot[m]] += 1
    for row in reached:
        for w in range(1, row.size):
            row[w] += row[w - 1]
    return reached


@compiled
def _z_of_lane(
    table: Table,
    state: State,
    j: int,
    base: NDArray[np.int64],
    won: NDArray[np.int32],
    lane: int,
) -> float:
    """Return Z if class j wins the rows counted in column `lane` of `won`.

    `base` [2, N] are the correct and all predictions if it wins no row.
    """
    correct, predicted = state.next_correct, state.next_predicted
    gained, right = 0, 0
    for i in range(correct.size):
        own, mine = won[3 * i + 1, lane], won[3 * i + 2, lane]
        rows = won[3 * i, lane] + own + mine
        # Rows that fall back to j itself remain with it whether it wins them or not.
        taken = i != j
        correct[i] = base[0, i] - taken * own
        predicted[i] = base[1, i] - taken * rows
        gained += taken * rows
        right += taken * mine
    correct[j] += right
    predicted[j] += gained
    return z_of(table, state, correct, predicted)


# Moves of one class, evaluated in one pass over the rows and applied if accepted.
#
# The state stores the best and the runner-up corrected value of each row, and an upper bound of
# the others. A value of 0 has the uncorrected prediction of the row as its class, because a row
# that corrects to all zeros keeps that prediction. All counts are of labels, of which a row may
# have several.


class State(NamedTuple):
    """A solution, the statistics that its moves update, and room for what is evaluated."""

    choice: NDArray[np.int64]  # [N] correction of every class
    first: NDArray[np.float64]  # [M] best corrected value
    second: NDArray[np.float64]  # [M] runner-up
    first_class: NDArray[np.int16]  # [M] class of the best value
    second_class: NDArray[np.int16]  # [M] class of the runner-up
    correct: NDArray[np.int64]  # [N] correct predictions
    predicted: NDArray[np.int64]  # [N] all predictions
    flags: NDArray[np.uint8]  # [M] whether a row changes
    touched: NDArray[np.int32]  # [M + 1] their indices
    values: NDArray[np.float64]  # [D] Z of every correction of the class evaluated last
    next_correct: NDArray[np.int64]  # [N] correct predictions of the solution evaluated last
    next_predicted: NDArray[np.int64]  # [N] all its predictions
    order: NDArray[np.int64]  # present classes by accuracy
    accuracy: NDArray[np.float64]  # [N]


def make_state(table: Table) -> State:
    """Allocate a state, to be initialised by `set_choice`."""
    n_classes, n_rows = table.columns.shape
    return State(
        choice=np.zeros(n_classes, np.int64),
        first=np.zeros(n_rows),
        second=np.zeros(n_rows),
        first_class=np.zeros(n_rows, np.int16),
        second_class=np.zeros(n_rows, np.int16),
        correct=np.zeros(n_classes, np.int64),
        predicted=np.zeros(n_classes, np.int64),
        flags=np.zeros(n_rows, np.uint8),
        touched=np.zeros(n_rows + 1, np.int32),
        values=np.zeros(table.functions.shape[0]),
        next_correct=np.zeros(n_classes, np.int64),
        next_predicted=np.zeros(n_classes, np.int64),
        order=table.present.copy(),
        accuracy=np.zeros(n_classes),
    )


@compiled
def set_choice(table: Table, state: State, choice: NDArray[np.int64]) -> None:
    """Initialise the state for a choice of corrections."""
    copy(choice, state.choice)
    labels, n_rows = table.labels, table.labels.shape[1]
    for m in range(n_rows):
        state.touched[m] = m
    _rank(table, state, n_rows)
    state.correct[:] = 0
    state.predicted[:] = 0
    for c in range(labels.shape[0]):
        for m in range(n_rows):
            i = state.first_class[m]
            state.predicted[i] += 1
            state.correct[i] += labels[c, m] == i


@compiled
def _rank(table: Table, state: State, n: int) -> None:
    """Find the two best values of the first `n` listed rows."""
    for t in range(n):
        m = np.uint32(state.touched[t])
        first = second = 0.0
        first_class = second_class = table.fallback[m]
        for j in range(state.choice.size):
            k = state.choice[j]
            left, rise, right, fall = table.functions[k]
            v = corrected(table.columns[j, m], left, rise, right, fall)
            if v > first:
                second, second_class = first, first_class
                first, first_class = v, np.int16(j)
            elif v > second:
                second, second_class = v, np.int16(j)
        state.first[m], state.second[m] = first, second
        state.first_class[m], state.second_class[m] = first_class, second_class


@compiled
def _list_flagged(state: State) -> int:
    """List the rows flagged to change, and return their number."""
    flags, touched = state.flags, state.touched
    n = 0
    for m in range(flags.size):
        # Branch-free: every index is written, and overwritten unless its row is flagged.
        touched[n] = m
        n += flags[m]
    return n


@compiled
def eval_move(table: Table, state: State, j: int, k: int) -> float:
    """Return Z if class j takes correction k, and store the counts of that solution."""
    column = table.columns[j]
    first, second, first_class = state.first, state.second, state.first_class
    second_class, flags = state.second_class, state.flags
    left, rise, right, fall = table.functions[k]
    jj = np.int16(j)
    for m in range(column.size):
        v = corrected(column[m], left, rise, right, fall)
        # All are always read: a load that depends on a comparison is not vectorised.
        best, runner_up = first[m], second[m]
        best_class, runner_up_class = first_class[m], second_class[m]
        own = best_class == jj
        rival = runner_up if own else best
        rival_class = runner_up_class if own else best_class
        wins = (v > rival) | ((v == rival) & (jj < rival_class) & (v > 0.0))
        flags[m] = own != wins
    correct, predicted = state.next_correct, state.next_predicted
    copy(state.correct, correct)
    copy(state.predicted, predicted)
    for t in range(_list_flagged(state)):
        row = np.uint32(state.touched[t])
        own = first_class[row] == jj
        # Rows with only zeros that fall back to j itself remain with it.
        rival_class = second_class[row] if own else first_class[row]
        loser, winner = (jj, rival_class) if own else (rival_class, jj)
        for c in range(table.labels.shape[0]):
            label = table.labels[c, row]
            predicted[loser] -= 1
            predicted[winner] += 1
            correct[loser] -= label == loser
            correct[winner] += label == winner
    return z_of(table, state, correct, predicted)


@compiled
def apply_move(table: Table, state: State, j: int, k: int) -> None:
    """Give class j correction k, except for the counts."""
    state.choice[j] = k
    column, flags = table.columns[j], state.flags
    first, second = state.first, state.second
    first_class, second_class = state.first_class, state.second_class
    left, rise, right, fall = table.functions[k]
    jj = np.int16(j)
    for m in range(column.size):
        v = corrected(column[m], left, rise, right, fall)
        v = v if v > 0.0 else 0.0
        own_first = first_class[m] == jj
        own = own_first | (second_class[m] == jj)
        best, runner_up = first[m], second[m]
        old = best if own_first else runner_up
        changes = (v != old) if own else (v >= runner_up) & (v > 0.0)
        flags[m] = changes
    touched, n_lost = state.touched, 0
    for t in range(_list_flagged(state)):
        row = np.uint32(touched[t])
        v = corrected(column[row], left, rise, right, fall)
        own_first = first_class[row] == jj
        rival = second[row] if own_first else first[row]
        rival_class = second_class[row] if own_first else first_class[row]
        if v > rival or (v == rival and jj < rival_class and v > 0.0):
            first[row], first_class[row] = v, jj
            second[row], second_class[row] = rival, rival_class
        elif own_first or second_class[row] == jj:
            # Another class may now be one of the two best.
            touched[n_lost] = row
            n_lost += 1
        elif v > second[row] or jj < second_class[row]:
            second[row], second_class[row] = v, jj
    _rank(table, state, n_lost)


# Complete searches: annealing chains and coordinate descent.

# The constants of SplitMix64.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)
_DROP = np.uint64(11)
_UNIT = 2.0**-53


@compiled
def uniform(stream: NDArray[np.uint64]) -> float:
    """Draw a number in [0, 1) and advance the stream."""
    stream[0] += _STEP
    z = stream[0]
    z = (z ^ (z >> _SHIFT_1)) * _MIX_1
    z = (z ^ (z >> _SHIFT_2)) * _MIX_2
    z = z ^ (z >> _SHIFT_3)
    return float(z >> _DROP) * _UNIT


@compiled
def random_index(stream: NDArray[np.uint64], n: int) -> int:
    """Draw an integer in 0 .. n - 1."""
    return int(uniform(stream) * n)


#: Smaller differences of Z are rounding errors, not improvements.
TOLERANCE = 1e-12

#: A heat-bath chain is frozen after this many consecutive moves per class without a change of Z.
FROZEN = 2


@compiled
def randomise(stream: NDArray[np.uint64], choice: NDArray[np.int64], n_functions: int) -> None:
    """Fill `choice` with random corrections."""
    for j in range(choice.size):
        choice[j] = random_index(stream, n_functions)


@compiled
def cool(
    table: Table,
    state: State,
    stream: NDArray[np.uint64],
    temperatures: NDArray[np.float64],
    limits: NDArray[np.int64],
    count_worse: bool,
    heat_bath: bool,
    choice: NDArray[np.int64],
    best_choice: NDArray[np.int64],
) -> tuple[float, int]:
    """Cool one chain from `choice`.

    A move of the paper changes the correction of one class at random, and is accepted or rejected
    by the Metropolis criterion. With `heat_bath`, a move draws the correction of one class from
    its Boltzmann distribution given the other classes, which are visited in sweeps of random
    order; it is accepted if it changes Z, and cooling ends if the chain is frozen.

    `limits` holds the numbers of accepted and generated moves that end a temperature;
    `count_worse` is whether accepted moves to a worse solution count. The best of all evaluated
    solutions is written to `best_choice`. Returns its Z and the number of evaluated candidates.
    """
    n_classes, n_functions = choice.size, table.functions.shape[0]
    set_choice(table, state, choice)
    z = z_of(table, state, state.correct, state.predicted)
    # The first move of a heat bath evaluates the current solution too.
    best = math.inf if heat_bath else z
    copy(state.choice, best_choice)
    order = np.arange(n_classes)
    moves, idle, frozen = 0, 0, FROZEN * n_classes
    for i in range(temperatures.size):
        accepted, generated, at = 0, 0, n_classes
        while accepted < limits[0] and generated < limits[1] and idle < frozen:
            generated += 1
            if heat_bath:
                if at == n_classes:
                    _shuffle(stream, order)
                    at = 0
                j = order[at]
                at += 1
                eval_class(table, state, j)
                k = _draw(stream, state.values, temperatures[i])
                low = state.values.argmin()
                if state.values[low] < best - TOLERANCE:
                    best = state.values[low]
                    copy(state.choice, best_choice)
                    best_choice[j] = low
                rise = state.values[k] - state.values[state.choice[j]]
                changed = abs(rise) > TOLERANCE
                accepted += changed and (count_worse or rise < 0.0)
                idle = 0 if changed else idle + 1
                if k != state.choice[j]:
                    apply_move(table, state, j, k)
                continue
            j = random_index(stream, n_classes)
            k = random_index(stream, n_functions - 1)
            if k >= state.choice[j]:
                k += 1
            new = eval_move(table, state, j, k)
            if new < z - temperatures[i] * math.log(uniform(stream)):
                copy(state.next_correct, state.correct)
                copy(state.next_predicted, state.predicted)
                apply_move(table, state, j, k)
                accepted += count_worse or new <= z
                z = new
                if z < best - TOLERANCE:
                    best = z
                    copy(state.choice, best_choice)
        moves += generated
    return best, moves * n_functions if heat_bath else moves + 1


@compiled
def descend(table: Table, state: State, choice: NDArray[np.int64]) -> tuple[float, int]:
    """Take the best correction class by class until none improves Z.

    Updates `choice` in place; returns its Z and the number of evaluated candidates.
    """
    n_classes = choice.size
    set_choice(table, state, choice)
    z = math.inf
    settled, moves = 0, 0
    while settled < n_classes:
        before = z
        for j in range(n_classes):
            if settled == n_classes:
                break
            eval_class(table, state, j)
            moves += 1
            values = state.values
            best = choice[j]
            for k in range(values.size):
                if values[k] < values[best] - TOLERANCE:
                    best = k
            settled = settled + 1 if best == choice[j] else 1
            z = values[best]
            if best != choice[j]:
                apply_move(table, state, j, best)
                choice[j] = best
        if z >= before - TOLERANCE:
            # Rows that tie up to rounding may count for different classes, depending on the class
            # being evaluated: two corrections that each seem to improve on the other would
            # alternate forever.
            break
    return z, moves * table.functions.shape[0]


@compiled
def _shuffle(stream: NDArray[np.uint64], order: NDArray[np.int64]) -> None:
    for i in range(order.size - 1, 0, -1):
        at = random_index(stream, i + 1)
        order[i], order[at] = order[at], order[i]


@compiled
def _draw(stream: NDArray[np.uint64], values: NDArray[np.float64], t: float) -> int:
    """Draw an index with probability proportional to exp(-value / t)."""
    low = values.min()
    total = 0.0
    for k in range(values.size):
        total += math.exp((low - values[k]) / t)
    rest = uniform(stream) * total
    drawn = 0
    for k in range(values.size):
        share = math.exp((low - values[k]) / t)
        if share > 0.0:
            drawn = k
            rest -= share
            if rest < 0.0:
                break
    return drawn
