"""Moves of one class, evaluated in one pass over the rows and applied if accepted.

The state stores the best and the runner-up corrected value of each row, and an upper bound of the
others. A value of 0 has the uncorrected prediction of the row as its class, because a row that
corrects to all zeros keeps that prediction. All counts are of labels, of which a row may have
several.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dcs.search.kernels.table import Room, Table, compiled, copy, corrected, z_of

_ONE = np.uint64(1)

# Flags of a row, and the tie flag in all eight bytes of a word.
_NOTHING, _CHANGES, _TIES = np.int64(0), np.int64(1), np.int64(2)
_TIE_BITS = np.uint64(0x0202020202020202)


class State(NamedTuple):
    """A solution and the statistics that its moves update."""

    choice: NDArray[np.int64]  # [N] correction of every class
    first: NDArray[np.float64]  # [M] best corrected value
    second: NDArray[np.float64]  # [M] runner-up
    third: NDArray[np.float64]  # [M] upper bound of all other values
    first_class: NDArray[np.int16]  # [M] class of the best value
    second_class: NDArray[np.int16]  # [M] class of the runner-up
    correct: NDArray[np.int64]  # [N] correct predictions
    predicted: NDArray[np.int64]  # [N] all predictions
    flags: NDArray[np.uint8]  # [8 * words] rows that may change
    flag_words: NDArray[np.uint64]  # the same bytes, eight at a time
    touched: NDArray[np.int32]  # [8 * words + 1] their indices
    net: NDArray[np.int64]  # [N, 2] labels won minus lost per rival: others, its own
    ranked: NDArray[np.float64]  # [3, M] values, best and second best of the rows to rank
    ranked_class: NDArray[np.int16]  # [2, M] excluded class, class of the best


def make_state(table: Table) -> State:
    """Allocate a state, to be initialised by `set_choice`."""
    n_classes, n_rows = table.columns.shape
    words = np.zeros((n_rows + 7) // 8, np.uint64)
    return State(
        choice=np.zeros(n_classes, np.int64),
        first=np.zeros(n_rows),
        second=np.zeros(n_rows),
        third=np.zeros(n_rows),
        first_class=np.zeros(n_rows, np.int16),
        second_class=np.zeros(n_rows, np.int16),
        correct=np.zeros(n_classes, np.int64),
        predicted=np.zeros(n_classes, np.int64),
        flags=words.view(np.uint8),
        flag_words=words,
        touched=np.zeros(words.size * 8 + 1, np.int32),
        net=np.zeros((n_classes, 2), np.int64),
        ranked=np.zeros((3, n_rows)),
        ranked_class=np.zeros((2, n_rows), np.int16),
    )


@compiled
def set_choice(table: Table, state: State, choice: NDArray[np.int64]) -> None:
    """Initialise the state for a choice of corrections."""
    copy(choice, state.choice)
    labels, n_rows = table.labels, table.labels.shape[1]
    for m in range(n_rows):
        state.touched[m] = m
    state.first_class[:] = -1
    _rank(table, state, n_rows)
    copy(state.second, state.first)
    copy(state.second_class, state.first_class)
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
    """Find the two best values of `n` listed rows, excluding the class in `first_class`."""
    rows = state.touched
    values, best, rest = state.ranked[0, :n], state.ranked[1, :n], state.ranked[2, :n]
    besides, holder = state.ranked_class[0, :n], state.ranked_class[1, :n]
    for t in range(n):
        m = np.uint32(rows[t])
        besides[t] = state.first_class[m]
        holder[t] = table.fallback[m]
    best[:] = 0.0
    rest[:] = 0.0
    for j in range(state.choice.size):
        column, jj = table.columns[j], np.int16(j)
        left, rise, right, fall = table.functions[state.choice[j]]
        # Separate loops: a loop that writes to several arrays is not vectorised.
        for t in range(n):
            values[t] = column[np.uint32(rows[t])]
        for t in range(n):
            v = corrected(values[t], left, rise, right, fall)
            values[t] = 0.0 if besides[t] == jj else v
        for t in range(n):
            v = values[t] if values[t] < best[t] else best[t]
            rest[t] = v if v > rest[t] else rest[t]
        for t in range(n):
            wins = values[t] > best[t]
            best[t] = values[t] if wins else best[t]
            holder[t] = jj if wins else holder[t]
    for t in range(n):
        m = np.uint32(rows[t])
        state.second[m], state.third[m] = best[t], rest[t]
        state.second_class[m] = holder[t]


@compiled
def _list_flagged(state: State) -> tuple[int, bool]:
    """List the rows flagged to change; return their number and whether any row ties."""
    words, touched = state.flag_words, state.touched
    n, seen = np.uint64(0), np.uint64(0)
    for w in range(words.size):
        word = words[w]
        if word != 0:
            seen |= word
            # Branch-free: every index is written, and overwritten unless its row is flagged.
            for i in range(8):
                touched[n] = 8 * w + i
                n += (word >> np.uint64(8 * i)) & _ONE
    return int(n), (seen & _TIE_BITS) != 0


@compiled
def eval_move(table: Table, state: State, room: Room, j: int, k: int, ceiling: float) -> float:
    """Return Z if class j takes correction k, without changing the state.

    The new counts are stored in `room.correct` and `room.predicted`. If a lower bound shows early
    that Z is not below `ceiling`, this bound is returned and no counts are stored.
    """
    column = table.columns[j]
    first, second, first_class = state.first, state.second, state.first_class
    flags, net = state.flags, state.net
    left, rise, right, fall = table.functions[k]
    jj = np.int16(j)
    for m in range(column.size):
        v = corrected(column[m], left, rise, right, fall)
        # Both are always read: a load that depends on a comparison is not vectorised.
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
    labels = table.labels
    n_labels = labels.shape[0]
    # Minimum number of labels that j would win wrongly. Even if all others were correct, without
    # COBias and without false predictions, Z could not be lower than this bound.
    wrong = n_labels * n_touched - state.predicted[j] - table.class_rows[j]
    lowest = table.factors[3] - table.factors[0] * (labels.size - wrong)
    if lowest >= ceiling:
        return float(lowest)
    net[:] = 0
    second_class, touched = state.second_class, state.touched
    hits, gained = np.int64(0), np.int64(0)
    for t in range(n_touched):
        row = np.uint32(touched[t])
        best_class, runner_up_class = first_class[row], second_class[row]
        own = best_class == jj
        rival_class = runner_up_class if own else best_class
        rows = 1 - 2 * np.int64(own)
        for c in range(n_labels):
            label = labels[c, row]
            net[rival_class, np.int64(label == rival_class)] += rows
            hits += rows * np.int64(label == jj)
            gained += rows
    # Rows with only zeros that fall back to j itself remain with it.
    gained -= net[j, 0] + net[j, 1]
    hits -= net[j, 1]
    correct, predicted = room.correct, room.predicted
    for i in range(correct.size):
        correct[i] = state.correct[i] - net[i, 1]
        predicted[i] = state.predicted[i] - net[i, 0] - net[i, 1]
    correct[j] = state.correct[j] + hits
    predicted[j] = state.predicted[j] + gained
    return z_of(table, room, correct, predicted)


@compiled
def _settle_ties(table: Table, state: State, j: int, k: int) -> None:
    """Resolve the flags of rows with a tie of positive values in favour of the lower class."""
    left, rise, right, fall = table.functions[k]
    for m in range(state.first.size):
        v = corrected(table.columns[j, m], left, rise, right, fall)
        own = state.first_class[m] == j
        if v > 0.0 and v == (state.second[m] if own else state.first[m]):
            rival = state.second_class[m] if own else state.first_class[m]
            state.flags[m] = own != (j < rival)


@compiled
def find_rivals(state: State, room: Room, j: int) -> None:
    """Store the maxima over all classes but j in `room.rival_value` and `room.rival_class`."""
    first, second = state.first, state.second
    first_class, second_class = state.first_class, state.second_class
    value, holder = room.rival_value, room.rival_class
    jj = np.int16(j)
    # Separate loops: a loop that writes to several arrays is not vectorised.
    for m in range(value.size):
        best, runner_up = first[m], second[m]
        value[m] = runner_up if first_class[m] == jj else best
    for m in range(value.size):
        best_class, runner_up_class = first_class[m], second_class[m]
        holder[m] = runner_up_class if best_class == jj else best_class


@compiled
def take_counts(state: State, room: Room) -> None:
    """Take over the counts of the move last evaluated by `eval_move`."""
    copy(room.correct, state.correct)
    copy(room.predicted, state.predicted)


@compiled
def apply_move(table: Table, state: State, j: int, k: int) -> bool:
    """Give class j correction k, except for the counts; return whether any value changes."""
    state.choice[j] = k
    column, flags = table.columns[j], state.flags
    first, second, third = state.first, state.second, state.third
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
        flags[m] = _CHANGES if changes else _NOTHING
    for m in range(column.size):
        v = corrected(column[m], left, rise, right, fall)
        own = (first_class[m] == jj) | (second_class[m] == jj)
        v = v if v < second[m] else second[m]
        third[m] = third[m] if own | (v <= third[m]) else v
    n_touched, _ = _list_flagged(state)
    touched, n_lost = state.touched, 0
    for t in range(n_touched):
        row = np.uint32(touched[t])
        v = corrected(column[row], left, rise, right, fall)
        v = v if v > 0.0 else 0.0
        own_first = first_class[row] == jj
        own = own_first | (second_class[row] == jj)
        best, best_class = first[row], first_class[row]
        runner_up, runner_up_class = second[row], second_class[row]
        rival = runner_up if own_first else best
        rival_class = runner_up_class if own_first else best_class
        wins = (v > rival) | ((v == rival) & (jj < rival_class) & (v > 0.0))
        stays = (not own) & (v == runner_up) & (runner_up_class < jj)
        # Arithmetic instead of unpredictable branches.
        loser = runner_up_class if stays else jj
        first[row] = v if v > rival else rival
        second[row] = rival if v > rival else v
        first_class[row] = rival_class ^ ((rival_class ^ jj) & -np.int16(wins))
        second_class[row] = loser ^ ((loser ^ rival_class) & -np.int16(wins))
        # Another class may now be the runner-up.
        touched[n_lost] = row
        n_lost += own & (not wins) & (v <= third[row])
    _rank(table, state, n_lost)
    return n_touched > 0
