"""One changed class: judged in one streaming pass, then taken or left."""

from __future__ import annotations

import numpy as np

from dcs._kernels._compile import compiled
from dcs._kernels._table import Scratch, State, Table, corrected, rank_row, z_of

__all__ = ["apply_choice", "judge_move", "keep_counts"]


@compiled
def judge_move(table: Table, state: State, scratch: Scratch, j: int, k: int) -> float:
    """Return Z when class j takes correction k, without changing the state.

    The new counts stay in `scratch.correct` and `scratch.predicted`.
    """
    column = table.columns[j]
    first, second, first_class = state.first, state.second, state.first_class
    flags = scratch.flags
    f0, f1, f2, f3, f4, f5 = table.functions[k]
    jj = np.int16(j)
    # Only the rows this loop flags can change: the class has them and may lose them, or it may
    # win them. Ties are flagged too and are decided below.
    for m in range(column.size):
        p = column[m]
        left = (p - f0) * f1 + f2
        right = (f3 - p) * f4 + f5
        v = left if left < right else right
        own = first_class[m] == jj
        flags[m] = (own & (v <= second[m])) | ((not own) & (v >= first[m]))
    n_touched = 0
    touched, words = scratch.touched, scratch.flag_words
    for w in range(words.size):
        if words[w] != 0:
            for m in range(8 * w, 8 * w + 8):
                touched[n_touched] = m
                n_touched += flags[m]
    correct, predicted = scratch.correct, scratch.predicted
    for i in range(correct.size):
        correct[i] = state.correct[i]
        predicted[i] = state.predicted[i]
    for t in range(n_touched):
        m = touched[t]
        old = first_class[m]
        if old == jj:
            rival, rival_class = second[m], state.second_class[m]
        else:
            rival, rival_class = first[m], old
        v = corrected(column[m], table.functions[k])
        wins = v > rival or (v == rival and jj < rival_class and v > 0.0)
        new = jj if wins else rival_class
        label = table.labels[m]
        predicted[old] -= 1
        predicted[new] += 1
        correct[old] -= old == label
        correct[new] += new == label
    return z_of(table, scratch, correct, predicted)


@compiled
def keep_counts(state: State, scratch: Scratch) -> None:
    """Take over the counts that `judge_move` or `judge_class` left in the scratch room."""
    for i in range(state.correct.size):
        state.correct[i] = scratch.correct[i]
        state.predicted[i] = scratch.predicted[i]


@compiled
def apply_choice(table: Table, state: State, scratch: Scratch, j: int, k: int) -> None:
    """Give class j the correction k and bring best and runner-up of every row up to date.

    The counts are not touched: see `keep_counts`.
    """
    column = table.columns[j]
    first, second = state.first, state.second
    first_class, second_class = state.first_class, state.second_class
    flags = scratch.flags
    f0, f1, f2, f3, f4, f5 = table.functions[k]
    jj = np.int16(j)
    state.choice[j] = k
    for m in range(column.size):
        p = column[m]
        left = (p - f0) * f1 + f2
        right = (f3 - p) * f4 + f5
        v = left if left < right else right
        flags[m] = (first_class[m] == jj) | (second_class[m] == jj) | (v >= second[m])
    n_touched = 0
    touched, words = scratch.touched, scratch.flag_words
    for w in range(words.size):
        if words[w] != 0:
            for m in range(8 * w, 8 * w + 8):
                touched[n_touched] = m
                n_touched += flags[m]
    for t in range(n_touched):
        m = touched[t]
        v = corrected(column[m], table.functions[k])
        if first_class[m] == jj:
            if v > second[m] or (v == second[m] and jj < second_class[m] and v > 0.0):
                first[m] = v
            else:
                rank_row(table, state, m)
        elif v > first[m] or (v == first[m] and jj < first_class[m] and v > 0.0):
            second[m], second_class[m] = first[m], first_class[m]
            first[m], first_class[m] = v, jj
        elif second_class[m] == jj:
            if v >= second[m] and v > 0.0:
                second[m] = v
            else:
                rank_row(table, state, m)
        elif v > second[m] or (v == second[m] and jj < second_class[m] and v > 0.0):
            second[m], second_class[m] = v, jj
