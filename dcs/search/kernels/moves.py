"""One changed class: judged in one streaming pass, then taken or left.

Rows keep their best and runner-up corrected value. A value of 0 is kept with the row's uncorrected
prediction as its class, because a row that corrects to all zeros keeps that prediction.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dcs.search.kernels.table import Room, Table, compiled, corrected, z_of

__all__ = ["State", "apply_move", "judge_move", "make_state", "set_choice"]


_ONE = np.uint64(1)
_TWO = np.uint64(2)
_THREE = np.uint64(3)

# Where the parts of a row's keys begin, and how wide a key is.
_SECOND_KEY = np.uint64(20)
_LABEL = np.uint64(40)
_KEY_BITS = np.uint64(2**20 - 1)

# What a row's flag says, and the second of these in all eight bytes of a word.
_NOTHING, _CHANGES, _TIES = np.int64(0), np.int64(1), np.int64(2)
_TIE_BITS = np.uint64(0x0202020202020202)


class State(NamedTuple):
    """A solution and what its moves need to know of it."""

    choice: NDArray[np.int64]  # [N] correction of every class
    first: NDArray[np.float64]  # [M] best corrected value
    second: NDArray[np.float64]  # [M] runner-up
    first_class: NDArray[np.int16]  # [M]
    second_class: NDArray[np.int16]  # [M]
    keys: NDArray[np.uint64]  # [M] key of the best, key of the runner-up, label: see _set_keys
    correct: NDArray[np.int64]  # [N] correct predictions
    predicted: NDArray[np.int64]  # [N] all predictions
    flags: NDArray[np.uint8]  # [8 * words] rows that may change
    flag_words: NDArray[np.uint64]  # the same bytes, eight at a time
    touched: NDArray[np.int32]  # [8 * words + 1] their indices
    net: NDArray[np.int64]  # [3 N] rows won less rows lost, per rival and label
    current: NDArray[np.float64]  # [4, N] coefficients of the chosen corrections
    rows: NDArray[np.float64]  # [M, N] probabilities, row by row


def make_state(table: Table) -> State:
    """Make room for a state; `set_choice` fills it."""
    n_classes, n_rows = table.columns.shape
    words = np.zeros((n_rows + 7) // 8, np.uint64)
    return State(
        choice=np.zeros(n_classes, np.int64),
        first=np.zeros(n_rows),
        second=np.zeros(n_rows),
        first_class=np.zeros(n_rows, np.int16),
        second_class=np.zeros(n_rows, np.int16),
        keys=np.zeros(n_rows, np.uint64),
        correct=np.zeros(n_classes, np.int64),
        predicted=np.zeros(n_classes, np.int64),
        flags=words.view(np.uint8),
        flag_words=words,
        touched=np.zeros(words.size * 8 + 1, np.int32),
        net=np.zeros(3 * n_classes, np.int64),
        current=np.zeros((4, n_classes)),
        rows=np.ascontiguousarray(table.columns.T),
    )


@compiled
def _set_keys(table: Table, state: State, m: int) -> None:
    """Bring the keys of row m up to date with its classes.

    A key is 3 * class, plus 1 where the class is the label. Both keys and the label share one
    word, so that counting a row costs one load.
    """
    i, j = np.uint64(state.first_class[m]), np.uint64(state.second_class[m])
    label = np.uint64(table.labels[m])
    first = _THREE * i + np.uint64(i == label)
    second = _THREE * j + np.uint64(j == label)
    state.keys[m] = first | (second << _SECOND_KEY) | (label << _LABEL)


@compiled
def _rank_row(table: Table, state: State, m: int) -> None:
    """Find best and runner-up of row m from scratch."""
    row, current = state.rows[m], state.current
    first, second = 0.0, 0.0
    first_class = second_class = table.fallback[m]
    for j in range(row.size):
        v = corrected(row[j], current[0, j], current[1, j], current[2, j], current[3, j])
        if v > second:
            if v > first:
                second, second_class = first, first_class
                first, first_class = v, np.int16(j)
            else:
                second, second_class = v, np.int16(j)
    state.first[m] = first
    state.second[m] = second
    state.first_class[m] = first_class
    state.second_class[m] = second_class
    _set_keys(table, state, m)


@compiled
def set_choice(table: Table, state: State, choice: NDArray[np.int64]) -> None:
    """Fill the state for a choice of corrections."""
    state.choice[:] = choice
    for j in range(choice.size):
        state.current[:, j] = table.functions[choice[j]]
    state.correct[:] = 0
    state.predicted[:] = 0
    for m in range(table.labels.size):
        _rank_row(table, state, m)
        j = state.first_class[m]
        state.predicted[j] += 1
        state.correct[j] += j == table.labels[m]


@compiled
def _list_flagged(state: State) -> tuple[int, bool]:
    """List the rows flagged to change; returns how many there are, and if any row ties."""
    words, touched = state.flag_words, state.touched
    n, seen = np.uint64(0), np.uint64(0)
    for w in range(words.size):
        word = words[w]
        if word != 0:
            seen |= word
            # Without a branch per row: an index is written always, and kept if it counts.
            for i in range(8):
                touched[n] = 8 * w + i
                n += (word >> np.uint64(8 * i)) & _ONE
    return int(n), (seen & _TIE_BITS) != 0


@compiled
def judge_move(table: Table, state: State, room: Room, j: int, k: int) -> float:
    """Return Z when class j takes correction k, without changing the state.

    The new counts stay in `room.correct` and `room.predicted`.
    """
    column = table.columns[j]
    first, second, first_class = state.first, state.second, state.first_class
    flags, net = state.flags, state.net
    left, rise, right, fall = table.functions[k]
    jj = np.int16(j)
    for m in range(column.size):
        v = corrected(column[m], left, rise, right, fall)
        # Both are read whatever the row: a load that depends on a comparison is not vectorised.
        best, runner_up = first[m], second[m]
        own = first_class[m] == jj
        rival = runner_up if own else best
        changes = own != (v > rival)
        ties = (v == rival) & (v > 0.0)
        flags[m] = (_CHANGES if changes else _NOTHING) | (_TIES if ties else _NOTHING)
    n_touched, any_ties = _list_flagged(state)
    if any_ties:
        _settle_ties(table, state, j, k)
        n_touched, _ = _list_flagged(state)
    net[:] = 0
    keys, touched = state.keys, state.touched
    # Its own keys are these two. A row that falls back to j itself, having all zeros, has the
    # second one, which is not counted.
    own_keys = _THREE * np.uint64(j)
    own_label = np.uint64(j)
    for t in range(n_touched):
        word = keys[np.uint32(touched[t])]
        key = word & _KEY_BITS
        own = key - own_keys < _TWO
        key = (word >> _SECOND_KEY) & _KEY_BITS if own else key
        key += _TWO * np.uint64((word >> _LABEL == own_label) & (key != own_keys + _ONE))
        net[key] += 1 - 2 * np.int64(own)
    correct, predicted = room.correct, room.predicted
    gained, hits = 0, 0
    for i in range(correct.size):
        if i != j:
            rows = net[3 * i] + net[3 * i + 1] + net[3 * i + 2]
            correct[i] = state.correct[i] - net[3 * i + 1]
            predicted[i] = state.predicted[i] - rows
            gained += rows
            hits += net[3 * i + 2]
    correct[j] = state.correct[j] + hits
    predicted[j] = state.predicted[j] + gained
    return z_of(table, room, correct, predicted)


@compiled
def _settle_ties(table: Table, state: State, j: int, k: int) -> None:
    """Flag the rows with a tie of positive values as the lower class index demands."""
    left, rise, right, fall = table.functions[k]
    jj = np.int16(j)
    for m in range(table.labels.size):
        v = corrected(table.columns[j, m], left, rise, right, fall)
        own = state.first_class[m] == jj
        if v > 0.0 and v == (state.second[m] if own else state.first[m]):
            rival_class = state.second_class[m] if own else state.first_class[m]
            state.flags[m] = own != (jj < rival_class)


@compiled
def apply_move(table: Table, state: State, room: Room, j: int, k: int) -> None:
    """Make the move that `judge_move` has just judged."""
    for i in range(state.correct.size):
        state.correct[i] = room.correct[i]
        state.predicted[i] = room.predicted[i]
    state.choice[j] = k
    state.current[:, j] = table.functions[k]
    column = table.columns[j]
    first, second = state.first, state.second
    first_class, second_class = state.first_class, state.second_class
    flags = state.flags
    left, rise, right, fall = table.functions[k]
    jj = np.int16(j)
    for m in range(column.size):
        v = corrected(column[m], left, rise, right, fall)
        flags[m] = (first_class[m] == jj) | (second_class[m] == jj) | (v >= second[m])
    n_touched, _ = _list_flagged(state)
    for t in range(n_touched):
        m = state.touched[t]
        v = corrected(column[m], left, rise, right, fall)
        if first_class[m] == jj:
            if v > second[m] or (v == second[m] and jj < second_class[m] and v > 0.0):
                first[m] = v
            else:
                _rank_row(table, state, m)
        elif v > first[m] or (v == first[m] and jj < first_class[m] and v > 0.0):
            second[m], second_class[m] = first[m], first_class[m]
            first[m], first_class[m] = v, jj
            _set_keys(table, state, m)
        elif second_class[m] == jj:
            if v >= second[m] and v > 0.0:
                second[m] = v
            elif second[m] > 0.0:
                _rank_row(table, state, m)
        elif v > second[m] or (v == second[m] and jj < second_class[m] and v > 0.0):
            second[m], second_class[m] = v, jj
            _set_keys(table, state, m)
